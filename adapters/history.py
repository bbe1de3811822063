"""One door to a history for everything that reads it: the file, or the process that holds it.

In: the path of a history (or of a watch's state folder). Out: a connection with `execute`, `extract_statements`, `interrupt`, `close`, whose
results have `description`, `fetchall`, `fetchone`. Always holds: a history that a running watch writes is asked through its socket, any
other is opened read-only; values are parameters, never part of the text; the same question gives the same values either way.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from defib.adapters import sqlwire
from defib.adapters.duck import BusyError, connect
from defib.adapters.show import printable, safe
from defib.engine.words import StoreError

NAME = "history.duckdb"  # within a state folder
CONNECT_S, ANSWER_S, BEGIN_S = 5.0, 120.0, 15.0


def history_path(path: str) -> str:
    """The history's file: of a state folder, the one in it."""
    return os.path.join(path, NAME) if os.path.isdir(path) else path


def open_history(path: str) -> Any:
    """A connection to ask a history through. Raises StoreError."""
    db = history_path(path)
    if db == ":memory:":
        return connect(db, read_only=True)
    until = time.monotonic() + BEGIN_S
    while True:
        peer = _reach(db)
        if peer is not None:
            return Remote(peer, db)
        try:
            return connect(db, read_only=True)
        except BusyError:
            # A watch that begins (or ends) holds its history for a moment without answering.
            if not _watched(db) or time.monotonic() > until:
                raise
            time.sleep(0.1)


def _watched(db: str) -> bool:
    """The history of a watch's state folder."""
    return os.path.isdir(os.path.join(os.path.dirname(os.path.abspath(db)), "journal"))


class Result:
    """What a question gave."""

    def __init__(self, columns: list[tuple[str, str]], rows: list[tuple[Any, ...]]) -> None:
        self.description = [(name, kind, None, None, None, None, None) for name, kind in columns]
        self._rows, self._at = rows, 0

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Every row not fetched yet."""
        rows, self._at = self._rows[self._at :], len(self._rows)
        return rows

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, None at the end."""
        self._at += 1
        return self._rows[self._at - 1] if self._at <= len(self._rows) else None


class Remote:
    """A history that another process holds."""

    def __init__(self, peer: socket.socket, db: str) -> None:
        self._peer, self._db = peer, db
        self._hung_up = False
        self._local = duckdb.connect(config={"threads": 1, "autoinstall_known_extensions": False})
        self._local.execute("SET enable_external_access = false")

    def extract_statements(self, text: str) -> Any:
        """The statements of a text, as DuckDB's parser cuts it. Raises duckdb.Error."""
        return self._local.extract_statements(text)

    def execute(self, question: Any, values: Sequence[Any] | None = None) -> Result:
        """One statement. Raises duckdb.Error for a wrong question, StoreError where the other process is gone or refuses."""
        sql = question if isinstance(question, str) else question.query
        if self._hung_up:
            self._peer.close()
            peer = _reach(self._db)
            if peer is None:
                raise StoreError(f"{safe(printable(self._db))}: the watch that held it has ended; ask again")
            self._peer, self._hung_up = peer, False
        try:
            sqlwire.send(self._peer, b"Q", orjson.dumps({"sql": sql, "params": list(values or [])}))
            columns, raw = self._answer()
        except (OSError, ConnectionError) as e:
            raise StoreError(f"{safe(printable(self._db))}: the watch that holds it does not answer: {e}") from e
        return Result(columns, self._rows(columns, raw))

    def interrupt(self) -> None:
        """Stop waiting; the other process stops working when the connection is gone. The next question makes a new one."""
        self._hung_up = True
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up."""
        self._peer.close()
        self._local.close()

    def _answer(self) -> tuple[list[tuple[str, str]], bytes]:
        columns: list[tuple[str, str]] = []
        pieces: list[bytes] = []
        while (got := sqlwire.receive(self._peer)) is not None:
            kind, body = got
            if kind == b"H":
                columns = [(name, of) for name, of in orjson.loads(body)["columns"]]
            elif kind == b"A":
                pieces.append(body)
            elif kind == b"D":
                return columns, b"".join(pieces)
            else:
                said = orjson.loads(body)
                if said["kind"] == "sql":
                    raise duckdb.Error(said["text"])
                raise StoreError(f"{safe(printable(self._db))}: {safe(said['text'])}")
        raise ConnectionError("the connection ended")

    def _rows(self, columns: list[tuple[str, str]], raw: bytes) -> list[tuple[Any, ...]]:
        """Values as the file itself would give them: Arrow has no 128-bit integers and no UUIDs, so those are cast back."""
        with pa.ipc.open_stream(raw) as reader:
            table = reader.read_all()
        table = table.rename_columns([f"c{i}" for i in range(table.num_columns)])
        casts = [
            f"CAST(c{i} AS {of})" if of in ("HUGEINT", "UHUGEINT", "UUID", "JSON") else f"c{i}"
            for i, (_, of) in enumerate(columns)
        ]
        self._local.register("answer", table)
        try:
            return self._local.execute(f"SELECT {', '.join(casts)} FROM answer").fetchall()  # noqa: S608 - names of our own
        finally:
            self._local.unregister("answer")


def _reach(db: str) -> socket.socket | None:
    """A connection to the process that holds a history; None where there is none. Raises StoreError."""
    path = sqlwire.socket_of(db)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(CONNECT_S)
    try:
        owner = os.lstat(path).st_uid
        with sqlwire.address(path) as address:
            peer.connect(address)
        answers = sqlwire.credentials(peer)[1]
    except PermissionError as e:
        peer.close()
        raise StoreError(
            f"{safe(printable(path))}: you may not ask the watch that holds this history\n"
            "    mend: ask its owner to let a group of yours ask (defib watch --sql-group)"
        ) from e
    except OSError:
        peer.close()  # nobody listens (any more): the file is free
        return None
    if answers not in (0, owner, os.geteuid()):
        peer.close()
        raise StoreError(f"{safe(printable(path))}: answered by a process that does not own it")
    peer.settimeout(ANSWER_S)
    return peer
