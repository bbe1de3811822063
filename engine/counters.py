"""Growing numbers: what progress lines of one format say about one run.

In: rows of one stream's progress in offset order, in any grouping. Out: counters of bounded size that do not depend on the grouping.
A counter knows its steps, its pace (as printed and between stamps), its windows, and whether a step that goes back is a lagging
rank or a run that starts over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from defib.engine.policies import Detect
from defib.engine.rhythm import Habits, Rhythm
from defib.engine.rulebook import Format
from defib.engine.sketch import Sketch
from defib.engine.slowdown import Slowdown
from defib.engine.windows import Windows

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
NONE = int(np.iinfo(np.int64).min)  # "no value" in integer columns
RANKS_MAX = 4096  # of which the last step is remembered
FIRST_MAX = 1000  # steps a first line may stand from the start and still tell how far apart lines are
UNDECIDED = 8  # rows forward by which a log has shown whether it tells how much work a step holds
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
    samples: npt.NDArray[np.float64]  # consumed so far
    tokens: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.offset)

    def take(self, at: I64) -> ProgressRows:
        """These rows only."""
        return ProgressRows(
            self.offset[at], self.line[at], self.time_us[at], [self.format[i] for i in at.tolist()], self.step[at], self.total[at],
            self.rank[at], self.step_time_s[at], self.throughput[at], self.tflops[at], self.bad_loss[at], self.samples[at], self.tokens[at],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Between:
    """What went on between the rows of a counter: phases told (name -> last place) before them, and the places of evaluation's own steps."""

    spoken: dict[str, int]
    evaluation: I64

    def phases(self, last: int, offsets: I64) -> list[tuple[str, ...]]:
        """For each row the phases spoken of since the row before it (the first: since `last`)."""
        begins = np.concatenate(([last], offsets[:-1]))
        evaluated = np.searchsorted(self.evaluation, offsets) > np.searchsorted(self.evaluation, begins, side="right")
        out: list[tuple[str, ...]] = [("evaluation",) if e else () for e in evaluated.tolist()]
        out[0] = tuple(sorted({*out[0], *(name for name, at in self.spoken.items() if at > last)}))
        return out


@dataclass(slots=True)
class Pace:
    """What tells a lagging printer from a run that starts over; advanced row by row."""

    first: int = NONE
    last: int = NONE
    interval: int = 1  # steps between the last two advances
    advances: int = 0
    repeats: int = 0  # rows that said a step again
    by_rank: dict[int, int] = field(default_factory=dict)  # last step of every rank that names itself
    shared: bool = False  # several printers go by one number: every node has its own 0

    def starts_over(self, step: int, rank: int, *, announced: bool) -> bool:
        """Whether this step begins a new run. announced: an end or a launch was seen since the last progress."""
        last = self.by_rank.get(rank) if rank != NONE else self.last
        if last is None or last == NONE or step >= last:
            return False
        if announced or (rank != NONE and not self.shared):
            return step < last
        if self.repeats or self.advances < SETTLED:
            # Several ranks print this counter, or may: some lag by a line or two; a run that starts over falls further back.
            return step < last - 2 * self.interval and (self.advances >= SETTLED or step <= self.first)
        return True

    def take(self, step: int, rank: int) -> None:
        if self.first == NONE:
            self.first = step
        self.shared |= rank != NONE and self.by_rank.get(rank) == step
        if step == self.last:
            self.repeats += 1
        else:
            self.advances += 1
            if self.last != NONE and step > self.last:
                self.interval = step - self.last
            self.last = step
        if rank != NONE and (rank in self.by_rank or len(self.by_rank) < RANKS_MAX):
            self.by_rank[rank] = step

    def take_all(self, steps: I64, ranks: I64) -> None:
        """The same as `take` row by row; rows of one printer, the usual case, at once."""
        rank = int(ranks[0])
        if len(steps) == 1 or not bool(np.all(ranks == rank)):
            for step, r in zip(steps.tolist(), ranks.tolist(), strict=True):
                self.take(step, r)
            return
        self.take(int(steps[0]), rank)
        apart = np.diff(steps)
        moved = int(np.count_nonzero(apart))
        self.advances += moved
        self.repeats += len(apart) - moved
        # A step before the first one ever is NONE, and no row printed that.
        ahead = ((apart > 0) & (steps[:-1] != NONE)).nonzero()[0]
        if len(ahead):
            self.interval = int(apart[ahead[-1]])
        self.last = int(steps[-1])
        if rank in self.by_rank:
            self.shared |= moved < len(apart)
            self.by_rank[rank] = self.last

    def copy(self) -> Pace:
        return Pace(self.first, self.last, self.interval, self.advances, self.repeats, dict(self.by_rank), self.shared)


