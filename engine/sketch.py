"""Quantiles in bounded memory that do not depend on the order or grouping of the values.

Logarithmic bins of relative width 0.1 % (the idea of DDSketch: Masson, Rim, Lee, VLDB 2019), so a quantile is within 0.05 % of a value that
was seen. At most ~28,000 bins between a microsecond and eleven days; merging is adding counts.
"""

from __future__ import annotations

import itertools
import math
from array import array

import numpy as np
import numpy.typing as npt

_GAMMA = math.log(1.001)
_LOW, _HIGH = 1e-9, 1e15
EDGE = 1e-6  # of a bin: nearer to its edge two ways of taking a logarithm may disagree
FEW = 64  # values up to which counting them one by one is faster; a live log brings a handful at a time


class Sketch:
    """Counts per logarithmic bin; `add`, `merge`, `quantile`."""

    __slots__ = ("_bins", "_packed", "count")

    def __init__(self) -> None:
        self._bins: dict[int, int] = {}
        self._packed: tuple[array[int], array[int]] | None = None
        self.count = 0

    @property
    def bins(self) -> dict[int, int]:
        """Values per bin, to read and to add to."""
        if self._packed is not None:
            self._bins, self._packed = dict(zip(*self._unpacked(self._packed), strict=True)), None
        return self._bins

    def pack(self) -> None:
        """Hold the bins in two arrays, which need far less memory, until one is asked for: nothing is lost."""
        if self._bins:
            keys = sorted(self._bins)
            counts = [self._bins[k] for k in keys]
            apart = [keys[0], *(b - a for a, b in itertools.pairwise(keys))]
            small = max(counts) < 1 << 16 and max(apart[1:], default=0) < 1 << 16 and abs(keys[0]) < 1 << 15
            self._packed = (
                array("i", apart) if not small else array("H", [apart[0] + (1 << 15), *apart[1:]]),
                array("H" if small else "Q", counts),
            )
            self._bins = {}

    @staticmethod
    def _unpacked(packed: tuple[array[int], array[int]]) -> tuple[list[int], list[int]]:
        apart, counts = packed
        keys = list(itertools.accumulate(apart))
        return [k - (1 << 15) for k in keys] if apart.typecode == "H" else keys, counts.tolist()

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
        keys, counts = self._unpacked(self._packed) if self._packed else zip(*sorted(self._bins.items()), strict=True)
        for k, n in zip(keys, counts, strict=True):
            seen += n
            if seen > rank:
                return float(f"{math.exp(k * _GAMMA):.6g}")
        raise AssertionError("counts add up")
