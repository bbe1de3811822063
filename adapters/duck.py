"""The DuckDB history as a `Sink`: bulk loads through Arrow, whole jobs at a time.

Rows of a stream replace what the same stream had before, rows of an attempt replace that attempt's, so replaying the same logs leaves
the same content. Rows wait in memory until their job is judged; those of a very large job are written early and noted in
`unfinished`; whatever is still noted there at the end, or when the store is next opened, is taken out again. So the store holds whole jobs only,
after Ctrl-C and after a kill, and memory does not grow with the log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from defib.adapters import schema
from defib.adapters.show import printable
from defib.engine.core import Append, JobJudged, StreamRead, StreamSeen
from defib.engine.incidents import attempt_id, fingerprint
from defib.engine.rulebook import Rulebook
from defib.engine.words import AttemptVerdict, JobKey, StoreError, StreamId

STAGE_BYTES = 16 * 1024 * 1024
HEALTHY = ("completed", "running-at-end", "unknown")


def stream_key(stream: StreamId) -> str:
    """Stable text key of a stream."""
    return hashlib.sha256(f"{stream.path}\0{stream.generation}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def job_name(job: JobKey) -> str:
    """The job as people name it: cluster/id[_task], or the place of its logs."""
    task = f"_{job.array_task}" if job.array_task is not None else ""
    return f"{job.cluster + '/' if job.cluster else ''}{job.job_id or job.place}{task}"


def connect(path: str, *, read_only: bool) -> duckdb.DuckDBPyConnection:
    """Open a history. User SQL must reach neither files nor network, so external access is off. Raises StoreError with a mend."""
    try:
        path.encode()
    except UnicodeEncodeError as e:
        raise StoreError(f"{printable(path)}: the name of a history must be UTF-8") from e
    if read_only and not os.path.exists(path):
        raise StoreError(f"{path}: no history here; run 'defib replay LOGS…' first, or name one with --db")
    options: dict[str, Any] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "memory_limit": "512MB" if read_only else "128MB",
        "threads": 2,
    }
    try:
        con = duckdb.connect(path, read_only=read_only and path != ":memory:", config=options)
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
    except duckdb.Error as e:
        said = str(e).splitlines()[0]
        mend = (
            "another process holds it; wait or use another --db"
            if "lock" in said.lower()
            else "is it a DuckDB file of this version, and may you read it?"
        )
        raise StoreError(f"{path}: {said}\n    mend: {mend}") from e
    return con


class DuckStore:
    """One writer. `apply` effects in order, then `close`; after an error `close` keeps what was judged before it."""

    def __init__(self, path: str, book: Rulebook) -> None:
        self.con = connect(path, read_only=False)
        self._path = path
        self._book = book
        self._keys: dict[int, str] = {}
        self._reads: dict[int, StreamRead] = {}
        self._staged: dict[int, list[tuple[str, pa.Table]]] = {}
        self._staged_bytes = 0
        self._written: set[int] = set()  # streams of unjudged jobs with rows in the store
        with self._transaction():
            for statement in schema.statements():
                self.con.execute(statement)
            self._check_version()
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
                raise StoreError(f"{self._path}: {str(e).splitlines()[0]}") from e
            raise

    def _check_version(self) -> None:
        row = self.con.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        if row and int(row[0]) > schema.VERSION:
            raise StoreError(
                f"the history was written by a newer defib (schema {row[0]}); upgrade, or use another --db"
            )
        self.con.execute(
            "INSERT OR REPLACE INTO meta VALUES ('schema', ?), ('rules', ?)", [str(schema.VERSION), self._book.hash]
        )

    def apply(self, effects: Iterable[object]) -> None:
        for effect in effects:
            if isinstance(effect, StreamSeen):
                self._keys[effect.stream] = stream_key(effect.id)
            elif isinstance(effect, Append):
                self._stage(effect)
            elif isinstance(effect, StreamRead):
                self._reads[effect.stream] = effect
            elif isinstance(effect, JobJudged):
                self._job(effect)

    def close(self) -> None:
        """Rows of jobs that were never judged are taken out again."""
        try:
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
            with self._transaction():
                for number in sorted(self._staged):
                    self._write(number)
            self._unstage(sorted(self._staged))

    def _write(self, number: int) -> None:
        """A stream's staged rows go into the open transaction, noted as unfinished until its job is judged."""
        if number not in self._written:
            self._clear(number)
            self.con.execute("INSERT OR IGNORE INTO unfinished VALUES (?)", [self._keys[number]])
        for table, rows in self._staged.get(number, []):
            self._insert(table, _stored(rows, self._keys[number]))

    def _unstage(self, numbers: list[int]) -> None:
        """What was written is durable: drop it from memory."""
        for number in numbers:
            self._staged_bytes -= sum(rows.nbytes for _, rows in self._staged.pop(number, []))
            self._written.add(number)

    def _clear(self, number: int) -> None:
        for table in ("signals", "progress"):
            self.con.execute(f"DELETE FROM {table} WHERE stream_id = ?", [self._keys[number]])  # noqa: S608 - constant names

    def _job(self, effect: JobJudged) -> None:
        """Everything of a judged job in one transaction."""
        job = job_name(effect.job)
        numbers = sorted(n for n, r in self._reads.items() if r.facts.job == effect.job)
        keys = [self._keys[n] for n in numbers]
        with self._transaction():
            for number in numbers:
                self._write(number)
            effect = self._numbered(job, keys, effect)
            self._rows("streams", [self._stream_row(self._reads[n]) for n in numbers])
            self._rows("attempts", [self._attempt_row(job, a) for a in effect.attempts])
            self._rows("attempt_streams", [
                {"attempt_id": a.attempt_id, "stream_id": self._keys[n], "first_line": a.first_line[n], "last_line": a.last_line[n]}
                for a in effect.attempts for n in a.streams
            ])  # fmt: skip
            self._rows("windows", [{**r, "stream_id": self._keys[n]} for n, rows in effect.windows for r in rows])
            self._rows("incidents", [r for a in effect.attempts if (r := self._incident_row(a))])
            self._rows("evidence", [r for a in effect.attempts for r in self._evidence_rows(a)])
            self._rows("nodes", [r for a in effect.attempts for r in self._node_rows(a)])
            self.con.execute("DELETE FROM unfinished WHERE stream_id IN (SELECT unnest(?))", [keys])
        self._unstage(numbers)
        for number in numbers:
            self._written.discard(number)
            self._keys.pop(number, None)
            self._reads.pop(number, None)

    def _numbered(self, job: str, keys: list[str], effect: JobJudged) -> JobJudged:
        """Earlier words about these logs go. Attempts the job's other logs told stay, and an attempt whose number one of them has takes the next."""
        told = self.con.execute(
            "SELECT DISTINCT attempt_id FROM attempts LEFT JOIN attempt_streams USING (attempt_id) "
            "WHERE job = ? AND (stream_id IS NULL OR stream_id IN (SELECT unnest(?)))", [job, keys]
        ).fetchall()  # fmt: skip
        old = [r[0] for r in told]
        for table in ("attempts", "attempt_streams", "windows", "incidents", "evidence", "nodes"):
            self.con.execute(f"DELETE FROM {table} WHERE attempt_id IN (SELECT unnest(?))", [old])  # noqa: S608 - constant names
        self.con.execute("DELETE FROM streams WHERE stream_id IN (SELECT unnest(?))", [keys])
        taken = {r[0] for r in self.con.execute("SELECT attempt_index FROM attempts WHERE job = ?", [job]).fetchall()}
        if not taken & {a.index for a in effect.attempts}:
            return effect
        shift = max(taken) + 1 - min(a.index for a in effect.attempts)
        ids = {a.attempt_id: attempt_id(effect.job, a.index + shift) for a in effect.attempts}
        attempts = tuple(
            dataclasses.replace(a, attempt_id=ids[a.attempt_id], index=a.index + shift) for a in effect.attempts
        )
        windows = tuple(
            (n, [{**r, "attempt_id": ids[str(r["attempt_id"])]} for r in rows]) for n, rows in effect.windows
        )
        return JobJudged(effect.job, attempts, windows)

    def _forget_unfinished(self) -> None:
        """Rows of jobs that were never judged (an interrupt, a kill) go; they are in the logs still."""
        for table in ("signals", "progress"):
            self.con.execute(f"DELETE FROM {table} WHERE stream_id IN (SELECT stream_id FROM unfinished)")  # noqa: S608 - constant names
        self.con.execute("DELETE FROM unfinished")

    def _rows(self, table: str, rows: list[dict[str, Any]]) -> None:
        if rows:
            self._insert(table, pa.Table.from_pylist(rows, schema=self._schema(table)))

    def _schema(self, table: str) -> pa.Schema:
        """The table's own columns as Arrow types, so that a column of nulls still has its type."""
        return self.con.sql(f"SELECT * FROM {table} LIMIT 0").to_arrow_table().schema  # noqa: S608 - constant names

    def _insert(self, table: str, rows: pa.Table) -> None:
        self.con.register("incoming", rows)
        self.con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")  # noqa: S608 - constant names
        self.con.unregister("incoming")

    def _stream_row(self, r: StreamRead) -> dict[str, Any]:
        f = r.facts
        return {
            "stream_id": self._keys[r.stream], "path": r.id.path, "generation": r.id.generation, "job": job_name(f.job),
            "channel": f.channel, "node": f.node, "rank": f.rank, "local_rank": f.local_rank, "bytes": r.size, "lines": r.lines,
            "frameworks": list(r.frameworks), "tail": list(r.tail), "notes": list(r.notes),
        }  # fmt: skip

    def _attempt_row(self, job: str, a: AttemptVerdict) -> dict[str, Any]:
        c, p = a.cause, a.progress
        s = c.signal if c else None
        return {
            "attempt_id": a.attempt_id, "job": job, "cluster": a.job.cluster, "job_id": a.job.job_id, "array_task": a.job.array_task,
            "submit_time": moment(a.job.submit_time_us), "restart_count": a.restart_count, "attempt_index": a.index,
            "job_name": a.job_name, "framework": a.framework, "verdict": a.verdict, "class": a.klass,
            "domain": c.domain if c else None, "confidence": c.confidence if c else None, "because": c.because if c else None,
            "cause_rule": s.rule if s else None, "cause_title": s.title if s else None,
            "cause_stream": self._keys[s.stream] if s else None, "cause_line": s.line if s else None,
            "cause_offset": s.offset if s else None, "cause_rank": s.rank if s else None, "cause_node": s.node if s else None,
            "cause_text": s.text if s else None, "cascades": a.cascades, "clock": a.clock,
            "progress_format": p.format if p else None, "progress_kind": p.kind if p else None,
            "first_step": p.first_step if p else None, "last_step": p.last_step if p else None,
            "total_steps": p.total_steps if p else None, "points": p.points if p else None,
            "median_step_s": p.median_step_s if p else None, "p90_step_s": p.p90_step_s if p else None,
            "throughput": p.throughput if p else None, "throughput_unit": p.throughput_unit if p else None,
            "first_seen": moment(a.first_us), "last_seen": moment(a.last_us), "notes": list(a.notes),
        }  # fmt: skip

    def _incident_row(self, a: AttemptVerdict) -> dict[str, Any] | None:
        if a.verdict in HEALTHY or a.cause is None:
            return None
        c, s = a.cause, a.cause.signal
        known = self._book.class_by_id.get(c.klass)
        return {
            "incident_id": incident_id(a), "attempt_id": a.attempt_id, "verdict": a.verdict, "class": c.klass, "domain": c.domain,
            "rule": s.rule, "confidence": c.confidence, "fingerprint": fingerprint(s), "rank": s.rank, "node": s.node,
            "time": moment(s.time_us), "step": a.progress.last_step if a.progress else None, "cascades": a.cascades, "title": s.title,
            "because": c.because, "retry": known.retry if known else None, "exclude": known.exclude if known else None,
            "budget": known.budget if known else None,
        }  # fmt: skip

    def _evidence_rows(self, a: AttemptVerdict) -> list[dict[str, Any]]:
        incident = incident_id(a) if a.verdict not in HEALTHY and a.cause is not None else None
        return [
            {
                "incident_id": incident, "attempt_id": a.attempt_id, "position": i, "why": e.why, "rule": e.signal.rule,
                "title": e.signal.title, "stream_id": self._keys[e.signal.stream], "line": e.signal.line, "offset": e.signal.offset,
                "time": moment(e.signal.time_us), "rank": e.signal.rank, "node": e.signal.node, "count": e.count, "text": e.signal.text,
            }
            for i, e in enumerate(a.evidence)
        ]  # fmt: skip

    def _node_rows(self, a: AttemptVerdict) -> list[dict[str, Any]]:
        if a.verdict in HEALTHY or a.cause is None:
            return []
        out: dict[str, dict[str, Any]] = {}
        for e in a.evidence:
            s = e.signal
            if s.node is not None and s.node not in out:
                role = "suspect" if e.why == "cause" and s.role in ("root", "candidate") else "named"
                out[s.node] = {
                    "node": s.node, "attempt_id": a.attempt_id, "incident_id": incident_id(a), "role": role, "class": s.klass,
                    "confidence": a.cause.confidence if role == "suspect" else "unknown", "rule": s.rule,
                    "stream_id": self._keys[s.stream], "line": s.line, "time": moment(s.time_us),
                }  # fmt: skip
        return list(out.values())


