"""Rulebook -> Hyperscan databases, and `Scanner`, which finds with them (`hits`).

*Finders* are every signature, phase and banner pattern and every progress anchor; they are looked for in all bytes, patterns by way of a
literal of theirs (`finder`). *Vetoes* are `unless` patterns and benign rules; they see only records a finder hit, so lines that merely
look alarming cost nothing on healthy logs. Banners and anchors report once per scan (SINGLEMATCH): a callback per progress line would
cost more than the scan.

Hyperscan reports match ends only, so a match must lie within one record; `confine` rewrites every construct that could
cross a line feed (`\\s`, `\\W`, `\\D`, negated classes).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping

import hyperscan as hs

from defib.engine import finder
from defib.engine.chatter import CHATTER, STARTUP
from defib.engine.digits import asks, loosened
from defib.engine.finder import MULTILINE, ONCE
from defib.engine.hits import HitFinder
from defib.engine.hits import Hits as Hits
from defib.engine.library import BINDING, Entry, Library
from defib.engine.literals import Gates
from defib.engine.plan import ASKED_ANYWHERE, ASKED_HERE, Databases, Plan, roster
from defib.engine.rulebook import Rulebook

ANYTHING = rb"[^\n]$"  # stands for what cannot be loosened
CHATTER_WEIGHT = 200  # against single lines of single frameworks

_IN_CLASS = {
    "s": r" \t\r\f\x0b",
    "D": r"\x00-\x09\x0b-\x2f\x3a-\xff",
    "W": r"\x00-\x09\x0b-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\xff",
}
_OUTSIDE = {"s": r"[ \t\r\f\x0b]", "D": r"[^0-9\n]", "W": r"[^0-9A-Za-z_\n]"}


def confine(pattern: str) -> str:
    """The same pattern, unable to match across a line feed."""
    out: list[str] = []
    i, inside = 0, False
    while i < len(pattern):
        c = pattern[i]
        if c == "\\" and i + 1 < len(pattern):
            nxt = pattern[i + 1]
            out.append((_IN_CLASS if inside else _OUTSIDE).get(nxt, c + nxt))
            i += 2
            continue
        if not inside and c == "[":
            inside = True
            negated = pattern[i + 1 : i + 2] == "^"
            out.append("[^\\n" if negated else "[")
            i += 2 if negated else 1
            if pattern[i : i + 1] == "]":  # a leading ] is a member, not the end
                out.append("\\]")
                i += 1
            continue
        if inside and c == "[" and pattern[i : i + 2] == "[:":
            end = pattern.find(":]", i)
            out.append(pattern[i : end + 2])
            i = end + 2
            continue
        if inside and c == "]":
            inside = False
        out.append(c)
        i += 1
    return "".join(out)


def plan(book: Rulebook) -> Plan:
    """Which expressions a rulebook compiles to, in an order that does not change."""
    finders: list[tuple[str, str, int]] = []
    vetoes: list[tuple[str, str, int]] = []
    for i, r in enumerate(book.rules):
        if r.status == "retired":
            continue
        vetoes += [(p, "spare" if r.role == "benign" else "unless", i) for p in r.unless]
        if r.role == "benign":
            vetoes += [(p, "benign", i) for p in r.patterns]
        else:
            finders += [(p, "banner" if r.kind == "banner" else "rule", i) for p in r.patterns]
    anchors = sorted({a for f in book.formats for a in f.anchors})
    finders += [(re.escape(a), "anchor", k) for k, a in enumerate(anchors)]
    particular = (
        i for i, r in enumerate(book.rules) if r.kind == "signature" and r.role != "wrapper" and not r.generic
    )
    return Plan(
        tuple(finders), tuple(vetoes), tuple(anchors), tuple(r.id for r in book.rules),
        frozenset(i for i, r in enumerate(book.rules) if r.generic), frozenset(particular),
    )  # fmt: skip


def compile_databases(book: Rulebook, *, by_literals: bool = True, library: Library = BINDING) -> Databases:
    """Seconds for hundreds of rules; cache by `Rulebook.hash`, `FORMAT`, the library's name and CPU.

    by_literals: False runs every expression over all bytes, which finds the same (for measuring).
    """
    p = plan(book)
    of, flags = gates(book) if by_literals else {}, {"rule": MULTILINE, "banner": ONCE}
    entries = [(n, confine(e).encode(), flags[kind]) for n, (e, kind, _) in enumerate(p.finders) if kind in flags]
    banners = {n for n, (_, kind, _) in enumerate(p.finders) if kind == "banner"}
    always = {literal for n, gate in of.items() if n not in banners for literal in gate}
    once = {(n, literal) for n, gate in of.items() if n in banners for literal in gate}
    doubts = _doubts(p, of)
    made = functools.partial(finder.compiled, library=library)
    return Databases(
        gate=made(
            [(finder.ALL + i, finder.literal(text), 0) for i, text in enumerate(sorted(always))]
            + [(n, finder.literal(text), hs.HS_FLAG_SINGLEMATCH) for n, text in sorted(once)]
        ),
        gated=made([e for e in entries if e[0] in of]),
        banners=made([e for e in entries if e[0] in of and e[0] in banners]),
        bare=made([e for e in entries if e[0] not in of]),
        anchors=made(finder.literals((a.encode() for a in p.anchors), ONCE)),
        vetoes=made(_vetoes(p, ("unless", "benign"))),
        spares=made(_vetoes(p, ("spare",))),
        doubts=made([entry for entry, _ in doubts]),
        digits=json.dumps(
            [None if text is None else sorted(t.decode("latin-1") for t in text) for _, text in doubts]
        ).encode(),
        asked=_asked([entry for entry, text in doubts if text is None or text], library),
    )


def _asked(doubts: list[Entry], library: Library) -> bytes:
    """Database of the doubts that find, which tells where their matches start; what can be placed by none is told for all of its record."""

    def entry(expression: bytes) -> Entry:
        if expression == ANYTHING:
            return ASKED_ANYWHERE, ANYTHING, MULTILINE
        return ASKED_HERE, expression, MULTILINE | hs.HS_FLAG_SOM_LEFTMOST

    entries = [entry(expression) for _, expression, _ in doubts]
    try:
        return finder.compiled(entries, library)
    except (ValueError, hs.error):  # the library cannot tell the start of every expression
        placed = [_compiles(one, library) for one in entries]
        rest = [one if good else (ASKED_ANYWHERE, one[1], MULTILINE) for one, good in zip(entries, placed, strict=True)]
        return finder.compiled(rest, library)


def _compiles(entry: Entry, library: Library) -> bool:
    try:
        return bool(library.compiled([entry]))
    except (ValueError, hs.error):
        return False


def _doubts(p: Plan, of: Mapping[int, frozenset[bytes]]) -> list[tuple[Entry, Collection[bytes] | None]]:
    """Expressions that ask which digit stands somewhere, loosened, with the literals of those that find."""
    asked: list[tuple[str, Collection[bytes] | None]] = [
        (e, of.get(n)) for n, (e, kind, _) in enumerate(p.finders) if kind == "rule" and asks(e)
    ]
    asked += [(e, ()) for e in p.veto_groups() if asks(e)]
    loose = [(loosened(e), text) for e, text in asked]
    return [((n, ANYTHING if e is None else confine(e).encode(), MULTILINE), text) for n, (e, text) in enumerate(loose)]


def _vetoes(p: Plan, kinds: tuple[str, ...]) -> list[tuple[int, bytes, int]]:
    """Expressions asked of single records, numbered by their group."""
    return [
        (n, confine(e).encode(), MULTILINE)
        for n, (e, members) in enumerate(p.veto_groups().items())
        if any(p.vetoes[m][1] in kinds for m in members)
    ]


def gates(book: Rulebook) -> dict[int, frozenset[bytes]]:
    """Finder -> literals one of which every match holds; finders without such literals, or with common ones only, are left out."""
    known = Gates(healthy(book))
    out: dict[int, frozenset[bytes]] = {}
    for n, (expression, kind, _) in enumerate(plan(book).finders):
        gate = None if kind == "anchor" else known.of(confine(expression))
        if gate is not None:
            out[n] = gate
    return out


def healthy(book: Rulebook) -> Iterator[tuple[bytes, int]]:
    """Text as jobs without a fault print it, with its weight: common chatter, progress lines, benign lines, near-misses."""
    for forms in CHATTER.values():
        yield from ((form.format(**dict.fromkeys("abcdefg", 7)).encode(), CHATTER_WEIGHT) for form in forms)
    yield from ((line.encode(), CHATTER_WEIGHT) for line in STARTUP)
    for f in book.formats:
        yield from ((e.line.encode(), 1) for e in (*f.hits, *f.misses))
    for r in book.rules:
        lines = (*r.hits, *r.misses) if r.role == "benign" else r.misses
        yield from ((e.line.encode(), 1) for e in lines)


class Scanner(HitFinder):
    """A rulebook's databases made ready; one per thread or process."""

    def __init__(self, book: Rulebook, databases: Databases, library: Library = BINDING) -> None:
        self.book = book
        self.plan = plan(book)
        super().__init__(roster(self.plan), databases, library)
