"""What was named -> where it really is, without touching any mount but one's own.

In: an absolute path or glob that a person or the configuration named, the mount of this reader, the table of mounts. Out: the path without links
up to the first component that is not there or holds wildcards; or the path so far, where it leads to another mount. Links are followed
here, once, because what was named is trusted; never later.
"""

from __future__ import annotations

import errno
import fnmatch
import os
from collections.abc import Sequence

from defib.adapters.tail.mountinfo import Mount, mount_of
from defib.adapters.tail.places import WILD

LINKS_MAX = 40
PSEUDO = frozenset(
    "proc sysfs cgroup cgroup2 devpts devtmpfs securityfs debugfs tracefs bpf mqueue pstore configfs fusectl "
    "hugetlbfs efivarfs binfmt_misc rpc_pipefs nsfs".split()
)


class ElsewhereError(Exception):
    """The path leads to another mount. path: where, wildcards kept."""

    def __init__(self, path: bytes) -> None:
        self.path = path


def resolve(named: bytes, mine: Mount, known: Sequence[Mount], literal: bool = False) -> bytes:
    """A watch: names that exist are escaped, wildcards that remain are wildcards. literal: nothing in it is a wildcard, nothing is
    escaped. Raises ElsewhereError, OSError (too many links)."""
    done, todo = _start(named, mine, known)
    links = 0
    while todo:
        name = todo.pop(0)
        here = os.path.dirname(done) if name == b".." else os.path.join(done, name)
        if mount_of(here, known).identity != mine.identity:
            raise ElsewhereError(os.path.join(here, *todo))
        if name == b"..":
            done = here
        elif not os.path.lexists(here):
            rest = [name, *todo]
            if literal or not any(WILD.search(part) for part in rest):
                return _joined(done, rest, literal)
            return os.path.join(_escaped(done), *rest)
        elif os.path.islink(here):
            links += 1
            if links > LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = os.readlink(here)
            if target.startswith(b"/"):
                done, todo = _start(os.path.join(target, *todo), mine, known)
            else:
                todo = _parts(target) + todo
        else:
            done = here
    return done if literal else _escaped(done)


def _start(path: bytes, mine: Mount, known: Sequence[Mount]) -> tuple[bytes, list[bytes]]:
    """(mount point, what follows): no mount point has links above it."""
    mount = mount_of(path.partition(b"/..")[0] or b"/", known)
    if mount.identity != mine.identity:
        raise ElsewhereError(path)
    return mount.point, _parts(path[len(mount.point.rstrip(b"/")) :])


def _parts(path: bytes) -> list[bytes]:
    return [p for p in path.split(b"/") if p not in (b"", b".")]


def _joined(done: bytes, rest: list[bytes], literal: bool) -> bytes:
    whole = os.path.join(done, *rest)
    return whole if literal else _escaped(whole)


def _escaped(path: bytes) -> bytes:
    return WILD.sub(lambda found: b"[" + found[0] + b"]", path)


def unescaped(watch: bytes) -> bytes:
    """The path of a watch without wildcards of its own."""
    out, at = b"", 0
    while at < len(watch):
        single = watch[at : at + 1] == b"[" and watch[at + 2 : at + 3] == b"]"
        out += watch[at + 1 : at + 2] if single else watch[at : at + 1]
        at += 3 if single else 1
    return out


def below(watch: bytes, known: Sequence[Mount]) -> list[tuple[Mount, bytes]]:
    """Other mounts a watch reaches into, each with what is to be watched there. A folder is watched with all that is mounted in it; a
    glob goes on behind the mount points that its first components match."""
    parts = [p for p in watch.split(b"/") if p]
    out = []
    for mount in known:
        names = [p for p in mount.point.split(b"/") if p]
        if not names or mount.kind in PSEUDO:
            continue
        fits = all(fnmatch.fnmatchcase(n, p) for n, p in zip(names, parts, strict=False))
        if not fits:
            continue
        if len(names) >= len(parts):
            if len(names) > len(parts):
                out.append((mount, _escaped(mount.point)))
        elif (
            any(WILD.search(p) for p in parts[: len(names)])
            and unescaped(b"/" + b"/".join(parts[: len(names)])) != mount.point
        ):
            out.append((mount, os.path.join(_escaped(mount.point), *parts[len(names) :])))
    return out


def root_of(watch: bytes) -> bytes:
    """The folder nothing outside of may be opened for a watch: the one above it, or the nearest that exists."""
    wild = WILD.search(watch.replace(b"[[]", b"___").replace(b"[*]", b"___").replace(b"[?]", b"___"))
    folder = (
        os.path.dirname(unescaped(watch)) if wild is None else unescaped(watch[: watch.rfind(b"/", 0, wild.start())])
    )
    while folder not in (b"", b"/") and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder or b"/"
