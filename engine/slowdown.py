"""A slower pace that lasts: one counter's seconds per unit of work -> slow stretches with onset and depth.

In: steps of one counter in order, with the seconds each took and, where the log tells, the work in it. Out: `Slow` stretches of bounded
number, the same however the steps were grouped. A longer sequence or a bigger batch is more work, not a slower run.

Method: bins of ten seconds of training, the running median of the last few (a pause or a spike is one bin of many and falls out), then
Page's cumulative sum (E. S. Page, Continuous inspection schemes, Biometrika 1954) of the logarithm against a robust baseline (median
and median absolute deviation), with the reference value half way to the smallest drop of interest and a decision limit that grows with
the run's own noise. The onset is where the sum left zero. The same sum, mirrored, tells when it passed, and when the run became faster
for good and deserves a new baseline. A stretch must also last as long as the policy asks, so a brief dip never counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from defib.engine.policies import SlowPolicy
from defib.engine.windows import place, places

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

EPISODES_MAX = 256
EXCURSION_MAX = 64  # bins that a drift too small to count may last before the sum starts anew; also those whose median tells the depth
SIGMA_MIN = 0.005
LIMIT_MIN = 0.15  # of the sum, whatever the noise
NOISE_FACTOR = (
    15.0  # limit = 15 sigma^2 / k: about one false alarm in ten million bins of normal noise after the median
)
NONE = int(np.iinfo(np.int64).min)  # no stamp
SPARSE_S = 60.0  # bins longer than this hold many steps each: a median of three is enough
WIDE, NARROW = 5, 3
WAVE_BINS = 8
SIGN = 5.0  # standard deviations by which slower bins must outnumber the usual ones: a sign test, which no tail of the noise can fool
USUAL_ERRORS = 2.0  # standard errors added to the usual share: few bins say little of it
QUANTA = 1.5  # steps of a coarsely printed rate that a drop has to exceed
BASE_ERROR = 1 / 6  # of the drop: how far off the first baseline may be


@dataclass(slots=True)
class Mark:
    """A place in a run: seconds on the step clock, the stamp there if any, and where the line stands."""

    clock_s: float
    step: int
    time_us: int | None
    offset: int
    line: int


@dataclass(slots=True)
class Slow:
    """A slow stretch. Marks: where it began, where it was called, where it passed (None: it lasts). Seconds per step before and during."""

    onset: Mark
    called: Mark
    passed: Mark | None
    baseline_s: float
    pace_s: float
    depth: float


@dataclass(slots=True)
class Bin:
    """Ten seconds of training, or one line where lines are rarer."""

    seconds: float
    work: float
    steps: int
    begin: Mark
    end: Mark


class Slowdown:
    """Folds one counter; `add` in order. `now` is the stretch that lasts, if any; `found` all of them."""

    def __init__(self, policy: SlowPolicy) -> None:
        self._p = policy
        self._delta = -math.log1p(-policy.depth)
        self._k = self._delta / 2
        self.found: list[Slow] = []
        self.now: Slow | None = None
        self.missed = 0  # stretches beyond EPISODES_MAX
        self._clock = 0.0
        self._last: Mark | None = None
        self._open: Bin | None = None
        self._index = -1
        self._bins = 0
        self._recent: list[tuple[float, Bin]] = []  # for the running median
        self._learned: list[float] = []
        self._base: float | None = None
        self._sigma = SIGMA_MIN
        self._quantum = 0.0  # between neighbouring values, where a rate is printed with two digits
        self._usual = 0.5  # share of bins slower than half the drop in question while all is well
        self._based_bins = 0  # bins the present baseline has held
        self._former: tuple[float, int] | None = None  # the baseline before the run became faster, and how long it held
        self._up = Sum()
        self._down = Sum()

    def add(self, steps: I64, ahead: I64, step_s: F64, work: F64, time_us: I64, offset: I64, line: I64) -> None:
        """Rows of steps forward: the step, how many steps it lies ahead, seconds and work per step (all positive)."""
        seconds = step_s * ahead
        clock = np.cumsum(np.concatenate(([self._clock], seconds)))[1:]
        if not len(clock):
            return
        self._clock = float(clock[-1])
        amount = work * ahead
        index = places(clock, self._p.bin_s)
        cuts = ((index[1:] != index[:-1]).nonzero()[0] + 1).tolist()
        rows = list(zip(seconds.tolist(), amount.tolist(), ahead.tolist(), strict=True))

        def mark(i: int) -> Mark:
            us = int(time_us[i])
            return Mark(float(clock[i]), int(steps[i]), None if us == NONE else us, int(offset[i]), int(line[i]))

        for lo, hi in zip([0, *cuts], [*cuts, len(clock)], strict=True):
            if self._open is None or index[lo] != self._index:
                if self._open is not None:
                    self._bin(self._open)
                first = mark(lo)
                self._open = Bin(0.0, 0.0, 0, self._last or first, first)
                self._index = int(index[lo])
            b = self._open
            for s, w, n in rows[lo:hi]:  # one by one: another order of adding gives other last digits
                b.seconds += s
                b.work += w
                b.steps += n
            b.end = self._last = mark(hi - 1)

    def one(self, step: int, ahead: int, step_s: float, work: float, time_us: int, offset: int, line: int) -> None:
        """The same as `add` for one row."""
        seconds = step_s * ahead
        self._clock += seconds
        mark = Mark(self._clock, step, None if time_us == NONE else time_us, offset, line)
        index = place(self._clock, self._p.bin_s)
        if self._open is None or index != self._index:
            if self._open is not None:
                self._bin(self._open)
            self._open = Bin(0.0, 0.0, 0, self._last or mark, mark)
            self._index = index
        b = self._open
        b.seconds += seconds
        b.work += work * ahead
        b.steps += ahead
        b.end = self._last = mark

    def _bin(self, b: Bin) -> None:
        """One bin is full: smooth it, learn from it, judge it."""
        self._bins += 1
        if self._bins == 1 or b.seconds <= 0 or b.work <= 0:
            return  # the first bin holds the first step and what it compiles
        value = math.log(b.seconds / b.work)
        self._recent.append((value, b))
        width = NARROW if b.seconds > SPARSE_S else WIDE
        del self._recent[:-width]
        calm = self.now is None and not self._up.bins and self._down.value < self._limit / 2
        if self._base is None or (len(self._learned) < self._p.learn_bins_max and calm):
            self._learn(value)
        if self._base is None:
            return
        self._based_bins += 1
        level = _median([v for v, _ in self._recent])
        mark = self._recent[max(0, len(self._recent) - 1 - width // 2)][1].begin
        if self.now is None:
            self._watch(level, mark, b)
        else:
            self._await_recovery(level, mark, b)

    def _learn(self, value: float) -> None:
        """Baseline from the first bins, taken anew each time their number has doubled."""
        self._learned.append(value)
        n = len(self._learned)
        if n >= self._p.learn_bins and n & (n - 1) == 0:
            base, sigma = settled(self._learned)
            # A baseline that may itself be wrong by a good part of the drop in question judges nobody: noisy runs are watched longer first.
            if (
                self._base is not None
                or 1.2533 * sigma / math.sqrt(n) <= self._delta * BASE_ERROR
                or n >= self._p.learn_bins_max
            ):
                self._base, self._sigma = base, sigma
                self._set_usual(self._learned)

    def _set_usual(self, values: list[float]) -> None:
        """How often a bin is slower in a run that is well: spikes and tails that no standard deviation tells of."""
        assert self._base is not None
        slower = sum(v > self._base + self._k for v in values)
        self._quantum = quantum(values)
        share = (slower + 1) / (len(values) + 2)
        self._usual = share + USUAL_ERRORS * math.sqrt(share * (1 - share) / len(values))

    @property
    def _limit(self) -> float:
        return max(LIMIT_MIN, NOISE_FACTOR * self._sigma**2 / self._k)

    def _slower(self, b: Bin) -> bool:
        """Whether this bin by itself is slower than usual."""
        assert self._base is not None
        return math.log(b.seconds / b.work) > self._base + self._k

    def _watch(self, level: float, mark: Mark, b: Bin) -> None:
        assert self._base is not None
        self._up.take(level - self._base - self._k, level, mark, b, self._slower(b))
        self._down.take(self._base - level - self._k, level, mark, b)
        if self._up.value > self._limit and self._up.begin is not None:
            typical = self._up.typical() - self._base
            lasted = b.end.clock_s - self._up.begin.clock_s
            certain = self._up.above - self._up.bins * self._usual >= SIGN * math.sqrt(
                self._up.bins * self._usual * (1 - self._usual)
            )
            steps = b.end.step - self._up.begin.step
            if typical < max(self._delta * (1 - self._p.tolerance), QUANTA * self._quantum):
                if self._up.bins >= EXCURSION_MAX:
                    self._up.reset()
            elif lasted >= self._p.for_s and steps >= self._p.steps and certain:
                self._call(typical, b)
        if self._down.value > self._limit and self._down.bins >= self._p.learn_bins:
            self._rebase()

    def _call(self, typical: float, b: Bin) -> None:
        assert self._up.begin is not None
        assert self._base is not None
        if (
            self._former is not None
            and self._former[1] > self._based_bins
            and typical + self._base < self._former[0] + self._k
        ):
            # Back where the run was for longer: the fast stretch between was the exception.
            self._base, self._based_bins = self._former
            self._former = None
            self._up.reset()
            return
        self._up.begin_at(self._base)
        typical = self._up.typical() - self._base
        pace = self._up.pace()
        slow = Slow(self._up.begin, b.end, None, pace * math.exp(-typical), pace, -math.expm1(-typical))
        self.now = slow
        if len(self.found) < EPISODES_MAX:
            self.found.append(slow)
        else:
            self.missed += 1
        self._down.reset()

    def _await_recovery(self, level: float, mark: Mark, b: Bin) -> None:
        assert self.now is not None
        assert self._base is not None
        self._up.take(level - self._base - self._k, level, mark, b)
        self._down.take(self._base + self._k - level, level, mark, b)
        if not self._down.bins and self._up.bins <= EXCURSION_MAX:
            typical = self._up.typical() - self._base
            self.now.depth = -math.expm1(-typical)
            self.now.pace_s = self._up.pace()
            self.now.baseline_s = self.now.pace_s * math.exp(-typical)
        if self._down.value > self._limit:
            self._down.begin_at(self._up.typical())
            self.now.passed = self._down.begin
            self.now = None
            self._up.reset()
            self._down.reset()

    def _rebase(self) -> None:
        """Faster for good: a new baseline, from the bins since it became so."""
        assert self._base is not None
        self._former = (self._base, self._based_bins)
        self._base, self._sigma = settled(self._down.levels)
        self._set_usual(self._down.levels)
        self._learned = []
        self._based_bins = self._down.bins
        self._down.reset()
        self._up.reset()


def _median(values: list[float]) -> float:
    """Of a few values: numpy takes twenty times as long to begin."""
    a = sorted(values)
    middle = len(a) // 2
    return a[middle] if len(a) % 2 else (a[middle - 1] + a[middle]) / 2


def settled(values: list[float]) -> tuple[float, float]:
    """Median and noise of logarithms, the noise rather too large: few values say little of it, and slow waves are noise as well."""
    a = np.array(values)
    base = float(np.median(a))
    sigma = _deviation(a) * (1 + 1.5 / math.sqrt(len(a)))
    if len(a) >= WAVE_BINS * 8:
        blocks = np.median(a[: len(a) // WAVE_BINS * WAVE_BINS].reshape(-1, WAVE_BINS), axis=1)
        sigma = max(sigma, _deviation(blocks) * math.sqrt(WAVE_BINS) / 1.2533)
    return base, max(SIGMA_MIN, sigma)


def quantum(values: list[float]) -> float:
    """The smallest step between different values: a rate printed as 0.11it/s or 0.10it/s jumps by a tenth without any change of pace."""
    different = np.unique(np.round(values, 9))
    return float(np.diff(different).min()) if len(different) > 1 else 0.0


def _deviation(a: F64) -> float:
    """Standard deviation by the median absolute deviation."""
    return 1.4826 * float(np.median(np.abs(a - np.median(a))))


class Sum:
    """One side of the cumulative sum: its value and what it has seen since it left zero (in detail of its first bins only)."""

    __slots__ = ("above", "begin", "bins", "levels", "seen", "steps", "value")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.value = 0.0
        self.begin: Mark | None = None
        self.bins = self.steps = self.above = 0
        self.levels: list[float] = []
        self.seen: list[tuple[Mark, float, int]] = []  # (where, seconds, steps) of each level

    def take(self, by: float, level: float, mark: Mark, b: Bin, above: bool = False) -> None:
        self.value += by
        if self.value <= 0:
            self.reset()
            return
        if self.begin is None:
            self.begin = mark
        self.bins += 1
        self.above += above
        if len(self.levels) < EXCURSION_MAX:
            self.levels.append(level)
            self.seen.append((mark, b.seconds, b.steps))

    def typical(self) -> float:
        """The median level since the sum left zero (logarithm of seconds per unit of work)."""
        return _median(self.levels) if self.levels else 0.0

    def pace(self) -> float:
        """Seconds per step since then."""
        return math.fsum(s for _, s, _ in self.seen) / max(1, sum(n for _, _, n in self.seen))

    def begin_at(self, before: float) -> None:
        """The change set where it is likeliest now that its size is known: the split of the levels with the half way between before and after
        as reference (Page's sum leaves zero early when small noise precedes a large change)."""
        after = float(np.median(self.levels[len(self.levels) // 2 :]))
        middle = (before + after) / 2
        sign = 1.0 if after > before else -1.0
        rest = np.cumsum([sign * (x - middle) for x in self.levels[::-1]])[::-1]
        at = int(np.argmax(rest))
        self.levels, self.seen = self.levels[at:], self.seen[at:]
        self.begin = self.seen[0][0]
