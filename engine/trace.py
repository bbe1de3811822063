"""What one stream says, folded record by record into traces: one `Trace` per attempt the stream shows.

In: a stream's signals and progress rows in offset order, in any grouping. Out: traces of bounded size, the same
however the rows were grouped. A trace keeps the first `KEEP` signals of each rule and counts the rest;
progress is kept as counters (one per format and total).

Where an attempt begins inside a stream: at a `restart` mark; at a `start` mark once the attempt before has ended; where a
framework's own step counter goes back (a mere bar only after an end or a launch was seen); where the scheduler speaks of another job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from defib.engine.rulebook import Format
from defib.engine.sketch import Sketch
from defib.engine.windows import Windows
from defib.engine.words import LIFECYCLE_MARKS, Signal

KEEP = 32
COUNTERS_MAX = 64
GLOBAL_PRIORITY = 50  # counters from here up count the run's own steps
ENDING_MARKS = frozenset((*LIFECYCLE_MARKS, "exit", "completed"))
BEGINNINGS = frozenset(("start", "restart"))
NONE = np.iinfo(np.int64).min  # "no value" in integer columns


@dataclass(slots=True)
class Point:
    """Where progress was last seen."""

    offset: int
    line: int
    time_us: int | None


@dataclass(slots=True)
class ProgressRows:
    """Progress rows of one stream as columns, in offset order. Missing integers are NONE, missing floats NaN."""

    offset: npt.NDArray[np.int64]
    line: npt.NDArray[np.int64]
    time_us: npt.NDArray[np.int64]
    format: list[str]
    step: npt.NDArray[np.int64]
    total: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64]
    step_time_s: npt.NDArray[np.float64]
    throughput: npt.NDArray[np.float64]
    tflops: npt.NDArray[np.float64]
    bad_loss: npt.NDArray[np.bool_]  # a loss was printed and is not a finite number

    def __len__(self) -> int:
        return len(self.offset)


@dataclass(slots=True)
class Counter:
    """One growing number: a format with a given total."""

    format: Format
    total: int | None
    first_step: int
    last_step: int
    points: int = 0
    advances: int = 0
    nan_losses: int = 0
    interval: int = 1  # steps between the last two advances
    stamp: tuple[int, int] | None = None  # step and time of the last stamped row
    last_at: int = 0
    printed: Sketch = field(default_factory=Sketch)  # seconds per step as printed
    stamped: Sketch = field(default_factory=Sketch)  # seconds per step between time stamps
    throughput: Sketch = field(default_factory=Sketch)
    tflops: Sketch = field(default_factory=Sketch)
    step_clock_s: float = 0.0
    windows: Windows = field(default_factory=Windows)

    @property
    def clock(self) -> str:
        """event | step | none: which clock this counter's windows and durations are on."""
        if self.stamp is not None:
            return "event"
        return "step" if self.printed.count else "none"


@dataclass(slots=True)
class Trace:
    """One attempt as one stream tells it. end_* are set when the next trace begins or the stream ends."""

    stream: int
    begin_offset: int
    begin_line: int
    end_offset: int = 0
    end_line: int = 0
    counters: dict[tuple[str, int | None], Counter] = field(default_factory=dict)
    kept: list[Signal] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    last_by_rule: dict[str, Signal] = field(default_factory=dict)
    progress: Point | None = None  # last time a training or evaluation counter advanced
    training: Point | None = None  # last time a training counter advanced
    ended: Signal | None = None  # a sign of the end not followed by progress
    pending: Signal | None = None  # a launch announced since the last progress
    trouble_line: int = 0  # last line of anything that is not a locator
    setbacks: int = 0  # times a step counter went back without a launch
    first_us: int | None = None
    last_us: int | None = None
    spoke: bool = False  # holds any signal or progress
    begun: bool = False  # launched, moved, or failed: more than the noise of a batch script
    lived: bool = False  # moved or failed: more than a launch

    def see_time(self, time_us: int | None) -> None:
        if time_us is not None:
            self.first_us = time_us if self.first_us is None else min(self.first_us, time_us)
            self.last_us = time_us if self.last_us is None else max(self.last_us, time_us)

    def keep(self, s: Signal) -> None:
        self.spoke = True
        self.see_time(s.time_us)
        n = self.counts.get(s.rule, 0)
        self.counts[s.rule] = n + 1
        if n < KEEP:
            self.kept.append(s)
        self.last_by_rule[s.rule] = s
        self.lived |= s.role in ("root", "candidate") or s.mark in LIFECYCLE_MARKS
        self.begun |= self.lived or s.mark in BEGINNINGS
        if s.role != "locator":
            self.trouble_line = s.line


