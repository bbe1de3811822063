"""A reader process: follows the logs of one mount and says what it reads. `python -P -m defib.adapters.mounts.reader SOCKET PARENT`.

In: a socket it was born with; its first message is the set-up, then commands. Out: the items of every poll. Always holds: it dies with its
parent (unless stuck in the kernel), it touches no other mount, it stops reading when the parent does not take what was read (the file is
the buffer), and a sign of life goes out at least every second unless a single call on the mount does not return.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from defib.adapters.mounts.frames import E, J, Unpacker, facts_of, job_of, latin, pack, pack_items, raw
from defib.adapters.mounts.resolve import ElsewhereError, resolve, root_of
from defib.adapters.tail.clock import SystemClock
from defib.adapters.tail.files import Name, Stat, SystemFiles
from defib.adapters.tail.hints import LocalHints
from defib.adapters.tail.limits import Limits
from defib.adapters.tail.mountinfo import Mount, inside
from defib.adapters.tail.pace import Pace
from defib.adapters.tail.source import TailSource
from defib.engine.identity import Known
from defib.engine.rulebook import Template

ALIVE_S = 1.0
AT_ONCE_BYTES, AT_ONCE_S = 2 * 1024 * 1024, 0.2
COUNT_S = 5.0
HINTED_MAX = 1000  # with more logs the schedule of looks is what bounds the work
PR_SET_PDEATHSIG = 1

T = TypeVar("T")


@dataclass(slots=True)
class AliveFiles:
    """The files of the mount; between two calls that took long a sign of life goes out."""

    files: SystemFiles
    alive: Callable[[], None]

    def open(self, path: bytes) -> int:
        return self._done(self.files.open(path))

    def stat(self, handle: int) -> Stat:
        return self._done(self.files.stat(handle))

    def read(self, handle: int, at: int, length: int) -> bytes:
        return self._done(self.files.read(handle, at, length))

    def data_after(self, handle: int, at: int) -> int | None:
        return self._done(self.files.data_after(handle, at))

    def names(self, folder: bytes) -> list[Name]:
        return self._done(self.files.names(folder))

    def close(self, handle: int) -> None:
        self.files.close(handle)

    def _done(self, got: T) -> T:
        self.alive()
        return got


@dataclass(slots=True)
class Wire:
    """The socket: what is said goes out whole; what comes in is taken without waiting, or waited for a while."""

    socket: socket.socket
    _unpacker: Unpacker = field(default_factory=Unpacker)
    _said_s: float = 0.0

    def say(self, frames: bytes) -> None:
        self.socket.sendall(frames)
        self._said_s = time.monotonic()

    def alive(self) -> None:
        if time.monotonic() - self._said_s > ALIVE_S:
            self.say(pack(J, []))

    def hear(self, wait_s: float) -> list[Any]:
        """Messages that came. Raises EOFError when the parent is gone."""
        out: list[Any] = []
        while select.select([self.socket], [], [], wait_s)[0]:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            out += [value for _, value in self._unpacker.feed(data)]
            wait_s = 0
            if out and not self._unpacker.held:
                break
        return out


class Reader:
    """One mount's source, its wishes and its answers."""

    def __init__(self, wire: Wire, setup: dict[str, Any], marks: list[list[str]]) -> None:
        self.wire = wire
        self.mine = Mount(raw(setup["point"]), setup["kind"], setup["device"], setup["source"])
        self.files = SystemFiles(())
        self._known: list[Mount] = []
        self._mounts(setup["mounts"])
        self._clock = _WakingClock(self)
        self._waiting: list[Any] = []
        self._hints: LocalHints | None = None
        self._folders: set[bytes] = set()
        self._counted_s, self._lag, self._followed = 0.0, 0, 0
        templates = tuple(Template(i, t, p) for i, t, p in setup["templates"])
        self.source = TailSource(
            [],
            templates,
            AliveFiles(self.files, wire.alive),
            self._clock,
            Known(setup["cluster"]),
            Pace(**setup["pace"]),
            kept={raw(path): raw(mark) for path, mark in marks},
            hints=self._hinted,
            limits=Limits(**setup["limits"]),
        )

    def run(self) -> None:
        """Until told to stop, or the parent is gone."""
        while True:
            self.obey(self._waiting)
            self._waiting = []
            self.obey(self.wire.hear(0))
            read = self._read()
            if read is None:
                break
            self.wire.say(read + pack(E, self._end()))
        self.wire.say(pack(E, {"over": True}))

    def _read(self) -> bytes | None:
        """One poll, or several while there is more: much at once costs the engine less than often a little."""
        out, size, began = list[bytes](), 0, time.monotonic()
        while True:
            items = self.source.poll()
            if items is None:
                return b"".join(out) if out else None
            frames = b"".join(pack_items(items))
            out.append(frames)
            size += len(frames)
            if not self.source.behind or size >= AT_ONCE_BYTES or time.monotonic() - began >= AT_ONCE_S:
                return b"".join(out)

    def wait(self, us: int) -> None:
        """The source rests; a command ends the rest."""
        if not self._waiting:
            self._waiting += self.wire.hear(us / 1e6)

    def obey(self, commands: list[Any]) -> None:
        for command in commands:
            match command:
                case ["name", path, kind]:
                    self._name(raw(path), kind)
                case ["watch", path]:
                    self._watch(raw(path))
                case ["assign", path, facts, owner]:
                    self.source.assign(raw(path), facts_of(facts), owner)
                case ["release", path]:
                    self.source.release(raw(path))
                case ["running", job, yes]:
                    self.source.running(job_of(job), yes)
                case ["over", job]:
                    self.source.over(job_of(job))
                case ["mounts", known]:
                    self._mounts(known)
                case ["stop"]:
                    self.source.stop()

    def _mounts(self, known: list[list[str]]) -> None:
        """The table as the parent read it; what is mounted elsewhere is not touched."""
        self._known = [Mount(raw(point), kind, device, source) for point, kind, device, source in known]
        self.files.others = frozenset(m.point for m in self._known if m.point != self.mine.point)

    def _name(self, named: bytes, kind: str) -> None:
        """Something named is on this mount as far as its text tells: see where it leads."""
        try:
            found = resolve(named, self.mine, self._known, literal=kind == "root")
        except ElsewhereError as e:
            self.wire.say(pack(J, [["elsewhere", latin(named), kind, latin(e.path)]]))
            return
        except OSError as e:
            self.wire.say(pack(J, [["unnamed", latin(named), kind, e.strerror or str(e)]]))
            return
        if kind == "watch":
            self._watch(found)
        else:
            self._root(found)
        self.wire.say(pack(J, [["here", latin(named), kind, latin(found)]]))

    def _watch(self, place: bytes) -> None:
        self._root(root_of(place))
        self.source.watch(place)

    def _root(self, root: bytes) -> None:
        root = root if inside(root, self.mine.point) else self.mine.point
        if root not in self.files.roots:
            self.files.roots += (root,)

    def _hinted(self) -> set[bytes]:
        return self._hints() if self._hints is not None else set()

    def _end(self) -> dict[str, Any]:
        """What is said at the end of a poll. Counting is not for every one of them."""
        unread, now = self.source.unread, time.monotonic()
        if now - self._counted_s > COUNT_S:
            self._counted_s, self._lag = now, self.source.lag()
            followed = self.source.followed
            self._followed = len(followed)
            self._listen({os.path.dirname(p) for p in followed} if self._followed <= HINTED_MAX else set())
        changed = [[latin(p), unread.get(p)] for p in unread.changed]
        unread.changed.clear()
        return {"behind": self.source.behind, "unread": changed, "followed": self._followed, "lag": self._lag}

    def _listen(self, folders: set[bytes]) -> None:
        """Hints for the folders of the logs there are, on local disks only."""
        if not self.mine.local or folders == self._folders:
            return
        if self._hints is not None:
            self._hints.close()
        self._folders, self._hints = folders, LocalHints(sorted(folders)) if folders else None


@dataclass(slots=True)
class _WakingClock(SystemClock):
    """The machine's clock; sleeping is listening."""

    reader: Reader

    def __post_init__(self) -> None:
        SystemClock.__init__(self)

    def sleep_us(self, us: int) -> None:
        self.reader.wait(max(0, us))


def die_with(parent: int) -> None:
    """Be killed when the parent ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


def main() -> None:
    """The process."""
    die_with(int(sys.argv[2]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent says when it is enough
    wire = Wire(socket.socket(fileno=int(sys.argv[1])))
    try:
        told: list[Any] = []
        while ["go"] not in told:
            told += wire.hear(3600)
        go = told.index(["go"])
        reader = Reader(wire, told[0], [m for some in told[1:go] for m in some[1]])
        reader.obey(told[go + 1 :])
        reader.run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    os._exit(0)  # nothing to tidy up that could wait on the mount


if __name__ == "__main__":
    main()
