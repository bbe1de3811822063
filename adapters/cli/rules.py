"""`defib rules check | list | show | schema | explain`."""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from defib.adapters import rulefiles
from defib.adapters.show import cut, safe, when
from defib.engine.words import Problem, RuleError

if TYPE_CHECKING:
    from defib.engine.explain import Explained, RecordSaid
    from defib.engine.rulebook import Rulebook
    from defib.engine.rulelint import Cost

COSTS_SHOWN = 20
RECORDS_SHOWN = 20
TEXT_SHOWN = 600
SAID = {
    "fires": "fires", "vetoed": "vetoed", "muted": "muted", "gave-way": "gave way", "mutes": "mutes the rules above",
    "would-mute": "would mute, but no rule fires here", "banner": "tells the framework", "read": "read",
}  # fmt: skip


def check(args: Any) -> int:
    """Prove ours and the given folders' rules; prints every fault, counts warnings. Exit code 1 on faults only, 3 where a folder cannot be read."""
    from defib.adapters.cli.tables import write_json
    from defib.engine import rulelint

    try:
        loaded = rulefiles.load(args.dirs, use_cache=False)
    except RuleError as e:
        if args.json:
            write_json({"schema": "defib/rules-check/1", "faults": [_problem(p) for p in e.problems]})
            return 3 if e.unread else 1
        if e.unread:
            raise  # nothing was found: there was nothing to read
        for problem in e.problems:
            _print_problem(problem)
        _tell_found([p.path for p in e.problems])
        return 1
    ours = frozenset(path for path, _ in rulefiles.read_folders([rulefiles.built_in()]))
    findings = rulelint.lint(loaded.book, loaded.databases, ours)
    faults = [f for f in findings if f.fault]
    warnings = [f for f in findings if not f.fault]
    costs = _costs(loaded.book) if args.cost else None
    if args.json:
        document: dict[str, Any] = {"schema": "defib/rules-check/1", "counts": _counts(loaded.book)}
        for name, found in (("faults", faults), ("warnings", warnings)):
            document[name] = [{"lint": f.lint, **_problem(f.problem)} for f in found]
        if costs is not None:
            document["bare_ns_per_byte"], document["costs"] = costs[0], [dataclasses.asdict(c) for c in costs[1]]
        write_json(document)
        return 1 if faults else 0
    for f in faults:
        _print_problem(f.problem)
    for f in warnings if args.warnings else []:
        _print_problem(f.problem, "warning: ")
    _tell_proven(loaded)
    if warnings:
        told = Counter(f.lint for f in warnings)
        more = "" if args.warnings else " (--warnings lists them)"
        mine = f", {sum(f.problem.path not in ours for f in warnings)} of them in your rules" if args.dirs else ""
        print(f"{len(warnings)} warnings{mine}: {', '.join(f'{n} {k}' for k, n in told.most_common())}{more}")
    if faults:
        _tell_found([f.problem.path for f in faults])
    if costs is not None:
        _cost_table(*costs)
    return 1 if faults else 0


def _problem(p: Problem) -> dict[str, Any]:
    return {"rule": p.rule, "path": p.path, "line": p.line, "message": p.message, "mend": p.mend}


def _print_problem(problem: Problem, label: str = "") -> None:
    print(label + "\n".join(safe(line) for line in str(problem).splitlines()))


def _tell_found(paths: list[str]) -> None:
    files = len(set(paths))
    print(f"Found {len(paths)} problem{'s' if len(paths) != 1 else ''} in {files} file{'s' if files != 1 else ''}.")


def _counts(book: Rulebook) -> dict[str, int]:
    proofs: list[Any] = [*book.rules, *book.formats, *book.prefixes, *book.paths]
    return {
        **{k: sum(r.kind == k for r in book.rules) for k in ("signature", "phase", "banner")},
        "format": len(book.formats), "class": len(book.classes), "row": sum(len(t.rows) for t in book.tables),
        "hits": sum(len(r.hits) for r in proofs), "misses": sum(len(r.misses) for r in proofs),
    }  # fmt: skip


