"""`defib scan`: which rules hit, how often and where. Imports nothing that a scan without finds does not need."""

from __future__ import annotations

import sys
from typing import Any

from defib.adapters import logfiles, rulefiles
from defib.adapters.matching import FileHits, Place, scan_files
from defib.adapters.show import safe
from defib.engine.match import Matcher


class UntoldError(Exception):
    """Standard output took no more while logs were read. Not an OSError, which would be taken for the log's own."""


def scan(args: Any) -> int:
    """Print hits by file and rule. Exit code 1 if nothing was found (as grep does), 3 if an input could not be read."""
    roster, databases, library = rulefiles.load_scan(args.rules)
    unread: list[logfiles.Unread] = []
    files = logfiles.find(args.paths, unread)
    names = roster.rules

    def each(file: logfiles.LogFile, line: int, rule: int) -> None:
        try:
            sys.stdout.write(f"{safe(file.shown)}:{line}: {safe(names[rule])}\n")
        except OSError as e:
            raise UntoldError from e

    tell = each if args.each else None
    matcher = Matcher(roster, databases, library, rulefiles.sorter, rulefiles.memory)
    try:
        found = list(scan_files(files, matcher, unread, tell, lines=args.each or not args.count))
    except UntoldError as e:
        raise e.__cause__ or e from None
    if args.json:
        _json(found, unread, names, lines=not args.count)
    elif args.count:
        _totals(found, names)
    elif not args.each:
        _places(found, names)
    for u in unread:
        print(f"not read: {safe(u.path)}: {safe(u.why)}", file=sys.stderr)
    if any(u.refused for u in unread):
        return 3
    return 0 if any(f.rules for f in found) else 1


def _by_count(rules: dict[int, Place], names: tuple[str, ...]) -> list[tuple[int, Place]]:
    return sorted(rules.items(), key=lambda x: (-x[1].count, names[x[0]]))


def _totals(found: list[FileHits], names: tuple[str, ...]) -> None:
    """`count rule` a line, over all files, most frequent first."""
    total: dict[int, Place] = {}
    for f in found:
        for rule, place in f.rules.items():
            total.setdefault(rule, Place()).count += place.count
    for rule, place in _by_count(total, names):
        print(f"{place.count:>9} {safe(names[rule])}")


def _places(found: list[FileHits], names: tuple[str, ...]) -> None:
    """Per file and rule the first place, as editors open it, how often, and the last line."""
    for f in found:
        for rule, p in _by_count(f.rules, names):
            last = f", last at line {p.last_line}" if p.count > 1 else ""
            print(f"{safe(f.file.shown)}:{p.first_line}: {safe(names[rule])} ({p.count}{last})")


def _json(found: list[FileHits], unread: list[logfiles.Unread], names: tuple[str, ...], *, lines: bool) -> None:
    import json

    rows = []
    for f in found:
        for rule, p in _by_count(f.rules, names):
            row: dict[str, Any] = {"path": f.file.shown, "rule": names[rule], "count": p.count}
            if lines:
                row |= {"first_line": p.first_line, "last_line": p.last_line}
            rows.append(row)
    document = {
        "schema": "defib/scan/1",
        "files": len(found),
        "bytes": sum(f.size for f in found),
        "rows": rows,
        "unread": [{"path": u.path, "why": u.why} for u in unread],
    }
    print(json.dumps(document, indent=1))
