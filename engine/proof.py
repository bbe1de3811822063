"""Every rule proves itself: its hits must match, its near-misses must not, through the same code that reads logs.

In: a rulebook and its compiled databases. Out: one `Problem` per example that does not hold, at the example's own line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import polars as pl

from defib.engine.blocks import Batch, Piece
from defib.engine.library import BINDING, Library
from defib.engine.progress import captures, kept
from defib.engine.rulebook import Databases, Example, Format, Rule, Rulebook, Template
from defib.engine.scan import Scanner
from defib.engine.signals import SignalReader
from defib.engine.words import Problem


def prove(book: Rulebook, databases: Databases, library: Library = BINDING) -> list[Problem]:
    """Every example that does not hold, in file order; empty for a sound rulebook."""
    out = list(_prove_rules(book, databases, library))
    for f in book.formats:
        out += _prove_format(f)
    for t in (*book.prefixes, *book.paths):
        out += _prove_template(t)
    return sorted(out, key=lambda p: (p.path, p.line, p.message))


def _fault(owner: Any, e: Example, message: str, mend: str) -> Problem:
    return Problem(owner.path, e.at, 1, message, mend, owner.id)


def one_line(line: str) -> bytes:
    """An example as one record: inner line ends would make several."""
    return line.replace("\r", " ").replace("\n", " ").encode()


def _prove_rules(book: Rulebook, databases: Databases, library: Library) -> Iterator[Problem]:
    cases = [(r, e, want) for r in book.rules for want, es in ((True, r.hits), (False, r.misses)) for e in es]
    if not cases:
        return
    batch = Batch()
    batch.add(Piece(0, 0, 1, b"".join(one_line(e.line) + b"\n" for _, e, _ in cases)))
    scanner = Scanner(book, databases, library)
    hits = scanner.scan(batch)
    fired: list[set[int]] = [set() for _ in cases]
    got: dict[tuple[int, str], dict[str, str]] = {}
    table = SignalReader(book).read(batch, hits).to_pylist()
    for rule, record, row in zip(hits.rule, hits.record, table, strict=True):
        fired[record].add(int(rule))
        named = {k: str(row[k]) for k in ("rank", "local_rank", "node") if row[k] is not None}
        got[int(record), row["rule"]] = {**named, **orjson.loads(row["fields"])}
    number = {r.id: i for i, r in enumerate(book.rules)}
    every = np.arange(len(cases))
    veto_rule, veto_record, benign = scanner.vetoes(batch, every)
    muted: dict[int, set[int]] = {}
    for rule, record in zip(veto_rule[benign], veto_record[benign], strict=True):
        muted.setdefault(int(record), set()).add(int(rule))
    beside_ours: dict[int, list[str]] = {}  # a user's rule -> our rules on whose examples it fires
    mutes: dict[int, list[str]] = {}  # a user's benign rule -> our rules whose examples it mutes
    for n, (r, e, want) in enumerate(cases):
        index = number[r.id]
        if r.status == "retired":
            continue
        if r.role == "benign":
            is_hit = index in muted.get(n, ())
        elif r.kind == "banner":
            is_hit = index in scanner.banners_in(one_line(e.line) + b"\n")
        else:
            is_hit = index in fired[n]
        foreign = {i for i in muted.get(n, set()) if not book.rules[i].path.startswith("rules/")}
        if want and r.path.startswith("rules/") and r.role != "benign" and foreign and not is_hit:
            for i in foreign:
                mutes.setdefault(i, []).append(r.id)
            continue
        beside = {i for i in fired[n] if want and _speaks_beside(book.rules[i], r, e)}
        for i in beside:
            beside_ours.setdefault(i, []).append(r.id)
        if beside and not is_hit:
            continue
        yield from _judge(book, r, e, want, is_hit, fired[n] - beside, got.get((n, r.id), {}), muted.get(n, set()))
    for i, ids in sorted(mutes.items()):
        yield _too_broad(book.rules[i], "mutes", ids, "make the pattern narrower")
    for i, ids in sorted(beside_ours.items()):
        yield _too_broad(book.rules[i], "fires on", ids, "narrow it to what the shipped rules do not say")


def _speaks_beside(other: Rule, r: Rule, e: Example) -> bool:
    """Whether a rule of a user's own fires on an example of ours: ours cannot be told to expect it."""
    ours_and_theirs = r.path.startswith("rules/") and not other.path.startswith("rules/")
    return ours_and_theirs and (_rivals(other, r, e) or (r.generic and other.kind == r.kind and not other.generic))


