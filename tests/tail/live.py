"""A live source over a folder of real files, with a clock of the test's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.conftest import Kit

from defib.adapters.tail.files import SystemFiles
from defib.adapters.tail.pace import SECOND
from defib.adapters.tail.source import TailSource
from defib.engine.ports import Data, Opened, Skipped, SourceItem, Ticked
from defib.engine.words import JobKey


class Clock:
    """Goes on only when slept through."""

    def __init__(self) -> None:
        self.us = 1_000 * SECOND
        self.slept = 0

    def now_us(self) -> int:
        return self.us

    def sleep_us(self, us: int) -> None:
        assert us > 0
        self.us += us
        self.slept += us


class Live:
    """A source over a folder, what it gave, and the streams put together again."""

    def __init__(self, folder: Path, made: Kit, **more: Any) -> None:
        self.folder, self.made, self.clock = folder, made, Clock()
        self.files = SystemFiles((os.fsencode(folder),))
        self.items: list[SourceItem] = []
        self.open(**more)

    def open(self, watches: list[bytes] | None = None, **more: Any) -> None:
        watches = watches or [os.fsencode(self.folder)]
        self.source = TailSource(watches, self.made.book.paths, self.files, self.clock, **more)

    def poll(self, seconds: float = 0) -> list[SourceItem]:
        """Once, or for so many seconds."""
        until, out = self.clock.us + int(seconds * SECOND), list[SourceItem]()
        while True:
            items = self.source.poll()
            assert items is not None
            assert isinstance(items[-1], Ticked)
            out += items
            if self.clock.us >= until and not self.source.behind:
                self.items += out
                return out

    def write(self, name: str, data: bytes, mode: str = "ab") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as f:
            f.write(data)
        return path

    @property
    def streams(self) -> dict[tuple[str, int], bytes]:
        """(name, generation) -> bytes, of the last time it was opened."""
        names, out = dict[int, tuple[str, int]](), dict[tuple[str, int], bytes]()
        for item in self.items:
            match item:
                case Opened(stream, name, _, _, offset):
                    names[stream] = (os.path.relpath(name.path, self.folder), name.generation)
                    out[names[stream]] = out.get(names[stream], b"")[:offset]
                case Data(stream, data):
                    out[names[stream]] += data
                case Skipped(stream, length):
                    out[names[stream]] += bytes(length)
        return out

    def of(self, kind: type[Any]) -> list[Any]:
        return [i for i in self.items if isinstance(i, kind)]

    @property
    def job(self) -> JobKey:
        (job,) = {o.facts.job for o in self.of(Opened)}
        return job
