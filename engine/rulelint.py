"""A rulebook that loads may still be careless: rules that add nothing, promise captures no line shows, cite nothing, or cost too much.

In: a rulebook and its compiled databases; for costs also bytes to scan and a CPU clock (the engine has none of its own). Out:
`Finding`s at rule file and line, `Cost`s per pattern, and for lines without a rule stubs to start from. Always holds: the same book
and seed give the same findings and corpora; a finding is a *fault* only where the rule breaks a promise of rules/README.md,
everything else is a warning.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hyperscan as hs
import numpy as np
import polars as pl

from defib.engine.blocks import Batch, Piece, clean
from defib.engine.chatter import CHATTER
from defib.engine.finder import MULTILINE, ONCE
from defib.engine.literals import SHORTEST
from defib.engine.progress import captures
from defib.engine.proof import one_line
from defib.engine.rulebook import Databases, Format, Rule, Rulebook
from defib.engine.scan import Scanner, confine, gates, plan
from defib.engine.survey import LOOKS_BAD
from defib.engine.words import Problem

# Strength of a claim: a rule is shadowed only by one that says at least as much.
STRENGTH = {
    "root": 0, "candidate": 1, "lifecycle": 1, "wrapper": 2, "cascade": 2, "confirm": 3, "locator": 4, "benign": 5,
}  # fmt: skip
PATTERN_CHARS = 120
LITERAL_MIN = 6
CHATTY_PER_MB = 20.0
COMMON_PER_MB = 100.0
CORPUS_BYTES = 256 * 1024
SEED = 20260101
NEAR = "near-literals"  # the corpus that is made to hurt; all others are what healthy jobs print


@dataclass(frozen=True, slots=True)
class Finding:
    """lint: which check; fault: a broken promise (else a warning)."""

    lint: str
    fault: bool
    problem: Problem


@dataclass(frozen=True, slots=True)
class Cost:
    """One pattern compiled alone. ns_per_byte: over a bare scan, all corpora; worst: the corpus it is slowest on."""

    owner: str
    kind: str
    pattern: str
    size: int
    ns_per_byte: float
    worst: str
    worst_ns: float
    hits_per_mb: float


def lint(book: Rulebook, databases: Databases, ours: Container[str] = ()) -> list[Finding]:
    """Every finding that needs no clock, in order of file and line. ours: shown paths of the shipped files, held to more."""
    scanner = Scanner(book, databases)
    alive = [r for r in book.rules if r.status != "retired"]
    out = [
        *_shadowed(book, scanner, ours), *_wordings(alive), *_unreachable(book, alive), *_unsourced([*alive, *book.formats], ours),
        *_anchors(book.formats), *_chatty(book, scanner), *_slow(book),
    ]  # fmt: skip
    return sorted(out, key=lambda f: (f.problem.path, f.problem.line, f.lint, f.problem.message))


def matches(patterns: Sequence[str], lines: Sequence[bytes]) -> set[tuple[int, int]]:
    """(pattern, line) pairs that match, through Hyperscan as the scan uses it. Lines hold no line feed."""
    if not patterns or not lines:
        return set()
    ids, ends = array("q"), array("q")
    db = _database(patterns, [MULTILINE] * len(patterns))

    def found(code: int, _start: int, end: int, _flags: int, _context: object) -> None:
        ids.append(code)
        ends.append(end)

    db.scan(b"\n".join(lines) + b"\n", match_event_handler=found)
    stops = np.cumsum([len(t) + 1 for t in lines]) - 1
    at = np.searchsorted(stops, np.array(ends, np.int64) - 1)
    return set(zip(ids.tolist(), at.tolist(), strict=True))


def _database(patterns: Sequence[str], flags: Sequence[int]) -> Any:
    db = hs.Database(mode=hs.HS_MODE_BLOCK)
    db.compile(
        expressions=[confine(p).encode() for p in patterns],
        ids=list(range(len(patterns))),
        elements=len(patterns),
        flags=list(flags),
    )
    db.scratch = hs.Scratch(db)
    return db


def _finding(lint_: str, fault: bool, owner: Any, message: str, mend: str) -> Finding:
    return Finding(lint_, fault, Problem(owner.path, owner.at, 1, message, mend, owner.id))


def _lines(owner: Any, key: str = "hits") -> list[bytes]:
    return [clean(one_line(e.line)) for e in getattr(owner, key)]


def named(patterns: Sequence[str]) -> set[str]:
    """Names of the captures in these patterns."""
    return {n for p in patterns for n in re.findall(r"\(\?P?<([A-Za-z_]\w*)>", p)}


def _shadowed(book: Rulebook, scanner: Scanner, ours: Container[str]) -> Iterator[Finding]:
    """Rules that never speak alone, and rules that never speak. Where a site's rule silences a shipped one, it is told at the site's."""
    owners = [(i, r) for i, r in enumerate(book.rules) if r.status != "retired" and r.role != "benign"]
    cases = [(i, line) for i, r in owners for line in _lines(r)]
    if not cases:
        return
    batch = Batch()
    batch.add(Piece(0, 0, 1, b"".join(line + b"\n" for _, line in cases)))
    hits = scanner.scan(batch)
    fired: list[set[int]] = [set() for _ in cases]
    for rule, record in zip(hits.rule.tolist(), hits.record.tolist(), strict=True):
        fired[record].add(rule)
    _, muted, benign = scanner.vetoes(batch, np.arange(len(cases)))
    quiet = set(muted[benign].tolist())
    of: dict[int, list[int]] = {}
    for n, (i, _) in enumerate(cases):
        of.setdefault(i, []).append(n)
    for i, r in owners:
        mine = of[i]
        if r.kind != "banner" and all(n in quiet for n in mine):
            mend = "narrow the benign rule, or retire this one"
            yield _finding("muted", True, r, "every example is muted by a benign rule: it can never speak", mend)
            continue
        both = set.intersection(*(fired[n] for n in mine)) - {i}
        over = [book.rules[k] for k in sorted(both) if _says_as_much(book.rules[k], r)]
        theirs = [o for o in over if o.path not in ours] if r.path in ours else []
        if theirs:
            said = f"hits every example of the shipped {r.id} too and says as much: that one never speaks alone"
            yield _finding(
                "shadowed", False, theirs[0], said, "narrow it, or leave it out where the shipped rule is enough"
            )
        elif over:
            mend = "give an example only this rule hits, narrow one of the two, or retire this one"
            names = ", ".join(o.id for o in over)
            yield _finding("shadowed", False, r, f"{names} hits every example too and says as much", mend)


def _says_as_much(other: Rule, r: Rule) -> bool:
    if other.kind != r.kind or other.generic or STRENGTH[other.role] > STRENGTH[r.role]:
        return False
    if r.kind == "phase" and (other.phase, other.edge, other.framework) != (r.phase, r.edge, r.framework):
        return False
    return (r.mark is None or r.mark == other.mark) and named(r.extract) <= named(other.extract)


def _wordings(rules: Sequence[Rule]) -> Iterator[Finding]:
    """Each alternative is a claim of its own: an example has to show it. A veto nobody shows is only a warning."""
    wordings = [(r, p) for r in rules if len(r.patterns) > 1 for p in r.patterns]
    vetoes = [(r, p) for r in rules for p in r.unless]
    checks: tuple[tuple[str, bool, list[tuple[Rule, str]], tuple[str, ...]], ...] = (
        ("wording", True, wordings, ("hits",)),
        ("veto", False, vetoes, ("misses", "hits")),
    )
    for lint_, fault, todo, keys in checks:
        owners = {r.id: r for r, _ in todo}.values()
        lines = [(r.id, line) for r in owners for key in keys for line in _lines(r, key)]
        proven = {(n, lines[at][0]) for n, at in matches([p for _, p in todo], [t for _, t in lines])}
        for n, (r, p) in enumerate(todo):
            if (n, r.id) not in proven:
                what = "no example hits the wording" if fault else "no near-miss shows what 'unless' is for:"
                mend = "add a line with this wording to 'hits', or drop it" if fault else "add such a line to 'misses'"
                yield _finding(lint_, fault, r, f"{what} {p[:120]}", mend)


def _unreachable(book: Rulebook, rules: Sequence[Rule]) -> Iterator[Finding]:
    for r in rules:
        if r.extract:
            text = pl.Series([t.decode("utf-8", "replace") for t in _lines(r)])
            seen: set[str] = set()
            for pattern in r.extract:
                got = text.str.extract_groups(pattern).struct.unnest()
                seen |= {c for c in got.columns if got[c].null_count() < len(text)}
            yield from _never(r, named(r.extract) - seen)
    for f in book.formats:
        got = captures(f, pl.Series([t.decode("utf-8", "replace") for t in _lines(f)]))
        seen = {c for c in got.columns if got[c].null_count() < got.height}
        yield from _never(f, named([f.pattern, *f.more]) - seen)


def _never(owner: Any, names: set[str]) -> Iterator[Finding]:
    if names:
        mend = "add an example that shows it with 'fields', or drop it"
        yield _finding("capture", False, owner, f"no example captures {', '.join(sorted(names))}", mend)


def _unsourced(owners: Sequence[Any], ours: Container[str]) -> Iterator[Finding]:
    """Shipped rules promise where their wording is known from; a person's own rules need not."""
    for r in owners:
        if not r.see:
            mend = "add 'see: [project path/to/source]'"
            yield _finding("unsourced", r.path in ours, r, "no 'see': nobody can check the wording", mend)


