"""Where a journal may live, and the few system calls that make files last.

In: a folder. Out: descriptors, locks, whole small files; every refusal is a StoreError that says what is wrong and how to mend it.
Always holds: nothing is kept on a network or user-space file system (locks and fsync there promise less than they say); the folder is ours
and nobody else may enter it; no symbolic link is followed at its end; what was told as written is on disk, its name included.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import sys

from defib.adapters import room
from defib.adapters.room import FULL
from defib.adapters.room import FullError as FullError
from defib.adapters.show import printable, safe
from defib.engine.words import StoreError

# statfs(2) f_type of file systems whose locks, sizes or fsync depend on another machine or process.
NETWORK = {
    0x6969: "NFS", 0x517B: "SMB", 0xFF534D42: "CIFS", 0xFE534D42: "SMB", 0x0BD00BD0: "Lustre", 0x47504653: "GPFS",
    0x19830326: "BeeGFS", 0x65735546: "FUSE", 0x00C36400: "CephFS", 0x5346414F: "AFS", 0x6B414653: "AFS", 0x01021997: "9p",
    0x7461636F: "OCFS2", 0x01161970: "GFS2", 0x73757245: "Coda", 0x564C: "NCP", 0x20030528: "PVFS2", 0xAAD7AAEA: "PanFS",
    0x18031977: "WekaFS", 0x786F4256: "vboxsf",
}  # fmt: skip


class HeldError(StoreError):
    """Another process writes here."""


def file_system(folder: str) -> int | None:
    """The type number of the file system a folder is on; None where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    raw = ctypes.create_string_buffer(256)
    if libc.statfs(os.fsencode(folder), raw) != 0:
        return None
    return ctypes.c_long.from_buffer(raw).value & 0xFFFFFFFF


def make_folder(folder: str) -> None:
    """A folder for us alone, made where it is not there. Raises StoreError, also for what is there and cannot be trusted."""
    try:
        if not os.path.lexists(folder):
            os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
            os.mkdir(folder, 0o700)
            sync_folder(os.path.dirname(os.path.abspath(folder)))
    except OSError as e:
        raise StoreError(f"{_told(folder)}: cannot be made: {e.strerror}") from e


def check_folder(folder: str, private: bool = True, kind: int | None = None) -> None:
    """Refuse a folder that cannot hold state. private: nobody else may even enter it; else nobody else may write to it.

    kind: the type of its file system, asked for where it is not given. Raises StoreError.
    """
    try:
        found = os.lstat(folder)
    except OSError as e:
        raise StoreError(f"{_told(folder)}: {e.strerror}") from e
    name = _told(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(
            f"{name}: not a folder (symbolic links are not followed here)\n    mend: name the folder itself"
        )
    if found.st_uid != os.geteuid():
        raise StoreError(
            f"{name}: belongs to user {found.st_uid}, not to us\n    mend: chown it, or use another folder"
        )
    if found.st_mode & (0o077 if private else 0o022):
        mode = "700" if private else "go-w"
        raise StoreError(f"{name}: others may use it (mode {found.st_mode & 0o7777:o})\n    mend: chmod {mode} {name}")
    kind = file_system(folder) if kind is None else kind
    if kind in NETWORK:
        raise StoreError(
            f"{name}: is on {NETWORK[kind]}; state is kept on a local disk only\n"
            "    mend: name a folder on a local disk, such as /var/lib/defib"
        )


class Lock:
    """One writer: a lock that dies with its process, and the epoch that grows with every writer."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, "lock")
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise StoreError(f"{_told(path)}: {e.strerror}") from e
        self._path = path
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            _, pid = self._said()
            os.close(self._fd)
            raise HeldError(
                f"{_told(folder)}: another defib (process {pid or 'unknown'}) writes here\n    mend: stop it, or use another folder"
            ) from e
        self.epoch = self._said()[0]

    def _said(self) -> tuple[int, int]:
        """(epoch, process) as noted; zeros where the note cannot be read."""
        words = os.pread(self._fd, 64, 0).split()
        return (int(words[0]), int(words[1])) if len(words) == 2 and all(w.isdigit() for w in words) else (0, 0)

    def take(self, epoch: int) -> None:
        """Note the epoch that begins; durable when it returns."""
        self.epoch = epoch
        try:
            os.pwrite(self._fd, b"%020d %010d\n" % (epoch, os.getpid()), 0)
            os.fsync(self._fd)
        except OSError as e:
            raise failed(e, self._path) from e

    def release(self) -> None:
        """Let another writer in."""
        os.close(self._fd)


def create(path: str) -> int:
    """A new file of ours, open for appending; its name lasts once the folder is synced. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def reopen(path: str) -> int:
    """A file of ours, open for appending. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)


def load(path: str) -> bytes:
    """All bytes of a regular file. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as f:
        if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return f.read()


def write_all(fd: int, raw: bytes) -> None:
    """Every byte, however many calls it takes. Raises OSError."""
    view = memoryview(raw)
    while view:
        view = view[os.write(fd, view) :]


def save(path: str, raw: bytes) -> None:
    """The whole file replaced at once, durable when it returns: it holds the old bytes or the new ones, never less. Raises OSError."""
    part = path + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    fd = create(part)
    try:
        write_all(fd, raw)
        os.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    finally:
        os.close(fd)
    os.rename(part, path)
    sync_folder(os.path.dirname(path))


def sync_folder(folder: str) -> None:
    """Names in a folder last. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def failed(e: OSError, path: str) -> StoreError:
    """What a failed call means: a full disk can be waited for, anything else cannot."""
    text = f"{_told(path)}: {e.strerror or e}"
    if e.errno in FULL:  # waited for, or told with a mend by whoever cannot
        return FullError(text)
    return StoreError(f"{text}\n    mend: look at the disk (dmesg); what was acknowledged before is in the journal")


class Ballast:
    """A file that only takes up room, given up to end in order when the disk is full."""

    def __init__(self, folder: str, size: int) -> None:
        self.path = os.path.join(folder, "ballast")
        whole = os.statvfs(folder)
        self.size = min(size, whole.f_blocks * whole.f_frsize // 16)

    def take_on(self) -> bool:
        """Lay it down where there is plenty of room; False where there is not."""
        try:
            left = os.statvfs(os.path.dirname(self.path))
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            have = os.fstat(fd).st_size
            if have < self.size and left.f_bavail * left.f_frsize < 2 * self.size:
                return False
            os.posix_fallocate(fd, 0, self.size)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
            return False
        finally:
            os.close(fd)
        return True

    def roomy(self) -> bool:
        """Whether there is more free room than a few records need."""
        return room.roomy(os.path.dirname(self.path))

    def drop(self) -> None:
        """Make room."""
        with contextlib.suppress(OSError):
            os.truncate(self.path, 0)


def _told(path: str) -> str:
    return safe(printable(path))
