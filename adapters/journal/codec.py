"""What a poll brought, as the payload of one record, and back.

In: the events the engine took in, the marks of the source, how far streams were taken in. Out: bytes. Always holds: `decode(encode(x))`
equals x; a payload written by an older defib decodes as long as its table version is in `TABLES`; fields a reader does not know are passed over.

A payload is zstd over: length of a JSON document (4), the document, then the record batches of the tables it counts, without their schemas
(those of `TABLES`, by version). Bytes that are not ASCII stand in the document as base64.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import zstandard

from defib.engine.core import Event, JobEnded, JobSeen, Observed, StreamEnded, StreamLooked, StreamOpened, Tick
from defib.engine.observe import Observation
from defib.engine.ports import Marked, Reached
from defib.engine.words import PROGRESS, SIGNALS, JobKey, JobState, StoreError, StreamFacts, StreamId

EVENTS = "events"  # the kind of these records
VERSION = 1
# Columns of the tables by version. When SIGNALS or PROGRESS change, the old ones are written out here under the old number.
TABLES = {1: (SIGNALS, PROGRESS)}
LENGTH = struct.Struct("<I")
PAYLOAD_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class Commit:
    """What one poll brought."""

    events: list[Event] = field(default_factory=list)
    marks: list[Marked] = field(default_factory=list)
    reached: list[Reached] = field(default_factory=list)


def encode(events: Sequence[Event], marks: Sequence[Marked], reached: Sequence[Reached]) -> bytes:
    """The payload of a record of kind `EVENTS`."""
    blobs: list[bytes] = []
    document = {
        "v": VERSION,
        "events": [_event(e, blobs) for e in events],
        "marks": [[m.source, _text(m.key), _text(m.mark)] for m in marks],
        "reached": [[r.stream, r.read, r.offset, r.line, r.giants, _text(r.tail)] for r in reached],
        "blobs": [len(b) for b in blobs],
    }
    head = _json(document)
    return zstandard.ZstdCompressor(level=3).compress(b"".join((LENGTH.pack(len(head)), head, *blobs)))


def decode(payload: bytes) -> Commit:
    """What `encode` was given. Raises StoreError for a payload of a newer defib, or one that is none."""
    try:
        raw = zstandard.ZstdDecompressor().decompress(payload, max_output_size=PAYLOAD_MAX)
        (length,) = LENGTH.unpack_from(raw)
        document = _unjson(raw[LENGTH.size : LENGTH.size + length])
        if document["v"] not in TABLES:
            raise StoreError(f"the journal was written by a newer defib (events of version {document['v']}); upgrade")
        blobs, at = [], LENGTH.size + length
        for size in document["blobs"]:
            blobs.append(raw[at : at + size])
            at += size
        schemas = TABLES[document["v"]]
        return Commit(
            [_unevent(e, blobs, schemas) for e in document["events"]],
            [Marked(source, _bytes(key), _bytes(mark)) for source, key, mark in document["marks"]],
            [Reached(n, read, at, line, giants, _bytes(t)) for n, read, at, line, giants, t in document["reached"]],
        )
    except (zstandard.ZstdError, struct.error, ValueError, KeyError, TypeError, IndexError, pa.ArrowInvalid) as e:
        raise StoreError(f"a record of the journal cannot be understood: {e}") from e


def _event(e: Event, blobs: list[bytes]) -> list[Any]:
    match e:
        case StreamOpened(stream, name, facts):
            return ["opened", stream, name.path, name.generation, _plain(facts)]
        case Observed(seen, grown):
            tables = [_batch(seen.signals, SIGNALS), _batch(seen.progress, PROGRESS)]
            at = len(blobs)
            blobs += [b for b in tables if b]
            which = [bool(b) for b in tables]
            columns = [list(grown), *(list(c) for c in zip(*grown.values(), strict=True))] if grown else []
            return ["observed", at, which, columns, {str(n): sorted(f) for n, f in seen.frameworks.items()}]
        case StreamEnded(stream, offset, line, tail, notes):
            return ["ended", stream, offset, line, tail, notes]
        case JobEnded(job):
            return ["over", _plain(job)]
        case StreamLooked(stream, trouble):
            return ["looked", stream, trouble]
        case JobSeen(job, state, name):
            return ["seen", _plain(job), _plain(state), name]
        case Tick(at_us):
            return ["tick", at_us]


def _unevent(said: list[Any], blobs: list[bytes], schemas: tuple[pa.Schema, pa.Schema]) -> Event:
    kind, *v = said
    if kind == "opened":
        job = JobKey(**_known(JobKey, v[3].pop("job")))
        return StreamOpened(v[0], StreamId(v[1], v[2]), StreamFacts(job, **_known(StreamFacts, v[3])))
    if kind == "observed":
        at, which, columns, frameworks = v
        signals = _table(blobs[at] if which[0] else b"", schemas[0], SIGNALS)
        progress = _table(blobs[at + which[0]] if which[1] else b"", schemas[1], PROGRESS)
        grown = {n: (r, w, k) for n, r, w, k in zip(*columns, strict=True)} if columns else {}
        return Observed(Observation(signals, progress, {int(n): frozenset(f) for n, f in frameworks.items()}), grown)
    if kind == "ended":
        return StreamEnded(v[0], v[1], v[2], tuple(v[3]), tuple(v[4]))
    if kind == "over":
        return JobEnded(JobKey(**_known(JobKey, v[0])))
    if kind == "looked":
        return StreamLooked(v[0], v[1])
    if kind == "seen":
        state = _known(JobState, v[1])
        state["nodes"] = tuple(state.get("nodes", ()))
        return JobSeen(JobKey(**_known(JobKey, v[0])), JobState(**state), v[2])
    if kind == "tick":
        return Tick(v[0])
    raise ValueError(f"unknown event {kind}")


def _batch(table: pa.Table, schema: pa.Schema) -> bytes:
    """The rows of a table without its schema; nothing where there are none."""
    if not table.num_rows:
        return b""
    batches = table.select(schema.names).cast(schema).combine_chunks().to_batches()
    assert len(batches) == 1, "combined"
    return batches[0].serialize().to_pybytes()  # type: ignore[no-any-return]


def _table(raw: bytes, written: pa.Schema, now: pa.Schema) -> pa.Table:
    """Rows under today's columns: those that are new are null."""
    if not raw:
        return now.empty_table()
    table = pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(raw), written)])
    if written.equals(now):
        return table
    have = set(written.names)
    return pa.table(
        {f.name: table.column(f.name).cast(f.type) if f.name in have else pa.nulls(len(table), f.type) for f in now},
        schema=now,
    )


def _plain(value: Any) -> dict[str, Any]:
    """A dataclass without the fields that have their default."""
    out = {}
    for f in dataclasses.fields(value):
        v = getattr(value, f.name)
        if v != f.default:
            out[f.name] = _plain(v) if dataclasses.is_dataclass(v) else v
    return out


def _known(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Only the fields this version has."""
    names = {f.name for f in dataclasses.fields(kind)}
    return {k: v for k, v in values.items() if k in names}


def _text(raw: bytes) -> str:
    return "a" + raw.decode("ascii") if raw.isascii() else "b" + base64.b64encode(raw).decode("ascii")


def _bytes(text: str) -> bytes:
    return text[1:].encode("ascii") if text.startswith("a") else base64.b64decode(text[1:])


def _json(document: Any) -> bytes:
    """A lone surrogate (a name that was no UTF-8) is beyond orjson; the standard library escapes it."""
    try:
        return orjson.dumps(document)
    except TypeError:
        return json.dumps(document, separators=(",", ":")).encode("ascii")


def _unjson(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return json.loads(raw)
