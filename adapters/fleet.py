"""The logs of whatever a scheduler runs, as one live source: what it says of jobs and what their logs hold enter the same fold.

In: a live source of logs that can be told what to follow, a scheduler that is asked without waiting, the roster. Out: the items of the logs
with `JobTold` before the tick, in the order of the reads. Always holds: the logs are never waited for by the scheduler nor the other way
round; a scheduler that has not answered for `STALE_US` is believed no longer (its last word is taken back, not turned into an end); a job
that ended is closed once, whether or not it ever had a log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from defib.engine.jobs import ClusterRead
from defib.engine.ports import JobClosed, JobTold, Opened, SourceItem, Ticked
from defib.engine.roster import Follow, Item, Odd, Over, Roster, Vanished
from defib.engine.schedule import RUNNING
from defib.engine.words import JobKey, JobState, StreamFacts

STALE_US = 300_000_000  # several reads and a controller's fail-over
UNLOGGED_US = 120_000_000  # after its end, how long a job's log may still appear
WILD = re.compile(rb"[*?\[]")


class Logs(Protocol):
    """A live source of logs: a tail source, or the readers of all mounts."""

    behind: bool

    @property
    def unread(self) -> dict[bytes, str]: ...

    def assign(self, path: bytes, facts: StreamFacts, owner: int | None = None) -> None: ...
    def running(self, job: JobKey, yes: bool = True) -> None: ...
    def over(self, job: JobKey) -> None: ...
    def poll(self) -> list[SourceItem] | None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class Asked(Protocol):
    """A scheduler."""

    def poll(self, now_us: int) -> ClusterRead | None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class Fleet:
    """Both together. say: hears what a person should know. heard: hears every read (for whoever decides by them). logged: jobs whose logs
    were open when an earlier watch ended."""

    logs: Logs
    scheduler: Asked
    roster: Roster
    say: Callable[[str], None] = lambda text: None
    heard: Callable[[ClusterRead], None] = lambda read: None
    logged: Iterable[JobKey] = ()
    good_us: int | None = None  # when the last good read was begun
    stale: bool = False
    unfollowed: dict[JobKey, str] = field(default_factory=dict)  # jobs without a log that may be read, and why
    _told: dict[JobKey, JobTold] = field(default_factory=dict)
    _open: set[JobKey] = field(default_factory=set)
    _over: dict[JobKey, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open |= set(self.logged)

    @property
    def behind(self) -> bool:
        return self.logs.behind

    @property
    def unread(self) -> dict[bytes, str]:
        """Paths that are not followed, and why. Jobs without a log to follow are in `unfollowed`."""
        return self.logs.unread

    def poll(self) -> list[SourceItem] | None:
        """The logs' items, with the scheduler's word before the tick."""
        items = self.logs.poll()
        if not items or not isinstance(items[-1], Ticked):
            return items
        now = items[-1].at_us
        for item in items:
            if isinstance(item, Opened):
                self._open.add(item.facts.job)
            elif isinstance(item, JobClosed):
                self._forget(item.job)
        more: list[SourceItem] = []
        read = self.scheduler.poll(now)
        if read is not None:
            self._take(read, now, more)
        elif self.good_us is not None and not self.stale and now - self.good_us > STALE_US:
            self._doubt(more)
        self._close(now, more)
        return [*items[:-1], *more, items[-1]]

    def stop(self) -> None:
        self.logs.stop()

    def close(self) -> None:
        self.logs.close()
        self.scheduler.close()

    # what a read means

    def _take(self, read: ClusterRead, now: int, out: list[SourceItem]) -> None:
        self.heard(read)
        if read.ok:
            self.good_us = read.at_us
            if self.stale:
                self.stale = False
                self.say("the scheduler answers again")
                out += self._told.values()
        for item in self.roster.take(read):
            self._one(item, now, out)

    def _one(self, item: Item, now: int, out: list[SourceItem]) -> None:
        match item:
            case JobTold(job, state):
                self._told[job] = item
                self._over.pop(job, None)
                self.logs.running(job, state.state in RUNNING)
                if not self.stale:
                    out.append(item)
            case Follow(job, streams, uid, because):
                self.unfollowed.pop(job, None)
                if not streams:
                    self.unfollowed[job] = because
                for place, facts in streams:
                    self.logs.assign(place.path if place.glob else escaped(place.path), facts, uid)
            case Over(job) | Vanished(job):
                self._over[job] = now
                self.logs.over(job)
                if isinstance(item, Vanished):
                    self.say(f"job {job.job_id}{f'_{job.array_task}' if job.array_task else ''}: {item.because}")
            case Odd(text):
                self.say(text)

    def _doubt(self, out: list[SourceItem]) -> None:
        """Too long without an answer: what was said of jobs that ran may hold no more."""
        self.stale = True
        self.say(f"the scheduler has not answered for {STALE_US // 1_000_000} s: jobs are judged by their logs alone")
        unknown = JobState("", reason="the scheduler does not answer")
        for told in self._told.values():
            if told.state.state in RUNNING:
                again = JobState("", False, unknown.reason, told.state.restart_count, nodes=told.state.nodes)
                out.append(JobTold(told.job, again, told.name))

    def _close(self, now: int, out: list[SourceItem]) -> None:
        """Jobs that ended and of which no log is open any more, or ever was."""
        for job in [j for j, at in self._over.items() if j not in self._open and now - at >= UNLOGGED_US]:
            out.append(JobClosed(job))
            self._forget(job)

    def _forget(self, job: JobKey) -> None:
        self._open.discard(job)
        self._over.pop(job, None)
        self._told.pop(job, None)
        self.unfollowed.pop(job, None)


def escaped(path: bytes) -> bytes:
    """A path whose characters stand for themselves only."""
    return WILD.sub(lambda m: b"[" + m.group() + b"]", path)
