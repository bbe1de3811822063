"""A window that is over tells what it told before it was sealed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from defib.engine.cells import Cell, opened, sealed
from defib.engine.sketch import Sketch

NUMBERS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(1, 2**40)
BINS = st.dictionaries(st.integers(-30_000, 40_000), COUNTS, max_size=40)


def sketch(bins: dict[int, int]) -> Sketch:
    return Sketch(dict(bins), sum(bins.values()))


@given(BINS)
def test_a_sketch_comes_back(bins: dict[int, int]) -> None:
    assert Sketch.from_bytes(sketch(bins).to_bytes()) == sketch(bins)


@given(
    st.builds(
        Cell,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        st.floats(allow_nan=False),
        NUMBERS,
        st.none() | NUMBERS,
        BINS.map(sketch),
        st.dictionaries(st.integers(0, 2**31 - 1), st.tuples(NUMBERS, COUNTS), max_size=8),
    )
)
def test_a_cell_comes_back(cell: Cell) -> None:
    raw = sealed(cell)
    assert raw is not None
    assert opened(raw) == cell


def test_a_number_too_large_stays_open() -> None:
    assert sealed(Cell(tokens=2**63)) is None
    assert sealed(Cell(by_rank={0: (2**63, 1)})) is None