def _rivals(other: Rule, r: Rule, e: Example) -> bool:
    return (
        other.id != r.id
        and other.kind == r.kind == "signature"
        and r.role != "benign"
        and not (other.generic or r.generic)
        and other.id not in e.also
    )


def _too_broad(rule: Rule, does: str, ids: list[str], mend: str) -> Problem:
    """A rule of a user's own that would silence ours, or speak beside them."""
    different = list(dict.fromkeys(ids))
    named = ", ".join(different[:3]) + (", …" if len(different) > 3 else "")
    many = f"{len(ids)} examples" if len(ids) > 1 else "an example"
    return Problem(rule.path, rule.at, 1, f"{does} {many} of shipped rules ({named})", mend, rule.id)


def _judge(
    book: Rulebook, r: Rule, e: Example, want: bool, is_hit: bool, fired: set[int], got: dict[str, str], muted: set[int]
) -> Iterator[Problem]:
    if not want:
        if is_hit:
            yield _fault(r, e, f"near-miss matches: {e.line[:120]}", "make the pattern narrower, or add 'unless'")
        return
    if not is_hit:
        by = ", ".join(sorted(book.rules[i].id for i in muted))
        mend = (
            f"muted by {by}: narrow that rule or this line" if by else "mend the pattern (or 'unless'), or the example"
        )
        yield _fault(r, e, f"example does not match: {e.line[:120]}", mend)
        return
    for name, value in e.fields.items():
        if got.get(name) != value:
            yield _fault(
                r,
                e,
                f"capture '{name}' is {got.get(name)!r}, expected {value!r}",
                "mend 'extract', or the expected value",
            )
    if r.role == "benign" or r.kind == "banner":
        return
    for i in sorted(fired):
        other = book.rules[i]
        if _rivals(other, r, e):
            yield _fault(
                r, e, f"{other.id} fires on this line too", f"narrow one of the two, or say 'also: [{other.id}]'"
            )


def _prove_format(f: Format) -> Iterator[Problem]:
    for want, examples in ((True, f.hits), (False, f.misses)):
        if not examples:
            continue
        text = pl.Series([one_line(e.line).decode() for e in examples])
        got = captures(f, text)
        keep = kept(f, text, got)
        for i, e in enumerate(examples):
            anchored = any(a in e.line for a in f.anchors)
            is_hit = anchored and bool(keep[i])
            if want and not is_hit:
                mend = "mend the pattern or 'unless'" if anchored else f"no anchor of {list(f.anchors)} is in the line"
                yield _fault(f, e, f"example does not match: {e.line[:120]}", mend)
            elif not want and is_hit:
                yield _fault(f, e, f"near-miss matches: {e.line[:120]}", "make the pattern narrower, or add 'unless'")
            elif want:
                for name, value in e.fields.items():
                    found = got[name][i] if name in got.columns else None
                    if found != value:
                        yield _fault(
                            f,
                            e,
                            f"capture '{name}' is {found!r}, expected {value!r}",
                            "mend the pattern, or the expected value",
                        )


def _prove_template(t: Template) -> Iterator[Problem]:
    for want, examples in ((True, t.hits), (False, t.misses)):
        for e in examples:
            text = pl.Series([e.line])
            is_hit = bool(text.str.contains(t.pattern)[0])
            if want != is_hit:
                what = "example does not match" if want else "near-miss matches"
                yield _fault(t, e, f"{what}: {e.line[:120]}", "mend the pattern")
            elif want:
                found = text.str.extract_groups(t.pattern).struct.unnest().row(0, named=True)
                for name, value in e.fields.items():
                    if found.get(name) != value:
                        yield _fault(
                            t,
                            e,
                            f"capture '{name}' is {found.get(name)!r}, expected {value!r}",
                            "mend the pattern, or the expected value",
                        )
