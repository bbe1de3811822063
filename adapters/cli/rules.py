"""`defib rules check | list | show | schema`."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from defib.adapters import rulefiles
from defib.adapters.show import safe
from defib.engine.words import RuleError


def check(args: Any) -> int:
    """Prove ours and the given folders' rules; prints every fault."""
    try:
        loaded = rulefiles.load(args.dirs, use_cache=False)
    except RuleError as e:
        for problem in e.problems:
            print("\n".join(safe(line) for line in str(problem).splitlines()))
        files = len({p.path for p in e.problems})
        print(
            f"Found {len(e.problems)} problem{'s' if len(e.problems) != 1 else ''} in {files} file{'s' if files != 1 else ''}."
        )
        return 1
    book = loaded.book
    proofs: list[Any] = [*book.rules, *book.formats, *book.prefixes, *book.paths]
    hits, misses = sum(len(r.hits) for r in proofs), sum(len(r.misses) for r in proofs)
    kinds = {k: sum(r.kind == k for r in book.rules) for k in ("signature", "phase", "banner")}
    print(
        f"{kinds['signature']} signatures, {len(book.formats)} progress formats, {kinds['phase']} phase lines, {kinds['banner']} banners, "
        f"{len(book.classes)} classes, {sum(len(t.rows) for t in book.tables)} table rows: {hits} examples match, {misses} near-misses do not"
    )
    print(f"compiled: {len(loaded.databases[0]):,} + {len(loaded.databases[1]):,} bytes")
    return 0


def rule_object(r: Any) -> dict[str, Any]:
    """One rule as `rules list --jsonl` prints it."""
    return {
        "id": r.id, "kind": getattr(r, "kind", "format"), "title": r.title, "role": getattr(r, "role", None), "class": getattr(r, "klass", None),
        "domain": getattr(r, "domain", None), "mark": getattr(r, "mark", None), "framework": getattr(r, "framework", None),
        "status": getattr(r, "status", None), "generic": getattr(r, "generic", False), "patterns": list(getattr(r, "patterns", (getattr(r, "pattern", ""),))),
        "limits": r.limits, "see": list(r.see), "hits": len(r.hits), "misses": len(r.misses), "path": r.path, "line": r.at,
    }  # fmt: skip


def list_rules(args: Any) -> int:
    from defib.adapters.cli.tables import table, write_json, write_jsonl

    book = rulefiles.load(args.rules).book
    things: list[Any] = sorted([*book.rules, *book.formats], key=lambda r: str(r.id))
    if args.jsonl:
        write_jsonl([rule_object(r) for r in things])
    elif args.json:
        write_json({"schema": "defib/rules/1", "rows": [rule_object(r) for r in things]})
    else:
        names = ("ID", "KIND", "ROLE", "CLASS", "TITLE")
        table(
            names,
            [
                (r.id, getattr(r, "kind", "format"), getattr(r, "role", None), getattr(r, "klass", None), r.title)
                for r in things
            ],
        )
    return 0


def show(args: Any) -> int:
    from defib.adapters.cli.tables import write_json

    book = rulefiles.load(args.rules).book
    rule: Any = book.by_id.get(args.id) or book.format_by_id.get(args.id)
    if rule is None:
        import difflib

        close = difflib.get_close_matches(args.id, [*book.by_id, *book.format_by_id], n=3)
        print(f"defib: no rule '{safe(args.id)}'" + (f"; near: {', '.join(close)}" if close else ""), file=sys.stderr)
        return 2
    if args.json:
        write_json({"schema": "defib/rule/1", **dataclasses.asdict(rule)})
        return 0
    print(f"{rule.id}  ({rule.path}:{rule.at})\n  {rule.title}")
    for name in (
        "kind",
        "role",
        "klass",
        "domain",
        "mark",
        "looks_back",
        "phase",
        "edge",
        "framework",
        "counts",
        "priority",
        "status",
        "limits",
    ):
        value = getattr(rule, name, None)
        if value is not None:
            print(f"  {'class' if name == 'klass' else name}: {safe(str(value))}")
    known = book.class_by_id.get(getattr(rule, "klass", None) or "")
    if known:
        print(f"  policy of the class: retry {known.retry}, exclude {known.exclude}, budget {known.budget}")
    for label, values in (
        ("pattern", getattr(rule, "patterns", (getattr(rule, "pattern", ""),))),
        ("unless", rule.unless),
        ("extract", getattr(rule, "extract", getattr(rule, "more", ()))),
        ("see", rule.see),
    ):
        for value in values:
            print(f"  {label}: {safe(value)}")
    for e in rule.hits:
        print(f"  matches: {safe(e.line)}")
    for e in rule.misses:
        print(f"  not:     {safe(e.line)}")
    return 0


def schema(_args: Any) -> int:
    """The union of every rule file's JSON schema."""
    from pydantic import TypeAdapter

    from defib.adapters.cli.tables import write_json
    from defib.engine import rulemodels as m

    kinds = m.SignatureFile | m.ProgressFile | m.ClassFile | m.TableFile | m.PrefixFile | m.PathFile
    write_json(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "defib rule file",
            **TypeAdapter(kinds).json_schema(by_alias=True),
        }
    )
    return 0
