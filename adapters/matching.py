"""Which rules hit where in log files, and nothing else: no job, no verdict, no history.

In: log files and the roster of the rules with its databases. Out: `FileHits` a file. Always holds: lines are counted only as far as
something was found, because counting them costs as much as looking; memory is one block and the longest record.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from defib.adapters.logfiles import BLOCK_BYTES, LogFile, NotALogError, Unread, blocks, broken, opened, why
from defib.adapters.sniff import is_packed
from defib.engine.blocks import Batch, LineCutter, Piece, clean
from defib.engine.lazy import np
from defib.engine.match import Hit, Matcher
from defib.engine.sieve import Left

NUMPY_PAYS = 512 * 1024 * 1024  # bytes of one file from which counting lines with numpy makes up for loading it

Tell = Callable[[LogFile, int, int], None]  # (file, line, rule)


@dataclass(slots=True)
class Place:
    """How often a rule hit in one file, and the lines of its first and last hit (0 where lines are not asked for)."""

    count: int = 0
    first_line: int = 0
    last_line: int = 0


@dataclass(slots=True)
class FileHits:
    """What one file holds. rules: rule number -> place."""

    file: LogFile
    size: int = 0  # bytes of text
    rules: dict[int, Place] = field(default_factory=dict)

    def add(self, rule: int, line: int, count: int) -> None:
        """More hits of a rule, the last of them on this line."""
        place = self.rules.setdefault(rule, Place(first_line=line))
        place.count += count
        place.last_line = line


def scan_files(
    files: list[LogFile], matcher: Matcher, unread: list[Unread], tell: Tell | None, *, lines: bool
) -> Iterator[FileHits]:
    """Every file that could be read, in order. Adds to `unread` what could not, and why. tell: each hit in its order, if they are asked for."""
    for file in files:
        try:
            with opened(file) as (raw, head):
                yield _scan(file, raw, head, matcher, unread, tell, lines=lines)
        except OSError as e:
            unread.append(Unread(file.shown, why(e)))
        except NotALogError as e:
            unread.append(Unread(file.shown, str(e), refused=False))


def _scan(
    file: LogFile, raw: BinaryIO, head: bytes, matcher: Matcher, unread: list[Unread], tell: Tell | None, *, lines: bool
) -> FileHits:
    found = FileHits(file)
    numbered = lines and is_packed(head)
    cutter = LineCutter(0, numbered=numbered)
    count = Lines(raw.fileno(), file.size) if lines and not numbered else None
    look = _Look(found, matcher, count, tell, lines=lines)
    try:
        for block, _ in blocks(raw, head, BLOCK_BYTES):
            found.size += len(block)
            look.at(cutter.feed(block))
    except Exception as e:
        if not broken(e):
            raise
        unread.append(Unread(file.shown, f"read to where it broke: {why(e)}"))
    look.at(cutter.finish())
    return found


@dataclass(slots=True)
class _Look:
    """Takes down what is found in the pieces of one file. count: of its lines, where the pieces do not bear their numbers."""

    found: FileHits
    matcher: Matcher
    count: Lines | None
    tell: Tell | None
    lines: bool

    def at(self, pieces: list[Piece]) -> None:
        """Pieces in their order."""
        for piece in pieces:
            left = self.matcher.left(piece.payload) if not piece.giant else None
            if left is None:
                self._hits(piece, clean(piece.payload), None)
                continue
            if left.text:
                self._hits(piece, left.text, left)
            if self.count is not None:
                self.count.told(piece.offset, piece.offset + len(piece.payload), left.feeds)

    def _hits(self, piece: Piece, text: bytes, left: Left | None) -> None:
        if self.tell is None:
            tallies = self.matcher.tallies(text)
            counts = {t.rule: t.count for t in tallies}
            hits = sorted({(at, t.rule) for t in tallies for at in (t.first, t.last)}) if self.lines else []
            for rule in counts if not self.lines else ():
                self.found.add(rule, 0, counts[rule])
        else:
            counts, hits = {}, self.matcher.hits(text)
        for line, rule in self._placed(piece, text, left, hits):
            self.found.add(rule, line, 1 if self.tell else counts.pop(rule, 0))
            if self.tell is not None:
                self.tell(self.found.file, line, rule)

    def _placed(self, piece: Piece, text: bytes, left: Left | None, hits: list[Hit]) -> Iterator[tuple[int, int]]:
        """(line, rule) of every hit."""
        if left is not None and hits:
            first = self.count.of(piece.offset) if self.count is not None else piece.line
            yield from ((first + left.line[bisect_left(left.stop, stop)], rule) for stop, rule in hits)
            return
        for offset, line, rule in _places(piece, text, hits, numbered=self.count is None):
            yield self.count.of(offset) if self.count is not None else line, rule


def _places(piece: Piece, text: bytes, hits: list[Hit], *, numbered: bool) -> Iterator[tuple[int, int, int]]:
    """(offset in the file, line, rule) of every hit; the line is 0 where the piece is not numbered."""
    if not hits:
        return
    if piece.giant:
        yield from ((piece.offset, piece.line, rule) for _, rule in hits)
    elif len(text) != len(piece.payload) or b"\r" in piece.payload:
        batch = Batch([piece], len(piece.payload))
        _, offset, lines = batch.place(np.searchsorted(batch.ends, np.array([stop for stop, _ in hits])))
        yield from zip(offset.tolist(), lines.tolist(), [rule for _, rule in hits], strict=True)
    else:
        line, done = piece.line, 0
        for stop, rule in hits:
            start = text.rfind(b"\n", 0, stop) + 1
            if numbered and start > done:
                line, done = line + text.count(b"\n", done, start), start
            yield piece.offset + start, line if numbered else 0, rule


class Lines:
    """Line numbers of offsets that only grow. Line feeds that nobody counted are counted by reading the file a second time up to there (it is still
    in memory)."""

    def __init__(self, handle: int, size: int) -> None:
        self._handle = handle
        self._at = 0
        self._line = 1
        self._numpy = size >= NUMPY_PAYS
        # (start, stop, line feeds) of stretches that were counted, in order
        self._told: deque[tuple[int, int, int]] = deque()

    def told(self, start: int, stop: int, feeds: int) -> None:
        """How many line feeds are between two offsets, none of them before one that was told or asked for."""
        if self._told or self._at != start:
            self._told.append((start, stop, feeds))
        else:
            self._at, self._line = stop, self._line + feeds

    def of(self, offset: int) -> int:
        """The line in which the byte at this offset stands, counted by line feeds from 1 on."""
        while self._at < offset:
            start, stop, feeds = self._told[0] if self._told else (offset, offset, 0)
            if start == self._at and stop <= offset:
                self._told.popleft()
                self._at, self._line = stop, self._line + feeds
            elif not self._counted(min(BLOCK_BYTES, (min(start, offset) if self._at < start else offset) - self._at)):
                break
        return self._line

    def _counted(self, size: int) -> bool:
        block = os.pread(self._handle, size, self._at)
        self._at += len(block)
        if self._numpy:
            self._line += int(np.count_nonzero(np.frombuffer(block, np.uint8) == 10))
        else:
            self._line += block.count(b"\n")
        return bool(block)  # or the file has shrunk since it was read
