"""Whether a question only reads: judged by DuckDB's own parser and by the plan it makes, never by the words of the text.

In: a cursor of the history and one text. Out: the one statement, or a `RefusedError` that says why not. Always holds: what would be run
calls no table function but those named here. A read-only transaction keeps a SELECT from changing rows, and a locked configuration without
external access from settings, files and the network; but functions such as `checkpoint()` act on the database itself, wherever they stand
in a query, a view or a text that `query()` is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import orjson

# Functions that only make rows of their arguments. Those whose names begin so tell of the database and change nothing.
MAKES_ROWS = {
    "RANGE", "GENERATE_SERIES", "UNNEST", "REPEAT", "REPEAT_ROW", "JSON_EACH", "JSON_TREE", "TEST_ALL_TYPES", "TEST_VECTOR_TYPES",
    "PG_TIMEZONE_NAMES", "ICU_CALENDAR_NAMES",
}  # fmt: skip
# What makes a value of any length out of a few characters (the database's memory limit does not count a single value while it is made),
# and what hides such a call in a text.
SWELLS = frozenset(
    [
        "repeat",
        "lpad",
        "rpad",
        "list_resize",
        "array_resize",
        "range",
        "generate_series",
        "format",
        "printf",
        "bar",
        "query",
    ]
)
TELLS = ("DUCKDB_", "PRAGMA_")
ONE = "one statement that reads (SELECT, FROM, SHOW, DESCRIBE, EXPLAIN) is answered while a watch runs; the history is read-only"


class RefusedError(Exception):
    """A question that is not answered, and why."""


def only_reading(cursor: Any, text: str, values: list[Any]) -> Any:
    """The one statement of a text. cursor: in a read-only transaction. Raises RefusedError, duckdb.Error for what is no SQL."""
    statement = _one(cursor, text)
    kind = _kind(statement)
    if kind == duckdb.StatementType.EXPLAIN:
        inner = _explained(cursor, statement.query)
        if inner is None:
            raise RefusedError(ONE)
        _judge(cursor, inner.query, values)
    elif kind == duckdb.StatementType.SELECT:
        try:
            _judge(cursor, statement.query, values)
        except duckdb.TransactionException:  # it would write
            raise
        except duckdb.Error:
            # What cannot be planned cannot be run: this only tells what is wrong with the text as it was given.
            cursor.execute(statement.query, values or None)
            raise
    else:
        raise RefusedError(ONE)
    return statement


def _one(cursor: Any, text: str) -> Any:
    statements = cursor.extract_statements(text)
    if len(statements) != 1:
        raise RefusedError(ONE)
    return statements[0]


def _kind(statement: Any) -> Any:
    """Its type; None for one the library has no name for."""
    try:
        return statement.type
    except ValueError:
        return None


def _explained(cursor: Any, text: str) -> Any:
    """What an EXPLAIN explains, which EXPLAIN ANALYZE runs: the first part of the text, from some word to its end, that is a statement of its
    own; None where that is no SELECT."""
    raw = text.encode()
    for at, _ in duckdb.tokenize(text)[1:]:
        try:
            statements = cursor.extract_statements(raw[at:].decode("utf-8", "replace"))
        except duckdb.Error:
            continue
        if len(statements) == 1:
            return statements[0] if _kind(statements[0]) == duckdb.StatementType.SELECT else None
    return None


def _judge(cursor: Any, query: str, values: list[Any]) -> None:
    """Refuse a plan that calls anything but functions that read."""
    tree = orjson.loads(cursor.execute("SELECT json_serialize_sql(?)", [query]).fetchone()[0])
    swelling = sorted(
        SWELLS & {name.lower() for name in _called(tree)}
    )  # before the plan is made: constants are worked out in it
    if swelling:
        raise RefusedError(f"{swelling[0]}() is not answered while a watch runs: it may take all memory there is")
    question = "EXPLAIN (FORMAT JSON) " + query
    plan = (cursor.execute(question, values) if values else cursor.execute(question)).fetchone()
    for name in _functions(orjson.loads(plan[1])):
        if name not in MAKES_ROWS and not name.startswith(TELLS):
            raise RefusedError(f"{name.lower()}() is not answered while a watch runs: it may do more than read")


def _functions(nodes: list[dict[str, Any]]) -> Iterator[str]:
    """Table functions anywhere in a plan."""
    for node in nodes:
        called = node.get("extra_info", {}).get("Function")
        if called is not None:
            yield str(called).upper()
        yield from _functions(node.get("children", []))


def _called(tree: Any, *, makes_rows: bool = False) -> Iterator[str]:
    """Names of the functions in a parsed statement that are called for a value; those that stand for a table come in pieces."""
    if isinstance(tree, dict):
        name = tree.get("function_name")
        if isinstance(name, str) and (not makes_rows or name.lower() == "query"):
            yield name
        for key, value in tree.items():
            yield from _called(value, makes_rows=key == "function" and tree.get("type") == "TABLE_FUNCTION")
    elif isinstance(tree, list):
        for value in tree:
            yield from _called(value)
