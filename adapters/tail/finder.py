"""Which paths to follow next: what the scheduler assigned, and what lies in the folders and globs that are watched.

In: listings of folders, what is followed already, what is kept of earlier. Out: (path, facts, owner) of logs to be followed from now on.
Always holds: a path is followed for one job only, the one the scheduler named first; another name of a followed file, a part that log
rotation put aside and a path whose job was closed are left out; what is left out for a reason that may pass is decided anew at the next
listing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from defib.adapters.show import printable
from defib.adapters.tail import places
from defib.adapters.tail.files import Files
from defib.adapters.tail.kept import Assigned, Kept
from defib.adapters.tail.limits import Unread
from defib.adapters.tail.places import WILD
from defib.adapters.tail.track import Track
from defib.engine.identity import Known, facts
from defib.engine.rulebook import Template
from defib.engine.words import JobKey, StreamFacts

Found = tuple[bytes, StreamFacts, int | None]


@dataclass(slots=True)
class Finder:
    """unread: paths that are not followed, and why; held: those of them that the next listing decides anew; gone: closed paths that were
    forgotten."""

    files: Files
    watches: list[bytes]
    templates: tuple[Template, ...]
    known: Known
    owner: Callable[[JobKey], int | None]
    kept: Kept = field(default_factory=Kept)
    unread: Unread = field(default_factory=Unread)
    assigned: dict[bytes, Assigned] = field(default_factory=dict)
    held: set[bytes] = field(default_factory=set)
    listed: bool = False
    gone: list[bytes] = field(default_factory=list)

    def facts(self, paths: list[bytes]) -> list[StreamFacts]:
        """What the paths tell."""
        return facts([printable(os.fsdecode(p)) for p in paths], self.templates, self.known)

    def hold(self, path: bytes, why: str) -> None:
        """Not followed for now."""
        self.unread[path] = why
        self.held.add(path)

    def unassign(self, job: JobKey) -> dict[bytes, Assigned]:
        """What was assigned to a job, which is forgotten."""
        gone = {path: a for path, a in self.assigned.items() if a.facts.job == job}
        for path in gone:
            del self.assigned[path]
        return gone

    def find(self, tracks: Mapping[bytes, Track]) -> list[Found]:
        """List everything once."""
        for path in self.held:
            self.unread.discard(path)
        self.held.clear()
        out = self._assigned(tracks)
        found = self._look(self.watches)
        for watch, why in found.bare.items():
            if (
                watch not in tracks or tracks[watch].follower.current is None
            ):  # else it was there, and that it went is its trouble
                self.hold(watch, why)
        skip = {*tracks, *self.kept.closed, *(path for path, _, _ in out)}
        fresh = [p for p in found.named if p not in skip] + self._new(found, tracks, skip)
        saved = self.kept.saved
        if not self.listed:
            fresh += [p for p in saved if p not in found.found and p not in fresh and p not in skip]
        self.listed = True
        fresh = list(dict.fromkeys(fresh))
        self.gone += self.kept.trim(found.found)
        return out + [(p, what, self.owner(what.job)) for p, what in zip(fresh, self.facts(fresh), strict=True)]

    def _new(self, found: places.Places, tracks: Mapping[bytes, Track], skip: set[bytes]) -> list[bytes]:
        known = {b.ino for t in tracks.values() for b in t.follower.bodies} if found.found else set()
        saved, out = self.kept.saved, []
        for path, ino in found.found.items():
            if path in skip or path in self.unread:
                continue
            if path not in saved and (ino in known or ino in self.kept.inodes):
                continue  # the same file under another name
            before = tracks if self.listed else saved
            if path not in saved and (base := places.base_of(path, before)) is not None:
                self.unread[path] = f"looks like an older part of {printable(os.fsdecode(os.path.basename(base)))}"
            else:
                out.append(path)
        return out

    def _assigned(self, tracks: Mapping[bytes, Track]) -> list[Found]:
        """What the scheduler named, in preference to what is found."""
        out: dict[bytes, tuple[StreamFacts, int | None]] = {}
        for path, a in self.assigned.items():
            there = [path] if not WILD.search(path) else list(self._look([path]).found)
            new = [p for p in there if not (p in tracks or p in self.kept.closed or p in out or p in self.unread)]
            for one, what in zip(new, self.facts(new), strict=True):
                out[one] = (_merged(what, a.facts), a.owner)
        return [(path, what, owner) for path, (what, owner) in out.items()]

    def _look(self, watches: list[bytes]) -> places.Places:
        found = places.look(self.files, watches)
        for folder, why in found.troubles.items():
            self.hold(folder, why)
        return found


def _merged(found: StreamFacts, said: StreamFacts) -> StreamFacts:
    """What the scheduler says, and what only the path tells."""
    return StreamFacts(
        said.job,
        said.job_name,
        said.node or found.node,
        found.rank if said.rank is None else said.rank,
        found.local_rank if said.local_rank is None else said.local_rank,
        found.restart_count if said.restart_count is None else said.restart_count,
        found.attempt if said.attempt is None else said.attempt,
        said.channel or found.channel,
        said.user,
    )
