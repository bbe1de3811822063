"""Tables on a terminal, and the same rows for machines."""

from __future__ import annotations

import csv
import os
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from defib.adapters.show import UNSAFE, cell, csv_cell, cut, safe

BOLD = "1"
GAP = 2  # blanks between columns
LAST_MIN = 24  # the last column is cut to no less while others can be left out


def as_json(value: Any) -> Any:
    """JSON-able: times as RFC 3339 UTC, whole numbers of any size kept (beyond 64 bits as text), keys as text."""
    if isinstance(value, datetime):
        return value.isoformat() + "Z"
    if isinstance(value, list | tuple):
        return [as_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): as_json(v) for k, v in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return value if value is None or isinstance(value, int | float) else str(value)


def dumps(value: Any, *, indent: bool = False) -> str:
    """JSON whose strings cannot steer a terminal: what `show.safe` would escape is written as \\uXXXX, which loses nothing."""
    import orjson

    text = orjson.dumps(as_json(value), option=orjson.OPT_INDENT_2 if indent else None).decode()
    # Line feeds are the layout's own: inside strings they are escaped already.
    return UNSAFE.sub(lambda m: m[0] if m[0] == "\n" else "".join(f"\\u{unit:04x}" for unit in _units(m[0])), text)


def _units(character: str) -> list[int]:
    raw = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]


def write_json(document: Any) -> None:
    """One document on stdout."""
    print(dumps(document, indent=True))


def write_jsonl(rows: list[dict[str, Any]]) -> None:
    """One object a line on stdout."""
    for row in rows:
        print(dumps(row))


def distinct(names: Sequence[str]) -> list[str]:
    """Column names as keys of an object: a second `a` becomes `a_1`, so that no value is lost."""
    out: list[str] = []
    for name in names:
        key, n = name, 0
        while key in out:
            n += 1
            key = f"{name}_{n}"
        out.append(key)
    return out


def rows_out(
    names: Sequence[str], rows: Sequence[Sequence[Any]], args: Any, schema: str, drop: Sequence[str] = ()
) -> None:
    """Print rows the way the flags ask."""
    if args.json:
        write_json({"schema": schema, "rows": [dict(zip(distinct(names), r, strict=True)) for r in rows]})
    elif args.jsonl:
        write_jsonl([dict(zip(distinct(names), r, strict=True)) for r in rows])
    elif args.csv:
        out = csv.writer(sys.stdout, lineterminator="\n")
        if not args.noheader:
            out.writerow([csv_cell(n) for n in names])
        out.writerows([csv_cell(v) for v in r] for r in rows)
    elif args.parsable:
        if not args.noheader:
            print("|".join(safe(n).replace("|", "\\x7c") for n in names))
        for r in rows:
            print("|".join(cell(v).replace("|", "\\x7c") for v in r))
    else:
        table(names, rows, header=not args.noheader, drop=drop)


def table(
    names: Sequence[str], rows: Sequence[Sequence[Any]], *, header: bool = True, drop: Sequence[str] = ()
) -> None:
    """An aligned table. In a pipe as wide as it needs; on a terminal it fits: columns of `drop` go one by one, then the last is cut."""
    from rich.cells import cell_len

    cells = [[cell(v) for v in r] for r in rows]
    titles = [safe(n) for n in names]
    order = [i for name in drop for i, n in enumerate(names) if n == name]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1 << 30
    shown = fit(titles, cells, order, room, header=header)
    widths = [_width(titles, cells, i, header=header) for i in shown]
    widths[-1] = max(1, min(widths[-1], room - sum(w + GAP for w in widths[:-1])))
    right = [_is_number([r[i] for r in rows]) for i in shown]
    colour = coloured()
    for number, texts in enumerate([titles, *cells] if header else cells):
        head = header and number == 0
        line = ""
        for k, i in enumerate(shown):
            text = cut(texts[i], widths[k])
            space = " " * (widths[k] - cell_len(text))
            style = BOLD if head else _style(names[i], rows[number - header][i])
            told = f"\x1b[{style}m{text}\x1b[0m" if style and colour else text
            line += (space + told if right[k] else told + space) + " " * GAP
        print(line.rstrip())


def coloured() -> bool:
    """Colour only on a terminal that wants it; NO_COLOR and FORCE_COLOR are honoured."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


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
    """SGR codes of a verdict: never colour alone, the word is there too."""
    if name not in ("verdict", "VERDICT"):
        return ""
    codes = {
        "crashed": "31",
        "stalled": "31",
        "completed": "32",
        "cancelled": "33",
        "preempted": "33",
        "time-limit": "33",
    }
    return codes.get(str(value), "")
