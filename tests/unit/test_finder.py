"""finder: the way by literals, windows and dense stretches finds what every expression run over all bytes would find."""

from __future__ import annotations

import hyperscan as hs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import CLASSES, Kit, batch_of, kit

from defib.engine import finder, rulelint, scan
from defib.engine.finder import Finder, windows
from defib.engine.proof import one_line

RULES = {
    "classes.yaml": CLASSES,
    "signatures/s.yaml": r"""
        family: s
        about: a
        signatures:
          - {id: s.disk, title: t, patterns: ['DISK \d+ LOST', 'DISK$'], role: root, class: user-code, hits: [DISK 1 LOST, DISK], misses: [x]}
          - {id: s.bare, title: t, pattern: '[xyz]\d\d\d', role: root, class: user-code, hits: [x123], misses: [x]}
    """,
    "progress/f.yaml": r"""
        framework: f
        about: a
        formats:
          - {id: f.step, title: t, anchor: ['step [', 'it ', 'näh'], pattern: 'step \[(?P<step>\d+)', hits: ['step [3'], misses: [x]}
        banners:
          - {id: f.one, pattern: 'WELCOME to \d', hits: ['WELCOME to 7'], misses: [x]}
          - {id: f.two, pattern: '(?:GREETINGS|WELCOME) from \w', hits: ['GREETINGS from F'], misses: [x]}
    """,
}
LINES = [
    "DISK 1 LOST", "DISK", "DISK 1", "a DISK", "x123", "step [3", "it was", "näh", "WELCOME", "WELCOME to 7", "WELCOME from F",
    "GREETINGS", "GREETINGS from", "GREETINGS from F", "quiet", "", "q" * 70,
]  # fmt: skip


@pytest.fixture(scope="module")
def rules() -> Kit:
    return kit(RULES)


@pytest.fixture(params=[(64, 10_000, 1), (64, 16, 3), (1 << 20, 2048, 8), (1 << 20, 1, 1)])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a few lines or one, dense from the first literals on or never."""
    window, sparse, patience = request.param
    for name, value in (
        ("WINDOW", window),
        ("SNIFF", 16),
        ("SPARSE", sparse),
        ("PATIENCE", patience),
        ("COMPILE_PER", 8),
    ):
        monkeypatch.setattr(finder, name, value)


Found = tuple[set[tuple[int, int]], set[int], set[int]]


def plainly(k: Kit, text: bytes) -> Found:
    """(rule, record) pairs, banners and anchors, by running every expression over all bytes."""
    p = scan.plan(k.book)
    entries = [(n, scan.confine(e).encode()) for n, (e, kind, _) in enumerate(p.finders) if kind != "anchor"]
    db = hs.Database(mode=hs.HS_MODE_BLOCK)
    db.compile(
        expressions=[e for _, e in entries], ids=[n for n, _ in entries], elements=len(entries), flags=[hs.HS_FLAG_MULTILINE] * len(entries)
    )  # fmt: skip
    out: set[tuple[int, int]] = set()
    db.scan(text, match_event_handler=lambda n, _s, end, _f, _c: out.add((n, text.count(b"\n", 0, end - 1))))
    return told(k, out, {i for i, a in enumerate(p.anchors) if a.encode() in text})


def told(k: Kit, pairs: set[tuple[int, int]], anchors: set[int]) -> Found:
    finders = scan.plan(k.book).finders
    hits = {(finders[n][2], at) for n, at in pairs if finders[n][1] == "rule"}
    return hits, {finders[n][2] for n, _ in pairs if finders[n][1] == "banner"}, anchors


def found(k: Kit, text: bytes) -> Found:
    with_limits = Finder(k.databases, tuple(a.encode() for a in scan.plan(k.book).anchors))
    ids, ends = (np.frombuffer(m, np.int64) for m in with_limits.matches(text))
    stops = np.flatnonzero(np.frombuffer(text, np.uint8) == 10)
    at = np.searchsorted(stops, ends - 1)
    return told(k, set(zip(ids.tolist(), at.tolist(), strict=True)), set(with_limits.anchors(text)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.sampled_from(LINES), max_size=60))
def test_what_is_found_is_what_all_bytes_hold(limits: None, rules: Kit, lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    assert found(rules, text) == plainly(rules, text)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_the_shipped_rules_find_what_all_bytes_hold(limits: None, shipped: Kit, data: st.DataObject) -> None:
    owners = [*shipped.book.rules, *shipped.book.formats]
    said = [one_line(e.line) + b"\n" for r in owners for e in (*r.hits, *r.misses)]
    healthy = b"".join(rulelint.corpora(shipped.book, 2000, seed=data.draw(st.integers(0, 9))).values()).splitlines(
        True
    )
    lines = data.draw(st.lists(st.sampled_from(said) | st.sampled_from(healthy), max_size=150))
    text = b"".join(lines).replace(b"\r", b"\n")
    assert found(shipped, text) == plainly(shipped, text)


def test_a_banner_whose_literal_stood_elsewhere_first_is_found(rules: Kit) -> None:
    scanner = rules.scanner()
    for text in (
        b"WELCOME\nx\nWELCOME from F\n",
        b"GREETINGS\nWELCOME from F\n",
        b"WELCOME to 1\nWELCOME\nWELCOME from F\n",
    ):
        assert {rules.book.rules[i].id for i in scanner.scan(batch_of(text)).banners} >= {"f.two"}, text


def test_windows_are_whole_records_and_cover_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder, "WINDOW", 16)
    text = b"a\n" * 3 + b"b" * 50 + b"\n" + b"c\n" * 40 + b"\n\n" + b"open end"
    cut = [text[start:stop] for start, stop in windows(text, 4)]
    assert b"".join(cut) == text
    assert all(c.endswith(b"\n") for c in cut[:-1])
    assert max(len(c) for c in cut if b"b" not in c) <= 16
    assert list(windows(b"")) == []


def test_few_anchor_databases_are_kept(rules: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder, "KEPT", 2)
    monkeypatch.setattr(finder, "SNIFF", 8)
    monkeypatch.setattr(finder, "COMPILE_PER", 1)
    one = Finder(rules.databases, tuple(a.encode() for a in scan.plan(rules.book).anchors))
    for order in ("step [1\nit was\nx\n", "it was\nstep [1\nx\n", "näh\nit was\nx\nx\n"):
        one.anchors((order + "x\n" * 40).encode())
    assert len(one._anchors) == 2
