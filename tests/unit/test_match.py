"""match: a scan without columns finds what the scan with columns finds."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import CLASSES, Kit, batch_of, kit

from defib.engine import hits, match, plan, scan
from defib.engine.match import Matcher, Tally
from defib.engine.proof import one_line

RULES = {
    "classes.yaml": CLASSES,
    "signatures/s.yaml": r"""
        family: s
        about: a
        signatures:
          - {id: s.error, title: t, pattern: ERROR, role: root, class: user-code, generic: 'true', hits: [ERROR], misses: [x]}
          - {id: s.disk, title: t, pattern: DISK, role: root, class: user-code, unless: [RETRY, AGAIN], hits: [DISK], misses: [x]}
          - {id: s.wrap, title: t, pattern: WRAPPED, role: wrapper, class: user-code, hits: [WRAPPED], misses: [x]}
          - {id: s.calm, title: t, patterns: [CALM, QUIET], role: benign, unless: [REALLY, AGAIN], hits: [CALM], misses: [x]}
          - {id: s.end, title: t, pattern: 'LAST$', role: root, class: user-code, hits: [LAST], misses: [x]}
    """,
}
WORDS = ("ERROR", "DISK", "RETRY", "AGAIN", "WRAPPED", "CALM", "QUIET", "REALLY", "LAST", "x", "")


@pytest.fixture(scope="module")
def rules() -> Kit:
    return kit(RULES)


def with_columns(k: Kit, text: bytes) -> list[tuple[int, int]]:
    batch = batch_of(text)
    hits = k.scanner().scan(batch)
    return list(zip(batch.ends[hits.record].tolist(), hits.rule.tolist(), strict=True))


def without(k: Kit, text: bytes) -> list[tuple[int, int]]:
    return Matcher(plan.roster(scan.plan(k.book)), k.databases).hits(text)


def added(k: Kit, text: bytes) -> list[Tally]:
    return Matcher(plan.roster(scan.plan(k.book)), k.databases).tallies(text)


def found_by_rule(found: list[tuple[int, int]]) -> list[Tally]:
    places = {rule: [stop for stop, r in found if r == rule] for _, rule in found}
    return [Tally(rule, len(stops), stops[0], stops[-1]) for rule, stops in sorted(places.items())]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join), max_size=20))
@pytest.mark.parametrize("few", [0, 1 << 30])
def test_both_ways_find_the_same(few: int, rules: Kit, monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    monkeypatch.setattr(match, "FEW", few)
    text = "".join(f"{line}\n" for line in lines).encode()
    found = without(rules, text)
    assert found == (with_columns(rules, text) if text else [])
    assert added(rules, text) == found_by_rule(found)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(
        st.lists(st.lists(st.sampled_from(WORDS[:8]), max_size=3).map(" ".join), max_size=8).map("\n".join), max_size=6
    )
)
@pytest.mark.parametrize(("records", "size", "pause"), [(4096, 1 << 20, 15), (3, 1 << 20, 0), (4096, 20, 1)])
def test_what_is_remembered_of_a_text_changes_nothing(
    records: int, size: int, pause: int, rules: Kit, monkeypatch: pytest.MonkeyPatch, batches: list[str]
) -> None:
    for name, value in (("REMEMBERED", records), ("REMEMBERED_BYTES", size), ("PAUSE", pause)):
        monkeypatch.setattr(hits, name, value)
    once = rules.scanner()
    for text in batches:
        batch, fresh = batch_of(f"{text}\n".encode() * 2), rules.scanner()
        fresh.remembers = False
        one, other = once.scan(batch), fresh.scan(batch)
        assert (one.rule.tolist(), one.record.tolist()) == (other.rule.tolist(), other.record.tolist())


def test_on_every_example_of_the_shipped_rules(shipped: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match, "FEW", 1 << 30)
    text = b"".join(one_line(e.line) + b"\n" for r in shipped.book.rules for e in (*r.hits, *r.misses))
    text = text.replace(b"\r", b"\n")
    found = without(shipped, text)
    assert found == with_columns(shipped, text)
    assert len(found) > 1000


def test_a_plan_is_the_same_after_the_cache(rules: Kit) -> None:
    p = scan.plan(rules.book)
    back = plan.from_json(p.to_json())
    assert back.finders == tuple((kind, i) for _, kind, i in p.finders)
    assert [veto for group in back.vetoes for veto in group] == [
        (kind, i) for group in p.veto_groups().values() for _, kind, i in (p.vetoes[n] for n in group)
    ]
    assert (back.rules, back.anchors) == (p.rules, p.anchors)
    assert (back.generic, back.particular) == (p.generic, p.particular)
