"""Many logs followed at once: the live `Source`.

In: watches (files, folders, globs), what a scheduler says about jobs (`running`, `over`). Out: items, one `Ticked` at the end of every poll.
Always holds:

* back-pressure never drops: what is not read stays in its file; every log gets at most a quantum per poll, those that waited longest first
  and logs of live jobs before all others, so a loud log starves nobody;
* looks by path are bounded per second, descriptors by a number (the least recently used are closed; older files of a path keep theirs);
* `positions` belong to everything handed over so far: kept in one transaction with the rows made of it, they lose and double nothing. Take
  them after a tick, when the engine has taken in all that came before;
* a job's streams are closed once it is said to be over, its logs are read to their ends and have been quiet for a while, or cannot be read.

One hung mount stops every log of this source: use one source per mount, in a process of its own, where mounts may hang.
"""

from __future__ import annotations

import errno
import heapq
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from defib.adapters.show import printable
from defib.adapters.tail import places
from defib.adapters.tail.body import Begin, End, Patience, Told, Trouble
from defib.adapters.tail.clock import Clock
from defib.adapters.tail.files import Files
from defib.adapters.tail.follower import Follower
from defib.adapters.tail.pace import Pace
from defib.adapters.tail.position import Marks, Position, from_mark
from defib.adapters.tail.reading import Bytes, Gap, Hole
from defib.engine.identity import Known, facts
from defib.engine.ports import Closed, Data, JobClosed, Looked, Opened, Skipped, SourceItem, Ticked
from defib.engine.rulebook import Template
from defib.engine.words import JobKey, StreamFacts, StreamId

NOTES_MAX = 20


