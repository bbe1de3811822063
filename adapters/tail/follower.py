"""One path followed through everything that can happen to it: growth, truncation, rotation, loss and return.

In: polls with a clock. Out: items of one or more generations of the path. Always holds:

* the path is opened anew to see what it leads to; an old descriptor is only a cheap glance in between and the way to drain a file that was
  renamed or unlinked;
* a file that took the path's place is another generation; the older one is drained first (by its descriptor, or found again among its
  siblings) and watched a while for late writers; after copytruncate the copy is drained;
* an offset is never dropped because of an error or because the path is gone; a trouble is told, tried again ever less often, and ends;
* `End.lost` says that bytes may have been written that nobody will see. Nothing is lost without it.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import replace

from defib.adapters.sniff import MAGIC, is_binary, is_packed
from defib.adapters.tail import reading
from defib.adapters.tail.body import (
    COPIED,
    CROWDED,
    LEFT,
    PASSED,
    REMOVED,
    REPLACED,
    REWRITTEN,
    SHRUNK,
    UNFOUND,
    Begin,
    Body,
    End,
    Patience,
    Polled,
    Retry,
    Told,
    Trouble,
)  # fmt: skip
from defib.adapters.tail.files import Files, Stat
from defib.adapters.tail.guard import ENOUGH_BYTES
from defib.adapters.tail.position import Position
from defib.adapters.tail.reading import Bytes, Changed, Gap, Hole, Item, Seen, State, Terms
from defib.adapters.tail.siblings import find, open_checked

ELDERS_MAX = 4
SNIFF_MIN, SNIFF_BYTES = 512, 8192
PROOF_MAX = 64 * 1024 * 1024  # a longer copy is known by the 4 KiB before the offset alone
GONE = (errno.ENOENT, errno.ENOTDIR)
NO_LOG_YET = (*GONE, errno.EISDIR)  # a folder at the path is for the one who lists it
STALE = (errno.ESTALE, errno.EBADF, errno.ENOTCONN)


class Follower:
    """Follows `path`. owner: the user id its files must belong to (None: anyone's)."""

    def __init__(
        self,
        files: Files,
        path: bytes,
        positions: tuple[Position, ...] = (),
        owner: int | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.path = path
        self.refused: str | None = None  # why this is no log at all
        self.trouble: str | None = None
        self._removed = False  # nothing stood at the path at the last look
        self._files = files
        self._owner = owner
        self._patience = patience or Patience()
        self._look, self._reads = Retry(), Retry()
        self._here: Stat | None = None  # what the path led to last
        bodies = [
            Body(p.state(), p.ino, p.born_ns, None, p.role) for p in sorted(positions, key=lambda p: p.generation)
        ]
        self.current: Body | None = next((b for b in bodies if b.role == "path"), None)
        self.elders = [b for b in bodies if b is not self.current]
        self._generation = max((max(p.generation, p.newest) for p in positions), default=-1)

    @property
    def positions(self) -> tuple[Position, ...]:
        """To be kept together with what was made of everything handed over so far."""
        return tuple(
            Position(
                self.path, b.state.generation, b.state.record_at, b.state.line, b.state.guard.compact(),
                b.ino, b.born_ns, b.role, self._generation,
            )
            for b in self.bodies
        )  # fmt: skip

    @property
    def bodies(self) -> list[Body]:
        """Every file being read, the older ones first."""
        return [*self.elders, *([self.current] if self.current else [])]

    @property
    def handles(self) -> int:
        """Open descriptors."""
        return sum(b.handle is not None for b in self.bodies)

    def relax(self) -> None:
        """Give up the descriptor of the path; it is opened anew at the next look. Those of older files stay: nothing leads back to them."""
        if self.current is not None:
            self._close(self.current)

    def poll(self, now_us: int, quantum: int, full: bool = True, final: bool = False) -> Polled:
        """One look. full: by the path, else only through the kept descriptor where that is enough. final: the writer is gone for good."""
        p = Polled()
        seen = False
        if now_us >= self._look.at_us and (full or self._must_look()):
            seen = self._look_up(now_us, p)
        waits = self._drain(now_us, quantum, p, final)
        if self.refused is None and not waits and self.current is not None and self.current.handle is not None:
            if now_us >= self._reads.at_us:
                # A file that is gone from its path is looked at as if it had just been opened: nothing else will ask whether it was rewritten.
                self._follow(Terms(now_us, quantum, self._patience.nul_us, final, seen or self._removed), p)
            if seen and p.end and p.failed is None and self.refused is None:
                self.trouble = None
                p.items.append(Trouble(self.current.state.generation, None))
        if self.refused is None and p.failed is None and now_us >= self._reads.at_us:
            p.more = any(b.handle is not None and not b.drained for b in self.bodies)
        return p

    def end(self, note: str | None = None) -> list[Told]:
        """Follow no longer. A generation whose end was not read is told as lost."""
        p = Polled()
        for body in self.bodies:
            removed = self._removed and body is self.current and body.handle is not None
            whole = body.drained and (self.trouble is None or removed) and body.state.nul_since_us is None
            if removed and whole:  # no look by the path will find what was cut off or came late
                whole = self._reaches(body)
            own = REPLACED if body is not self.current else REMOVED if removed else note
            self._end(body, p, own if whole else LEFT.format(body.state.offset), not whole)
        self.current, self.elders = None, []
        return p.items

    def _reaches(self, body: Body) -> bool:
        """Whether all that the open file holds, and held at the last look, was read."""
        try:
            return body.handle is not None and max(body.size, self._files.stat(body.handle).size) <= body.state.offset
        except OSError:
            return False

    def _must_look(self) -> bool:
        b = self.current
        return b is None or b.handle is None or b.state.guard.end != b.state.offset

    # looking the path up

    def _look_up(self, now_us: int, p: Polled) -> bool:
        try:
            handle, seen = self._open(self.path)
        except OSError as e:
            self._removed = e.errno in GONE
            self._look.failed(now_us, self._patience)
            if self.current is None and e.errno not in NO_LOG_YET:
                self.current = self._body(State(self._next()), None, None, now_us)
            self._troubled(e, p)
            return False
        self._look.went_well()
        self._here, self._removed = seen, False
        cur = self.current
        if cur is not None and (was := cur.candidate) is not None and not seen.is_of(was.ino, was.born_ns):
            self._close(cur)
            self._tell(cur, p)
            p.items.append(Gap(cur.state.generation, cur.state.offset, PASSED))
            cur.candidate, cur.state = None, replace(cur.state, doubt=False, proof=None)
        if cur is None:
            self.current = self._body(State(self._next()), seen, handle, now_us)
        elif cur.candidate is not None or cur.same(seen):
            self._shrunk(cur, seen, p)
            self._close(cur)
            cur.handle = handle
            if cur.candidate is None:
                cur.ino, cur.born_ns = seen.ino, seen.born_ns
        else:
            self._replaced(cur, seen, handle, now_us, p)
        return True

    def _replaced(self, cur: Body, seen: Stat, handle: int, now_us: int, p: Polled) -> None:
        """Another file stands at the path."""
        back = next((e for e in self.elders if e.role == "renamed" and e.ino is not None and e.same(seen)), None)
        if cur.handle is None:
            cur.handle = self._search(cur, copy=False)
        # Files with other numbers may hold the same bytes: restored, or another server.
        if cur.handle is None and back is None and cur.state.guard.length >= ENOUGH_BYTES:
            cur.handle, cur.candidate, cur.state = handle, seen, replace(cur.state, doubt=True, proof=None)
            return
        if back is not None:
            self.elders.remove(back)
            self._close(back)
            back.handle, back.role = handle, "path"
        self._retire(cur, "renamed", now_us, p)
        self.current = back or self._body(State(self._next()), seen, handle, now_us)

    def _shrunk(self, cur: Body, seen: Stat, p: Polled) -> None:
        """Bytes that were never read are gone: a file that is shorter than it was, behind what was read of it."""
        if cur.state.offset <= seen.size < cur.size:
            self._tell(cur, p)
            p.items.append(Gap(cur.state.generation, seen.size, SHRUNK.format(cur.size - seen.size)))
        if seen.size < cur.size:  # NULs that come behind its end now are not those that were waited for
            accepted = min(cur.state.accept_to, seen.size)
            cur.state = replace(cur.state, nul_since_us=None, nul_to=0, accept_to=accepted)
        cur.size = seen.size

    def _open(self, path: bytes) -> tuple[int, Stat]:
        return open_checked(self._files, path, self._owner)

    def _search(self, body: Body, copy: bool) -> int | None:
        return find(self._files, self.path, self._owner, body, copy)

    def _next(self) -> int:
        self._generation += 1
        return self._generation

    @staticmethod
    def _body(state: State, seen: Stat | None, handle: int | None, now_us: int) -> Body:
        if seen is None:
            return Body(state, quiet_since_us=now_us)
        return Body(state, seen.ino, seen.born_ns, handle, quiet_since_us=now_us, size=seen.size)

    # reading

    def _follow(self, t: Terms, p: Polled) -> None:
        """Read what the path leads to; where that is no longer what was being read, begin with what is there now."""
        for _ in range(3):
            cur = self.current
            assert cur is not None
            changed = self._run(cur, t, p)
            if changed is None:
                self._adopt(cur)
                p.end = cur.drained and self.refused is None and not self._undrained()
                return
            self._succeed(cur, changed, t.now_us, p)
            if self._undrained():
                return

    @staticmethod
    def _adopt(cur: Body) -> None:
        """Another file in the same place was proven to hold the same bytes."""
        if cur.candidate is not None and not cur.state.doubt:
            cur.ino, cur.born_ns, cur.candidate = cur.candidate.ino, cur.candidate.born_ns, None

    def _succeed(self, cur: Body, changed: Changed, now_us: int, p: Polled) -> None:
        """The next generation begins in the file that is open; what is left of the one before is sought elsewhere."""
        self._adopt(cur)
        young = Body(replace(changed.then, generation=self._next()), cur.ino, cur.born_ns, cur.handle)
        young.quiet_since_us, young.size = now_us, self._size(cur)
        cur.handle = None
        if cur.candidate is not None:
            young.ino, young.born_ns = cur.candidate.ino, cur.candidate.born_ns
            self._retire(cur, "renamed", now_us, p)
        elif changed.kept is not None:
            self._end(cur, p, changed.kept, True)
        else:
            cur.handle = self._search(cur, copy=True)
            if cur.handle is not None:
                self._retire(cur, "copy", now_us, p)
            else:
                self._end(cur, p, REWRITTEN.format(cur.state.offset), True)
        self.current = young

    def _size(self, body: Body) -> int:
        """Of the open file now: what it was before it was rewritten would look like bytes cut off unread at the next look."""
        try:
            return self._files.stat(body.handle).size if body.handle is not None else 0
        except OSError:
            return 0

    def _run(self, body: Body, t: Terms, p: Polled) -> Changed | None:
        """Drive the machine until it rests. A failure leaves it where it was; what it gave before counts."""
        assert body.handle is not None
        body.drained = False
        seen: Seen = reading.Look()
        try:
            while True:
                done = reading.step(body.state, seen, t)
                if not self._give(body, done.items, t.now_us, p):
                    return None
                body.state = done.state
                match done.want:
                    case reading.Read(at, length):
                        seen = reading.Got(done.want, self._files.read(body.handle, at, length))
                    case reading.Size(raw):
                        seen = reading.Sized(self._files.stat(body.handle).size, raw)
                    case reading.Seek(at):
                        to = self._files.data_after(body.handle, at)
                        seen = reading.Sought(done.want, to, self._files.stat(body.handle).size)
                    case reading.Rest(end):
                        if end and (t.final or body.role != "path"):  # a short read is no proof of an end
                            waits = body.state.nul_since_us is not None
                            end = waits or self._files.stat(body.handle).size <= body.state.offset
                        self._reads.went_well()
                        self._tell(body, p)
                        body.drained = end
                        return None
                    case Changed():
                        return done.want
        except OSError as e:
            self._reads.failed(t.now_us, self._patience)
            if e.errno in STALE:
                self._close(body)
                body.quiet_since_us = t.now_us
            self._troubled(e, p)
            return None

    def _give(self, body: Body, items: tuple[Item, ...], now_us: int, p: Polled) -> bool:
        """Hand items over; False: the first bytes say that this is no log."""
        for item in items:
            if isinstance(item, Bytes) and not body.told and body.state.offset == 0:
                head = item.data[:SNIFF_BYTES]
                if is_packed(head):
                    return self._refuse(body, "packed, so it does not grow: 'defib replay' reads it")
                if head.startswith(MAGIC) or (len(head) >= SNIFF_MIN and is_binary(head)):
                    return self._refuse(body, "looks binary, not a log")
            self._tell(body, p)
            if not isinstance(item, Gap):
                body.quiet_since_us = now_us
                p.fresh += item.length if isinstance(item, Hole) else len(item.data)
            p.items.append(item)
        return True

    def _refuse(self, body: Body, why: str) -> bool:
        self.refused = why
        self._close(body)
        return False

    # older files

    def _drain(self, now_us: int, quantum: int, p: Polled, final: bool) -> bool:
        """Read on in older files of the path. True: one of them is not yet at its end, so the newer one waits."""
        wait = False
        for e in list(self.elders):
            if not e.told:
                self._tell(e, p)
                e.quiet_since_us = now_us
            if e.handle is None and now_us >= self._look.at_us:
                e.handle = self._search(e, copy=e.role == "copy")
            if e.handle is None:
                if final or now_us - e.quiet_since_us >= self._patience.search_us:
                    self._drop(e, p, UNFOUND.format(e.state.offset), True)
                continue
            if now_us < self._reads.at_us:
                continue
            t = Terms(now_us, quantum, self._patience.nul_us, final or e.role == "copy", True)
            before = p.failed
            changed = self._run(e, t, p)
            if changed is not None:
                self._drop(e, p, REWRITTEN.format(e.state.offset), True)
            elif e.drained and e.role == "copy":
                self._drop(e, p, COPIED.format(e.state.offset), True)
            elif (
                e.drained
                and e.state.nul_since_us is None
                and (final or now_us - e.quiet_since_us >= self._patience.linger_us)
            ):
                self._drop(e, p, REPLACED, False)
            elif not e.drained and p.failed == before:
                wait = True
        return wait

    def _undrained(self) -> bool:
        return any(e.handle is not None and not e.drained for e in self.elders)

    def _retire(self, body: Body, role: str, now_us: int, p: Polled) -> None:
        body.role, body.drained, body.quiet_since_us, body.candidate = role, False, now_us, None
        doubt = role == "copy" and body.state.guard.start <= PROOF_MAX
        body.state = replace(body.state, doubt=doubt, proof=None)
        self._tell(body, p)
        self.elders.append(body)
        if len(self.elders) > ELDERS_MAX:
            self._drop(self.elders[0], p, CROWDED.format(self.elders[0].state.offset), True)

    def _drop(self, elder: Body, p: Polled, note: str, lost: bool) -> None:
        self.elders.remove(elder)
        self._end(elder, p, note, lost)

    # telling

    def _tell(self, body: Body, p: Polled) -> None:
        if not body.told:
            body.told = True
            p.items.append(Begin(body.state.generation, body.state.offset, body.state.line, body.size))

    def _end(self, body: Body, p: Polled, note: str | None, lost: bool) -> None:
        self._close(body)
        self._tell(body, p)
        p.items.append(End(body.state.generation, note, lost))

    def _troubled(self, e: OSError, p: Polled) -> None:
        text = e.strerror or str(e)
        p.failed = e.errno
        if self.current is not None and text != self.trouble:
            self._tell(self.current, p)
            p.items.append(Trouble(self.current.state.generation, text))
        self.trouble = text

    def _close(self, body: Body) -> None:
        if body.handle is not None:
            self._shut(body.handle)
            body.handle = None

    def _shut(self, handle: int) -> None:
        with contextlib.suppress(OSError):  # the descriptor is gone either way
            self._files.close(handle)
