"""Captures of one progress format -> columns in house units (seconds, steps), whether they were taken as text or as places in it.

In: a format and its captures by name. Out: the columns of PROGRESS that a line itself tells. Always holds: what is no number, or no possible
one, is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from defib.engine.columns import SECONDS, clock_seconds, numbers
from defib.engine.rulebook import Format

F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Units = npt.NDArray[np.int8]

VALUES = ("throughput", "tflops", "loss", "grad_norm", "epoch", "samples", "tokens")
WHOLE = (("step", pa.int64()), ("total", pa.int64()), ("rank", pa.int32()))
NUMBERS = frozenset((*VALUES, "step", "total", "rank", "step_time", "rate"))
USED = NUMBERS | {"rate_unit", "elapsed"}
STEP_MAX = 10**12
RANK_MAX = 2**31 - 1
STEP_S_MAX = 1e6  # eleven days: no step takes longer, so the number is no step time
NO_UNIT, PER_SECOND, SECONDS_PER = range(3)


class Captures(Protocol):
    """What was captured of records, by name."""

    @property
    def names(self) -> set[str]: ...

    @property
    def height(self) -> int: ...

    def number(self, name: str) -> tuple[F64, Bools]:
        """Values, and where there are any."""

    def clock(self, name: str) -> tuple[F64, Bools]:
        """The same of clock-like durations, in seconds."""

    def unit(self, name: str) -> Units:
        """PER_SECOND for `X/s`, SECONDS_PER for `s/X`, else NO_UNIT."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Captures as text."""

    got: pl.DataFrame

    @property
    def names(self) -> set[str]:
        return set(self.got.columns)

    @property
    def height(self) -> int:
        return self.got.height

    def number(self, name: str) -> tuple[F64, Bools]:
        """As `Captures` has it."""
        return values(numbers(self.got[name]))

    def clock(self, name: str) -> tuple[F64, Bools]:
        """As `Captures` has it."""
        return values(clock_seconds(self.got[name]))

    def unit(self, name: str) -> Units:
        """As `Captures` has it."""
        return unit_of(self.got[name])


def values(column: pl.Series) -> tuple[F64, Bools]:
    """Float64 -> values, and where there are any."""
    return column.fill_null(0.0).to_numpy().astype(np.float64), column.is_not_null().to_numpy()


def unit_of(text: pl.Series) -> Units:
    """tqdm's rate flips its unit: `X/s` is a rate, `s/X` already a time."""
    per_second = text.str.ends_with("/s").fill_null(False).to_numpy()
    seconds_per = text.str.starts_with("s/").fill_null(False).to_numpy()
    return np.where(per_second, PER_SECOND, np.where(seconds_per, SECONDS_PER, NO_UNIT)).astype(np.int8)


def typed(fmt: Format, got: Captures) -> dict[str, pa.Array]:
    """Columns of PROGRESS but for who, when and where."""
    have, n = got.names, got.height

    def number(name: str) -> tuple[F64, Bools]:
        return got.number(name) if name in have else (np.zeros(n), np.zeros(n, bool))

    out: dict[str, pa.Array] = {name: column(*number(name)) for name in VALUES}
    for name, kind in WHOLE:
        value, there = number(name)
        there = there & (value >= 0) & (value <= STEP_MAX)
        value = np.rint(np.where(there, value, 0)).astype(np.int64)
        if name == "rank":
            there = there & (value <= RANK_MAX)
            value = np.where(there, value, 0)
        out[name] = pa.array(value.astype(kind.to_pandas_dtype()), kind, mask=~there)
    step_s, told = number("step_time")
    step_s = step_s * SECONDS[fmt.step_time_unit]
    if "rate" in have and "rate_unit" in have:
        step_s, told = _either((step_s, told), seconds_per_step(*got.number("rate"), got.unit("rate_unit")))
    out["step_time_s"] = column(step_s, told & (np.abs(step_s) <= STEP_S_MAX))
    out["elapsed_s"] = column(*got.clock("elapsed")) if "elapsed" in have else pa.nulls(n, pa.float64())
    unit = pa.nulls(n, pa.string()) if fmt.throughput_unit is None else pa.repeat(pa.scalar(fmt.throughput_unit), n)
    if out["throughput"].null_count and fmt.throughput_unit is not None:
        unit = pa.compute.if_else(out["throughput"].is_valid(), unit, pa.scalar(None, pa.string()))
    out["throughput_unit"] = unit
    return out


def column(value: F64, there: Bools) -> pa.Array:
    """Float64, null where there is no value."""
    return pa.array(value, pa.float64(), mask=~there) if not there.all() else pa.array(value, pa.float64())


def seconds_per_step(rate: F64, there: Bools, unit: Units) -> tuple[F64, Bools]:
    """Rates and times of a step -> seconds per step, and where there are any: zero and unknown rates give none."""
    there = there & (rate > 0) & (unit != NO_UNIT)
    rate = np.where(there, rate, 1.0)
    return np.where(unit == PER_SECOND, 1.0 / rate, rate), there


def _either(first: tuple[F64, Bools], second: tuple[F64, Bools]) -> tuple[F64, Bools]:
    return np.where(first[1], first[0], second[0]), first[1] | second[1]
