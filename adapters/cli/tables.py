"""Tables on a terminal, and the same rows for machines."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from defib.adapters.show import cell, csv_cell, cut, safe

GAP = 2  # blanks between columns
LAST_MIN = 24  # the last column is cut to no less while others can be left out


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


def rows_out(
    names: Sequence[str], rows: Sequence[Sequence[Any]], args: Any, schema: str, drop: Sequence[str] = ()
) -> None:
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
        table(names, rows, header=not args.noheader, drop=drop)


def table(
    names: Sequence[str], rows: Sequence[Sequence[Any]], *, header: bool = True, drop: Sequence[str] = ()
) -> None:
    """An aligned table. In a pipe as wide as it needs; on a terminal it fits: columns of `drop` go one by one, then the last is cut."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    cells = [[cell(v) for v in r] for r in rows]
    titles = [safe(n) for n in names]
    order = [i for name in drop for i, n in enumerate(names) if n == name]
    room = console.width if console.is_terminal else 1 << 30
    shown = fit(titles, cells, order, room, header=header)
    widths = [_width(titles, cells, i, header=header) for i in shown]
    widths[-1] = max(1, min(widths[-1], room - sum(w + GAP for w in widths[:-1])))
    right = [_is_number([r[i] for r in rows]) for i in shown]
    lines = [("bold", titles), *(("", c) for c in cells)] if header else [("", c) for c in cells]
    for number, (style, texts) in enumerate(lines):
        line = Text(style=style)
        for k, i in enumerate(shown):
            text = cut(texts[i], widths[k])
            space = " " * (widths[k] - cell_len(text))
            colour = _style(names[i], rows[number - header][i]) if not style else ""
            line.append(space + text if right[k] else text + space, style=colour).append(" " * GAP)
        line.rstrip()
        console.print(line)


def _is_number(values: Sequence[Any]) -> bool:
    known = [v for v in values if v is not None]
    return bool(known) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in known)


def fit(
    titles: Sequence[str], cells: Sequence[Sequence[str]], drop: Sequence[int], width: int, *, header: bool
) -> list[int]:
    """Column numbers that fit into width: those of `drop` go first to last until the rest fits (the last column may shrink)."""
    shown = list(range(len(titles)))
    for i in [None, *drop]:
        if i is not None:
            shown.remove(i)
        widths = [_width(titles, cells, k, header=header) for k in shown]
        if sum(widths[:-1]) + min(widths[-1], LAST_MIN) + GAP * (len(widths) - 1) <= width:
            break
    return shown


def _width(titles: Sequence[str], cells: Sequence[Sequence[str]], column: int, *, header: bool) -> int:
    from rich.cells import cell_len

    return max([cell_len(titles[column]) if header else 0, *(cell_len(r[column]) for r in cells)])


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
