"""Where a running job stands: how the bytes of its logs arrive, which attempt they are at, and what was said since it last moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from defib.engine.trace import ENDING_MARKS, Trace

TROUBLE_ROLES = frozenset(["root", "candidate", "cascade", "wrapper"])


@dataclass(slots=True)
class Growth:
    """How one stream's bytes arrive."""

    read: int = 0
    at_us: int | None = None
    lines: int = 0
    lined_us: int | None = None  # when a whole line last arrived
    bursts: int = 0
    aligned: bool = True  # every burst so far ended on a buffer's boundary
    longest_us: int = 0


def in_trouble(t: Trace, outlived: Mapping[int, int]) -> bool:
    """A failure was spoken of since training last moved, in this log or, where that is known, in any."""
    far = outlived.get(t.stream, 0)
    return any(s.offset >= far and (s.role in TROUBLE_ROLES or s.mark in ENDING_MARKS) for s in t.live)


def finished(traces: Sequence[Trace]) -> bool:
    """The program said that it is through."""
    return any(s.mark in ("completed", "ok-exit") for t in traces for s in t.last_by_rule.values())


def phase_before(traces: Sequence[Trace]) -> str:
    """The phase of an attempt that has not made a training step."""
    opened = [name for t in traces for name in t.phases.open]
    return opened[-1] if opened else "startup"


@dataclass(frozen=True, slots=True)
class Member:
    """A stream of a job: where it stands among the job's attempts, and its traces in order."""

    path: str
    generation: int
    number: int | None  # of the attempt, where its path tells
    traces: Sequence[Trace]


def current(members: Sequence[Member]) -> tuple[tuple[int, int, int], list[Trace]]:
    """Where the attempt that runs now stands, and its traces."""
    newest = max((m.number for m in members if m.number is not None), default=None)
    latest: dict[str, Member] = {}
    for m in members:
        if (m.number is None or m.number == newest) and m.generation >= (
            latest[m.path].generation if m.path in latest else 0
        ):
            latest[m.path] = m
    depth = max((max(1, sum(t.spoke for t in m.traces)) for m in latest.values()), default=0)
    now = [m.traces[-1] for m in latest.values()]
    return (newest or 0, max((m.generation for m in latest.values()), default=0), depth), now
