"""Expressions and digits: which expressions ask which digit stands somewhere, and what they find where nobody looks which.

In: the expressions of rules, as Hyperscan takes them. Out: whether all digits are one to an expression, and the same expression with all of
them one. Always holds: an expression to which all digits are one matches a record in the same places whatever its digits; a loosened one
matches a record's digits as `0` wherever the expression matches the record. What is not understood asks, and cannot be loosened.
"""

from __future__ import annotations

import re
from re import _parser as re_parser  # type: ignore[attr-defined]  # the standard library's parser has no public name
from typing import Any

from defib.engine.literals import OTHERWISE

DIGITS = frozenset(range(48, 58))
ZERO = 48
ZEROS = bytes(ZERO if b in DIGITS else b for b in range(256))  # for `bytes.translate`
GROUP = re.compile(r"\(\?(?:P?<\w+>|[a-zA-Z-]*[:)])")
TIMES = re.compile(r"\{\d+(?:,\d*)?\}")
PLAIN_ESCAPES = frozenset("dDwWsSbBnrtfvaAzZ") | frozenset(r"\.[](){}*+?|^$-/'\"#&~:;<>=!@%,` _")
ALIKE = {
    "CATEGORY_DIGIT",
    "CATEGORY_NOT_DIGIT",
    "CATEGORY_WORD",
    "CATEGORY_NOT_WORD",
    "CATEGORY_SPACE",
    "CATEGORY_NOT_SPACE",
}


def asks(expression: str) -> bool:
    """Whether it asks which digit stands somewhere."""
    if OTHERWISE.search(expression):
        return True
    try:
        return _asks(re_parser.parse(expression.replace("(?-u:", "(?:")))
    except (re.error, OverflowError, RecursionError):
        return True


def _asks(tree: Any) -> bool:
    for op, value in tree:
        match str(op):
            case "LITERAL" | "NOT_LITERAL":
                asked = value in DIGITS
            case "IN":
                asked = _class_asks(value)
            case "ANY" | "AT":
                asked = False
            case "SUBPATTERN":
                asked = _asks(value[3])
            case "BRANCH":
                asked = any(map(_asks, value[1]))
            case "MAX_REPEAT" | "MIN_REPEAT":
                asked = _asks(value[2])
            case _:
                asked = True
        if asked:
            return True
    return False


def _class_asks(members: Any) -> bool:
    told: set[int] = set()
    for op, value in members:
        match str(op):
            case "LITERAL":
                told |= {value} & DIGITS
            case "RANGE":
                told |= DIGITS.intersection(range(value[0], value[1] + 1))
            case "CATEGORY" if str(value) in ALIKE:
                told |= set() if str(value) in ("CATEGORY_NOT_DIGIT", "CATEGORY_NOT_WORD", "CATEGORY_SPACE") else DIGITS
            case "NEGATE":
                pass
            case _:
                return True
    return 0 < len(told) < len(DIGITS)


def loosened(expression: str) -> str | None:
    """The same expression, to which `0` stands for every digit; None where that cannot be written."""
    if OTHERWISE.search(expression):
        return None
    out: list[str] = []
    at = 0
    while at < len(expression):
        c = expression[at]
        step = GROUP.match(expression, at) if c == "(" else TIMES.match(expression, at) if c == "{" else None
        if step is not None:
            out.append(step[0])
            at = step.end()
        elif c == "\\":
            if expression[at + 1 : at + 2] not in PLAIN_ESCAPES:
                return None  # a number of a group, of a character: whatever it means, it is no such digit
            out.append(expression[at : at + 2])
            at += 2
        elif c == "[":
            stop = _class_end(expression, at)
            members = expression[at:stop]
            try:
                told = sum(re.fullmatch(members, d) is not None for d in "0123456789")
            except re.error:
                return None
            out.append(f"(?:{members}|0)" if 0 < told < len(DIGITS) else members)
            at = stop
        else:
            out.append("0" if c.isascii() and c.isdigit() else c)
            at += 1
    return "".join(out)


def _class_end(expression: str, at: int) -> int:
    """Behind the bracket that closes the class which begins here; a bracket that stands first in it is one of its members."""
    at += 2 if expression[at + 1 : at + 2] == "^" else 1
    at += expression[at : at + 1] == "]"
    while at < len(expression) and expression[at] != "]":
        at += 2 if expression[at] == "\\" else 1
    return at + 1
