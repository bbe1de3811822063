"""`defib rules profile`: which rules cost time on these logs, and what rewording would buy."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from defib.adapters import logfiles, rulefiles
from defib.adapters.show import cut, safe

SHOWN = 20


def profile(args: Any) -> int:
    """Count what the rules' literals and patterns meet in real logs. Exit code 3 if an input could not be read."""
    from defib.adapters.cli.tables import table, write_json
    from defib.engine.ruleprofile import Profiler

    profiler = Profiler(rulefiles.load(args.rules).book)
    unread = _read(args.paths, profiler)
    loads, megabytes = profiler.loads(), max(profiler.size, 1) / 1e6
    for u in unread:
        print(f"not read: {safe(u.path)}: {safe(u.why)}", file=sys.stderr)
    if args.json:
        rows = [{**dataclasses.asdict(c), "vain": c.vain, "worth": c.worth} for c in loads]
        write_json({"schema": "defib/rules-profile/1", "bytes": profiler.size, "rows": rows})
    else:
        shown = loads if args.all else loads[:SHOWN]
        names = ("RULE", "RECORDS/MB", "IN VAIN/MB", "CALLBACKS/MB", "HITS/MB", "WORTH", "PATTERN")
        table(
            names,
            [
                (c.rule, *(f"{n / megabytes:.1f}" for n in (c.records, c.vain, c.matches, c.hits)), cut(safe(c.worth), 90), cut(c.pattern, 60))
                for c in shown
            ],
        )  # fmt: skip
        rest = f"; the dearest {SHOWN} (--all has the rest)" if len(shown) < len(loads) else ""
        print(f"{len(loads)} patterns meet anything in {megabytes:.1f} MB{rest}")
    return 3 if any(u.refused for u in unread) else 0


def _read(paths: list[str], profiler: Any) -> list[logfiles.Unread]:
    from defib.engine.blocks import Batch, LineCutter, Piece

    unread: list[logfiles.Unread] = []

    def take(pieces: list[Piece]) -> None:
        for piece in pieces:
            profiler.add(Batch([piece], len(piece.payload)))

    for file in logfiles.find(paths, unread):
        cutter = LineCutter(0, numbered=False)
        try:
            with logfiles.opened(file) as (raw, head):
                for block, _ in logfiles.blocks(raw, head, logfiles.BLOCK_BYTES):
                    take(cutter.feed(block))
        except logfiles.NotALogError as e:
            unread.append(logfiles.Unread(file.shown, str(e), refused=False))
        except Exception as e:
            if not logfiles.broken(e):
                raise
            unread.append(logfiles.Unread(file.shown, logfiles.why(e)))
        take(cutter.finish())
    return unread
