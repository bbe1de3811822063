"""Throughput windows: tumbling spans of a run's own clock with what happened in each.

The clock is event time where progress lines carry stamps, else the step clock (running sum of printed step times). Windows are
`WIDTH_S` wide and double when a run has more than `CELLS_MAX` of them, so memory is bounded; the result does not depend on grouping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from defib.engine.sketch import Sketch

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
WIDTH_S = 300.0
CELLS_MAX = 2048
RANKS_MAX = 512
RANK_CELLS_MAX = 1 << 17

# One row per window of an attempt's counter. start_s: seconds on `clock` (Unix seconds for event, since the first step for step).
# steps: steps forward; tokens: where the throughput of the whole run is printed; ranks: those that printed seconds per step of their own, the
# median of their means and the slowest of them (null unless several do).
WINDOWS = pa.schema(
    [
        ("attempt_id", pa.string()), ("stream_id", pa.string()), ("format", pa.string()), ("clock", pa.string()),
        ("start_s", pa.float64()), ("width_s", pa.float64()), ("points", pa.int64()), ("first_step", pa.int64()),
        ("last_step", pa.int64()), ("steps", pa.int64()), ("tokens", pa.int64()), ("median_step_s", pa.float64()),
        ("p90_step_s", pa.float64()), ("longest_gap_s", pa.float64()), ("ranks", pa.int64()), ("rank_median_s", pa.float64()),
        ("slowest_rank", pa.int32()), ("slowest_rank_s", pa.float64()),
    ]
)  # fmt: skip


@dataclass(slots=True)
class Cell:
    """What happened in one window."""

    points: int
    first_step: int
    last_step: int
    gap_s: float
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


class Windows:
    """Folds points of one counter in order."""

    def __init__(self) -> None:
        self.width_s = WIDTH_S
        self.cells: dict[int, Cell] = {}
        self._last_s: float | None = None
        self._newest: tuple[int | None, int | None] = None, None  # the last two windows; those before them are packed
        self.rank_numbers: set[int] = set()

    def add(self, at_s: F64, steps: I64, step_s: F64, ahead: I64 | None = None, tokens: F64 | None = None) -> None:
        """Points in order: clock, step, seconds per step (NaN where unknown), steps forward, tokens in them (NaN where unknown)."""
        if not len(at_s):
            return
        before = np.concatenate(([self._last_s if self._last_s is not None else at_s[0]], at_s[:-1]))
        gaps = np.maximum(at_s - before, 0.0)
        index = np.floor(at_s / self.width_s).astype(np.int64)
        cuts = (index[1:] != index[:-1]).nonzero()[0] + 1
        for lo, hi in zip([0, *cuts.tolist()], [*cuts.tolist(), len(index)], strict=True):
            cell = Cell(hi - lo, int(steps[lo:hi].min()), int(steps[lo:hi].max()), float(gaps[lo:hi].max()))
            cell.steps.add(step_s[lo:hi])
            if ahead is not None:
                cell.forward = int(ahead[lo:hi].sum())
            if tokens is not None and np.isfinite(tokens[lo:hi]).any():
                # As whole numbers: a sum of large floats depends on how rows were grouped.
                cell.tokens = sum(map(int, tokens[lo:hi][np.isfinite(tokens[lo:hi])].tolist()))
            self._put(int(index[lo]), cell)
        self._last_s = float(at_s[-1])
        self._bound()

    def one(self, at_s: float, step: int, step_s: float, ahead: int, tokens: float) -> None:
        """The same as `add` for one point."""
        gap = max(at_s - (self._last_s if self._last_s is not None else at_s), 0.0)
        index = math.floor(at_s / self.width_s)
        cell = self.cells.get(index)
        if cell is None:
            cell = self._opened(index, Cell(0, step, step, 0.0))
        if not cell.points:
            cell.first_step = cell.last_step = step
        elif step < cell.first_step:
            cell.first_step = step
        elif step > cell.last_step:
            cell.last_step = step
        cell.points += 1
        cell.gap_s = max(cell.gap_s, gap)
        cell.forward += ahead
        cell.steps.one(step_s)
        if math.isfinite(tokens):
            cell.tokens = (cell.tokens or 0) + int(tokens)
        self._last_s = at_s
        self._bound()

    def ranks(self, at_s: F64, ranks: I64, step_s: F64) -> None:
        """Seconds per step as the ranks themselves print them."""
        told = ((ranks >= 0) & np.isfinite(step_s)).nonzero()[0]
        if not len(told):
            return
        index = np.floor(at_s[told] / self.width_s).astype(np.int64)
        for i, rank, seconds in zip(index.tolist(), ranks[told].tolist(), step_s[told].tolist(), strict=True):
            self._rank(i, rank, seconds)
        self._bound()

    def rank(self, at_s: float, rank: int, step_s: float) -> None:
        """The same as `ranks` for one row."""
        if rank >= 0 and math.isfinite(step_s):
            self._rank(math.floor(at_s / self.width_s), rank, step_s)
            self._bound()

    def _rank(self, index: int, rank: int, seconds: float) -> None:
        if rank not in self.rank_numbers:
            if len(self.rank_numbers) >= RANKS_MAX:
                return
            self.rank_numbers.add(rank)
        cell = self.cells.get(index)
        if cell is None:
            cell = self._opened(index, Cell(0, 0, 0, 0.0))
        have = cell.by_rank.get(rank, (0, 0))
        cell.by_rank[rank] = (have[0] + round(seconds * 1e6), have[1] + 1)

    def _bound(self) -> None:
        while len(self.cells) > CELLS_MAX or len(self.cells) * len(self.rank_numbers) > RANK_CELLS_MAX:
            self._double()

    def _put(self, index: int, cell: Cell) -> None:
        have = self.cells.get(index)
        if have is None:
            self._opened(index, cell)
        else:
            have.merge(cell)

    def _opened(self, index: int, cell: Cell) -> Cell:
        """Another window: the one before the last is full, bar a straggler's rows, and a run may last for weeks."""
        self.cells[index] = cell
        former, last = self._newest
        if last is None or index > last:
            if former is not None:
                self.cells[former].steps.pack()
            self._newest = last, index
        return cell

    def _double(self) -> None:
        old, self.cells = self.cells, {}
        self._newest = None, None
        self.width_s *= 2
        for index in sorted(old):
            self._put(index // 2, old[index])

    def rows(self, attempt_id: str, stream_id: str, format_id: str, clock: str) -> list[dict[str, object]]:
        """WINDOWS rows in time order."""
        out: list[dict[str, object]] = []
        for i, c in sorted(self.cells.items()):
            if not c.points:
                continue
            means = c.rank_means() if len(c.by_rank) > 1 else {}
            slowest = max(means, key=lambda r: (means[r], -r), default=None)
            out.append(
                {
                    "attempt_id": attempt_id, "stream_id": stream_id, "format": format_id, "clock": clock,
                    "start_s": i * self.width_s, "width_s": self.width_s, "points": c.points, "first_step": c.first_step,
                    "last_step": c.last_step, "steps": c.forward, "tokens": c.tokens,
                    "median_step_s": c.steps.quantile(0.5), "p90_step_s": c.steps.quantile(0.9), "longest_gap_s": c.gap_s,
                    "ranks": len(means) or None, "rank_median_s": float(np.median(list(means.values()))) if means else None,
                    "slowest_rank": slowest, "slowest_rank_s": means[slowest] if slowest is not None else None,
                }
            )  # fmt: skip
        return out
