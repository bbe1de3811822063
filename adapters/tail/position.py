"""How far a path has been read, as plain values to be kept with the rows derived from it."""

from __future__ import annotations

from dataclasses import dataclass, field

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
