"""Text -> matches of many patterns and literals, running the patterns only where one of their literals stands.

In: compiled databases and the bytes of whole records. Out: (expression, end) of every match, and which anchors occur. Always holds: what
is found is what running every expression over all bytes would find; windows, the gate and its limits change only the time taken.

Healthy logs hold next to none of the gate's literals, and Hyperscan's literal matcher passes over them several times faster than its
general engine. A window with many literals (an error storm) is scanned whole: finding its records one by one would cost more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import hyperscan as hs

from defib.engine.lazy import np
from defib.engine.library import BINDING, Entry, Gate, Library, Matches, Searcher
from defib.engine.plan import Databases

WINDOW = 256 * 1024
SNIFF = 16 * 1024  # bytes that most often show all the anchors there are
SPARSE = 2048  # bytes per literal found, on average, above which looking at the records alone is cheaper
PATIENCE = 8  # windows taken whole at most without a new look, after dense ones
COMPILE_PER = 1024 * 1024  # bytes that have to be at stake before an anchor database is compiled
KEPT = 32  # anchor databases
MULTILINE = hs.HS_FLAG_MULTILINE
ONCE = hs.HS_FLAG_MULTILINE | hs.HS_FLAG_SINGLEMATCH

ALL = (
    1 << 30
)  # code of the gate's literals that are told each time; those of a banner bear its number and are told once

MANY = 256  # matches from which numpy places them


def compiled(entries: Sequence[Entry], library: Library = BINDING) -> bytes:
    """Serialized database; empty where there is nothing to find."""
    return library.compiled(entries) if entries else b""


def literal(text: bytes) -> bytes:
    """The expression that matches just these bytes."""
    return b"".join(b"\\x%02x" % c for c in text)


def literals(texts: Iterable[bytes], flags: int = 0) -> list[Entry]:
    """Entries of literals, numbered in their order."""
    return [(n, literal(t), flags) for n, t in enumerate(texts)]


def load(serialized: bytes, library: Library = BINDING) -> Searcher | None:
    """Ready to scan with; None for no database."""
    return library.load(serialized) if serialized else None


def scan(db: Searcher | None, text: bytes | memoryview) -> Matches:
    """Every match."""
    return db.scan(text) if db is not None and text else (array("q"), array("q"))


def windows(text: bytes, size: int = WINDOW) -> Iterator[tuple[int, int]]:
    """(start, stop) of whole records: about `size` bytes, then twice as many, and so on up to WINDOW."""
    start = 0
    while start < len(text):
        stop = text.rfind(b"\n", start, start + size) + 1
        if not stop:
            stop = text.find(b"\n", start + size) + 1
        size = min(2 * size, WINDOW)
        stop = stop or len(text)
        yield start, stop
        start = stop


class Looked(NamedTuple):
    """records: (start, stop) of those that hold a literal of the gate. dense: stretches with so many that all records are to be scanned.

    banners: windows with the banners of which a literal was found.
    """

    records: list[tuple[int, int]]
    dense: list[tuple[int, int]]
    banners: list[tuple[tuple[int, int], frozenset[int]]]


class Finder:
    """Holds the loaded databases and their scratch space; one per thread or process."""

    def __init__(self, databases: Databases, anchors: tuple[bytes, ...], library: Library = BINDING) -> None:
        self._library = library
        self._gate, self._gated, self._banners, self._bare = (load(d, library) for d in databases[:4])
        self._literals = literals(anchors, ONCE)
        self._anchors: OrderedDict[frozenset[int], Searcher | None] = OrderedDict()
        self._every = load(databases.anchors, library)

    def matches(self, text: bytes) -> Matches:
        """Matches of the gated and the bare expressions; `text` is whole records, each with its line feed.

        Every record an expression matches in is told; of a banner at least one.
        """
        view = memoryview(text)
        parts = [scan(self._bare, text)]
        if text and self._gated is not None and isinstance(self._gate, Gate):
            found, codes = self._gate.gated(self._gated, text, ALL)
            parts.append(found)
            looked = Looked([], [], [((0, len(text)), codes)] if codes else [])
        else:
            looked = self._look(text)
        parts += (_at(scan(self._gated, view[a:b]), a) for a, b in looked.dense)
        if looked.records:
            parts.append(self._within(view, looked.records))
        seen = {n for ids, _ in parts for n in ids} if looked.banners else set[int]()
        for (start, stop), banners in looked.banners:
            # A banner's literal is told once a window, and its record may be none of the banner's.
            if not banners <= seen:
                parts.append(_at(scan(self._banners, view[start:stop]), start))
                seen.update(parts[-1][0])
        for more_ids, more_ends in parts[1:]:
            parts[0][0].extend(more_ids)
            parts[0][1].extend(more_ends)
        return parts[0]

    def _within(self, view: memoryview, records: list[tuple[int, int]]) -> Matches:
        """Matches in these records alone, joined for one scan and placed again."""
        ids, ends = scan(self._gated, b"".join(view[start:stop] for start, stop in records))
        joined = list(accumulate(stop - start for start, stop in records))
        for i, end in enumerate(ends):
            at = bisect_left(joined, end)  # an end never lies past its record's line feed
            ends[i] = records[at][1] - (joined[at] - end)
        return ids, ends

    def _look(self, text: bytes) -> Looked:
        """Where literals of the gate stand."""
        looked = Looked([], [], [])
        blind, run = 0, 1
        if self._gate is None:
            return looked
        for start, stop in windows(text):
            found = None if blind else self._literals_in(memoryview(text)[start:stop])
            if found is not None:
                looked.records.extend(_records(text, start, found))
                if banners := frozenset(code for _, code in found if code < ALL):
                    looked.banners.append(((start, stop), banners))
                run = 1
                continue
            if not blind:
                blind, run = run, min(2 * run, PATIENCE)
            blind -= 1
            if looked.dense and looked.dense[-1][1] == start:
                looked.dense[-1] = (looked.dense[-1][0], stop)
            else:
                looked.dense.append((start, stop))
        return looked

    def _literals_in(self, window: memoryview) -> list[tuple[int, int]] | None:
        """(end, code) of literals of the gate, in order; None if they are too many."""
        assert self._gate is not None
        return self._gate.few(window, 8 + len(window) // SPARSE)

    def anchors(self, text: bytes) -> frozenset[int]:
        """Numbers of the anchors that occur."""
        found: set[int] = set()
        view, spare = memoryview(text), len(text) // COMPILE_PER
        db = self._every
        for start, stop in windows(text, SNIFF):
            ids, _ = scan(db, view[start:stop])
            if not ids:
                continue
            found.update(ids)
            # A progress line holds its anchors again and again: what has been seen need not be looked for.
            key = frozenset(found)
            if key in self._anchors or spare > 0:
                spare -= key not in self._anchors
                db = self._without(key)
        return frozenset(found)

    def _without(self, found: Collection[int]) -> Searcher | None:
        key = frozenset(found)
        if key not in self._anchors:
            left = [entry for entry in self._literals if entry[0] not in key]
            self._anchors[key] = load(compiled(left, self._library), self._library)
            if len(self._anchors) > KEPT:
                self._anchors.popitem(last=False)
        self._anchors.move_to_end(key)
        return self._anchors[key]


def _at(found: Matches, start: int) -> Matches:
    ids, ends = found
    if not start or not ends:
        return found
    if len(ends) < MANY:
        return ids, array("q", [end + start for end in ends])
    shifted = array("q")
    shifted.frombytes((np.frombuffer(ends, np.int64) + start).tobytes())
    return ids, shifted


def _records(text: bytes, start: int, found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(start, stop) of the records in which a literal ends, each once; ends count from the window's start."""
    out: list[tuple[int, int]] = []
    stop = start
    for end, _ in found:
        at = start + end
        if at <= stop:
            continue
        first = text.rfind(b"\n", start, at) + 1 or start
        stop = text.find(b"\n", at) + 1 or len(text)
        out.append((first, stop))
    return out
