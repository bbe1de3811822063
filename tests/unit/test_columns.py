"""columns: lossy text, numbers as people print them, durations as clocks, and rates that flip their unit."""

from __future__ import annotations

import math

import polars as pl
import pyarrow as pa
import pytest

from defib.engine.columns import clock_seconds, numbers, texts
from defib.engine.units import seconds_per_step, unit_of, values


def test_bytes_that_are_not_utf8_become_replacement_characters_and_one_line_end_goes() -> None:
    raw = pa.array([b"ok\n", b"caf\xe9\n", b"", b"a\n\n", "é".encode()], pa.large_binary())
    assert texts(raw).to_list() == ["ok", "caf\ufffd", "", "a\n", "é"]
    assert texts(pa.array([b"ok\n"], pa.large_binary())).to_list() == ["ok"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("12", 12.0), ("1,234,567", 1234567.0), ("-1.5e-3", -0.0015), ("12.3K", 12300.0), ("1k", 1000.0), ("2M", 2e6), ("1.5B", 1.5e9),
        ("3G", 3e9), ("2T", 2e12), (" 7 ", 7.0), ("7_", 7.0), ("inf", math.inf), ("1.2.3", None), ("1.2.3K", None), ("K", None), ("abc", None),
        ("", None), (None, None), ("12x", None), ("5 K", None),
    ],
)  # fmt: skip
def test_numbers_as_people_print_them(text: str | None, wanted: float | None) -> None:
    assert numbers(pl.Series([text], dtype=pl.String)).to_list() == [wanted]


def test_nan_is_a_number_that_was_printed() -> None:
    (value,) = numbers(pl.Series(["nan"])).to_list()
    assert math.isnan(value)


def test_numbers_of_a_column_do_not_disturb_each_other() -> None:
    assert numbers(pl.Series(["1", "2K", None, "x", "3,000"])).to_list() == [1.0, 2000.0, None, None, 3000.0]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("01:30", 90.0), ("1:02:03", 3723.0), ("100:00:00", 360000.0), ("2 days, 3:04:05", 183845.0), ("1 day, 0:00:01", 86401.0),
        ("?", None), ("90", None), ("", None), (None, None),
    ],
)  # fmt: skip
def test_clock_like_durations(text: str | None, wanted: float | None) -> None:
    assert clock_seconds(pl.Series([text], dtype=pl.String)).to_list() == [wanted]


@pytest.mark.parametrize(
    ("rate", "unit", "wanted"),
    [
        ("4", "it/s", 0.25), ("2.5", "s/it", 2.5), ("4", "ex/s", 0.25), ("0", "it/s", None), ("?", "it/s", None), ("2", "it", None),
        ("2", None, None), ("1,000", "it/s", 0.001),
    ],
)  # fmt: skip
def test_rates_flip_with_their_unit(rate: str, unit: str | None, wanted: float | None) -> None:
    value, there = seconds_per_step(*values(numbers(pl.Series([rate]))), unit_of(pl.Series([unit], dtype=pl.String)))
    assert (value.item() if there.item() else None) == wanted
