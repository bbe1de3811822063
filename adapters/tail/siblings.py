"""The files beside a path: an older file under its new name, a copy made before a truncation."""

from __future__ import annotations

import contextlib
import errno
import os
import re

from defib.adapters.tail.body import Body
from defib.adapters.tail.files import Files, Stat
from defib.adapters.tail.guard import GUARD_BYTES

SIBLINGS_MAX = 64
ROTATED = re.compile(rb"[.\-]\d[\d.\-_:T]*|\.(?:old|prev|bak)|~")


def rotated(name: bytes, base: bytes) -> bool:
    """A name that log rotation gives to older files of `base`."""
    return name.startswith(base) and ROTATED.fullmatch(name, len(base)) is not None


def open_checked(files: Files, path: bytes, owner: int | None) -> tuple[int, Stat]:
    """Open a file and see what was opened. Raises OSError also for what is not a regular file or not the owner's."""
    handle = files.open(path)
    try:
        seen = files.stat(handle)
        _check(seen, owner)
    except OSError:
        with contextlib.suppress(OSError):
            files.close(handle)
        raise
    return handle, seen


def _check(seen: Stat, owner: int | None) -> None:
    if seen.folder:
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not seen.regular:
        raise OSError(errno.EINVAL, "not a regular file")
    if owner is not None and seen.uid != owner:
        raise OSError(errno.EPERM, "belongs to another user")


def find(files: Files, path: bytes, owner: int | None, body: Body, copy: bool) -> int | None:
    """A file beside the path that holds what `body` read: the same file under another name, or a copy of it. An open handle, or None.

    Older attempts begin with the same lines, so a copy is only believed where 4 KiB are equal and it is younger than the file itself.
    """
    folder, base = os.path.split(path)
    if copy and (body.state.guard.length < GUARD_BYTES or body.born_ns is None):
        return None
    try:
        found = [n for n in files.names(folder) if n.kind == "file" and n.name != base]
    except OSError:
        return None
    likely = [n for n in found if n.ino == body.ino or rotated(n.name, base)]
    likely.sort(key=lambda n: (n.ino != body.ino, n.name))
    for n in likely[:SIBLINGS_MAX]:
        handle = _matching(files, os.path.join(folder, n.name), owner, body, copy)
        if handle is not None:
            return handle
    return None


def _matching(files: Files, path: bytes, owner: int | None, body: Body, copy: bool) -> int | None:
    guard, handle = body.state.guard, None
    with contextlib.suppress(OSError):
        handle, seen = open_checked(files, path, owner)
        fits = seen.size >= body.state.offset and (_younger(seen, body) if copy else _renamed(seen, body))
        if fits and (not guard.length or guard.matches(files.read(handle, guard.start, guard.length))):
            return handle
    if handle is not None:
        with contextlib.suppress(OSError):
            files.close(handle)
    return None


def _younger(seen: Stat, body: Body) -> bool:
    return seen.born_ns is not None and body.born_ns is not None and seen.born_ns > body.born_ns


def _renamed(seen: Stat, body: Body) -> bool:
    """An inode number without birth times may have been given to another file, and headers are alike: then 4 KiB must be equal."""
    sure = None not in (seen.born_ns, body.born_ns) or body.state.guard.length == GUARD_BYTES
    return sure and body.same(seen)