def _anchors(formats: Sequence[Format]) -> Iterator[Finding]:
    for f in formats:
        for a in f.anchors:
            if not any(a in e.line for e in f.hits):
                yield _finding("anchor", False, f, f"no example holds the anchor '{a}'", "add such a line, or drop it")


def _chatty(book: Rulebook, scanner: Scanner) -> Iterator[Finding]:
    """Rules that hit what healthy jobs print: each hit is a callback and a row."""
    text = b"".join(t for name, t in corpora(book).items() if name != NEAR)
    batch = Batch()
    batch.add(Piece(0, 0, 1, text))
    hits = scanner.scan(batch)
    for rule, n in zip(*np.unique(hits.rule, return_counts=True), strict=True):
        rate = float(n) / (len(text) / 1e6)
        if rate >= CHATTY_PER_MB:
            r = book.rules[int(rule)]
            mend = "narrow the pattern to a literal healthy logs do not print"
            yield _finding("chatty", False, r, f"{rate:,.0f} hits per MB of healthy chatter", mend)


def _slow(book: Rulebook) -> Iterator[Finding]:
    """Patterns that a scan cannot look for by a rare literal: they cost time on every byte, or on every record that holds a common one."""
    text = b"".join(t for name, t in corpora(book).items() if name != NEAR)
    found = gates(book)
    for n, (pattern, kind, index) in enumerate(plan(book).finders):
        if kind == "anchor":
            continue
        r = book.rules[index]
        if n not in found:
            mend = "let every match hold a run of plain characters, in each alternative; spell out classes and caseless letters"
            what = (
                f"no literal of {SHORTEST} bytes in every match, so it is run over all bytes: {pattern[:PATTERN_CHARS]}"
            )
            yield _finding("literal", False, r, what, mend)
            continue
        each = {literal: text.count(literal) / (len(text) / 1e6) for literal in found[n]}
        common, rate = max(each.items(), key=lambda x: (x[1], x[0]))
        if rate >= COMMON_PER_MB and kind != "banner":
            what = f"'{common.decode('latin-1')}' is the rarest literal of {pattern[:PATTERN_CHARS]}: {rate:,.0f} per MB of healthy chatter"
            mend = "let every match hold a run of plain characters that healthy logs do not print"
            yield _finding("literal", False, r, what, mend)