def _tell_proven(loaded: rulefiles.LoadedRules) -> None:
    n = _counts(loaded.book)
    print(
        f"{n['signature']} signatures, {n['format']} progress formats, {n['phase']} phase lines, {n['banner']} banners, "
        f"{n['class']} classes, {n['row']} table rows: {n['hits']} examples match, {n['misses']} near-misses do not"
    )
    print(f"compiled: {sum(map(len, loaded.databases)):,} bytes; scanned {rulefiles.scanned_by()}")


def _costs(book: Rulebook) -> tuple[float, list[Cost]]:
    import time

    from defib.engine import rulelint

    return rulelint.costs(book, rulelint.corpora(book), time.process_time)


def _cost_table(bare: float, costs: list[Cost]) -> None:
    """The dearest patterns by time, then those that hit healthy chatter."""
    from defib.adapters.cli.tables import table

    names = ("RULE OR ANCHOR", "KIND", "BYTES", "NS/BYTE", "WORST ON", "NS/BYTE THERE", "HITS/MB", "PATTERN")
    print(f"\n{len(costs)} patterns alone, CPU time over a bare scan of {bare:.3f} ns/byte; the dearest:")
    table(names, [_cost_row(c) for c in costs[:COSTS_SHOWN]])
    noisy = sorted((c for c in costs if c.hits_per_mb > 0 and c.kind == "rule"), key=lambda c: -c.hits_per_mb)
    if noisy:
        print("\nrules that hit healthy chatter (each hit is a callback, and a row unless vetoed):")
        table(names, [_cost_row(c) for c in noisy[:COSTS_SHOWN]])
    else:
        print("no rule hits healthy chatter")


def _cost_row(c: Cost) -> tuple[Any, ...]:
    return (
        c.owner, c.kind, c.size, f"{c.ns_per_byte:.3f}", c.worst, f"{c.worst_ns:.3f}", f"{c.hits_per_mb:.1f}", cut(c.pattern, 70),
    )  # fmt: skip


def rule_object(r: Any) -> dict[str, Any]:
    """One rule as `rules list --jsonl` prints it."""
    return {
        "id": r.id, "kind": getattr(r, "kind", "format"), "title": r.title, "role": getattr(r, "role", None), "class": getattr(r, "klass", None),
        "domain": getattr(r, "domain", None), "mark": getattr(r, "mark", None), "framework": getattr(r, "framework", None),
        "status": getattr(r, "status", None), "generic": getattr(r, "generic", False),
        "patterns": list(getattr(r, "patterns", (getattr(r, "pattern", ""),))),
        "limits": r.limits, "see": list(r.see), "hits": len(r.hits), "misses": len(r.misses), "path": r.path, "line": r.at,
    }  # fmt: skip


def list_rules(args: Any) -> int:
    """`defib rules list`: every rule and format."""
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
    """`defib rules show ID`: one rule with its examples and limits."""
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
        "traits",
        "phase",
        "edge",
        "framework",
        "counts",
        "priority",
        "status",
        "limits",
    ):
        value = getattr(rule, name, None)
        if value is not None and value != ():
            value = ", ".join(value) if isinstance(value, tuple) else value
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
    from defib.engine.policies import POLICIES
    from defib.engine.rulemodels import FILE_KINDS

    kinds = functools.reduce(operator.or_, [*FILE_KINDS.values(), *POLICIES.values()])
    write_json(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "defib rule file",
            **TypeAdapter(kinds).json_schema(by_alias=True),
        }
    )
    return 0


def explain(args: Any) -> int:
    """What the rules make of one line of a log."""
    from defib.adapters.archive import Archive
    from defib.adapters.cli.tables import as_json, write_json
    from defib.adapters.show import shown
    from defib.engine.explain import explain as explained

    path, _, number = args.place.rpartition(":")
    if not path or not number.isascii() or not number.isdigit() or len(number) > 15 or int(number) < 1:
        print(f"defib: '{safe(args.place)}': give a file and a line from 1 on, as in train.out:4711", file=sys.stderr)
        return 2
    if os.path.isdir(path):
        print(f"defib: {safe(path)} is a directory; give one file", file=sys.stderr)
        return 2
    loaded = rulefiles.load(args.rules)
    source = Archive([path], loaded.book.paths)
    said = explained(loaded.book, loaded.databases, source, int(number))
    for u in source.unread:
        print(f"not read: {safe(u.path)}: {safe(u.why)}", file=sys.stderr)
    if not said.records:
        if source.unread:
            return 3
        print(f"defib: {safe(path)} has {said.lines:,} lines; there is no line {int(number):,}", file=sys.stderr)
        return 2
    if args.json:
        document = {"schema": "defib/explain/1", "path": shown(path), "line": int(number), **dataclasses.asdict(said)}
        write_json(_plain({**document, "attempt": _attempt_object(said)}, as_json))
    else:
        print("\n".join(tell_line(path, int(number), said)))
    return 3 if source.unread else 0


