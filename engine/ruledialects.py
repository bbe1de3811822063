"""Whether every pattern of a rulebook is of the dialect it will run in: Hyperscan's, or that of Rust's regex.

In: a rulebook, where its parts stand. Out: one `Problem` per fault at the pattern's own line, with the mend. Nothing is matched here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from re import _parser as re_parser  # type: ignore[attr-defined]  # the standard library's parser has no public name
from typing import Any

import hyperscan

from defib.engine import rulemodels as models
from defib.engine.rulebook import Format, Rule, Rulebook
from defib.engine.rulespots import Spots
from defib.engine.words import Problem

TRAILING_QUANTIFIER = re.compile(r"(?<!\\)(?:[*+]|\{\d+,\d*\})\??\)*$")
LINE_FEED = 10
BOUNDED_GAP = re.compile(r"\.\{\d+,\d+\}")

# What Hyperscan says -> what to write instead.
HYPERSCAN_MENDS = (
    ("look", "Hyperscan has no look-around: put the second condition in 'unless' or 'extract'"),
    ("Zero-width", "Hyperscan has no look-around: put the second condition in 'unless' or 'extract'"),
    ("reference", "Hyperscan has no back-references: match one side, compare in 'extract'"),
    ("empty buffer", "the pattern must need at least one character: add a literal"),
    ("too large", "shorten bounded repeats; write '.*' for a gap"),
    ("Embedded", "anchors inside a pattern: put ^ first and $ last, or leave them out"),
    ("Possessive", "Hyperscan has no possessive quantifiers: drop the '+' after the quantifier"),
    ("Atomic", "Hyperscan has no atomic groups: use a plain group (?:…)"),
)
DIALECT = "see rules/README.md for the dialect"
PATTERNS = ("pattern", "patterns")


def faults(book: Rulebook, spots: Spots) -> Iterator[Problem]:
    """Every pattern that does not fit."""
    for r in book.rules:
        yield from _rule(r, spots)
    for f in book.formats:
        yield from _format(f, spots)
    for t in book.prefixes:
        yield from _rust_fault(t, "pattern", t.pattern, models.CAPTURES, spots)
    for t in book.paths:
        yield from _rust_fault(t, "pattern", t.pattern, models.PATH_CAPTURES, spots)


def _rule(r: Rule, spots: Spots) -> Iterator[Problem]:
    for p, keys in ((p, keys) for group, keys in ((r.patterns, PATTERNS), (r.unless, ("unless",))) for p in group):
        said = _hyperscan_refuses(p)
        if said:
            mend = next((m for word, m in HYPERSCAN_MENDS if word.lower() in said.lower()), DIALECT)
            yield spots.text(r, keys, p, f"Hyperscan refuses {p}: {said}", mend)
        if may_cross(p):
            mend = "a record holds no line end: drop the flag s, \\n, [:space:] or the range that holds it"
            yield spots.text(r, keys, p, f"could match across a line end: {p}", mend)
    for p in r.patterns:
        if TRAILING_QUANTIFIER.search(p) and r.role != "benign" and r.kind != "banner":
            mend = "cut it before the quantifier: every further character would be one more match"
            yield spots.text(r, PATTERNS, p, f"pattern ends in a quantifier: {p}", mend)
        if BOUNDED_GAP.search(p):
            mend = "write '.*': a dot never crosses a record, and bounded gaps blow up the database"
            yield spots.text(r, PATTERNS, p, f"bounded gap in {p}", mend)
    for p in r.extract:
        yield from _rust_fault(r, "extract", p, models.CAPTURES, spots)


def _format(f: Format, spots: Spots) -> Iterator[Problem]:
    yield from _rust_fault(f, "pattern", f.pattern, models.PROGRESS_CAPTURES, spots)
    for p in f.more:
        yield from _rust_fault(f, "more", p, models.PROGRESS_CAPTURES, spots)
    for p in f.unless:
        yield from _rust_fault(f, "unless", p, None, spots)
    if f.of is None and "(?P<step>" not in f.pattern:
        mend = "name a group (?P<step>…), or give 'of:' for value lines"
        yield spots.problem(f, ("pattern",), "pattern captures no step", mend)


def may_cross(pattern: str) -> bool:
    """Whether a pattern can hold a line end in a way `scan.confine` does not mend."""
    if re.search(
        r"\(\?[a-zA-Z]*s[a-zA-Z]*[:)]|\[:(?:space|cntrl|\^\w+):\]|(?<!\\)(?:\\\\)*\\(?:[vHCRN]|c[jJ])", pattern
    ):
        return True
    try:
        tree = re_parser.parse(re.sub(r"\[:\^?\w+:\]", "a", pattern))
    except (re.error, OverflowError):
        return False
    return _holds_line_end(tree)


def _holds_line_end(tree: Any) -> bool:
    """A literal line feed, or a class or range with one, anywhere in the parse tree."""
    for op, value in tree:
        name = str(op)
        inner: list[Any] = []
        if name == "LITERAL" and value == LINE_FEED:
            return True
        if name == "IN" and str(value[0][0]) != "NEGATE":
            for kind, item in value:
                if str(kind) not in ("RANGE", "LITERAL"):
                    continue
                low, high = item if str(kind) == "RANGE" else (item, item)
                if low <= LINE_FEED <= high:
                    return True
        elif name == "SUBPATTERN":
            inner = [value[3]]
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            inner = [value[2]]
        elif name == "BRANCH":
            inner = value[1]
        if any(_holds_line_end(t) for t in inner):
            return True
    return False


def _hyperscan_refuses(pattern: str) -> str:
    """What the library says against it; nothing where it takes it."""
    try:
        db = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        db.compile(expressions=[pattern.encode()], ids=[0], elements=1, flags=[hyperscan.HS_FLAG_MULTILINE])
    except hyperscan.error as e:
        return str(e)
    return ""


def _rust_fault(
    owner: Any, key: str, pattern: str, vocabulary: frozenset[str] | None, spots: Spots
) -> Iterator[Problem]:
    import polars as pl

    try:
        pl.Series([""]).str.contains(pattern)
    except pl.exceptions.PolarsError as e:
        said = " ".join(str(e).partition("This error occurred")[0].split())
        mend = "Rust's regex has no look-around or back-references" if "look" in said else DIALECT
        yield spots.text(owner, [key], pattern, f"regex does not compile: {pattern}: {said[-160:]}", mend)
        return
    if vocabulary is None:
        return
    names = re.findall(r"\(\?P?<([A-Za-z_][A-Za-z0-9_]*)>", pattern)
    if not names:
        mend = "name a group (?P<rank>…), or drop it"
        yield spots.text(owner, [key], pattern, f"no named capture in {pattern}", mend)
    for name in names:
        if name not in vocabulary:
            close = difflib.get_close_matches(name, sorted(vocabulary), n=1)
            mend = f"did you mean '{close[0]}'?" if close else f"one of {' '.join(sorted(vocabulary))}"
            yield spots.text(owner, [key], pattern, f"unknown capture '{name}'", mend)
