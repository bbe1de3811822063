"""scan: patterns stay within a record, benign rules and `unless` veto, generic rules give way, banners and anchors report."""

from __future__ import annotations

import hyperscan as hs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import CLASSES, Kit, batch_of, fired, kit

from defib.engine.scan import confine, plan


def ends(pattern: str, text: bytes) -> list[int]:
    out: list[int] = []
    db = hs.Database(mode=hs.HS_MODE_BLOCK)
    db.compile(expressions=[pattern.encode()], ids=[0], elements=1, flags=[hs.HS_FLAG_MULTILINE])
    db.scan(text, match_event_handler=lambda _i, _s, end, _f, _c: out.append(end))
    return sorted(set(out))


@pytest.mark.parametrize(
    ("pattern", "confined"),
    [
        (r"a\Sb", r"a\Sb"),
        (r"a\W", r"a[^0-9A-Za-z_\n]"),
        (r"\Da", r"[^0-9\n]a"),
        (r"[^x]", r"[^\nx]"),
        (r"[^]x]", r"[^\n\]x]"),
        (r"[]x]", r"[\]x]"),
        (r"[a\]^]b", r"[a\]^]b"),
        (r"\[^x\]", r"\[^x\]"),
        (r"[[:digit:]x]", r"[[:digit:]x]"),
        (r"\\s", r"\\s"),
    ],
)
def test_confine_rewrites_only_what_could_cross_a_line_end(pattern: str, confined: str) -> None:
    assert confine(pattern) == confined


CROSSING = [
    r"a\sb",
    r"a[\s]b",
    r"a[x\s]b",
    r"a\s+b",
    r"a\Wb",
    r"a[\W]b",
    r"a[\D]b",
    r"a\Db",
    r"a[^x]b",
    r"a[^]]b",
    r"a[^\S]b",
    r"a.b",
]


@pytest.mark.parametrize("pattern", CROSSING)
def test_no_pattern_matches_across_a_line_end(pattern: str) -> None:
    assert ends(confine(pattern), b"a\nb") == []


@pytest.mark.parametrize("pattern", CROSSING)
def test_a_confined_pattern_still_matches_within_a_record(pattern: str) -> None:
    for between in (b" ", b"\t", b"\f", b";", b"\xc3"):
        text = b"a" + between + b"b"
        assert ends(confine(pattern), text) == ends(pattern, text), between


ATOMS = [
    "a",
    "b",
    " ",
    r"\s",
    r"\S",
    r"\w",
    r"\W",
    r"\d",
    r"\D",
    ".",
    "[^a]",
    "[^a b]",
    r"[\s]",
    r"[\Wb]",
    r"[^\D]",
    "[]a]",
    "[^]a]",
    r"\[",
    "[ab]",
]


@settings(max_examples=300)
@given(
    atoms=st.lists(st.tuples(st.sampled_from(ATOMS), st.sampled_from(["", "", "+", "*"])), max_size=3),
    records=st.lists(st.text("ab ]1", max_size=3), min_size=1, max_size=6),
)
def test_a_confined_pattern_finds_in_a_buffer_what_the_pattern_finds_in_each_record(
    atoms: list[tuple[str, str]], records: list[str]
) -> None:
    pattern = "a" + "".join(a + q for a, q in atoms)
    wanted: list[int] = []
    at = 0
    for r in records:
        wanted += [at + e for e in ends(pattern, r.encode())]
        at += len(r) + 1
    assert ends(confine(pattern), "".join(f"{r}\n" for r in records).encode()) == wanted


RULES = {
    "classes.yaml": CLASSES,
    "signatures/s.yaml": r"""
        family: s
        about: a
        signatures:
          - {id: s.error, title: t, pattern: ERROR, role: root, class: user-code, generic: 'true', hits: [ERROR], misses: [x]}
          - {id: s.disk, title: t, pattern: DISK, role: root, class: user-code, unless: [RETRY, AGAIN], hits: [DISK], misses: [x]}
          - {id: s.wrap, title: t, pattern: WRAPPED, role: wrapper, class: user-code, hits: [WRAPPED], misses: [x]}
          - {id: s.calm, title: t, patterns: [CALM, QUIET], role: benign, unless: REALLY, hits: [CALM], misses: [x]}
          - {id: s.old, title: t, pattern: OLD, role: root, class: user-code, status: retired, hits: [OLD], misses: [x]}
          - {id: s.two, title: t, patterns: ['ONE', 'TWO$', '^THREE'], role: root, class: user-code, hits: [ONE], misses: [x]}
    """,
    "progress/f.yaml": r"""
        framework: f
        about: a
        formats:
          - {id: f.step, title: t, anchor: ['it [', 'a.b'], pattern: 'it \[(?P<step>\d+)', hits: ['it [3'], misses: [x]}
        phases:
          - {id: f.save, phase: checkpoint, edge: begin, pattern: SAVING, hits: [SAVING], misses: [x]}
        banners:
          - {id: f.banner, pattern: 'Welcome to F', hits: ['Welcome to F'], misses: [x]}
          - {id: f.other, pattern: 'Hello from F', hits: ['Hello from F'], misses: [x]}
    """,
}