def _plain(value: Any, leaf: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v, leaf) for k, v in value.items()}
    return [_plain(v, leaf) for v in value] if isinstance(value, list | tuple) else leaf(value)


def _attempt_object(said: Explained) -> dict[str, Any] | None:
    a = said.attempt
    if a is None:
        return None
    cause = None
    if a.cause is not None:
        s = a.cause.signal
        cause = {"rule": s.rule, "line": s.line, "text": s.text, "confidence": a.cause.confidence, "because": a.cause.because}  # fmt: skip
    return {"index": a.index, "verdict": a.verdict, "class": a.klass, "cause": cause}


def tell_line(path: str, line: int, said: Explained) -> list[str]:
    """The explanation as text: the attempt, then every record of the line that something speaks of."""
    out = [f"{safe(path)}:{line}" + (f", {len(said.records)} records (redraws)" if len(said.records) > 1 else "")]
    a = said.attempt
    if a is not None:
        of = f" {a.index + 1} of {said.attempts}" if said.attempts > 1 else ""
        cause = f", cause: {a.cause.signal.rule} at line {a.cause.signal.line:,}" if a.cause else ", no cause named"
        out.append(
            f"  attempt{of}: {a.verdict}{f' ({a.klass})' if a.klass else ''}{cause}; judged from this file alone"
        )
    out += [f"  note: {safe(n)}" for n in said.notes]
    told = [r for r in said.records if r.part != "silent"] or list(said.records[-1:])
    for r in told[:RECORDS_SHOWN] if len(told) <= RECORDS_SHOWN else [*told[:1], *told[1 - RECORDS_SHOWN :]]:
        out += ["", *_tell_record(r)]
    left = len(said.records) - min(len(told), RECORDS_SHOWN)
    if left or said.skipped:
        skipped = f"; {said.skipped:,} redraws in the middle were not looked at" if said.skipped else ""
        out += ["", f"  {left:,} other records of this line are silent or alike (--json has all){skipped}"]
    return out


def _tell_record(r: RecordSaid) -> list[str]:
    out = [
        f"  record at byte {r.offset:,}: {cut(safe(r.text), TEXT_SHOWN)}",
        f"  part       {r.part}: {safe(r.reason)}",
    ]
    who = ", ".join(f"{k} {safe(str(v))}" for k, v in r.who.items())
    if r.prefixes or who:
        out.append(f"  printed by {who or 'nobody named'} ({', '.join(r.prefixes)})")
    if r.time_us is not None:
        out.append(f"  time       {when(r.time_us)} UTC")
    for s in r.rules:
        by = f" {'to' if s.outcome == 'gave-way' else 'by'} {safe(', '.join(s.by))}" if s.by else ""
        klass = f", class {s.klass}" if s.klass else ""
        out.append(f"  rule       {s.rule} ({s.kind}, {s.role}{klass}): {SAID[s.outcome]}{by} - {safe(s.title)}")
        out += [f"             pattern {cut(safe(p), 160)}" for p in s.patterns]
        out += [f"             {k} = {cut(safe(v), 160)}" for k, v in sorted(s.captures.items())]
        if s.part is not None and s.part != r.part:
            out.append(f"             {s.part}: {safe(s.reason or '')}")
    only = [f.format for f in r.formats if f.outcome == "anchor-only"]
    for f in (f for f in r.formats if f.outcome != "anchor-only"):
        out.append(f"  progress   {f.format} ({f.kind}): {SAID[f.outcome]}")
        values = f.numbers or f.captures
        out.append("             " + ", ".join(f"{k} = {safe(str(v))}" for k, v in sorted(values.items())))
    if only and len(only) == len(r.formats):
        out.append(f"  progress   an anchor is there but no pattern matches: {cut(', '.join(only), 200)}")
    if not r.rules and not r.formats:
        out.append("  rule       no pattern matches, no progress anchor is there")
    return out
