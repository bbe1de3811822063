"""A text of records -> a shorter one with the same hits: one record for all that differ only in their digits.

In: a sorter of records by shape, databases, and the text of whole records. Out: `Short`, or None where a scan of the text itself is as good.
Always holds: whatever the rules say of a record in the short text, they say of every record it stands for: records of which an expression may
ask which digit stands somewhere stand for themselves.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from defib.engine import finder
from defib.engine.library import BINDING, Library, Matches, Searcher
from defib.engine.plan import Databases

LEAST = 64 * 1024  # bytes of a text that is worth it
KEPT = 32  # databases of literals
MOST = 4096  # shapes of a text
SHORTEST = 8  # bytes of a record on average; a text of shorter ones is not sorted
SHARE = 2  # a text is short with less than one of so many of its bytes
PAUSE = 15  # texts that are not tried after one whose records had too many shapes


@dataclass(frozen=True, slots=True)
class Short:
    """text: records, each with its line feed. Of each of them: stop, the place of its line feed; shape; count, for how many it stands; first, last:
    where the line feeds of the first and the last of those are in the long text."""

    text: bytes
    stop: list[int]
    shape: list[int]
    count: list[int]
    first: list[int]
    last: list[int]


class Shaped(Protocol):
    """A text's records by shape. digest: each shape once, digits as `0`; stops: where its line feed is there."""

    digest: bytes
    stops: list[int]

    def mark(self, doubt: Iterable[int], ends: array[int]) -> None:
        """Let the records of these shapes that hold one of these places (ends of matches) stand for themselves."""

    def gathered(self, split: Iterable[int]) -> Short | None:
        """One record for all of a shape, but for those marked and those of these shapes. None where that is not much shorter."""


class Sorter(Protocol):
    """What sorts records by shape; for one thread at a time."""

    def sorted(self, text: bytes) -> Shaped | None:
        """None where there are too many shapes."""


class Shortener:
    """Holds the databases that tell where digits matter; one per thread or process."""

    def __init__(self, databases: Databases, sorter: Sorter, library: Library = BINDING) -> None:
        self._sorter, self._library = sorter, library
        self._doubts = finder.load(databases.doubts, library)
        self._literals: list[list[str] | None] = json.loads(databases.digits or b"[]")
        self._digits: dict[frozenset[int], Searcher | None] = {}
        self._pause = 0

    def of(self, text: bytes, matches: Callable[[bytes], Matches]) -> Short | None:
        """matches: of the expressions that find, in a text."""
        if len(text) < LEAST:
            return None
        if self._pause:
            self._pause -= 1
            return None
        shaped = self._sorter.sorted(text)
        short = self._short(text, shaped, matches) if shaped is not None else None
        if short is None:
            self._pause = PAUSE
        return short

    def _short(self, text: bytes, shaped: Shaped, matches: Callable[[bytes], Matches]) -> Short | None:
        finding, silencing, split = set[int](), set[int](), set[int]()
        asking = set[int]()
        for number, end in zip(*finder.scan(self._doubts, shaped.digest), strict=True):
            literals = self._literals[number]
            of = split if literals is None else finding if literals else silencing
            of.add(bisect_left(shaped.stops, end))
            if literals:
                asking.add(number)
        if finding:
            shaped.mark(finding, finder.scan(self._of(frozenset(asking)), text)[1])
        short = shaped.gathered(split)
        if short is None or not silencing:
            return short
        # What silences is asked only of records that something was found in.
        found = {short.shape[bisect_left(short.stop, end)] for end in set(matches(short.text)[1])}
        return shaped.gathered(split | (found & silencing)) if found & silencing else short

    def _of(self, asking: frozenset[int]) -> Searcher | None:
        """What looks for the literals of these expressions, digits and all: a few of them are found in a fraction of the time of all."""
        if asking not in self._digits:
            if len(self._digits) >= KEPT:
                self._digits.clear()
            told = sorted({text.encode("latin-1") for n in asking for text in self._literals[n] or ()})
            self._digits[asking] = finder.load(finder.compiled(finder.literals(told), self._library), self._library)
        return self._digits[asking]
