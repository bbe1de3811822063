"""A journal as it lies on disk: its segments in order, read without a writer.

In: a folder. Out: records in order; damage is a `DamageError` that names the place and the last good record. Always holds: what was
acknowledged before the damage is handed over first; bytes of a write that was cut off, at the very end, are no damage.

A segment is named by the number of its first record (`000000000001.seg`), so that a missing one shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from defib.adapters.journal import place
from defib.adapters.journal.frames import Bad, Record, records
from defib.adapters.show import printable, safe
from defib.engine.words import StoreError

ENDING = ".seg"


class DamageError(StoreError):
    """Bytes within a journal are not what was written. last: the number of the last good record; at: where in which segment it stops."""

    def __init__(self, path: str, at: int, why: str, last: int) -> None:
        self.path, self.at, self.last = path, at, last
        super().__init__(
            f"{safe(printable(path))}: damaged at byte {at}: {why}; records up to {last} are whole\n"
            "    mend: restore the file from a copy, or go on with what is whole: defib rebuild --state DIR --db NEW --salvage"
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a journal. first: the number of its first record."""

    first: int
    path: str


def segments(folder: str) -> list[Segment]:
    """Every segment of a journal in order; none where there is no journal yet. Raises StoreError."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as e:
        raise StoreError(f"{safe(printable(folder))}: {e.strerror}") from e
    stems = [(n[: -len(ENDING)], n) for n in names if n.endswith(ENDING)]
    return sorted(
        (Segment(int(stem), os.path.join(folder, n)) for stem, n in stems if stem.isascii() and stem.isdigit()),
        key=lambda s: s.first,
    )


def read(folder: str, after: int = 0) -> Iterator[Record]:
    """Records with numbers greater than `after`, in order, as far as they were on disk when their segment was opened.

    Where older segments have been deleted the first record there is comes first. Raises DamageError, StoreError.
    """
    every = segments(folder)
    begin = max((i for i, s in enumerate(every) if s.first <= after + 1), default=0)
    expected, chain = every[begin].first if every else 1, None
    for i in range(begin, len(every)):
        segment = every[i]
        if segment.first != expected:
            raise DamageError(segment.path, 0, f"records {expected} to {segment.first - 1} are missing", expected - 1)
        for found in records(bytes_of(segment.path), expected, chain):
            if isinstance(found, Bad):
                if found.torn and i == len(every) - 1:
                    return
                raise DamageError(segment.path, found.at, found.why, expected - 1)
            expected, chain = found.seq + 1, found.chain
            if found.seq > after:
                yield found


def chain_of(folder: str, seq: int) -> bytes | None:
    """The chain of one record; None where it is not there: never written, lost with a torn end, or deleted with its segment.

    Two journals that agree in the chain of a record agree in everything before it. Raises DamageError, StoreError.
    """
    for record in read(folder, seq - 1):
        return record.chain if record.seq == seq else None
    return None


def identity_of(folder: str) -> str:
    """What names a journal for life. Raises DamageError, StoreError, also where there is no journal."""
    for record in read(folder):
        return str(orjson.loads(record.payload)["journal"])
    raise StoreError(
        f"{safe(printable(folder))}: no journal here\n    mend: name the folder given to 'defib watch --state'"
    )


def bytes_of(path: str) -> bytes:
    """All of a segment. Raises StoreError."""
    try:
        return place.load(path)
    except OSError as e:
        raise StoreError(f"{safe(printable(path))}: {e.strerror}") from e
