"""sketch: quantiles of bounded memory, true to 0.05 %."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from defib.engine.sketch import Sketch


def sketch(*values: float) -> Sketch:
    s = Sketch()
    s.add(np.array(values, np.float64))
    return s


def test_without_values_there_is_no_quantile() -> None:
    assert Sketch().quantile(0.5) is None
    assert sketch(0.0, -1.0, math.nan, math.inf, -math.inf).quantile(0.5) is None


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=60), st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_a_quantile_is_near_the_lower_quantile_of_the_values(values: list[float], q: float) -> None:
    wanted = sorted(values)[math.floor(q * (len(values) - 1))]
    got = sketch(*values).quantile(q)
    assert got == pytest.approx(wanted, rel=6e-4)


def test_counts_leave_out_what_is_no_duration() -> None:
    assert sketch(1.0, math.nan, 2.0, -3.0).count == 2


def test_memory_is_bounded_by_bins_and_merging_adds_counts() -> None:
    a = sketch(*np.geomspace(1e-6, 1e6, 50_000))
    assert len(a.bins) < 28_000
    b = sketch(1.0, 1.0)
    b.merge(sketch(1.0, 5.0))
    assert b.count == 4
    assert sum(b.bins.values()) == 4
    assert b.quantile(0.5) == pytest.approx(1.0, rel=1e-3)


@given(st.lists(st.floats(1e-6, 1e9), max_size=60), st.lists(st.floats(1e-6, 1e9), max_size=5))
def test_packing_loses_nothing(values: list[float], later: list[float]) -> None:
    plain = sketch(*values)
    packed = Sketch.from_bytes(plain.to_bytes())
    for q in (0.0, 0.5, 1.0):
        assert packed.quantile(q) == plain.quantile(q)
    for value in later:
        plain.one(value)
        packed.one(value)
    assert packed.bins == plain.bins
    assert packed.count == plain.count


def test_a_bin_of_very_many_values_is_packed_too() -> None:
    s = sketch(1.0, 2.0)
    s.bins[0] = 1 << 40
    assert Sketch.from_bytes(s.to_bytes()).bins == {0: 1 << 40, 693: 1}
