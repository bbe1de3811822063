"""Batch -> Observation: the whole vectorized half of the engine behind one call.

Everything here is a function of the batch's records alone (bar a set of banners already seen per stream, which only spares work), so
cutting the same bytes differently yields the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from defib.engine.blocks import Batch
from defib.engine.fields import Kernel
from defib.engine.progress import ProgressReader
from defib.engine.rulebook import Databases, Rulebook
from defib.engine.scan import Scanner
from defib.engine.signals import SignalReader
from defib.engine.words import PROGRESS, SIGNALS


@dataclass(frozen=True, slots=True)
class Observation:
    """What a batch said. signals: SIGNALS; progress: PROGRESS; frameworks: per stream, banners seen for the first time."""

    signals: pa.Table
    progress: pa.Table
    frameworks: dict[int, frozenset[str]] = field(default_factory=dict)


NOTHING = Observation(SIGNALS.empty_table(), PROGRESS.empty_table())


class Observes(Protocol):
    """What reads batches."""

    def observe(self, batch: Batch) -> Observation: ...

    def forget(self, stream: int) -> None: ...


class Observer:
    """Rules made ready to read batches; one per thread or process. kernel: reads progress faster, and the same."""

    def __init__(self, book: Rulebook, databases: Databases, kernel: Kernel | None = None) -> None:
        self.book = book
        self.scanner = Scanner(book, databases)
        self._signals = SignalReader(book)
        self._progress = ProgressReader(book, self.scanner.plan.anchors, kernel)
        self._seen: dict[int, set[int]] = {}

    def observe(self, batch: Batch) -> Observation:
        hits = self.scanner.scan(batch)
        return Observation(
            self._signals.read(batch, hits),
            self._progress.read(batch, hits.anchors),
            self._frameworks(batch, hits.banners) if hits.banners else {},
        )

    def forget(self, stream: int) -> None:
        """The stream ended; drop what is kept about it."""
        self._seen.pop(stream, None)

    def _frameworks(self, batch: Batch, banners: frozenset[int]) -> dict[int, frozenset[str]]:
        new: dict[int, frozenset[str]] = {}
        for piece, text in zip(batch.pieces, batch.cleaned, strict=True):
            seen = self._seen.setdefault(piece.stream, set())
            if banners <= seen:
                continue
            here = self.scanner.banners_in(text) - seen
            seen |= here
            names = frozenset(f for i in here if (f := self.book.rules[i].framework))
            if names:
                new[piece.stream] = new.get(piece.stream, frozenset()) | names
        return new
