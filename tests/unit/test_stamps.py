"""stamps: full time stamps of lines as microseconds UTC, and those without a year as time since it began."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from defib.engine.stamps import stamps, yearless


def us(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp()) * 1_000_000  # type: ignore[arg-type,misc]


T = us(2026, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("2026-01-02T03:04:05Z x", T),
        ("2026-01-02 03:04:05,678 - root - INFO", T + 678_000),
        ("[2026-01-02 03:04:05.123456789]", T + 123_456),
        ("2026/01/02 03:04:05 x", T),
        ("2026-01-02, 03:04:05", T),
        ("2026-01-02T03:04:05.5+02:00 x", T + 500_000 - 7_200_000_000),
        ("2026-01-02T03:04:05-0730 x", T + 27_000_000_000),
        ("glued 50%2026-01-02 03:04:05", T),
        ("01/02/2026 03:04:05 - INFO", T),
        ("[01/02/2026, 03:04:05.25]", T + 250_000),
        (':::MLLOG {"time_ms": 1767323045123, "key": "x"}', 1_767_323_045_123_000),
        ("2024-02-29 00:00:00", us(2024, 2, 29)),
        ("1999-12-31 23:59:59", us(1999, 12, 31, 23, 59, 59)),
        ("2026-13-02 03:04:05", None),
        ("2026-00-02 03:04:05", None),
        ("2026-01-00 03:04:05", None),
        ("I0102 03:04:05.678 x", None),
        ("Jan  2 03:04:05 host", None),
        ("03:04:05", None),
        ("2026-01-02", None),
        ("", None),
        (None, None),
    ],
)
def test_a_full_stamp_is_read_and_nothing_is_guessed(line: str | None, wanted: int | None) -> None:
    assert stamps(pl.Series([line], dtype=pl.String)).to_list() == [wanted]


def test_every_line_of_a_column_is_read_by_itself() -> None:
    lines = ["x", "2026-01-02 03:04:05", '"time_ms": 1767323045123', "01/02/2026 03:04:05", "2026-02-31 00:00:00"]
    alone = [stamps(pl.Series([line])).to_list()[0] for line in lines]
    assert stamps(pl.Series(lines)).to_list() == alone
    assert stamps(pl.Series([], dtype=pl.String)).to_list() == []


@given(st.datetimes(datetime(1970, 1, 1), datetime(2099, 12, 31)))  # noqa: DTZ001
def test_dates_agree_with_the_standard_library(when: datetime) -> None:
    wanted = int(when.replace(tzinfo=UTC, microsecond=0).timestamp()) * 1_000_000 + when.microsecond
    assert stamps(pl.Series([f"{when:%Y-%m-%d %H:%M:%S.%f} x"])).to_list() == [wanted]


DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("I0102 03:04:05.678901 99 x.cc:1]", DAY + 11_045_678_901),
        ("[E1231 00:00:00 ProcessGroupNCCL.cpp:1]", 365 * DAY),
        ("W0229 00:00:00.5 x", 59 * DAY + 500_000),
        ("Jan  2 03:04:05 host kernel: x", DAY + 11_045_000_000),
        ("Mar 1 00:00:00 host", 60 * DAY),
        ("on Jan  2 03:04:05", None),
        ("I1302 03:04:05 x", None),
        ("2026-01-02 03:04:05", None),
        ("x", None),
    ],
)
def test_a_stamp_without_a_year_counts_from_the_first_moment_of_a_leap_year(line: str, wanted: int | None) -> None:
    assert yearless(pl.Series([line, "x"])).to_list() == [wanted, None]
