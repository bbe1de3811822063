"""literals: every match holds one literal of its gate, whatever the pattern; the rarest literals are chosen."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import Kit

from defib.engine.blocks import clean
from defib.engine.literals import LONGEST, MOST, SHORTEST, Gates
from defib.engine.proof import one_line
from defib.engine.scan import confine, gates, plan


def gate(pattern: str, *healthy: str) -> set[str] | None:
    found = Gates([(t.encode(), 1000) for t in healthy]).of(pattern)
    return None if found is None else {g.decode("latin-1") for g in found}


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("disk", {"disk"}),
        ("disk is full", {"disk is "}),
        (r"\bdisk\b", {"disk"}),
        ("^disk$", {"disk"}),
        ("disk|tape", {"disk", "tape"}),
        ("(?:disk|tape)s", {"disks", "tapes"}),
        ("[Dd]isk", {"Disk", "disk"}),
        (r"disk \d", {"disk "}),
        ("x.*disk", {"disk"}),
        ("disks?", {"disk"}),
        ("(?:disk)+", {"disk"}),
        ("(?:ab){2}", {"abab"}),
        ("no{1,3} x", {"no x", "noo x", "nooo x"}),
        ("no(?:o{1,3}[12]|o{4}.*3)", {"noo1", "noo2", "nooo1", "nooo2", "noooo1", "noooo2", "nooooo"[:6]}),
        ("(?:a|.*b)disk", {"adisk", "bdisk"}),
        ("(?i:disk)", {a + b + c + d for a in "dD" for b in "iI" for c in "sS" for d in "kK"}),
        ("(?i)x(?-i:disk)", {"xdisk", "Xdisk"}),
        ("Ä+ber", {"\x84ber"}),
        (r"a\.b\.c", {"a.b.c"}),
        (r"x{3,}y", {"xxxy"}),
        (r"nan|disk", None),
        (r"disk|.*", None),
        (r"\w+\d\d", None),
        ("(?:disk)?", None),
        ("(?:disk)*x", None),
        ("[[:alpha:]]disk", None),  # read otherwise by Python: left alone
        ("disk{,3}tape", None),
        ("(?x)di sk", None),
        ("di(sk", None),
    ],
)
def test_gates(pattern: str, wanted: set[str] | None) -> None:
    assert gate(pattern) == wanted


def test_the_rarest_part_is_chosen() -> None:
    assert gate("disk.*tape", "my disk, your disk") == {"tape"}
    assert gate("disk.*tape", "my tape, your tape") == {"disk"}
    assert gate("disk of tape", "disk of disk") == {"of tape"} or gate("disk of tape", "disk of disk") == {" of tape"}
    assert gate("spinning.*(?:disk|tape)s", "nothing") == {"spinning"}, "one literal is cheaper than two"


def test_a_pattern_of_too_many_strings_has_no_gate() -> None:
    assert gate("[0-9]" * 4) is None
    assert gate("[0-9]" * 4 + "disk") == {"disk"}


PIECES = st.sampled_from(
    ["a", "disk", "[ab]", "[^a]", ".", r"\d", r"\s", r"\w", "(?i:Ab)", "é", "[0-9]", r"\.", r"\bcd", "error: "]
)
PATTERNS = st.recursive(
    PIECES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda x: f"(?:{'|'.join(x)})"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{1,3}", "{0,2}", "{3,}"])).map(lambda x: f"(?:{x[0]}){x[1]}"),
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300)
@given(pattern=PATTERNS, data=st.data())
def test_every_match_holds_a_literal_of_the_gate(pattern: str, data: st.DataObject) -> None:
    # A literal beside the pattern, so that few have no gate at all; weighed down, so that it is rarely the best one.
    found = Gates([(b"disk error: tail", 5), (b"tail", 1000)]).of(confine(f"{pattern}tail"))
    assert found
    assert all(SHORTEST <= len(g) <= LONGEST for g in found)
    assert len(found) <= MOST * 4
    expression = re.compile(confine(f"{pattern}tail").encode())
    text = data.draw(st.from_regex(expression, fullmatch=True))
    assert any(g in text for g in found), (found, text)


def test_every_example_of_the_shipped_rules_holds_a_literal_of_the_pattern_that_hits_it(shipped: Kit) -> None:
    found, p = gates(shipped.book), plan(shipped.book)
    alike = {
        n: re.compile(confine(p.finders[n][0]).encode(), re.MULTILINE) for n in found if "[:" not in p.finders[n][0]
    }
    tried = 0
    for n, expression in alike.items():
        rule = shipped.book.rules[p.finders[n][2]]
        for line in (clean(one_line(e.line)) for e in rule.hits):
            if expression.search(line):
                tried += 1
                assert any(g in line for g in found[n]), (p.finders[n][0], line)
    assert tried > len(alike)
