"""proof: an example that does not hold is told at its own line, for every kind of rule."""

from __future__ import annotations

import pytest
from tests.conftest import CLASSES, LANGUAGE, Kit, proven

from defib.engine.words import Problem

GOOD = r"""
family: s
about: a
signatures:
  - id: s.a
    title: t
    pattern: 'LONG rank \d'
    unless: 'RETRY'
    extract: 'rank (?P<rank>\d+).* on (?P<path>\S+)'
    role: root
    class: user-code
    hits:
      - line: 'LONG rank 3 on /a'
        fields: {rank: '3', path: /a}
    misses:
      - 'LONG rank x'
  - id: s.b
    title: t
    pattern: 'OTHER'
    role: confirm
    hits:
      - 'OTHER'
    misses: ['x']
  - id: s.calm
    title: t
    pattern: 'CALM'
    role: benign
    unless: 'STORM'
    hits:
      - 'CALM'
    misses:
      - 'x'
  - id: s.vague
    title: t
    pattern: 'LONG'
    role: confirm
    generic: 'true'
    hits: ['LONG']
    misses: ['x']
"""

PROGRESS = r"""
framework: f
about: a
formats:
  - id: f.step
    title: t
    anchor: ['step=']
    pattern: 'st?ep=(?P<step>\d+)(?: of (?P<total>\d+))?'
    unless: 'dry'
    hits:
      - line: 'step=3 of 9'
        fields: {step: '3', total: '9'}
    misses:
      - 'x'
phases:
  - id: f.save
    phase: checkpoint
    edge: begin
    pattern: SAVING
    extract: 'at (?P<step>\d+)'
    hits:
      - {line: SAVING at 3, fields: {step: '3'}}
    misses:
      - x
banners:
  - id: f.banner
    pattern: 'Welcome'
    hits: [Welcome]
    misses: [x]
"""

TEMPLATES = r"""
prefixes:
  - id: p.rank
    title: t
    pattern: '^\[(?P<rank>\d+)\] '
    hits:
      - {line: '[3] x', fields: {rank: '3'}}
    misses:
      - 'x'
"""


def prove(old: str = "", new: str = "") -> list[Problem]:
    parts = {"s.yaml": GOOD, "p.yaml": PROGRESS, "t.yaml": TEMPLATES}
    assert sum(old in text for text in parts.values()) or not old
    changed = {path: text.replace(old, new, 1) if old else text for path, text in parts.items()}
    return proven({"classes.yaml": CLASSES, **changed})


def line_of(text: str, part: str) -> int:
    return text.lstrip("\n")[: text.lstrip("\n").index(part)].count("\n") + 1


def test_good_examples_hold() -> None:
    assert prove() == []
    assert proven(LANGUAGE) == []


