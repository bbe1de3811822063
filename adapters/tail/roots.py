"""What a person named -> what a source follows: absolute paths as bytes, and the folders nothing outside of may be opened.

In: files, folders and globs as they stand on a command line. Out: watches without links, and a root for each. Always: a path that exists is
taken by its name even if it holds wildcard characters; links are followed here, once, because a person named them, and never again; a
root is the folder above what was named, or the nearest one that exists, so what was named may be made, removed and made again.
"""

from __future__ import annotations

import os

from defib.adapters.tail.places import WILD


def rooted(paths: list[str]) -> tuple[list[bytes], tuple[bytes, ...]]:
    """Watches in their order, and the roots they lie beneath, each once."""
    watches = [_watch(os.fsencode(path)) for path in paths]
    return watches, tuple(dict.fromkeys(_root(w) for w in watches))


def _watch(path: bytes) -> bytes:
    wild = WILD.search(path)
    if wild is None or os.path.lexists(path):
        return _escaped(os.path.realpath(path))
    cut = path.rfind(b"/", 0, wild.start()) + 1
    return os.path.join(_escaped(os.path.realpath(path[:cut] or b".")), path[cut:].rstrip(b"/"))


def _escaped(path: bytes) -> bytes:
    return WILD.sub(lambda found: b"[" + found[0] + b"]", path)


def _root(watch: bytes) -> bytes:
    wild = WILD.search(watch)
    folder = watch[: watch.rfind(b"/", 0, wild.start())] if wild else os.path.dirname(watch)
    while folder not in (b"", b"/") and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder or b"/"