def costs(
    book: Rulebook, texts: Mapping[str, bytes], clock: Callable[[], float], rounds: int = 3
) -> tuple[float, list[Cost]]:
    """(ns per byte of a bare scan, every finder's cost over it, dearest first). clock: CPU seconds."""
    bare = {name: _time(_database(["\x01never\x02"], [ONCE]), t, clock, rounds)[0] for name, t in texts.items()}
    total = sum(len(t) for t in texts.values())
    healthy = sum(len(t) for name, t in texts.items() if name != NEAR)
    p = plan(book)
    out: list[Cost] = []
    for pattern, kind, index in p.finders:
        owner = p.anchors[index] if kind == "anchor" else book.rules[index].id
        db = _database([pattern], [ONCE if kind in ("banner", "anchor") else MULTILINE])
        seconds, hits = 0.0, 0
        each: dict[str, float] = {}
        for name, t in texts.items():
            took, found = _time(db, t, clock, rounds)
            seconds += max(0.0, took - bare[name])
            each[name] = max(0.0, took - bare[name]) / len(t) * 1e9
            hits += found if name != NEAR else 0
        worst = max(each, key=lambda name: each[name])
        out.append(
            Cost(owner, kind, pattern, len(hs.dumpb(db)), seconds / total * 1e9, worst, each[worst], hits / (healthy / 1e6))
        )  # fmt: skip
    out.sort(key=lambda c: (-c.ns_per_byte, c.owner, c.pattern))
    return sum(bare.values()) / total * 1e9, out


