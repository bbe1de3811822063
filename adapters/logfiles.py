"""Finding log files and reading their bytes: files, directories, .gz and .zst.

In: paths as given. Out: `LogFile`s, each file once, and blocks of bytes. Always holds: only regular files are opened (never a FIFO, socket
or device); directories are walked without entering one twice, so link loops end; a link met on the way leads to nothing outside of what was
named (whoever may write into a log folder would else choose what is read); what cannot be read is told and the rest goes on.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, cast

from defib.adapters.show import printable, shown
from defib.adapters.sniff import GZIP, NOT_LOGS, ZSTD, ZSTD_SKIP, is_binary, is_packed

BLOCK_BYTES = 1024 * 1024
SNIFF_BYTES = 8192
ZSTD_FEED = 64
NO_LOG = "looks binary, not a log"
BARE = "no log in it"
PACKED_BYTES = 64 * 1024  # of a compressed file read at a time, whatever the block size
# As `engine.identity` has it, which a scan need not load.
PACKED = re.compile(r"\.(gz|zst|zstd)$", re.I)


@dataclass(frozen=True, slots=True)
class Unread:
    """A path that was not read, or not to its end, and why."""

    path: str
    why: str
    refused: bool = True  # asked for and not to be had (as against: met in a folder, and no log)


@dataclass(slots=True)
class LogFile:
    """A file to be read: where, how it is shown, its size on disk."""

    path: str  # as the system knows it
    shown: str  # absolute, printable
    size: int
    named: bool  # given by name, not found in a directory


def find(paths: list[str], unread: list[Unread]) -> list[LogFile]:
    """The logs at or below the paths, by name, each once. Adds to `unread` what is not to be read, and why."""
    walk = _Walk(tuple(os.path.realpath(p) for p in paths), unread)
    found: list[LogFile] = []
    bare: list[str] = []
    for path in paths:
        before = walk.met, len(unread)
        found += walk.below(path)
        if (walk.met, len(unread)) == before:
            bare.append(path)
    unread += [Unread(shown(path), BARE, refused=not found) for path in bare]
    return _once(sorted(found, key=lambda f: f.shown), unread)


@dataclass(slots=True)
class _Walk:
    """A search for logs. roots: what was named, without links; met: how often something was met that is, or may hold, a log."""

    roots: tuple[str, ...]
    unread: list[Unread]
    files: set[tuple[int, int]] = field(default_factory=set)
    folders: set[tuple[int, int]] = field(default_factory=set)
    met: int = 0

    def below(self, path: str) -> Iterator[LogFile]:
        """The logs at or below a path; an explicit stack, since trees may be deeper than Python's own."""
        todo = [(path, True)]
        while todo:
            here, named = todo.pop()
            try:
                info = os.stat(here)
                identity = (info.st_dev, info.st_ino)
                folder = stat.S_ISDIR(info.st_mode)
                if folder and identity in self.folders:
                    self.met += 1
                elif folder:
                    self.folders.add(identity)
                    todo += [(child, False) for child in reversed(self._children(here))]
            except OSError as e:
                self.unread.append(Unread(printable(os.path.abspath(here)), why(e)))
                continue
            if folder:
                continue
            if not stat.S_ISREG(info.st_mode):
                if named:
                    self.unread.append(Unread(printable(os.path.abspath(here)), "not a regular file"))
            elif named or _may_be_log(here):
                self.met += 1
                if identity in self.files:
                    continue
                self.files.add(identity)
                yield LogFile(here, shown(here), info.st_size, named)

    def _children(self, folder: str) -> list[str]:
        """Paths of what is to be looked at in a folder, by name. Links are judged by where they lead before anything there is touched."""
        with os.scandir(folder) as entries:
            met = sorted((e.name, e.is_symlink()) for e in entries if not e.name.startswith("."))
        out = []
        for name, link in met:
            path = os.path.join(folder, name)
            if not link or self._within(os.path.realpath(path)):
                out.append(path)
            elif _may_be_log(path):
                told = "a link that leads outside of the folder; name it to have it read"
                self.unread.append(Unread(printable(os.path.abspath(path)), told, refused=False))
        return out

    def _within(self, real: str) -> bool:
        return any(real == r or real.startswith(r.rstrip("/") + "/") for r in self.roots)


def _may_be_log(path: str) -> bool:
    return os.path.splitext(path)[1].lower() not in NOT_LOGS


def _once(files: list[LogFile], unread: list[Unread]) -> list[LogFile]:
    """A log and a packed copy of it are one log: the plain file is read, else the first packed one; the rest are told as not read."""
    taken: dict[str, LogFile] = {}
    for f in sorted(files, key=lambda f: (PACKED.search(f.shown) is not None, f.shown)):
        other = taken.setdefault(PACKED.sub("", f.shown), f)
        if other is not f:
            unread.append(Unread(f.shown, f"the same log as {other.shown}, which is read", refused=False))
    kept = {id(f) for f in taken.values()}
    return [f for f in files if id(f) in kept]


class NotALogError(Exception):
    """The bytes are no text."""


@contextlib.contextmanager
def opened(file: LogFile) -> Iterator[tuple[BinaryIO, bytes]]:
    """(the file at its start, its first bytes). Raises OSError, also for a file given by name whose bytes look binary; NotALogError for one found."""
    with open_regular(file.path) as raw:
        head = raw.read(SNIFF_BYTES)
        raw.seek(0)
        if not is_packed(head) and is_binary(head):
            raise OSError(NO_LOG) if file.named else NotALogError(NO_LOG)
        yield raw, head


def broken(error: BaseException) -> bool:
    """Whether reading ended with a fault of the file: the disk, a truncated or damaged archive. The libraries are loaded only for archives."""
    return isinstance(error, OSError | EOFError) or type(error).__name__ in ("error", "ZstdError")


def open_regular(path: str) -> BinaryIO:
    """Open without blocking on a FIFO that took the file's place; refuse anything but a regular file."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("not a regular file")
    with contextlib.suppress(AttributeError, OSError):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return cast("BinaryIO", os.fdopen(handle, "rb", buffering=0))


def blocks(raw: BinaryIO, head: bytes, size: int) -> Iterator[tuple[bytes, int]]:
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
    import zlib

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
    import zstandard

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


def why(e: BaseException) -> str:
    """The error in the system's own words."""
    return (e.strerror or str(e)) if isinstance(e, OSError) else (str(e) or type(e).__name__)
