"""Two published ways to see that a run became slower, on the series the engine itself read.

In: progress rows of one run and when they arrived. Out: alarms, each with the steps it spans.
Always: a rival sees what is printed up to a point and nothing after it. Both look at the logarithm of the seconds per unit
of work, so that a longer sequence or a larger batch is no slowdown where the format prints its throughput.

rolling  running median + k median absolute deviations, as monitoring systems offer it (Hampel's identifier: F. R. Hampel,
         The influence curve and its role in robust estimation, JASA 1974)
bocpd    Bayesian online change point detection (R. P. Adams, D. J. C. MacKay, 2007, arXiv 0710.3742) with a normal
         model of unknown mean and variance, behind a running median of five

Plain, both alarm several times as often on healthy runs; the settings are the best of a small search on seed 7.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

F64 = npt.NDArray[np.float64]
DEPTH = 0.10
"""The smallest loss of throughput worth an alarm."""
DELTA = -math.log1p(-DEPTH)
SMOOTH = 5
SKIP = 3
"""The first lines hold what is compiled and cached."""

GAMMAS = np.array([math.lgamma(1.0 + 0.5 * n) for n in range(20_000)])
"""log gamma(1 + n/2): alpha grows by a half with every value."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A slowdown somebody raised. Times are seconds since the job's start, steps as printed; until: where it passed."""

    step: int
    called_step: int
    called_s: float
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Steps as printed, when their lines arrived, and the logarithm of seconds per unit of work."""

    steps: list[int]
    at_s: list[float]
    pace: F64


def series(tables: list[pa.Table], arrivals: list[list[tuple[float, int]]]) -> Series:
    """The commonest format of the run; where ranks speak each for itself, the first of them. arrivals: by stream."""
    rows = pl.concat([pl.DataFrame(pl.from_arrow(t)) for t in tables]) if tables else pl.DataFrame()
    empty = Series([], [], np.empty(0))
    if not rows.height:
        return empty
    rows = rows.filter(
        pl.col("step").is_not_null() & (pl.col("throughput").is_not_null() | pl.col("step_time_s").is_not_null())
    )
    if not rows.height:
        return empty
    best = Counter(rows["format"].to_list()).most_common(1)[0][0]
    rows = rows.filter(pl.col("format") == best).sort("stream", "offset")
    rows = rows.filter(
        (pl.col("stream") == rows["stream"][0]) & (pl.col("rank").is_null() | (pl.col("rank") == pl.col("rank").min()))
    )
    spent = rows["step_time_s"].to_numpy() if rows["throughput"].null_count() else 1.0 / rows["throughput"].to_numpy()
    ok = np.isfinite(spent) & (spent > 0)
    writes = arrivals[rows["stream"][0]]
    ends = [end for _, end in writes]
    at = [writes[min(bisect.bisect_right(ends, offset), len(writes) - 1)][0] for offset in rows["offset"].to_list()]
    keep = [i for i in np.flatnonzero(ok).tolist() if i >= SKIP]
    steps = rows["step"].to_list()
    return Series([steps[i] for i in keep], [at[i] for i in keep], np.log(spent[keep]))


def rolling(s: Series, *, window: int = 50, k: float = 3.0, run: int = 8, rest: int = 20) -> list[Alarm]:
    """Alarm where `run` values in a row lie k scaled deviations, and at least the asked depth, above the median of the `window` before."""
    out: list[Alarm] = []
    above, calm, quiet = 0, rest, 0
    for i in range(window, len(s.pace)):
        past = s.pace[i - window : i]
        middle = float(np.median(past))
        spread = 1.4826 * float(np.median(np.abs(past - middle)))
        high = s.pace[i] > middle + max(k * spread, DELTA)
        if high and not above:
            calm = quiet
        above, quiet = (above + 1, 0) if high else (0, quiet + 1)
        if above == run and (calm >= rest or not out):
            out.append(Alarm(s.steps[i - run + 1], s.steps[i], s.at_s[i], s.steps[min(i + window, len(s.pace) - 1)]))
    return out


def bocpd(s: Series, *, hazard: float = 1 / 500, settle: int = 20, longest: int = 300) -> list[Alarm]:
    """Alarm where the segment the run is most likely in lies at least the asked depth above the run's own pace."""
    out: list[Alarm] = []
    if len(s.pace) < SMOOTH + settle:
        return out
    pace = np.median(np.lib.stride_tricks.sliding_window_view(s.pace, SMOOTH), axis=1)
    steps, at_s = s.steps[SMOOTH - 1 :], s.at_s[SMOOTH - 1 :]
    model = Segments(pace[:settle], hazard, longest)
    base: float | None = None
    slow: tuple[int, int] | None = None
    for i, x in enumerate(pace.tolist()):
        length, mean = model.take(x)
        if length < settle:
            continue
        if base is None or mean < base - DELTA:
            base = mean
        if slow is None and mean - base >= DELTA:
            slow = (max(0, i - length + 1), i)
        elif slow is not None and mean - base < DELTA / 2:
            out.append(Alarm(steps[slow[0]], steps[slow[1]], at_s[slow[1]], steps[i]))
            slow = None
    if slow is not None:
        out.append(Alarm(steps[slow[0]], steps[slow[1]], at_s[slow[1]]))
    return out


