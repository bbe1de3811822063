"""What pydantic says of a file's shape -> `Problem`s a person can mend.

In: a file with positions and a `ValidationError`. Out: one problem per fault, at the line and column of the value (or of its nearest
parent), with the rule it belongs to and the mend. Shared by rule files and policy files.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError

from defib.engine.words import Problem

Loc = tuple[Any, ...]
Tell = Callable[[Loc, str, str], Problem]  # (place, message, mend) -> the problem there
Keys = Callable[[Loc], Iterable[str]]  # a place -> the keys its mapping may have
FORMS = {
    "string_type": "a text is wanted",
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type"), "a list is wanted, such as [a, b]"),
    **dict.fromkeys(
        ("dict_type", "model_type", "dataclass_type", "dataclass_exact_type", "model_attributes_type"),
        "a mapping is wanted: 'key: value' on lines of their own below it",
    ),
}


def problems_of(error: ValidationError, tell: Tell, keys: Keys) -> list[Problem]:
    """Every fault of one file. tell makes a problem at a place of the file; keys: those the shape knows of the mapping at a place."""
    return [_problem(dict(e), tell, keys) for e in error.errors()]


def _problem(err: dict[str, Any], tell: Tell, keys: Keys) -> Problem:
    loc, kind, value = tuple(err["loc"]), err["type"], err.get("input")
    key = _named(loc)
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return tell(loc, f"unknown key '{key}'", _known(key, sorted(set(keys(loc[:-1])))))
    if kind in FORMS:
        return tell(loc, f"'{key}' is {_kind(value)}", FORMS[kind])
    if kind == "missing":
        return tell(loc[:-1], f"'{key}' is missing", f"add '{key}: …'")
    if kind == "literal_error":
        return _literal(err, loc, key, tell)
    if kind == "too_short":
        if isinstance(value, dict):
            return tell(
                loc, f"'{key}' has {len(value)} entries", "give every one of them; a lacking number is no number"
            )
        return tell(loc, f"'{key}' is empty", "a rule proves itself: give at least one example")
    if kind == "string_pattern_mismatch":
        return tell(loc, f"'{key}' is '{value}'", "lower case letters, digits, dots and dashes only")
    if kind in ("float_parsing", "int_parsing"):
        return tell(
            loc, f"'{key}' is '{value}'", "a number is wanted" if kind[0] == "f" else "a whole number is wanted"
        )
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"):
        return tell(loc, f"'{key}' is {value}", err["msg"][:1].lower() + err["msg"][1:])
    return tell(loc, f"'{key}': {err['msg']}", "see rules/README.md for the form of this key")


def _literal(err: dict[str, Any], loc: Loc, key: str, tell: Tell) -> Problem:
    """A word that is not one of those allowed; in a mapping it may be the key."""
    expected = err["ctx"]["expected"]
    close = near(str(err["input"]), re.findall(r"'([^']+)'", expected))
    mend = f"expected {expected}" + (f"; {close}" if close else "")
    if key == "[key]":
        return tell(loc[:-1], f"unknown key '{err['input']}'", mend)
    return tell(loc, f"'{key}' is '{err['input']}'", mend)


def _named(loc: Loc) -> str:
    """The key at a place; of an entry in a list also which."""
    if len(loc) > 1 and isinstance(loc[-1], int):
        return f"{loc[-2]}, entry {loc[-1] + 1}"
    return str(loc[-1]) if loc else ""


def _kind(value: Any) -> str:
    if value in (None, ""):
        return "empty"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"'{value}'"


def _known(word: str, known: list[str]) -> str:
    """The nearest of the keys that may stand there, and all of them."""
    guess = near(word, known)
    return (f"{guess} " if guess else "") + (f"known here: {', '.join(known)}" if known else "remove it")


def near(word: str, known: list[str]) -> str:
    """`did you mean …?`, or nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean '{close[0]}'?" if close else ""
