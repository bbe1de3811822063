"""signals: hits -> SIGNALS rows; captures with their own column win over the prefix, the rest is JSON, unknown is null."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from tests.conftest import CLASSES, PREFIXES, Kit, batch_of, kit

from defib.engine.signals import SignalReader, shorten
from defib.engine.words import SIGNALS, TEXT_BYTES_MAX

RULES = r"""
    family: s
    about: a
    signatures:
      - id: s.a
        title: t
        pattern: ALARM
        extract: ['rank=(?P<rank>\S+)', 'on (?P<node>\S+)', 'pid (?P<pid>\d+)', '(?P<op>op\d)|(?P<path>/\S+)', 'PID (?P<pid>\d+)']
        role: confirm
        hits: [ALARM]
        misses: [x]
      - {id: s.b, title: t, pattern: BELL, role: confirm, hits: [BELL], misses: [x]}
"""


@pytest.fixture(scope="module")
def rules() -> Kit:
    return kit({"classes.yaml": CLASSES, "s.yaml": RULES, "p.yaml": PREFIXES})


def read(made: Kit, *lines: str) -> list[dict[str, Any]]:
    batch = batch_of("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    table = SignalReader(made.book).read(batch, made.scanner().scan(batch))
    assert table.schema == SIGNALS
    return [{**row, "fields": orjson.loads(row["fields"])} for row in table.to_pylist()]


def test_a_bare_line_claims_nothing_but_its_place(rules: Kit) -> None:
    (row,) = read(rules, "x", "BELL")
    wanted = {"stream": 0, "offset": 2, "line": 2, "rule": "s.b", "fields": {}, "text": "BELL"}
    assert row == {**dict.fromkeys(SIGNALS.names), **wanted}


def test_captures_with_a_column_leave_the_fields(rules: Kit) -> None:
    (row,) = read(rules, "12: 2026-01-02 03:04:05 ALARM rank=3 on gpu7 pid 99 op5")
    assert (row["rank"], row["node"], row["time_us"]) == (3, "gpu7", 1767323045000000)
    assert row["fields"] == {"pid": "99", "op": "op5", "task": "12"}


def test_a_capture_wins_over_the_prefix_and_only_where_it_is_one(rules: Kit) -> None:
    rows = read(
        rules, "[rank5]: ALARM rank=3", "[rank5]: ALARM", "[rank5]: ALARM rank=three", "[rank5]: ALARM rank=9999999999"
    )
    assert [r["rank"] for r in rows] == [3, 5, 5, 5]


@pytest.mark.parametrize("rank", ["²", "١", "-1", "3x", ""])
def test_a_rank_that_is_no_plain_number_is_unknown_and_harms_nobody(rules: Kit, rank: str) -> None:
    rows = read(rules, f"ALARM rank={rank}", "ALARM rank=4")
    assert rows[1]["rank"] == 4
    assert rows[0]["rank"] in (None, 1)


def test_each_pattern_is_tried_on_its_own_and_the_first_value_stands(rules: Kit) -> None:
    (row,) = read(rules, "ALARM pid 1 PID 2 /a")
    assert row["fields"] == {"pid": "1", "path": "/a"}
    (row,) = read(rules, "ALARM PID 2")
    assert row["fields"] == {"pid": "2"}


def test_two_rules_on_a_line_take_their_own_captures(rules: Kit) -> None:
    rows = read(rules, "BELL ALARM rank=3")
    assert [(r["rule"], r["rank"]) for r in rows] == [("s.a", 3), ("s.b", None)]


def test_rows_are_in_order_and_do_not_disturb_each_other(rules: Kit) -> None:
    lines = ["ALARM pid 1", "x", "BELL caf\udce9", "[rank1]: ALARM", "ALARM rank=2 on n1"]
    rows = read(rules, *lines)
    assert [r["line"] for r in rows] == [1, 3, 4, 5]
    alone = [{**r, "offset": 0, "line": 0} for line in lines for r in read(rules, line)]
    assert [{**r, "offset": 0, "line": 0} for r in rows] == alone
    assert rows[1]["text"] == "BELL caf\ufffd"


def test_a_batch_without_hits_is_an_empty_table(rules: Kit) -> None:
    assert read(rules, "x") == []


def test_a_long_line_keeps_its_head_and_its_telling_end(rules: Kit) -> None:
    text = "h" * 3000 + "ALARM end"
    assert shorten(text).startswith("h" * 200 + " [...] h")
    assert shorten(text).endswith("ALARM end")
    assert len(shorten(text)) == TEXT_BYTES_MAX
    assert shorten("x" * TEXT_BYTES_MAX) == "x" * TEXT_BYTES_MAX
    assert read(rules, text)[0]["text"] == shorten(text)


def test_captures_are_bounded(rules: Kit) -> None:
    (row,) = read(rules, "ALARM /" + "p" * 5000)
    assert len(row["fields"]["path"]) == 200
