"""The DuckDB history as a `Sink`: bulk loads through Arrow, whole jobs at a time.

Rows of a stream replace what the same stream had before, rows of an attempt replace that attempt's, so replaying the same logs leaves
the same content. Rows wait in memory until their job is judged; those of a very large job are written early and noted in
`unfinished`; whatever is still noted there at the end, or when the store is next opened, is taken out again. So the store holds whole jobs only,
after Ctrl-C and after a kill, and memory does not grow with the log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from defib.adapters import rows, schema
from defib.adapters.room import FullError, takes
from defib.adapters.show import printable
from defib.adapters.views import VIEWS
from defib.engine.core import Append, JobJudged, StreamRead, StreamSeen
from defib.engine.incidents import attempt_id
from defib.engine.rulebook import Rulebook
from defib.engine.words import JobKey, StoreError


class BusyError(StoreError):
    """Another process has the history open."""


class UnreadableError(StoreError):
    """The file is no history DuckDB can open."""


# What DuckDB raises where a disk refuses a write: at once, at a commit, or from then on; or where no spill file could be written.
DISK = (
    duckdb.IOException,
    duckdb.FatalException,
    duckdb.InternalException,
    duckdb.TransactionException,
    duckdb.OutOfMemoryException,
)
WRITE_BYTES = 32 * 1024 * 1024  # a commit with the checkpoint it may bring
TRIES = 3


STAGE_BYTES = 16 * 1024 * 1024
JOBS_TOGETHER = 64


def connect(path: str, *, read_only: bool, memory: str | None = None) -> duckdb.DuckDBPyConnection:
    """Open a history. User SQL must reach neither files nor network, so external access is off. Raises StoreError with a mend."""
    try:
        path.encode()
    except UnicodeEncodeError as e:
        raise StoreError(f"{printable(path)}: the name of a history must be UTF-8") from e
    if read_only and not os.path.exists(path):
        raise StoreError(f"{path}: no history here; run 'defib replay LOGS…' first, or name one with --db")
    fresh = not os.path.lexists(path)
    if path != ":memory:":
        _place(path)
    options: dict[str, Any] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "memory_limit": memory or ("512MB" if read_only else "128MB"),
        "threads": 2,
    }
    for left in reversed(range(TRIES)):
        try:
            con = duckdb.connect(path, read_only=read_only and path != ":memory:", config=options)
            con.execute("SET enable_external_access = false")
            con.execute("SET lock_configuration = true")
        except duckdb.Error as e:
            why = _refused(path, e, read_only)
            if isinstance(why, UnreadableError) and isinstance(e, duckdb.IOException) and left:
                time.sleep(0.05)  # whoever held it may have let go before we looked
                continue
            if fresh and isinstance(why, FullError):  # what was only begun would be no history at the next start
                for part in (path, path + ".wal"):
                    with contextlib.suppress(OSError):
                        os.unlink(part)
            raise why from e
        else:
            return con
    raise AssertionError("the last try returns or raises")


def _place(path: str) -> None:
    """Raises UnreadableError where no history can be; a named pipe would be waited for."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UnreadableError(
            f"{path}: there is no folder {printable(folder)}\n    mend: make it, or name another file"
        )
    if os.path.exists(path) and not os.path.isfile(path):
        kind = "a folder" if os.path.isdir(path) else "not a regular file"
        raise UnreadableError(f"{path}: {kind}, not a history\n    mend: name a file, such as history.duckdb")


def _refused(path: str, e: duckdb.Error, read_only: bool) -> StoreError:
    """What it means that a history cannot be opened: judged by the lock on it and the room on its disk, not by words of the message."""
    said = f"{path}: {str(e).splitlines()[0]}"
    if isinstance(e, duckdb.IOException) and _held(path, read_only):
        return BusyError(f"{said}\n    mend: another process holds it; wait or use another --db")
    if not read_only and path != ":memory:" and isinstance(failure := failed(path, e), FullError):
        return failure
    return UnreadableError(
        f"{said}\n    mend: is it a DuckDB file of this version, and may you read it? If not, move it away or name another --db"
    )


