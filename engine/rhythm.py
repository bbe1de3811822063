"""A run's own rhythm: how long it usually is between two signs of progress, and so how long a silence may be.

In: the moments a counter moved forward on one clock, in order, with the phase lines printed in between. Out: the limit of a phase and
why; gaps that passed theirs. Memory is bounded and the result does not depend on how the moments were grouped: only gaps longer than
the smallest limit of the policy are judged one by one, each with what was learned before it.

A periodic longer gap every so many steps that no line announces is a pause (a checkpoint or an evaluation): a silence that begins
where the next one is due gets the pauses' limit. A gap that was judged a hang teaches nothing.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from defib.engine.policies import HangPolicy
from defib.engine.sketch import Sketch

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

LONGEST_MAX = 64  # gaps remembered with their step, to see a period in them
SILENCES_MAX = 256
STRANGE = 2  # gaps alike that passed their limits before a third is believed to be the run's way
AGREE = 0.8  # of the pauses must lie on the period
PAUSES_MIN = 3
CLOCK_SLACK_S = 120.0  # longest usual gap with which a clock set by whole hours is recognised
EARLY = 2  # gaps that belong to the first steps
MEASURED = 0.5  # of a gap that printed step times explain: the run itself measured it


@dataclass(frozen=True, slots=True)
class Habits:
    """What later attempts inherit from an earlier one of the same job: seconds. None where it never showed."""

    gap_s: float | None = None
    pause_s: float | None = None
    phases: dict[str, float] = field(default_factory=dict)

    def with_(self, later: Habits) -> Habits:
        """The longer of each."""
        return Habits(
            _longer(self.gap_s, later.gap_s),
            _longer(self.pause_s, later.pause_s),
            {p: max(self.phases.get(p, 0.0), later.phases.get(p, 0.0)) for p in sorted({*self.phases, *later.phases})},
        )


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a silence may last and why."""

    phase: str
    seconds: float
    because: str


@dataclass(frozen=True, slots=True)
class Silence:
    """A gap that passed its limit: from the last progress to the next."""

    limit: Limit
    from_us: int
    to_us: int
    from_step: int
    to_step: int
    offset: int
    line: int


@dataclass(slots=True)
class Moment:
    """The last sign of progress."""

    us: int
    step: int
    offset: int
    line: int


