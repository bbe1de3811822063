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
from defib.engine.blocks import clean
from defib.engine.library import BINDING, Library, Matches
from defib.engine.plan import ASKED_ANYWHERE, Databases

LEAST = 64 * 1024  # bytes of a text that is worth it
FRESH = 16 * 1024  # bytes of new shapes from which they are judged before the text goes on
SHARE = 4  # of its bytes at most one in so many may be left of a text
PAUSES = (7, 15, 31, 63)  # texts that are not tried after one, two, ... of which too much was left
QUIET, LOUD = 1, 2


@dataclass(frozen=True, slots=True)
class Left:
    """text: records, each with a line feed. Of each: stop, where that stands there; line, how many line feeds come before it in the text it is from.
    feeds: those of that text."""

    text: bytes
    stop: Sequence[int]
    line: Sequence[int]
    feeds: int

    def cleaned(self) -> Left:
        """As patterns see it."""
        text = clean(self.text)
        return self if text is self.text else Left(text, ends(text), self.line, self.feeds)


@dataclass(frozen=True, slots=True)
class Shapes:
    """Some shapes to be judged. blind: each once, digits as `0`; raw: the records they were met in; stops: where the line feeds are in both."""

    blind: bytes
    raw: bytes
    stops: Sequence[int]


def ends(text: bytes) -> list[int]:
    """Where its line feeds are."""
    out: list[int] = []
    at = text.find(b"\n")
    while at >= 0:
        out.append(at)
        at = text.find(b"\n", at + 1)
    return out


class Memory(Protocol):
    """What remembers shapes and their verdicts; for one thread at a time."""

    def sift(self, payload: bytes, judge: Callable[[Shapes], Iterable[tuple[int, int, int]]]) -> Left | None:
        """judge: of each shape it is given QUIET or LOUD, and from where to where digits matter in its records. None where too much would be left."""


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

    def of(self, payload: bytes) -> Left | None:
        """What is left of whole records as they were written, cleaned. None also where the sieve is not tried."""
        if self._pause or len(payload) < LEAST:
            self._pause = max(self._pause - 1, 0)
            return None
        left = self._memory.sift(payload, self._judged)
        if left is not None:
            self._failed = 0
            return left.cleaned()
        self._pause = PAUSES[self._failed]
        self._failed = min(self._failed + 1, len(PAUSES) - 1)
        return None

    def _judged(self, shapes: Shapes) -> list[tuple[int, int, int]]:
        """Of each shape whether something is found in its record, and the part of it in which an expression may ask for digits.

        Cleaning takes the same bytes out of records of one shape: to a terminal's escapes all digits are one.
        """
        blind, raw = clean(shapes.blind), clean(shapes.raw)
        stops = shapes.stops if raw is shapes.raw else ends(raw)
        lengths = _lengths(shapes.stops)
        whole = [length if length != cleaned else 0 for length, cleaned in zip(lengths, _lengths(stops), strict=True)]
        parts: dict[int, tuple[int, int]] = {}
        for code, start, end in zip(*self._asked.spans(blind), strict=True) if self._asked is not None else ():
            k = bisect_left(stops, end - 1)
            begin = stops[k - 1] + 1 if k else 0
            if code == ASKED_ANYWHERE or whole[k]:
                parts[k] = 0, lengths[k]
            else:
                first, last = parts.get(k, (lengths[k], 0))
                parts[k] = min(first, start - begin), max(last, min(end, stops[k]) - begin)
        loud = {bisect_left(stops, end - 1) for n, end in zip(*self._matches(raw), strict=True) if self._rules[n]}
        return [(LOUD if k in loud else QUIET, *parts.get(k, (0, 0))) for k in range(len(stops))]


def _lengths(stops: Sequence[int]) -> list[int]:
    return [stop - before - 1 for before, stop in zip((-1, *stops), stops, strict=False)]
