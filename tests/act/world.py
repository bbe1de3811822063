"""A scontrol that writes down how it was called, and an executor around it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from defib.adapters.act import talk
from defib.adapters.act.client import ExecutorProcess
from defib.adapters.act.executor import Executor
from defib.adapters.journal.writer import Journal
from defib.adapters.slurm.calls import Answer, Commands
from defib.engine.jobs import AttemptKey
from defib.engine.recover.events import Returned
from defib.engine.recover.words import Order

ATTEMPT = AttemptKey("bed", 1001, None, 1_000_000, 0)


def order(now: int, number: int = 1, **changes: object) -> Order:
    """A requeue of job 1001 that is good for two seconds."""
    values: dict[str, object] = {
        "key": f"{1:032x}", "number": number, "verb": "requeue", "by": "id", "job_id": 1001, "array_task": None, "sluid": None,
        "incomplete": False, "expected": ATTEMPT, "target": "terminal", "nodes": (), "read_us": now, "not_after_us": now + 2_000_000,
        "kill_after_s": 5.0, "epoch": 1,
    }  # fmt: skip
    return Order(**(values | changes))  # type: ignore[arg-type]


class World:
    """A state folder with a controller's lock, a scontrol of our own, kill switches."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls_file = root, root / "calls"
        self.actions, self.state, self.stop = root / "actions", root / "executor", root / "STOP"
        self.journal = Journal(str(self.actions), ballast_bytes=4096)
        self.bin = root / "bin"
        self.bin.mkdir()
        self.scontrol()

    def scontrol(self, then: str = "exit 0") -> None:
        """What it does after it has written its arguments down, one call a line."""
        path = self.bin / "scontrol"
        fresh = path.with_name("scontrol.new")
        fresh.write_text(f'#!/bin/sh\nprintf "%s " "$@" >>{self.calls_file}; echo >>{self.calls_file}\n{then}\n')
        fresh.chmod(0o755)
        fresh.rename(path)

    @property
    def commands(self) -> Commands:
        return Commands(folder=str(self.bin))

    @property
    def calls(self) -> list[str]:
        return [line.strip() for line in self.calls_file.read_text().splitlines()] if self.calls_file.exists() else []

    def executor(self, **changes: object) -> Executor:
        """In this process."""
        from defib.adapters.act import executor, switch

        values: dict[str, object] = {
            "newest": lambda: switch.newest_epoch(str(self.actions)), "stopped": lambda: switch.stopped([str(self.stop)]),
            "run": lambda o: executor.call(self.commands, o),
        }  # fmt: skip
        return Executor(str(self.state), **(values | changes))  # type: ignore[arg-type]

    def process(self, said: list[str] | None = None) -> ExecutorProcess:
        """As a process of its own."""
        say = (said if said is not None else []).append
        return ExecutorProcess(str(self.state), str(self.actions), (str(self.stop),), self.commands, say)


def now_us() -> int:
    return talk.boot_us() + 1_000_000_000_000


def answers(client: ExecutorProcess, count: int = 1, seconds: float = 20.0) -> list[Returned]:
    """What the executor says, waiting for so many answers."""
    said: list[Returned] = []
    end = time.monotonic() + seconds
    while len(said) < count and time.monotonic() < end:
        said += client.poll(now_us())
        time.sleep(0.01)
    return said


def up(client: ExecutorProcess) -> None:
    """Started and answering."""
    end = time.monotonic() + 20
    client.poll(now_us())
    client.ping(now_us())
    while client.ponged_us is None:
        assert time.monotonic() < end, "the executor does not answer"
        client.poll(now_us())
        time.sleep(0.01)


def finished(rc: int | None = 0, stderr: bytes = b"", **more: object) -> Answer:
    return Answer(("scontrol",), rc, stderr=stderr, **more)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
