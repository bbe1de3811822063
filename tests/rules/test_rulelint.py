"""Each lint with a rulebook that trips it and one that does not, costs by a counting clock, and stubs that load."""

from __future__ import annotations

import itertools

import pytest
import yaml

from defib.adapters import rulefiles
from defib.engine import proof, rulecheck, rulelint, scan
from defib.engine.rulebook import Rulebook

CLASSES = (
    "classes:\n  - {id: c.a, title: A, verdict: crashed, fault: user, retry: once, exclude: never, budget: b, why: w}\n"
)
CLEAN = "- {id: t.clean, title: T, pattern: 'quite unlike', role: confirm, see: s, hits: [quite unlike], misses: [x]}"


def book(*signatures: str, formats: str = "") -> Rulebook:
    files = [("c.yaml", CLASSES)]
    files.append(
        ("mine/t.yaml", "family: t\nabout: a\nsignatures:\n" + "\n".join("  " + s for s in signatures or [CLEAN]))
    )
    if formats:
        files.append(("mine/f.yaml", f"framework: f\nabout: a\nformats:\n  {formats}"))
    return rulecheck.load(files)


def lints(b: Rulebook, ours: tuple[str, ...] = ()) -> set[tuple[str, str, bool]]:
    """(lint, rule, is a fault), but for `literal`: the short patterns of these tests hold none."""
    return {x for x in every_lint(b, ours) if x[0] != "literal"}


def every_lint(b: Rulebook, ours: tuple[str, ...] = ()) -> set[tuple[str, str, bool]]:
    return {(f.lint, f.problem.rule, f.fault) for f in rulelint.lint(b, scan.compile_databases(b), ours)}


def rule(name: str, pattern: str, hits: str, role: str = "confirm", more: str = "") -> str:
    return (
        f"- {{id: t.{name}, title: T, pattern: '{pattern}', role: {role}, see: s, hits: [{hits}], misses: [zz]{more}}}"
    )


def test_a_careful_rulebook_has_no_findings():
    assert lints(book(CLEAN)) == set()


WIDE = rule("wide", "disk", "'disk is full', 'disk is gone'")


@pytest.mark.parametrize(
    ("others", "shadowed"),
    [
        ((WIDE, rule("narrow", "is full", "{line: 'disk is full', also: [t.wide]}")), True),
        ((WIDE, rule("narrow", "is full", "{line: 'disk is full', also: [t.wide]}, 'tank is full'")), False),  # speaks alone too
        ((WIDE, rule("narrow", "is full", "{line: 'disk is full', also: [t.wide]}", "root", ", class: c.a")), False),  # says more
        ((WIDE, rule("narrow", "is full", "{line: 'disk is full', also: [t.wide]}", more=", mark: exit")), False),
        ((WIDE, rule("narrow", "is full", "disk 7 is full", more=", extract: 'disk (?P<node>\\d)'")), False),  # takes a capture
        ((rule("wide", "disk", "disk is gone", more=", generic: 'true'"), rule("narrow", "is full", "disk is full")), False),
    ],
)  # fmt: skip
def test_shadowed(others, shadowed):
    assert lints(book(*others)) == ({("shadowed", "t.narrow", False)} if shadowed else set())


@pytest.mark.parametrize(("hits", "muted"), [("'bad, but fine'", True), ("'bad, but fine', 'bad'", False)])
def test_always_muted(hits, muted):
    got = lints(book(rule("loud", "bad", hits), rule("mute", "but fine", "'bad, but fine'", "benign")))
    assert got == ({("muted", "t.loud", True)} if muted else set())


@pytest.mark.parametrize(("hits", "missing"), [("'one way'", True), ("'one way', 'another way'", False)])
def test_each_wording_needs_an_example(hits, missing):
    r = f"- {{id: t.two, title: T, patterns: ['one way', 'another way'], role: confirm, see: s, hits: [{hits}], misses: [x]}}"
    assert lints(book(r)) == ({("wording", "t.two", True)} if missing else set())


@pytest.mark.parametrize(("misses", "missing"), [("x", True), ("'bad, in a drill'", False)])
def test_each_veto_should_have_a_near_miss(misses, missing):
    r = f"- {{id: t.v, title: T, pattern: 'bad', unless: 'in a drill', role: confirm, see: s, hits: [bad], misses: [{misses}]}}"
    assert lints(book(r)) == ({("veto", "t.v", False)} if missing else set())


@pytest.mark.parametrize(("line", "missing"), [("bad", True), ("bad rank 3", False)])
def test_captures_no_example_shows(line, missing):
    r = rule("cap", "bad", f"'{line}'", more=", extract: ['rank (?P<rank>\\d+)']")
    assert lints(book(r)) == ({("capture", "t.cap", False)} if missing else set())


@pytest.mark.parametrize(("line", "missing"), [("step 1", True), ("step 1 loss 2", False)])
def test_captures_of_formats(line, missing):
    f = f"- {{id: f.s, title: T, anchor: step, pattern: 'step (?P<step>\\d+)', more: 'loss (?P<loss>\\d+)', see: s, hits: ['{line}'], misses: [x]}}"
    assert lints(book(formats=f)) == ({("capture", "f.s", False)} if missing else set())


