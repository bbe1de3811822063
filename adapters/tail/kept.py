"""What a source remembers of paths it does not follow now: how far they were read, and that their job was closed.

Always holds: an offset is not forgotten while its file can be found again; of files that are gone, the 100,000 that were closed last are
remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from defib.adapters.tail.body import Body
from defib.adapters.tail.position import Position
from defib.engine.words import JobKey, StreamFacts

GONE_MAX = 100_000
INODES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Assigned:
    """What a scheduler says of a log, or of all logs of a glob."""

    facts: StreamFacts
    owner: int | None


@dataclass(slots=True)
class Kept:
    """saved: path -> positions; closed: paths of closed jobs, followed again only if the job runs again; inodes: of files that were followed."""

    saved: dict[bytes, list[Position]] = field(default_factory=dict)
    closed: dict[bytes, JobKey] = field(default_factory=dict)
    inodes: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _jobs: dict[JobKey, set[bytes]] = field(default_factory=dict)
    _shelf: dict[JobKey, dict[bytes, Assigned]] = field(default_factory=dict)

    def save(self, positions: Iterable[Position]) -> None:
        for p in positions:
            self.saved.setdefault(p.path, []).append(p)

    def close(self, path: bytes, job: JobKey) -> None:
        self.closed[path] = job
        self._jobs.setdefault(job, set()).add(path)

    def shelve(self, job: JobKey, assigned: dict[bytes, Assigned]) -> None:
        """What a closed job had been assigned, until it runs again."""
        if assigned and job in self._jobs:
            self._shelf[job] = assigned

    def reopen(self, job: JobKey, assigned: dict[bytes, Assigned]) -> bool:
        """The job runs again; what it had is assigned again. Whether there were logs of it."""
        paths = self._jobs.pop(job, set())
        assigned |= self._shelf.pop(job, {})
        for path in paths:
            self.closed.pop(path, None)
        return bool(paths)

    def release(self, path: bytes) -> None:
        """The path is another job's now."""
        job = self.closed.pop(path, None)
        if job is not None:
            self._jobs[job].discard(path)
            if not self._jobs[job]:
                del self._jobs[job]
                self._shelf.pop(job, None)

    def remember(self, bodies: Iterable[Body]) -> None:
        """Files by number, so that another name of theirs is not followed as another log."""
        for body in bodies:
            if body.ino is not None:
                self.inodes[body.ino] = None
        while len(self.inodes) > INODES_MAX:
            self.inodes.popitem(last=False)

    def trim(self, there: Container[bytes]) -> list[bytes]:
        """Forget the oldest closed paths that are not there any more, if there are too many. Which were forgotten."""
        out: list[bytes] = []
        if len(self.closed) > GONE_MAX:
            for path in [p for p in self.closed if p not in there][: len(self.closed) - GONE_MAX]:
                self.release(path)
                self.saved.pop(path, None)
                out.append(path)
        return out
