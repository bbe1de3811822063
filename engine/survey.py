"""What of a log is and is not recognised: the numbers behind `check-log`.

Counts per rule, format and phase, ranks and stamps seen, and the error-looking lines no rule speaks for, grouped by shape. The
error-looking test is deliberately broad: its output is a list for a person who writes rules, never a verdict.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from defib.engine.blocks import Batch
from defib.engine.observe import Observation, Observer
from defib.engine.signals import shorten

LOOKS_BAD = (
    r"(?i)\b(error|exception|fatal|fail(ed|ure)?|abort(ed)?|panic|killed|denied|refused|corrupt(ed)?|timed? ?out|segfault|traceback"
    r"|unreachable|lost)\b"
)
SHAPES_MAX = 5000
VOLATILE = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(slots=True)
class Unknown:
    """Error-looking lines of one shape that no rule speaks for."""

    line: int
    text: str
    count: int = 1


@dataclass(slots=True)
class Survey:
    """Running counts over a log; `add` batch by batch."""

    records: int = 0
    rules: dict[str, int] = field(default_factory=dict)
    first_line: dict[str, int] = field(default_factory=dict)
    formats: dict[str, list[int]] = field(default_factory=dict)  # id -> [lines, first step, last step]
    frameworks: set[str] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    stamped: int = 0
    unstamped: int = 0
    muted: int = 0
    unknown: dict[str, Unknown] = field(default_factory=dict)

    def add(self, observer: Observer, batch: Batch, seen: Observation) -> None:
        """Count what a batch showed."""
        self.records += len(batch.ends)
        for row in seen.signals.to_pylist():
            rule = row["rule"]
            self.rules[rule] = self.rules.get(rule, 0) + 1
            self.first_line.setdefault(rule, row["line"])
            self._who(row["rank"], row["node"], row["time_us"])
        for row in seen.progress.select(["format", "step", "rank", "time_us"]).to_pylist():
            known = self.formats.setdefault(row["format"], [0, row["step"], row["step"]])
            known[0] += 1
            known[2] = row["step"] if row["step"] is not None else known[2]
            self._who(row["rank"], None, row["time_us"])
        for names in seen.frameworks.values():
            self.frameworks |= names
        self._unknown(observer, batch, seen)

    def _who(self, rank: int | None, node: str | None, time_us: int | None) -> None:
        if rank is not None:
            self.ranks.add(rank)
        if node is not None:
            self.nodes.add(node)
        if time_us is None:
            self.unstamped += 1
        else:
            self.stamped += 1

    def _unknown(self, observer: Observer, batch: Batch, seen: Observation) -> None:
        if not len(batch.ends):
            return
        offsets = np.concatenate((np.zeros(1, np.int64), batch.ends + 1))
        records = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(batch.ends), [None, pa.py_buffer(offsets), pa.py_buffer(batch.buffer)]
        )
        bad = np.flatnonzero(pc.match_substring_regex(records, LOOKS_BAD).to_numpy(zero_copy_only=False))
        if not len(bad):
            return
        stream, offset, line = batch.place(bad)
        _, muted, benign = observer.scanner.vetoes(batch, bad)
        quiet = set(muted[benign].tolist())
        self.muted += len(quiet)
        spoken = {
            (s, o) for s, o in zip(seen.signals["stream"].to_pylist(), seen.signals["offset"].to_pylist(), strict=True)
        }
        for record, n, s, o in zip(bad.tolist(), line.tolist(), stream.tolist(), offset.tolist(), strict=True):
            if record in quiet or (s, o) in spoken:
                continue
            text = batch.text(record).decode("utf-8", "replace").strip()
            shape = VOLATILE.sub("#", text)[:200]
            known = self.unknown.get(shape)
            if known is not None:
                known.count += 1
            elif len(self.unknown) < SHAPES_MAX:
                self.unknown[shape] = Unknown(n, shorten(text, 400))
