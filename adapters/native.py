"""A Hyperscan of the system's, called through a small helper in C: matches are collected without entering Python for each.

In: a cache folder. Out: `library`, or None where the helper is switched off (`DEFIB_NATIVE=off`), no Hyperscan or Vectorscan is installed as
a shared library, or the helper is not built and cannot be. Always holds: code is only run from a file and folders that nobody but us and
root can write; nothing here fails, everything works without it. `collect.c` is compiled once per source and machine type.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
import re
import stat
import sys
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from defib.engine.library import Entry, Library, Matches, Searcher, Spans

SOURCE = Path(__file__).with_name("collect.c")
INCLUDED = re.compile(rb'^#include "(\w+\.h)"$', re.M)  # headers of ours
T = TypeVar("T")
COMPILERS = ("cc", "gcc", "clang")
COMPILE_S = 60  # a compiler that takes longer is given up
SHARED = ("libhs.so.5", "libhs.5.dylib")  # Vectorscan's bears the same name
BLOCK_MODE = 1
ALL = 2**62  # more matches than a text can hold


class _Found(ctypes.Structure):
    """`struct matches` of collect.c."""

    _fields_ = [
        ("n", ctypes.c_int64), ("room", ctypes.c_int64), ("most", ctypes.c_int64),
        ("id", ctypes.c_void_p), ("end", ctypes.c_void_p), ("start", ctypes.c_void_p), ("failed", ctypes.c_int64),
    ]  # fmt: skip


class _Database(ctypes.Structure):
    """`struct database` of collect.c."""

    _fields_ = [("db", ctypes.c_void_p), ("scratch", ctypes.c_void_p)]


class Collector:
    """The helper and the library it calls."""

    def __init__(self, helper: Path, library: str) -> None:
        """Raises OSError or AttributeError for what is no such library or helper, ValueError where it cannot run on this processor."""
        self.hs, self.helper = ctypes.CDLL(library), ctypes.CDLL(str(helper))
        self.hs.hs_version.restype = ctypes.c_char_p
        self.scan = ctypes.cast(self.hs.hs_scan, ctypes.c_void_p)
        if self.hs.hs_valid_platform():
            raise ValueError("the library does not run on this processor")
        self.name = f"libhs {self.hs.hs_version().decode()}"

    def compiled(self, entries: Sequence[Entry]) -> bytes:
        """As `Library` has it."""
        n, db, fault = len(entries), ctypes.c_void_p(), ctypes.c_void_p()
        ids, expressions, flags = zip(*entries, strict=True)
        number = ctypes.c_uint * n
        try:
            self._done(
                self.hs.hs_compile_multi(
                    (ctypes.c_char_p * n)(*expressions), number(*flags), number(*ids), n, BLOCK_MODE, None,
                    ctypes.byref(db), ctypes.byref(fault),
                )
            )  # fmt: skip
            return self._serialized(db)
        finally:
            self.hs.hs_free_compile_error(fault)
            self.hs.hs_free_database(db)

    def _serialized(self, db: ctypes.c_void_p) -> bytes:
        at, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._done(self.hs.hs_serialize_database(db, ctypes.byref(at), ctypes.byref(size)))
        try:
            return ctypes.string_at(at, size.value)
        finally:
            ctypes.CDLL(None).free(at)

    def load(self, serialized: bytes) -> Searcher:
        """As `Library` has it."""
        return Collected(self, serialized)

    @staticmethod
    def _done(code: int) -> None:
        if code:
            raise ValueError(f"Hyperscan says {code}")


class Collected:
    """A loaded database, its scratch space and room for its matches, all freed with it."""

    def __init__(self, by: Collector, serialized: bytes) -> None:
        self._by, self._c, self._found = by, _Database(), _Found()
        size = ctypes.c_size_t(len(serialized))
        db, scratch = ctypes.c_void_p(), ctypes.c_void_p()
        by._done(by.hs.hs_deserialize_database(serialized, size, ctypes.byref(db)))
        self._c.db = db
        by._done(by.hs.hs_alloc_scratch(db, ctypes.byref(scratch)))
        self._c.scratch = scratch

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self._by.helper.release(ctypes.byref(self._found))
            self._by.hs.hs_free_scratch(ctypes.c_void_p(self._c.scratch))
            self._by.hs.hs_free_database(ctypes.c_void_p(self._c.db))

    def scan(self, text: bytes | memoryview) -> Matches:
        """As `Searcher` has it."""
        self._collect(text, ALL)
        return _column(self._found.n, self._found.id), _column(self._found.n, self._found.end)

    def spans(self, text: bytes | memoryview) -> Spans:
        """As `Searcher` has it."""
        self._collect(text, ALL)
        found = self._found
        return _column(found.n, found.id), _column(found.n, found.start), _column(found.n, found.end)

    def few(self, text: bytes | memoryview, most: int) -> list[tuple[int, int]] | None:
        """As `Searcher` has it."""
        self._collect(text, most)
        if self._found.n > most:
            return None
        return sorted(zip(_column(self._found.n, self._found.end), _column(self._found.n, self._found.id), strict=True))

    def _collect(self, text: bytes | memoryview, most: int) -> None:
        assert len(text) < 2**32, "a batch is bounded far below 4 GiB"
        self._found.most = most
        code = self._by.helper.collect(
            self._by.scan, ctypes.byref(self._c), bytes(text), ctypes.c_uint(len(text)), ctypes.byref(self._found)
        )
        if code and self._found.n <= most:
            raise MemoryError(f"collecting matches ended with {code}")

    def gated(self, patterns: Searcher, text: bytes, once: int) -> tuple[Matches, frozenset[int]]:
        """As `Gate` has it."""
        assert len(text) < 2**32, "a batch is bounded far below 4 GiB"
        assert isinstance(patterns, Collected)
        out = patterns._found
        self._found.most = out.most = ALL
        code = self._by.helper.gated(
            self._by.scan, ctypes.byref(self._c), ctypes.c_int64(once), ctypes.byref(patterns._c), bytes(text),
            ctypes.c_uint(len(text)), ctypes.byref(self._found), ctypes.byref(out),
        )  # fmt: skip
        if code:
            raise MemoryError(f"collecting matches ended with {code}")
        return (_column(out.n, out.id), _column(out.n, out.end)), frozenset(_column(self._found.n, self._found.id))


def _column(n: int, at: int | None) -> array[int]:
    """A copy of n numbers of 64 bits."""
    out = array("q")
    if n:
        assert at is not None
        out.frombytes(ctypes.string_at(at, 8 * n))
    return out


def library(cache: Path) -> Library | None:
    """The system's library with the helper, which is compiled if it is not in the cache yet."""
    if _switched_off():
        return None
    for name in SHARED:
        with contextlib.suppress(OSError, AttributeError, ValueError):
            ctypes.CDLL(name)
            path = helper(cache, SOURCE)
            return Collector(path, name) if path is not None else None
    return None


