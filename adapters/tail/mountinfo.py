"""The table of mounts, as text: which file system a path is on, decided without touching the path.

In: /proc/self/mountinfo, see proc_pid_mountinfo(5). Out: mounts; the one a path lies on is that of the longest mount point above it, the
later of equal ones (mounted over the earlier).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"))
OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """point: where it is mounted. kind: type of the file system. device, source: what is mounted; mounts that share them share their fate."""

    point: bytes
    kind: str
    device: str = ""
    source: str = ""

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.device, self.kind, self.source

    @property
    def local(self) -> bool:
        """On a disk or in memory of this machine, so the kernel sees every write."""
        return self.kind in LOCAL


NOWHERE = Mount(b"/", "")


def table() -> bytes:
    """/proc/self/mountinfo, or nothing."""
    try:
        return Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return b""


def mounts(text: bytes) -> list[Mount]:
    """Every mount of a table; lines that are none are left out."""
    out = []
    for line in text.splitlines():
        before, _, after = line.partition(b" - ")
        fields, rest = before.split(b" "), after.split(b" ")
        if len(fields) < 5 or not after:
            continue
        point = OCTAL.sub(lambda m: bytes([int(m[1], 8)]), fields[4])
        source = rest[1].decode("ascii", "replace") if len(rest) > 1 else ""
        out.append(Mount(point, rest[0].decode("ascii", "replace"), fields[2].decode("ascii", "replace"), source))
    return out


def inside(path: bytes, point: bytes) -> bool:
    """Whether an absolute path is the point or lies beneath it."""
    return path == point or path.startswith(point.rstrip(b"/") + b"/")


def mount_of(path: bytes, known: Sequence[Mount]) -> Mount:
    """The mount an absolute path without links lies on."""
    best = NOWHERE
    for mount in known:
        if inside(path, mount.point) and (len(mount.point) >= len(best.point) or best is NOWHERE):
            best = mount
    return best
