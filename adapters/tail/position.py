"""How far a path has been read, as plain values to be kept with the rows derived from it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from defib.adapters.tail.guard import Guard
from defib.adapters.tail.reading import State
from defib.engine.ports import Marked
from defib.engine.words import JobKey, StreamFacts


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


SOURCE = "tail"


Where = tuple[
    tuple[Position, ...], bool, StreamFacts | None, int | None
]  # positions, closed?, what the scheduler said, owner


def to_mark(
    positions: tuple[Position, ...],
    closed: bool,
    said: StreamFacts | None = None,
    owner: int | None = None,
    job: JobKey | None = None,
) -> bytes:
    """The positions of one path as they are kept; closed: its job was closed, so it is not followed any more. said, owner: of a log that the
    scheduler named, as it named it. job: which was closed."""
    told = [
        {
            "generation": p.generation, "offset": p.offset, "line": p.line, "ino": p.ino, "born_ns": p.born_ns, "role": p.role,
            "newest": p.newest, "guard": _guard(p.guard),
        }
        for p in positions
    ]  # fmt: skip
    of = job and [*of_job(job)]
    named = said and [
        [*of_job(said.job)],
        said.job_name,
        said.node,
        said.rank,
        said.local_rank,
        said.restart_count,
        said.attempt,
        said.channel,
        said.user,
    ]
    extra = {"job": of, "said": named, "owner": owner if named else None}
    return orjson.dumps({"closed": closed, "positions": told, **{k: v for k, v in extra.items() if v is not None}})


def of_job(job: JobKey) -> tuple[str | None, str | None, str | None, int | None, str]:
    """A job as plain values, in the order of its fields."""
    return job.cluster, job.job_id, job.array_task, job.submit_time_us, job.place


def named(mark: bytes) -> tuple[StreamFacts, int | None] | None:
    """What the scheduler said of a log that was open, and whose it must be; None where it was only found."""
    kept = orjson.loads(mark)
    if "said" not in kept:
        return None
    job, *rest = kept["said"]
    return StreamFacts(JobKey(*job), *rest), kept.get("owner")


def from_mark(path: bytes, mark: bytes) -> tuple[tuple[Position, ...], bool]:
    """What `to_mark` was given. Raises ValueError, KeyError."""
    said = orjson.loads(mark)
    positions = tuple(Position(path, **{**p, "guard": _unguard(p["guard"])}) for p in said["positions"])
    return positions, bool(said["closed"])


def closed_job(mark: bytes) -> JobKey | None:
    """The job that was closed, where the mark names it."""
    of = orjson.loads(mark).get("job")
    return JobKey(*of) if of else None


@dataclass(slots=True)
class Marks:
    """Which paths may have moved, and what was last said of each."""

    _touched: dict[bytes, None] = field(default_factory=dict)
    _said: dict[bytes, Where] = field(default_factory=dict)

    def touch(self, path: bytes) -> None:
        """The path was looked at."""
        self._touched[path] = None

    def changed(self, where: Callable[[bytes], Where], job: Callable[[bytes], JobKey | None]) -> list[Marked]:
        """Marks of the paths that have moved since they were last told."""
        out = []
        for path in self._touched:
            now = where(path)
            if now[0] and self._said.get(path) != now:
                self._said[path] = now
                if now[1]:  # a closed path is told once and remembered no more
                    del self._said[path]
                out.append(Marked(SOURCE, path, to_mark(*now, job(path))))
        self._touched.clear()
        return out


def _guard(g: Guard) -> dict[str, Any]:
    raw = {"last": g.last, "digest": g.digest, "head": g.head}
    return {
        "end": g.end,
        "length": g.length,
        "before": g.before,
        **{k: base64.b64encode(v).decode("ascii") for k, v in raw.items() if v},
    }


def _unguard(said: dict[str, Any]) -> Guard:
    raw = {k: base64.b64decode(said.get(k, "")) for k in ("last", "digest", "head")}
    return Guard(said["end"], said["length"], raw["last"], raw["digest"], said["before"], raw["head"])