def told(cache: Path) -> str:
    """In one line: which library scans are done with, or what the helper lacks."""
    found = library(cache)
    if found is not None:
        return f"with the helper in C, by {found.name}"
    lacks = "it could not be compiled or loaded"
    if os.environ.get("DEFIB_NATIVE") == "off":
        lacks = "DEFIB_NATIVE=off"
    elif not _installed():
        lacks = "no Hyperscan or Vectorscan is installed as a shared library (libhs.so.5)"
    elif not cache.is_dir() or not _ours(cache):
        lacks = "the cache folder is missing, or others can write there or rename it"
    elif _compiler() is None:
        lacks = "there is no C compiler"
    return f"without the helper in C: {lacks}"


def _installed() -> bool:
    for name in SHARED:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False


def _compiler() -> str | None:
    import shutil

    return next((path for path in map(shutil.which, COMPILERS) if path), None)


def _switched_off() -> bool:
    return os.environ.get("DEFIB_NATIVE") == "off" or sys.platform == "win32"


def pages(kind: Any, many: int) -> Any:
    """An array in pages that cost nothing before they are used."""
    return (kind * many).from_buffer(mmap.mmap(-1, many * ctypes.sizeof(kind)))


def made(cache: Path, kind: Callable[..., T], *sources: Path) -> T | None:
    """What is made of the compiled helpers. None where one cannot be had, or is none (`kind` raises OSError or AttributeError)."""
    paths = [helper(cache, source) for source in sources]
    with contextlib.suppress(OSError, AttributeError):
        return kind(*paths) if None not in paths else None
    return None


def helper(cache: Path, source: Path) -> Path | None:
    """The compiled helper; made if it is not there. None where it is switched off, cannot be made or is not to be trusted."""
    if _switched_off():
        return None
    try:
        text = source.read_bytes()
        text += b"".join(source.with_name(name.decode()).read_bytes() for name in INCLUDED.findall(text))
        key = hashlib.sha256(text + "|".join(os.uname()[i] for i in (0, 4)).encode()).hexdigest()
        path = cache / f"{source.stem}-{key[:32]}.so"
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _ours(cache):
            return None
        if not path.exists():
            _compile(source, path)
        info = os.lstat(path)
    except OSError:
        return None
    return path if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022 else None


def _compile(source: Path, path: Path) -> None:
    """Raises OSError where there is no compiler. Where it fails an empty file is left, so that it is not tried again by every scan."""
    import subprocess
    import tempfile

    compiler = _compiler()
    if compiler is None:
        raise OSError("no C compiler")
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".so")
    os.close(handle)
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", name, str(source)]
    try:
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_S, stdin=subprocess.DEVNULL)  # noqa: S603  # our own source
        except subprocess.SubprocessError:
            Path(name).write_bytes(b"")
        os.chmod(name, 0o600)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _ours(folder: Path) -> bool:
    """Whether nobody but us and root can put a file there: the folder is ours, and none above it may be renamed away by others."""
    here = folder.resolve()
    if os.stat(here).st_uid != os.geteuid() or os.stat(here).st_mode & 0o022:
        return False
    for above in here.parents:
        info = os.stat(above)
        sticky = info.st_mode & stat.S_ISVTX and info.st_uid in (0, os.geteuid())
        if info.st_uid not in (0, os.geteuid()) or (info.st_mode & 0o022 and not sticky):
            return False
    return True