class Counter:
    """One growing number of a run."""

    def __init__(self, fmt: Format, total: int | None, detect: Detect, elder: Habits | None = None) -> None:
        self.format = fmt
        self.total = total
        self.first_step = self.last_step = NONE
        self.points = 0
        self.forward = 0  # rows that took the step forward
        self.nan_losses = 0
        self.setbacks = 0  # times the step went back without a new run
        self.stamp: tuple[int, int] | None = None  # step and time of the last stamped row
        self.last_at = 0
        self.pace = Pace()
        self.printed = Sketch()  # seconds per step as printed
        self.stamped = Sketch()  # seconds per step between time stamps
        self.throughput = Sketch()
        self.tflops = Sketch()
        self.step_clock_s = 0.0
        self.windows = Windows()
        self.work = Work(fmt)
        self._moved_at = -1  # where the last row that went forward stands
        self._front = (NONE, NONE, -1)  # step, time and place of the first row of the highest step
        self._rank_stamps: dict[
            int, tuple[int, int]
        ] = {}  # step and time of the last stamped row of every rank that names itself
        self.rhythm = Rhythm(detect.hang, elder)
        self.slowdown = Slowdown(detect.slow)

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

    def advance(self, rows: ProgressRows, at: I64, between: Between) -> int | None:
        """Fold rows with a step; returns the row of the last step forward, if any. between: what went on between them."""
        steps = rows.step[at]
        before = np.concatenate(([self.last_step], steps[:-1]))
        moved = steps != before
        back = (steps < before) & (before != NONE)
        forward = (moved & ~back).nonzero()[0]
        self.points += len(at)
        self.printed.add(rows.step_time_s[at][moved])
        self._window(rows, at, moved, before)
        self._stamp(steps, rows.time_us[at])
        self._beats(rows, at[forward], _ahead(steps, before)[forward], between)
        self._pace(rows, at, between)
        self.pace.take_all(steps, rows.rank[at])
        self.setbacks += int(np.count_nonzero(back))
        if self.first_step == NONE:
            self.first_step = int(steps[0])
        if self.format.counts != "epoch":
            self.first_step = min(self.first_step, int(steps.min()))
        self.last_step = int(steps[-1])
        self.last_at = int(rows.offset[at[-1]])
        self.forward += len(forward)
        return int(at[forward[-1]]) if len(forward) else None

    def _beats(self, rows: ProgressRows, at: I64, ahead: I64, between: Between) -> None:
        """Feed the rhythm with the rows that went forward and carry stamps."""
        if not len(at):
            return
        phases = between.phases(self._moved_at, rows.offset[at])
        self._moved_at = int(rows.offset[at[-1]])
        stamped = (rows.time_us[at] != NONE).nonzero()[0]
        here = at[stamped]
        explained = (rows.step_time_s[at] * ahead)[stamped]
        named = [phases[i] for i in stamped.tolist()]
        before, last = self._expected(rows.step_time_s[at], ahead, rows.step[at])
        self.rhythm.add(
            rows.time_us[here], rows.step[here], rows.offset[here], rows.line[here], named, explained, before[stamped]
        )
        self.rhythm.expected_s = last if math.isfinite(last) else None

    def _expected(self, step_s: F64, ahead: I64, steps: I64) -> tuple[F64, float]:
        """Seconds from each row to the next by what was printed before it (NaN: nothing), and from the last one on."""
        # Until a second line tells, the first one's own number does, unless the run was resumed far from its start.
        first = np.where((steps > 0) & (steps <= FIRST_MAX), steps, 1)
        told = (np.isfinite(step_s) & (step_s > 0)).nonzero()[0]
        known = self.rhythm.expected_s
        values = np.concatenate(
            ([np.nan if known is None else known], (step_s * np.where(ahead > 0, ahead, first))[told])
        )
        which = np.searchsorted(told, np.arange(len(step_s)))  # how many rows before each one told
        return values[which], float(values[-1])

    def _pace(self, rows: ProgressRows, at: I64, between: Between) -> None:
        """Feed the slowdown detector with the first row of every new step, where seconds per step are known: of several printers those
        behind say nothing new."""
        steps = rows.step[at]
        top = np.maximum.accumulate(np.concatenate(([self._front[0]], steps)))
        lead = (steps > top[:-1]).nonzero()[0]
        if not len(lead):
            return
        picked, ahead = at[lead], _ahead(steps[lead], top[:-1][lead])
        us = rows.time_us[picked]
        since = np.concatenate(([self._front[1]], us[:-1]))
        if self.format.prints_time:
            step_s = rows.step_time_s[picked]
        else:  # between the stamps; where something else went on there the time was not training alone
            training = [not p for p in between.phases(self._front[2], rows.offset[picked])]
            known = (us != NONE) & (since != NONE) & (ahead > 0) & np.array(training)
            step_s = np.where(known, (us - np.where(known, since, us)) / 1e6 / np.maximum(ahead, 1), np.nan)
        self._front = (int(steps[lead[-1]]), int(us[-1]), int(rows.offset[picked[-1]]))
        work = self.work.of(rows, picked, steps[lead], step_s)
        good = (np.isfinite(step_s) & (step_s > 0) & (ahead > 0) & np.isfinite(work) & (work > 0)).nonzero()[0]
        told = picked[good]
        self.slowdown.add(
            rows.step[told],
            ahead[good],
            step_s[good],
            work[good],
            rows.time_us[told],
            rows.offset[told],
            rows.line[told],
        )

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
            told = at[begin:][stamped[begin:]]
            self.windows.ranks(rows.time_us[told] / 1e6, rows.rank[told], self._own_pace(rows, told))
            here = moved[begin:] & stamped[begin:]
            picked = at[begin:][here]
            ahead = _ahead(rows.step[picked], before[begin:][here])
            self.windows.add(
                rows.time_us[picked] / 1e6,
                rows.step[picked],
                rows.step_time_s[picked],
                ahead,
                self._tokens(rows, picked, ahead),
            )

    def _by_steps(self, rows: ProgressRows, at: I64, moved: npt.NDArray[np.bool_], before: I64) -> None:
        """On the step clock: rows that say a step again stand where that step does."""
        known = np.isfinite(rows.step_time_s[at])
        ahead = np.where(moved & known, np.where(before == NONE, 1, np.maximum(rows.step[at] - before, 0)), 0)
        passed = np.where(ahead > 0, np.where(known, rows.step_time_s[at], 0.0) * ahead, 0.0)
        clock = np.cumsum(np.concatenate(([self.step_clock_s], passed)))[1:]
        self.step_clock_s = float(clock[-1])
        self.windows.ranks(clock[known], rows.rank[at][known], rows.step_time_s[at][known])
        here = moved & known
        picked = at[here]
        self.windows.add(
            clock[here], rows.step[picked], rows.step_time_s[picked],
            _ahead(rows.step[picked], before[here]), self._tokens(rows, picked, ahead[here]),
        )  # fmt: skip

    def _own_pace(self, rows: ProgressRows, at: I64) -> F64:
        """Seconds per step of the rank that prints each stamped row: as printed, else between its own stamps."""
        if self.format.prints_time:
            return rows.step_time_s[at]
        out = np.full(len(at), np.nan)
        for i in np.flatnonzero(rows.rank[at] >= 0).tolist():
            row = int(at[i])
            rank, step, us = int(rows.rank[row]), int(rows.step[row]), int(rows.time_us[row])
            last = self._rank_stamps.get(rank)
            if last is not None and step > last[0] and us > last[1]:
                out[i] = (us - last[1]) / 1e6 / (step - last[0])
            if last is not None or len(self._rank_stamps) < RANKS_MAX:
                self._rank_stamps[rank] = (step, us)
        return out

    def _tokens(self, rows: ProgressRows, at: I64, ahead: I64) -> F64:
        """Tokens trained on in the steps of each row, where the throughput of the whole run is printed in tokens; else NaN."""
        if self.format.throughput_unit != "tokens/s":
            return np.full(len(at), np.nan)
        return np.rint(rows.throughput[at] * rows.step_time_s[at] * ahead)


