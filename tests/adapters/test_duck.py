"""The history: documented, replayable, whole jobs only, closed to user SQL, and indifferent to hostile text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from defib.adapters import duck, rows, schema, wire
from defib.adapters.duck import connect
from defib.engine.words import StoreError

Logs = Any  # the fixture's class lives in conftest.py
JOB_TABLES = ("attempts", "attempt_streams", "windows", "episodes", "incidents", "evidence", "nodes")
OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.62 GiB.\n"
STEPS = "".join(
    f" iteration {i:>8}/    1000 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.5E+00 |\n" for i in range(1, 9)
)
HOSTILE = "'; DROP TABLE attempts; -- \x1b]0;x\x07 \u202e \x9b31m ${HOME} %s {0} =cmd|'/C calc'!A0"


def content(db: str, job: str | None = None) -> dict[str, list[tuple[Any, ...]]]:
    """Every table's rows in an order of their own; of one job only if named."""
    con = connect(db, read_only=True)
    attempts = "attempt_id IN (SELECT attempt_id FROM attempts WHERE job = $job)"
    streams = "stream_id IN (SELECT stream_id FROM streams WHERE job = $job)"
    out: dict[str, list[tuple[Any, ...]]] = {}
    for table in schema.TABLES:
        columns = {r[0] for r in con.execute(f"DESCRIBE {table}").fetchall()}
        where = "true"
        if job is not None:
            where = "job = $job" if "job" in columns else attempts if "attempt_id" in columns else streams
            if not columns & {"job", "attempt_id", "stream_id"}:
                continue
        got = con.execute(f"SELECT * FROM {table} WHERE {where}", {"job": job} if "$job" in where else None)
        out[table] = sorted(got.fetchall(), key=repr)
    con.close()
    return out


def ask(db: str, query: str) -> list[tuple[Any, ...]]:
    con = connect(db, read_only=True)
    try:
        return con.execute(query).fetchall()
    finally:
        con.close()


@pytest.fixture
def three(logs: Logs) -> list[str]:
    """A job that died, one that lives, one with two files."""
    return [
        logs.write("slurm-101.out", logs.text(30, oom_rank=3)),
        logs.write("slurm-102.out", logs.text(20)),
        logs.write("slurm-103.out", logs.text(10)),
        logs.write("slurm-103.err", logs.text(0, oom_rank=1)),
    ]


