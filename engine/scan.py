"""Rulebook -> Hyperscan databases; a batch -> which rules hit which records.

*Finders* are every signature, phase and banner pattern and every progress anchor; they are looked for in all bytes, patterns by way of a
literal of theirs (`finder`). *Vetoes* are `unless` patterns and benign rules; they see only records a finder hit, so lines that merely
look alarming cost nothing on healthy logs. Banners and anchors report once per scan (SINGLEMATCH): a callback per progress line would
cost more than the scan.

Hyperscan reports match ends only, so a match must lie within one record; `confine` rewrites every construct that could
cross a line feed (`\\s`, `\\W`, `\\D`, negated classes).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import hyperscan as hs
import numpy as np
import numpy.typing as npt

from defib.engine import finder
from defib.engine.blocks import I64, Batch
from defib.engine.chatter import CHATTER, STARTUP
from defib.engine.finder import MULTILINE, ONCE, Finder
from defib.engine.literals import Gates
from defib.engine.plan import Databases, Plan
from defib.engine.rulebook import Rulebook

CHATTER_WEIGHT = 200  # against single lines of single frameworks
FORMAT = 9  # of the compiled databases; part of the cache key

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
    particular = (i for i, r in enumerate(book.rules) if r.kind == "signature" and r.role != "wrapper" and not r.generic)
    return Plan(
        tuple(finders), tuple(vetoes), tuple(anchors), tuple(r.id for r in book.rules),
        frozenset(i for i, r in enumerate(book.rules) if r.generic), frozenset(particular),
    )  # fmt: skip


def compile_databases(book: Rulebook, *, by_literals: bool = True) -> Databases:
    """Seconds for hundreds of rules; cache by `Rulebook.hash`, `FORMAT`, Hyperscan version and CPU.

    by_literals: False runs every expression over all bytes, which finds the same (for measuring).
    """
    p = plan(book)
    of, flags = gates(book) if by_literals else {}, {"rule": MULTILINE, "banner": ONCE}
    entries = [(n, confine(e).encode(), flags[kind]) for n, (e, kind, _) in enumerate(p.finders) if kind in flags]
    banners = {n for n, (_, kind, _) in enumerate(p.finders) if kind == "banner"}
    always = {literal for n, gate in of.items() if n not in banners for literal in gate}
    once = {(n, literal) for n, gate in of.items() if n in banners for literal in gate}
    return Databases(
        gate=finder.compiled(
            [(finder.ALL + i, finder.literal(text), 0) for i, text in enumerate(sorted(always))]
            + [(n, finder.literal(text), hs.HS_FLAG_SINGLEMATCH) for n, text in sorted(once)]
        ),
        gated=finder.compiled([e for e in entries if e[0] in of]),
        banners=finder.compiled([e for e in entries if e[0] in of and e[0] in banners]),
        bare=finder.compiled([e for e in entries if e[0] not in of]),
        anchors=finder.compiled(finder.literals((a.encode() for a in p.anchors), ONCE)),
        vetoes=finder.compiled(_vetoes(p, ("unless", "benign"))),
        spares=finder.compiled(_vetoes(p, ("spare",))),
    )


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


@dataclass(frozen=True, slots=True)
class Hits:
    """rule[i] hit record[i]; sorted by record, then rule; each pair once. anchors, banners: indices that occur in the batch."""

    rule: I64
    record: I64
    anchors: frozenset[int]
    banners: frozenset[int]


class Scanner:
    """Holds the loaded databases and their scratch space; one per thread or process."""

    def __init__(self, book: Rulebook, databases: Databases) -> None:
        self.book = book
        self.plan = plan(book)
        self._finder = Finder(databases, tuple(a.encode() for a in self.plan.anchors))
        self._vetoes, self._spares = finder.load(databases.vetoes), finder.load(databases.spares)
        self._banner = np.array([k == "banner" for _, k, _ in self.plan.finders], bool)
        self._code = np.array([i for _, _, i in self.plan.finders], np.int64)
        self._generic = _flags(self.plan.generic, len(book.rules))
        self._particular = _flags(self.plan.particular, len(book.rules))
        self._veto_benign = np.array([k == "benign" for _, k, _ in self.plan.vetoes], bool)
        self._veto_spare = np.array([k == "spare" for _, k, _ in self.plan.vetoes], bool)
        self._veto_code = np.array([i for _, _, i in self.plan.vetoes], np.int64)
        self._veto_numbers = list(self.plan.veto_groups().values())

    def scan(self, batch: Batch) -> Hits:
        """One pass over the batch, vetoes applied."""
        ids, ends = (np.frombuffer(m, np.int64) for m in self._finder.matches(batch.buffer))
        code, signature = self._code[ids], ~self._banner[ids]
        rule, record = code[signature], np.empty(0, np.int64)
        if len(rule):
            record = np.searchsorted(batch.ends, ends[signature] - 1)
            pairs = np.unique(self._pair(record, rule))
            record, rule = pairs // (len(self.book.rules) + 1), pairs % (len(self.book.rules) + 1)
            rule, record = self._give_way(*self._spare(batch, rule, record))
        banners = frozenset(np.unique(code[~signature]).tolist()) if len(code) else frozenset()
        return Hits(rule, record, self._finder.anchors(batch.buffer), banners)

    def _spare(self, batch: Batch, rule: I64, record: I64) -> tuple[I64, I64]:
        """Drop hits that an `unless` of their rule or a benign rule speaks against."""
        veto_rule, veto_record, benign = self.vetoes(batch, np.unique(record), np.unique(rule))
        if not len(veto_rule):
            return rule, record
        muted = _among(record, veto_record[benign])
        keep = ~(muted | _among(self._pair(record, rule), self._pair(veto_record[~benign], veto_rule[~benign])))
        return rule[keep], record[keep]

    def _give_way(self, rule: I64, record: I64) -> tuple[I64, I64]:
        """Generic rules say nothing where a particular signature hits the same record."""
        generic = self._generic[rule]
        particular = record[self._particular[rule]]
        keep = ~(generic & _among(record, particular))
        return rule[keep], record[keep]

    def _pair(self, record: I64, rule: I64) -> I64:
        return record * (len(self.book.rules) + 1) + rule

    def vetoes(self, batch: Batch, records: I64, rules: I64 | None = None) -> tuple[I64, I64, npt.NDArray[np.bool_]]:
        """(rule, record, is benign) of every veto that holds on one of the records; a benign rule's own `unless` is applied.

        rules: whose `unless` is asked for, None for all; benign rules always speak.
        """
        every = np.ones(len(self.book.rules), bool) if rules is None else _flags(rules, len(self.book.rules))
        asked = self._veto_benign | (every[self._veto_code] & ~self._veto_spare)
        number, hit = self._each(*self._asked_of(batch, records, self._vetoes), asked)
        rule, benign = self._veto_code[number], self._veto_benign[number]
        if not benign.any():
            return rule, hit, benign
        # What silences a benign rule matters only where that rule speaks, which is rare.
        spoke = self._veto_spare & _flags(rule[benign], len(self.book.rules))[self._veto_code]
        number, where = self._each(*self._asked_of(batch, np.unique(hit[benign]), self._spares), spoke)
        spared = benign & _among(self._pair(hit, rule), self._pair(where, self._veto_code[number]))
        return rule[~spared], hit[~spared], benign[~spared]

    @staticmethod
    def _asked_of(batch: Batch, records: I64, db: hs.Database | None) -> tuple[I64, I64]:
        """(group, record) of every match on these records."""
        if db is None or not len(records):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        starts, stops = batch.starts[records], batch.ends[records] + 1
        view = memoryview(batch.buffer)
        joined = b"".join([view[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)])
        ids, ends = finder.scan(db, joined)
        at = np.searchsorted(np.cumsum(stops - starts) - 1, np.frombuffer(ends, np.int64) - 1)
        return np.frombuffer(ids, np.int64), records[at]

    def _each(self, groups: I64, hit: I64, asked: npt.NDArray[np.bool_]) -> tuple[I64, I64]:
        """Matches of shared expressions -> (veto number, record) of every rule that shares them and is asked."""
        parts = [
            (number, hit[groups == g])
            for g in np.flatnonzero(np.bincount(groups))
            for number in self._veto_numbers[g]
            if asked[number]
        ]
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.repeat(np.array([n for n, _ in parts], np.int64), [len(h) for _, h in parts]), np.concatenate(
            [h for _, h in parts]
        )

    def banners_in(self, text: bytes) -> frozenset[int]:
        """Rule indices of the banners in one stream's part of a batch."""
        ids, _ = self._finder.matches(text)
        return frozenset(self.plan.finders[n][2] for n in set(ids) if self.plan.finders[n][1] == "banner")


def _flags(members: I64 | frozenset[int], size: int) -> npt.NDArray[np.bool_]:
    out = np.zeros(size, bool)
    out[np.fromiter(members, np.int64, len(members))] = True
    return out


def _among(these: I64, those: I64) -> npt.NDArray[np.bool_]:
    """Which of these occur among those. By sorting: numpy's own way hashes, and is many times slower on whole numbers without order."""
    if not len(these) or not len(those):
        return np.zeros(len(these), bool)
    those = np.sort(those)
    at = np.searchsorted(those, these)
    return np.asarray(those[np.minimum(at, len(those) - 1)] == these)
