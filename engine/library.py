"""The Hyperscan that patterns are compiled and looked for with: its Python binding, or another one that keeps the same contract.

In: expressions, then bytes. Out: serialized databases, then every match. Always holds: which library is used changes only the time taken;
a serialized database is loaded by the library that made it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import hyperscan as hs

Matches = tuple["array[int]", "array[int]"]  # expression ids, ends
Spans = tuple["array[int]", "array[int]", "array[int]"]  # expression ids, starts, ends
Entry = tuple[int, bytes, int]  # id, expression, flags


class Searcher(Protocol):
    """A loaded database with its scratch space; for one thread at a time. Texts of 4 GiB and more are refused."""

    def scan(self, text: bytes | memoryview) -> Matches:
        """Every match."""

    def spans(self, text: bytes | memoryview) -> Spans:
        """Every match with its leftmost start, which is 0 for expressions compiled without `HS_FLAG_SOM_LEFTMOST`."""

    def few(self, text: bytes | memoryview, most: int) -> list[tuple[int, int]] | None:
        """(end, id) of every match, in order; None if there are more than `most`."""


@runtime_checkable
class Gate(Searcher, Protocol):
    """A database of literals that also leads to the records that hold one."""

    def gated(self, patterns: Searcher, text: bytes, once: int) -> tuple[Matches, frozenset[int]]:
        """Matches of the patterns in records with a literal (or all of them), and those literals found whose id is below `once`."""


class Library(Protocol):
    """Where databases are made and loaded. name: with its version, as a cache key tells libraries apart."""

    name: str

    def compiled(self, entries: Sequence[Entry]) -> bytes:
        """Serialized database of at least one expression. Raises ValueError or `hyperscan.error` for one that cannot be compiled."""

    def load(self, serialized: bytes) -> Searcher:
        """Ready to scan with. Raises ValueError or `hyperscan.error` for what no such library serialized."""


class Binding:
    """The Python binding: each match enters Python."""

    def __init__(self) -> None:
        self.name = str(hs.__version__)  # type: ignore[attr-defined]  # there, but not in the stub

    def compiled(self, entries: Sequence[Entry]) -> bytes:
        db = hs.Database(mode=hs.HS_MODE_BLOCK)
        ids, expressions, flags = zip(*entries, strict=True)
        db.compile(expressions=list(expressions), ids=list(ids), elements=len(entries), flags=list(flags))
        return bytes(hs.dumpb(db))

    def load(self, serialized: bytes) -> Searcher:
        return _Bound(serialized)


class _Bound:
    def __init__(self, serialized: bytes) -> None:
        self._db = hs.loadb(serialized, hs.HS_MODE_BLOCK)
        self._db.scratch = hs.Scratch(self._db)

    def scan(self, text: bytes | memoryview) -> Matches:
        # The binding would cut larger ones silently.
        assert len(text) < 2**32, "a batch is bounded far below 4 GiB"
        ids, ends = array("q"), array("q")
        add_id, add_end = ids.append, ends.append

        def found(code: int, _start: int, end: int, _flags: int, _context: object) -> None:
            add_id(code)
            add_end(end)

        self._db.scan(text, match_event_handler=found)  # type: ignore[type-var]  # takes any buffer; the stub knows only two
        return ids, ends

    def spans(self, text: bytes | memoryview) -> Spans:
        assert len(text) < 2**32, "a batch is bounded far below 4 GiB"
        out: Spans = array("q"), array("q"), array("q")

        def found(code: int, start: int, end: int, _flags: int, _context: object) -> None:
            for column, value in zip(out, (code, start, end), strict=True):
                column.append(value)

        self._db.scan(text, match_event_handler=found)  # type: ignore[type-var]  # as in `scan`
        return out

    def few(self, text: bytes | memoryview, most: int) -> list[tuple[int, int]] | None:
        ends: list[tuple[int, int]] = []

        def found(code: int, _start: int, end: int, _flags: int, _context: object) -> bool:
            ends.append((end, code))
            return len(ends) > most

        try:
            self._db.scan(text, match_event_handler=found)  # type: ignore[type-var]  # as in `scan`
        except hs.ScanTerminated:
            return None
        return sorted(ends)


BINDING: Library = Binding()
