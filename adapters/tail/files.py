"""The system calls of following a file, and nothing else: `Files` is the port, `SystemFiles` the real one.

In: paths as bytes. Out: handles, facts, bytes; every failure is an OSError with its errno. Always holds: only regular files beneath an
allowed root are opened, without following a symbolic link in any component below the root, without waiting on a FIFO; what is checked is
the open descriptor, never the path (which may have changed meanwhile). Where other mounts are named, none of them is touched.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import stat
import struct
from dataclasses import dataclass, field
from typing import Protocol

OPENAT2 = 437  # the same number on every architecture since 2020
NO_LINKS = 0x08 | 0x04 | 0x02  # openat2(2): RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
NO_MOUNTS = 0x01  # RESOLVE_NO_XDEV
NAMES_MAX = 200_000  # of one folder
FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", 0)
STATX = struct.Struct(
    "=I I Q I I I H 2x Q Q 32x q I 4x q I 4x"
)  # statx(2) up to stx_ctime; the birth time is the first time kept
EMPTY_PATH, BASIC_AND_BIRTH, BIRTH = 0x1000, 0x7FF | 0x800, 0x800
NO_HOLES = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY)


@dataclass(frozen=True, slots=True)
class Stat:
    """What an open file says of itself. born_ns: birth time where the file system keeps one."""

    ino: int
    size: int
    uid: int
    links: int = 1
    born_ns: int | None = None
    regular: bool = True
    folder: bool = False

    def is_of(self, ino: int, born_ns: int | None) -> bool:
        """Whether it is the file of that number, as far as births are known: numbers are used again at once."""
        return self.ino == ino and (self.born_ns == born_ns or None in (self.born_ns, born_ns))


@dataclass(frozen=True, slots=True)
class Name:
    """An entry of a folder. kind: file | folder | other, without following links."""

    name: bytes
    ino: int
    kind: str = "file"


class Files(Protocol):
    """Every call a follower makes. All but `close` raise OSError."""

    def open(self, path: bytes) -> int: ...

    def stat(self, handle: int) -> Stat: ...

    def read(self, handle: int, at: int, length: int) -> bytes: ...

    def data_after(self, handle: int, at: int) -> int | None:
        """Where data begin at or after `at`; `at` itself where the file system cannot tell, None where a hole reaches to the end."""

    def names(self, folder: bytes) -> list[Name]: ...

    def close(self, handle: int) -> None: ...


@dataclass(slots=True)
class SystemFiles:
    """The kernel's files beneath `roots` (absolute folders, links in them already resolved). others: mount points that are somebody else's;
    None: mounts do not matter."""

    roots: tuple[bytes, ...]
    openat2: bool = True  # False, or a kernel without it: component by component
    others: frozenset[bytes] | None = None
    _libc: ctypes.CDLL = field(default_factory=lambda: ctypes.CDLL(None, use_errno=True))
    _held: dict[bytes, int] = field(default_factory=dict)

    def open(self, path: bytes) -> int:
        root, below = self._beneath(path)
        try:
            return self._open_below(self._root(root), below, FLAGS)
        except OSError as e:
            if e.errno not in (errno.ESTALE, errno.ENOENT, errno.EBADF):
                raise
        self._forget(root)  # the root itself may have been remounted or replaced
        return self._open_below(self._root(root), below, FLAGS)

    def stat(self, handle: int) -> Stat:
        raw = ctypes.create_string_buffer(256)
        if self._libc.statx(handle, b"", EMPTY_PATH, BASIC_AND_BIRTH, raw) == 0:
            mask, _, _, links, uid, _, mode, ino, size, born_s, born_ns, _, _ = STATX.unpack_from(raw)
            born = born_s * 1_000_000_000 + born_ns if mask & BIRTH else None
            return Stat(ino, size, uid, links, born, stat.S_ISREG(mode), stat.S_ISDIR(mode))
        if (code := ctypes.get_errno()) not in (errno.ENOSYS, errno.EPERM):
            raise OSError(code, os.strerror(code))
        s = os.fstat(handle)
        return Stat(s.st_ino, s.st_size, s.st_uid, s.st_nlink, None, stat.S_ISREG(s.st_mode), stat.S_ISDIR(s.st_mode))

    def read(self, handle: int, at: int, length: int) -> bytes:
        return os.pread(handle, length, at)

    def data_after(self, handle: int, at: int) -> int | None:
        try:
            return os.lseek(handle, at, os.SEEK_DATA)
        except OSError as e:
            if e.errno == errno.ENXIO:
                return None
            if e.errno in NO_HOLES:
                return at
            raise

    def names(self, folder: bytes) -> list[Name]:
        root, below = self._beneath(folder)
        handle = self._open_below(self._root(root), below or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os.scandir(handle) as entries:
                some = itertools.islice(entries, NAMES_MAX)
                return [
                    Name(n, e.inode(), _kind(e)) for e in some if not self._foreign(folder, n := os.fsencode(e.name))
                ]
        finally:
            os.close(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def shut(self) -> None:
        """Let go of the roots."""
        for root in list(self._held):
            self._forget(root)

    def _beneath(self, path: bytes) -> tuple[bytes, bytes]:
        for root in sorted(self.roots, key=len, reverse=True):  # the innermost: one may be mounted in another
            base = root.rstrip(b"/") + b"/"
            if path == root:
                return root, b""
            if path.startswith(base):
                below = path[len(base) :].strip(b"/")
                if self.others and any(base + below[:n] in self.others for n in _ends(below)):
                    raise OSError(errno.EXDEV, "on another mount")
                return root, below
        raise OSError(errno.EXDEV, "outside the allowed folders")

    def _foreign(self, folder: bytes, name: bytes = b"") -> bool:
        return bool(self.others) and os.path.join(folder, name).rstrip(b"/") in (self.others or ())

    def _root(self, root: bytes) -> int:
        if root not in self._held:
            self._held[root] = os.open(root, FOLDER)
        return self._held[root]

    def _forget(self, root: bytes) -> None:
        handle = self._held.pop(root, None)
        if handle is not None:
            os.close(handle)

    def _open_below(self, root: int, below: bytes, flags: int) -> int:
        if b"\0" in below:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if self.openat2:
            how = struct.pack("=QQQ", flags, 0, NO_LINKS | (NO_MOUNTS if self.others is not None else 0))
            handle = int(self._libc.syscall(OPENAT2, root, below, how, len(how)))
            if handle >= 0:
                return handle
            code = ctypes.get_errno()
            if code not in (errno.ENOSYS, errno.EPERM):  # EPERM: a sandbox that does not know the call
                raise OSError(code, os.strerror(code))
            self.openat2 = code != errno.ENOSYS
        return _walk(root, below, flags)


def _walk(root: int, below: bytes, flags: int) -> int:
    """Open component by component; a link anywhere is ELOOP or ENOTDIR, a step upwards EXDEV."""
    *folders, last = below.split(b"/")
    if b".." in (*folders, last):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    here = os.dup(root)
    try:
        for name in folders:
            there = os.open(name or b".", FOLDER | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = there
        return os.open(last, flags | os.O_NOFOLLOW, dir_fd=here)
    finally:
        os.close(here)


def _ends(path: bytes) -> list[int]:
    """Where each of its components ends."""
    return [n for n, c in enumerate(path) if c == 0x2F] + [len(path)]


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_file(follow_symlinks=False):
        return "file"
    return "folder" if entry.is_dir(follow_symlinks=False) else "other"
