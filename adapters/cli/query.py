"""`defib jobs | attempts | incidents | sql`: questions to the history."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any

from defib.adapters.cli.tables import rows_out
from defib.adapters.show import decodable, printable, safe

# Fixed statements; what a person gives goes in as a parameter.
MATCH = "(? IS NULL OR job = ? OR job_id = ? OR job_name = ? OR attempt_id = ? OR ends_with(job, '/' || ?))"
JOBS = (
    "SELECT job, any_value(job_name) AS name, last(framework ORDER BY attempt_index) AS framework, count(*) AS tries, "
    "last(verdict ORDER BY attempt_index) AS verdict, last(class ORDER BY attempt_index) AS class, max(last_step) AS last_step, "
    "max(total_steps) AS total, last(median_step_s ORDER BY attempt_index) AS step_s, max(last_seen) AS last_seen FROM attempts "
    f"WHERE {MATCH} GROUP BY job ORDER BY job"
)
ATTEMPTS = (
    "SELECT job, attempt_index + 1 AS try, verdict, framework, first_step, last_step, total_steps AS total, median_step_s AS step_s, "
    f"throughput, throughput_unit AS unit, class, cause_rule AS cause, cause_node AS node, cause_rank AS rank, cascades FROM attempts WHERE {MATCH} "
    "ORDER BY job, attempt_index"
)
# Where the line of the cause has no time, the attempt's last line stands for it.
INCIDENTS = (
    "SELECT i.incident_id AS incident, a.job, a.attempt_index + 1 AS try, i.verdict, i.class, i.rule, i.confidence, i.node, i.rank, i.step, "
    f"i.cascades, coalesce(i.time, a.last_seen) AS time FROM incidents i "
    f"JOIN (SELECT * FROM attempts WHERE {MATCH}) a USING (attempt_id) ORDER BY a.job, a.attempt_index"
)
NAMES = (
    "SELECT DISTINCT job, job_id, job_name, attempt_id FROM attempts "
    "UNION SELECT job, job_id, job_name, NULL FROM live_jobs ORDER BY ALL"
)


# Columns that go first where the terminal is narrow.
DROP = (
    "cascades",
    "confidence",
    "unit",
    "throughput",
    "first_step",
    "last_seen",
    "step_s",
    "time",
    "total",
    "name",
    "framework",
    "rank",
    "incident",
    "node",
)


def jobs(args: Any) -> int:
    """`defib jobs`: one row per job."""
    return _listing(args, JOBS, "defib/jobs/1")


def attempts(args: Any) -> int:
    """`defib attempts`: one row per attempt."""
    return _listing(args, ATTEMPTS, "defib/attempts-table/1")


def incidents(args: Any) -> int:
    """`defib incidents`: one row per attempt that did not end well."""
    return _listing(args, INCIDENTS, "defib/incidents/1")


def _listing(args: Any, query: str, schema: str) -> int:
    from defib.adapters.history import open_history

    with contextlib.closing(open_history(args.db)) as con:
        result = ask(con, args.db, query, [meant(con, args.db, args.job)] * 6)
        names, rows = [d[0] for d in result.description], result.fetchall()
    rows_out(names, rows, args, schema, DROP)
    return 0


def ask(con: Any, db: str, query: str, values: list[Any]) -> Any:
    """Run one of our own statements. What a person typed goes through `meant` first. Raises StoreError where the file is not a history."""
    import duckdb

    from defib.engine.words import StoreError

    try:
        return con.execute(query, values)
    except duckdb.Error as e:
        raise StoreError(f"{db}: {_lacks(con) or str(e).splitlines()[0]}") from e


def meant(con: Any, db: str, typed: str | None) -> str | None:
    """A job's name as the history holds it: as it was typed, bytes that are not UTF-8 as escapes; or as it is shown on a terminal, where
    characters that could steer it are escapes too."""
    if typed is None:
        return None
    plain = printable(typed)
    if "\\" not in typed:
        return plain
    names = ask(con, db, NAMES, []).fetchall()
    if any(plain in row or str(row[0]).endswith("/" + plain) for row in names):
        return plain
    shown = (
        str(row[0]) for row in names if typed in map(safe, filter(None, row)) or safe(row[0]).endswith("/" + typed)
    )
    return next(shown, plain)


def _lacks(con: Any) -> str | None:
    """What is wrong with a file one of our own statements does not run on."""
    import duckdb

    from defib.adapters.schema import VERSION

    try:
        row = con.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        written = int(row[0])
    except (duckdb.Error, TypeError, ValueError):
        return "not a defib history; 'defib replay LOGS…' makes one"
    if written < VERSION:
        mend = "the next 'defib replay LOGS…' into it, or the next start of its watch, brings it up to date"
        return f"written by an earlier defib (schema {written}); {mend}"
    return None


def sql(args: Any) -> int:
    """One query, or a prompt on a terminal, or a query from a pipe."""
    import duckdb

    from defib.adapters.history import open_history

    con = open_history(args.db)
    try:
        if args.query is None and sys.stdin.isatty():
            return _prompt(con, args)
        return _run(con, decodable(args.query) if args.query is not None else sys.stdin.read(), args)
    except duckdb.Error as e:
        print("\n".join(safe(line) for line in str(e).splitlines()), file=sys.stderr)
        return 2
    finally:
        con.close()


def _run(con: Any, query: str, args: Any) -> int:
    """Every statement of the text, each result in turn."""
    for statement in con.extract_statements(query):
        result = interruptible(con, statement)
        if result is not None:
            rows_out(*result, args, "defib/sql/1")
    return 0


def interruptible(con: Any, statement: Any) -> tuple[list[str], list[Any]] | None:
    """(column names, rows) of one statement; Ctrl-C reaches a query that is still at work. Raises KeyboardInterrupt, duckdb.Error."""
    box: list[Any] = []

    def work() -> None:
        try:
            result = con.execute(statement)
            known = result is not None and result.description is not None
            box.append(([d[0] for d in result.description], result.fetchall()) if known else None)
        except Exception as e:  # handed over to the thread that waits
            box.append(e)

    worker = threading.Thread(target=work, daemon=True)
    try:
        worker.start()
        while worker.is_alive():
            worker.join(0.1)
    except KeyboardInterrupt:
        con.interrupt()
        worker.join(1)
        if worker.is_alive() or not sys.stdin.isatty():
            # The library's threads may still be winding down and abort the interpreter's exit; the history is open read-only, so
            # nothing is lost by leaving at once.
            with contextlib.suppress(OSError):  # its reader may be gone too
                sys.stdout.flush()
            os._exit(130)
        raise
    if isinstance(box[0], Exception):
        raise box[0]
    return box[0]  # type: ignore[no-any-return]


def _prompt(con: Any, args: Any) -> int:
    """Read statements until end of input; a statement ends with a semicolon or an empty line."""
    import duckdb

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - line editing for input()
    print("DuckDB SQL over the history, read-only. Tables: SHOW TABLES;  leave: Ctrl-D", file=sys.stderr)
    held = ""
    while True:
        try:
            line = input("defib> " if not held else "  ...> ")
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            held = ""
            continue
        held += line + "\n"
        if held.strip() and (held.rstrip().endswith(";") or not line.strip()):
            try:
                _run(con, held, args)
            except duckdb.Error as e:
                print("\n".join(safe(part) for part in str(e).splitlines()), file=sys.stderr)
            except KeyboardInterrupt:
                print("interrupted", file=sys.stderr)
            held = ""