@pytest.fixture(scope="module")
def rules() -> Kit:
    return kit(RULES)


def test_a_generic_rule_gives_way_to_a_particular_signature_on_the_same_record_only(rules: Kit) -> None:
    assert fired(rules, "ERROR", "ERROR DISK", "DISK", "ERROR") == [{"s.error"}, {"s.disk"}, {"s.disk"}, {"s.error"}]


def test_a_generic_rule_does_not_give_way_to_a_wrapper_or_a_phase(rules: Kit) -> None:
    assert fired(rules, "ERROR WRAPPED", "ERROR SAVING") == [{"s.error", "s.wrap"}, {"s.error", "f.save"}]


def test_unless_vetoes_its_own_rule_on_its_own_record(rules: Kit) -> None:
    lines = ["DISK RETRY", "DISK", "RETRY", "DISK ONE AGAIN", "ERROR RETRY"]
    assert fired(rules, *lines) == [set(), {"s.disk"}, set(), {"s.two"}, {"s.error"}]


def test_a_benign_rule_mutes_every_rule_of_its_record_but_not_the_next_one(rules: Kit) -> None:
    assert fired(rules, "DISK CALM SAVING", "DISK", "QUIET ERROR") == [set(), {"s.disk"}, set()]


def test_unless_of_a_benign_rule_lets_the_others_speak(rules: Kit) -> None:
    assert fired(rules, "DISK CALM REALLY", "DISK CALM") == [{"s.disk"}, set()]


def test_a_vetoed_particular_rule_leaves_the_record_to_the_generic_one(rules: Kit) -> None:
    assert fired(rules, "ERROR DISK RETRY") == [{"s.error"}]


def test_retired_rules_are_silent(rules: Kit) -> None:
    assert fired(rules, "OLD") == [set()]
    assert not [e for e, _, i in plan(rules.book).finders if e == "OLD"]


def test_record_ends_anchor_and_a_hit_counts_once_per_record(rules: Kit) -> None:
    assert fired(rules, "ONE TWO", "TWO x", "x THREE", "THREE") == [{"s.two"}, set(), set(), {"s.two"}]
    hits = rules.scanner().scan(batch_of(b"ONE ONE TWO\nTHREE ONE\n"))
    assert hits.record.tolist() == [0, 1]


def test_hits_are_sorted_by_record_then_rule(rules: Kit) -> None:
    hits = rules.scanner().scan(batch_of(b"ONE WRAPPED DISK\nx\nDISK\n"))
    assert hits.record.tolist() == [0, 0, 0, 2]
    assert hits.rule[:3].tolist() == sorted(hits.rule[:3].tolist())


def test_anchors_are_literals_and_banners_tell_which(rules: Kit) -> None:
    scanner = rules.scanner()
    assert {scanner.plan.anchors[i] for i in scanner.scan(batch_of(b"it [3\nacb\n")).anchors} == {"it ["}
    assert {scanner.plan.anchors[i] for i in scanner.scan(batch_of(b"a.b\n")).anchors} == {"a.b"}
    seen = scanner.scan(batch_of(b"Hello from F\n")).banners
    assert {rules.book.rules[i].id for i in seen} == {"f.other"}
    assert scanner.banners_in(b"x\nWelcome to F\n") == {i for i, r in enumerate(rules.book.rules) if r.id == "f.banner"}


def test_a_book_without_vetoes_or_a_batch_without_bytes_scans(rules: Kit) -> None:
    bare = kit({"classes.yaml": CLASSES, "s.yaml": RULES["signatures/s.yaml"].split("- {id: s.disk")[0]})
    assert bare.databases.vetoes == bare.databases.anchors == b""
    assert fired(bare, "ERROR") == [{"s.error"}]
    assert len(rules.scanner().scan(batch_of(b"")).rule) == 0


def test_vetoes_are_told_for_asked_records_only(rules: Kit) -> None:
    batch = batch_of(b"CALM\nDISK RETRY\nCALM\n")
    rule, record, benign = rules.scanner().vetoes(batch, np.array([1, 2]))
    assert sorted(zip(record.tolist(), benign.tolist(), strict=True)) == [(1, False), (2, True)]
    assert {rules.book.rules[i].id for i in rule} == {"s.disk", "s.calm"}
