"""Growing numbers: what progress lines of one format say about one run.

In: rows of one stream's progress in offset order, in any grouping. Out: counters of bounded size that do not depend on the grouping.
A counter knows its steps, its pace (as printed and between stamps), its windows, and whether a step that goes back is a lagging
rank or a run that starts over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from defib.engine.rulebook import Format
from defib.engine.sketch import Sketch
from defib.engine.windows import Windows

I64 = npt.NDArray[np.int64]
NONE = int(np.iinfo(np.int64).min)  # "no value" in integer columns
RANKS_MAX = 4096  # of which the last step is remembered
SETTLED = 8  # advances after which a counter that never repeated a step is known to have one printer


@dataclass(slots=True)
class Point:
    """Where progress was last seen."""

    offset: int
    line: int
    time_us: int | None


@dataclass(slots=True)
class ProgressRows:
    """Progress rows of one stream as columns, in offset order. Missing integers are NONE, missing floats NaN."""

    offset: I64
    line: I64
    time_us: I64
    format: list[str]
    step: I64
    total: I64
    rank: I64
    step_time_s: npt.NDArray[np.float64]
    throughput: npt.NDArray[np.float64]
    tflops: npt.NDArray[np.float64]
    bad_loss: npt.NDArray[np.bool_]  # a loss was printed and is not a finite number

    def __len__(self) -> int:
        return len(self.offset)


@dataclass(slots=True)
class Pace:
    """What tells a lagging printer from a run that starts over; advanced row by row."""

    first: int = NONE
    last: int = NONE
    interval: int = 1  # steps between the last two advances
    advances: int = 0
    repeats: int = 0  # rows that said a step again
    by_rank: dict[int, int] = field(default_factory=dict)  # last step of every rank that names itself

    def starts_over(self, step: int, rank: int, *, announced: bool) -> bool:
        """Whether this step begins a new run. announced: an end or a launch was seen since the last progress."""
        last = self.by_rank.get(rank) if rank != NONE else self.last
        if last is None or last == NONE or step >= last:
            return False
        if announced or rank != NONE:
            return step < last
        if self.repeats or self.advances < SETTLED:
            # Several ranks print this counter, or may: some lag by a line or two; a run that starts over falls further back.
            return step < last - 2 * self.interval and (self.advances >= SETTLED or step <= self.first)
        return True

    def take(self, step: int, rank: int) -> None:
        if self.first == NONE:
            self.first = step
        if step == self.last:
            self.repeats += 1
        else:
            self.advances += 1
            if self.last != NONE and step > self.last:
                self.interval = step - self.last
            self.last = step
        if rank != NONE and (rank in self.by_rank or len(self.by_rank) < RANKS_MAX):
            self.by_rank[rank] = step

    def copy(self) -> Pace:
        return Pace(self.first, self.last, self.interval, self.advances, self.repeats, dict(self.by_rank))


@dataclass(slots=True)
class Counter:
    """One growing number of a run."""

    format: Format
    total: int | None
    first_step: int = NONE
    last_step: int = NONE
    points: int = 0
    forward: int = 0  # rows that took the step forward
    nan_losses: int = 0
    setbacks: int = 0  # times the step went back without a new run
    stamp: tuple[int, int] | None = None  # step and time of the last stamped row
    last_at: int = 0
    pace: Pace = field(default_factory=Pace)
    printed: Sketch = field(default_factory=Sketch)  # seconds per step as printed
    stamped: Sketch = field(default_factory=Sketch)  # seconds per step between time stamps
    throughput: Sketch = field(default_factory=Sketch)
    tflops: Sketch = field(default_factory=Sketch)
    step_clock_s: float = 0.0
    windows: Windows = field(default_factory=Windows)

    @property
    def advances(self) -> int:
        return self.pace.advances

    @property
    def clock(self) -> str:
        """event | step | none: which clock this counter's windows and durations are on."""
        if self.stamp is not None:
            return "event"
        return "step" if self.printed.count else "none"

    def values(self, rows: ProgressRows, at: I64) -> None:
        """Rates and losses of rows that belong to this counter."""
        self.throughput.add(rows.throughput[at])
        self.tflops.add(rows.tflops[at])
        self.nan_losses += int(np.count_nonzero(rows.bad_loss[at]))

    def advance(self, rows: ProgressRows, at: I64) -> int | None:
        """Fold rows with a step; returns the row of the last step forward, if any."""
        steps = rows.step[at]
        before = np.concatenate(([self.last_step], steps[:-1]))
        moved = steps != before
        back = (steps < before) & (before != NONE)
        self.points += len(at)
        self.printed.add(rows.step_time_s[at][moved])
        self._window(rows, at, moved, before)
        self._stamp(steps, rows.time_us[at])
        for step, rank in zip(steps.tolist(), rows.rank[at].tolist(), strict=True):
            self.pace.take(step, rank)
        self.setbacks += int(np.count_nonzero(back))
        if self.first_step == NONE:
            self.first_step = int(steps[0])
        if self.format.counts != "epoch":
            self.first_step = min(self.first_step, int(steps.min()))
        self.last_step = int(steps[-1])
        self.last_at = int(rows.offset[at[-1]])
        forward = np.flatnonzero(moved & ~back)
        self.forward += len(forward)
        return int(at[forward[-1]]) if len(forward) else None

    def _stamp(self, steps: I64, times: I64) -> None:
        """Seconds per step between printed stamps, where the counter moves forward."""
        stamped = times != NONE
        if not stamped.any():
            return
        last = self.stamp or (NONE, NONE)
        s = np.concatenate(([last[0]], steps[stamped]))
        u = np.concatenate(([last[1]], times[stamped]))
        forward = (s[:-1] != NONE) & (s[1:] > s[:-1]) & (u[1:] > u[:-1])
        self.stamped.add((u[1:][forward] - u[:-1][forward]) / 1e6 / (s[1:][forward] - s[:-1][forward]))
        self.stamp = (int(s[-1]), int(u[-1]))

    def _window(self, rows: ProgressRows, at: I64, moved: npt.NDArray[np.bool_], before: I64) -> None:
        """Put the advances on the counter's clock: the step clock until the first stamp, which starts the windows anew on event time."""
        stamped = rows.time_us[at] != NONE
        begin = 0 if self.stamp is not None else int(np.argmax(stamped)) if stamped.any() else len(at)
        if self.stamp is None and begin:
            self._by_steps(rows, at[:begin], moved[:begin], before[:begin])
        if begin < len(at):
            if self.stamp is None:
                self.windows = Windows()
            here = at[begin:][moved[begin:] & stamped[begin:]]
            self.windows.add(rows.time_us[here] / 1e6, rows.step[here], rows.step_time_s[here])

    def _by_steps(self, rows: ProgressRows, at: I64, moved: npt.NDArray[np.bool_], before: I64) -> None:
        picked = at[moved]
        steps, step_s = rows.step[picked], rows.step_time_s[picked]
        known = np.isfinite(step_s)
        ahead = np.where(before[moved] == NONE, 1, np.maximum(steps - before[moved], 0))[known]
        clock = np.cumsum(np.concatenate(([self.step_clock_s], step_s[known] * ahead)))
        self.step_clock_s = float(clock[-1])
        self.windows.add(clock[1:], steps[known], step_s[known])


def first_setback(pace: Pace, steps: I64, ranks: I64, *, announced: bool) -> int | None:
    """Index of the first step that begins a new run after `pace`. A series that only grows is the usual case and costs two comparisons."""
    if not len(steps):
        return None
    grows = bool(np.all(steps[1:] >= steps[:-1])) and (pace.last == NONE or steps[0] >= pace.last)
    if grows and (not pace.by_rank or bool(np.all(ranks == ranks[0]))):
        named = pace.by_rank.get(int(ranks[0]), NONE) if len(ranks) else NONE
        if named == NONE or steps[0] >= named:
            return None
    walk = pace.copy()
    for i, (step, rank) in enumerate(zip(steps.tolist(), ranks.tolist(), strict=True)):
        if walk.starts_over(step, rank, announced=announced):
            return i
        if step > walk.last:
            announced = False  # progress took the announcement away
        walk.take(step, rank)
    return None
