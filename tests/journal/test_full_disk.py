"""A state folder on a disk that fills up while the watch runs: nothing acknowledged is lost, it is said, and it goes on by itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import killcase
from defib.adapters.journal.segments import read
from killcase import BEGAN, SECOND, Counter, World, play, tables

FULL_FROM, FULL_TO = BEGAN + 9 * SECOND, BEGAN + 21 * SECOND


class Filling(World):
    """The script's world, in which something else fills the state's disk for a while."""

    def sleep_us(self, us: int) -> None:
        super().sleep_us(us)
        filler = self.folder / "state" / "filler"
        if FULL_FROM <= self.us < FULL_TO and not filler.exists():
            fd = os.open(filler, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                while True:
                    killcase.REAL["write"](fd, bytes(4096))
            except OSError:
                os.close(fd)
            self.durable = [r.seq for r in read(str(self.folder / "state" / "journal"))][-1]
        elif self.us >= FULL_TO and filler.exists():
            now = [r.seq for r in read(str(self.folder / "state" / "journal"))]
            assert now[-1] >= self.durable, "what was acknowledged before is there while it is full"
            killcase.REAL["unlink"](filler)


if os.geteuid() == 0:  # a file system of a given size takes a mount

    def test_a_full_disk_is_waited_out(
        life: Path, loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state = tmp_path / "state"
        state.mkdir(mode=0o700)
        mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", str(state)]
        subprocess.run(mount, check=True, capture_output=True)
        try:
            monkeypatch.setattr(killcase, "World", Filling)
            alarms = play(tmp_path, loaded, Counter())
            assert "No space left" in alarms[0]
            assert "nothing is read until there is room" in alarms[0]
            assert alarms[-1] == "there is room again; going on"
            found, wanted = tables(state / "history.duckdb"), tables(life / "state" / "history.duckdb")
        finally:
            subprocess.run(["umount", str(state)], check=True)
        # Time passed while it waited, so healths differ; every line of logs that were not rewritten meanwhile was read once.
        lines = {name: [r.split(", ", 1)[1] for r in t[name]] for name in ("progress", "signals") for t in (found,)}
        usual = {name: [r.split(", ", 1)[1] for r in wanted[name]] for name in ("progress", "signals")}
        missing = [r for r in usual["progress"] if r not in lines["progress"]]
        assert all(r in usual["progress"] for r in lines["progress"]), "nothing is invented or doubled"
        assert len(lines["progress"]) == len(set(found["progress"]))
        assert len(missing) <= 10, "only what was overwritten while nothing could be read"
        assert len(found["attempts"]) == len(wanted["attempts"])
