"""Records by shape in plain Python, for where the helper in C cannot be had: a `shorter.Sorter` that gives what that one gives."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from defib.engine.digits import ZEROS
from defib.engine.shorter import MOST, SHARE, SHORTEST, Short


class PlainSorter:
    """Keeps nothing between texts."""

    def sorted(self, text: bytes) -> PlainSorted | None:
        """As `shorter.Sorter` has it."""
        records = text.translate(ZEROS).split(b"\n")
        if not records[-1]:
            records.pop()
        if len(records) * SHORTEST > len(text):
            return None
        known = {record: n for n, record in enumerate(dict.fromkeys(records))}
        ends = list(accumulate(len(record) + 1 for record in known))
        if len(known) > MOST or (ends and ends[-1] >= len(text) // SHARE):
            return None
        return PlainSorted(
            text, records, list(map(known.__getitem__, records)), b"\n".join(known) + b"\n", [end - 1 for end in ends]
        )


@dataclass(slots=True)
class PlainSorted:
    """As `shorter.Shaped` has it. of: the shape of each record."""

    text: bytes
    records: list[bytes]
    of: list[int]
    digest: bytes
    stops: list[int]
    _where: list[int] = field(default_factory=list)
    _apart: set[int] = field(default_factory=set)  # numbers of records

    def mark(self, doubt: Iterable[int], ends: array[int]) -> None:
        """As `shorter.Shaped` has it."""
        doubted, where = set(doubt), self._stops()
        places = {bisect_left(where, end) for end in ends}
        self._apart |= {k for k in places if k < len(self.of) and self.of[k] in doubted}

    def gathered(self, split: Iterable[int]) -> Short | None:
        """As `shorter.Shaped` has it."""
        alone = set(split)
        apart = self._apart | ({k for k, shape in enumerate(self.of) if shape in alone} if alone else set())
        rest = list(range(len(self.of))) if not apart else [k for k in range(len(self.of)) if k not in apart]
        shapes = [self.of[k] for k in rest] if apart else self.of
        count, last = Counter(shapes), dict(zip(shapes, rest, strict=True))
        first = dict(zip(reversed(shapes), reversed(rest), strict=True))
        told = sorted([(first[s], s, count[s], last[s]) for s in count] + [(k, self.of[k], 1, k) for k in apart])
        where = self._stops()
        pieces = [self.text[where[k] - len(self.records[k]) : where[k]] for k, *_ in told]
        text = b"\n".join(pieces) + b"\n" if pieces else b""
        if len(text) > len(self.text) // SHARE:
            return None
        stop = [end - 1 for end in accumulate(len(piece) + 1 for piece in pieces)]
        return Short(
            text,
            stop,
            [t[1] for t in told],
            [t[2] for t in told],
            [where[t[0]] for t in told],
            [where[t[3]] for t in told],
        )

    def _stops(self) -> list[int]:
        """Where the line feed of each record stands in the text."""
        if not self._where:
            self._where = [end - 1 for end in accumulate(len(record) + 1 for record in self.records)]
        return self._where
