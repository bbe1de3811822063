"""Quantiles in bounded memory that do not depend on the order or grouping of the values.

Logarithmic bins of relative width 0.1 % (the idea of DDSketch: Masson, Rim, Lee, VLDB 2019), so a quantile is within 0.05 % of a value that
was seen. At most ~28,000 bins between a microsecond and eleven days; merging is adding counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

_GAMMA = math.log(1.001)
_LOW, _HIGH = 1e-9, 1e15
EDGE = 1e-6  # of a bin: nearer to its edge two ways of taking a logarithm may disagree
FEW = 64  # values up to which counting them one by one is faster; a live log brings a handful at a time


@dataclass(slots=True)
class Sketch:
    """Counts per logarithmic bin; `add`, `merge`, `quantile`."""

    bins: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def to_bytes(self) -> bytes:
        """The bins in little more than a byte each: how far apart they lie, times two, and one more where a count other than 1 follows."""
        out = bytearray()
        before = 0
        for key in sorted(self.bins):
            apart, n = key - before, self.bins[key]
            before = key
            if not out:  # the first may be negative
                apart = 2 * apart if apart >= 0 else -2 * apart - 1
            _written(out, 2 * apart + (n != 1))
            if n != 1:
                _written(out, n)
        return bytes(out)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Sketch:
        """What `to_bytes` wrote."""
        made, numbers, key = cls(), _read(raw), 0
        for first, told in enumerate(numbers):
            apart = told >> 1
            key += apart if first else (apart >> 1 if not apart & 1 else -(apart + 1 >> 1))
            n = next(numbers) if told & 1 else 1
            made.bins[key] = n
            made.count += n
        return made

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Add positive finite values; others are ignored."""
        values = values[(values > _LOW) & (values < _HIGH)]
        if not len(values):
            return
        bins = self.bins
        keys = np.rint(np.log(values) / _GAMMA).astype(np.int64)
        if len(keys) <= FEW:
            for k in keys.tolist():
                bins[k] = bins.get(k, 0) + 1
        else:
            keys, counts = np.unique(keys, return_counts=True)
            for k, n in zip(keys.tolist(), counts.tolist(), strict=True):
                bins[k] = bins.get(k, 0) + n
        self.count += len(values)

    def one(self, value: float) -> None:
        """Add one value: the same bin as in an array."""
        if not _LOW < value < _HIGH:
            return
        place = math.log(value) / _GAMMA
        key = round(place)
        if abs(abs(place - key) - 0.5) < EDGE:  # numpy's logarithm may differ in the last digit
            key = int(np.rint(np.log(np.array([value])) / _GAMMA)[0])
        bins = self.bins
        bins[key] = bins.get(key, 0) + 1
        self.count += 1

    def merge(self, other: Sketch) -> None:
        bins = self.bins
        for k, n in other.bins.items():
            bins[k] = bins.get(k, 0) + n
        self.count += other.count

    def quantile(self, q: float) -> float | None:
        """The q-quantile (lower), or None without values."""
        if not self.count:
            return None
        rank = q * (self.count - 1)
        seen = 0
        for k, n in sorted(self.bins.items()):
            seen += n
            if seen > rank:
                return float(f"{math.exp(k * _GAMMA):.6g}")
        raise AssertionError("counts add up")


def _written(out: bytearray, number: int) -> None:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _read(raw: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in raw:
        number |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
        else:
            yield number
            number = shift = 0
