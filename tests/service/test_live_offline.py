"""Live or offline, the commands that ask the history say the same, byte by byte: asked of a running watch, and of its file when it has ended."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import COMMAND, environment
from tests.cli.test_watch import BANNER, steps

from defib.adapters import schema
from defib.adapters.views import VIEWS
from loggen.presets import cases
from loggen.render import write

Asked = Callable[[list[str]], tuple[int, str, str]]
# What a watch follows now changes with it, and the time of its last commit.
LIVE = {"live_jobs", "live_streams", "live", "live_lag", "meta"}
FORMS = ([], ["--json"], ["--jsonl"], ["--csv"], ["-P"])


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder in which eight jobs were judged, and logs of one more that runs."""
    folder = tmp_path_factory.mktemp("same").resolve()
    write(folder / "logs", cases("demo", count=8), 7)
    done = subprocess.run(
        [COMMAND, "watch", folder / "logs", "--state", folder / "state", "--every", "200ms", "--once-idle", "2s"],
        capture_output=True, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder / "logs" / "slurm-99.out").write_text(BANNER + steps(1, 40))
    return folder / "state"


@pytest.fixture(scope="module")
def both(state: Path) -> Iterator[tuple[dict[str, tuple[int, str, str]], Asked]]:
    """Every answer of the running watch, and who asks the same once it has ended."""
    words = [COMMAND, "watch", state.parent / "logs", "--state", state, "--every", "200ms"]
    with (state.parent / "said").open("wb") as said:
        watch = subprocess.Popen(words, stdout=said, stderr=said, env=environment())
    try:
        running = "SELECT count(*) FROM live_jobs WHERE health = 'healthy'"
        began = time.monotonic()
        while asked(["sql", "--db", str(state), running, "-P", "--noheader"])[1].strip() != "1":
            assert watch.poll() is None, (state.parent / "said").read_text()
            assert time.monotonic() - began < 60
            time.sleep(0.5)
        assert (state / "history.duckdb.sock").exists()
        live = {" ".join(q): asked(q) for q in questions(str(state))}
        watch.send_signal(signal.SIGTERM)
        assert watch.wait(60) == 0
        assert not (state / "history.duckdb.sock").exists()
        yield live, asked
    finally:
        watch.kill()
        watch.wait()


def asked(words: list[str]) -> tuple[int, str, str]:
    """(exit code, output, complaints) of a command, in this process."""
    import contextlib
    import io

    from defib.adapters.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def questions(db: str) -> list[list[str]]:
    """Every command that asks, in every form, and every table and view of the history."""
    out = [[c, "--db", db, *form] for c in ("jobs", "attempts", "incidents") for form in FORMS]
    out += [["jobs", "--db", db, "-j", "481214"], ["attempts", "--db", db, "-j", "nobody"]]
    out += [
        ["why", "--db", db, job, *form]
        for job in ("481207", "481214", "481221", "481235#0")
        for form in ([], ["--json"])
    ]
    out += [
        ["why", "--db", db, "nobody"],
        ["nodes", "--db", db],
        ["nodes", "--db", db, "--json", "--cluster-nodes", "64"],
    ]
    things = sorted({*schema.TABLES, *VIEWS} - LIVE)
    out += [["sql", "--db", db, f"SELECT * FROM {name} ORDER BY ALL LIMIT 2000", "--jsonl"] for name in things]
    out += [["sql", "--db", db, "SELECT * FROM attempts ORDER BY ALL", *form] for form in FORMS]
    out += [
        ["sql", "--db", db, text]
        for text in ("SHOW TABLES", "DESCRIBE attempts", "SELECT table_name, comment FROM duckdb_tables() ORDER BY 1", "SELEC 1",
                     "SELECT nothing FROM attempts", "FROM nowhere", "SELECT 1 AS a, 2 AS a", "SELECT 170141183460469231731687303715884105727")
    ]  # fmt: skip
    return out


def test_every_answer_is_the_same(both: tuple[dict[str, tuple[int, str, str]], Asked], state: Path) -> None:
    live, ask = both
    different = []
    for q in questions(str(state)):
        offline = ask(q)
        if live[" ".join(q)] != offline:
            different.append((q, live[" ".join(q)], offline))
    assert not different, "\n".join(f"{q}\n{a}\n{b}" for q, a, b in different)
    assert len(live) > 60
    full = [k for k, (code, out, _) in live.items() if code == 0 and len(out.splitlines()) > 3]
    assert len(full) > 40, "most of them say something"


def test_of_a_job_that_still_runs_the_time_of_the_last_word_is_told(
    both: tuple[dict[str, tuple[int, str, str]], Asked], state: Path
) -> None:
    """Its watch has ended: what is said of it may be old, and nobody is to take it for now."""
    code, out, err = both[1](["why", "--db", str(state), "99"])
    assert (code, err) == (0, "")
    assert re.search(
        r": HEALTHY - it is being watched, at step 40, as of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$", out, re.M
    ), out
    (row,) = json.loads(both[1](["why", "--db", str(state), "99", "--json"])[1])["rows"]
    assert row["live"]["as_of"] >= row["live"]["since"]