class Segments:
    """The posterior over how long the present segment has lasted (Adams and MacKay's recursion).

    Segments of `longest` values or more are held as one, the oldest.
    """

    def __init__(self, first: F64, hazard: float, longest: int) -> None:
        self.hazard, self.longest = hazard, longest
        self.prior = (float(np.median(first)), 1.0, 1.0, max(float(np.var(first)), 1e-6))
        self.log_r = np.zeros(1)
        self.mean, self.kappa, self.alpha, self.beta = (np.array([v]) for v in self.prior)

    def take(self, x: float) -> tuple[int, float]:
        """One value; the likeliest length of the segment it belongs to, and that segment's mean."""
        predicted = self.log_r + self.student(x)
        kappa, mean = self.kappa + 1.0, (self.kappa * self.mean + x) / (self.kappa + 1.0)
        beta = self.beta + self.kappa * (x - self.mean) ** 2 / (2.0 * kappa)
        updated = (mean, kappa, self.alpha + 0.5, beta)
        begins = np.logaddexp.reduce(predicted) + math.log(self.hazard)
        self.log_r = np.concatenate(([begins], predicted + math.log1p(-self.hazard)))
        self.log_r -= np.logaddexp.reduce(self.log_r)
        held = [np.concatenate(([prior], values)) for prior, values in zip(self.prior, updated, strict=True)]
        if len(self.log_r) > self.longest:
            self.log_r[-2] = np.logaddexp(self.log_r[-2], self.log_r[-1])
            self.log_r = self.log_r[:-1]
            held = [np.delete(values, -2) for values in held]
        self.mean, self.kappa, self.alpha, self.beta = held
        likeliest = int(np.argmax(self.log_r))
        return likeliest, float(self.mean[likeliest])

    def student(self, x: float) -> F64:
        """Log density of x under each segment: Student's t with 2 alpha degrees of freedom."""
        scale = self.beta * (self.kappa + 1.0) / (self.alpha * self.kappa)
        seen = np.minimum(np.rint(2.0 * self.alpha - 2.0).astype(np.int64), len(GAMMAS) - 2)
        nu = 2.0 * self.alpha
        out: F64 = GAMMAS[seen + 1] - GAMMAS[seen] - 0.5 * np.log(nu * math.pi * scale)
        return out - (nu + 1.0) / 2.0 * np.log1p((x - self.mean) ** 2 / (nu * scale))


RIVALS = {"rolling": rolling, "bocpd": bocpd}
