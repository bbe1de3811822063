"""`defib sql` as a command, over a file and over a running watch's socket: hostile statements, Ctrl-C, a reader that goes away."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from defib.adapters import sqlwire
from defib.adapters.cli import main
from defib.adapters.duck import connect
from defib.adapters.sqlserver import SqlServer

LONG = "SELECT count(*) FROM range(100000000000) a, range(1000) b"
# What would take all memory of a watch; offline it is the asker's own.
SWELLING = """SELECT length(repeat('x', 2000000000))
SELECT 'x'.repeat(2000000000)
FROM query('SELECT repeat(''x'', 2000000000)')
WITH q AS (SELECT LPAD('a', 2000000000, 'b') AS s) SELECT max(s) FROM q
SELECT len(range(1000000000))
EXPLAIN ANALYZE SELECT rpad('a', 2000000000, 'b')""".splitlines()
# Everything that would reach beyond the rows of the history. SECRET is in the environment; OUT is replaced by a path to write to.
HOSTILE = """ATTACH 'OUT'
ATTACH ':memory:' AS m
DETACH h
COPY t TO 'OUT'
COPY t FROM '/etc/passwd'
COPY (SELECT 1) TO STDOUT
COPY FROM DATABASE h TO m
EXPORT DATABASE 'OUT'
IMPORT DATABASE '/etc'
INSTALL httpfs
FORCE INSTALL httpfs
LOAD httpfs
UPDATE EXTENSIONS
SET memory_limit = '1TB'
SET enable_external_access = true
SET lock_configuration = false
SET GLOBAL threads = 64
RESET lock_configuration
SET VARIABLE x = 1
PRAGMA memory_limit = '1TB'
PRAGMA enable_profiling
PRAGMA force_checkpoint
CHECKPOINT
FORCE CHECKPOINT
CALL checkpoint()
CALL force_checkpoint()
CALL enable_logging(storage = 'file', storage_path = 'OUT')
FROM checkpoint()
FROM system.main.checkpoint()
FROM force_checkpoint()
SELECT (SELECT count(*) FROM checkpoint())
WITH c AS MATERIALIZED (FROM checkpoint()) FROM t, c
FROM query('FROM checkpoint()')
EXPLAIN ANALYZE FROM checkpoint()
EXPLAIN (ANALYZE, FORMAT JSON) FROM checkpoint()
EXPLAIN /* SELECT 1 */ ANALYZE CALL checkpoint()
EXPLAIN ANALYZE CHECKPOINT
EXPLAIN ANALYZE INSERT INTO t VALUES (9)
FROM enable_logging(storage = 'file', storage_path = 'OUT')
FROM truncate_duckdb_logs()
FROM read_csv('/etc/passwd')
FROM '/etc/passwd'
FROM read_text('/etc/passwd')
FROM read_blob('/etc/passwd')
FROM read_csv('/proc/self/environ')
FROM sniff_csv('/etc/passwd')
FROM glob('/etc/*')
FROM read_duckdb('/etc/passwd')
FROM duckdb_secrets()
SELECT getenv('SECRET')
SELECT nextval('s')
SELECT setval('s', 7)
INSERT INTO t VALUES (9)
WITH x AS (INSERT INTO t VALUES (9) RETURNING a) FROM x
DELETE FROM t
UPDATE t SET a = 9
TRUNCATE t
DROP TABLE t
CREATE TABLE u AS FROM t
CREATE OR REPLACE VIEW t2 AS FROM t
CREATE MACRO m() AS 1
CREATE SECRET (TYPE s3)
COMMENT ON TABLE t IS 'x'
ALTER TABLE t ADD COLUMN b INTEGER
VACUUM
ANALYZE
BEGIN
COMMIT
PREPARE v AS INSERT INTO t VALUES (9)
EXECUTE v
SELECT 1; DROP TABLE t""".splitlines()


@contextlib.contextmanager
def history(folder: Path, live: bool) -> Iterator[Path]:
    """A small history, as a file or held by a process that answers."""
    db = folder / "h.duckdb"
    con = connect(str(db), read_only=False)
    con.execute("CREATE TABLE t AS SELECT range AS a FROM range(200000)")
    con.execute("CREATE SEQUENCE s")
    con.execute("CHECKPOINT")
    if not live:
        con.close()
        yield db
        return
    con.execute(
        "CREATE TABLE later AS SELECT 1 AS a"
    )  # stands in the write-ahead log until somebody makes a checkpoint
    server = SqlServer(sqlwire.socket_of(str(db)), con.cursor)
    try:
        yield db
    finally:
        server.close()
        con.close()


def defib(*words: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "defib", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)


def digest(*paths: Path) -> list[str]:
    return [hashlib.sha256(p.read_bytes()).hexdigest() for p in paths]


@pytest.mark.parametrize("live", [False, True], ids=["offline", "live"])
def test_hostile_statements_are_refused_or_harmless(
    live: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after another through the command; nothing beyond the rows is told, and no file has changed or come to be."""
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    monkeypatch.chdir(outside)
    monkeypatch.setenv("SECRET", "opensesame")
    with history(tmp_path, live) as db:
        files = [db, *([Path(f"{db}.wal")] if live else [])]
        before = digest(*files)
        for statement in [*HOSTILE, *(SWELLING if live else [])]:
            asked = statement.replace("OUT", str(outside / "out"))
            code = main(["sql", "--db", str(db), asked])
            out, err = capsys.readouterr()
            assert "Traceback" not in err, (statement, err)
            assert not any(s in out + err for s in ("root:", "opensesame", "/etc/hosts")), (statement, out, err)
            assert code in (0, 2, 3), (statement, err)
            if live:
                assert code != 0, f"{statement} was answered: {out}"
            assert list(outside.iterdir()) == [], statement
            assert digest(*files) == before, f"{statement} has written to the history"
        assert main(["sql", "--db", str(db), "SELECT count(*), min(a), max(a) FROM t", "-P"]) == 0
        assert capsys.readouterr().out.splitlines()[1] == "200000|0|199999"


