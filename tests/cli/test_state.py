"""`defib watch --state` in a process of its own: asked while it runs, killed, taken up again, made anew."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import COMMAND, environment
from tests.cli.test_watch import BANNER, DEATH, Watch, site, start, step, steps, write

__all__ = ["site", "start"]
Start = Callable[..., Watch]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False, env=environment(), timeout=60)


def asked(state: Path, question: str, wanted: str) -> None:
    """Ask until the answer comes: rows are at most a second late."""
    deadline = time.monotonic() + 60
    while (found := run("sql", "--db", state, question, "--csv", "--noheader").stdout.strip()) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


@pytest.mark.timeout(300)  # some twenty processes, on a busy machine
def test_a_watch_that_remembers(start: Start, tmp_path: Path) -> None:
    logs, state = tmp_path / "logs", tmp_path / "state"
    write(logs / "slurm-7.out", BANNER + steps(1, 30))
    w = start(logs, "--state", state)
    assert w.health("healthy")[3] == "first seen"
    asked(state, "SELECT job, health, step FROM live", "7,healthy,30")
    assert run("jobs", "--db", state).returncode == 0
    assert "one statement that reads" in run("sql", "--db", state, "DROP TABLE progress").stderr
    refused = run("watch", "--state", state, logs)
    assert refused.returncode == 3
    assert "another defib" in refused.stderr
    assert run("replay", logs, "--db", state / "history.duckdb").returncode == 3
    w.process.kill()
    w.process.wait()

    write(logs / "slurm-7.out", steps(31, 39) + step(40)[:50])
    w = start(logs, "--state", state)
    asked(state, "SELECT count(*), max(step), max(line) FROM progress", "39,39,40")
    write(logs / "slurm-7.out", step(40)[50:] + DEATH)
    assert w.health("dead")[3] == "was healthy"
    asked(state, "SELECT was, health FROM health ORDER BY time DESC LIMIT 1", "healthy,dead")
    code, said = w.end(signal.SIGTERM)
    assert said.startswith("going on with 1 job of before: 1 healthy\n")
    assert code == 0
    asked(state, "SELECT count(*) FROM live", "1")

    w = start(logs, "--state", state, "--once-idle", "1s")
    assert w.process.wait(60) == 0
    told = run("why", "7", "--db", state)
    assert "GPU memory ran out" in told.stdout, told
    assert run("incidents", "--db", state, "--csv").stdout.count("\n") == 2
    done = run("rebuild", "--state", state, "--db", tmp_path / "new.duckdb")
    assert (done.returncode, "1 jobs judged, 0 running" in done.stdout) == (0, True), done
    question = "SELECT count(*), max(step), max(line) FROM progress"
    both = [run("sql", "--db", db, question, "--csv").stdout for db in (state, tmp_path / "new.duckdb")]
    assert both[0] == both[1]
    assert "40,40,41" in both[0]


def test_a_closed_job_stays_closed(start: Start, tmp_path: Path) -> None:
    """A log whose job was judged is not read as a new one at the next start."""
    logs, state = tmp_path / "logs", tmp_path / "state"
    write(logs / "slurm-7.out", BANNER + steps(1, 30) + DEATH)
    for _ in range(2):
        assert start(logs, "--state", state, "--once-idle", "1s").process.wait(60) == 0
    asked(state, "SELECT count(*) FROM attempts", "1")


def test_a_state_folder_others_may_write_to_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    done = run("watch", tmp_path, "--state", state)
    assert done.returncode == 3
    assert "chmod go-w" in done.stderr


def test_rebuild_of_nothing_says_so(tmp_path: Path) -> None:
    done = run("rebuild", "--state", tmp_path, "--db", tmp_path / "x.duckdb")
    assert done.returncode == 3
    assert "no journal here" in done.stderr
    assert not (tmp_path / "x.duckdb").exists()