FAULTS = [
    # file, what is changed, to what, rule, what is said, part of the mend
    ("s.yaml", "- 'LONG rank x'", "- 'so LONG rank 7'", "s.a", "near-miss matches", "narrower"),
    ("s.yaml", "- line: 'LONG rank 3 on /a'", "- line: 'nothing'", "s.a", "example does not match", "mend the pattern"),
    ("s.yaml", "- line: 'LONG rank 3 on /a'", "- line: 'LONG rank 3 RETRY on /a'", "s.a", "example does not match", "unless"),
    ("s.yaml", "- line: 'LONG rank 3 on /a'", "- line: 'LONG rank 3 CALM on /a'", "s.a", "example does not match", "muted by s.calm"),
    ("s.yaml", "- line: 'LONG rank 3 on /a'", "- line: 'LONG rank 4 on /a'", "s.a", "capture 'rank' is '4', expected '3'", "extract"),
    ("s.yaml", "- line: 'LONG rank 3 on /a'", "- line: 'LONG rank 3'", "s.a", "capture 'path' is None, expected '/a'", "extract"),
    ("s.yaml", "- line: 'LONG rank 3 on /a'", "- line: 'LONG rank 3 on /a OTHER'", "s.a", "s.b fires on this line too", "also: [s.b]"),
    ("s.yaml", "- 'OTHER'", "- 'OTHER LONG rank 1'", "s.b", "s.a fires on this line too", "also: [s.a]"),
    ("s.yaml", "- 'CALM'", "- 'calm'", "s.calm", "example does not match", "mend the pattern"),
    ("s.yaml", "- 'x'", "- 'CALM and OTHER'", "s.calm", "near-miss matches", "narrower"),
    ("p.yaml", "- line: 'step=3 of 9'", "- line: 'step=x'", "f.step", "example does not match", "mend the pattern"),
    ("p.yaml", "- line: 'step=3 of 9'", "- line: 'dry step=3 of 9'", "f.step", "example does not match", "unless"),
    ("p.yaml", "- line: 'step=3 of 9'", "- line: 'sep=3 of 9'", "f.step", "example does not match", "no anchor"),
    ("p.yaml", "- line: 'step=3 of 9'", "- line: 'step=3 of 8'", "f.step", "capture 'total' is '8', expected '9'", "mend the pattern"),
    ("p.yaml", "- 'x'", "- 'step=1'", "f.step", "near-miss matches", "narrower"),
    ("p.yaml", "- {line: SAVING at 3,", "- {line: SAVING at 4,", "f.save", "capture 'step' is '4'", "extract"),
    ("p.yaml", "- x", "- SAVING", "f.save", "near-miss matches", "narrower"),
    ("p.yaml", "hits: [Welcome]", "hits: [Hello]", "f.banner", "example does not match", "mend the pattern"),
    ("p.yaml", "misses: [x]", "misses: [Welcome]", "f.banner", "near-miss matches", "narrower"),
    ("t.yaml", "- {line: '[3] x'", "- {line: '[3]'", "p.rank", "example does not match", "mend"),
    ("t.yaml", "- {line: '[3] x'", "- {line: '[4] x'", "p.rank", "capture 'rank' is '4'", "expected value"),
    ("t.yaml", "- 'x'", "- '[5] x'", "p.rank", "near-miss matches", "mend"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "old", "new", "rule", "said", "mend"), FAULTS, ids=[f"{f[3]}-{f[4]}-{i}" for i, f in enumerate(FAULTS)]
)
def test_an_example_that_does_not_hold_is_told_at_its_own_line(
    path: str, old: str, new: str, rule: str, said: str, mend: str
) -> None:
    texts = {"s.yaml": GOOD, "p.yaml": PROGRESS, "t.yaml": TEMPLATES}
    changed = {**texts, path: texts[path].replace(old, new, 1)}
    assert changed != texts
    found = proven({"classes.yaml": CLASSES, **changed})
    (problem,) = [p for p in found if said in p.message and p.rule == rule]
    assert problem.path == path
    assert problem.line == line_of(texts[path], old)
    assert mend in problem.mend
    assert {p.rule for p in found} == {rule}


def test_saying_also_makes_a_collision_lawful() -> None:
    both = "- {line: 'OTHER LONG rank 1', also: [s.a]}"
    assert prove("- 'OTHER'", both) == []


def test_generic_rules_and_phases_collide_with_nobody() -> None:
    assert prove("hits: ['LONG']", "hits: ['LONG SAVING']") == []
    assert prove("- {line: SAVING at 3,", "- {line: SAVING OTHER at 3,") == []


def test_all_failing_examples_are_told_at_once_in_order() -> None:
    bad = (
        GOOD.replace("- 'OTHER'", "- 'nope'")
        .replace("- 'LONG rank x'", "- 'LONG rank 1'")
        .replace("- 'CALM'", "- 'nope'")
    )
    found = proven({"classes.yaml": CLASSES, "s.yaml": bad, "t.yaml": TEMPLATES.replace("- 'x'", "- '[5] x'")})
    assert [p.rule for p in found] == ["s.a", "s.b", "s.calm", "p.rank"]


def test_a_retired_rule_need_not_prove_itself() -> None:
    text = GOOD.replace("- 'OTHER'", "- 'nope'").replace("role: confirm", "role: confirm\n    status: retired", 1)
    assert proven({"classes.yaml": CLASSES, "s.yaml": text}) == []


def test_an_example_of_several_lines_is_one_record() -> None:
    assert prove("- 'OTHER'", '- "a\\nOTHER"') == []


def test_the_shipped_rules_prove_themselves(shipped: Kit) -> None:
    from defib.engine.proof import prove as run

    assert run(shipped.book, shipped.databases) == []
