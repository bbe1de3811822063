"""The scheduler as a part of a watch: its reads become words for the engine and assignments for the readers of logs.

In: the observer's clock. Out: `JobTold` items, to stand before a tick. Always holds: nothing here waits; a read that failed changes nothing;
jobs of users or partitions that are not wanted are never followed; a job without any log that was seen is closed when it is over; a
scheduler that has not answered for `STALE_US` is believed no longer: its last word is taken back, not turned into an end.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from defib.adapters.slurm import paths
from defib.adapters.slurm.reader import Scheduler
from defib.engine.jobs import TERMINAL_STATES, ClusterRead, JobFacts, LogPath
from defib.engine.ports import JobClosed, JobTold, SourceItem
from defib.engine.roster import Follow, Odd, Over, Roster, Vanished
from defib.engine.words import JobKey, JobState, StreamFacts

STALE_US = 300_000_000  # several reads, and a controller's fail-over
ABSENT_US = 60_000_000
ABSENT_READS = 3
QUIET_STATES = frozenset(
    ("PENDING", "SUSPENDED", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
)


class Follows(Protocol):
    """Whoever reads logs."""

    def assign(self, path: bytes, facts: StreamFacts, owner: int | None = None) -> None: ...

    def running(self, job: JobKey, yes: bool = True) -> None: ...

    def over(self, job: JobKey) -> None: ...

    def reads(self, job: JobKey) -> bool: ...


@dataclass(slots=True)
class Cluster:
    """users, partitions: whose jobs; none: everybody's. tell(event, fields): what a person should know. heard: gets every read. before: jobs
    an earlier watch left open, with what the scheduler said last."""

    scheduler: Scheduler
    roster: Roster
    follows: Follows
    users: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    tell: Callable[[str, dict[str, Any]], None] = lambda event, fields: None
    heard: Callable[[ClusterRead], None] = lambda read: None
    alarm: Callable[[str], None] = lambda text: None  # what a person must know at once
    before: dict[JobKey, JobState] = field(default_factory=dict)
    jobs: int = 0
    reads: int = 0
    failures: int = 0
    ok_us: int | None = None
    unseen: dict[JobKey, str] = field(default_factory=dict)  # jobs whose logs nobody can see, and why
    stale: bool = False
    _told: dict[JobKey, JobTold] = field(default_factory=dict)
    _absent: tuple[int, int] | None = None  # good reads so far that may lack jobs of before, and the first of them

    def turn(self, now_us: int) -> list[SourceItem]:
        """Take an answer if there is one."""
        read = self.scheduler.poll(now_us)
        if read is None:
            return self._doubt(now_us)
        self.reads += 1
        self.heard(read)
        out: list[SourceItem] = []
        if read.ok:
            self.ok_us, self.jobs = read.at_us, len(read.jobs)
            if self.stale:
                self.stale = False
                self.tell("the scheduler answers again", {})
                out += self._told.values()
        else:
            self.failures += 1
            if self.reads == 1:
                why = read.troubles[0] if read.troubles else "the scheduler could not be read"
                self.alarm(
                    f"{why}; jobs are followed as soon as it answers ('defib slurm look' tells what is asked of it)"
                )
        for item in self.roster.take(self._wanted(read)):
            self._take(item, out)
        if read.ok and self.before:
            self._miss(read, out)
        return out

    def _doubt(self, now_us: int) -> list[SourceItem]:
        """Too long without an answer: what was said of jobs that ran may hold no more."""
        if self.ok_us is None:
            self.ok_us = now_us
        if self.stale or now_us - self.ok_us <= STALE_US:
            return []
        self.stale = True
        why = f"the scheduler has not answered for {STALE_US // 1_000_000} s"
        self.tell(f"{why}: jobs are judged by their logs alone", {})
        running = [t for t in self._told.values() if t.state.state not in QUIET_STATES]
        return [JobTold(t.job, replace(t.state, state="", held=False, reason=why), t.name) for t in running]

    def _miss(self, read: ClusterRead, out: list[SourceItem]) -> None:
        """Jobs that an earlier watch left open and the scheduler no longer knows: they ended while nobody looked."""
        for job in [j for j in self.before if j in self._told]:
            del self.before[job]
        count, since = self._absent or (0, read.at_us)
        self._absent = (count + 1, since)
        if count + 1 < ABSENT_READS or read.at_us - since <= ABSENT_US:
            return
        why = "the scheduler no longer knows it; it ended while nobody watched"
        for job, state in self.before.items():
            if state.state not in TERMINAL_STATES:
                state = replace(state, state="", held=False, reason=why)
                self.tell("the scheduler no longer knows a job", {"job": job.job_id, "why": why})
            out.append(JobTold(job, state))
            self._end(job, out)
        self.before.clear()

    def _end(self, job: JobKey, out: list[SourceItem]) -> None:
        self._told.pop(job, None)
        self.follows.over(job)
        if not self.follows.reads(job):
            out.append(JobClosed(job))

    def close(self) -> None:
        self.scheduler.close()

    def status(self) -> dict[str, Any]:
        """For the status."""
        return {
            "form": self.scheduler.form or "no answer yet",
            "jobs": self.jobs,
            "reads": self.reads,
            "failed": self.failures,
            "without_logs": len(self.unseen),
            "believed": self.reads > self.failures and not self.stale,
        }

    def _wanted(self, read: ClusterRead) -> ClusterRead:
        if not self.users and not self.partitions:
            return read
        mine = tuple(j for j in read.jobs if self._mine(j))
        return replace(read, jobs=mine)

    def _mine(self, j: JobFacts) -> bool:
        fits = not self.partitions or bool(self.partitions & set(j.partition.split(",")))
        return fits and (not self.users or j.user in self.users)

    def _take(self, item: Any, out: list[SourceItem]) -> None:
        match item:
            case JobTold(job, state):
                self._told[job] = item
                if not self.stale:
                    out.append(item)
                self.follows.running(job, state.state not in QUIET_STATES)
            case Follow(job, streams, uid, because):
                self.unseen.pop(job, None)
                if because:
                    self.unseen[job] = because
                    self.tell("the logs of a job cannot be followed", {"job": job.job_id, "why": because})
                for log, facts in streams:
                    self.follows.assign(_watch(log), facts, uid)
            case Over(job, because) | Vanished(job, because):
                self.unseen.pop(job, None)
                if isinstance(item, Vanished):
                    self.tell("the scheduler no longer knows a job", {"job": job.job_id, "why": because})
                self._end(job, out)
            case Odd(text):
                self.tell("the scheduler says something odd", {"what": text})


def _watch(log: LogPath) -> bytes:
    return log.path if log.glob else glob.escape(log.path)


def places(
    templates: Iterable[str], roots: Iterable[str]
) -> Callable[[JobFacts], tuple[tuple[LogPath, ...], tuple[str, ...]]]:
    """Where a job writes, as the roster asks."""
    known, allowed = tuple(templates), tuple(map(os.fsencode, roots))

    def of(facts: JobFacts) -> tuple[tuple[LogPath, ...], tuple[str, ...]]:
        found = paths.logs(facts, known, allowed)
        return found.paths, found.troubles

    return of
