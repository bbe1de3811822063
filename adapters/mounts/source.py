"""The logs of all mounts as one live `Source`, each mount read by a process of its own.

In: what is to be watched and which folders are allowed (named paths, taken as text: nothing here touches a watched file system), what a scheduler
says about jobs, marks of an earlier run. Out: items, one `Ticked` at the end of every poll. Always holds:

* `poll` never waits longer than a tick, whatever a mount does; a reader that has not answered for `silent_us` has hung: all its streams are
  told as troubled (blind, never hung), nobody waits for it, and when it answers its streams go on;
* a reader that died is started again from the last marks, and nothing is handed over twice;
* what is named is decided by the table of mounts; links in it are followed by the reader of the mount they stand on, and what leads to another
  mount is handed on to that one's reader.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from defib.adapters.mounts.frames import job_row, raw
from defib.adapters.mounts.process import KILL_AFTER_US
from defib.adapters.mounts.router import Assignment, Reader, Router, Setup
from defib.adapters.mounts.streams import Streams
from defib.adapters.tail.clock import Clock
from defib.adapters.tail.mountinfo import table
from defib.adapters.tail.pace import SECOND, Pace
from defib.engine.ports import JobClosed, Marked, SourceItem, Ticked
from defib.engine.words import JobKey, StreamFacts

TABLE_US = 10 * SECOND
POLL_BYTES = 16 * 1024 * 1024  # taken in one poll
GATHER_US = SECOND // 20  # while there is more: many small batches cost the engine more than few large ones
STOP_US = 5 * SECOND  # how long the readers have to say their last words
GIVE_UP_US = Pace().give_up_us
UNANSWERED = "following ended without an answer of its reader"


class Mounts:
    """watches: files, folders, globs as bytes, absolute. roots: folders beneath which a scheduler may name logs. Processes are started at
    once; `begin` (before the first poll) says what they are to know."""

    def __init__(
        self,
        watches: Iterable[bytes],
        clock: Clock,
        roots: Iterable[bytes] = (),
        read_table: Callable[[], bytes] = table,
    ) -> None:
        self.behind = True
        self._clock, self._read_table = clock, read_table
        self._polled_us = self._ticked_us = self._table_us = clock.now_us()
        self._streams = Streams()
        self._router = Router(self._streams, read_table(), self._polled_us)
        self._stopping_us: int | None = None
        self._stopped = False
        for root in roots:
            self._router.add_root(root)
        for watch in watches:
            self._router.name(watch, "watch", watch)
        for reader in self.readers():
            reader.process.spawn(self._polled_us)

    def begin(self, setup: Setup, marks: Mapping[bytes, bytes] | None = None, clock: Clock | None = None) -> None:
        """The rules are there: reading begins. marks: of an earlier run, by path; clock: one that goes on where that run's stood."""
        self._router.setup, self._router.kept = setup, dict(marks or {})
        self._clock = clock or self._clock
        now = self._polled_us = self._ticked_us = self._table_us = self._router.now_us = self._clock.now_us()
        for reader in self.readers():
            reader.process.start(now)

    # what the outside says

    def assign(self, path: bytes, facts: StreamFacts, owner: int | None = None) -> None:
        """The scheduler names a log of a job (or a glob; names that hold wildcards are given escaped). owner: whose it must be."""
        self._router.assign(path, Assignment(facts, owner))

    def running(self, job: JobKey, yes: bool = True) -> None:
        """Whether the job runs, as the scheduler says."""
        if self._router.states.get(job) is not yes:
            self._router.states[job] = yes
            if yes:
                self._router.over.pop(job, None)
                for reader in self.readers():
                    reader.lane.buried.discard(job)
            self._router.tell_all(["running", job_row(job), yes])

    def over(self, job: JobKey) -> None:
        """The job has ended, as the scheduler says."""
        if job not in self._router.over:
            self._router.over[job] = self._clock.now_us()
            self._router.tell_all(["over", job_row(job)])

    def stop(self) -> None:
        """Every reader closes its streams; who does not answer is not waited for long."""
        if self._stopping_us is None:
            self._stopping_us = self._clock.now_us()
            self._router.stopping = True
            self._router.tell_all(["stop"])

    def close(self) -> None:
        """Let all readers go."""
        for reader in self.readers():
            reader.process.shut()
        for reader in self.readers():
            reader.process.end(0.0 if reader.told else 1.0)
        self._stopped = True

    # what the outside may ask

    def readers(self) -> list[Reader]:
        """One per mount."""
        return list(self._router.readers.values())

    def reads(self, job: JobKey) -> bool:
        """Whether a log of the job is open."""
        return self._streams.reads(job)

    @property
    def troubled(self) -> int:
        """Streams nobody can vouch for."""
        return sum(len(r.lane.open) if r.told else r.lane.troubled for r in self.readers())

    @property
    def unread(self) -> dict[bytes, str]:
        """What is not followed, and why."""
        return self._router.unread

    @property
    def bytes_read(self) -> int:
        """Of logs, since the start."""
        return self._streams.bytes_read

    # the port

    def poll(self) -> list[SourceItem] | None:
        if self._stopped:
            return None
        self._wait()
        now = self._clock.now_us()
        if now - self._polled_us > self._setup.silent_us // 2:
            for reader in self.readers():  # it was we who slept
                reader.process.heard_us = now
        self._polled_us = self._router.now_us = now
        if now - self._table_us >= TABLE_US:
            self._table_us = now
            self._router.table(self._read_table())
        items: list[SourceItem] = []
        for reader in self.readers():
            self._take(reader, items)
            self._care(reader, now, items)
        self.behind = any(_waits(r) for r in self.readers())
        if self._stopping_us is not None:
            self._last_words(now - self._stopping_us >= STOP_US, items)
        items.append(Ticked(now))
        self._ticked_us = now
        return items

    def _wait(self) -> None:
        """Until something whole has come, at most a tick; polls keep a distance from each other unless there is much to take."""
        pace, began = self._setup.pace, self._clock.now_us()
        first = self._ticked_us + pace.poll_us
        last = max(first, began + (pace.poll_us if self._stopping_us is not None else pace.tick_us))
        while True:
            now = self._clock.now_us()
            processes = [r.process for r in self.readers()]
            for p in processes:
                p.hear(now)
            queued = sum(poll.size for p in processes for poll in p.polls)
            some = any(p.polls for p in processes)
            until = max(first, began + GATHER_US) if some else last
            if now >= until or queued >= POLL_BYTES // 2 or (some and not self.behind and now >= first):
                return
            asked = select.poll()
            for p in processes:
                if (s := p.listens) is not None:
                    asked.register(s, select.POLLIN)
            with contextlib.suppress(InterruptedError):
                asked.poll(max(1, min(until - now, pace.tick_us) // 1000))

    def _take(self, reader: Reader, items: list[SourceItem]) -> None:
        taken = 0
        while taken < POLL_BYTES and (poll := reader.process.take()) is not None:
            taken += poll.size
            reader.polls += 1
            reader.told = ""
            for note in poll.notes:
                self._router.noted(reader, note)
            for item in poll.items:
                if isinstance(item, Marked):
                    self._router.mark(reader, item.key, item.mark)
                self._streams.take(reader.lane, item, items)
                if items and isinstance(items[-1], JobClosed):
                    self._router.closed(items[-1].job)
            self._ended(reader, poll.end)

    def _ended(self, reader: Reader, end: dict[str, Any]) -> None:
        reader.over |= bool(end.get("over"))
        reader.behind = bool(end.get("behind"))
        reader.followed, reader.lag = end.get("followed", 0), end.get("lag", 0)
        for held, why in end.get("unread", ()):
            if why is None:
                self.unread.pop(raw(held), None)
            else:
                self.unread[raw(held)] = why

    def _care(self, reader: Reader, now: int, items: list[SourceItem]) -> None:
        """Is it there, does it answer, was it told everything?"""
        p = reader.process
        if not reader.over and now - p.heard_us >= self._setup.silent_us:
            self._silent(reader, now, items)
        if not p.alive and not reader.over and self._stopping_us is None:
            p.start(now)
        if p.owes and p.alive and p.drained and not reader.told:
            p.owes = False
            for command in self._router.state(reader):
                p.tell(command)

    def _silent(self, reader: Reader, now: int, items: list[SourceItem]) -> None:
        """It hangs, or does not come to life."""
        p, seconds = reader.process, self._setup.silent_us // SECOND
        if not reader.told:
            reader.told = f"the mount {reader.name} does not answer for {seconds} s"
            if not p.alive:
                reader.told = f"the reader of {reader.name} has ended {p.deaths} times, last with {p.last_end}"
            self._streams.trouble(reader.lane, reader.told, items)
        for job, since in list(self._router.over.items()):
            if now - since >= GIVE_UP_US:
                self._streams.end_job(reader.lane, job, reader.told, items)
        if p.alive and now - max(p.heard_us, p.born_us) >= KILL_AFTER_US:
            p.give_up(now)

    def _last_words(self, late: bool, items: list[SourceItem]) -> None:
        for reader in self.readers():
            if reader.over or late or reader.told or not reader.process.alive:
                self._streams.end(reader.lane, reader.told or UNANSWERED, items)
                reader.over = True
        if all(r.over and not r.process.polls for r in self.readers()):
            self.close()

    @property
    def _setup(self) -> Setup:
        assert self._router.setup is not None, "begin comes first"
        return self._router.setup


def _waits(reader: Reader) -> bool:
    """Whether there is more to come of it at once."""
    return not (reader.told or reader.over) and (bool(reader.process.polls) or not reader.polls or reader.behind)
