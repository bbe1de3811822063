"""Throughput windows: tumbling spans of a run's own clock with what happened in each.

The clock is event time where progress lines carry stamps, else the step clock (running sum of printed step times). Windows are
`WIDTH_S` wide and double when a run has more than `CELLS_MAX` of them, so memory is bounded; the result does not depend on grouping.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from defib.engine.sketch import Sketch

WIDTH_S = 300.0
CELLS_MAX = 2048

# One row per window of an attempt's counter. start_s: seconds on `clock` (Unix seconds for event, since the first step for step).
WINDOWS = pa.schema(
    [
        ("attempt_id", pa.string()), ("stream_id", pa.string()), ("format", pa.string()), ("clock", pa.string()),
        ("start_s", pa.float64()), ("width_s", pa.float64()), ("points", pa.int64()), ("first_step", pa.int64()),
        ("last_step", pa.int64()), ("median_step_s", pa.float64()), ("p90_step_s", pa.float64()), ("longest_gap_s", pa.float64()),
    ]
)  # fmt: skip


@dataclass(slots=True)
class Cell:
    """What happened in one window."""

    points: int
    first_step: int
    last_step: int
    gap_s: float
    steps: Sketch = field(default_factory=Sketch)

    def merge(self, later: Cell) -> None:
        self.points += later.points
        self.first_step = min(self.first_step, later.first_step)
        self.last_step = max(self.last_step, later.last_step)
        self.gap_s = max(self.gap_s, later.gap_s)
        self.steps.merge(later.steps)


class Windows:
    """Folds points of one counter in order."""

    def __init__(self) -> None:
        self.width_s = WIDTH_S
        self.cells: dict[int, Cell] = {}
        self._last_s: float | None = None

    def add(self, at_s: npt.NDArray[np.float64], steps: npt.NDArray[np.int64], step_s: npt.NDArray[np.float64]) -> None:
        """Points in order: clock, step, seconds per step (NaN where unknown)."""
        if not len(at_s):
            return
        before = np.concatenate(([self._last_s if self._last_s is not None else at_s[0]], at_s[:-1]))
        gaps = np.maximum(at_s - before, 0.0)
        index = np.floor(at_s / self.width_s).astype(np.int64)
        cuts = np.flatnonzero(np.diff(index)) + 1
        for lo, hi in zip([0, *cuts.tolist()], [*cuts.tolist(), len(index)], strict=True):
            cell = Cell(hi - lo, int(steps[lo:hi].min()), int(steps[lo:hi].max()), float(gaps[lo:hi].max()))
            cell.steps.add(step_s[lo:hi])
            self._put(int(index[lo]), cell)
        self._last_s = float(at_s[-1])
        while len(self.cells) > CELLS_MAX:
            self._double()

    def _put(self, index: int, cell: Cell) -> None:
        have = self.cells.get(index)
        if have is None:
            self.cells[index] = cell
        else:
            have.merge(cell)

    def _double(self) -> None:
        old, self.cells = self.cells, {}
        self.width_s *= 2
        for index in sorted(old):
            self._put(index // 2, old[index])

    def rows(self, attempt_id: str, stream_id: str, format_id: str, clock: str) -> list[dict[str, object]]:
        """WINDOWS rows in time order."""
        return [
            {
                "attempt_id": attempt_id, "stream_id": stream_id, "format": format_id, "clock": clock,
                "start_s": i * self.width_s, "width_s": self.width_s, "points": c.points, "first_step": c.first_step,
                "last_step": c.last_step, "median_step_s": c.steps.quantile(0.5), "p90_step_s": c.steps.quantile(0.9),
                "longest_gap_s": c.gap_s,
            }
            for i, c in sorted(self.cells.items())
        ]  # fmt: skip
