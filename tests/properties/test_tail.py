"""Random lives of a log in memory and on disk, judged byte by byte; and the judge itself: old bugs of log readers, put back in, are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from defib.adapters.tail import follower, reading
from defib.adapters.tail.guard import Guard
from tailcase import run
from tailmodel import OnDisk

CASES, SHARDS = 6000, 6


@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_lives_in_memory(shard: int) -> None:
    for seed in range(shard * CASES // SHARDS, (shard + 1) * CASES // SHARDS):
        run(seed)


def test_random_lives_on_real_files(tmp_path: Path) -> None:
    for seed in range(250):
        folder = tmp_path / str(seed)
        folder.mkdir()
        run(seed, OnDisk(folder))


def size_only(self: Guard, raw: bytes) -> bool:
    return len(raw) == self.length


def last_byte_only(self: Guard, raw: bytes) -> bool:
    return len(raw) == self.length and raw[-1:] == self.last[-1:]


def no_nuls_held(s: reading.State, t: reading.Terms, end: int) -> reading.Step:
    return reading.Step(reading.replace(s, accept_to=end), (), reading.Read(s.offset, t.quantum, "data"))


BUGS: dict[str, tuple[Any, str, Any]] = {
    "only the size is compared (P4)": (Guard, "matches", size_only),
    "one byte is compared (P4)": (Guard, "matches", last_byte_only),
    "NULs at the end are data (P17)": (reading, "_wait", no_nuls_held),
    "a renamed file is abandoned (P9)": (follower.Follower, "_drain", lambda self, *rest: False),
    "the first bytes are not looked at (P2)": (Guard, "begins", lambda self, raw: True),
    "losses are not told": (follower, "REWRITTEN", None),
}


def put_back(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, bug: Any) -> None:
    if bug is None:
        real: Callable[..., None] = follower.Follower._end
        monkeypatch.setattr(
            follower.Follower, "_end", lambda self, body, p, note, lost: real(self, body, p, None, False)
        )
    else:
        monkeypatch.setattr(where, name, bug)


@pytest.mark.parametrize("name", BUGS)
def test_old_bugs_put_back_in_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_back(monkeypatch, *BUGS[name])
    assert any(found(seed) for seed in range(1500)), "the judge is blind to this bug"


def found(seed: int) -> bool:
    try:
        run(seed)
    except AssertionError:
        return True
    return False
