"""Finished logs as a `Source`: files, directories, .gz and .zst, each read once from start to end.

Only regular files are opened (never a FIFO, socket or device); directories are walked without entering one twice, so link loops end.
A file that cannot be read is remembered in `unread` and the rest goes on. Jobs come one after another, so what the engine holds at
a time is one job, and memory does not depend on file sizes.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import zstandard

from defib.adapters.logfiles import BLOCK_BYTES, NO_LOG, SNIFF_BYTES, LogFile, Unread, blocks, find, open_regular, why
from defib.adapters.show import printable
from defib.adapters.sniff import is_binary, is_packed
from defib.engine.identity import Known, facts
from defib.engine.ports import Closed, Data, JobClosed, Opened, SourceItem
from defib.engine.rulebook import Template
from defib.engine.words import JobKey, StreamFacts, StreamId


@dataclass(frozen=True, slots=True)
class JobLogs:
    """A job and its logs: (number of the stream, file, what its path says)."""

    job: JobKey
    members: tuple[tuple[int, LogFile, StreamFacts], ...]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for _, file, _ in self.members)


@dataclass(slots=True)
class Archive:
    """A `Source` over paths. `unread` is complete once the source is done."""

    paths: list[str]
    templates: tuple[Template, ...]
    known: Known = field(default_factory=Known)
    block_bytes: int = BLOCK_BYTES
    unread: list[Unread] = field(default_factory=list)
    files: list[LogFile] = field(default_factory=list)
    chosen: tuple[JobLogs, ...] | None = None  # only these, of an archive that was opened elsewhere
    _items: Iterator[SourceItem] | None = None

    def open(self) -> None:
        """Find the files. Their sizes are known after this, for showing progress."""
        self.files = find(self.paths, self.unread)
        self._items = self._read_all()

    @property
    def total_bytes(self) -> int:
        return sum(f.size for f in self.files)

    def poll(self) -> list[SourceItem] | None:
        if self._items is None:
            self.open()
        item = next(cast("Iterator[SourceItem]", self._items), None)
        return None if item is None else [item]

    def close(self) -> None:
        self._items = iter(())

    def _told(self) -> list[StreamFacts]:
        """What the paths say. Where a link's name holds the job's number and the place it leads to does not, the link's name counts."""
        told = facts([f.shown for f in self.files], self.templates, self.known)
        given = [printable(os.path.abspath(f.path)) for f in self.files]
        mute = [
            i
            for i, (f, t) in enumerate(zip(self.files, told, strict=True))
            if t.job.job_id is None and given[i] != f.shown
        ]
        for i, other in zip(mute, facts([given[i] for i in mute], self.templates, self.known), strict=True):
            if other.job.job_id is not None:
                told[i] = other
        return told

    def jobs(self) -> list[JobLogs]:
        """The jobs in the order in which they are read. Their logs bear numbers that count over all of them."""
        if self.chosen is not None:
            return list(self.chosen)
        jobs: dict[JobKey, list[tuple[LogFile, StreamFacts]]] = {}
        for file, fact in zip(self.files, self._told(), strict=True):
            jobs.setdefault(fact.job, []).append((file, fact))
        number = itertools.count()
        return [JobLogs(job, tuple((next(number), *m) for m in members)) for job, members in jobs.items()]

    def _read_all(self) -> Iterator[SourceItem]:
        for job in self.jobs():
            opened = 0
            for number, file, fact in job.members:
                for item in self._read(number, file, fact):
                    opened += isinstance(item, Opened)
                    yield item
            if opened:
                yield JobClosed(job.job)

    def _read(self, number: int, file: LogFile, fact: StreamFacts) -> Iterator[SourceItem]:
        try:
            raw = open_regular(file.path)
        except OSError as e:
            self.unread.append(Unread(file.shown, why(e)))
            return
        with raw:
            try:
                head = raw.read(SNIFF_BYTES)
                raw.seek(0)
            except OSError as e:
                self.unread.append(Unread(file.shown, why(e)))
                return
            packed = is_packed(head)
            if not packed and is_binary(head):
                self.unread.append(Unread(file.shown, NO_LOG, refused=file.named))
                return
            yield Opened(number, StreamId(file.shown), fact, file.size)
            note = "empty file" if not head else None
            try:
                for block, read in blocks(raw, head, self.block_bytes):
                    yield Data(number, block, read)
            except (OSError, EOFError, zlib.error, zstandard.ZstdError) as e:
                note = f"read to where it broke: {why(e)}"
                self.unread.append(Unread(file.shown, note))
            yield Closed(number, note)
