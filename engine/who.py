"""Who printed a record: the launcher prefixes in front of it -> rank, local rank, node, task, pid.

Prefixes stack (`12: [rank3]: …`), so up to `ROUNDS` of them are peeled off, first match of the book's order in each round.
`task` is srun's task number, which is the global rank only with one task per GPU; it is kept apart from `rank`.
"""

from __future__ import annotations

import re

import polars as pl

from defib.engine.columns import nothing
from defib.engine.rulebook import Template

ROUNDS = 3
NUMBERS = ("rank", "local_rank", "task", "pid")
COLUMNS = (*NUMBERS, "node")
HEAD_CHARS = 200  # prefixes are short; the rest of a line is never looked at


class Who:
    """Prefix forms made ready; `of` reads a column of text. patterns: of the forms; one of them matches the head of a
    record that has a prefix."""

    def __init__(self, prefixes: tuple[Template, ...]) -> None:
        self.patterns = [p.pattern for p in prefixes]
        self._any = "|".join(f"(?:{_unnamed(p)})" for p in self.patterns)

    def of(self, text: pl.Series) -> pl.DataFrame:
        """Columns rank, local_rank, task, pid (Int32) and node (String); null where no prefix tells."""
        found = pl.DataFrame({c: nothing(len(text), pl.String) for c in COLUMNS})
        if self.patterns:
            head = text.str.slice(0, HEAD_CHARS)
            rows = head.str.contains(self._any).arg_true()
            if len(rows):
                part = self._peel(head.gather(rows))
                found = found.with_row_index("i").join(part.with_columns(i=rows), on="i", how="left", suffix="_p")
                found = found.select(pl.col(f"{c}_p").alias(c) for c in COLUMNS)
        return found.with_columns(pl.col(c).cast(pl.Int32, strict=False) for c in NUMBERS)

    def _peel(self, head: pl.Series) -> pl.DataFrame:
        have: dict[str, pl.Series] = {c: nothing(len(head), pl.String) for c in COLUMNS}
        for _ in range(ROUNDS):
            left = head
            done = pl.Series([False] * len(head))
            for pattern in self.patterns:
                hit = head.str.contains(pattern) & ~done
                if not hit.any():
                    continue
                groups = head.str.extract_groups(pattern).struct.unnest()
                for c in set(groups.columns) & set(COLUMNS):
                    frame = pl.DataFrame({"old": have[c], "new": groups[c], "hit": hit})
                    have[c] = frame.select(pl.coalesce("old", pl.when("hit").then("new"))).to_series()
                frame = pl.DataFrame({"old": left, "new": head.str.replace(pattern, ""), "hit": hit})
                left = frame.select(pl.when("hit").then("new").otherwise("old")).to_series()
                done = done | hit
            if not done.any():
                break
            head = left
        return pl.DataFrame(have)


def _unnamed(pattern: str) -> str:
    """The pattern without group names, so that several can stand in one alternation."""
    return re.sub(r"\(\?P?<[A-Za-z_]\w*>", "(?:", pattern)
