"""digits: expressions to which all digits are one, and how the others are loosened."""

from __future__ import annotations

import random
import re

import pytest

from defib.adapters import rulefiles
from defib.engine import scan
from defib.engine.digits import asks, loosened

BOOK = rulefiles.load([]).book
PLAN = scan.plan(BOOK)
EXPRESSIONS = sorted({e for e, kind, _ in PLAN.finders if kind == "rule"} | set(PLAN.veto_groups()))
LINES = sorted({e.line for r in BOOK.rules for e in (*r.hits, *r.misses)})


@pytest.mark.parametrize(
    ("expression", "asked"),
    [
        ("abc", False), (r"\d+ of \d{4}", False), ("[0-9a-f]+", False), (r"\w+\b.", False), ("(?:a|b)*?[^0-9]", False), ("x{3,5}", False),
        ("[^,]+", False), ("(?i:abc)", False), ("(?P<n>a)", False),
        ("exit 1", True), ("[1-9]", True), ("[^1-9]", True), ("(?:a|7)", True), ("(a0)+", True), ("[[:digit:]]", True), ("(", True),
        (r"(a)\1", True), ("(?=a)", True), (r"[a2]", True),
    ],
)  # fmt: skip
def test_whether_an_expression_asks_which_digit_stands_somewhere(expression: str, asked: bool) -> None:
    assert asks(expression) is asked


@pytest.mark.parametrize(
    ("expression", "loose"),
    [
        ("exit 17", "exit 00"), (r"\d{2,3}x{4}5", r"\d{2,3}x{4}0"), ("a[1-9]b", "a(?:[1-9]|0)b"), ("[^4]+", "(?:[^4]|0)+"), ("[0-9]", "[0-9]"),
        ("[]1]", "(?:[]1]|0)"), ("(?P<n1>1)", "(?P<n1>0)"), ("{1", "{0"), (r"\[1\]", r"\[0\]"), ("(?i:e9)", "(?i:e0)"),
        (r"(1)\1", None), (r"\x31", None), ("[[:alpha:]]1", None),
    ],
)  # fmt: skip
def test_how_it_is_loosened(expression: str, loose: str | None) -> None:
    assert loosened(expression) == loose


def rolled(line: str, rng: random.Random) -> str:
    return re.sub("[0-9]", lambda m: rng.choice("0123456789"), line)


def test_shipped_expressions_keep_to_what_is_said_of_them() -> None:
    rng = random.Random(5)
    asking = {e for e in EXPRESSIONS if asks(e)}
    assert 50 < len(asking) < 200
    for expression in EXPRESSIONS:
        one = re.compile(expression.replace("(?-u:", "(?:"))
        told = loosened(expression)
        assert told is not None, expression
        loose = re.compile(told.replace("(?-u:", "(?:"))
        for line in [x for x in LINES if one.search(x)] + rng.sample(LINES, 12):
            for other in (line, rolled(line, rng), rolled(line, rng)):
                if expression not in asking:
                    assert [m.span() for m in one.finditer(line)] == [m.span() for m in one.finditer(other)], (
                        expression,
                        other,
                    )
                elif one.search(other):
                    assert loose.search(re.sub("[0-9]", "0", other)), (expression, other)
