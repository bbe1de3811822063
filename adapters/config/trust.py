"""Whom a daemon that runs as root lets say what it does: files that only root can change.

In: paths of configuration, rules and policies. Out: what speaks against each. Always holds: the file, every file of a folder, and every folder
above them belong to root (or to the user we run as) and nobody else may write to them; a folder with the sticky bit, where only owners may
rename, counts only above.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from defib.adapters.show import printable
from defib.engine.errors import Problem

MEND = "chown root and chmod go-w, so that nobody else decides what runs as root"


def faults(paths: Iterable[Path], uid: int | None = None) -> list[Problem]:
    """What is not to be trusted. uid: whom we run as; anyone but root trusts what he was told to read."""
    me = os.geteuid() if uid is None else uid
    if me != 0:
        return []
    found: dict[str, str] = {}
    for path in paths:
        real = Path(os.path.realpath(path))
        inner = sorted(real.rglob("*")) if real.is_dir() else []
        for each in [real, *inner]:
            _judge(each, me, found, above=False)
        for folder in real.parents:
            _judge(folder, me, found, above=True)
    return [Problem(printable(p), 1, 1, why, MEND) for p, why in found.items()]


def _judge(path: Path, me: int, found: dict[str, str], *, above: bool) -> None:
    try:
        seen = path.lstat()
    except OSError as e:
        found[str(path)] = e.strerror or str(e)
        return
    if seen.st_uid not in (0, me):
        found[str(path)] = f"belongs to user {seen.st_uid}"
    elif stat.S_ISLNK(seen.st_mode):
        return  # a link's own mode says nothing; what it leads to inside a rule folder is not followed by the reader of rules
    elif seen.st_mode & 0o022 and not (above and seen.st_mode & stat.S_ISVTX):
        found[str(path)] = "may be written to by others"
