"""What a reader process and the main process say to each other, as bytes on a stream socket.

In and out: the items of `engine.ports` and lists of plain values. Frame: length (4 bytes), kind (1 byte), body. `D`: bytes of a log, raw
behind their stream number; `J`: JSON; `E`: JSON that ends a poll. Always holds: whatever stands in names and paths comes out the same (bytes
are written as Latin-1), nothing is ever executed by being read, and a frame is at most 64 MiB.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from defib.engine.ports import Closed, Data, JobClosed, Looked, Marked, Opened, Skipped, SourceItem
from defib.engine.words import JobKey, StreamFacts, StreamId

HEAD = struct.Struct(">IB")
DATA = struct.Struct(">IQ")
FRAME_MAX = 64 * 1024 * 1024
D, J, E = b"DJE"
TEXT_MAX = 64 * 1024  # of a name or a note


def pack(kind: int, value: Any) -> bytes:
    """One frame of plain values."""
    body = orjson.dumps(value)
    return HEAD.pack(len(body), kind) + body


def pack_items(items: Iterable[SourceItem]) -> Iterator[bytes]:
    """Items in their order; those without bytes of a log share frames."""
    rest: list[list[Any]] = []
    for item in items:
        if isinstance(item, Data):
            if rest:
                yield pack(J, rest)
                rest = []
            yield HEAD.pack(DATA.size + len(item.data), D) + DATA.pack(item.stream, item.read) + item.data
        elif (row := row_of(item)) is not None:
            rest.append(row)
    if rest:
        yield pack(J, rest)


class Unpacker:
    """Bytes as they come -> frames, whole ones only."""

    def __init__(self) -> None:
        self._held = bytearray()

    @property
    def held(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._held)

    def feed(self, data: bytes) -> list[tuple[int, Any]]:
        """(kind, body): a Data item for D, plain values for the others. Raises ValueError for what is no frame."""
        self._held += data
        out: list[tuple[int, Any]] = []
        at = 0
        while len(self._held) - at >= HEAD.size:
            length, kind = HEAD.unpack_from(self._held, at)
            if length > FRAME_MAX or kind not in (D, J, E):
                raise ValueError("no frame")
            end = at + HEAD.size + length
            if len(self._held) < end:
                break
            body = bytes(memoryview(self._held)[at + HEAD.size : end])
            out.append((kind, _data(body) if kind == D else orjson.loads(body)))
            at = end
        del self._held[:at]
        return out


def _data(body: bytes) -> Data:
    stream, read = DATA.unpack_from(body)
    return Data(stream, body[DATA.size :], read)


def row_of(item: SourceItem) -> list[Any] | None:
    """An item without bytes of a log as plain values; None for one that a reader does not say (its ticks are not ours)."""
    match item:
        case Opened(stream, name, facts, size, offset, line):
            return ["opened", stream, text(name.path), name.generation, facts_row(facts), size, offset, line]
        case Skipped(stream, length):
            return ["skipped", stream, length]
        case Closed(stream, note):
            return ["closed", stream, note and text(note)]
        case JobClosed(job):
            return ["job-closed", job_row(job)]
        case Looked(stream, trouble):
            return ["looked", stream, trouble and text(trouble)]
        case Marked(source, key, mark):
            return ["marked", source, latin(key), latin(mark)]
        case _:
            return None


def item_of(row: list[Any]) -> SourceItem:
    """What `row_of` made. Raises ValueError."""
    match row:
        case ["opened", stream, path, generation, facts, size, offset, line]:
            return Opened(stream, StreamId(path, generation), facts_of(facts), size, offset, line)
        case ["skipped", stream, length]:
            return Skipped(stream, length)
        case ["closed", stream, note]:
            return Closed(stream, note)
        case ["job-closed", job]:
            return JobClosed(job_of(job))
        case ["looked", stream, trouble]:
            return Looked(stream, trouble)
        case ["marked", source, key, mark]:
            return Marked(source, raw(key), raw(mark))
        case _:
            raise ValueError("no item")


def job_row(job: JobKey) -> list[Any]:
    """A job's identity as plain values."""
    return [_opt(job.cluster), _opt(job.job_id), _opt(job.array_task), job.submit_time_us, text(job.place)]


def job_of(row: list[Any]) -> JobKey:
    """What `job_row` made."""
    return JobKey(*row)


def facts_row(f: StreamFacts) -> list[Any]:
    """Facts of a stream as plain values."""
    return [
        job_row(f.job), _opt(f.job_name), _opt(f.node), f.rank, f.local_rank, f.restart_count, f.attempt, _opt(f.channel), f.user,
    ]  # fmt: skip


def facts_of(row: list[Any]) -> StreamFacts:
    """What `facts_row` made."""
    return StreamFacts(job_of(row[0]), *row[1:])


def latin(data: bytes) -> str:
    """Bytes as text that JSON can hold."""
    return data.decode("latin-1")


def raw(held: str) -> bytes:
    """The bytes that `latin` took."""
    return held.encode("latin-1")


def text(said: str) -> str:
    """Text that JSON can hold: lone surrogates (bytes that were not UTF-8) become escapes."""
    return said[:TEXT_MAX].encode("utf-8", "backslashreplace").decode()


def _opt(said: str | None) -> str | None:
    return None if said is None else text(said)
