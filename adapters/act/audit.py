"""The audit: every row of recovery in an append-only, hash-chained journal, and the evidence that was kept apart before acting.

In: rows in their order, evidence of a case. Out: the same rows at the next start. Always: row numbers are gapless; a row is durable when `sync`
returns; opening takes the cluster's lock and a new epoch, which fences every earlier controller.

    DIR/actions/    segments, lock (mode 0700)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from defib.adapters.journal import place, segments
from defib.adapters.journal.writer import Journal
from defib.engine.recover import codec
from defib.engine.recover.words import Row
from defib.engine.words import StoreError

ROW, EVIDENCE, END = "row", "evidence", "end"
BALLAST = 4 * 1024 * 1024
EVIDENCE_MAX = 1024 * 1024


class Audit:
    """Open for writing. epoch: this controller's; clean: the one before it ended in order; seq: number of the last row; identity: names the audit
    for life. heard: gets every durable row with its hash (hex), those of earlier controllers too."""

    def __init__(self, folder: str, heard: Callable[[Row, str], None] | None = None) -> None:
        self.folder = folder
        self.heard = heard or (lambda row, chain: None)
        self._unheard: list[tuple[Row, str]] = []
        self._journal = Journal(folder, ballast_bytes=BALLAST)
        self.epoch, self.seq, self.clean = self._journal.epoch, 0, True
        self.told, self.identity = self._journal.told, self._journal.identity

    def rows(self) -> Iterator[Row]:
        """Every row of earlier controllers. Raises StoreError where one is missing or cannot be understood."""
        for record in segments.read(self.folder):
            if record.kind == ROW:
                row = understood(record.payload)
                if row.seq != self.seq + 1:
                    raise StoreError(
                        f"{self.folder}: row {row.seq} stands where {self.seq + 1} should; no action is possible"
                    )
                self.seq, self.clean = row.seq, False
                self.heard(row, record.chain.hex())
                yield row
            elif record.kind == END:
                self.clean = True

    def record(self, row: Row) -> None:
        """Take a row; it lasts once `sync` returns."""
        assert row.seq == self.seq + 1, "rows are gapless"
        self._journal.append(ROW, codec.dump(row).encode())
        self._unheard.append((row, self._journal.chain.hex()))
        self.seq = row.seq

    def keep(self, case: str, evidence: dict[str, Any]) -> None:
        """Evidence of a case, on disk when this returns. Raises StoreError, ValueError for more than is kept."""
        payload = orjson.dumps({"case": case, **evidence})
        if len(payload) > EVIDENCE_MAX:
            raise ValueError(f"evidence of more than {EVIDENCE_MAX} bytes")
        self._journal.append(EVIDENCE, payload)
        self._journal.sync()

    def sync(self) -> None:
        """Everything recorded is on disk when this returns. Raises FullError, StoreError."""
        self._journal.sync()
        unheard, self._unheard = self._unheard, []
        for row, chain in unheard:
            self.heard(row, chain)

    def close(self) -> None:
        """End in order, and say so. Raises StoreError."""
        try:
            self._journal.append(END, b"{}")
        finally:
            self._journal.close()


@dataclass(frozen=True, slots=True)
class Verified:
    """A whole audit. rows: how many; records: of all kinds; chain: the hash of the last, hex."""

    rows: int
    records: int
    chain: str
    evidence: int = 0


def written(folder: str) -> Iterator[tuple[Row, str]]:
    """Every row of an audit with its hash (hex), read beside whoever writes it. Raises StoreError, DamageError; the rows before it come first."""
    for record in segments.read(folder):
        if record.kind == ROW:
            yield understood(record.payload), record.chain.hex()


def verify(folder: str) -> Verified:
    """Read everything: checksums, chain, and that no row is missing. Raises StoreError naming the place."""
    place.check_folder(folder)
    rows = records = evidence = 0
    chain = b""
    for record in segments.read(folder):
        records, chain = records + 1, record.chain
        if record.kind == ROW:
            row = understood(record.payload)
            if row.seq != rows + 1:
                raise StoreError(f"record {record.seq}: row {row.seq} stands where {rows + 1} should")
            rows += 1
        evidence += record.kind == EVIDENCE
    return Verified(rows, records, chain.hex(), evidence)


def understood(payload: bytes) -> Row:
    """A row of a record. Raises StoreError."""
    try:
        return codec.load(Row, payload)
    except ValueError as e:
        raise StoreError(f"a row of the audit cannot be understood: {e}; was it written by a newer defib?") from e
