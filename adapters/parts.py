"""What a share of a back-fill came to, as a file: the effects of some jobs in their order, to be applied by one process later.

In: effects as the engine gives them. Out: the same effects, read back. Always holds: a part that was not written to its end, or of which a
byte is another one now, is refused by its name; what is read builds plain records of the engine's own types and nothing else, so a part
from anybody's hands cannot run code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import io
import json
import pickle
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from defib.adapters.logfiles import Unread
from defib.engine.core import Append
from defib.engine.words import SourceError

MAGIC = b"defib part 2\n"
FRAME = struct.Struct("<cQ16s")  # kind, bytes, digest of everything up to and with the body
FRAME_MAX = 1 << 32
EFFECT, ROWS, END = b"e", b"r", b"z"
ROOMS = ("defib.engine.words", "defib.engine.core", "defib.engine.jobs")


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """Which share a part is. rules: hash of the rulebook; logs: digest of the list of all logs; index from 0."""

    rules: str
    logs: str
    index: int = 0
    of: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """What reading a share came to. size: bytes read."""

    files: int
    size: int
    unread: tuple[Unread, ...]


class PartWriter:
    """A sink that writes effects to a file; `end` makes it whole."""

    def __init__(self, out: BinaryIO, share: Share) -> None:
        self._out = out
        head = MAGIC + json.dumps(dataclasses.asdict(share)).encode() + b"\n"
        self._digest = _digest(b"", head, b"")
        out.write(head)

    def apply(self, effects: Sequence[object]) -> None:
        """Write them in order; tables as Arrow streams."""
        for e in effects:
            if isinstance(e, Append):
                stream = io.BytesIO()
                with pa.ipc.new_stream(stream, e.rows.schema) as writer:
                    writer.write_table(e.rows)
                self._frame(ROWS, e.table.encode() + b"\n" + stream.getvalue())
            else:
                self._frame(EFFECT, pickle.dumps(e, protocol=5))

    def end(self, done: Done) -> None:
        """The last word of a part."""
        self._frame(END, json.dumps(dataclasses.asdict(done)).encode())
        self._out.flush()

    def _frame(self, kind: bytes, body: bytes) -> None:
        self._digest = _digest(self._digest, kind, body)
        self._out.write(FRAME.pack(kind, len(body), self._digest))
        self._out.write(body)


class Part:
    """A part that is read. `effects` gives them in order; `done` is known after the last one. Raises SourceError for what is no whole part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = Done(0, 0, ())
        try:
            with path.open("rb") as f:
                self.share = self._head(f)
                self._begin = f.tell()
        except OSError as e:
            raise SourceError(f"{path}: {e.strerror}") from e

    def _head(self, f: BinaryIO) -> Share:
        if f.read(len(MAGIC)) != MAGIC:
            raise SourceError(f"{self.path}: no part of a replay (defib replay --part writes them)")
        try:
            return Share(**json.loads(f.readline(1 << 16)))
        except (ValueError, TypeError) as e:
            raise SourceError(f"{self.path}: the head of this part cannot be read") from e

    def effects(self) -> Iterator[object]:
        """Every effect in the order in which it was written."""
        with self.path.open("rb") as f:
            digest = _digest(b"", f.read(self._begin), b"")
            while (head := f.read(FRAME.size)) and len(head) == FRAME.size:
                kind, size, told = FRAME.unpack(head)
                body = f.read(size) if size < FRAME_MAX else b""
                if len(body) != size:
                    break
                digest = _digest(digest, kind, body)
                if digest != told:
                    raise SourceError(f"{self.path}: a damaged part; make it again")
                try:
                    if kind == END:
                        raw = json.loads(body)
                        self.done = Done(raw["files"], raw["size"], tuple(Unread(**u) for u in raw["unread"]))
                        return
                    yield _effect(kind, body)
                except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowInvalid, pickle.UnpicklingError) as e:
                    raise SourceError(f"{self.path}: a damaged part; make it again") from e
        raise SourceError(f"{self.path}: this part was not written to its end; make it again")


def _digest(before: bytes, kind: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(before + kind + body, digest_size=16).digest()


def _effect(kind: bytes, body: bytes) -> object:
    if kind == ROWS:
        table, _, stream = body.partition(b"\n")
        return Append(table.decode(), pa.ipc.open_stream(stream).read_all())
    if kind != EFFECT:
        raise ValueError("an unknown frame")
    return _Plain(io.BytesIO(body)).load()


class _Plain(pickle.Unpickler):
    """Builds the engine's records only: any other name in a part is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ROOMS and "." not in name:
            found = getattr(importlib.import_module(module), name, None)
            if isinstance(found, type) and dataclasses.is_dataclass(found):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a part")
