"""The controller's end of the executor: starts it, hands orders over, hears answers. None of it waits.

In: orders. Out: `Returned`, pongs. Always: an order is written to the socket once; one that could not be is answered `not-run`; a process that
died is started again, later each time, and what it left open is answered by its successor or by nobody.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from defib.adapters.act import executor, talk
from defib.adapters.slurm.calls import Commands
from defib.engine.recover.events import Returned
from defib.engine.recover.words import Order

AGAIN_US = 1_000_000
AGAIN_MAX_US = 60_000_000
END_S = 15.0


@dataclass(slots=True)
class ExecutorProcess:
    """One executor as a child. state, actions, stops: see `executor`; say: for what a person should know. ponged_us: when it last answered."""

    state: str
    actions: str
    stops: tuple[str, ...]
    commands: Commands
    say: Callable[[str], None]
    ponged_us: int | None = None
    epoch: int | None = None
    _child: subprocess.Popen[bytes] | None = None
    _link: socket.socket | None = None
    _due_us: int = 0
    _wait_us: int = AGAIN_US
    _pings: int = 0
    _lost: list[Returned] = field(default_factory=list)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def order(self, order: Order, now_us: int) -> None:
        """Hand it over; never twice."""
        if not self._send(talk.ask(order, 0, now_us)):
            self._lost.append(Returned(now_us, order.number, order.key, "not-run", "no-executor"))

    def poll(self, now_us: int) -> list[Returned]:
        """Keep it alive; what it said since."""
        said, self._lost = self._lost, []
        if self._link is None:
            self._start(now_us)
        while self._link is not None:
            try:
                raw = self._link.recv(talk.PACKET_MAX + 1)
            except BlockingIOError:
                break
            except OSError:
                raw = b""
            if not raw:
                self._gone(now_us)
                break
            found = talk.answered(raw)
            if isinstance(found, Returned):
                said.append(found)
            else:
                self.ponged_us, self.epoch, self._wait_us = now_us, found.epoch, AGAIN_US
        return said

    def ping(self, now_us: int) -> None:
        self._pings += 1
        self._send(talk.ask(None, self._pings, now_us))

    def close(self) -> None:
        """It ends when nobody speaks to it any more, after the call it is in."""
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(END_S)
            self._child = None

    def _send(self, packet: bytes) -> bool:
        if self._link is None:
            return False
        try:
            self._link.send(packet)
        except OSError:  # gone, or it does not read: a packet is taken whole or not at all
            return False
        return True

    def _start(self, now_us: int) -> None:
        if now_us < self._due_us:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = theirs.fileno()
        argv = [
            sys.executable, "-I", "-m", executor.__name__, "--state", self.state, "--actions", self.actions,
            "--commands", executor.described(self.commands), "--socket", str(number),
            *(word for path in self.stops for word in ("--stop", path)),
        ]  # fmt: skip
        with theirs:
            try:
                self._child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(number,), cwd="/", close_fds=True,
                    env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
                )  # fmt: skip
            except OSError as e:
                ours.close()
                self.say(f"the executor cannot be started: {e.strerror}")
                self._later(now_us)
                return
        ours.setblocking(False)
        self._link = ours

    def _gone(self, now_us: int) -> None:
        assert self._link is not None
        self._link.close()
        self._link = None
        rc = self._child.wait() if self._child is not None else None
        self._child, self.ponged_us = None, None
        self.say(f"the executor ended (exit code {rc}); nothing is called until it is back")
        self._later(now_us)

    def _later(self, now_us: int) -> None:
        self._due_us = now_us + self._wait_us
        self._wait_us = min(2 * self._wait_us, AGAIN_MAX_US)