def incident_id(a: AttemptVerdict) -> str:
    """Stable key of an attempt's incident."""
    return hashlib.sha256(f"incident|{a.attempt_id}".encode("utf-8", "surrogatepass")).hexdigest()[:12]


def moment(us: int | None) -> datetime | None:
    """Microseconds UTC -> naive UTC datetime (DuckDB TIMESTAMP); out of range is None."""
    if us is None or not 0 <= us < 253402300800_000000:
        return None
    return datetime.fromtimestamp(us / 1e6, UTC).replace(tzinfo=None)


def _stored(rows: pa.Table, stream_id: str) -> pa.Table:
    """Engine columns -> table columns: stream number to key, microseconds to TIMESTAMP."""
    columns = {"stream_id": pa.DictionaryArray.from_arrays(pa.array([0] * rows.num_rows, pa.int8()), [stream_id])}
    for name in rows.schema.names:
        if name in ("stream", "year_us"):
            continue
        if name == "time_us":
            columns["time"] = rows.column(name).cast(pa.timestamp("us"))
        else:
            columns[name] = rows.column(name)
    return pa.table(columns)


def attempt_object(a: AttemptVerdict, paths: dict[int, str]) -> dict[str, Any]:
    """The object of `replay --jsonl`; keys are a promise."""
    c, p = a.cause, a.progress
    cause = None
    if c is not None:
        s = c.signal
        cause = {
            "rule": s.rule, "class": c.klass, "domain": c.domain, "stream": paths[s.stream], "line": s.line, "offset": s.offset,
            "rank": s.rank, "node": s.node, "text": s.text, "confidence": c.confidence, "because": c.because,
        }  # fmt: skip
    progress = None
    if p is not None:
        progress = {
            "format": p.format, "kind": p.kind, "first_step": p.first_step, "last_step": p.last_step,
            "total_steps": p.total_steps, "points": p.points,
            "median_step_s": p.median_step_s, "p90_step_s": p.p90_step_s, "throughput": p.throughput, "throughput_unit": p.throughput_unit,
        }  # fmt: skip
    submit = moment(a.job.submit_time_us)
    return {
        "attempt": {
            "id": a.attempt_id, "cluster": a.job.cluster, "job_id": a.job.job_id, "array_task": a.job.array_task,
            "submit_time": submit.isoformat() + "Z" if submit else None, "restart_count": a.restart_count, "index": a.index,
            "job_name": a.job_name,
        },
        "streams": [paths[n] for n in a.streams], "framework": a.framework, "verdict": a.verdict, "class": a.klass, "cause": cause,
        "cascades": a.cascades, "progress": progress, "clock": a.clock, "notes": list(a.notes),
    }  # fmt: skip