@pytest.fixture(scope="module")
def history(loaded: object, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A history nobody writes to."""
    folder = tmp_path_factory.mktemp("history")
    for name, data in {"slurm-101.out": OOM, "slurm-102.out": "step: 1 loss: 1.0\n", "slurm-103.err": OOM}.items():
        (folder / name).write_text(STEPS + data)
    db = str(folder / "history.duckdb")
    wire.replay(wire.ReplayOptions([str(folder)], db), lambda *_: None)
    return db


# --- the schema is documented ---------------------------------------------------------------------------------------------------


def test_every_table_and_view_says_what_it_is(history: str) -> None:
    tables = dict(ask(history, "SELECT table_name, comment FROM duckdb_tables()"))
    views = dict(ask(history, "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal"))
    assert tables == {name: about for name, (_, about) in schema.TABLES.items()}
    assert views == {name: about for name, (_, about) in schema.VIEWS.items()}
    assert all(about.strip().endswith(".") for about in [*tables.values(), *views.values()])


@pytest.mark.parametrize("name", schema.VIEWS)
def test_every_view_runs(name: str, history: str) -> None:
    rows = ask(history, f"SELECT * FROM {name}")
    assert ask(history, f"DESCRIBE {name}")
    if name in ("jobs", "why", "attempt_progress", "attempt_signals", "time_by_class", "goodput"):
        assert rows


@pytest.mark.parametrize("name", schema.TABLES)
def test_describe_matches_the_declaration(name: str, history: str) -> None:
    declared = re.split(r", (?=[\"\w]+ [A-Z])", schema.TABLES[name][0])
    names = [d.split()[0].strip('"') for d in declared]
    described = ask(history, f"DESCRIBE {name}")
    assert [r[0] for r in described] == names
    assert [r[1] for r in described] == [d.split()[1] for d in declared]


def test_statements_may_run_again(logs: Logs, three: list[str]) -> None:
    logs.replay(*three)
    con = duckdb.connect(logs.db)
    for statement in [*schema.tables(), *schema.views()] * 2:
        con.execute(statement)
    con.close()


# --- replaying ----------------------------------------------------------------------------------------------------------------------


def test_replaying_twice_leaves_the_same_content(logs: Logs, three: list[str]) -> None:
    logs.replay(*three)
    once = content(logs.db)
    assert [len(once[t]) for t in ("streams", "attempts", "progress")] == [4, 3, 60]
    logs.replay(*three)
    assert content(logs.db) == once
    logs.replay(str(logs.root), db=(other := str(logs.root / "other.duckdb")))
    assert content(other) == once


def test_a_grown_log_replaces_what_was_known(logs: Logs, three: list[str]) -> None:
    logs.replay(*three)
    others = [content(logs.db, job) for job in ("101", "103")]
    assert ask(logs.db, "SELECT verdict, last_step FROM attempts WHERE job = '102'") == [("running-at-end", 20)]
    logs.write("slurm-102.out", logs.text(50, oom_rank=0))
    logs.replay(three[1])
    assert ask(logs.db, "SELECT verdict, class, last_step FROM attempts WHERE job = '102'") == [
        ("crashed", "cuda-oom", 50)
    ]
    assert ask(logs.db, "SELECT count(*) FROM progress JOIN streams USING (stream_id) WHERE job = '102'") == [(50,)]
    assert [content(logs.db, job) for job in ("101", "103")] == others
    assert len(ask(logs.db, "SELECT * FROM incidents")) == 3


def test_a_job_that_recovers_loses_its_incident(logs: Logs) -> None:
    path = logs.write("slurm-104.out", logs.text(10, oom_rank=2))
    logs.replay(path)
    assert len(ask(logs.db, "SELECT * FROM incidents")) == 1
    logs.write("slurm-104.out", logs.text(20))
    logs.replay(path)
    assert [ask(logs.db, f"SELECT count(*) FROM {t}") for t in ("incidents", "nodes")] == [[(0,)]] * 2
    assert ask(logs.db, "SELECT count(*) FROM evidence WHERE incident_id IS NOT NULL") == [(0,)]


def test_a_shrunk_log_replaces_too(logs: Logs) -> None:
    path = logs.write("slurm-105.out", logs.text(40) + logs.text(40, first=20))
    logs.replay(path)
    assert len(ask(logs.db, "SELECT * FROM attempts")) == 2
    logs.write("slurm-105.out", logs.text(5))
    logs.replay(path)
    assert ask(logs.db, "SELECT attempt_index, last_step FROM attempts") == [(0, 5)]
    assert ask(logs.db, "SELECT count(*) FROM progress") == [(5,)]


def test_a_jobs_other_attempts_are_kept(logs: Logs) -> None:
    """A requeued job's second log is read on a later day; its first attempt is history and stays."""
    first = logs.write("monday/slurm-106.out", logs.text(30, oom_rank=3))
    second = logs.write("tuesday/slurm-106.out", logs.text(40, first=20))
    logs.replay(first)
    logs.replay(second)
    assert ask(logs.db, "SELECT count(*) FROM streams") == [(2,)]
    steps = ask(logs.db, "SELECT first_step, last_step, class FROM attempts ORDER BY first_step")
    assert (1, 30, "cuda-oom") in steps, f"the attempt of the log not read again is gone: {steps}"


def test_many_jobs_keep_apart(logs: Logs) -> None:
    for i in range(11):
        logs.write(f"slurm-{200 + i}.out", logs.text(3, oom_rank=i))
    logs.replay(str(logs.root))
    once = content(logs.db)
    assert len(once["attempts"]) == 11
    logs.replay(str(logs.root))
    assert content(logs.db) == once


def test_a_large_job_is_written_early_and_stays_whole(
    logs: Logs, three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.replay(*three)
    once = content(logs.db)
    monkeypatch.setattr(duck, "STAGE_BYTES", 1)
    logs.replay(*three, batch_bytes=1024, block_bytes=1024, db=(other := str(logs.root / "other.duckdb")))
    assert content(other) == once


# --- interrupts ------------------------------------------------------------------------------------------------------------------------


def per_job(db: str) -> dict[str, dict[str, list[tuple[Any, ...]]]]:
    return {job: content(db, job) for (job,) in ask(db, "SELECT DISTINCT job FROM streams")}


def nothing_loose(db: str) -> None:
    """No row without its job."""
    for table in ("attempt_streams", "signals", "progress"):
        assert ask(db, f"SELECT count(*) FROM {table} WHERE stream_id NOT IN (SELECT stream_id FROM streams)") == [
            (0,)
        ], table
    for table in JOB_TABLES[1:]:
        assert ask(db, f"SELECT count(*) FROM {table} WHERE attempt_id NOT IN (SELECT attempt_id FROM attempts)") == [
            (0,)
        ], table
    assert ask(db, "SELECT count(*) FROM streams WHERE job NOT IN (SELECT job FROM attempts)") == [(0,)]


@pytest.mark.parametrize("stage", [1, 1 << 30], ids=["written-early", "staged"])
@pytest.mark.parametrize("after", [1, 2])
def test_an_interrupt_leaves_whole_jobs(
    after: int, stage: int, logs: Logs, three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between two jobs, told by the callback that prints them."""
    logs.replay(*three, db=(full := str(logs.root / "full.duckdb")))
    monkeypatch.setattr(duck, "STAGE_BYTES", stage)
    told = 0

    def tell(*_: object) -> None:
        nonlocal told
        told += 1
        if told == after:
            raise KeyboardInterrupt

    outcome = wire.replay(wire.ReplayOptions(three, logs.db, batch_bytes=1024), tell)
    assert outcome.interrupted
    nothing_loose(logs.db)
    whole = per_job(full)
    kept = per_job(logs.db)
    assert len(kept) == after
    assert all(kept[job] == whole[job] for job in kept)
    logs.replay(*three)
    assert content(logs.db) == content(full)


@pytest.mark.parametrize("at", [1, 3, 7, 11])
def test_an_interrupt_in_the_middle_of_writing_a_job(at: int, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at any statement of the store: a known job is there as it was or as it is now, never half."""
    path = logs.write("slurm-101.out", logs.text(20, oom_rank=3))
    logs.replay(path)
    old = content(logs.db)
    logs.write("slurm-101.out", logs.text(30, oom_rank=5))
    interrupt_at(monkeypatch, at)
    outcome = logs.replay(path)
    assert outcome.interrupted
    monkeypatch.undo()
    nothing_loose(logs.db)
    left = content(logs.db)
    logs.replay(path)
    assert left in (old, content(logs.db))


def interrupt_at(patch: pytest.MonkeyPatch, at: int) -> None:
    """The at-th statement the store sends while it writes a job is never reached."""
    real, count = duck.DuckStore._write_judged, 0

    class Counting:
        def __init__(self, con: Any) -> None:
            self._con = con

        def __getattr__(self, name: str) -> Any:
            return getattr(self._con, name)

        def execute(self, *a: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                raise KeyboardInterrupt
            return self._con.execute(*a)

    def write(self: duck.DuckStore) -> None:
        con = self.con
        self.con = Counting(con)  # type: ignore[assignment]
        try:
            real(self)
        finally:
            self.con = con

    patch.setattr(duck.DuckStore, "_write_judged", write)


def test_an_error_of_the_store_is_told_as_itself(logs: Logs, three: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """When a statement fails, the message is that failure, not one of the clearing up after it."""

    def fails(self: duck.DuckStore) -> None:
        self.con.execute("SELECT error('the disk is full')")

    monkeypatch.setattr(duck.DuckStore, "_write_judged", fails)
    with pytest.raises((StoreError, duckdb.Error), match="the disk is full"):
        logs.replay(*three)


# --- opening ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [True, False], ids=["reader", "writer"])
def test_a_second_process_is_told_to_wait(read_only: bool, logs: Logs, three: list[str]) -> None:
    logs.replay(*three)
    hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, logs.db], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StoreError, match=r"another process holds it; wait or use another --db"):
            connect(logs.db, read_only=read_only)
        if not read_only:
            with pytest.raises(StoreError, match="another process"):
                logs.replay(*three)
        other.communicate(b"")
    assert len(ask(logs.db, "SELECT * FROM attempts")) == 3


def test_readers_may_share(logs: Logs, three: list[str]) -> None:
    logs.replay(*three)
    one = connect(logs.db, read_only=True)
    script = "import sys; from defib.adapters.duck import connect; print(len(connect(sys.argv[1], read_only=True).execute('FROM attempts').fetchall()))"
    done = subprocess.run([sys.executable, "-c", script, logs.db], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"
    one.close()


def test_what_is_no_history_is_told_with_a_mend(logs: Logs) -> None:
    with pytest.raises(StoreError, match="run 'defib replay"):
        connect(str(logs.root / "nowhere.duckdb"), read_only=True)
    text = logs.write("text.duckdb", "not a database\n" * 1000)
    for read_only in (True, False):
        with pytest.raises(StoreError, match="mend: is it a DuckDB file"):
            connect(text, read_only=read_only)
    with pytest.raises(StoreError):
        connect(str(logs.root / "no" / "such" / "folder.duckdb"), read_only=False)


def test_a_history_of_a_newer_version_is_left_alone(logs: Logs, three: list[str]) -> None:
    logs.replay(*three)
    con = duckdb.connect(logs.db)
    con.execute("UPDATE meta SET value = '999' WHERE key = 'schema'")
    con.close()
    before = content(logs.db)
    with pytest.raises(StoreError, match=r"newer defib \(schema 999\)"):
        logs.replay(*three)
    assert content(logs.db) == before


# --- SQL of users -------------------------------------------------------------------------------------------------------------------------

FORBIDDEN = [
    "SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM read_text('/etc/passwd')", "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'", "SELECT * FROM glob('/etc/*')", "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM read_csv('https://example.com/x.csv')", "COPY (SELECT 1) TO 'OUT/copy.csv'", "COPY attempts FROM '/etc/passwd'",
    "EXPORT DATABASE 'OUT/exported'", "IMPORT DATABASE 'OUT'", "ATTACH 'OUT/attached.db'",
    "ATTACH 'DB' AS again; INSERT INTO again.meta VALUES ('a', 'b')", "INSTALL httpfs", "LOAD httpfs", "SET enable_external_access = true",
    "SET lock_configuration = false", "RESET lock_configuration", "SET memory_limit = '1TB'", "SET temp_directory = 'OUT'",
    "SET allowed_directories = ['/']", "PRAGMA profiling_output = 'OUT/profile'",
    "CALL enable_logging(storage = 'file', storage_config = {'path': 'OUT/log'})", "CREATE PERSISTENT SECRET s (TYPE http)",
    "INSERT INTO meta VALUES ('a', 'b')", "UPDATE attempts SET verdict = 'completed'", "DELETE FROM attempts", "DROP TABLE attempts",
    "CREATE TABLE mine (a INTEGER)", "COMMENT ON TABLE attempts IS 'x'",
]  # fmt: skip


@pytest.mark.parametrize("query", FORBIDDEN)
def test_user_sql_reaches_no_file_and_writes_nothing(query: str, history: str, tmp_path: Path) -> None:
    out = tmp_path
    before = Path(history).read_bytes()
    con = connect(history, read_only=True)
    with pytest.raises(duckdb.Error):
        con.execute(query.replace("OUT", str(out)).replace("DB", history)).fetchall()
    con.close()
    assert os.listdir(out) == []
    assert Path(history).read_bytes() == before


def test_there_is_no_history_in_memory_to_ask() -> None:
    with pytest.raises(StoreError, match="no history here"):
        connect(":memory:", read_only=True)


# --- hostile text -------------------------------------------------------------------------------------------------------------------------


def test_hostile_names_and_lines_are_data(logs: Logs) -> None:
    name = "x'); DROP TABLE attempts; --\x1b[31m\n\u202e\".out"
    text = (
        logs.text(5)
        + f"[rank3]: ValueError: {HOSTILE}\n"
        + f"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {HOSTILE}\n"
    )
    path = logs.write(name, text)
    logs.replay(path, cluster=HOSTILE)
    logs.replay(path, cluster=HOSTILE)
    assert ask(logs.db, "SELECT path FROM streams") == [(path,)]
    ((job, cluster, cause),) = ask(logs.db, "SELECT job, cluster, cause_text FROM attempts")
    assert cluster == HOSTILE
    assert job.startswith(HOSTILE + "/")
    assert "DROP TABLE attempts" in cause
    assert len(ask(logs.db, "SELECT * FROM signals")) >= 1
    assert {r[0] for r in ask(logs.db, "SELECT table_name FROM duckdb_tables()")} == set(schema.TABLES)


def test_bytes_that_are_no_text_are_stored(logs: Logs) -> None:
    data = (
        logs.text(5).encode()
        + b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried \xff\xfe\x80 to allocate 1 GiB\n\xff\xff\n"
    )
    path = os.fsdecode(os.path.join(os.fsencode(logs.root), b"run-\xff\x9b.log"))
    with open(path, "wb") as f:
        f.write(data)
    logs.replay(path)
    ((shown, tail),) = ask(logs.db, "SELECT path, tail FROM streams")
    assert shown.endswith(r"run-\xff\x9b.log")
    assert tail[-1] == "\ufffd\ufffd"
    assert ask(logs.db, "SELECT class FROM attempts") == [("cuda-oom",)]


def test_names_that_look_alike_do_not_break_the_history(logs: Logs) -> None:
    for name in (b"a\xff.log", b"a\\xff.log"):
        with open(os.path.join(os.fsencode(logs.root), name), "wb") as f:
            f.write(logs.text(5).encode())
    logs.replay(str(logs.root))
    assert ask(logs.db, "SELECT count(*) FROM streams") == [(2,)]


def test_times_out_of_range_are_unknown() -> None:
    assert rows.moment(None) is rows.moment(-1) is rows.moment(1 << 62) is None
    assert str(rows.moment(1_764_536_400_123_457)) == "2025-11-30 21:00:00.123457"
