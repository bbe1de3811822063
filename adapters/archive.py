"""Finished logs as a `Source`: files, directories, .gz and .zst, each read once from start to end.

Only regular files are opened (never a FIFO, socket or device); directories are walked without entering one twice, so link loops end.
A file that cannot be read is remembered in `unread` and the rest goes on. Jobs come one after another, so what the engine holds at
a time is one job, and memory does not depend on file sizes.
"""

from __future__ import annotations

import contextlib
import os
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import zstandard

from defib.adapters.show import printable, shown
from defib.adapters.sniff import GZIP, NOT_LOGS, ZSTD, ZSTD_SKIP, is_binary, is_packed
from defib.engine.identity import PACKED, Known, facts
from defib.engine.ports import Closed, Data, JobClosed, Opened, SourceItem
from defib.engine.rulebook import Template
from defib.engine.words import JobKey, StreamFacts, StreamId

BLOCK_BYTES = 1024 * 1024
SNIFF_BYTES = 8192
ZSTD_FEED = 64
PACKED_BYTES = 64 * 1024  # of a compressed file read at a time, whatever the block size


@dataclass(frozen=True, slots=True)
class Unread:
    """A path that was not read, or not to its end, and why."""

    path: str
    why: str
    refused: bool = True  # the system refused it (as against: it is not a log)


@dataclass(slots=True)
class LogFile:
    """A file to be read: where, how it is shown, its size on disk."""

    path: str  # as the system knows it
    shown: str  # absolute, printable
    size: int
    named: bool  # given by name, not found in a directory


@dataclass(slots=True)
class Archive:
    """A `Source` over paths. `unread` is complete once the source is done."""

    paths: list[str]
    templates: tuple[Template, ...]
    known: Known = field(default_factory=Known)
    block_bytes: int = BLOCK_BYTES
    unread: list[Unread] = field(default_factory=list)
    files: list[LogFile] = field(default_factory=list)
    _items: Iterator[SourceItem] | None = None

    def open(self) -> None:
        """Find the files. Their sizes are known after this, for showing progress."""
        seen_files: set[tuple[int, int]] = set()
        seen_folders: set[tuple[int, int]] = set()
        for path in self.paths:
            for file in self._find(path, seen_files, seen_folders):
                self.files.append(file)
        self.files = self._once(sorted(self.files, key=lambda f: f.shown))
        self._items = self._read_all()

    def _once(self, files: list[LogFile]) -> list[LogFile]:
        """A log and a packed copy of it are one log: the plain file is read, else the first packed one; the rest are told as not read."""
        taken: dict[str, LogFile] = {}
        for f in sorted(files, key=lambda f: (PACKED.search(f.shown) is not None, f.shown)):
            other = taken.setdefault(PACKED.sub("", f.shown), f)
            if other is not f:
                self.unread.append(Unread(f.shown, f"the same log as {other.shown}, which is read"))
        kept = {id(f) for f in taken.values()}
        return [f for f in files if id(f) in kept]

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

    def _find(self, path: str, files: set[tuple[int, int]], folders: set[tuple[int, int]]) -> Iterator[LogFile]:
        """The logs at or below a path; an explicit stack, since trees may be deeper than Python's own."""
        todo = [(path, True)]
        while todo:
            here, named = todo.pop()
            try:
                info = os.stat(here)
                children = sorted(os.listdir(here)) if stat.S_ISDIR(info.st_mode) else None
            except OSError as e:
                self.unread.append(Unread(printable(os.path.abspath(here)), _why(e)))
                continue
            identity = (info.st_dev, info.st_ino)
            if children is not None:
                if identity not in folders:
                    folders.add(identity)
                    todo += [
                        (os.path.join(here, name), False) for name in reversed(children) if not name.startswith(".")
                    ]
            elif not stat.S_ISREG(info.st_mode):
                if named:
                    self.unread.append(Unread(printable(os.path.abspath(here)), "not a regular file"))
            elif identity not in files and (named or os.path.splitext(here)[1].lower() not in NOT_LOGS):
                files.add(identity)
                yield LogFile(here, shown(here), info.st_size, named)

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

    def _read_all(self) -> Iterator[SourceItem]:
        told = self._told()
        jobs: dict[JobKey, list[tuple[LogFile, StreamFacts]]] = {}
        for file, fact in zip(self.files, told, strict=True):
            jobs.setdefault(fact.job, []).append((file, fact))
        number = 0
        for job, members in jobs.items():
            opened = 0
            for file, fact in members:
                for item in self._read(number, file, fact):
                    opened += isinstance(item, Opened)
                    yield item
                number += 1
            if opened:
                yield JobClosed(job)

    def _read(self, number: int, file: LogFile, fact: StreamFacts) -> Iterator[SourceItem]:
        try:
            raw = _open_regular(file.path)
        except OSError as e:
            self.unread.append(Unread(file.shown, _why(e)))
            return
        with raw:
            try:
                head = raw.read(SNIFF_BYTES)
                raw.seek(0)
            except OSError as e:
                self.unread.append(Unread(file.shown, _why(e)))
                return
            packed = is_packed(head)
            if not packed and is_binary(head):
                self.unread.append(Unread(file.shown, "looks binary, not a log", refused=False))
                return
            yield Opened(number, StreamId(file.shown), fact, file.size)
            note = "empty file" if not head else None
            try:
                for block, read in _blocks(raw, head, self.block_bytes):
                    yield Data(number, block, read)
            except (OSError, EOFError, zlib.error, zstandard.ZstdError) as e:
                note = f"read to where it broke: {_why(e)}"
                self.unread.append(Unread(file.shown, note))
            yield Closed(number, note)


