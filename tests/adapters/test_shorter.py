"""A storm added up by way of a shorter text says what the long one says, whatever digits its records hold."""

from __future__ import annotations

import random
import re
from array import array

import pytest
from tests.conftest import Kit, kit
from tests.needs import lacking
from tests.unit.test_match import RULES

from defib.adapters import rulefiles
from defib.engine import match, plan, scan, shorter
from defib.engine.match import Matcher
from defib.engine.shorter import MOST, Sorter
from defib.engine.sorting import PlainSorter

LAST = """
          - {id: s.code, title: t, pattern: 'CODE [1-9]', role: root, class: user-code, unless: ['NOT 7'], hits: [CODE 1], misses: [CODE 0]}
          - {id: s.odd, title: t, pattern: '[13579]', role: root, class: user-code, hits: ['3'], misses: ['2']}
"""


@pytest.fixture(scope="module", params=["in C", "plain"])
def sorter(request: pytest.FixtureRequest) -> Sorter:
    found = PlainSorter() if request.param == "plain" else rulefiles.sorter()
    if request.param != "plain" and isinstance(found, PlainSorter):
        lacking("native", "the helper needs a C compiler")
    return found


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match, "FEW", 0)
    monkeypatch.setattr(shorter, "LEAST", 0)
    monkeypatch.setattr(shorter, "PAUSE", 0)


def storm(lines: list[str], rng: random.Random, size: int) -> bytes:
    """Some of the lines again and again, with other digits each time."""
    some = [rng.choice(lines) for _ in range(rng.choice((3, 20, 60)))]
    return "".join(f"{digits(rng.choice(some), rng)}\n" for _ in range(size)).encode()


WORDS = [
    "ERROR",
    "DISK",
    "RETRY",
    "AGAIN",
    "WRAPPED",
    "CALM 5",
    "QUIET",
    "REALLY",
    "LAST",
    "CODE 4",
    "NOT 7",
    "",
    "12 ",
]


def with_last(last: str = LAST) -> dict[str, str]:
    """Rules of which some ask for digits."""
    return RULES | {"signatures/s.yaml": RULES["signatures/s.yaml"].rstrip() + last}


def worded(rng: random.Random) -> list[str]:
    """Lines of words that the rules know."""
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randrange(6))) for _ in range(40)]


def known(k: Kit) -> list[str]:
    """Lines that the rules tell as examples and near-misses."""
    return sorted({e.line for r in k.book.rules for e in (*r.hits, *r.misses) if "\n" not in e.line})


def digits(line: str, rng: random.Random) -> str:
    """The same with other digits."""
    return re.sub("[0-9]", lambda m: rng.choice((m[0], "0", "1", "7", "9")), line)


def same(k: Kit, sorter: Sorter, text: bytes) -> int:
    """Compares; the number of records the short text had, 0 for none."""
    roster = plan.roster(scan.plan(k.book))
    shortly = Matcher(roster, k.databases, sorter=lambda: sorter)
    for part in (text, text[: len(text) // 2 + 1].rpartition(b"\n")[0] + b"\n"):
        assert shortly.tallies(part) == match._summed(*shortly._many(part, shortly._finder.matches(part)))
    assert shortly._shortener is not None
    short = shortly._shortener.of(text, shortly._finder.matches)
    return len(short.stop) if short is not None else 0


@pytest.mark.parametrize("seed", range(25))
def test_shipped_rules(seed: int, shipped: Kit, sorter: Sorter) -> None:
    rng = random.Random(seed)
    made = same(shipped, sorter, storm(known(shipped), rng, 3000))
    assert 0 < made < 3000


@pytest.mark.parametrize("seed", range(25))
def test_rules_that_ask_for_digits_and_one_that_no_literal_leads_to(seed: int, sorter: Sorter) -> None:
    rng = random.Random(seed)
    same(kit(with_last()), sorter, storm(worded(rng), rng, 600))


def test_a_text_of_too_many_shapes_or_records_is_left_alone(sorter: Sorter) -> None:
    assert (
        sorter.sorted(
            b"".join(b"%s\n" % bytes([97 + k % 26, 97 + k // 26 % 26, 97 + k // 676]) * 9 for k in range(MOST + 2))
        )
        is None
    )
    assert sorter.sorted(b"\n" * 2_000_000) is None
    assert sorter.sorted(b"once and no more, and long enough\n") is None


def test_what_sorting_gives(sorter: Sorter) -> None:
    text = (
        b"step 1 of the run\nstep 2 of the run\nother line 12345\nstep 3 of the run\nother line 54321\nstep 4 of the run\n"
        * 2
    )
    found = sorter.sorted(text)
    assert found is not None
    assert found.digest == b"step 0 of the run\nother line 00000\n"
    found.mark([0], array("q", [text.index(b"2 of") + 1, text.index(b"54321") + 1]))
    short = found.gathered([])
    assert short is not None
    assert short.text == b"step 1 of the run\nstep 2 of the run\nother line 12345\n"
    assert (short.shape, short.count) == ([0, 0, 1], [7, 1, 4])
    assert [text[a - 6 : a] for a in short.first] == [b"he run", b"he run", b" 12345"]
    assert (short.first[0], short.last[0]) == (17, len(text) - 1)
    assert found.gathered([0, 1]) is None, "every record for itself is no shorter text"