@pytest.mark.parametrize(("hits", "missing"), [("'step 1'", True), ("'step 1', 'STEP 1'", False)])
def test_anchors_no_example_holds(hits, missing):
    f = f"- {{id: f.s, title: T, anchor: [step, STEP], pattern: '(?i)step (?P<step>\\d+)', see: s, hits: [{hits}], misses: [x]}}"
    assert lints(book(formats=f)) == ({("anchor", "f.s", False)} if missing else set())


def test_no_source_is_a_fault_in_our_own_rules_only():
    b = book(CLEAN.replace("see: s, ", ""))
    assert lints(b) == {("unsourced", "t.clean", False)}
    assert lints(b, ("mine/t.yaml",)) == {("unsourced", "t.clean", True)}
    assert lints(book(CLEAN), ("mine/t.yaml",)) == set()


@pytest.mark.parametrize(("pattern", "chatty"), [("NCCL INFO", True), ("NCCL INFI", False)])
def test_rules_that_hit_healthy_chatter(pattern, chatty):
    got = lints(book(rule("noisy", pattern, f"'{pattern}'")))
    assert got == ({("chatty", "t.noisy", False)} if chatty else set())


@pytest.mark.parametrize(
    ("pattern", "hits", "named"),
    [
        ("[xyz]ab", "xab", True),  # no four plain bytes in a row
        ("disk gone|[0-9]+ lost", "'disk gone', '7 lost'", False),
        ("disk gone|[0-9]+ off", "'disk gone', '7 off'", False),
        ("disk gone|[0-9]+o", "'disk gone', '7o'", True),
        ("NCCL INFO.*Abort of it", "NCCL INFO Abort of it", False),  # one rare literal is enough
        ("NCCL INFO [a-z]", "NCCL INFO x", True),
    ],
)
def test_patterns_without_a_rare_literal(pattern, hits, named):
    assert (("literal", "t.slow", False) in every_lint(book(rule("slow", pattern, hits)))) is named


def test_corpora_are_whole_lines_and_the_same_each_time():
    b = book(CLEAN)
    texts = rulelint.corpora(b, 20_000)
    assert texts == rulelint.corpora(b, 20_000)
    assert texts != rulelint.corpora(b, 20_000, seed=2)
    assert set(texts) == {"nccl-info", "megatron", "tqdm", "frames", "config", "near-literals"}
    assert all(t.endswith(b"\n") and 20_000 <= len(t) < 40_000 for t in texts.values())
    assert b"quite unlik " in texts["near-literals"]
    assert b"quite unlike" not in texts["near-literals"]


def test_costs_name_every_finder_and_count_hits():
    b = book(CLEAN, rule("noisy", "NCCL INFO", "'NCCL INFO'"), rule("mute", "fine", "fine", "benign"))
    ticks = itertools.count()
    bare, got = rulelint.costs(b, rulelint.corpora(b, 20_000), lambda: float(next(ticks)), rounds=2)
    assert bare > 0
    assert {c.owner for c in got} == {"t.clean", "t.noisy"}
    noisy = next(c for c in got if c.owner == "t.noisy")
    assert noisy.hits_per_mb > 100
    assert noisy.size > 0
    assert noisy.ns_per_byte == 0  # the counting clock finds all scans equal
    assert next(c for c in got if c.owner == "t.clean").hits_per_mb == 0


def test_stubs_load_and_prove_themselves():
    b = book(CLEAN)
    lines = [
        "cannot open /a/b/c.txt: quota (hard) exceeded *7*", "flux capacitor [3] failed: 12 'x'", "failed: 99 then flux capacitor [",
        "1 2 3", "flux capacitor [9] failed: 1 'y'",
    ]  # fmt: skip
    stubs = rulelint.suggest(b, [(line.replace("7", "#").replace("12", "#"), line) for line in lines])
    assert "1 2 3" not in stubs
    text = yaml.safe_dump({"family": "mine", "about": "a", "signatures": list(stubs.values())})
    loaded = rulecheck.load([("c.yaml", CLASSES), ("m.yaml", text)])
    assert proof.prove(loaded, scan.compile_databases(loaded)) == []
    assert [r.id for r in loaded.rules] == [f"mine.todo-{n + 1}" for n in range(len(stubs))]


def test_stubs_do_not_fire_on_the_examples_of_others():
    b = book(rule("wide", "a long example of another rule", "a long example of another rule"))
    shapes = [("a long example # but short", "a long example 7 but short"), ("long example", "long example")]
    assert [s["pattern"] for s in rulelint.suggest(b, shapes).values()] == ["but short"]


def test_stub_ids_go_on_where_a_persons_own_end():
    mine = "family: mine\nabout: a\nsignatures:\n  " + CLEAN.replace("t.clean", "mine.todo-1")
    b = rulecheck.load([("c.yaml", CLASSES), ("m.yaml", mine)])
    assert [s["id"] for s in rulelint.suggest(b, [("disk is full", "disk is full")]).values()] == ["mine.todo-2"]


@pytest.mark.parametrize("text", ["a.b*c(d)[e]{2}^$|\\ +?", "tab\there", "naïve Ω"])
def test_escaped_text_matches_itself_only(text):
    pattern = rulelint.escape_hyperscan(text)
    lines = [text.encode(), text.replace(text[1], "~").encode()]
    assert rulelint.matches([pattern], lines) == {(0, 0)}


def test_shipped_rules_break_no_promise():
    loaded = rulefiles.load([])
    ours = {path for path, _ in rulefiles.read_folders([rulefiles.built_in()])}
    assert [str(f.problem) for f in rulelint.lint(loaded.book, loaded.databases, ours) if f.fault] == []
