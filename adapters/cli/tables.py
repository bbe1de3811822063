"""Tables on a terminal, and the same rows for machines."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from defib.adapters.show import cell, csv_cell, safe

RIGHT = (int, float)


def as_json(value: Any) -> Any:
    """JSON-able: times as RFC 3339 UTC."""
    if isinstance(value, datetime):
        return value.isoformat() + "Z"
    if isinstance(value, list):
        return [as_json(v) for v in value]
    if isinstance(value, dict):
        return {k: as_json(v) for k, v in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def write_json(document: Any) -> None:
    import orjson

    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def write_jsonl(rows: list[dict[str, Any]]) -> None:
    import orjson

    for row in rows:
        sys.stdout.buffer.write(orjson.dumps(as_json(row)) + b"\n")


def rows_out(names: Sequence[str], rows: Sequence[Sequence[Any]], args: Any, schema: str) -> None:
    """Print rows the way the flags ask."""
    if args.json:
        write_json({"schema": schema, "rows": [as_json(dict(zip(names, r, strict=True))) for r in rows]})
    elif args.jsonl:
        write_jsonl([dict(zip(names, r, strict=True)) for r in rows])
    elif args.csv:
        out = csv.writer(sys.stdout, lineterminator="\n")
        if not args.noheader:
            out.writerow(names)
        out.writerows([csv_cell(v) for v in r] for r in rows)
    elif args.parsable:
        if not args.noheader:
            print("|".join(names))
        for r in rows:
            print("|".join(cell(v).replace("|", "\\x7c") for v in r))
    else:
        table(names, rows, header=not args.noheader)


def table(
    names: Sequence[str], rows: Sequence[Sequence[Any]], *, header: bool = True, wrap: Sequence[str] = ()
) -> None:
    """An aligned table as wide as the terminal; in a pipe as wide as it needs. Columns in `wrap` may break over lines."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 10_000
    t = Table(box=None, pad_edge=False, show_header=header, header_style="bold", padding=(0, 2, 0, 0))
    for i, name in enumerate(names):
        right = bool(rows) and all(
            r[i] is None or (isinstance(r[i], RIGHT) and not isinstance(r[i], bool)) for r in rows
        )
        t.add_column(
            safe(name),
            justify="right" if right else "left",
            no_wrap=name not in wrap,
            overflow="fold" if name in wrap else "ellipsis",
        )
    for r in rows:
        t.add_row(*(Text(cell(v), style=_style(names[i], v)) for i, v in enumerate(r)))
    console.print(t)


def _style(name: str, value: Any) -> str:
    if name not in ("verdict", "VERDICT"):
        return ""
    return {
        "crashed": "red",
        "stalled": "red",
        "completed": "green",
        "cancelled": "yellow",
        "preempted": "yellow",
        "time-limit": "yellow",
    }.get(str(value), "")
