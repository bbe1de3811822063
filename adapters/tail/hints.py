"""Which logs on local disks have just been written to: a hint that saves waiting for the next poll, never a proof of silence.

Network file systems tell nothing of what other machines write, often without an error, and the kernel's limits are easily reached; so whatever
goes wrong here only means that there are no hints.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"))
OCTAL = re.compile(rb"\\([0-7]{3})")


class LocalHints:
    """Call it for the paths written to since the last call. Folders on other than local file systems are left out."""

    def __init__(self, folders: list[bytes], mounts: bytes | None = None) -> None:
        self._notify: Any = None
        table = mount_table() if mounts is None else mounts
        self.folders = [f for f in folders if filesystem(f, table) in LOCAL]
        if not self.folders:
            return
        try:
            from watchfiles._rust_notify import RustNotify

            self._notify = RustNotify([os.fsdecode(f) for f in self.folders], False, False, 0, True, True)
        except Exception:  # whatever the kernel or the library has against it: polling goes on
            self.folders = []

    def __call__(self) -> set[bytes]:
        if self._notify is None:
            return set()
        try:
            seen = self._notify.watch(1, 1, 1, None)
        except Exception:
            self.close()
            return set()
        return {os.fsencode(path) for _, path in seen} if isinstance(seen, set) else set()

    def close(self) -> None:
        if self._notify is not None:
            self._notify.close()
            self._notify = None


def mount_table() -> bytes:
    """/proc/self/mountinfo, or nothing."""
    try:
        return Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return b""


def filesystem(path: bytes, mounts: bytes) -> str:
    """The type of the file system a path is on, by proc_pid_mountinfo(5); "" if unknown."""
    best, kind = b"", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(b" - ")
        fields = before.split(b" ")
        if len(fields) < 5 or not after:
            continue
        point = OCTAL.sub(lambda m: bytes([int(m[1], 8)]), fields[4])
        inside = path == point or path.startswith(point.rstrip(b"/") + b"/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split(b" ")[0].decode("ascii", "replace")
    return kind
