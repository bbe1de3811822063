"""New rules beside the old ones: both read the same batches, only the old ones speak, and what the new ones would say else is counted.

In: batches. Out: the old rules' observations, and a tally of differences. Always holds: what goes out is what the old observer alone would have
said; the tally is bounded by the number of rules; `observer` is the new one, which has seen every banner the old one has seen since.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa

from defib.engine.blocks import Batch
from defib.engine.core import State
from defib.engine.observe import Observation, Observer
from defib.engine.rulebook import Rulebook


@dataclass(frozen=True, slots=True)
class Difference:
    """A rule or a format that hits other lines than before. more, less: how many lines only the new and only the old rules find."""

    rule: str
    more: int
    less: int


@dataclass(slots=True)
class Shadow:
    """Stands where an observer stood. lines: of the batches both have read; behind that the new one may take over."""

    old: Observer
    observer: Observer
    lines: int = 0
    failed: str | None = None  # the new rules could not read a batch: they must not take over
    _more: Counter[str] = field(default_factory=Counter)
    _less: Counter[str] = field(default_factory=Counter)

    @property
    def book(self) -> Rulebook:
        """The rules that speak."""
        return self.old.book

    def observe(self, batch: Batch) -> Observation:
        """What the old rules say."""
        said = self.old.observe(batch)
        if self.failed is None:
            try:
                self._compare(said, self.observer.observe(batch))
            except Exception as e:  # whatever it is: a trial must not stop the watch
                self.failed = f"{type(e).__name__}: {e}"[:200]
        self.lines += sum(piece.payload.count(b"\n") for piece in batch.pieces)
        return said

    def forget(self, stream: int) -> None:
        """The stream ended."""
        self.old.forget(stream)
        self.observer.forget(stream)

    def differences(self) -> list[Difference]:
        """What the new rules do else, the most first."""
        names = {*self._more, *self._less}
        found = [Difference(n, self._more[n], self._less[n]) for n in names]
        return sorted(found, key=lambda d: (-(d.more + d.less), d.rule))

    def _compare(self, said: Observation, tried: Observation) -> None:
        for old, new, name in ((said.signals, tried.signals, "rule"), (said.progress, tried.progress, "format")):
            if old.num_rows or new.num_rows:
                before, after = _rows(old, name), _rows(new, name)
                self._more.update(row[2] for row in after - before)
                self._less.update(row[2] for row in before - after)


def _rows(table: pa.Table, name: str) -> set[tuple[int, int, str]]:
    """(stream, offset, rule) of each row."""
    return set(
        zip(
            table.column("stream").to_pylist(),
            table.column("offset").to_pylist(),
            table.column(name).to_pylist(),
            strict=True,
        )
    )


def take_over(state: State, book: Rulebook) -> None:
    """The new rules speak from now on: for streams that are open and jobs that are watched too. Between two events only."""
    state.book = book
    for stream in state.streams.values():
        stream.fold.use(book.format_by_id, book.detect)
    for watch in state.live.watches.values():
        watch.policy = book.detect
