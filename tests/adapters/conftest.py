"""Shared by the adapters' tests: one rule cache for the whole session, the loaded rules, small logs written by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from defib.adapters import rulefiles, wire

OOM = "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.62 GiB. GPU 6 has a total capacity of 79.11 GiB of which 1.88 GiB is free.\n"


@pytest.fixture(scope="session", autouse=True)
def rule_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Rules are compiled once a session: every test folder names this same place."""
    before = os.environ.get("DEFIB_CACHE")
    cache = tmp_path_factory.getbasetemp() / "rule-cache"
    os.environ["DEFIB_CACHE"] = str(cache)
    yield cache
    os.environ.pop("DEFIB_CACHE")
    if before is not None:
        os.environ["DEFIB_CACHE"] = before


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
def logs(tmp_path: Path, loaded: rulefiles.LoadedRules) -> Logs:
    return Logs(tmp_path)
