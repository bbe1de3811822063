"""One reader process as the main process sees it: started, heard, told, given up, started again.

In: a set-up, commands, the observer's clock. Out: whole polls of the reader. Always holds: nothing here waits; commands to a reader that does
not take them are not heaped up (it gets the state of things when it answers again); a reader that dies is started again after 1 s, 2 s, …
60 s; of those that cannot even be killed at most a few are left standing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from defib.adapters.mounts.frames import D, E, J, Unpacker, item_of, pack
from defib.engine.ports import Data, SourceItem
from defib.engine.words import SourceError

SECOND = 1_000_000
QUEUE_BYTES = (
    8 * 1024 * 1024
)  # of whole polls that wait to be taken; then the socket is left alone, and the reader rests
OUT_MAX = 4 * 1024 * 1024
BACKOFF_MAX_US = 60 * SECOND
KILL_AFTER_US = 300 * SECOND  # of silence: what hangs may be bound to a mount that is not there any more
STUCK_MAX = 3
CALM_US = 60 * SECOND  # a reader that lived so long had a good start


@dataclass(slots=True)
class Poll:
    """What a reader said in one of its polls. notes: what is no item; end: its last word in it."""

    items: list[SourceItem] = field(default_factory=list)
    notes: list[list[Any]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    size: int = 0


@dataclass(slots=True)
class Process:
    """setup: asked for at every start. polls: whole ones, not yet taken."""

    setup: Callable[[], list[Any]]
    polls: deque[Poll] = field(default_factory=deque)
    heard_us: int = 0
    born_us: int = 0
    deaths: int = 0
    last_end: str = ""
    owes: bool = False  # commands were not sent: it must be told the state of things
    _socket: socket.socket | None = None
    _child: subprocess.Popen[bytes] | None = None
    _stuck: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _unpacker: Unpacker = field(default_factory=Unpacker)
    _open: Poll = field(default_factory=Poll)
    _out: bytearray = field(default_factory=bytearray)
    _queued: int = 0
    _greeted: bool = False
    _again_us: int = 0

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        return self._socket is not None

    @property
    def stuck(self) -> int:
        """Killed, but not gone."""
        return len(self._stuck)

    @property
    def listens(self) -> socket.socket | None:
        """The socket, where something would be taken from it."""
        return self._socket if self._queued < QUEUE_BYTES else None

    def spawn(self, now_us: int) -> None:
        """A process, where there is none and may be one."""
        self._stuck = [c for c in self._stuck if c.poll() is None]
        if self._socket is not None or self.polls or now_us < self._again_us or len(self._stuck) >= STUCK_MAX:
            return  # what it had read is taken first: the set-up says how far
        ours, theirs = socket.socketpair()
        words = [sys.executable, "-P", "-m", "defib.adapters.mounts.reader", str(theirs.fileno()), str(os.getpid())]
        with theirs:
            try:
                self._child = subprocess.Popen(  # noqa: S603 - this program itself, with two numbers
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, "POLARS_MAX_THREADS": "1"},  # a pool of threads is of no use for a few paths
                    process_group=0,  # Ctrl-C is for the parent
                )
            except OSError as e:
                ours.close()
                if self.born_us:  # it could be started before: the machine is short of something for a while
                    self._again_us = now_us + BACKOFF_MAX_US
                    return
                raise SourceError(
                    f"a process that reads logs cannot be started: {sys.executable}: {e.strerror}\n    mend: let the user that runs "
                    "defib run this interpreter, and have more processes if it is about their number"
                ) from e
        ours.setblocking(False)
        self._socket, self._unpacker, self._open, self._greeted = ours, Unpacker(), Poll(), False
        self._out.clear()
        self.born_us = now_us

    def start(self, now_us: int) -> None:
        """Give it life: a process that knows what to do."""
        self.spawn(now_us)
        if self._socket is None or self._greeted:
            return
        self._greeted, self.owes = True, False
        if not self.deaths:
            self.heard_us = now_us
        for message in self.setup():
            self._out += pack(J, message)
        self._push()

    @property
    def drained(self) -> bool:
        """Everything said to it was taken."""
        return not self._out

    def tell(self, command: list[Any]) -> None:
        """A command. One that cannot be kept is owed; before the start everything is."""
        if self._socket is None or not self._greeted or self.owes or len(self._out) > OUT_MAX:
            self.owes = self._greeted
        else:
            self._out += pack(J, command)
            self._push()

    def hear(self, now_us: int) -> None:
        """Take what has come, up to the bound."""
        self._push()
        while self._socket is not None and self._queued < QUEUE_BYTES:
            try:
                data = self._socket.recv(1 << 20)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._died(now_us)
                return
            self.heard_us = now_us
            try:
                for kind, value in self._unpacker.feed(data):
                    self._take(kind, value)
            except (ValueError, TypeError):
                self._died(now_us)

    def take(self) -> Poll | None:
        """The oldest whole poll."""
        if not self.polls:
            return None
        poll = self.polls.popleft()
        self._queued -= poll.size
        return poll

    def give_up(self, now_us: int) -> None:
        """It has been silent for too long: kill it. It goes when the kernel lets it."""
        self._died(now_us)

    def end(self, patience_s: float) -> None:
        """No longer wanted."""
        children = [*self._stuck, *([self._child] if self._child else [])]
        self.shut()
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(patience_s)
                continue
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: left standing
                child.wait(0.2)
            if child.returncode is None:
                child.returncode = -signal.SIGKILL  # nobody waits for it any more

    def _take(self, kind: int, value: Any) -> None:
        if kind == D:
            self._open.items.append(value)
            self._open.size += len(value.data) if isinstance(value, Data) else 0
        elif kind == J:
            for row in value:
                try:
                    self._open.items.append(item_of(row))
                except ValueError:
                    self._open.notes.append(row)
        elif kind == E:
            self._open.end = value
            self._open.size += 1000
            self._queued += self._open.size
            self.polls.append(self._open)
            self._open = Poll()

    def _push(self) -> None:
        while self._socket is not None and self._out:
            try:
                sent = self._socket.send(self._out[: 1 << 20])
            except (BlockingIOError, OSError):
                return
            del self._out[:sent]

    def _died(self, now_us: int) -> None:
        self.shut()
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.05)
            if child.returncode is None:
                self._stuck.append(child)
            self.last_end = f"signal {-child.returncode}" if (child.returncode or 0) < 0 else f"exit {child.returncode}"
        if now_us - self.born_us >= CALM_US:
            self.deaths = 0
        self._again_us = now_us + min(BACKOFF_MAX_US, SECOND << min(self.deaths, 6))
        self.deaths += 1
        self._open = Poll()

    def shut(self) -> None:
        """Hang up: it ends by itself."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
