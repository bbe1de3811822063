"""How much work a step holds, by what its log prints."""

from __future__ import annotations

import math

import numpy as np

from defib.engine.points import F64, I64, NONE, ProgressRows, Row
from defib.engine.rulebook import Format

UNDECIDED = 8  # rows forward by which a log has shown whether it tells how much work a step holds


class Work:
    """How much work a step holds, so that a longer sequence or a bigger batch is not taken for a slower run.

    From what the log prints, best first: TFLOP/s per GPU or its share of the peak, tokens/s, tokens so far, samples/s, samples so far.
    Which one is settled by the first of the counter's first rows that has any.
    """

    def __init__(self, fmt: Format) -> None:
        self._rate = (fmt.throughput_unit or "").split("/")[0]
        self._kind: str | None = None
        self._rows = 0
        self._total: tuple[int, float] | None = None

    @property
    def known(self) -> bool:
        """Whether the log tells."""
        return self._kind not in (None, "none")

    def of(self, rows: ProgressRows, at: I64, steps: I64, step_s: F64) -> F64:
        """Work per step of rows, in units of its own: 1 where the log tells nothing of it, NaN where this row does not and others do."""
        if self._kind is None:
            undecided = min(len(at), max(0, UNDECIDED - self._rows))
            self._rows += undecided
            self._kind = self._choose(rows, at[:undecided]) or ("none" if self._rows >= UNDECIDED else None)
            if self._kind is not None:
                self._rows = UNDECIDED
            if self._kind == "none":
                return np.where(np.arange(len(at)) < undecided, np.nan, 1.0)
        match self._kind:
            case "tflops":
                return rows.tflops[at] * step_s
            case "share" | "tokens/s" | "samples/s":
                return rows.throughput[at] * step_s
            case "tokens":
                return self._grown(rows.tokens[at], steps)
            case "samples":
                return self._grown(rows.samples[at], steps)
        return np.full(len(at), np.nan if self._kind is None else 1.0)

    def of_one(self, rows: ProgressRows, at: I64, row: Row, step_s: float) -> float:
        """The same for one row. at: its number in rows."""
        match self._kind:
            case "tflops":
                return row.tflops * step_s
            case "share" | "tokens/s" | "samples/s":
                return row.throughput * step_s
            case "tokens":
                return self._grown_one(row.tokens, row.step)
            case "samples":
                return self._grown_one(row.samples, row.step)
            case "none":
                return 1.0
        return float(self.of(rows, at, np.array([row.step]), np.array([step_s]))[0])

    def _grown_one(self, total: float, step: int) -> float:
        last, self._total = self._total, (step, total)
        if last is None or last[0] == NONE or not (step > last[0] and total > last[1]):
            return math.nan
        return (total - last[1]) / (step - last[0])

    def _choose(self, rows: ProgressRows, at: I64) -> str | None:
        def any_of(values: F64) -> int | None:
            found = (np.isfinite(values) & (values > 0)).nonzero()[0]
            return int(found[0]) if len(found) else None

        rate = any_of(rows.throughput[at]) if self._rate in ("tokens", "samples", "%mfu") else None
        seen = [
            ("tflops", any_of(rows.tflops[at])), ("share", rate if self._rate == "%mfu" else None),
            ("tokens/s", rate if self._rate == "tokens" else None),
            ("tokens", any_of(rows.tokens[at])), ("samples/s", rate if self._rate == "samples" else None),
            ("samples", any_of(rows.samples[at])),
        ]  # fmt: skip
        first = min((i for _, i in seen if i is not None), default=None)
        return next((kind for kind, i in seen if i == first), None) if first is not None else None

    def _grown(self, total: F64, steps: I64) -> F64:
        """Per step, from a running total. The first row says nothing."""
        last = self._total or (NONE, np.nan)
        s = np.concatenate(([last[0]], steps))
        v = np.concatenate(([last[1]], total))
        out = np.full(len(steps), np.nan)
        ok = (s[:-1] != NONE) & (s[1:] > s[:-1]) & (v[1:] > v[:-1])
        out[ok] = (v[1:][ok] - v[:-1][ok]) / (s[1:][ok] - s[:-1][ok])
        if len(steps):
            self._total = (int(s[-1]), float(v[-1]))
        return out
