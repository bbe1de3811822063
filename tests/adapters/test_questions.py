"""Questions to a history that another process holds: the same answers, no more rights, and no way to hold things up."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from defib.adapters import sqlwire
from defib.adapters.duck import connect
from defib.adapters.history import Remote, open_history
from defib.adapters.sqlserver import Limits, SqlServer
from defib.engine.words import StoreError

Start = Callable[..., Remote]
EVERY_KIND = (
    "SELECT *, sum(a) OVER () AS total, 1.5::DECIMAL(9,2) AS d, INTERVAL 1 DAY AS i, '602b5fdc-8319-4fd5-91f2-3976910ce86f'::UUID AS u, "
    "true AS flag, 'x'::BLOB AS raw, {'a': 1} AS s, MAP {'k': 2} AS m, 170141183460469231731687303715884105727::HUGEINT AS h, "
    "DATE '2020-01-02' AS day, 'a' AS a FROM t ORDER BY 1"
)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[tuple[Path, Any]]:
    """A file and the writer that holds it."""
    db = tmp_path / "h.duckdb"
    con = connect(str(db), read_only=False)
    con.execute("CREATE TABLE t (a INTEGER, moment TIMESTAMP, said JSON, words VARCHAR[])")
    con.execute("INSERT INTO t VALUES (1, '2020-01-01', '{\"a\":1}', ['x', NULL]), (NULL, NULL, NULL, NULL)")
    yield db, con
    con.close()


@pytest.fixture
def ask(history: tuple[Path, Any]) -> Iterator[Start]:
    """`ask(limits…)`: a connection through the socket of a server that ends with the test."""
    made: list[Any] = []

    def start(**limits: Any) -> Remote:
        db, con = history
        made.append(SqlServer(sqlwire.socket_of(str(db)), con.cursor, Limits(**limits)))
        remote = open_history(str(db))
        made.append(remote)
        assert isinstance(remote, Remote)
        return remote

    yield start
    for thing in reversed(made):
        thing.close()


def test_values_are_the_files_own(history: tuple[Path, Any], ask: Start) -> None:
    remote = ask()
    _, con = history
    found = remote.execute(EVERY_KIND)
    wanted = con.execute(EVERY_KIND)
    assert [d[0] for d in found.description] == [d[0] for d in wanted.description]
    rows = wanted.fetchall()
    assert found.fetchone() == rows[0]
    assert found.fetchall() == rows[1:]
    assert found.fetchone() is None


def test_values_go_in_as_parameters(ask: Start) -> None:
    remote = ask()
    hostile = "'; DROP TABLE t; --"
    assert remote.execute("SELECT ?, ? IS NULL", [hostile, None]).fetchall() == [(hostile, True)]
    assert remote.execute("SELECT count(*) FROM t").fetchall() == [(2,)]


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ("DROP TABLE t", "one statement that reads"),
        ("SELECT 1; SELECT 2", "one statement that reads"),
        ("SET memory_limit = '1TB'", "one statement that reads"),
        ("ATTACH '/tmp/x.duckdb'", "one statement that reads"),
        ("COPY t TO '/tmp/x.csv'", "one statement that reads"),
        ("", "one statement that reads"),
        ("WITH x AS (INSERT INTO t VALUES (3, NULL, NULL, NULL) RETURNING a) SELECT * FROM x", "read-only"),
        ("EXPLAIN ANALYZE DELETE FROM t", "read-only"),
        ("SELECT * FROM read_text('/etc/passwd')", "disabled"),
        ("SELECT * FROM '/etc/passwd'", "disabled|does not exist"),
        ("SELECT nothing FROM t", "not found"),
        ("SELEC 1", "syntax error"),
    ],
)
def test_only_reading_is_answered(question: str, why: str, history: tuple[Path, Any], ask: Start) -> None:
    remote = ask()
    with pytest.raises((duckdb.Error, StoreError), match=why):
        remote.execute(question)
    assert remote.execute("SELECT count(*) FROM t").fetchall() == [(2,)], "the connection goes on"
    assert history[1].execute("SELECT count(*) FROM t").fetchall() == [(2,)]


def test_shows_and_explanations_are_answered(ask: Start) -> None:
    remote = ask()
    assert remote.execute("SHOW TABLES").fetchall() == [("t",)]
    assert len(remote.execute("DESCRIBE t").fetchall()) == 4
    assert remote.execute("EXPLAIN SELECT 1").fetchall()


def test_a_question_has_bounds(ask: Start) -> None:
    remote = ask(rows=1000, seconds=1.0)
    assert len(remote.execute("SELECT * FROM range(1000)").fetchall()) == 1000
    with pytest.raises(StoreError, match="more than 1,000 rows"):
        remote.execute("SELECT * FROM range(100000)")
    began = time.monotonic()
    with pytest.raises(StoreError, match="stopped after 1 s"):
        remote.execute("SELECT count(*) FROM range(100000000000) a, range(1000) b")
    assert time.monotonic() - began < 20
    assert remote.execute("SELECT 1").fetchall() == [(1,)]


def test_the_writer_writes_while_questions_run(history: tuple[Path, Any], ask: Start) -> None:
    """A long question holds nothing up, and stops when its asker hangs up."""
    remote = ask()
    box: list[Any] = []

    def long() -> None:
        try:
            remote.execute("SELECT count(*) FROM range(100000000000) a, range(1000) b")
        except (StoreError, duckdb.Error) as e:
            box.append(e)

    asker = threading.Thread(target=long)
    asker.start()
    time.sleep(0.3)
    for n in range(20):
        history[1].execute("INSERT INTO t VALUES (?, NULL, NULL, NULL)", [n])
    assert asker.is_alive()
    other = open_history(str(history[0]))
    assert other.execute("SELECT count(*) FROM t").fetchall() == [(22,)]
    other.close()
    remote.interrupt()
    asker.join(20)
    assert not asker.is_alive()
    deadline = time.monotonic() + 20
    while any(t.name == "sql-peer" for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(t.name == "sql-peer" for t in threading.enumerate()), "the question stopped with its asker"


def test_too_many_at_once_are_sent_away(history: tuple[Path, Any], ask: Start) -> None:
    first = ask(at_once=1)
    first.execute("SELECT 1")
    second = open_history(str(history[0]))
    with pytest.raises(StoreError, match=r"too many questions|does not answer"):
        second.execute("SELECT 1")
    second.close()
    assert first.execute("SELECT 1").fetchall() == [(1,)]


def test_strangers_are_not_heard(history: tuple[Path, Any], ask: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = ask(group=os.getgid())
    said = {"peer": (1, 4242, 4242)}
    monkeypatch.setattr(sqlwire, "credentials", lambda peer: said["peer"])
    raw = socket.socket(socket.AF_UNIX)
    with sqlwire.address(sqlwire.socket_of(str(history[0]))) as address:
        raw.connect(address)
    got = sqlwire.receive(raw)
    raw.close()
    assert got is not None
    assert b"its own user only" in got[1]
    said["peer"] = (1, 4242, os.getgid())
    raw = socket.socket(socket.AF_UNIX)
    with sqlwire.address(sqlwire.socket_of(str(history[0]))) as address:
        raw.connect(address)
    sqlwire.send(raw, b"Q", b'{"sql": "SELECT 1"}')
    got = sqlwire.receive(raw)
    raw.close()
    assert got is not None
    assert got[0] == b"H", "a member of the group is"
    assert os.stat(sqlwire.socket_of(str(history[0]))).st_mode & 0o777 == 0o660
    del remote


@pytest.mark.parametrize(
    "raw", [b"", b"\xff" * 9, b"\x05\x00\x00\x00Q{bad}", b"\x02\x00\x00\x00Q{}", b"\x04\x00\x00\x00Qnull"]
)
def test_nonsense_harms_nobody(raw: bytes, history: tuple[Path, Any], ask: Start) -> None:
    remote = ask()
    peer = socket.socket(socket.AF_UNIX)
    with sqlwire.address(sqlwire.socket_of(str(history[0]))) as address:
        peer.connect(address)
    peer.sendall(raw)
    peer.shutdown(socket.SHUT_WR)
    peer.settimeout(10)
    with contextlib.suppress(ConnectionResetError), peer:
        while peer.recv(4096):
            pass
    assert remote.execute("SELECT 1").fetchall() == [(1,)]


def test_a_socket_nobody_listens_on_leads_to_the_file(history: tuple[Path, Any]) -> None:
    db, con = history
    con.close()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(sqlwire.socket_of(str(db)))
    dead.close()
    local = open_history(str(db))
    assert not isinstance(local, Remote)
    assert local.execute("SELECT count(*) FROM t").fetchall() == [(2,)]
    local.close()


def test_a_path_longer_than_an_address_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    con = connect(str(folder / "h.duckdb"), read_only=False)
    server = SqlServer(sqlwire.socket_of(str(folder / "h.duckdb")), con.cursor)
    remote = open_history(str(folder / "h.duckdb"))
    assert remote.execute("SELECT 1").fetchall() == [(1,)]
    assert os.stat(sqlwire.socket_of(str(folder / "h.duckdb"))).st_mode & 0o777 == 0o600
    remote.close()
    server.close()
    con.close()