class StreamFold:
    """Folds one stream. `fold` in offset order, then `finish` once."""

    def __init__(self, stream: int, formats: dict[str, Format]) -> None:
        self.stream = stream
        self._formats = formats
        self.frameworks: set[str] = set()
        self.traces = [Trace(stream, 0, 1)]

    @property
    def now(self) -> Trace:
        return self.traces[-1]

    def fold(self, signals: Sequence[Signal], progress: ProgressRows) -> None:
        """Signals and progress of the next stretch of the stream, each in offset order."""
        at = 0
        for s in signals:
            until = int(np.searchsorted(progress.offset, s.offset, side="right"))
            self._progress(progress, at, until)
            at = max(at, until)
            self._signal(s)
        self._progress(progress, at, len(progress))

    def finish(self, end_offset: int, end_line: int) -> None:
        self.now.end_offset, self.now.end_line = end_offset, end_line

    def _signal(self, s: Signal) -> None:
        t = self.now
        if (s.mark == "restart" and t.lived) or (s.mark == "start" and t.ended is not None and t.begun):
            t = self._open(s.offset, s.line)
        elif s.mark == "start" and t.progress is not None and t.pending is None:
            t.pending = s
        elif _other_job(t.ended, s):
            t = self._open_after(t.ended, s)
        t.keep(s)
        if s.mark in ENDING_MARKS:
            t.ended = t.ended or s

    def _open_after(self, ended: Signal | None, s: Signal) -> Trace:
        """A scheduler line about another job: the attempt in between began with the first thing said after the old job's end."""
        later = [k for k in self.now.kept if ended is not None and k.offset > ended.offset]
        first = min(later, key=lambda k: k.offset) if later else s
        return self._open(first.offset, first.line)

    def _open(self, offset: int, line: int) -> Trace:
        """Begin the next attempt at a place; signals already kept from there on move over."""
        old = self.now
        old.end_offset, old.end_line = offset, line - 1
        new = Trace(self.stream, offset, line)
        moved = [s for s in old.kept if s.offset >= offset]
        old.kept = [s for s in old.kept if s.offset < offset]
        for s in moved:
            old.counts[s.rule] -= 1
            new.keep(s)
            if s.mark in ENDING_MARKS:
                new.ended = new.ended or s
        self.traces.append(new)
        return new

    def _progress(self, rows: ProgressRows, start: int, end: int) -> None:
        while start < end:
            start = self._stretch(rows, start, end)

    def _stretch(self, rows: ProgressRows, start: int, end: int) -> int:
        """Fold rows up to the first one that begins a new attempt; returns where to go on."""
        t = self.now
        groups = list(self._groups(rows, start, end))
        row = min(
            (int(at[i]) for key, at in groups if (i := self._setback(t, key, rows.step[at])) is not None), default=end
        )
        if start < row < end:
            return self._stretch(rows, start, row)
        if row == start:
            sign = t.pending
            self._open(sign.offset if sign else int(rows.offset[row]), sign.line if sign else int(rows.line[row]))
            return start
        for key, at in groups:
            self._count(t, key, rows, at)
        return end

    def _groups(
        self, rows: ProgressRows, start: int, end: int
    ) -> Iterator[tuple[tuple[str, int | None], npt.NDArray[np.int64]]]:
        """Row numbers per counter key, keys in order of first appearance."""
        groups: dict[tuple[str, int | None], list[int]] = {}
        total = rows.total[start:end].tolist()
        for i, (name, n) in enumerate(zip(rows.format[start:end], total, strict=True), start):
            groups.setdefault((name, None if n == NONE else n), []).append(i)
        for key, numbers in groups.items():
            yield key, np.array(numbers, np.int64)

    def _setback(self, t: Trace, key: tuple[str, int | None], steps: npt.NDArray[np.int64]) -> int | None:
        """Index of the first step that goes back on a counter of the run's own steps."""
        fmt = self._formats[key[0]]
        if fmt.counts == "epoch" or fmt.kind != "train" or fmt.of is not None:
            return None
        if fmt.priority < GLOBAL_PRIORITY and t.pending is None and t.ended is None:
            return None  # a bar that starts over is the next bar, unless something said that the run did
        known = t.counters.get(key)
        if known is None and t.ended is not None:
            # The same format with another total: a run with another plan, if it begins below where the last one was.
            peers = [c for (name, _), c in t.counters.items() if name == key[0] and fmt.priority >= GLOBAL_PRIORITY]
            known = peers[-1] if peers else None
        if known is None and not len(steps):
            return None
        # Where several ranks print the same counter some lag by a line or two; a new run begins further back.
        slack = 2 * known.interval if known and known.points > known.advances else 0
        before = np.maximum.accumulate(np.concatenate(([known.last_step if known else NONE], steps[:-1])))
        floor = np.where(before == NONE, NONE, before - slack)
        first = known.first_step if known else int(steps[0])
        back = np.flatnonzero((steps != NONE) & ((steps < floor) | ((steps <= first) & (steps < before))))
        return int(back[0]) if len(back) else None

    def _count(self, t: Trace, key: tuple[str, int | None], rows: ProgressRows, at: npt.NDArray[np.int64]) -> None:
        fmt = self._formats[key[0]]
        steps = rows.step[at]
        counter = self._values_of(t, fmt) if fmt.of is not None else t.counters.get(key)
        if counter is None:
            with_step = steps[steps != NONE]
            if not len(with_step):
                return
            if len(t.counters) >= COUNTERS_MAX:
                del t.counters[
                    min(
                        t.counters, key=lambda k: (t.counters[k].format.priority, t.counters[k].points, k[0], k[1] or 0)
                    )
                ]
            counter = t.counters[key] = Counter(fmt, key[1], int(with_step[0]), NONE)
        t.spoke = True
        t.lived |= fmt.kind != "other"
        t.begun |= t.lived
        counter.throughput.add(rows.throughput[at])
        counter.tflops.add(rows.tflops[at])
        counter.nan_losses += int(np.count_nonzero(rows.bad_loss[at]))
        if fmt.of is not None:
            counter.printed.add(rows.step_time_s[at])
            return
        self._advance(t, counter, rows, at[steps != NONE])

    @staticmethod
    def _values_of(t: Trace, fmt: Format) -> Counter | None:
        mine = [c for (name, _), c in t.counters.items() if name == fmt.of]
        return max(mine, key=lambda c: c.last_at) if mine else None

    def _advance(self, t: Trace, c: Counter, rows: ProgressRows, at: npt.NDArray[np.int64]) -> None:
        if not len(at):
            return
        steps, times = rows.step[at], rows.time_us[at]
        before = np.concatenate(([c.last_step], steps[:-1]))
        moved = steps != before
        c.points += len(at)
        c.advances += int(np.count_nonzero(moved))
        c.printed.add(rows.step_time_s[at][moved])
        self._stamp(c, steps, times)
        self._window(c, rows, at, moved, before)
        back = (steps < before) & (before != NONE)
        if c.format.counts != "epoch" and c.format.priority >= GLOBAL_PRIORITY:
            t.setbacks += int(np.count_nonzero(back))
        forward_by = (steps - before)[moved & ~back & (before != NONE)]
        if len(forward_by):
            c.interval = int(forward_by[-1])
        c.first_step = min(c.first_step, int(steps.min())) if c.format.counts != "epoch" else c.first_step
        c.last_step = int(steps[-1])
        c.last_at = int(rows.offset[at[-1]])
        known = times[times != NONE]
        if len(known):
            t.see_time(int(known.min()))
            t.see_time(int(known.max()))
        if c.format.kind == "other":
            return
        forward = np.flatnonzero(moved & ~back)
        if len(forward):
            self._moved_on(t, rows, int(at[forward[-1]]), c.format.kind)

    @staticmethod
    def _moved_on(t: Trace, rows: ProgressRows, row: int, kind: str) -> None:
        time = int(rows.time_us[row])
        point = Point(int(rows.offset[row]), int(rows.line[row]), None if time == NONE else time)
        if t.progress is None or point.offset > t.progress.offset:
            t.progress = point
        if kind == "train" and (t.training is None or point.offset > t.training.offset):
            t.training = point
        if t.ended is not None and t.ended.offset < rows.offset[row]:
            t.ended = None
        if t.pending is not None and t.pending.offset < rows.offset[row]:
            t.pending = None

    @staticmethod
    def _stamp(c: Counter, steps: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> None:
        """Seconds per step between printed stamps, where a counter moves forward."""
        stamped = times != NONE
        if not stamped.any():
            return
        last = c.stamp or (NONE, NONE)
        s = np.concatenate(([last[0]], steps[stamped]))
        u = np.concatenate(([last[1]], times[stamped]))
        forward = (s[:-1] != NONE) & (s[1:] > s[:-1]) & (u[1:] > u[:-1])
        c.stamped.add((u[1:][forward] - u[:-1][forward]) / 1e6 / (s[1:][forward] - s[:-1][forward]))
        c.stamp = (int(s[-1]), int(u[-1]))

    @staticmethod
    def _window(
        c: Counter,
        rows: ProgressRows,
        at: npt.NDArray[np.int64],
        moved: npt.NDArray[np.bool_],
        before: npt.NDArray[np.int64],
    ) -> None:
        """Put the advances on the counter's clock. Rows without a stamp on a stamped counter are left out."""
        picked = at[moved]
        steps, step_s, times = rows.step[picked], rows.step_time_s[picked], rows.time_us[picked]
        if c.stamp is not None:
            stamped = times != NONE
            c.windows.add(times[stamped] / 1e6, steps[stamped], step_s[stamped])
            return
        known = np.isfinite(step_s)
        ahead = np.where(before[moved] == NONE, 1, np.maximum(steps - before[moved], 0))[known]
        clock = np.cumsum(np.concatenate(([c.step_clock_s], step_s[known] * ahead)))
        c.step_clock_s = float(clock[-1])
        c.windows.add(clock[1:], steps[known], step_s[known])


def _other_job(ended: Signal | None, s: Signal) -> bool:
    """Both lines are the scheduler's and name different jobs."""
    if ended is None or ended.role != "lifecycle" or s.role != "lifecycle":
        return False
    a, b = ended.fields.get("job_id"), s.fields.get("job_id")
    return a is not None and b is not None and a != b
