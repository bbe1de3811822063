"""Many logs followed at once: the live `Source`.

In: watches (files, folders, globs), what a scheduler says about jobs (`assign`, `running`, `over`). Out: items, one `Ticked` at the end of
every poll. Always holds:

* back-pressure never drops: what is not read stays in its file; every log gets at most a quantum per poll, those that waited longest first
  and logs of live jobs before all others, so a loud log starves nobody;
* looks by path are bounded per second, descriptors by a number (the least recently used are closed; older files of a path keep theirs);
  what one job or one user may cost is bounded by `Limits`, and what is over them is told;
* `Marked` items (and `positions`) belong to everything handed over before them: kept in one transaction with the rows made of it, they lose
  and double nothing;
* a job's streams are closed once it is said to be over, its logs are read to their ends and have been quiet for a while, or cannot be read.

One hung mount stops every log of this source: use one source per mount, in a process of its own, where mounts may hang.
"""

from __future__ import annotations

import errno
import glob
import heapq
from collections import OrderedDict
from collections.abc import Callable, Mapping

from defib.adapters.tail.body import Patience
from defib.adapters.tail.clock import Clock
from defib.adapters.tail.files import Files
from defib.adapters.tail.finder import Finder
from defib.adapters.tail.follower import Follower
from defib.adapters.tail.kept import Assigned
from defib.adapters.tail.limits import TOLD_AFTER_US, Limits, Meter, Unread
from defib.adapters.tail.pace import Pace
from defib.adapters.tail.position import SOURCE, Marks, Position, Where, closed_job, from_mark, named
from defib.adapters.tail.track import Track, Unfinished, unfinished
from defib.engine.identity import Known
from defib.engine.ports import JobClosed, Marked, SourceItem, Ticked
from defib.engine.rulebook import Template
from defib.engine.words import JobKey, StreamFacts

__all__ = ["TailSource", "Unfinished"]


