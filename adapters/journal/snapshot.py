"""The engine's memory after some commit, so that a start need not fold the whole journal.

In: plain objects of the engine and the rulebook they rest on. Out: a file, or the objects again. Always holds: a snapshot is only a
shortcut: one of another version of the code, of other rules, of another journal, or with a single wrong byte is passed over, and the
journal is folded instead.

The file is a line that names the format, a digest of what follows, and zstd over a pickle. It lies in a folder that only we can write to;
even so only types of the engine, numpy's arrays and plain containers are made from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import platform
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from defib import engine
from defib.adapters.journal import place
from defib.engine.rulebook import Rulebook

MAGIC = b"defib snapshot 1\n"
DIGEST_BYTES = 32
PREFIX = "snapshot-"
KEEP = 2
SAFE = {
    "builtins": {"set", "frozenset", "complex", "slice", "range", "bytearray"},
    "collections": {"deque", "OrderedDict", "Counter", "defaultdict"},
    "numpy": {"ndarray", "dtype"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "defib.adapters.board": {"Board"},
    "defib.adapters.journal.resume": {"Resumed"},
}


@cache
def code_version() -> str:
    """Names the code whose objects a snapshot holds."""
    digest = hashlib.sha256(f"{platform.python_version()} {np.__version__}".encode())
    folder = Path(engine.__file__).parent
    kept = (folder.parent / "adapters" / name for name in ("board.py", "journal/resume.py"))
    for path in [*sorted(folder.glob("*.py")), *kept]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def save(folder: str, seq: int, value: Any, book: Rulebook, journal: str) -> None:
    """Keep value as it is after record `seq`; older snapshots but one go. Raises OSError."""
    body = zstandard.ZstdCompressor(level=1).compress(_pickled((_key(book, journal, seq), value), book))
    place.save(os.path.join(folder, f"{PREFIX}{seq:012d}"), MAGIC + _digest(body) + body)
    for _, path in found(folder)[KEEP:]:
        with contextlib.suppress(OSError):
            os.unlink(path)


def found(folder: str) -> list[tuple[int, str]]:
    """(number, path) of every snapshot, the newest first."""
    names = [n for n in os.listdir(folder) if n.startswith(PREFIX) and n[len(PREFIX) :].isdigit()]
    return sorted(((int(n[len(PREFIX) :]), os.path.join(folder, n)) for n in names), reverse=True)


def load(folder: str, most: int, book: Rulebook, journal: str) -> tuple[int, Any] | None:
    """(number, value) of the newest usable snapshot of a record up to `most`; None where there is none."""
    for seq, path in found(folder):
        if seq > most:
            continue
        with contextlib.suppress(Exception):  # whatever is wrong with it, the journal has everything
            raw = place.load(path)
            body = raw[len(MAGIC) + DIGEST_BYTES :]
            if raw.startswith(MAGIC) and raw[len(MAGIC) : len(MAGIC) + DIGEST_BYTES] == _digest(body):
                key, value = _Loader(io.BytesIO(zstandard.ZstdDecompressor().decompress(body)), book).load()
                if key == _key(book, journal, seq):
                    return seq, value
    return None


def _key(book: Rulebook, journal: str, seq: int) -> tuple[str, str, str, int]:
    return code_version(), book.hash, journal, seq


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()


def _shared(book: Rulebook) -> dict[str, Any]:
    """What belongs to the rulebook and is only pointed to."""
    return {
        "book": book,
        "detect": book.detect,
        "formats": book.format_by_id,
        **{f"format {name}": f for name, f in book.format_by_id.items()},
    }


def _pickled(value: Any, book: Rulebook) -> bytes:
    names = {id(thing): name for name, thing in _shared(book).items()}
    out = io.BytesIO()

    class Saver(pickle.Pickler):
        def persistent_id(self, obj: Any) -> str | None:
            return names.get(id(obj))

    Saver(out, protocol=5).dump(value)
    return out.getvalue()


class _Loader(pickle.Unpickler):
    def __init__(self, raw: io.BytesIO, book: Rulebook) -> None:
        super().__init__(raw)
        self._shared = _shared(book)

    def persistent_load(self, pid: Any) -> Any:
        return self._shared[pid]

    def find_class(self, module: str, name: str) -> Any:
        if name in SAFE.get(module, ()) or (module.startswith("defib.engine.") and "." not in name):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a snapshot")
