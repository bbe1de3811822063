"""The history while its jobs still run: every commit of the journal becomes rows, at most a moment later.

In: commits with their numbers, in order. Out: rows, written in batches; the number of the last commit whose rows are in the database is
written with them in one transaction (`meta`: applied, and chain, by which it is told from another commit of the same number). Always holds: a
commit's rows are in the database once, whatever dies when; commits up to `applied` are taken in without being written; the rows depend
on the commits alone, so a rebuilt database is the same.

After a failed write the connection is dropped: what a broken handle says is not believed. The new one tells what was applied, and what
was not is written again. A full disk is a `FullError`: `flush` can be called again when there is room.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from defib.adapters import rows
from defib.adapters.board import Board, health_row
from defib.adapters.duck import DuckStore, connect, failed, stored
from defib.adapters.room import FullError
from defib.engine.core import Append, Event, HealthChanged, JobJudged, State, StreamRead, StreamSeen, read_of
from defib.engine.rulebook import Rulebook
from defib.engine.words import JobKey, StoreError

FLUSH_BYTES = 16 * 1024 * 1024
MEMORY = "512MB"  # the writer's and that of questions asked meanwhile


class Beside(Protocol):
    """Rows that do not come from commits, written in the same transactions; see `acts`."""

    @property
    def due(self) -> bool: ...

    def write(self, con: duckdb.DuckDBPyConnection, insert: Callable[[str, list[dict[str, Any]]], None]) -> None: ...

    def written(self) -> None: ...

    def reread(self, con: duckdb.DuckDBPyConnection) -> None: ...


class LiveStore(DuckStore):
    """One writer. beside: who else has rows for it. `take` commits in order, `flush` now and then, `close`."""

    def __init__(self, path: str, book: Rulebook, journal: str) -> None:
        self._hold = threading.Lock()  # guards the connection questions are asked through
        super().__init__(path, book, journal, MEMORY)
        self._asked = self.con.cursor()
        self.applied = int(self.meta.get("applied", 0))
        # Chain of that commit in the journal it was made from; nothing in a history of a version that did not keep it.
        self.applied_chain = bytes.fromhex(self.meta.get("chain", ""))
        self.seq, self.chain = 0, b""
        self.board = Board()
        self.beside: Beside | None = None
        self.waiting_bytes = 0
        self._ended: dict[JobKey, dict[int, StreamRead]] = {}  # streams of jobs not judged yet
        self._commits: list[tuple[int, Sequence[object]]] = []
        self._whole = True  # the live tables are written anew at the first flush
        self._lost = False  # there is no connection: a failed write broke it, and another could not be had
        self._renewed = False  # the rules have changed since they were told

    def renew(self, book: Rulebook) -> None:
        """Other rules from now on; their classes and policies are told at the next flush."""
        self._book, self._renewed = book, True

    def seed(self, state: State, board: Board, seq: int, chain: bytes = b"") -> None:
        """Go on after commit `seq` with what it left behind, instead of taking in the commits up to it."""
        assert seq <= self.applied, "a snapshot is taken of what is in the database"
        self.board, self.seq, self.chain = board, seq, chain
        for n, s in state.streams.items():
            self._keys[n] = rows.stream_key(s.id)
            if s.end is not None:
                self._ended.setdefault(s.facts.job, {})[n] = read_of(n, s)

    def take(
        self, seq: int, events: Sequence[Event], effects: Sequence[object], state: State, chain: bytes = b""
    ) -> None:
        """One commit. Written at the next flush. chain: of its record."""
        assert seq > self.seq, "commits come in order"
        self.at(seq, chain)
        self.board.take(events, effects, state)
        if seq <= self.applied:
            self._follow(effects)
            return
        self._commits.append((seq, effects))
        self.waiting_bytes += sum(e.rows.nbytes for e in effects if isinstance(e, Append))

    def at(self, seq: int, chain: bytes) -> None:
        """This record is the last one taken in; it may be one without events."""
        self.seq, self.chain = seq, chain

    @property
    def due(self) -> bool:
        """Something waits that somebody may want to see."""
        b = self.board
        return self._more or bool(
            b.changed_jobs or b.changed_streams or b.gone_jobs or any(e for _, e in self._commits)
        )

    def flush(self) -> None:
        """Everything taken is in the database when this returns. Raises FullError (call again later), StoreError."""
        if self._lost:
            self._again()
        if self.seq <= self.applied and not self._whole and not self._renewed and not self._more:
            return
        try:
            with self._transaction():
                if self._renewed:
                    self.con.execute("INSERT OR REPLACE INTO meta VALUES ('rules', ?)", [self._book.hash])
                    self._tell_rules()
                ended, done = self._write_commits()
                self._write_board()
                if self.beside is not None:
                    self.beside.write(self.con, self._rows)
                values = {"applied": str(max(self.seq, self.applied)), "now_us": str(self.board.now_us or 0)}
                if self.seq >= self.applied:
                    values["chain"] = self.chain.hex()
                for key, value in values.items():
                    self.con.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [key, value])
        except StoreError as e:
            self._failed(e)
            raise
        self.applied, self._whole, self._renewed = max(self.seq, self.applied), False, False
        self._commits, self.waiting_bytes = [], 0
        if self.beside is not None:
            self.beside.written()
        self.board.clean()
        self._ended = ended
        for n in done:
            self._keys.pop(n, None)

    @property
    def _more(self) -> bool:
        return self.beside is not None and self.beside.due

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own for one question from another thread. Raises StoreError while there is none to be had."""
        with self._hold:
            try:
                return self._asked.cursor()
            except duckdb.ConnectionException as e:
                raise StoreError("the history cannot be opened just now: its disk is full, or it ends") from e

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._shut()

    def abandon(self) -> None:
        """Let go without writing: the journal has it all."""
        self._shut()

    def _shut(self) -> None:
        with self._hold, contextlib.suppress(duckdb.Error):
            self._asked.close()
        with contextlib.suppress(duckdb.Error):
            self.con.close()

    def _follow(self, effects: Iterable[object]) -> None:
        """Take in effects whose rows are in the database already."""
        for e in effects:
            if isinstance(e, StreamSeen):
                self._keys[e.stream] = rows.stream_key(e.id)
            elif isinstance(e, StreamRead):
                self._ended.setdefault(e.facts.job, {})[e.stream] = e
            elif isinstance(e, JobJudged):
                for n in self._ended.pop(e.job, {}):
                    self._keys.pop(n, None)

    def _write_commits(self) -> tuple[dict[JobKey, dict[int, StreamRead]], list[int]]:
        """Rows of the waiting commits into the open transaction; may run again after a failure. Returns (the ended streams of jobs not judged
        by then, the streams that are done with)."""
        fresh: list[str] = []
        parts: dict[str, list[pa.Table]] = {"signals": [], "progress": []}
        health = []
        judged: list[tuple[JobJudged, dict[int, StreamRead]]] = []
        ended = dict(self._ended)
        for e in (e for _, effects in self._commits for e in effects):
            match e:
                case StreamSeen():
                    self._keys[e.stream] = rows.stream_key(e.id)
                    fresh.append(self._keys[e.stream])
                case Append():
                    parts[e.table] += self._keyed(e.rows)
                case HealthChanged():
                    health.append(health_row(e))
                case StreamRead():
                    ended[e.facts.job] = {**ended.get(e.facts.job, {}), e.stream: e}
                case JobJudged():
                    judged.append((e, ended.pop(e.job, {})))
        for table, tables in parts.items():
            if fresh:
                self.con.execute(f"DELETE FROM {table} WHERE stream_id IN (SELECT unnest(?))", [fresh])  # noqa: S608 - constant names
            if tables:
                self._insert(table, pa.concat_tables(tables))
        self._rows("health", health)
        self._stories(judged)
        return ended, [n for _, mine in judged for n in mine]

    def _stories(self, judged: list[tuple[JobJudged, dict[int, StreamRead]]]) -> None:
        """Judged jobs together, but one that was judged twice in turn: the later story is numbered after the earlier."""
        group: dict[JobKey, tuple[JobJudged, dict[int, StreamRead]]] = {}
        for e, mine in [*judged, (None, {})]:
            if group and (e is None or e.job in group):
                self._tell([j for j, _ in group.values()], {n: r for _, m in group.values() for n, r in m.items()})
                group = {}
            if e is not None:
                group[e.job] = (e, mine)

    def _keyed(self, table: pa.Table) -> list[pa.Table]:
        numbers = pc.unique(table.column("stream")).to_pylist()
        if len(numbers) == 1:
            return [stored(table, self._keys[numbers[0]])]
        keys = pa.array([self._keys[n] for n in numbers], pa.string())
        at = pc.index_in(table.column("stream"), pa.array(numbers, table.schema.field("stream").type))
        return [stored(table, keys.take(at.combine_chunks()))]

    def _write_board(self) -> None:
        b = self.board
        if self._whole:
            b.whole()
            self.con.execute("DELETE FROM live_jobs")
            self.con.execute("DELETE FROM live_streams")
        jobs, streams = b.job_rows(), b.stream_rows()
        for table, column, keys in (
            ("live_jobs", "job", [*b.gone_jobs, *(r["job"] for r in jobs)]),
            ("live_streams", "stream_id", [*b.gone_streams, *(r["stream_id"] for r in streams)]),
        ):
            if keys and not self._whole:
                self.con.execute(f"DELETE FROM {table} WHERE {column} IN (SELECT unnest(?))", [keys])  # noqa: S608 - constant names
        self._rows("live_jobs", jobs)
        self._rows("live_streams", streams)

    def _failed(self, e: StoreError) -> None:
        """Drop the connection; ask a new one what was applied. Raises FullError where the disk is full, or memory was short for a moment."""
        self._shut()
        self._lost = True
        try:
            self._again()
        except FullError as again:
            raise again from e
        if isinstance(e, FullError) or isinstance(e.__cause__, duckdb.OutOfMemoryException):
            raise FullError(str(e)) from e

    def _again(self) -> None:
        """Another connection in place of one that broke; what it says was applied is believed. Raises FullError, StoreError."""
        con = connect(self._path, read_only=False, memory=MEMORY)
        try:
            found = con.execute("SELECT value FROM meta WHERE key = 'applied'").fetchone()
            if self.beside is not None:
                self.beside.reread(con)
        except duckdb.Error as e:
            con.close()
            raise failed(self._path, e) from e
        with self._hold:
            self.con, self._asked, self._lost = con, con.cursor(), False
        self.applied = int(found[0]) if found else 0
        for seq, effects in self._commits:
            if seq <= self.applied:  # it was written after all
                self._follow(effects)
        self._commits = [c for c in self._commits if c[0] > self.applied]
        self._schemas.clear()
        self._whole = True
