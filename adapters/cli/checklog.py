"""`defib check-log`: what is and is not recognised in a log."""

from __future__ import annotations

import sys
from typing import Any

from defib.adapters import rulefiles
from defib.adapters.show import cut, safe, size

UNKNOWN_SHOWN = 15


def check_log(args: Any) -> int:
    """`defib check-log`: survey every file; exit 3 if one could not be read."""
    from defib.adapters.archive import Archive
    from defib.adapters.cli.tables import as_json, write_json
    from defib.engine.blocks import Batch, LineCutter
    from defib.engine.observe import Observer
    from defib.engine.ports import Closed, Data, Opened
    from defib.engine.survey import Survey

    loaded = rulefiles.load(args.rules)
    source = Archive(args.paths, loaded.book.paths)
    documents: list[dict[str, Any]] = []
    observer = Observer(loaded.book, loaded.databases)
    survey, cutter, path, read = Survey(), LineCutter(0), "", 0
    while (items := source.poll()) is not None:
        for item in items:
            batch = Batch()
            if isinstance(item, Opened):
                survey, cutter, path, read = Survey(), LineCutter(item.stream), item.id.path, 0
            elif isinstance(item, Data):
                read += len(item.data)
                for piece in cutter.feed(item.data):
                    batch.add(piece)
            elif isinstance(item, Closed):
                for piece in cutter.finish():
                    batch.add(piece)
            if batch.size:
                survey.add(observer, batch, observer.observe(batch))
            if isinstance(item, Closed):
                documents.append(document(loaded.book, survey, path, read, cutter.lines, item.note))
                if not args.json:
                    report(documents[-1])
    if args.json:
        write_json({"schema": "defib/check-log/1", "rows": [as_json(d) for d in documents]})
    for u in source.unread:
        print(f"not read: {safe(u.path)}: {safe(u.why)}", file=sys.stderr)
    return 3 if any(u.refused for u in source.unread) else 0


def document(book: Any, s: Any, path: str, read: int, lines: int, note: str | None) -> dict[str, Any]:
    """A survey as the object `--json` prints."""
    rules = []
    for rule, n in sorted(s.rules.items(), key=lambda x: (-x[1], x[0])):
        r = book.by_id[rule]
        rules.append(
            {
                "rule": rule,
                "kind": r.kind,
                "phase": r.phase,
                "role": r.role,
                "class": r.klass,
                "title": r.title,
                "count": n,
                "first_line": s.first_line[rule],
            }
        )
    formats = []
    for fmt, (n, first, last) in sorted(s.formats.items(), key=lambda x: (-x[1][0], x[0])):
        f = book.format_by_id[fmt]
        formats.append(
            {
                "format": fmt,
                "framework": f.framework,
                "kind": f.kind,
                "lines": n,
                "first_step": first,
                "last_step": last,
            }
        )
    unknown = sorted(s.unknown.values(), key=lambda u: (-u.count, u.line))
    return {
        "path": path, "bytes": read, "lines": lines, "records": s.records, "note": note, "frameworks": sorted(s.frameworks),
        "progress": formats, "phases": [r for r in rules if r["kind"] == "phase"], "signatures": [r for r in rules if r["kind"] == "signature"],
        "ranks": sorted(s.ranks), "nodes": sorted(s.nodes), "stamped": s.stamped, "unstamped": s.unstamped, "muted": s.muted,
        "unknown": [{"line": u.line, "count": u.count, "text": u.text} for u in unknown],
    }  # fmt: skip


def report(d: dict[str, Any]) -> None:
    """A survey for a person."""
    print(
        f"{safe(d['path'])}: {d['lines']:,} lines, {d['records']:,} records, {size(d['bytes'])}"
        + (f" ({safe(d['note'])})" if d["note"] else "")
    )
    print(f"  banners     {', '.join(d['frameworks']) or 'none seen'}")
    if not d["progress"]:
        print(
            "  progress    NOT RECOGNISED: no line of a known format; teach it with a rule of your own (README, 'Your own rules')"
        )
    for f in d["progress"]:
        steps = "" if f["first_step"] is None else f", steps {f['first_step']:,} to {f['last_step']:,}"
        print(f"  progress    {f['format']}: {f['lines']:,} lines ({f['kind']}){steps}")
    phases = ", ".join(f"{r['phase']} ({r['rule']} x{r['count']})" for r in d["phases"])
    print(f"  phases      {phases or 'none seen'}")
    ranks, nodes = d["ranks"], d["nodes"]
    named = f"{len(ranks)} named ({ranks[0]} to {ranks[-1]})" if ranks else "none named"
    print(f"  ranks       {named}; nodes: {cut(safe(', '.join(nodes)), 100) if nodes else 'none named'}")
    told = d["stamped"] + d["unstamped"]
    stamped = f"on {d['stamped']:,} of {told:,} recognised lines" if told else "no recognised line to carry one"
    print(f"  timestamps  {stamped}")
    for r in d["signatures"]:
        print(
            f"  rule        {r['rule']} x{r['count']} ({r['role']}), first at line {r['first_line']}: {safe(r['title'])}"
        )
    if d["muted"]:
        print(f"  muted       {d['muted']:,} alarming-looking lines are known to be harmless")
    shapes = d["unknown"]
    print(
        f"  unknown     {f'{len(shapes)} shapes of error-looking lines have no rule' if shapes else 'no error-looking line without a rule'}"
    )
    for u in shapes[:UNKNOWN_SHOWN]:
        print(f"    {u['count']:>6} x  line {u['line']}: {cut(safe(u['text']), 140)}")
    if len(shapes) > UNKNOWN_SHOWN:
        print(f"    … and {len(shapes) - UNKNOWN_SHOWN} more (--json has all)")
