"""Rows of progress as columns and one by one, and what went on between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
NONE = int(np.iinfo(np.int64).min)  # "no value" in integer columns


@dataclass(slots=True)
class Point:
    """Where progress was last seen."""

    offset: int
    line: int
    time_us: int | None


class Row(NamedTuple):
    """One row of progress, as in ProgressRows."""

    offset: int
    line: int
    time_us: int
    step: int
    rank: int
    step_time_s: float
    throughput: float
    tflops: float
    samples: float
    tokens: float


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

    def part(self, lo: int, hi: int) -> ProgressRows:
        """Rows from lo to before hi, without copying numbers."""
        here = slice(lo, hi)
        return ProgressRows(
            self.offset[here], self.line[here], self.time_us[here], self.format[here], self.step[here], self.total[here], self.rank[here],
            self.step_time_s[here], self.throughput[here], self.tflops[here], self.bad_loss[here], self.samples[here], self.tokens[here],
        )  # fmt: skip

    def one_by_one(self, at: I64) -> list[Row]:
        """These rows as plain numbers: of a handful everything else is cheaper that way."""
        columns = (
            self.offset, self.line, self.time_us, self.step, self.rank, self.step_time_s, self.throughput, self.tflops, self.samples, self.tokens,
        )  # fmt: skip
        return list(map(Row._make, zip(*(column[at].tolist() for column in columns), strict=True)))


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

    def named(self, last: int, offset: int) -> tuple[str, ...]:
        """The same for one row: the phases spoken of since `last`."""
        names = [name for name, at in self.spoken.items() if at > last]
        if len(self.evaluation) and "evaluation" not in names:
            within = np.searchsorted(self.evaluation, offset) > np.searchsorted(self.evaluation, last, side="right")
            names += ["evaluation"] if within else []
        return tuple(sorted(names)) if names else ()
