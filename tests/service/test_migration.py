"""Histories of earlier schema versions: what asks them, what writes to them, and what makes them anew."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import duckdb
import pytest
from tests.cli.conftest import Run
from tests.cli.test_watch import BANNER, steps

from defib.adapters import schema
from defib.adapters.journal.segments import identity_of
from defib.adapters.views import VIEWS

HERE = Path(__file__).parents[1] / "adapters"
EARLIER = sorted(int(p.stem.rpartition("v")[2]) for p in HERE.glob("schema_v*.sql"))
OLD = "INSERT INTO attempts (attempt_id, job, job_id, attempt_index, verdict, last_step, notes) VALUES ('old#0', 'old', 'old', 0, 'completed', 42, [])"
QUESTIONS = (["jobs"], ["attempts"], ["incidents"], ["why", "old"], ["nodes"], ["sql", "SELECT job, last_step FROM attempts"],
             ["sql", "SHOW TABLES"])  # fmt: skip


def old(path: Path, version: int, **meta: str) -> Path:
    """A history as that version left it, with one attempt in it."""
    con = duckdb.connect(str(path))
    con.execute((HERE / f"schema_v{version}.sql").read_text())
    for key, value in {"schema": str(version), "rules": "other", **meta}.items():
        con.execute("INSERT INTO meta VALUES (?, ?)", [key, value])
    con.execute(OLD)
    con.close()
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, say: Run) -> Path:
    """A folder with the logs and the state of a watch that has ended."""
    folder = tmp_path_factory.mktemp("watched").resolve()
    (folder / "slurm-7.out").write_text(BANNER + steps(1, 30))
    done = say("watch", folder / "slurm-7.out", "--state", folder / "state", "--every", "200ms", "--once-idle", "1s")
    assert done.returncode == 0, done.stderr
    return folder


def test_every_earlier_version_is_tried() -> None:
    assert list(range(1, schema.VERSION)) == EARLIER


@pytest.mark.parametrize("version", EARLIER)
def test_an_earlier_history_answers_or_says_what_it_is(version: int, say: Run, tmp_path: Path) -> None:
    """It is only read: nothing changes in it, and what it cannot answer is told with the way out."""
    db = old(tmp_path / "h.duckdb", version)
    before = digest(db)
    for words in QUESTIONS:
        done = say(*words, "--db", db)
        assert done.returncode in (0, 3), (words, done.stderr)
        if done.returncode == 3:
            assert f"written by an earlier defib (schema {version})" in done.stderr.decode(), words
    assert b"42" in say("sql", "SELECT last_step FROM attempts", "--db", db).stdout
    assert digest(db) == before


@pytest.mark.parametrize("version", EARLIER)
def test_a_replay_brings_it_up(version: int, say: Run, tmp_path: Path, watched: Path) -> None:
    db = old(tmp_path / "h.duckdb", version)
    assert say("replay", watched / "slurm-7.out", "--db", db, "--quiet").returncode == 0
    complete(db, say, {"old", "7"})


@pytest.mark.parametrize("version", EARLIER)
def test_a_watch_brings_its_own_up(version: int, say: Run, tmp_path: Path, watched: Path) -> None:
    """One that was made from this very journal: what it had stays, what the journal has comes to it."""
    state = tmp_path / "state"
    shutil.copytree(watched / "state", state)
    (state / "history.duckdb").unlink()
    old(state / "history.duckdb", version, journal=identity_of(str(state / "journal")), applied="0")
    done = say("watch", watched / "slurm-7.out", "--state", state, "--every", "200ms", "--once-idle", "1s")
    assert done.returncode == 0, done.stderr
    assert b"aside" not in done.stderr
    complete(state / "history.duckdb", say, {"old", "7"})


@pytest.mark.parametrize("version", EARLIER)
def test_a_watch_and_a_rebuild_leave_anothers_alone(version: int, say: Run, tmp_path: Path, watched: Path) -> None:
    state = tmp_path / "state"
    shutil.copytree(watched / "state", state)
    (state / "history.duckdb").unlink()
    db = old(state / "history.duckdb", version)
    before = digest(db)
    done = say("watch", watched / "slurm-7.out", "--state", state, "--every", "200ms", "--once-idle", "1s")
    assert (done.returncode, b"not made from the journal beside it" in done.stderr) == (3, True), done.stderr
    done = say("rebuild", "--state", state, "--db", db)
    assert (done.returncode, b"is there already" in done.stderr) == (3, True), done.stderr
    assert digest(db) == before
    done = say("rebuild", "--state", state, "--db", tmp_path / "new.duckdb")
    assert done.returncode == 0, done.stderr
    complete(tmp_path / "new.duckdb", say, {"7"})


def complete(db: Path, say: Run, jobs: set[str]) -> None:
    """The history is of today's version in every column and view, has these jobs, and every command answers."""
    con = duckdb.connect(str(db), read_only=True)
    try:
        assert con.execute("SELECT value FROM meta WHERE key = 'schema'").fetchall() == [(str(schema.VERSION),)]
        for table in schema.TABLES:
            found = [r[0] for r in con.execute(f"DESCRIBE {table}").fetchall()]
            assert set(found) == set(schema.columns(table)), table
        for view in VIEWS:
            con.execute(f"SELECT * FROM {view} LIMIT 1")
        assert {r[0] for r in con.execute("SELECT job_id FROM attempts").fetchall()} == jobs
    finally:
        con.close()
    for words in QUESTIONS:
        if "old" not in words or "old" in jobs:
            done = say(*words, "--db", db)
            assert done.returncode == 0, (words, done.stderr)