@dataclass(slots=True)
class Track:
    """One followed path. numbers: its generations' streams; notes: what is to be said when they close."""

    path: bytes
    facts: StreamFacts
    follower: Follower
    due_us: int
    look_us: int = 0
    grown_us: int = 0
    end: bool = False
    numbers: dict[int, int] = field(default_factory=dict)
    notes: dict[int, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The beginning of a last line without its end, quiet for a while: to be shown as provisional. It is not counted anywhere; the engine sees
    the line when it ends or its stream closes."""

    stream: int
    offset: int
    line: int
    text: bytes


class TailSource:
    """Follows `watches` until `stop`. positions: where an earlier run got to. kept: the marks an earlier one gave, by path; with it (be it
    empty) every change of a position is given as a mark before the tick. owner: the user id a job's logs must belong to, if known.
    """

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
    ) -> None:
        self.unread: dict[bytes, str] = {}  # paths that are not followed, and why
        self.behind = False  # there was more to read than one poll allows
        self._watches, self._templates, self._files, self._clock = watches, templates, files, clock
        self._known, self._pace, self._patience = known or Known(), pace or Pace(), patience
        self._owner, self._hints = owner, hints
        self._tracks: dict[bytes, Track] = {}
        self._jobs: dict[JobKey, set[bytes]] = {}
        self._over: dict[JobKey, int] = {}
        self._quiet: set[JobKey] = set()  # said not to run
        self._heap: list[tuple[int, bytes]] = []
        self._recent: OrderedDict[bytes, None] = OrderedDict()
        self._saved: dict[bytes, list[Position]] = {}
        for p in positions or []:
            self._saved.setdefault(p.path, []).append(p)
        self._closed: set[bytes] = set()  # paths of closed jobs: followed again only if the job runs again
        self._marks = None if kept is None else Marks()
        for path, mark in (kept or {}).items():
            found, closed = from_mark(path, mark)
            self._saved[path] = list(found)
            if closed:
                self._closed.add(path)
        self._inodes: OrderedDict[int, None] = OrderedDict()  # of files that are or were followed
        self._numbers, self._list_us, self._now = 0, 0, 0
        self._listed = self._stopping = self._stopped = False

    # what the outside says

    def running(self, job: JobKey, yes: bool = True) -> None:
        """The scheduler says whether the job runs. One that runs again is followed again, also after it was closed."""
        if not yes:
            self._quiet.add(job)
            return
        self._quiet.discard(job)
        self._over.pop(job, None)
        told = {p for p in self._closed if self._facts([p])[0].job == job} if self._closed else set()
        self._closed -= told
        self._list_us = 0 if told else self._list_us

    def over(self, job: JobKey) -> None:
        """The scheduler says that the job has ended."""
        if job in self._jobs and job not in self._over:
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

    def positions(self) -> list[Position]:
        """Of every path ever followed, also of those that are gone: an offset is never forgotten."""
        saved = {path: ps for path, ps in self._saved.items() if path not in self._tracks}
        live = [p for t in self._tracks.values() for p in (t.follower.positions or self._saved.get(t.path, ()))]
        return [p for ps in saved.values() for p in ps] + live

    def unfinished(self) -> list[Unfinished]:
        """Last lines that have been waiting for their end."""
        out = []
        for track in self._tracks.values():
            for body in track.follower.bodies:
                s = body.state
                if (
                    s.partial
                    and self._now - body.quiet_since_us >= self._pace.partial_us
                    and s.generation in track.numbers
                ):
                    out.append(Unfinished(track.numbers[s.generation], s.record_at, s.line, s.partial))
        return out

    # the port

    def poll(self) -> list[SourceItem] | None:
        if self._stopped:
            return None
        if self._listed and not self.behind and not self._stopping:
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
            items += self._marks.changed(self._position)
        items.append(Ticked(self._now))
        return items

    def _position(self, path: bytes) -> tuple[tuple[Position, ...], bool]:
        """Where a path is, and whether its job is closed."""
        track = self._tracks.get(path)
        here = track.follower.positions if track is not None else ()
        return here or tuple(self._saved.get(path, ())), path in self._closed

    def _rest(self) -> None:
        due = min(self._heap[0][0] if self._heap else self._list_us, self._list_us)
        wait = due - self._clock.now_us()
        self._clock.sleep_us(max(self._pace.poll_us, min(wait, self._pace.tick_us)))

    def _serve(self, items: list[SourceItem]) -> None:
        for job in [j for j, at in self._over.items() if self._may_close(j, at)]:
            self._close_job(job, items)  # before anything else, so that a tick lies between the last look and the end
        if self._now >= self._list_us:
            self._list()
        for path in self._hints():
            if (track := self._tracks.get(path)) is not None:
                self._plan(track, self._now)
        due = self._pop_due()
        left, self.behind = self._pace.poll_bytes, False
        for n, track in enumerate(due):
            if left <= 0 or (n % 64 == 63 and self._clock.now_us() - self._now > self._pace.poll_max_us):
                self.behind = True
                for late in due[n:]:
                    self._plan(late, late.due_us)
                break
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
        p = track.follower.poll(self._now, self._pace.quantum, full, final)
        if full:
            track.look_us = self._now + self._pace.look_after(len(self._tracks))
        if p.fresh:
            track.grown_us = self._now
        track.end = p.end
        if self._marks is not None:
            self._marks.touch(track.path)
        for told in p.items:
            self._translate(track, told, items)
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

    def _shed(self, most: int) -> None:
        """Close the descriptors that were used least recently. Those of older files stay open: nothing leads back to them."""
        for path in list(self._recent)[: max(0, len(self._recent) - most)]:
            self._tracks[path].follower.relax()
            del self._recent[path]

    # finding logs

    def _list(self) -> None:
        self._list_us = self._now + self._pace.list_us
        found = places.look(self._files, self._watches)
        for folder, why in found.troubles.items():
            self.unread[folder] = why
        skip = {*self._tracks, *self._closed}
        fresh = [p for p in found.named if p not in skip]
        known = {b.ino for t in self._tracks.values() for b in t.follower.bodies} if found.found else set()
        for path, ino in found.found.items():
            if path in skip or path in self.unread:
                continue
            if path not in self._saved and (ino in known or ino in self._inodes):
                continue  # the same file under another name
            before = self._tracks if self._listed else self._saved
            if path not in self._saved and (base := places.base_of(path, before)) is not None:
                self.unread[path] = f"looks like an older part of {printable(os.fsdecode(os.path.basename(base)))}"
            else:
                fresh.append(path)
        if not self._listed:
            fresh += [p for p in self._saved if p not in found.found and p not in fresh and p not in skip]
        self._listed = True
        self._follow(list(dict.fromkeys(fresh)))

    def _facts(self, paths: list[bytes]) -> list[StreamFacts]:
        return facts([printable(os.fsdecode(p)) for p in paths], self._templates, self._known)

    def _follow(self, paths: list[bytes]) -> None:
        for path, fact in zip(paths, self._facts(paths), strict=True):
            saved = tuple(self._saved.get(path, ()))
            follower = Follower(self._files, path, saved, self._owner(fact.job), self._patience)
            track = self._tracks[path] = Track(path, fact, follower, self._now, grown_us=self._now)
            self._jobs.setdefault(fact.job, set()).add(path)
            self._plan(track, self._now)

    def _refuse(self, track: Track) -> None:
        self.unread[track.path] = track.follower.refused or ""
        track.follower.end()
        self._forget(track)

    def _forget(self, track: Track) -> None:
        for body in track.follower.bodies:
            if body.ino is not None:
                self._inodes[body.ino] = None
        while len(self._inodes) > 10_000:
            self._inodes.popitem(last=False)
        del self._tracks[track.path]
        self._recent.pop(track.path, None)
        members = self._jobs[track.facts.job]
        members.discard(track.path)
        if not members:
            del self._jobs[track.facts.job]

    # telling

    def _translate(self, track: Track, told: Told, items: list[SourceItem]) -> None:
        number = track.numbers.get(told.generation, -1)
        match told:
            case Begin(generation, offset, line, size):
                number = track.numbers[generation] = self._numbers
                self._numbers += 1
                name = StreamId(printable(os.fsdecode(track.path)), generation)
                items.append(Opened(number, name, track.facts, size, offset, line))
            case Bytes(_, data):
                items.append(Data(number, data, len(data)))
            case Hole(_, offset, length):
                items.append(Skipped(number, length))
                self._note(track, told.generation, f"{length} NUL bytes at byte {offset}: a hole")
            case Gap(_, offset, note):
                self._note(track, told.generation, f"{note} (byte {offset})")
            case Trouble(_, text):
                items.append(Looked(number, text))
            case End(generation, note, _):
                notes = track.notes.pop(generation, [])
                text = "; ".join(
                    [*notes[:NOTES_MAX], *(["and more"] if len(notes) > NOTES_MAX else []), *([note] if note else [])]
                )
                items.append(Closed(number, text or None))
                del track.numbers[generation]

    @staticmethod
    def _note(track: Track, generation: int, note: str) -> None:
        notes = track.notes.setdefault(generation, [])
        if len(notes) <= NOTES_MAX:
            notes.append(note)

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
            track = self._tracks[path]
            self._saved[path] = list(track.follower.positions)
            opened |= bool(track.numbers)
            bodies = track.follower.bodies
            for told in track.follower.end():
                opened = True
                self._translate(track, told, items)
            for body in bodies:
                if body.ino is not None:
                    self._inodes[body.ino] = None
            self._closed.add(path)
            if self._marks is not None:
                self._marks.touch(path)
            self._forget(track)
        self._over.pop(job, None)
        if opened:
            items.append(JobClosed(job))