class Rhythm:
    """Folds the forward moves of one counter."""

    def __init__(self, policy: HangPolicy, elder: Habits | None = None) -> None:
        self._p = policy
        self.elder = elder or Habits()
        self.gaps = Sketch()
        self.durations: dict[str, Sketch] = {}
        self.silences: list[Silence] = []
        self.first_us: int | None = None
        self.last: Moment | None = None
        self._longest: list[tuple[float, int]] = []  # (gap, step before it), ascending
        self._interval = 1  # steps between the last two moments
        self._moments = 0
        self._strange: list[float] = []  # the last gaps that passed their limits, with no ordinary one between
        self.missed = 0  # silences beyond SILENCES_MAX
        self.expected_s: float | None = (
            None  # until the next line, by the seconds per step and the steps between lines that the run prints
        )
        self._smallest = policy.phases.least_s()

    def add(
        self,
        us: I64,
        steps: I64,
        offsets: I64,
        lines: I64,
        phases: Sequence[tuple[str, ...]],
        explained_s: F64,
        expected_s: F64 | None = None,
    ) -> None:
        """Moments in order. phases: what was announced in the gap before each. explained_s: seconds that the printed step times say each gap
        took; expected_s: that they let expect before it (NaN where nothing is printed; None: what is expected now holds for all)."""
        if not len(us):
            return
        start = 0
        if self.last is None:
            self.first_us = int(us[0])
            self.last = Moment(int(us[0]), int(steps[0]), int(offsets[0]), int(lines[0]))
            start = 1
        at = np.concatenate(([self.last.us], us[start:]))
        before = np.concatenate(([self.last.step], steps[start:]))
        gaps = (at[1:] - at[:-1]) / 1e6
        early = max(0, min(EARLY - self._moments, len(gaps)))  # the first steps compile and fill caches
        self._moments += len(gaps)
        told = [i for i in range(len(gaps)) if phases[start + i]]
        done = 0
        for i in sorted({*np.flatnonzero(gaps > self._smallest).tolist(), *told, *range(early)}):
            self._ordinary(gaps[done:i], before[done:i], before[done + 1 : i + 1])
            k = start + i
            offset, line = (int(offsets[k - 1]), int(lines[k - 1])) if k else (self.last.offset, self.last.line)
            here = Moment(int(at[i]), int(before[i]), offset, line)
            named = (*phases[k], "compile") if i < early else phases[k]
            if expected_s is not None:
                self.expected_s = None if math.isnan(expected_s[k]) else float(expected_s[k])
            self._one(here, int(at[i + 1]), int(before[i + 1]), named, float(explained_s[k]))
            done = i + 1
        self._ordinary(gaps[done:], before[done:-1], before[done + 1 :])
        self.last = Moment(int(us[-1]), int(steps[-1]), int(offsets[-1]), int(lines[-1]))

    def one(self, us: int, step: int, offset: int, line: int, phases: tuple[str, ...], explained_s: float) -> None:
        """The same as `add` for one moment, by what is expected now."""
        here = self.last
        self.last = Moment(us, step, offset, line)
        if here is None:
            self.first_us = us
            return
        gap = (us - here.us) / 1e6
        early = self._moments < EARLY
        self._moments += 1
        if early or phases or gap > self._smallest:
            self._one(here, us, step, (*phases, "compile") if early else phases, explained_s)
            return
        self._strange = []
        self.gaps.one(gap)
        self._interval = step - here.step if step > here.step else self._interval
        if gap > 0:
            self._remember(gap, here.step)

    def _ordinary(self, gaps: F64, before: I64, after: I64) -> None:
        if not len(gaps):
            return
        self._strange = []
        self.gaps.add(gaps)
        apart = (after - before)[after > before]
        self._interval = int(apart[-1]) if len(apart) else self._interval
        least = self._longest[0][0] if len(self._longest) >= LONGEST_MAX else 0.0
        for i in np.flatnonzero(gaps > least).tolist():
            self._remember(float(gaps[i]), int(before[i]))

    def _remember(self, gap: float, step: int) -> None:
        if len(self._longest) >= LONGEST_MAX:
            if gap <= self._longest[0][0]:
                return
            del self._longest[0]
        bisect.insort(self._longest, (gap, step))

    def _one(self, here: Moment, to_us: int, to_step: int, phases: tuple[str, ...], explained_s: float) -> None:
        """A gap worth a look of its own: announced, or longer than the smallest limit."""
        gap = (to_us - here.us) / 1e6
        if gap <= 0:
            return
        limit = self.limit("steady", here.step)
        for phase in phases:
            other = self.limit(phase, here.step)
            limit = other if other.seconds > limit.seconds else limit
        if gap > limit.seconds and not self._usual_after_all(gap):
            # Where the run's own timers did not see the gap it was a pause they leave out, or a clock that was set.
            unseen = explained_s < MEASURED * gap or (math.isnan(explained_s) and self._clock_was_set(gap))
            if not unseen and len(self.silences) < SILENCES_MAX:
                self.silences.append(Silence(limit, here.us, to_us, here.step, to_step, here.offset, here.line))
            elif not unseen:
                self.missed += 1
            return
        if not phases:
            self.gaps.add(np.array([gap]))
            self._remember(gap, here.step)
        for phase in phases:
            self.durations.setdefault(phase, Sketch()).add(np.array([gap]))

    def _clock_was_set(self, gap: float) -> bool:
        """A gap of whole hours and about a usual gap: summer time, or a zone put right. Stamps alone cannot tell it from a silence."""
        usual = self.gaps.quantile(0.5)
        if usual is None or usual > CLOCK_SLACK_S:
            return False
        return gap % 3600.0 <= 3 * usual + 1.0

    def _usual_after_all(self, gap: float) -> bool:
        """Gap after gap of about one length with nothing shorter between is how often this run prints, not one hang after another."""
        self._strange = [g for g in self._strange if gap / 2 <= g <= gap * 2][-STRANGE:]
        if len(self._strange) < STRANGE:
            self._strange.append(gap)
            return False
        self.gaps.add(np.array(self._strange))
        return True

    def lasted(self, phase: str, seconds: float) -> None:
        """A phase without a counter (start-up, the first step) took so long."""
        self.durations.setdefault(phase, Sketch()).add(np.array([seconds]))

    def limit(self, phase: str, step: int | None = None) -> Limit:
        """How long this phase may be silent now. step: the last one printed, to tell whether a pause is due."""
        if phase == "steady":
            return self._steady(step)
        rule = self._p.phases.of(phase)
        seen = self.durations.get(phase)
        own = seen.quantile(self._p.quantile) if seen is not None and seen.count >= self._p.learn_pauses else None
        known = _longer(own, self.elder.phases.get(phase))
        return self._limit(phase, rule.floor_s, rule.unlearned_s, rule.ceiling_s, known, "lasted")

    def _steady(self, step: int | None) -> Limit:
        rule = self._p.phases.steady
        pauses = self.pauses()
        usual = self._usual(len(pauses.gaps))
        known = _longer(_longer(usual, self.elder.gap_s), self.expected_s)
        steady = self._limit(
            "steady", rule.floor_s, rule.unlearned_s, rule.ceiling_s, known, "came between two signs of progress"
        )
        if step is None or not pauses.due(step, self._interval):
            return steady
        rule = self._p.phases.pause
        longest = _longer(max(pauses.gaps), self.elder.pause_s)
        pause = self._limit(
            "pause", rule.floor_s, rule.unlearned_s, rule.ceiling_s, longest, f"lasted every {pauses.period} steps"
        )
        return pause if pause.seconds > steady.seconds else steady

    def _limit(
        self, phase: str, floor: float, unlearned: float, ceiling: float, known: float | None, what: str
    ) -> Limit:
        if known is None:
            return Limit(phase, unlearned, f"the limit of {phase} before a run has shown its rhythm")
        seconds = max(min(max(self._p.factor * known, floor), ceiling), known * 1.5)
        return Limit(
            phase, seconds, f"{self._p.factor:g} times what usually {what} ({known:.4g} s), at least {floor:.0f} s"
        )

    def _usual(self, pauses: int) -> float | None:
        """The robust quantile of the ordinary gaps: those above it that are pauses are set aside."""
        n = self.gaps.count - pauses
        if n < self._p.learn_gaps:
            return None
        return self.gaps.quantile(self._p.quantile * (n - 1) / max(1, self.gaps.count - 1))

    def pauses(self) -> Pauses:
        """Longer gaps that come every so many steps."""
        middle = self.gaps.quantile(0.5)
        if middle is None or self.gaps.count < self._p.learn_gaps:
            return Pauses((), 0, 0)
        long = sorted((step, gap) for gap, step in self._longest if gap > self._p.pause_factor * middle)
        if len(long) < PAUSES_MIN:
            return Pauses((), 0, 0)
        steps = np.array([s for s, _ in long], np.int64)
        apart = np.diff(steps)
        apart = apart[apart > 0]
        if not len(apart):
            return Pauses((), 0, 0)
        period = int(np.median(apart))
        off = np.abs((steps - steps[-1] + period // 2) % period - period // 2)
        agree = off <= self._interval
        if period <= 2 * self._interval or agree.mean() < AGREE:
            return Pauses((), 0, 0)
        return Pauses(tuple(g for (_, g), ok in zip(long, agree.tolist(), strict=True) if ok), period, int(steps[-1]))

    def habits(self) -> Habits:
        """What an attempt after this one may take over."""
        pauses = self.pauses()
        own = {p: q for p, s in self.durations.items() if (q := s.quantile(self._p.quantile)) is not None}
        mine = Habits(self._usual(len(pauses.gaps)), max(pauses.gaps, default=None), own)
        return self.elder.with_(mine)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Unannounced pauses: their lengths, every how many steps, and the step of one."""

    gaps: tuple[float, ...]
    period: int
    anchor: int

    def due(self, step: int, interval: int) -> bool:
        """Whether a pause is due after this step, give or take one printed line."""
        if not self.period:
            return False
        off = (step - self.anchor + self.period // 2) % self.period - self.period // 2
        return abs(off) <= interval


def _longer(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return a if b is None else b
    return max(a, b)
