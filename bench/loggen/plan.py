"""What detectors meet: every kind of trouble, and every kind of healthy run that resembles one.

In: a seed and a number. Out: so many cases, each with a name of its own.
Always: case i of a seed is the same however many are asked for, and the shares hold for any prefix.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random

from loggen.kinds import HEALTHY, TROUBLE, Draw, base
from loggen.model import Fault, Job
from loggen.presets import DAY_ONE


@dataclass(frozen=True, slots=True)
class Planned:
    """A case by name; its seed renders it."""

    name: str
    group: str
    job: Job
    fault: Fault
    seed: int


def shares() -> dict[str, float]:
    """Share of each group, adding up to 1: half healthy, half not."""
    out = {}
    for prefix, table in (("healthy-", HEALTHY), ("", TROUBLE)):
        whole = sum(weight for weight, _ in table.values())
        out |= {prefix + name: 0.5 * weight / whole for name, (weight, _) in table.items()}
    return out


def groups() -> Iterator[str]:
    """Groups in an order in which each is always as near its share as it can be (the largest debt is paid first)."""
    share = shares()
    debt = dict.fromkeys(share, 0.0)
    while True:
        for name, part in share.items():
            debt[name] += part
        chosen = max(debt, key=lambda name: debt[name])
        debt[chosen] -= 1.0
        yield chosen


def planned(seed: int, index: int, group: str, start: datetime = DAY_ONE) -> Planned:
    """The case at this place of the plan."""
    rng = Random(f"{seed}|plan|{index}")
    healthy = group.startswith("healthy-")
    maker = HEALTHY[group.removeprefix("healthy-")][1] if healthy else TROUBLE[group][1]
    draw = Draw(base(rng), rng)
    job, fault = maker(draw)
    name = "-".join(part for part in (group, draw.detail, job.framework, f"{index:04d}") if part)
    job = replace(job, name=name, job_id=str(700_000 + index), start=start + timedelta(minutes=7 * (index % 10_000)))
    return Planned(name, group, job, fault, seed)


def plan(seed: int, runs: int, start: datetime = DAY_ONE) -> Iterator[Planned]:
    """The first `runs` cases of a seed."""
    for index, group in zip(range(runs), groups(), strict=False):
        yield planned(seed, index, group, start)
