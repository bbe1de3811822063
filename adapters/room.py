"""Room on a disk: whether there is any, asked of the system and never read out of an error's text.

In: a folder, a number of bytes. Out: whether the disk takes them. Always holds: nothing is left behind.
"""

from __future__ import annotations

import contextlib
import errno
import os

from defib.engine.words import StoreError

ROOM_MIN = 1024 * 1024
FULL = (errno.ENOSPC, errno.EDQUOT)


class FullError(StoreError):
    """The disk is full. What was acknowledged is on disk; the same call can be made again when there is room."""


def roomy(folder: str) -> bool:
    """Whether there is more free room than a few records need. Raises OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= ROOM_MIN


def takes(folder: str, size: int) -> bool:
    """Whether the disk takes so many bytes more from us. Tried with a file of that size: free blocks do not tell of a quota."""
    path = os.path.join(folder, f"room-{os.getpid()}")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as e:
        return e.errno not in FULL
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as e:
        return e.errno not in FULL
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(path)
    return True