def _ahead(steps: I64, before: I64) -> I64:
    """Steps forward each row makes; the first row of a counter and a row that goes back make none."""
    return np.where(before == NONE, 0, np.maximum(steps - before, 0))


class Work:
    """How much work a step holds, so that a longer sequence or a bigger batch is not taken for a slower run.

    From what the log prints, best first: TFLOP/s per GPU or its share of the peak, tokens/s, tokens so far, samples/s, samples so far.
    Which one is settled by the first of the counter's first rows that has any.
    """

    def __init__(self, fmt: Format) -> None:
        self._rate = (fmt.throughput_unit or "").split("/")[0]
        self._kind: str | None = None
        self._rows = 0
        self._total: tuple[int, float] | None = None

    @property
    def known(self) -> bool:
        """Whether the log tells."""
        return self._kind not in (None, "none")

    def of(self, rows: ProgressRows, at: I64, steps: I64, step_s: F64) -> F64:
        """Work per step of rows, in units of its own: 1 where the log tells nothing of it, NaN where this row does not and others do."""
        if self._kind is None:
            undecided = min(len(at), max(0, UNDECIDED - self._rows))
            self._rows += undecided
            self._kind = self._choose(rows, at[:undecided]) or ("none" if self._rows >= UNDECIDED else None)
            if self._kind is not None:
                self._rows = UNDECIDED
            if self._kind == "none":
                return np.where(np.arange(len(at)) < undecided, np.nan, 1.0)
        match self._kind:
            case "tflops":
                return rows.tflops[at] * step_s
            case "share" | "tokens/s" | "samples/s":
                return rows.throughput[at] * step_s
            case "tokens":
                return self._grown(rows.tokens[at], steps)
            case "samples":
                return self._grown(rows.samples[at], steps)
        return np.full(len(at), np.nan if self._kind is None else 1.0)

    def _choose(self, rows: ProgressRows, at: I64) -> str | None:
        def any_of(values: F64) -> int | None:
            found = (np.isfinite(values) & (values > 0)).nonzero()[0]
            return int(found[0]) if len(found) else None

        rate = any_of(rows.throughput[at]) if self._rate in ("tokens", "samples", "%mfu") else None
        seen = [
            ("tflops", any_of(rows.tflops[at])), ("share", rate if self._rate == "%mfu" else None),
            ("tokens/s", rate if self._rate == "tokens" else None),
            ("tokens", any_of(rows.tokens[at])), ("samples/s", rate if self._rate == "samples" else None),
            ("samples", any_of(rows.samples[at])),
        ]  # fmt: skip
        first = min((i for _, i in seen if i is not None), default=None)
        return next((kind for kind, i in seen if i == first), None) if first is not None else None

    def _grown(self, total: F64, steps: I64) -> F64:
        """Per step, from a running total. The first row says nothing."""
        last = self._total or (NONE, np.nan)
        s = np.concatenate(([last[0]], steps))
        v = np.concatenate(([last[1]], total))
        out = np.full(len(steps), np.nan)
        ok = (s[:-1] != NONE) & (s[1:] > s[:-1]) & (v[1:] > v[:-1])
        out[ok] = (v[1:][ok] - v[:-1][ok]) / (s[1:][ok] - s[:-1][ok])
        if len(steps):
            self._total = (int(s[-1]), float(v[-1]))
        return out


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
