"""A state folder on a disk that fills up while the watch runs: nothing acknowledged is lost, it is said, and it goes on by itself."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import COMMAND, environment
from tests.cli.test_watch import BANNER, steps

import killcase
from defib.adapters import daemon
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

    @contextlib.contextmanager
    def disk(folder: Path, size: str) -> Iterator[Path]:
        """A file system of this size, for nobody else."""
        folder.mkdir(mode=0o700)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)]
        subprocess.run(mount, check=True, capture_output=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)

    def fill(folder: Path, leave: int) -> Path:
        """Take all room but so many bytes."""
        filler = folder / "filler"
        with filler.open("wb", buffering=0) as f, contextlib.suppress(OSError):
            while f.write(bytes(4096)):
                pass
        os.truncate(filler, filler.stat().st_size - leave)
        return filler

    @pytest.mark.parametrize("leave", [0, 4096, 16384, 65536])
    def test_a_disk_that_is_full_from_the_start_is_told_in_a_line(leave: int, tmp_path: Path) -> None:
        """Whatever it is that finds no room: one sentence and its mend, exit code 3, and the next start with room is an ordinary one."""
        log = tmp_path / "slurm-7.out"
        log.write_text(BANNER + steps(1, 30))
        with disk(tmp_path / "state", "2m") as state:
            command = [COMMAND, "watch", str(log), "--state", str(state), "--every", "200ms", "--once-idle", "1s"]
            filler = fill(state, leave)
            done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
            assert done.returncode == 3, done.stderr
            said = done.stderr.splitlines()
            assert "No space left on device" in said[0], said
            assert said[0].startswith("defib: ")
            assert [x.strip() for x in said[1:]] == ["mend: make room on its disk, then start again"]
            filler.unlink()
            subprocess.run(["mount", "-o", "remount,size=64m", str(state)], check=True)
            done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
            assert done.returncode == 0, done.stderr
            assert "aside" not in done.stderr
            assert list(state.glob("*aside*")) == []
            assert any("'7#0'" in r for r in tables(state / "history.duckdb")["attempts"])

    @pytest.mark.timeout(200)
    def test_a_disk_that_fills_up_is_seen_in_the_status_and_waited_out(tmp_path: Path) -> None:
        """The real command: what it had acknowledged stands, it says so while it waits, and every line is in the history afterwards."""
        log = tmp_path / "slurm-7.out"
        log.write_text(BANNER + steps(1, 30))
        with disk(tmp_path / "state", "40m") as state:
            words = [COMMAND, "watch", str(log), "--state", str(state), "--every", "200ms"]
            with (tmp_path / "said").open("wb") as said:
                watch = subprocess.Popen(words, stdout=said, stderr=said, env=environment())
            try:
                until(
                    lambda: (
                        asked(state).get("jobs", {}).get("starting", 0) + asked(state)["jobs"].get("healthy", 0) == 1
                    )
                )
                filler = fill(state, 0)
                last = 30
                while "waiting_for_room_since" not in asked(state)["journal"]:
                    assert last < 2000, "it never noticed"
                    with log.open("a") as f:
                        f.write(steps(last + 1, last + 10))
                    last += 10
                    time.sleep(0.3)
                s = asked(state)
                assert "No space left on device" in s["alarms"][-1]
                kept = [r.seq for r in read(str(state / "journal"))]
                assert kept[-1] >= s["journal"]["durable"] > 0, "what was acknowledged is there while it is full"
                with log.open("a") as f:
                    f.write(steps(last + 1, last + 10))
                last += 10
                filler.unlink()
                until(lambda: "waiting_for_room_since" not in asked(state)["journal"])
                assert any("there is room again" in a for a in asked(state)["alarms"])
                count = [
                    COMMAND,
                    "sql",
                    "--db",
                    str(state),
                    "SELECT count(*), count(DISTINCT step), max(step) FROM progress",
                    "-P",
                ]
                wanted = f"{last}|{last}|{last}"
                until(lambda: subprocess.run(count, capture_output=True, text=True, env=environment(), check=False)
                      .stdout.splitlines()[1:] == [wanted])  # fmt: skip
                watch.send_signal(signal.SIGTERM)
                assert watch.wait(60) == 0, (tmp_path / "said").read_text()
            finally:
                watch.kill()
                watch.wait()

    def asked(state: Path) -> dict[str, Any]:
        done = subprocess.run(
            [COMMAND, "status", "--state", str(state), "--json"], capture_output=True, env=environment(), check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else {"jobs": {}, "journal": {}, "alarms": []}

    def until(holds: Callable[[], bool]) -> None:
        began = time.monotonic()
        while not holds():
            assert time.monotonic() - began < 60
            time.sleep(0.3)


def test_a_segment_that_cannot_be_deleted_is_told_and_ends_nothing(
    tmp_path: Path, loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal grows on; the status says why; it is deleted as soon as that is possible."""
    hooks = killcase.Quiet()
    refused = [True]
    real = os.unlink

    def unlink(path: Any, *args: Any, **more: Any) -> None:
        if refused[0] and str(path).endswith(".seg"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        real(path, *args, **more)

    monkeypatch.setattr(os, "unlink", unlink)
    fan = killcase.Fan([], lambda a, paths: None)
    keeping = daemon.Keeping(most_bytes=1024, segment_bytes=2048, ballast_bytes=4096)
    station = daemon.open_station(str(tmp_path / "state"), loaded, fan, hooks, World(tmp_path), keeping)
    k = station.keeper
    for n in range(200):
        k.commit([], [], [])
        k.apply([])
        if n % 40 == 39:
            k.snapshot()
    assert k.journal.first == 1
    assert len([a for a in hooks.alarms if "Read-only file system" in a]) == 1, "said once, not at every try"
    assert "Read-only" in k.kept_long
    refused[0] = False
    k.snapshot()
    assert k.journal.first > 1
    assert k.kept_long == ""
    station.close()
