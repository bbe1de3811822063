"""A batch's records by shape: those that differ only in their digits have one, and are searched once.

In: a kernel and records. Out: which shapes hold a literal, and the records of a shape. Always holds: a literal that a record holds, its shape
holds too, digits of both taken for one another; a program that is blind to digits finds in the shape what it finds in each of its records.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from defib.engine.fields import I64, Kernel, unnumbered
from defib.engine.spans import Places, Shaped, Turn
from defib.engine.units import Bools

ASCII, WITH_DRAWN = range(2)


class Shapes:
    """The shapes of a batch. Numbers of shapes are their places in every array."""

    def __init__(self, kernel: Kernel, text: bytes, start: I64, stop: I64) -> None:
        self._kernel, self._start = kernel, start
        self.of, self._sample, digest, begin, end, self._kind = kernel.shapes(text, start, stop)
        self.all = Places(digest, begin, end)
        self._lower = b""
        self._held: dict[tuple[bytes, bool], bool] = {}
        self._masks: dict[str, Bools] = {}

    def held(self, literal: bytes, fold: bool = False) -> bool:
        """Whether a literal stands in any shape. fold: in any case; the literal is in lower case."""
        if (literal, fold) not in self._held:
            if fold and not self._lower:
                self._lower = self.all.text.lower()
            text = self._lower if fold else self.all.text
            self._held[literal, fold] = self._kernel.has(text, unnumbered(literal))
        return self._held[literal, fold]

    def holding(self, every: Sequence[str], one: Sequence[str]) -> I64:
        """Shapes that hold every literal of the first kind, and one of the second."""
        if not all(self.held(literal.encode()) for literal in every):
            return np.empty(0, np.int64)
        mask = np.ones(len(self.all), bool)
        for literal in every:
            mask &= self._holding(literal)
        if not any(a in literal for a in one for literal in every):
            mask &= np.logical_or.reduce([self._holding(literal) for literal in one])
        return np.flatnonzero(mask)

    def _holding(self, literal: str) -> Bools:
        if literal not in self._masks:
            self._masks[literal] = self._kernel.holding(self.all.text, self.all.stop, unnumbered(literal.encode()))
        return self._masks[literal]

    def plain(self, shapes: I64, wide: bool) -> Bools:
        """Those whose every character a program knows. wide: one that knows drawn characters."""
        return self._kind[shapes] <= (WITH_DRAWN if wide else ASCII)

    def records(self, shapes: I64, but: Bools | None = None) -> I64:
        """The records of these shapes, but for those."""
        mask = np.zeros(len(self.all), bool)
        mask[shapes] = True
        mine = mask[self.of]
        return np.flatnonzero(mine if but is None else mine & ~but)

    def shaped(self, shapes: I64, at: I64) -> Shaped:
        """These shapes, and records that have them."""
        number = np.zeros(len(self.all), np.int64)
        number[shapes] = np.arange(len(shapes))
        sample = self._sample[shapes]
        wide = self._kind[shapes] == WITH_DRAWN
        return Shaped(
            self.all.of(shapes),
            Turn(number[self.of[at]], self._start[at], self.all.start[shapes], wide, sample),
            self.held,
        )
