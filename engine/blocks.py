"""Bytes -> records: cutting streams at line ends, and one contiguous buffer for many streams.

In: raw bytes of a stream in any block sizes. Out: `Piece`s of whole records, gathered into a `Batch` that Hyperscan scans in one
pass. A record is the text between two line feeds or carriage returns, without terminal escapes and NUL bytes. Always holds:

* the records, their offsets and line numbers do not depend on how the bytes were cut into blocks;
* memory per stream is at most one block plus `RECORD_MAX`; a longer record is seen as its first and last `SIDE_MAX` bytes;
* a record's offset is that of its first raw byte, its line counts line feeds only (as editors and `sed -n` do).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from defib.engine.lazy import loaded, np

if TYPE_CHECKING:
    import numpy.typing as npt

    I64 = npt.NDArray[np.int64]
else:
    I64 = Any

SIDE_MAX = 64 * 1024
RECORD_MAX = 2 * SIDE_MAX
GIANT_MARK = b" [...] "

# ECMA-48: CSI, OSC/DCS/APC/PM/SOS strings (ended by BEL or ST), two-byte escapes, then any escape left alone.
# Line ends are never part of a match, so cleaning cannot change the number of records.
ESCAPES = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"
    rb"|\x1b[\]PX^_][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?"
    rb"|\x1b[ -/]+[0-~]"
    rb"|\x1b[0-Z\\^-~]"
    rb"|\x1b"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole records of one stream. payload ends in a line end; giant pieces hold one shortened record."""

    stream: int
    offset: int
    line: int
    payload: bytes
    giant: bool = False


class LineCutter:
    """Cuts one stream into pieces. `feed` any blocks in order, then `finish` once. numbered: whether lines are counted at all."""

    def __init__(self, stream: int, offset: int = 0, line: int = 1, *, numbered: bool = True) -> None:
        self.stream = stream
        self._numbered = numbered
        self.line = line
        self.giants = 0
        self.unterminated = False
        self._carry = bytearray()
        self._carry_at = offset
        self._dropped = 0  # bytes cut out of the record being carried
        self._fed = self._feed_last = False

    @classmethod
    def taken_up(cls, stream: int, offset: int, line: int, giants: int, tail: bytes) -> LineCutter:
        """A cutter that goes on where another one's last whole record ended. tail: what stands just before `offset`."""
        made = cls(stream, offset, line)
        made.giants, made._fed, made._feed_last = giants, bool(tail), tail.endswith(b"\n")
        return made

    @property
    def offset(self) -> int:
        """First byte not yet part of a piece."""
        return self._carry_at

    @property
    def lines(self) -> int:
        """Lines so far, as editors count them: one that has begun counts."""
        return self.line - self._feed_last if self._fed else 0

    def feed(self, data: bytes) -> list[Piece]:
        if data:
            self._fed, self._feed_last = True, data.endswith(b"\n")
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if cut == 0:
            self._hold(data)
            return []
        pieces: list[Piece] = []
        first = 0
        if self._dropped or len(self._carry) > RECORD_MAX:
            first = self._first_end(data)
            self._hold(data[:first])
            pieces.append(self._carried(terminator=data[first : first + 1]))
            first += 1
        if first < cut:
            pieces += self._whole(b"".join((self._carry, memoryview(data)[first:cut])))
        self._hold(data[cut:])
        return pieces

    def skip(self, length: int) -> None:
        """The same as feeding `length` NUL bytes, whatever their number."""
        self._fed, self._feed_last = True, False
        held = min(length, RECORD_MAX + 1)
        self._hold(bytes(held))
        self._dropped += length - held

    def finish(self) -> list[Piece]:
        """The last record, if the stream ended without a line end."""
        if not self._carry:
            return []
        self.unterminated = True
        if self._dropped or len(self._carry) > RECORD_MAX:
            return [self._carried(terminator=b"")]
        return self._whole(bytes(self._carry) + b"\n", added=1)

    @staticmethod
    def _first_end(data: bytes) -> int:
        ends = [i for i in (data.find(b"\n"), data.find(b"\r")) if i >= 0]
        return min(ends)

    def _hold(self, data: bytes) -> None:
        """Carry bytes of an unfinished record, bounded."""
        self._carry += data
        spare = len(self._carry) - RECORD_MAX
        if spare > 0:
            del self._carry[SIDE_MAX : SIDE_MAX + spare]
            self._dropped += spare

    def _carried(self, terminator: bytes) -> Piece:
        """The carried record, shortened, as a piece of its own."""
        self.giants += 1
        body = bytes(self._carry)
        piece = Piece(
            self.stream, self._carry_at, self.line, body[:SIDE_MAX] + GIANT_MARK + body[SIDE_MAX:] + b"\n", True
        )
        self._carry_at += len(body) + self._dropped + len(terminator)
        self.line += terminator == b"\n"
        self._carry.clear()
        self._dropped = 0
        return piece

    def _whole(self, payload: bytes, added: int = 0) -> list[Piece]:
        """A payload of whole records; records over the bound are set apart."""
        at = self._carry_at
        self._carry.clear()
        self._carry_at = at + len(payload) - added
        if not _may_hold_giant(payload):
            piece = Piece(self.stream, at, self.line, payload)
            self.line += _feeds(payload) - added if self._numbered else 0
            return [piece]
        out: list[Piece] = []
        raw = np.frombuffer(payload, np.uint8)
        ends = np.flatnonzero((raw == 10) | (raw == 13))
        starts = np.concatenate(([0], ends[:-1] + 1))
        done = 0
        for i in np.flatnonzero(ends - starts > RECORD_MAX):
            start, end = int(starts[i]), int(ends[i])
            if done < start:
                out.append(Piece(self.stream, at + done, self.line, payload[done:start]))
                self.line += payload.count(b"\n", done, start)
            short = payload[start : start + SIDE_MAX] + GIANT_MARK + payload[end - SIDE_MAX : end] + b"\n"
            out.append(Piece(self.stream, at + start, self.line, short, True))
            self.giants += 1
            self.line += payload[end] == 10
            done = end + 1
        if done < len(payload):
            out.append(Piece(self.stream, at + done, self.line, payload[done:]))
            self.line += payload.count(b"\n", done) - added
        return out


