"""Questions from other processes while one holds the history: SQL on a Unix socket.

In: connections, each with one question after another. Out: answers as Arrow IPC, or errors. Always holds:

* only our own user, root, and members of a group that was named are heard;
* a question is one statement that reads, by DuckDB's own parser and plan (`reading`), run in a read-only transaction: there is no file, no
  network, no setting within its reach (`duck.connect`);
* rows, time and the number of questions at once are bounded; a question whose asker has hung up is stopped;
* it has threads of its own and never waits on the loop that writes, nor lets it wait; `close` returns when they have ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from defib.adapters import sqlwire
from defib.adapters.reading import RefusedError, only_reading
from defib.engine.words import StoreError

WATCH_S = 0.1
END_S = 10.0  # a question that does not let itself be stopped holds up the end no longer
POLLRDHUP = getattr(select, "POLLRDHUP", 0x2000)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one question may take. group: a group whose members may ask too."""

    seconds: float = 30.0
    rows: int = 1_000_000
    bytes: int = 256 * 1024 * 1024
    at_once: int = 16
    idle_s: float = 600.0
    group: int | None = None


class SqlServer:
    """Answers until `close`. cursor: makes a connection of its own to the history, from any thread."""

    def __init__(self, path: str, cursor: Callable[[], Any], limits: Limits | None = None) -> None:
        self.path = path
        self._cursor, self._limits = cursor, limits or Limits()
        self._stop = threading.Event()
        self._places = threading.BoundedSemaphore(self._limits.at_once)
        self._peers: set[socket.socket] = set()
        self._serving: set[threading.Thread] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._bind()
        except OSError as e:
            self._listener.close()
            raise StoreError(f"{path}: the socket cannot be made: {e.strerror or e}") from e
        self._thread = threading.Thread(target=self._accept, name="sql", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and hang up. Questions under way are stopped; none holds the history any more when this returns."""
        self._stop.set()
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        until = time.monotonic() + END_S
        self._thread.join(END_S)
        self._listener.close()
        for peer in list(self._peers):
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        for thread in list(self._serving):
            thread.join(max(0.0, until - time.monotonic()))

    def _bind(self) -> None:
        """The socket of a process that died is in the way; whether it is dead the lock on the journal has told."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        before = os.umask(0o177)
        try:
            with sqlwire.address(self.path) as address:
                self._listener.bind(address)
        finally:
            os.umask(before)
        if self._limits.group is not None:
            os.chown(self.path, -1, self._limits.group, follow_symlinks=False)
            os.chmod(self.path, 0o660)
        self._listener.listen(16)
        self._listener.settimeout(WATCH_S)

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                self._stop.wait(WATCH_S)
                continue
            if not self._places.acquire(blocking=False):
                self._refuse(peer, "too many questions at once; ask again")
                continue
            thread = threading.Thread(target=self._serve, args=(peer,), name="sql-peer", daemon=True)
            self._peers.add(peer)
            self._serving.add(thread)
            thread.start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError, ConnectionError):
                if not self._may_ask(peer):
                    self._refuse(peer, "this history answers its own user only")
                    return
                while not self._stop.is_set():
                    peer.settimeout(self._limits.idle_s)
                    got = sqlwire.receive(peer, sqlwire.QUESTION_MAX)
                    if got is None:
                        return
                    peer.settimeout(
                        self._limits.seconds
                    )  # an asker that does not take the answer holds up a snapshot of the history
                    self._answer(peer, got[1])
        finally:
            self._peers.discard(peer)
            peer.close()
            self._places.release()
            self._serving.discard(threading.current_thread())

    def _may_ask(self, peer: socket.socket) -> bool:
        pid, uid, gid = sqlwire.credentials(peer)
        if uid in (0, os.geteuid()):
            return True
        group = self._limits.group
        return group is not None and (gid == group or group in _groups(pid))

    @staticmethod
    def _refuse(peer: socket.socket, why: str) -> None:
        with contextlib.suppress(OSError):
            sqlwire.send(peer, b"E", orjson.dumps({"kind": "refused", "text": why}))
            peer.close()

    def _answer(self, peer: socket.socket, question: bytes) -> None:
        """One question. Whatever is wrong with it becomes an error for its asker. Raises OSError where the asker is gone."""
        cursor: Any = None
        try:
            said = orjson.loads(question)
            sql, values = str(said["sql"]), list(said.get("params") or [])
            cursor = self._cursor()
            with self._watched(cursor, peer) as late:
                try:
                    self._run(cursor, sql, values, peer)
                except duckdb.InterruptException as e:
                    raise RefusedError(
                        f"stopped after {self._limits.seconds:g} s" if late.is_set() else "interrupted"
                    ) from e
        except (RefusedError, StoreError, orjson.JSONDecodeError, KeyError, TypeError) as e:
            sqlwire.send(peer, b"E", orjson.dumps({"kind": "refused", "text": str(e)}))
        except (duckdb.Error, pa.ArrowException) as e:
            sqlwire.send(peer, b"E", _error(e))
        finally:
            if cursor is not None:
                with contextlib.suppress(duckdb.Error):
                    cursor.close()

    def _run(self, cursor: Any, sql: str, values: list[Any], peer: socket.socket) -> None:
        cursor.execute("BEGIN TRANSACTION READ ONLY")  # what a SELECT may hide (a WITH that inserts) is refused by this
        statement = only_reading(cursor, sql, values)
        found = cursor.sql(statement.query, params=values) if values else cursor.sql(statement.query)
        if found is None:
            raise RefusedError("the statement has no result")
        columns = [[name, str(kind)] for name, kind in zip(found.columns, found.types, strict=True)]
        sqlwire.send(peer, b"H", orjson.dumps({"columns": columns}))
        rows = size = 0
        sink = _Pieces(peer)
        with found.to_arrow_reader(10_000) as reader, pa.ipc.new_stream(sink, reader.schema) as out:
            for batch in reader:
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows > self._limits.rows or size > self._limits.bytes:
                    raise RefusedError(
                        f"more than {self._limits.rows:,} rows or {self._limits.bytes >> 20} MiB: ask for less"
                    )
                out.write_batch(batch)
        sqlwire.send(peer, b"D", b"")

    @contextlib.contextmanager
    def _watched(self, cursor: Any, peer: socket.socket):  # type: ignore[no-untyped-def]
        """While inside, the question is stopped when its time is up, its asker hangs up, or the server ends."""
        done, late = threading.Event(), threading.Event()
        until = time.monotonic() + self._limits.seconds

        def watch() -> None:
            ask = select.poll()
            ask.register(peer, POLLRDHUP)
            while not done.wait(WATCH_S):
                if time.monotonic() >= until:
                    late.set()
                if late.is_set() or self._stop.is_set() or ask.poll(0):
                    cursor.interrupt()

        thread = threading.Thread(target=watch, name="sql-watch", daemon=True)
        thread.start()
        try:
            yield late
        finally:
            done.set()
            thread.join()


class _Pieces:
    """A file that sends what is written to it."""

    closed = False

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer

    def write(self, raw: Any) -> int:
        view = memoryview(raw)
        for at in range(0, len(view), 1 << 20):
            sqlwire.send(self._peer, b"A", bytes(view[at : at + (1 << 20)]))
        return len(view)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def _groups(pid: int) -> set[int]:
    """Groups a process belongs to besides its own; none where it cannot be told."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        return {int(g) for line in f if line.startswith("Groups:") for g in line.split()[1:]}
    return set()


def _error(e: Exception) -> bytes:
    return orjson.dumps({"kind": "sql", "text": str(e).encode("utf-8", "replace").decode("utf-8")})
