"""What happened in one window of a run, and the same in a few hundred bytes once the window is over.

Always holds: `opened(sealed(cell))` equals the cell, so what a window tells does not depend on when it was sealed.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from dataclasses import dataclass, field

from defib.engine.sketch import Sketch

# points, first and last step, longest gap, steps forward, tokens, whether any are known, bytes of the sketch; then the sketch, then three
# numbers of eight bytes for each rank.
_HEAD = struct.Struct("<qqqdqq?I")


@dataclass(slots=True)
class Cell:
    """What happened in one window."""

    points: int = 0
    first_step: int = 0
    last_step: int = 0
    gap_s: float = 0.0
    forward: int = 0
    tokens: int | None = None
    steps: Sketch = field(default_factory=Sketch)
    by_rank: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # (sum of microseconds per step, rows): sums of integers do not depend on order

    def merge(self, later: Cell) -> None:
        if not self.points:
            self.first_step, self.last_step = later.first_step, later.last_step
        elif later.points:
            self.first_step = min(self.first_step, later.first_step)
            self.last_step = max(self.last_step, later.last_step)
        self.points += later.points
        self.gap_s = max(self.gap_s, later.gap_s)
        self.forward += later.forward
        if later.tokens is not None:
            self.tokens = (self.tokens or 0) + later.tokens
        self.steps.merge(later.steps)
        for rank, (micros, rows) in later.by_rank.items():
            have = self.by_rank.get(rank, (0, 0))
            self.by_rank[rank] = (have[0] + micros, have[1] + rows)

    def rank_means(self) -> dict[int, float]:
        """Seconds per step of every rank that printed its own."""
        return {rank: micros / 1e6 / rows for rank, (micros, rows) in sorted(self.by_rank.items())}


def sealed(cell: Cell) -> bytes | None:
    """The cell in a few hundred bytes; None where a number is too large for that, as only an absurd log makes it."""
    sketch = cell.steps.to_bytes()
    ranks = itertools.chain.from_iterable((rank, *told) for rank, told in cell.by_rank.items())
    try:
        return (
            _HEAD.pack(
                cell.points, cell.first_step, cell.last_step, cell.gap_s, cell.forward, cell.tokens or 0,
                cell.tokens is not None, len(sketch),
            )
            + sketch
            + array("q", ranks).tobytes()
        )  # fmt: skip
    except (struct.error, OverflowError):
        return None


def opened(raw: bytes) -> Cell:
    """What `sealed` made it from."""
    points, first, last, gap_s, forward, tokens, known, size = _HEAD.unpack_from(raw)
    end = _HEAD.size + size
    numbers = array("q")
    numbers.frombytes(raw[end:])
    flat = iter(numbers)
    return Cell(
        points, first, last, gap_s, forward, tokens if known else None, Sketch.from_bytes(raw[_HEAD.size : end]),
        {rank: (micros, rows) for rank, micros, rows in zip(flat, flat, flat, strict=True)},
    )  # fmt: skip
