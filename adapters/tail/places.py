"""What to follow: files, folders and globs as bytes -> the paths of logs that are there now.

Folders are walked without following links, a few levels deep; packed files, files that are no logs by their ending and
hidden ones are left out. A path without wildcards that is no folder is followed whether it exists or not.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
from collections.abc import Container
from dataclasses import dataclass, field

from defib.adapters.sniff import NOT_LOGS
from defib.adapters.tail.files import NAMES_MAX, Files, Name
from defib.adapters.tail.siblings import rotated

DEPTH_MAX = 6
WILD = re.compile(rb"[*?\[]")
PACKED = (b".gz", b".zst", b".zstd", b".bz2", b".xz")
NOT_THERE = "not there yet; followed as soon as it is"
NO_LOG = "no log in it; followed as soon as there is one"
ONLY_PACKED = "only packed files in it ({}), which do not grow: 'defib replay' reads them"
LEFT_OUT = tuple(e.encode() for e in NOT_LOGS)


@dataclass(slots=True)
class Places:
    """named: given as such, there or not. found: path -> inode. troubles: folders that could not be listed, and why. bare: watches that lead to
    nothing (yet), and why; packed: files left out because they are packed."""

    named: list[bytes] = field(default_factory=list)
    found: dict[bytes, int] = field(default_factory=dict)
    troubles: dict[bytes, str] = field(default_factory=dict)
    bare: dict[bytes, str] = field(default_factory=dict)
    packed: int = 0


def look(files: Files, watches: list[bytes]) -> Places:
    """List every watch once."""
    found = Places()
    for watch in watches:
        one = Places()
        if WILD.search(watch):
            _glob(files, watch, one)
        else:
            _named(files, watch, one)
        if not (one.named or one.found or one.troubles):
            found.bare[watch] = ONLY_PACKED.format(one.packed) if one.packed else NO_LOG
        found.named += one.named
        found.found |= one.found
        found.troubles |= one.troubles
        found.bare |= one.bare
    return found


def _named(files: Files, path: bytes, found: Places) -> None:
    try:
        names = files.names(path)
    except OSError as e:
        if e.errno in (errno.ENOTDIR, errno.ENOENT, errno.ELOOP):
            found.named.append(path)
            if e.errno == errno.ENOENT:
                found.bare[path] = NOT_THERE
        else:
            found.troubles[path] = e.strerror or str(e)
        return
    _take(files, path, names, found)


def _take(files: Files, folder: bytes, names: list[Name], found: Places) -> None:
    """The logs of a folder and of those below it."""
    todo = [(folder, names, 0)]
    while todo:
        here, entries, depth = todo.pop()
        found.found |= _logs(here, entries, found)
        for n in sorted(entries, key=lambda n: n.name):
            if n.kind == "folder" and depth < DEPTH_MAX and not n.name.startswith(b"."):
                below = os.path.join(here, n.name)
                todo.append((below, _names(files, below, found), depth + 1))


def _glob(files: Files, pattern: bytes, found: Places) -> None:
    """Component by component; a folder that matches the whole pattern is walked."""
    first = WILD.search(pattern)
    assert first is not None
    cut = pattern.rfind(b"/", 0, first.start())
    folders, parts = [pattern[:cut] or b"/"], pattern[cut + 1 :].split(b"/")
    for depth, part in enumerate(parts):
        last, deeper = depth == len(parts) - 1, list[bytes]()
        for folder in folders:
            hits = [n for n in _names(files, folder, found) if fnmatch.fnmatchcase(n.name, part)]
            inner = [os.path.join(folder, n.name) for n in hits if n.kind == "folder" and not n.name.startswith(b".")]
            if not last:
                deeper += inner
                continue
            found.found |= _logs(folder, hits, found)
            for path in inner:
                _take(files, path, _names(files, path, found), found)
        folders = deeper


def _names(files: Files, folder: bytes, found: Places) -> list[Name]:
    try:
        names = files.names(folder)
    except OSError as e:
        found.troubles[folder] = e.strerror or str(e)
        return []
    if len(names) >= NAMES_MAX:
        found.troubles[folder] = f"holds more than {NAMES_MAX} names; the others are not followed"
    return names


def _logs(folder: bytes, entries: list[Name], places: Places) -> dict[bytes, int]:
    files = [n for n in entries if n.kind == "file" and not n.name.startswith(b".")]
    logs = {
        os.path.join(folder, n.name): n.ino
        for n in sorted(files, key=lambda n: n.name)
        if not n.name.lower().endswith((*PACKED, *LEFT_OUT))
    }
    places.packed += sum(n.name.lower().endswith(PACKED) for n in files) if len(logs) < len(files) else 0
    return logs


def base_of(path: bytes, followed: Container[bytes]) -> bytes | None:
    """The followed path of which this one looks like a part that log rotation has put aside: `log` for `log.1`."""
    folder, name = os.path.split(path)
    for n in range(len(name) - 1, max(0, len(name) - 32), -1):
        if rotated(name, name[:n]) and (base := os.path.join(folder, name[:n])) in followed:
            return base
    return None
