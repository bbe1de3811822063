"""Seeded generator of realistic logs of whole training jobs, with the truth known by construction.

In: a `Job` (what runs where and how it prints), a `Fault` (what goes wrong), a seed.
Out: the bytes of every log file of that job and one `Truth` per attempt.
Always: the same job, fault and seed give the same bytes; nothing reads the clock of the machine.

    files, truth = loggen.render(job, fault, seed=7)      # .arrivals and .told say when bytes and facts came
    for p in loggen.plan(seed=7, runs=2000): loggen.render(p.job, p.fault, p.seed)
    loggen.write("out", [(job, fault)], seed=7)
"""

from loggen.bulk import bulk
from loggen.model import (
    FAULT_KINDS,
    FRAMEWORKS,
    LAYOUTS,
    Case,
    Cause,
    Fault,
    FaultKind,
    Framework,
    Habits,
    Job,
    Layout,
    Rendered,
    Told,
    Truth,
)
from loggen.plan import Planned, plan
from loggen.presets import PRESETS, cases
from loggen.render import render, write

__all__ = [
    "FAULT_KINDS",
    "FRAMEWORKS",
    "LAYOUTS",
    "PRESETS",
    "Case",
    "Cause",
    "Fault",
    "FaultKind",
    "Framework",
    "Habits",
    "Job",
    "Layout",
    "Planned",
    "Rendered",
    "Told",
    "Truth",
    "bulk",
    "cases",
    "plan",
    "render",
    "write",
]
