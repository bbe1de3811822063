"""Hits -> SIGNALS rows: where the line stands, who printed it, what the rule captured.

Captures are taken per rule in one vectorized call over the records it hit; Python touches a row only to pack its rarer captures into
`fields` (JSON with sorted keys).
"""

from __future__ import annotations

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

from defib.engine.blocks import I64, Batch
from defib.engine.columns import texts
from defib.engine.rulebook import Rulebook
from defib.engine.scan import Hits
from defib.engine.stamps import stamps, yearless
from defib.engine.who import Who
from defib.engine.words import SIGNALS, TEXT_BYTES_MAX

TEXT_CHARS_BEFORE = 200  # of a long line kept in front of the place the rule speaks of
LONG = ("rank", "local_rank")


class SignalReader:
    """Turns hits into SIGNALS rows."""

    def __init__(self, book: Rulebook) -> None:
        self._rules = book.rules
        self._who = Who(book.prefixes)

    def read(self, batch: Batch, hits: Hits) -> pa.Table:
        """SIGNALS rows in (record, rule) order."""
        if not len(hits.rule):
            return SIGNALS.empty_table()
        unique, back = np.unique(hits.record, return_inverse=True)
        text = texts(pa.array([batch.text(r) for r in unique.tolist()], pa.large_binary()))
        stream, offset, line = batch.place(unique)
        who = self._who.of(text)
        frame = pl.DataFrame(
            {
                "stream": pl.Series(stream, dtype=pl.UInt32), "offset": offset, "line": line, "time_us": stamps(text), "year_us": yearless(text),
                "rank": who["rank"], "local_rank": who["local_rank"], "node": who["node"], "task": who["task"], "text": text,
            }
        )[back]  # fmt: skip
        fields = self._fields(hits.rule, frame["text"], frame["task"])
        taken = self._own(frame, fields)
        return pa.table(
            {
                **{name: frame[name].to_arrow() for name in ("stream", "offset", "line", "time_us", "year_us")},
                "rule": [self._rules[i].id for i in hits.rule.tolist()], **taken,
                "fields": [orjson.dumps(f, option=orjson.OPT_SORT_KEYS).decode() for f in fields],
                "text": [shorten(t) for t in frame["text"].to_list()],
            }
        ).select(SIGNALS.names).cast(SIGNALS)  # fmt: skip

    def _fields(self, rule: I64, text: pl.Series, task: pl.Series) -> list[dict[str, str]]:
        out: list[dict[str, str]] = [{} for _ in range(len(rule))]
        for code in np.unique(rule).tolist():
            patterns = self._rules[code].extract
            if not patterns:
                continue
            rows = np.flatnonzero(rule == code)
            part = text.gather(rows)
            for pattern in patterns:
                groups = part.str.extract_groups(pattern).struct.unnest()
                for name in groups.columns:
                    for row, value in zip(rows.tolist(), groups[name].to_list(), strict=True):
                        if value is not None:
                            out[row].setdefault(name, value[:200])
        for i, t in enumerate(task.to_list()):
            if t is not None:
                out[i].setdefault("task", str(t))
        return out

    @staticmethod
    def _own(frame: pl.DataFrame, fields: list[dict[str, str]]) -> dict[str, list[object]]:
        """Captures with a column of their own win over the prefix."""
        ranks: dict[str, list[object]] = {}
        for name in LONG:
            column: list[object] = frame[name].to_list()
            for i, f in enumerate(fields):
                value = f.pop(name, None)
                if value is not None and value.isascii() and value.isdigit() and len(value) < 9:
                    column[i] = int(value)
            ranks[name] = column
        node: list[object] = frame["node"].to_list()
        for i, f in enumerate(fields):
            node[i] = f.pop("node", None) or node[i]
        return {**ranks, "node": node}


def shorten(text: str, limit: int = TEXT_BYTES_MAX) -> str:
    """At most `limit` characters; the end of a long line is the telling part (what came before is mostly a progress bar)."""
    return (
        text if len(text) <= limit else text[:TEXT_CHARS_BEFORE] + " [...] " + text[-(limit - TEXT_CHARS_BEFORE - 7) :]
    )
