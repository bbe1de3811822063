"""Folders that a made-up table of mounts calls mounts, real reader processes on them, and what came of it all."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from defib.adapters.mounts.router import Reader, Setup
from defib.adapters.mounts.source import Mounts
from defib.adapters.tail.clock import SystemClock
from defib.adapters.tail.pace import looking
from defib.engine.ports import Closed, Data, JobClosed, Looked, Marked, Opened, Skipped, SourceItem, Ticked
from defib.engine.rulebook import Template

SECOND = 1_000_000
PATIENCE_S = 20.0
PATHS = (
    Template("t.slurm", "by job id", r"slurm-(?P<job_id>\d+)\.out$"),
    Template("t.rank", "by rank", r"rank_(?P<rank>\d+)\.out$"),
)


class Site:
    """`disk` and `net` are mounts of their own beneath `home`; `poll` until something holds."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.kind = "nfs4"
        self.points = {home: "8:1", home / "disk": "8:2", home / "net": "0:44"}
        for point in self.points:
            point.mkdir(exist_ok=True)
        self.items: list[SourceItem] = []
        self.kept: dict[bytes, bytes] = {}
        self.source: Mounts | None = None
        self.waits: list[float] = []

    def table(self) -> bytes:
        lines = ["1 0 8:0 / / rw - ext4 /dev/vda rw"]
        lines += [f"{n} 1 {d} / {p} rw - {self.kind} server:/{d} rw" for n, (p, d) in enumerate(self.points.items(), 2)]
        return "\n".join(lines).encode()

    def open(
        self, *watches: str, roots: tuple[str, ...] = (), silent_s: float = 1.0, every_s: float = 0.2, **more: Any
    ) -> Mounts:
        named = [os.fsencode(self.home / w) for w in watches]
        self.source = Mounts(named, SystemClock(), [os.fsencode(self.home / r) for r in roots], read_table=self.table)
        self.source.begin(Setup(PATHS, None, looking(int(every_s * SECOND)), silent_us=int(silent_s * SECOND)), **more)
        return self.source

    def poll(self) -> list[SourceItem]:
        assert self.source is not None
        began = time.monotonic()
        items = self.source.poll()
        self.waits.append(time.monotonic() - began)
        assert items is not None
        assert [type(i) for i in items].count(Ticked) == 1
        assert isinstance(items[-1], Ticked)
        self.items += items
        for item in items:
            if isinstance(item, Marked):
                self.kept[item.key] = item.mark
        return items

    def until(self, holds: Callable[[], object]) -> None:
        began = time.monotonic()
        while not holds():
            assert time.monotonic() - began < PATIENCE_S, (
                self.streams,
                self.of(Looked)[-5:],
                self.source and self.source.unread,
            )
            self.poll()

    def write(self, name: str, data: bytes, mode: str = "ab") -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as f:
            f.write(data)
        return path

    def reader(self, point: str) -> Reader:
        assert self.source is not None
        return next(r for r in self.source.readers() if r.mount.point == os.fsencode(self.home / point))

    def signal(self, point: str, number: signal.Signals) -> None:
        pid = self.reader(point).process.pid
        assert pid is not None
        os.kill(pid, number)

    def of(self, kind: type[Any]) -> list[Any]:
        return [i for i in self.items if isinstance(i, kind)]

    @property
    def streams(self) -> dict[tuple[str, int], bytes]:
        """(name, generation) -> bytes as they were handed over. Numbers are used once and nothing comes of a stream after its end."""
        names, out, ended = dict[int, tuple[str, int]](), dict[tuple[str, int], bytes](), set[int]()
        for item in self.items:
            if isinstance(item, Opened):
                assert item.stream not in names
                names[item.stream] = (os.path.relpath(item.id.path, self.home), item.id.generation)
                out[names[item.stream]] = bytes(item.offset)
            elif isinstance(item, Data | Skipped | Looked | Closed):
                assert item.stream in names
                assert item.stream not in ended
                if isinstance(item, Data):
                    out[names[item.stream]] += item.data
                elif isinstance(item, Closed):
                    ended.add(item.stream)
        return out

    def troubles(self, name: str) -> list[str | None]:
        """What was told of a log, one after another."""
        numbers = {o.stream for o in self.of(Opened) if os.path.relpath(o.id.path, self.home) == name}
        told = [i.trouble for i in self.of(Looked) if i.stream in numbers]
        return [t for n, t in enumerate(told) if n == 0 or t != told[n - 1]]

    def stop(self) -> None:
        """Until it is done."""
        assert self.source is not None
        self.source.stop()
        began = time.monotonic()
        while (items := self.source.poll()) is not None:
            self.items += items
            assert time.monotonic() - began < PATIENCE_S

    @property
    def closed_jobs(self) -> list[str | None]:
        return [i.job.job_id for i in self.of(JobClosed)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path.resolve())
    yield made
    if made.source is not None:
        for reader in made.source.readers():
            if reader.process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(reader.process.pid, signal.SIGCONT)
        made.source.close()