def _open_regular(path: str) -> BinaryIO:
    """Open without blocking on a FIFO that took the file's place; refuse anything but a regular file."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("not a regular file")
    with contextlib.suppress(AttributeError, OSError):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return cast("BinaryIO", os.fdopen(handle, "rb", buffering=0))


def _blocks(raw: BinaryIO, head: bytes, size: int) -> Iterator[tuple[bytes, int]]:
    """(bytes, how far the file itself was read for them). A broken archive yields what it holds, then raises."""
    if head.startswith(GZIP):
        parts = _gunzip(raw, size)
    elif head.startswith((ZSTD, *ZSTD_SKIP)):
        parts = _unzstd(raw, size)
    else:
        parts = iter(lambda: raw.read(size), b"")
    at = 0
    for block in parts:
        now = raw.tell()
        yield block, now - at
        at = now


def _gunzip(raw: BinaryIO, size: int) -> Iterator[bytes]:
    """Members of a gzip file one after another. The library's file object would lose the end of a truncated file with the read that fails."""
    member = zlib.decompressobj(zlib.MAX_WBITS | 16)
    begun = False
    while chunk := raw.read(PACKED_BYTES):
        while chunk:
            begun = True
            if data := member.decompress(chunk, size):
                yield data
            chunk = member.unconsumed_tail
            if member.eof:
                chunk = member.unused_data.lstrip(b"\0")  # padding between members and at the end
                member = zlib.decompressobj(zlib.MAX_WBITS | 16)
                begun = False
    if begun:
        if data := member.flush():
            yield data
        raise EOFError("the compressed file ends too early")


def _unzstd(raw: BinaryIO, size: int) -> Iterator[bytes]:
    """Frames of a zstd file one after another; skippable ones say nothing.

    A few bytes may unpack to very much, so as little is fed at a time as keeps the output small (a zstd block holds at most 128 KiB).
    """
    frame = zstandard.ZstdDecompressor().decompressobj()
    begun, feed = False, ZSTD_FEED
    while chunk := raw.read(PACKED_BYTES):
        while chunk:
            begun = True
            part, chunk = chunk[:feed], chunk[feed:]
            data = frame.decompress(part)
            for at in range(0, len(data), size):
                yield data[at : at + size]
            feed = max(ZSTD_FEED, feed // 2) if len(data) > size else min(PACKED_BYTES, feed * 2)
            if frame.eof:
                chunk = frame.unused_data + chunk
                frame = zstandard.ZstdDecompressor().decompressobj()
                begun = False
    if begun:
        raise EOFError("the compressed file ends too early")


def _why(e: BaseException) -> str:
    return (e.strerror or str(e)) if isinstance(e, OSError) else (str(e) or type(e).__name__)