def _feeds(payload: bytes) -> int:
    """Line feeds in a payload: numpy, if it is there, counts a large one more than twice as fast as `bytes.count`."""
    if len(payload) < SIDE_MAX or not loaded():
        return payload.count(b"\n")
    return int(np.count_nonzero(np.frombuffer(payload, np.uint8) == 10))


def _may_hold_giant(payload: bytes) -> bool:
    """A record over RECORD_MAX covers at least one aligned window of SIDE_MAX bytes without a line end."""
    return any(
        payload.find(b"\n", k, k + SIDE_MAX) < 0 and payload.find(b"\r", k, k + SIDE_MAX) < 0
        for k in range(0, len(payload) - SIDE_MAX, SIDE_MAX)
    )


def clean(payload: bytes) -> bytes:
    """The view patterns see: CR as LF, no NUL bytes, no terminal escapes. Same number of line ends as the payload."""
    if b"\r" in payload:
        payload = payload.replace(b"\r", b"\n")
    if b"\0" in payload:
        payload = payload.translate(None, b"\0")
    if b"\x1b" in payload:
        payload = ESCAPES.sub(b"", payload)
    return payload


@dataclass
class Batch:
    """Pieces of many streams in one buffer. The index is made only when something needs it."""

    pieces: list[Piece] = field(default_factory=list)
    size: int = 0

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.size += len(piece.payload)

    @cached_property
    def cleaned(self) -> list[bytes]:
        return [clean(p.payload) for p in self.pieces]

    @cached_property
    def buffer(self) -> bytes:
        return self.cleaned[0] if len(self.cleaned) == 1 else b"".join(self.cleaned)

    @cached_property
    def ends(self) -> I64:
        """Positions of record ends in the buffer."""
        return np.flatnonzero(np.frombuffer(self.buffer, np.uint8) == 10)

    @cached_property
    def starts(self) -> I64:
        return np.concatenate((np.zeros(1, np.int64), self.ends[:-1] + 1)) if len(self.ends) else self.ends

    @cached_property
    def bounds(self) -> I64:
        """Start of each piece in the buffer, plus the end."""
        return np.cumsum([0, *(len(c) for c in self.cleaned)], dtype=np.int64)

    def piece_of(self, records: I64) -> I64:
        return np.searchsorted(self.bounds, self.starts[records], side="right") - 1

    def place(self, records: I64) -> tuple[I64, I64, I64]:
        """stream number, raw offset and line of each record (sorted record numbers)."""
        which = self.piece_of(records)
        stream = np.array([p.stream for p in self.pieces], np.int64)[which]
        offset = np.empty(len(records), np.int64)
        line = np.empty(len(records), np.int64)
        cuts = (
            (which[1:] != which[:-1]).nonzero()[0] + 1
        ).tolist()  # records are sorted, so those of a piece stand together
        for lo, hi in zip([0, *cuts], [*cuts, len(which)], strict=True) if len(which) else ():
            i = int(which[lo])
            piece, mine = self.pieces[i], records[lo:hi]
            first = int(np.searchsorted(self.starts, self.bounds[i]))
            if piece.giant or len(self.cleaned[i]) != len(piece.payload) or b"\r" in piece.payload:
                offset[lo:hi], line[lo:hi] = _place_in(piece, mine - first)
            else:  # as it was written, so this index is its own
                offset[lo:hi] = piece.offset + (self.starts[mine] - self.bounds[i])
                line[lo:hi] = piece.line + (mine - first)
        return stream, offset, line

    def text(self, record: int) -> bytes:
        return self.buffer[int(self.starts[record]) : int(self.ends[record])]


def _place_in(piece: Piece, records: I64) -> tuple[I64, I64]:
    """Raw offset and line of records numbered within one piece, whose bytes are not those that were read."""
    if piece.giant:
        return np.full(len(records), piece.offset), np.full(len(records), piece.line)
    raw = np.frombuffer(piece.payload, np.uint8)
    feeds = raw == 10
    ends = np.flatnonzero(feeds | (raw == 13))
    line = np.concatenate((np.zeros(1, np.int64), np.cumsum(feeds[ends[:-1]])))[records]
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
    return piece.offset + starts[records], piece.line + line
