"""A text of records -> the records that may hold something: those of a shape in which nothing was found before are left out.

In: what remembers shapes, databases, and the text of whole records. Out: `Left`, or None where so much would be left that the text itself is
as good. Always holds: whatever the rules say of the text, they say of what is left: a record is left out only if one that differs from it in
its digits alone was searched, nothing was found there, and no expression asks which digits those are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from defib.engine import finder
from defib.engine.library import BINDING, Library, Matches
from defib.engine.plan import ASKED_ANYWHERE, Databases

LEAST = 64 * 1024  # bytes of a text that is worth it
FRESH = 16 * 1024  # bytes of new shapes from which they are judged before the text goes on
SHARE = 4  # of its bytes at most one in so many may be left of a text
PAUSES = (7, 15, 31, 63)  # texts that are not tried after one, two, ... of which too much was left
QUIET, LOUD = 1, 2


@dataclass(frozen=True, slots=True)
class Left:
    """text: records, each with its line feed. stop, origin: where that stands there, and in the text they are from."""

    text: bytes
    stop: Sequence[int]
    origin: Sequence[int]

    def placed(self, stop: int) -> int:
        """The place of a line feed in the text they are from."""
        return self.origin[bisect_left(self.stop, stop)]


@dataclass(frozen=True, slots=True)
class Shapes:
    """Some shapes to be judged. blind: each once, digits as `0`; raw: the records they were met in; stops: where the line feeds are in both."""

    blind: bytes
    raw: bytes
    stops: Sequence[int]


class Memory(Protocol):
    """What remembers shapes and their verdicts; for one thread at a time."""

    def sift(self, text: bytes, judge: Callable[[Shapes], Iterable[tuple[int, int, int]]]) -> Left | None:
        """judge: (verdict, from, to) of each shape it is given, as `Judge.of` tells. None where too much would be left."""


class Sieve:
    """Remembers which shapes are quiet; one per thread or process. rules: which expressions count."""

    def __init__(
        self,
        databases: Databases,
        memory: Memory,
        matches: Callable[[bytes], Matches],
        rules: Sequence[bool],
        library: Library = BINDING,
    ) -> None:
        self._memory, self._matches, self._rules = memory, matches, rules
        self._asked = finder.load(databases.asked, library)
        self._failed = self._pause = 0

    def of(self, text: bytes) -> Left | None:
        """What is left of a text."""
        if self._pause:
            self._pause -= 1
            return None
        left = self._memory.sift(text, self._judged)
        if left is not None:
            self._failed = 0
        else:
            self._pause = PAUSES[self._failed]
            self._failed = min(self._failed + 1, len(PAUSES) - 1)
        return left

    def _judged(self, shapes: Shapes) -> list[tuple[int, int, int]]:
        """Of each shape whether something is found in its record, and the part of it in which an expression may ask for digits."""
        stops = shapes.stops
        begins = [0, *(stop + 1 for stop in stops)]
        first, last = [stop + 1 for stop in stops], list(begins)
        if self._asked is not None:
            for code, start, end in zip(*self._asked.spans(shapes.blind), strict=True):
                k = bisect_left(stops, end - 1)
                everywhere = code == ASKED_ANYWHERE
                first[k] = min(first[k], begins[k] if everywhere else start)
                last[k] = max(last[k], stops[k] if everywhere else min(end, stops[k]))
        loud = {bisect_left(stops, end - 1) for n, end in zip(*self._matches(shapes.raw), strict=True) if self._rules[n]}
        return [
            (LOUD if k in loud else QUIET, a - begin, b - begin) if a <= b else (LOUD if k in loud else QUIET, 0, 0)
            for k, (begin, a, b) in enumerate(zip(begins, first, last, strict=False))
        ]