@pytest.mark.parametrize("live", [False, True], ids=["offline", "live"])
@pytest.mark.parametrize(
    "question",
    ["FROM t LIMIT 1", "TABLE t", "EXPLAIN ANALYZE SELECT 1", "EXPLAIN (FORMAT JSON) FROM t", "SHOW TABLES", "SUMMARIZE t",
     "DESCRIBE t", "FROM duckdb_tables()", "VALUES (1)", "SELECT unnest([1, 2])", "FROM range(3)", "-- a word\nFROM t LIMIT 1;"],
)  # fmt: skip
def test_everything_that_reads_is_answered(
    question: str, live: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with history(tmp_path, live) as db:
        assert main(["sql", "--db", str(db), question, "--csv"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert len(out.splitlines()) > 1


@pytest.mark.parametrize("live", [False, True], ids=["offline", "live"])
def test_ctrl_c_ends_a_question_without_a_word(live: bool, tmp_path: Path) -> None:
    with history(tmp_path, live) as db:
        asked = defib("sql", "--db", str(db), LONG, folder=tmp_path)
        time.sleep(4)
        assert asked.poll() is None, asked.communicate()
        asked.send_signal(signal.SIGINT)
        out, err = asked.communicate(timeout=30)
        assert (asked.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("live", [False, True], ids=["offline", "live"])
@pytest.mark.parametrize("form", ["--csv", "--jsonl", "--json", "-P"])
def test_a_reader_that_goes_away_ends_it_quietly(form: str, live: bool, tmp_path: Path) -> None:
    with history(tmp_path, live) as db:
        asked = defib("sql", "--db", str(db), "FROM t", form, folder=tmp_path)
        assert asked.stdout is not None
        assert asked.stderr is not None
        asked.stdout.read(10)
        asked.stdout.close()
        assert asked.stderr.read() == ""
        asked.stderr.close()
        assert asked.wait(60) == 0


def test_the_end_of_a_watch_waits_for_its_questions(tmp_path: Path) -> None:
    """When `close` returns no thread has the history any more, whatever it was at: idle, at work, or sending to nobody."""
    db = tmp_path / "h.duckdb"
    con = connect(str(db), read_only=False)
    con.execute("CREATE TABLE t AS SELECT range AS a, repeat('x', 100) AS b FROM range(900000)")
    server = SqlServer(sqlwire.socket_of(str(db)), con.cursor)
    raws = []
    for sql in (None, LONG, "FROM t"):
        raw = socket.socket(socket.AF_UNIX)
        with sqlwire.address(sqlwire.socket_of(str(db))) as address:
            raw.connect(address)
        if sql is not None:
            sqlwire.send(raw, b"Q", orjson.dumps({"sql": sql}))
        raws.append(raw)
    deadline = time.monotonic() + 10
    while sum(t.name == "sql-peer" for t in threading.enumerate()) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    began = time.monotonic()
    server.close()
    took = time.monotonic() - began
    left = [t.name for t in threading.enumerate() if t.name.startswith("sql")]
    for raw in raws:
        raw.close()
    con.close()
    assert left == []
    assert took < 8
