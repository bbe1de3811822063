"""How far a path has been read, as plain values to be kept with the rows derived from it, and as bytes (`mark`, `position`)."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from defib.adapters.tail.guard import Guard
from defib.adapters.tail.reading import State


@dataclass(frozen=True, slots=True)
class Position:
    """One generation of a path. offset, line: where its first unfinished line begins, and so where reading goes on. guard: what stands
    before the last byte that was read (at most 64 bytes and a digest). role: path, or renamed or copy while an older file is drained.
    newest: the highest generation the path has had.

    Resuming compares the guard with the file: a file that changed meanwhile becomes another generation, and what was missed is told.
    """

    path: bytes
    generation: int
    offset: int
    line: int = 1
    guard: Guard = field(default_factory=Guard)
    ino: int | None = None
    born_ns: int | None = None
    role: str = "path"
    newest: int = 0

    def state(self) -> State:
        """Reading goes on at the beginning of the unfinished line, which is handed over again as a whole."""
        return State(self.generation, self.offset, self.guard, self.offset, self.line)


def key(p: Position) -> bytes:
    """What a mark is kept under: the path and the generation, between them a NUL (no path holds one)."""
    return p.path + b"\0" + str(p.generation).encode()


def mark(p: Position) -> bytes:
    """A position as bytes to be kept; `position` makes it again."""
    g = p.guard.compact()
    guard = [g.end, g.length, _text(g.last), g.digest.hex(), g.before, _text(g.head)]
    return orjson.dumps(
        [_text(p.path), p.generation, p.offset, p.line, guard, p.ino, p.born_ns, p.role, p.newest]
    )  # fmt: skip


def position(kept: bytes) -> Position:
    """What `mark` made. Raises ValueError where the bytes are something else."""
    try:
        path, generation, offset, line, (end, length, last, digest, before, head), ino, born_ns, role, newest = (
            orjson.loads(kept)
        )
        guard = Guard(end, length, _bytes(last), bytes.fromhex(digest), before, _bytes(head))
        return Position(_bytes(path), generation, offset, line, guard, ino, born_ns, role, newest)
    except (TypeError, AttributeError) as e:
        raise ValueError("no mark of a position") from e


def _text(raw: bytes) -> str:
    return raw.decode("latin-1")  # every byte is a character of its own


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
