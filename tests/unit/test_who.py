"""who: launcher prefixes -> rank, local rank, node, task and pid; null where none tells."""

from __future__ import annotations

import polars as pl
import pytest
from tests.conftest import Kit

from defib.engine.rulebook import Template
from defib.engine.who import Who

SOME = (
    Template("rank", "t", r"^\[rank(?P<rank>\d+)\]: ?"),
    Template("task", "t", r"^ *(?P<task>\d{1,5}): "),
    Template("host", "t", r"^(?P<node>[a-z]+\d+)\[(?P<pid>\d+)\] "),
    Template("local", "t", r"^\((?P<local_rank>\d+)\) "),
)


def who(lines: list[str], templates: tuple[Template, ...] = SOME) -> list[dict[str, object]]:
    found = Who(templates).of(pl.Series(lines, dtype=pl.String)).rows(named=True)
    return [{k: v for k, v in row.items() if v is not None} for row in found]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("[rank3]: x", {"rank": 3}),
        ("12: [rank3]: x", {"task": 12, "rank": 3}),
        ("node7[99] 12: [rank3]: x", {"node": "node7", "pid": 99, "task": 12, "rank": 3}),
        ("(2) x", {"local_rank": 2}),
        ("x [rank3]: y", {}),
        ("[rank3]: [rank4]: x", {"rank": 3}),
        ("[rank99999999999]: x", {}),
        ("", {}),
    ],
)
def test_prefixes_are_peeled_from_the_left_and_the_first_word_stands(line: str, wanted: dict[str, object]) -> None:
    assert who([line]) == [wanted]


def test_at_most_three_prefixes_are_peeled() -> None:
    assert who(["1: 2: 3: [rank4]: x"]) == [{"task": 1}]
    assert who(["1: 2: [rank4]: x"]) == [{"task": 1, "rank": 4}]


def test_lines_of_one_column_do_not_disturb_each_other() -> None:
    lines = ["x", "12: [rank3]: x", "[rank3]: x", "", "(2) x", "node7[99] 12: [rank3]: x", "1: 2: 3: [rank4]: x"]
    assert who(lines) == [who([line])[0] for line in lines]


def test_the_first_matching_form_of_the_book_wins_a_round() -> None:
    first = Template("a", "t", r"^(?P<rank>\d+): ")
    assert who(["7: x"], (first, *SOME)) == [{"rank": 7}]
    assert who(["7: x"], (*SOME, first)) == [{"task": 7}]


def test_only_the_head_of_a_line_is_looked_at() -> None:
    assert who([" " * 300 + "12: x"]) == [{}]


def test_without_forms_nothing_is_known() -> None:
    assert who(["12: x"], ()) == [{}]


def test_both_spellings_of_named_groups_work_in_two_forms_at_once() -> None:
    """Rust's regex (and our checks) accept (?<name>…) as well as (?P<name>…)."""
    angled = (Template("a", "t", r"^\[r(?<rank>\d+)\] "), Template("b", "t", r"^<r(?<rank>\d+)> "))
    assert who(["[r1] x", "<r2> x"], angled) == [{"rank": 1}, {"rank": 2}]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("[rank13]: ValueError: x", {"rank": 13}),
        (" 3: [default1]:step", {"task": 3, "local_rank": 1}),
        ("[1,23]<stdout>:step=10", {"rank": 23}),
        ("ValueError: rank 3", {}),
        ("12:34:56 started", {}),
    ],
)
def test_the_shipped_forms(shipped: Kit, line: str, wanted: dict[str, object]) -> None:
    assert who([line], shipped.book.prefixes) == [wanted]