def _held(path: str, read_only: bool) -> bool:
    """Whether another process has locked the file against us. Closing it here would drop locks of our own process, but DuckDB has just
    refused to open it, so there are none."""
    try:
        fd = os.open(path, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.lockf(fd, (fcntl.LOCK_SH if read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as e:
        return e.errno in (errno.EAGAIN, errno.EACCES)
    finally:
        os.close(fd)
    return False


def failed(path: str, e: duckdb.Error, size: int = 0) -> StoreError:
    """What a failed call of DuckDB's means: FullError where the disk takes no more. size: what was to be written."""
    text = f"{path}: {str(e).splitlines()[0]}"
    folder = os.path.dirname(os.path.abspath(path))
    if path != ":memory:" and isinstance(e, DISK) and not takes(folder, WRITE_BYTES + 2 * size):
        return FullError(text)
    return StoreError(text)


class DuckStore:
    """One writer. `apply` effects in order, then `close`; after an error `close` keeps what was judged before it."""

    def __init__(self, path: str, book: Rulebook, journal: str | None = None, memory: str | None = None) -> None:
        self.con = connect(path, read_only=False, memory=memory)
        self._path = path
        self._journal = journal  # the identity of the journal this history is a view of
        self.meta: dict[str, str] = {}
        self._book = book
        self._keys: dict[int, str] = {}
        self._reads: dict[int, StreamRead] = {}
        self._staged: dict[int, list[tuple[str, pa.Table]]] = {}
        self._staged_bytes = 0
        self._judged: list[JobJudged] = []  # wait to be written together: a transaction costs more than a small job
        self._schemas: dict[str, pa.Schema] = {}
        self._written: set[int] = set()  # streams of unjudged jobs with rows in the store
        with self._transaction():
            self._bring_up()
            self._forget_unfinished()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, whatever comes in between (an interrupt included). DuckDB's errors become StoreError."""
        try:
            self.con.execute("BEGIN")
            yield
            self.con.execute("COMMIT")
        except BaseException as e:
            with contextlib.suppress(duckdb.Error):
                self.con.execute("ROLLBACK")
            if isinstance(e, duckdb.Error):
                raise failed(self._path, e) from e
            raise

    def _bring_up(self) -> None:
        """Tables and views as they are now, rows of an earlier version kept; classes and policy as the rules of this run have them."""
        have: dict[str, set[str]] = {}
        for name, column in self.con.execute("SELECT table_name, column_name FROM duckdb_columns()").fetchall():
            have.setdefault(name, set()).add(column)
        meta = dict(self.con.execute("SELECT key, value FROM meta").fetchall()) if "meta" in have else {}
        if int(meta.get("schema", 0)) > schema.VERSION:
            raise StoreError(
                f"the history was written by a newer defib (schema {meta['schema']}); upgrade, or use another --db"
            )
        if meta.get("journal") != self._journal and (meta or self._journal is None):
            raise StoreError(
                f"{self._path}: this history is a watch's own, made from its journal\n    mend: use another --db"
                if self._journal is None
                else f"{self._path}: this history was not made from the journal beside it\n"
                "    mend: move it away; the watch makes it anew from the journal"
            )
        self.meta = meta
        layout = schema.layout()
        if meta.get("layout") != layout or not have.keys() >= {*schema.TABLES, *VIEWS}:
            for statement in [*schema.tables(), *schema.additions(have), *schema.views()]:
                self.con.execute(statement)
        elif meta.get("rules") == self._book.hash:
            return
        now = {"schema": str(schema.VERSION), "layout": layout, "rules": self._book.hash}
        if self._journal is not None:
            now["journal"] = self._journal
        for key, value in now.items():
            self.con.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [key, value])
        self._tell_rules()

    def _tell_rules(self) -> None:
        for table, told in (("classes", rows.class_rows(self._book)), ("policy", rows.policy_rows(self._book))):
            self.con.execute(f"DELETE FROM {table}")  # noqa: S608 - constant names
            self._rows(table, told)

    def apply(self, effects: Iterable[object]) -> None:
        for effect in effects:
            if isinstance(effect, StreamSeen):
                self._keys[effect.stream] = rows.stream_key(effect.id)
            elif isinstance(effect, Append):
                self._stage(effect)
            elif isinstance(effect, StreamRead):
                self._reads[effect.stream] = effect
            elif isinstance(effect, JobJudged):
                self._judged.append(effect)
                if len(self._judged) >= JOBS_TOGETHER:
                    self._write_judged()

    def flush(self) -> None:
        """Make every job judged so far durable."""
        self._write_judged()

    def close(self) -> None:
        """Rows of jobs that were never judged are taken out again."""
        try:
            self._write_judged()
            with self._transaction():
                self._forget_unfinished()
        finally:
            self.con.close()

    def _stage(self, effect: Append) -> None:
        streams = effect.rows.column("stream")
        numbers = pc.unique(streams).to_pylist()
        for number in numbers:
            part = effect.rows if len(numbers) == 1 else effect.rows.filter(pc.equal(streams, number))
            self._staged.setdefault(number, []).append((effect.table, part))
            self._staged_bytes += part.nbytes
        if self._staged_bytes > STAGE_BYTES:
            self._write_judged()
            with self._transaction():
                self._write(sorted(self._staged))
            self._unstage(sorted(self._staged))

    def _write(self, numbers: list[int]) -> None:
        """Staged rows of streams go into the open transaction, one insert a table, noted as unfinished until their jobs are judged."""
        fresh = [self._keys[n] for n in numbers if n not in self._written]
        if fresh:
            for table in ("signals", "progress"):
                self.con.execute(f"DELETE FROM {table} WHERE stream_id IN (SELECT unnest(?))", [fresh])  # noqa: S608 - constant names
            self.con.execute("INSERT OR IGNORE INTO unfinished SELECT unnest(?)", [fresh])
        for table in ("signals", "progress"):
            parts = [
                stored(rows, self._keys[n]) for n in numbers for name, rows in self._staged.get(n, []) if name == table
            ]
            if parts:
                self._insert(table, pa.concat_tables(parts))

    def _unstage(self, numbers: list[int]) -> None:
        """What was written is durable: drop it from memory."""
        for number in numbers:
            self._staged_bytes -= sum(rows.nbytes for _, rows in self._staged.pop(number, []))
            self._written.add(number)

    def _write_judged(self) -> None:
        """Everything of the judged jobs in one transaction."""
        jobs = self._judged
        if not jobs:
            return
        of: dict[JobKey, list[int]] = {e.job: [] for e in jobs}
        for n, read in self._reads.items():
            if read.facts.job in of:
                of[read.facts.job].append(n)
        numbers = sorted(n for members in of.values() for n in members)
        keys = [self._keys[n] for n in numbers]
        with self._transaction():
            self._write(numbers)
            self._tell(jobs, {n: self._reads[n] for n in numbers})
            self.con.execute("DELETE FROM unfinished WHERE stream_id IN (SELECT unnest(?))", [keys])
        self._judged = []
        self._unstage(numbers)
        for number in numbers:
            self._written.discard(number)
            self._keys.pop(number, None)
            self._reads.pop(number, None)

    def _tell(self, jobs: list[JobJudged], reads: dict[int, StreamRead]) -> None:
        """The stories of judged jobs (each at most once) into the open transaction. reads: their streams."""
        told = self._numbered(jobs, [self._keys[n] for n in reads])
        named = [(rows.job_name(e.job), a) for e in told for a in e.attempts]
        self._rows("streams", [rows.stream_row(read, self._keys[n]) for n, read in reads.items()])
        self._rows("attempts", [rows.attempt_row(job, a, self._keys, self._book) for job, a in named])
        self._rows("attempt_streams", [
            {"attempt_id": a.attempt_id, "stream_id": self._keys[n], "first_line": a.first_line[n], "last_line": a.last_line[n]}
            for _, a in named for n in a.streams
        ])  # fmt: skip
        self._rows(
            "windows", [{**r, "stream_id": self._keys[n]} for e in told for n, cells in e.windows for r in cells]
        )
        self._rows("episodes", [r for _, a in named for r in rows.episode_rows(a, self._keys)])
        self._rows("incidents", [r for _, a in named if (r := rows.incident_row(a, self._book))])
        self._rows("evidence", [r for _, a in named for r in rows.evidence_rows(a, self._keys)])
        self._rows("nodes", [r for _, a in named for r in rows.node_rows(a, self._keys)])

    def _numbered(self, jobs: list[JobJudged], keys: list[str]) -> list[JobJudged]:
        """Earlier words about these logs go. Attempts the jobs' other logs told stay, and an attempt whose number one of them has takes the next."""
        names = [rows.job_name(e.job) for e in jobs]
        old = [r[0] for r in self.con.execute(
            "SELECT DISTINCT attempt_id FROM attempts LEFT JOIN attempt_streams USING (attempt_id) "
            "WHERE job IN (SELECT unnest(?)) AND (stream_id IS NULL OR stream_id IN (SELECT unnest(?)))", [names, keys]
        ).fetchall()]  # fmt: skip
        if old:
            for table in ("attempts", "attempt_streams", "windows", "episodes", "incidents", "evidence", "nodes"):
                self.con.execute(f"DELETE FROM {table} WHERE attempt_id IN (SELECT unnest(?))", [old])  # noqa: S608 - constant names
        self.con.execute("DELETE FROM streams WHERE stream_id IN (SELECT unnest(?))", [keys])
        taken: dict[str, set[int]] = {}
        query = "SELECT job, attempt_index FROM attempts WHERE job IN (SELECT unnest(?))"
        for job, index in self.con.execute(query, [names]).fetchall():
            taken.setdefault(job, set()).add(index)
        return [_renumbered(e, taken.get(name, set())) for e, name in zip(jobs, names, strict=True)]

    def _forget_unfinished(self) -> None:
        """Rows of jobs that were never judged (an interrupt, a kill) go; they are in the logs still."""
        for table in ("signals", "progress"):
            self.con.execute(f"DELETE FROM {table} WHERE stream_id IN (SELECT stream_id FROM unfinished)")  # noqa: S608 - constant names
        self.con.execute("DELETE FROM unfinished")

    def _rows(self, table: str, values: list[dict[str, Any]]) -> None:
        if values:
            self._insert(table, pa.Table.from_pylist(values, schema=self._schema(table)))

    def _schema(self, table: str) -> pa.Schema:
        """The table's own columns as Arrow types, so that a column of nulls still has its type."""
        if table not in self._schemas:
            self._schemas[table] = self.con.sql(f"SELECT * FROM {table} LIMIT 0").to_arrow_table().schema  # noqa: S608 - constant names
        return self._schemas[table]

    def _insert(self, table: str, values: pa.Table) -> None:
        self.con.register("incoming", values)
        self.con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")  # noqa: S608 - constant names
        self.con.unregister("incoming")


def stored(values: pa.Table, stream_id: str | pa.Array) -> pa.Table:
    """Engine columns -> table columns: stream number to key (one for all rows, or one each), microseconds to TIMESTAMP."""
    columns = {"stream_id": pa.repeat(stream_id, values.num_rows) if isinstance(stream_id, str) else stream_id}
    for name in values.schema.names:
        if name in ("stream", "year_us"):
            continue
        if name == "time_us":
            columns["time"] = values.column(name).cast(pa.timestamp("us"))
        else:
            columns[name] = values.column(name)
    return pa.table(columns)


def _renumbered(effect: JobJudged, taken: set[int]) -> JobJudged:
    """The same attempts under numbers that are free."""
    if not taken & {a.index for a in effect.attempts}:
        return effect
    shift = max(taken) + 1 - min(a.index for a in effect.attempts)
    ids = {a.attempt_id: attempt_id(effect.job, a.index + shift) for a in effect.attempts}
    attempts = tuple(
        dataclasses.replace(a, attempt_id=ids[a.attempt_id], index=a.index + shift) for a in effect.attempts
    )
    windows = tuple((n, [{**r, "attempt_id": ids[str(r["attempt_id"])]} for r in cells]) for n, cells in effect.windows)
    return JobJudged(effect.job, attempts, windows)