class TailSource:
    """Follows `watches` until `stop`. positions: where an earlier run got to. kept: the marks an earlier one gave, by path; with it (be it
    empty) every change of a position is given as a mark before the tick. owner: the user id a job's logs must belong to, if known."""

    def __init__(
        self,
        watches: list[bytes],
        templates: tuple[Template, ...],
        files: Files,
        clock: Clock,
        known: Known | None = None,
        pace: Pace | None = None,
        patience: Patience | None = None,
        positions: list[Position] | None = None,
        kept: Mapping[bytes, bytes] | None = None,
        owner: Callable[[JobKey], int | None] = lambda job: None,
        hints: Callable[[], set[bytes]] = set,
        limits: Limits | None = None,
    ) -> None:
        self.behind = False  # there was more to read than one poll allows
        self._files, self._clock = files, clock
        self._pace, self._patience, self._hints = pace or Pace(), patience, hints
        self._finder = Finder(files, watches, templates, known or Known(), owner)
        self._kept = self._finder.kept
        self._kept.save(positions or [])
        self._tracks: dict[bytes, Track] = {}
        self._jobs: dict[JobKey, set[bytes]] = {}
        self._over: dict[JobKey, int] = {}
        self._quiet: set[JobKey] = set()  # said not to run
        self._heap: list[tuple[int, bytes]] = []
        self._recent: OrderedDict[bytes, None] = OrderedDict()
        self._marks = None if kept is None else Marks()
        self._restore(kept or {})
        self._claimed: set[bytes] = set()  # paths that go over to another job
        self._meter = Meter(limits or Limits())
        self._numbers, self._list_us, self._now = 0, 0, 0
        self._stopping = self._stopped = False

    def _restore(self, kept: Mapping[bytes, bytes]) -> None:
        closed = []
        for path, mark in kept.items():
            positions, over = from_mark(path, mark)
            self._kept.saved[path] = list(positions)
            if over:
                closed.append(path)
            elif (said := named(mark)) is not None:
                self._finder.assigned[glob.escape(path)] = Assigned(*said)
        for path, what in zip(closed, self._finder.facts(closed), strict=True):
            self._kept.close(path, closed_job(kept[path]) or what.job)

    # what the outside says

    def watch(self, place: bytes) -> None:
        """One more file, folder or glob."""
        if place not in self._finder.watches:
            self._finder.watches.append(place)
            self._list_us = 0

    def release(self, path: bytes) -> None:
        """Somebody else follows the path from now on."""
        self._finder.assigned.pop(path, None)
        if path in self._tracks:
            self._claimed.add(path)

    def assign(self, path: bytes, what: StreamFacts, owner: int | None = None) -> None:
        """The scheduler names a log of a job, there or not, or a glob of logs (a name that holds wildcards is given escaped). owner: the
        user id they must belong to. A path that another known job still writes to is followed for this one once that is closed."""
        if self._finder.assigned.get(path) == Assigned(what, owner):
            return
        self._finder.assigned[path] = Assigned(what, owner)
        self._list_us = 0
        if self._kept.closed.get(path, what.job) != what.job:
            self._kept.release(path)  # a closed job has left it
        track = self._tracks.get(path)
        if track is not None and track.facts.job != what.job and track.facts.job.job_id is None:
            self._claimed.add(path)  # found before the scheduler spoke of it

    def running(self, job: JobKey, yes: bool = True) -> None:
        """The scheduler says whether the job runs. One that runs again is followed again, also after it was closed."""
        if not yes:
            self._quiet.add(job)
            return
        if job in self._quiet:
            for path in self._jobs.get(
                job, ()
            ):  # planned for a job at rest: its first lines would wait for half a minute
                self._plan(self._tracks[path], 0)
        self._quiet.discard(job)
        self._over.pop(job, None)
        if self._kept.reopen(job, self._finder.assigned):
            self._list_us = 0

    def over(self, job: JobKey) -> None:
        """The scheduler says that the job has ended."""
        if job not in self._jobs:
            self._finder.unassign(job)
        elif job not in self._over:
            self._over[job] = self._clock.now_us()
            for path in self._jobs[job]:
                self._plan(self._tracks[path], 0)

    def stop(self) -> None:
        """The next poll closes every stream, the one after it is the last."""
        self._stopping = True

    def close(self) -> None:
        for track in self._tracks.values():
            track.follower.end()
        self._tracks.clear()
        self._stopped = True

    # what the outside may ask

    @property
    def unread(self) -> Unread:
        """Paths that are not followed, and why."""
        return self._finder.unread

    def positions(self) -> list[Position]:
        """Of every path ever followed, also of those that are gone: an offset is not forgotten."""
        saved = {path: ps for path, ps in self._kept.saved.items() if path not in self._tracks}
        live = [p for t in self._tracks.values() for p in (t.follower.positions or self._kept.saved.get(t.path, ()))]
        return [p for ps in saved.values() for p in ps] + live

    def unfinished(self) -> list[Unfinished]:
        """Last lines that have been waiting for their end."""
        return [u for t in self._tracks.values() for u in unfinished(t, self._now, self._pace.partial_us)]

    @property
    def followed(self) -> list[bytes]:
        """The paths."""
        return list(self._tracks)

    def lag(self) -> int:
        """Bytes that are known to stand in the files and have not been read."""
        return sum(max(0, b.size - b.state.offset) for t in self._tracks.values() for b in t.follower.bodies)

    # the port

    def poll(self) -> list[SourceItem] | None:
        if self._stopped:
            return None
        if self._finder.listed and not self.behind and not self._stopping:
            self._rest()
        self._now = max(self._now, self._clock.now_us())
        items: list[SourceItem] = []
        if self._stopping:
            for job in sorted(self._jobs, key=repr):
                self._close_job(job, items)
            self._stopped = True
        else:
            self._serve(items)
        if self._marks is not None:
            items += self._marks.changed(self._position, self._kept.closed.get)
        items.append(Ticked(self._now))
        return items

    def _position(self, path: bytes) -> Where:
        """Where a path is, whether its job is closed, and as what the scheduler named it."""
        track = self._tracks.get(path)
        here = track.follower.positions if track is not None else ()
        said = track.facts if track is not None and track.named else None
        owner = track.owner if said is not None and track is not None else None
        return here or tuple(self._kept.saved.get(path, ())), path in self._kept.closed, said, owner

    def _rest(self) -> None:
        due = min(self._heap[0][0] if self._heap else self._list_us, self._list_us)
        wait = due - self._clock.now_us()
        self._clock.sleep_us(max(self._pace.poll_us, min(wait, self._pace.tick_us)))

    def _serve(self, items: list[SourceItem]) -> None:
        for job in [j for j, at in self._over.items() if self._may_close(j, at)]:
            self._close_job(job, items)  # before anything else, so that a tick lies between the last look and the end
        for path in self._claimed & self._tracks.keys():
            self._hand_over(self._tracks[path], items)
        self._claimed.clear()
        if self._now >= self._list_us:
            self._list(items)
        for path in self._hints():
            track = self._tracks.get(path)
            if track is not None and (soon := max(self._now, track.polled_us + self._pace.hint_us)) < track.due_us:
                self._plan(track, soon)
        due = self._pop_due()
        left, self.behind = self._pace.poll_bytes, False
        for n, track in enumerate(due):
            if left <= 0 or (n % 64 == 63 and self._clock.now_us() - self._now > self._pace.poll_max_us):
                self.behind = True
                for late in due[n:]:
                    self._plan(late, late.due_us)
                break
            wait, why = self._meter.wait_us(track.facts.job, track.owner, self._now)
            if wait:
                self._withhold(track, wait, why, items)
            else:
                left -= self._poll_one(track, items)
        self._shed(self._pace.handles)

    def _pop_due(self) -> list[Track]:
        """Tracks whose time has come: live jobs first, then those that waited longest."""
        due: dict[bytes, Track] = {}
        while self._heap and self._heap[0][0] <= self._now:
            at, path = heapq.heappop(self._heap)
            track = self._tracks.get(path)
            if track is not None and track.due_us == at:
                due[path] = track
        return sorted(due.values(), key=lambda t: (not self._live(t.facts.job), t.due_us))

    def _live(self, job: JobKey) -> bool:
        return job not in self._quiet and job not in self._over

    def _plan(self, track: Track, at_us: int) -> None:
        track.due_us = at_us
        heapq.heappush(self._heap, (at_us, track.path))

    def _poll_one(self, track: Track, items: list[SourceItem]) -> int:
        final = track.facts.job in self._over
        full = final or self._now >= track.look_us
        track.polled_us = self._now
        p = track.follower.poll(self._now, self._pace.quantum, full, final)
        if full:
            track.look_us = self._now + self._pace.look_after(len(self._tracks))
        if p.fresh:
            track.grown_us = self._now
        track.end = p.end
        for told in p.items:
            track.take(told, items, self._new)
        if p.items:
            self._touch(track.path)
        self._spent(track, p.fresh)
        if p.failed in (errno.EMFILE, errno.ENFILE):
            self._shed(len(self._recent) // 2)
        self._recent.pop(track.path, None)
        if track.follower.handles:
            self._recent[track.path] = None
        if track.follower.refused is not None:
            self._refuse(track)
            return p.fresh
        self.behind |= p.more
        wait = self._pace.interval(self._now - track.grown_us, self._live(track.facts.job))
        if final:
            wait = self._pace.hot_us
        self._plan(track, self._now if p.more else self._now + wait)
        return p.fresh

    def _touch(self, path: bytes) -> None:
        if self._marks is not None:
            self._marks.touch(path)

    def _spent(self, track: Track, fresh: int) -> None:
        if fresh:
            self._meter.took(track.facts.job, track.owner, fresh, self._now)
        if track.end:
            track.over_us = None

    def _withhold(self, track: Track, wait_us: int, why: str, items: list[SourceItem]) -> None:
        """Its job or user has read its share. The file is the buffer; where that lasts, nobody can vouch for what the log holds now."""
        track.over_us = self._now if track.over_us is None else track.over_us
        if self._now - track.over_us >= TOLD_AFTER_US:
            track.withhold(why, items)
        self._plan(track, self._now + wait_us)

    def _new(self) -> int:
        self._numbers += 1
        return self._numbers - 1

    def _shed(self, most: int) -> None:
        """Close the descriptors that were used least recently. Those of older files stay open: nothing leads back to them."""
        for path in list(self._recent)[: max(0, len(self._recent) - most)]:
            self._tracks[path].follower.relax()
            del self._recent[path]

    # finding logs

    def _list(self, items: list[SourceItem]) -> None:
        self._list_us = self._now + self._pace.list_us
        for path, what, owner in self._finder.find(self._tracks):
            self._follow(path, what, owner)
        gone, self._finder.gone = self._finder.gone, []
        if self._marks is not None:
            items += [Marked(SOURCE, path, b"") for path in gone]

    def _follow(self, path: bytes, what: StreamFacts, owner: int | None) -> None:
        if (why := self._meter.full(what.job, owner)) is not None:
            self._finder.hold(path, why)
            return
        follower = Follower(self._files, path, tuple(self._kept.saved.get(path, ())), owner, self._patience)
        named = bool(self._finder.assigned) and what.job != self._finder.facts([path])[0].job
        track = self._tracks[path] = Track(path, what, follower, self._now, owner, grown_us=self._now, named=named)
        self._meter.follows(what.job, owner, 1)
        self._jobs.setdefault(what.job, set()).add(path)
        self._plan(track, self._now)

    def _refuse(self, track: Track) -> None:
        self.unread[track.path] = track.follower.refused or ""
        track.follower.end()
        self._forget(track)

    def _forget(self, track: Track) -> None:
        self._kept.remember(track.follower.bodies)
        self._meter.follows(track.facts.job, track.owner, -1)
        del self._tracks[track.path]
        self._recent.pop(track.path, None)
        members = self._jobs[track.facts.job]
        members.discard(track.path)
        if not members:
            del self._jobs[track.facts.job]

    # closing jobs

    def _may_close(self, job: JobKey, over_us: int) -> bool:
        tracks = [self._tracks[p] for p in self._jobs.get(job, ())]
        if self._now - over_us >= self._pace.give_up_us and not any(
            t.follower.trouble is None and not t.end for t in tracks
        ):
            return True
        quiet = all(t.end and self._now - t.grown_us >= self._pace.settle_us for t in tracks)
        return quiet and self._now - over_us >= self._pace.settle_us

    def _close_job(self, job: JobKey, items: list[SourceItem]) -> None:
        opened = False
        for path in sorted(self._jobs.get(job, ())):
            opened |= self._close(self._tracks[path], items)
            self._kept.close(path, job)
            self._touch(path)
        self._over.pop(job, None)
        self._kept.shelve(job, self._finder.unassign(job))
        if opened:
            items.append(JobClosed(job))

    def _close(self, track: Track, items: list[SourceItem]) -> bool:
        """Follow it no longer; how far it was read is kept. Whether anything was ever told of it."""
        self._kept.saved[track.path] = list(track.follower.positions)
        bodies, opened = track.follower.bodies, bool(track.numbers)
        told = track.follower.end()
        for one in told:
            track.take(one, items, self._new)
        self._kept.remember(bodies)
        self._forget(track)
        return opened or bool(told)

    def _hand_over(self, track: Track, items: list[SourceItem]) -> None:
        job = track.facts.job
        if self._close(track, items) and job not in self._jobs:
            items.append(JobClosed(job))
        self._list_us = 0
