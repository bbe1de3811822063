"""Growing numbers: what progress lines of one format say about one run.

In: rows of one stream's progress in offset order, in any grouping. Out: counters of bounded size that do not depend on the grouping.
A counter knows its steps, its pace (as printed and between stamps), its windows, and whether a step that goes back is a lagging
rank or a run that starts over. A handful of rows is taken one by one, more of them at once: the same numbers in less time.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from defib.engine.pace import RANKS_MAX, Pace
from defib.engine.points import F64, I64, NONE, Between, ProgressRows, Row
from defib.engine.policies import Detect
from defib.engine.rhythm import Habits, Rhythm
from defib.engine.rulebook import Format
from defib.engine.sketch import Sketch
from defib.engine.slowdown import Slowdown
from defib.engine.windows import Windows
from defib.engine.work import Work

FIRST_MAX = 1000  # steps a first line may stand from the start and still tell how far apart lines are
HANDFUL = 24  # rows up to which one by one is faster: a live log brings a few at a time


class Counter:
    """One growing number of a run."""

    def __init__(self, fmt: Format, total: int | None, detect: Detect, elder: Habits | None = None) -> None:
        self.format = fmt
        self._prints_time = fmt.prints_time
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
        if len(at) <= HANDFUL:
            for throughput, tflops in zip(rows.throughput[at].tolist(), rows.tflops[at].tolist(), strict=True):
                self.throughput.one(throughput)
                self.tflops.one(tflops)
        else:
            self.throughput.add(rows.throughput[at])
            self.tflops.add(rows.tflops[at])
        self.nan_losses += int(np.count_nonzero(rows.bad_loss[at]))

    def advance(self, rows: ProgressRows, at: I64, between: Between) -> int | None:
        """Fold rows with a step; returns the row of the last step forward, if any. between: what went on between them."""
        if len(at) <= HANDFUL:
            return self._advance_few(rows, at, between)
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
        if self._prints_time:
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
        if self._prints_time:
            return rows.step_time_s[at]
        out = np.full(len(at), np.nan)
        for i in np.flatnonzero(rows.rank[at] >= 0).tolist():
            row = int(at[i])
            out[i] = self._between_own(int(rows.rank[row]), int(rows.step[row]), int(rows.time_us[row]))
        return out

    def _between_own(self, rank: int, step: int, us: int) -> float:
        """Seconds per step since this rank's own last stamp."""
        last = self._rank_stamps.get(rank)
        if last is not None or len(self._rank_stamps) < RANKS_MAX:
            self._rank_stamps[rank] = (step, us)
        if last is None or step <= last[0] or us <= last[1]:
            return math.nan
        return (us - last[1]) / 1e6 / (step - last[0])

    def _tokens(self, rows: ProgressRows, at: I64, ahead: I64) -> F64:
        """Tokens trained on in the steps of each row, where the throughput of the whole run is printed in tokens; else NaN."""
        if self.format.throughput_unit != "tokens/s":
            return np.full(len(at), np.nan)
        return np.rint(rows.throughput[at] * rows.step_time_s[at] * ahead)

    # ---- a handful of rows, one by one: each method does what its namesake above does for many ----

    def _advance_few(self, rows: ProgressRows, at: I64, between: Between) -> int | None:
        last: int | None = None
        for i, row in enumerate(rows.one_by_one(at)):
            step, before = row.step, self.last_step
            moved = step != before
            back = moved and before != NONE and step < before
            ahead = step - before if before != NONE and step > before else 0
            self.points += 1
            if moved:
                self.printed.one(row.step_time_s)
            self._window_one(row, before, ahead, moved)
            self._stamp_one(step, row.time_us)
            if moved and not back:
                self._beat_one(row, ahead, between)
                self.forward += 1
                last = i
            self._pace_one(rows, at[i : i + 1], row, between)
            self.pace.take(step, row.rank)
            self.setbacks += back
            if self.first_step == NONE or (step < self.first_step and self.format.counts != "epoch"):
                self.first_step = step
            self.last_step, self.last_at = step, row.offset
        return int(at[last]) if last is not None else None

    def _beat_one(self, row: Row, ahead: int, between: Between) -> None:
        phases = between.named(self._moved_at, row.offset)
        self._moved_at = row.offset
        if row.time_us != NONE:
            self.rhythm.one(row.time_us, row.step, row.offset, row.line, phases, row.step_time_s * ahead)
        if math.isfinite(row.step_time_s) and row.step_time_s > 0:
            first = row.step if 0 < row.step <= FIRST_MAX else 1
            self.rhythm.expected_s = row.step_time_s * (ahead or first)

    def _pace_one(self, rows: ProgressRows, at: I64, row: Row, between: Between) -> None:
        top, since, place = self._front
        if row.step <= top:
            return
        ahead, us = row.step - top if top != NONE else 0, row.time_us
        self._front = (row.step, us, row.offset)
        if self._prints_time:
            step_s = row.step_time_s
        elif us != NONE and since != NONE and ahead and not between.named(place, row.offset):
            step_s = (us - since) / 1e6 / ahead
        else:
            step_s = math.nan
        work = self.work.of_one(rows, at, row, step_s)
        if ahead and step_s > 0 and math.isfinite(step_s) and work > 0 and math.isfinite(work):
            self.slowdown.one(row.step, ahead, step_s, work, us, row.offset, row.line)

    def _stamp_one(self, step: int, us: int) -> None:
        if us == NONE:
            return
        last, self.stamp = self.stamp, (step, us)
        if last is not None and step > last[0] and us > last[1]:
            self.stamped.one((us - last[1]) / 1e6 / (step - last[0]))

    def _window_one(self, row: Row, before: int, ahead: int, moved: bool) -> None:
        us, step_s = row.time_us, row.step_time_s
        if us != NONE:
            if self.stamp is None:
                self.windows = Windows()
            own = step_s
            if not self._prints_time:
                own = self._between_own(row.rank, row.step, us) if row.rank >= 0 else math.nan
            self.windows.rank(us / 1e6, row.rank, own)
            if moved:
                self.windows.one(us / 1e6, row.step, step_s, ahead, self._tokens_one(row, ahead))
        elif self.stamp is None and math.isfinite(step_s):
            passed = (1 if before == NONE else ahead) if moved else 0
            self.step_clock_s += step_s * passed
            self.windows.rank(self.step_clock_s, row.rank, step_s)
            if moved:
                self.windows.one(self.step_clock_s, row.step, step_s, ahead, self._tokens_one(row, passed))

    def _tokens_one(self, row: Row, ahead: int) -> float:
        if self.format.throughput_unit != "tokens/s":
            return math.nan
        tokens = row.throughput * row.step_time_s * ahead
        return float(round(tokens)) if math.isfinite(tokens) else math.nan


def _ahead(steps: I64, before: I64) -> I64:
    """Steps forward each row makes; the first row of a counter and a row that goes back make none."""
    return np.where(before == NONE, 0, np.maximum(steps - before, 0))
