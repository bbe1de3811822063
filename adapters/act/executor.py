"""The executor: runs the calls that the controller orders, each at most once. It sees no log, no name and no comment, only fixed records.

In: orders over a packet socket that it was born with. Out: `done`, `rejected`, `unclear` or `not-run`. Always: an intent is on disk before a command
is begun; an order's number and key count as used from then on, also after a crash; intents without an outcome are answered `unclear` at the
next start; epoch and time are checked twice, the kill switch last, right before the command.

    python -m defib.adapters.act.executor --state DIR/executor --actions DIR/actions --stop PATH --commands JSON --socket N
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson

from defib.adapters.act import switch, talk, verbs
from defib.adapters.journal import segments
from defib.adapters.journal.place import HeldError
from defib.adapters.journal.writer import Journal
from defib.adapters.slurm.calls import Answer as Finished
from defib.adapters.slurm.calls import Commands
from defib.engine.recover import codec
from defib.engine.recover.events import Answer, Returned
from defib.engine.recover.words import Order
from defib.engine.words import StoreError

BALLAST = 1024 * 1024
LOCK_WAIT_S = 20.0  # longer than one call: the executor of a controller that was killed may be about to end
# Calls of one key: one, and the repetitions that the order itself names as such. A release may be needed often (the hold must go).
CALLS_MAX = {"requeue": 2, "requeuehold": 2, "exclude": 2, "release": 10}

Run = Callable[[Order], Finished]


class Executor:
    """One order at a time. newest: the greatest epoch; stopped: the kill switch; run: the command itself; now: the machine's clock.

    Raises StoreError where its journal cannot be opened. owed: answers about what an earlier process left open.
    """

    def __init__(
        self, folder: str, newest: Callable[[], int], stopped: Callable[[], bool], run: Run, boot_us: Callable[[], int] = talk.boot_us
    ) -> None:  # fmt: skip
        self._newest, self._stopped, self._run, self._boot = newest, stopped, run, boot_us
        self._journal = Journal(folder, ballast_bytes=BALLAST)
        self._number = 0
        self._calls: dict[str, int] = {}
        self.owed: list[Returned] = []
        self._remember(folder)

    def take(self, order: Order, ahead_us: int) -> Returned:
        """Run it, or say why not. ahead_us: the controller's clock minus the machine's."""

        def said(answer: Answer, code: str = "", began: int | None = None) -> Returned:
            return Returned(self._boot() + ahead_us, order.number, order.key, answer, code, began)

        why = self._used(order) or self._outdated(order, ahead_us)
        if why:
            return said("not-run", why)
        try:
            self._write("intent", {"order": codec.plain(order), "argv": list(verbs.words(order))})
        except StoreError:
            return said("not-run", "journal")
        self._number = order.number
        self._calls[order.key] = self._calls.get(order.key, 0) + 1
        # the write may have taken long; what can stop the call is looked at again, the kill switch last
        why = self._outdated(order, ahead_us) or ("kill-switch" if self._stopped() else "")
        if why:
            return self._close(order, said("not-run", why))
        began = self._boot() + ahead_us
        done = self._run(order)
        answer, code = verbs.meaning(done)
        return self._close(order, said(answer, code, None if answer == "not-run" else began), done)

    def pong(self, ping: int) -> talk.Pong:
        """A sign of life, with a look at the lock file."""
        try:
            return talk.Pong(ping, self._newest())
        except (OSError, ValueError):
            return talk.Pong(ping, 0)

    def close(self) -> None:
        self._journal.close()

    def _used(self, order: Order) -> str:
        calls = self._calls.get(order.key, 0)
        if order.number <= self._number or (calls and not order.reissue) or calls >= CALLS_MAX[order.verb]:
            return "key"
        return ""

    def _outdated(self, order: Order, ahead_us: int) -> str:
        try:
            if self._newest() != order.epoch:
                return "epoch"
        except (OSError, ValueError):
            return "epoch"
        now = self._boot() + ahead_us
        return "" if order.read_us <= now <= order.not_after_us else "late"

    def _close(self, order: Order, said: Returned, done: Finished | None = None) -> Returned:
        """The outcome on disk. Where that fails the answer still goes out; the next start answers `unclear` for it, which is safe."""
        if said.answer == "not-run":
            self._calls[order.key] -= 1
        told = {} if done is None else {"rc": done.rc, "stderr": done.said[:300], "took_s": round(done.took_s, 3)}
        try:
            self._write(
                "outcome", {"number": order.number, "key": order.key, "answer": said.answer, "code": said.code, **told}
            )
        except StoreError as e:
            print(f"defib executor: {e}", file=sys.stderr)
        return said

    def _write(self, kind: str, values: dict[str, Any]) -> None:
        self._journal.append(kind, orjson.dumps(values))
        self._journal.sync()

    def _remember(self, folder: str) -> None:
        """What earlier processes did: numbers, keys, and intents that have no outcome."""
        waiting: dict[int, str] = {}
        for record in segments.read(folder):
            if record.kind == "intent":
                order = orjson.loads(record.payload)["order"]
                self._number = max(self._number, order["number"])
                self._calls[order["key"]] = self._calls.get(order["key"], 0) + 1
                waiting[order["number"]] = order["key"]
            elif record.kind == "outcome":
                values = orjson.loads(record.payload)
                waiting.pop(values["number"], None)
                if values["answer"] == "not-run":
                    self._calls[values["key"]] -= 1
        for number, key in waiting.items():
            self.owed.append(Returned(0, number, key, "unclear", "executor-died"))
            self._write("outcome", {"number": number, "key": key, "answer": "unclear", "code": "executor-died"})


def call(commands: Commands, order: Order) -> Finished:
    """One command of Slurm with its deadline, on this side and where the client runs."""
    return verbs.bounded(commands, order.kill_after_s).run(
        "scontrol", *verbs.words(order), deadline_s=order.kill_after_s
    )


def serve(executor: Executor, link: socket.socket) -> None:
    """Orders one after the other until the controller is gone."""
    owed, executor.owed = executor.owed, []
    for said in owed:
        link.send(talk.answer(said))
    while raw := link.recv(talk.PACKET_MAX + 1):
        try:
            asked = talk.asked(raw)
        except (ValueError, TypeError) as e:
            print(f"defib executor: a packet is refused: {e}", file=sys.stderr)
            continue
        if asked.order is None:
            link.send(talk.answer(executor.pong(asked.ping)))
        else:
            link.send(talk.answer(executor.take(asked.order, asked.ahead_us)))


def opened(make: Callable[[], Executor], patience_s: float = LOCK_WAIT_S) -> Executor:
    """An executor, after waiting for one that is about to end. Raises StoreError."""
    end = time.monotonic() + patience_s
    while True:
        try:
            return make()
        except HeldError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def main(argv: list[str] | None = None) -> int:
    """The process. 0: the controller went away; 3: its journal cannot be used."""
    p = argparse.ArgumentParser("defib-executor")
    p.add_argument("--state", required=True)
    p.add_argument("--actions", required=True)
    p.add_argument("--stop", action="append", default=[])
    p.add_argument("--commands", required=True)
    p.add_argument("--socket", type=int, required=True)
    args = p.parse_args(argv)
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's affair; we end when it goes
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    told = orjson.loads(args.commands)
    commands = Commands(**(told | {"prefix": tuple(told.get("prefix", ()))}))
    newest, stopped = functools.partial(switch.newest_epoch, args.actions), functools.partial(switch.stopped, args.stop)
    try:
        executor = opened(lambda: Executor(args.state, newest, stopped, functools.partial(call, commands)))
    except StoreError as e:
        print(f"defib executor: {e}", file=sys.stderr)
        return 3
    with socket.socket(fileno=args.socket) as link:
        try:
            serve(executor, link)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            executor.close()
    return 0


def described(commands: Commands) -> str:
    """Commands as the argument of `--commands`."""
    return orjson.dumps(dataclasses.asdict(commands)).decode()


if __name__ == "__main__":
    sys.exit(main())
