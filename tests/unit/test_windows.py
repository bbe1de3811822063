"""windows: tumbling spans of a counter's clock; bounded by doubling their width."""

from __future__ import annotations

import math

import numpy as np
import pytest

from defib.engine import windows
from defib.engine.cells import Cell
from defib.engine.windows import WINDOWS, Windows, place, places


def add(w: Windows, *points: tuple[float, int, float]) -> Windows:
    at, steps, seconds = zip(*points, strict=True)
    w.add(np.array(at), np.array(steps, np.int64), np.array(seconds))
    return w


def test_points_fall_into_spans_of_five_minutes() -> None:
    w = add(Windows(), (600.0, 1, 2.0), (899.0, 2, 4.0), (900.0, 3, 6.0), (1500.0, 4, math.nan))
    rows = w.rows("a", "s", "f", "event")
    assert [set(r) for r in rows] == [set(WINDOWS.names)] * 3
    assert [(r["start_s"], r["points"], r["first_step"], r["last_step"]) for r in rows] == [
        (600, 2, 1, 2),
        (900, 1, 3, 3),
        (1500, 1, 4, 4),
    ]
    assert [r["longest_gap_s"] for r in rows] == [299.0, 1.0, 600.0]
    assert rows[0]["median_step_s"] == pytest.approx(2.0, rel=1e-3)
    assert rows[2]["median_step_s"] is None


def test_the_gap_before_a_batch_counts() -> None:
    w = add(add(Windows(), (0.0, 1, 1.0)), (250.0, 2, 1.0))
    assert w.rows("a", "s", "f", "step")[0]["longest_gap_s"] == 250.0
    assert add(w, (260.0, 3, 1.0)).rows("a", "s", "f", "step")[0]["longest_gap_s"] == 250.0


def test_a_clock_that_goes_back_makes_no_negative_gap() -> None:
    w = add(Windows(), (200.0, 1, 1.0), (100.0, 2, 1.0))
    assert w.rows("a", "s", "f", "event")[0]["longest_gap_s"] == 0.0


def test_too_many_spans_double_their_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "CELLS_MAX", 4)
    w = add(Windows(), *((300.0 * k, k, 1.0) for k in range(10)))
    rows = w.rows("a", "s", "f", "event")
    assert [(r["start_s"], r["width_s"], r["points"]) for r in rows] == [(0, 1200, 4), (1200, 1200, 4), (2400, 1200, 2)]
    assert [(r["first_step"], r["last_step"]) for r in rows] == [(0, 3), (4, 7), (8, 9)]


def test_no_points_change_nothing() -> None:
    w = Windows()
    w.add(np.empty(0), np.empty(0, np.int64), np.empty(0))
    assert w.rows("a", "s", "f", "event") == []


def test_windows_long_over_are_sealed_and_tell_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    w, never = Windows(), Windows()
    rng = np.random.default_rng(1)
    for k in range(400):
        late = 60.0 * float(rng.integers(0, k + 1)) if k % 50 == 0 else None
        for each in (w, never):
            if each is never:
                monkeypatch.setattr(windows, "sealed", lambda cell: None)
            each.one(60.0 * k, k, float(1 + k % 7 / 7), 1, math.nan)
            each.rank(60.0 * k, k % 3, 1.0)
            if late is not None:
                each.one(late, k, 2.0, 0, math.nan)
                each.rank(late, 1, 3.0)
            monkeypatch.undo()
    assert w.rows("a", "s", "f", "event") == never.rows("a", "s", "f", "event")
    assert list(w.each()) == list(never.each())
    assert sum(isinstance(c, Cell) for c in never._cells.values()) == len(never) == len(w)
    assert sum(isinstance(c, Cell) for c in w._cells.values()) <= 3


def test_absurd_numbers_share_the_farthest_window() -> None:
    w, one_by_one = Windows(), Windows()
    rows = [(0.0, 1, 1.0), (1e300, 2, 1.0), (1e308, 3, 1.0)]
    add(w, *rows)
    for at, step, step_s in rows:
        one_by_one.one(at, step, step_s, 0, math.nan)
    assert len(w) == 2
    assert list(w.each()) == list(one_by_one.each())
    assert place(math.inf, 300.0) == int(places(np.array([math.inf]), 300.0)[0])
    assert place(-1e300, 300.0) == int(places(np.array([-1e300]), 300.0)[0])
