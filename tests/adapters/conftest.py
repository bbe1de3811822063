"""Shared by the adapters' tests: the loaded rules, small logs written by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.adapters.stories import Stories

from defib.adapters import rulefiles, wire
from defib.adapters.archive import Archive
from defib.engine.ports import Closed, Data, JobClosed, Opened

OOM = "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.62 GiB. GPU 6 has a total capacity of 79.11 GiB of which 1.88 GiB is free.\n"


@pytest.fixture(scope="session")
def loaded(rule_cache: Path) -> rulefiles.LoadedRules:
    return rulefiles.load()


class Logs:
    """Writes logs of Megatron-like runs by hand and replays them in this process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.db = str(root / "history.duckdb")

    def text(self, steps: int, *, first: int = 1, oom_rank: int | None = None, total: int = 1000) -> str:
        out = "".join(
            f" [2026-11-30 21:{i // 60 % 60:02d}:{i % 60:02d}] iteration {i:>8}/{total:>8} | consumed samples: {i * 8:>12} | "
            f"elapsed time per iteration (ms): 1000.0 | learning rate: 1.0E-04 | global batch size:     8 | lm loss: 2.5E+00 |\n"
            for i in range(first, first + steps)
        )
        return out + (OOM.format(rank=oom_rank) if oom_rank is not None else "")

    def write(self, name: str, text: str | bytes) -> str:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def replay(self, *paths: str, db: str | None = None, **options: object) -> wire.Outcome:
        return wire.replay(wire.ReplayOptions(list(paths), db or self.db, **options), lambda *_: None)  # type: ignore[arg-type]


@pytest.fixture
def stories(tmp_path: Path, loaded: rulefiles.LoadedRules) -> Stories:
    """Hand-made histories in one store."""
    return Stories(str(tmp_path / "history.duckdb"), loaded.book)


@pytest.fixture
def logs(tmp_path: Path, loaded: rulefiles.LoadedRules) -> Logs:
    return Logs(tmp_path)


LINES = b"".join(b"line %06d of a log, %s\n" % (i, b"x" * (i % 61)) for i in range(60_000))  # over one block of 1 MiB


class Read:
    """What came out of an archive: bytes and note by path."""

    def __init__(self, *paths: str | Path | bytes, **options: Any) -> None:
        self.archive = Archive([os.fsdecode(p) for p in paths], (), **options)
        self.data: dict[str, bytes] = {}
        self.notes: dict[str, str | None] = {}
        self.jobs = 0
        self.read = 0
        open_now: dict[int, str] = {}
        while (items := self.archive.poll()) is not None:
            for item in items:
                match item:
                    case Opened():
                        assert item.id.path not in self.data, "a file is read once"
                        open_now[item.stream] = item.id.path
                        self.data[item.id.path] = b""
                    case Data():
                        self.data[open_now[item.stream]] += item.data
                        self.read += item.read
                    case Closed():
                        self.notes[open_now.pop(item.stream)] = item.note
                    case JobClosed():
                        self.jobs += 1
        assert not open_now, "what was opened is closed"

    @property
    def only(self) -> bytes:
        (data,) = self.data.values()
        return data

    @property
    def note(self) -> str | None:
        (note,) = self.notes.values()
        return note

    @property
    def unread(self) -> dict[str, str]:
        return {u.path: u.why for u in self.archive.unread}


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def zst(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)
