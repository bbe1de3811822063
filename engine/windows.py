"""Throughput windows: tumbling spans of a run's own clock with what happened in each.

The clock is event time where progress lines carry stamps, else the step clock (running sum of printed step times). Windows are
`WIDTH_S` wide and double when a run has more than `CELLS_MAX` of them, so memory is bounded; the result does not depend on grouping.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from defib.engine.cells import Cell, opened, sealed

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
WIDTH_S = 300.0
CELLS_MAX = 1024  # three and a half days; sealed they are 0.3 MB, and a watch may follow thousands of counters
RANKS_MAX = 512
RANK_CELLS_MAX = 1 << 17
FARTHEST = 2.0**53  # absurd numbers in logs add up to clocks that no index can count; they all share a window
TOKENS_MAX = 2**63 - 1

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


def places(at_s: F64, width_s: float) -> I64:
    """Number of the window of this width that each moment lies in."""
    return np.clip(np.floor(at_s / width_s), -FARTHEST, FARTHEST).astype(np.int64)


def place(at_s: float, width_s: float) -> int:
    """The same of one moment."""
    return math.floor(min(max(at_s / width_s, -FARTHEST), FARTHEST))


class Windows:
    """Folds points of one counter in order."""

    def __init__(self) -> None:
        self.width_s = WIDTH_S
        self._cells: dict[int, Cell | bytes] = {}  # windows that are over are sealed: a run may last for weeks
        self._open: list[int] = []  # those that are not, oldest first
        self._last_s: float | None = None
        self.rank_numbers: set[int] = set()

    def add(self, at_s: F64, steps: I64, step_s: F64, ahead: I64 | None = None, tokens: F64 | None = None) -> None:
        """Points in order: clock, step, seconds per step (NaN where unknown), steps forward, tokens in them (NaN where unknown)."""
        if not len(at_s):
            return
        before = np.concatenate(([self._last_s if self._last_s is not None else at_s[0]], at_s[:-1]))
        gaps = np.maximum(at_s - before, 0.0)
        index = places(at_s, self.width_s)
        cuts = (index[1:] != index[:-1]).nonzero()[0] + 1
        for lo, hi in zip([0, *cuts.tolist()], [*cuts.tolist(), len(index)], strict=True):
            cell = Cell(hi - lo, int(steps[lo:hi].min()), int(steps[lo:hi].max()), float(gaps[lo:hi].max()))
            cell.steps.add(step_s[lo:hi])
            if ahead is not None:
                cell.forward = int(ahead[lo:hi].sum())
            if tokens is not None and np.isfinite(tokens[lo:hi]).any():
                # As whole numbers: a sum of large floats depends on how rows were grouped.
                cell.tokens = sum(map(int, tokens[lo:hi][np.isfinite(tokens[lo:hi])].tolist()))
            self._at(int(index[lo])).merge(cell)
        self._last_s = float(at_s[-1])
        self._bound()

    def one(self, at_s: float, step: int, step_s: float, ahead: int, tokens: float) -> None:
        """The same as `add` for one point."""
        gap = max(at_s - (self._last_s if self._last_s is not None else at_s), 0.0)
        cell = self._at(place(at_s, self.width_s))
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
        index = places(at_s[told], self.width_s)
        for i, rank, seconds in zip(index.tolist(), ranks[told].tolist(), step_s[told].tolist(), strict=True):
            self._rank(i, rank, seconds)
        self._bound()

    def rank(self, at_s: float, rank: int, step_s: float) -> None:
        """The same as `ranks` for one row."""
        if rank >= 0 and math.isfinite(step_s):
            self._rank(place(at_s, self.width_s), rank, step_s)
            self._bound()

    def _rank(self, index: int, rank: int, seconds: float) -> None:
        if rank not in self.rank_numbers:
            if len(self.rank_numbers) >= RANKS_MAX:
                return
            self.rank_numbers.add(rank)
        cell = self._at(index)
        have = cell.by_rank.get(rank, (0, 0))
        cell.by_rank[rank] = (have[0] + round(seconds * 1e6), have[1] + 1)

    def __len__(self) -> int:
        """How many windows something happened in."""
        return len(self._cells)

    def each(self) -> Iterator[tuple[int, Cell]]:
        """(number, what happened) of every window in time order, to read."""
        for i in sorted(self._cells):
            cell = self._cells[i]
            yield i, opened(cell) if isinstance(cell, bytes) else cell

    def _bound(self) -> None:
        while len(self._cells) > CELLS_MAX or len(self._cells) * len(self.rank_numbers) > RANK_CELLS_MAX:
            self._double()

    def _at(self, index: int) -> Cell:
        """The window to add to. One that was sealed (a clock went back, a straggler spoke late) is opened until the next one begins."""
        cell = self._cells.get(index)
        if isinstance(cell, Cell):
            return cell
        made = Cell() if cell is None else opened(cell)
        self._cells[index] = made
        if cell is None:
            self._seal()
        self._open.append(index)
        return made

    def _seal(self) -> None:
        """All but the last of the open windows are over, as far as anyone knows."""
        last = max(self._open, default=0)
        for i in self._open:
            cell = self._cells[i]
            if i != last and isinstance(cell, Cell):
                self._cells[i] = sealed(cell) or cell
        self._open = [last] if self._open else []

    def _double(self) -> None:
        old, self._cells, self._open = list(self.each()), {}, []
        self.width_s *= 2
        for index, cell in old:
            self._at(index // 2).merge(cell)

    def rows(self, attempt_id: str, stream_id: str, format_id: str, clock: str) -> list[dict[str, object]]:
        """WINDOWS rows in time order."""
        out: list[dict[str, object]] = []
        for i, c in self.each():
            if not c.points:
                continue
            means = c.rank_means() if len(c.by_rank) > 1 else {}
            slowest = max(means, key=lambda r: (means[r], -r), default=None)
            out.append(
                {
                    "attempt_id": attempt_id, "stream_id": stream_id, "format": format_id, "clock": clock,
                    "start_s": i * self.width_s, "width_s": self.width_s, "points": c.points, "first_step": c.first_step,
                    "last_step": c.last_step, "steps": c.forward, "tokens": None if c.tokens is None else min(c.tokens, TOKENS_MAX),
                    "median_step_s": c.steps.quantile(0.5), "p90_step_s": c.steps.quantile(0.9), "longest_gap_s": c.gap_s,
                    "ranks": len(means) or None, "rank_median_s": float(np.median(list(means.values()))) if means else None,
                    "slowest_rank": slowest, "slowest_rank_s": means[slowest] if slowest is not None else None,
                }
            )  # fmt: skip
        return out