def _time(db: Any, text: bytes, clock: Callable[[], float], rounds: int) -> tuple[float, int]:
    """Best of the rounds, and how often the callback ran."""
    hits = array("q")

    def found(code: int, _start: int, _end: int, _flags: int, _context: object) -> None:
        hits.append(code)

    best = float("inf")
    for _ in range(rounds):
        del hits[:]
        began = clock()
        db.scan(text, match_event_handler=found)
        best = min(best, clock() - began)
    return best, len(hits)


def suggest(book: Rulebook, shapes: Sequence[tuple[str, str]], family: str = "mine") -> dict[str, dict[str, Any]]:
    """(shape, a line of it) -> by shape a stub that loads beside the other rules: its pattern is the shape's most telling constant part."""
    taken = {r.id for r in book.rules}
    numbers = (f"{family}.todo-{n}" for n in range(1, len(shapes) + len(taken) + 2))
    free = (name for name in numbers if name not in taken)
    wanted = [[escape_hyperscan(c) for c in constants_of(key)] for key, _ in shapes]
    every = sorted({c for cs in wanted for c in cs if len(c) >= LITERAL_MIN})
    # A pattern that fires on another rule's example would keep the whole rulebook from loading.
    usable = set(every) - {every[i] for i, _ in matches(every, [t for r in book.rules for t in _lines(r)])}
    out: dict[str, dict[str, Any]] = {}
    patterns: list[str] = []
    for (key, text), candidates in zip(shapes, wanted, strict=True):
        pattern = next((c for c in candidates if c in usable), None)
        if pattern is None or pattern in patterns:
            continue
        patterns.append(pattern)
        out[key] = {
            "id": next(free), "title": f"TODO {text[:60]}", "pattern": pattern, "role": "confirm", "domain": "unknown",
            "limits": "TODO what it cannot tell", "see": "TODO project path/to/source", "hits": [{"line": text}],
            "misses": ["TODO a line that looks alike and means something else"],
        }  # fmt: skip
    ids = [stub["id"] for stub in out.values()]
    lines = [stub["hits"][0]["line"].replace("\n", " ").encode() for stub in out.values()]
    for p, at in sorted(matches(patterns, lines)):
        if p != at:
            list(out.values())[at]["hits"][0].setdefault("also", []).append(ids[p])
    return out


def constants_of(shape: str) -> list[str]:
    """The parts without a placeholder, most telling first: long ones that look bad, then the longest."""
    parts = [p.strip() for p in re.split("[#\ufffd]", shape)]
    parts.sort(key=lambda p: (len(p) < 2 * LITERAL_MIN or not re.search(LOOKS_BAD, p), -len(p)))
    return [p if len(p) <= PATTERN_CHARS else p[:PATTERN_CHARS].rsplit(" ", 1)[0] for p in parts[:4]]


def escape_hyperscan(text: str) -> str:
    """The text as a pattern that matches just it."""
    escaped = re.sub(r"[\\.^$*+?{}\[\]()|]", lambda m: "\\" + m[0], text)
    return re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\x{ord(m[0]):02x}", escaped)


def corpora(book: Rulebook, size: int = CORPUS_BYTES, seed: int = SEED) -> dict[str, bytes]:
    """Name -> bytes of whole lines: what healthy jobs print most, and long lines of the rules' own literals one byte short."""
    rng = np.random.default_rng(seed)
    out: dict[str, bytes] = {}
    for name, forms in CHATTER.items():
        lines: list[str] = []
        have = 0
        while have < size:
            n = rng.integers([0, 1000, 10000, 0, 10, 10, 1], [512, 9999, 99999, 8, 60, 60, 61035]).tolist()
            lines.append(forms[int(rng.integers(len(forms)))].format(**dict(zip("abcdefg", n, strict=True))))
            have += len(lines[-1])
        out[name] = "".join(lines).encode() + b"\n"
    near = [w[:-1] for r in book.rules if r.role != "benign" for p in r.patterns if len(w := _literal(p)) > 3]
    long: list[str] = []
    have = 0
    while near and have < size:
        picked = [near[int(i)] for i in rng.integers(len(near), size=160)]
        long.append(" ".join(picked) + "\n")
        have += len(long[-1])
    out[NEAR] = "".join(long).encode() or b"\n"
    return out


def _literal(pattern: str) -> str:
    """The longest run of plain characters in a pattern."""
    return max(re.split(r"\\.|\(\?.|[\[\](){}.*+?|^$\\]", pattern), key=len).strip()
