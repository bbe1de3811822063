"""What remembers quiet shapes, in C (`sieve.c`), without numpy: an `engine.sieve.Memory`, or None where the helper cannot be had."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from defib.adapters.native import made, pages
from defib.engine.sieve import FRESH, SHARE, Left, Shapes

SOURCE = Path(__file__).with_name("sieve.c")
P, N = ctypes.c_void_p, ctypes.c_int64
MOST = 8192  # shapes
PLACES = 4 * MOST
ROOM = 2 * 1024 * 1024  # bytes of their records
SHORTEST = 16  # bytes of a record that is left, on average
FULL = -2


class _Sieve(ctypes.Structure):
    """`struct sieve` of sieve.c."""

    _fields_ = [
        ("table", P), ("places", N), ("many", N), ("most", N), ("room", N),
        ("blind", P), ("raw", P), ("begin", P), ("from", P), ("to", P), ("next", P), ("verdict", P),
        ("kept", P), ("stop", P), ("line", P),
        ("records", N), ("used", N), ("most_records", N), ("most_used", N), ("feeds", N),
    ]  # fmt: skip


class Memory:
    """The loaded helper, what it remembers, and room for what is left of a text, which is used again for the next."""

    def __init__(self, path: Path) -> None:
        """Raises OSError or AttributeError for what is no such helper."""
        c = ctypes.CDLL(str(path))
        self._sift, self._forget = c.sift, c.forget
        self._sift.restype, self._sift.argtypes = N, (P, ctypes.c_char_p, N, N, N)
        self._forget.restype, self._forget.argtypes = None, (P,)
        self._table, self._blind, self._raw = (
            pages(kind, n) for kind, n in ((ctypes.c_uint32, PLACES), *2 * [(ctypes.c_uint8, ROOM)])
        )
        self._begin, self._verdict = pages(N, MOST + 1), pages(ctypes.c_uint8, MOST)
        self._from, self._to, self._next = (pages(ctypes.c_int32, MOST) for _ in range(3))
        self._s = _Sieve(places=PLACES, most=MOST, room=ROOM)
        for name in ("table", "blind", "raw", "begin", "from", "to", "next", "verdict"):
            setattr(self._s, name, ctypes.addressof(getattr(self, f"_{name}")))
        self._judged = 0  # of the shapes
        self._kept: Any = ()

    @property
    def shapes(self) -> int:
        """How many it remembers."""
        return int(self._s.many)

    def sift(self, text: bytes, judge: Callable[[Shapes], Iterable[tuple[int, int, int]]]) -> Left | None:
        """As `engine.sieve.Memory` has it."""
        s, at, size = self._s, 0, len(text)
        self._make_room(size // SHARE)
        s.records = s.used = s.feeds = 0
        while 0 <= at < size:
            at = self._sift(ctypes.byref(s), text, size, at, FRESH)
            self._judge(judge)
        if at == FULL:
            self._forget(ctypes.byref(s))
            self._judged = 0
        if at < 0:
            return None
        n = s.records
        return Left(ctypes.string_at(self._kept, s.used) if n else b"", self._stop[:n], self._line[:n], s.feeds)

    def _make_room(self, size: int) -> None:
        s = self._s
        s.most_used = size
        if size > len(self._kept):
            room = size + size // 4
            s.most_records = room // SHORTEST
            self._kept = pages(ctypes.c_uint8, room)
            self._stop, self._line = (pages(N, s.most_records + 1) for _ in range(2))
            for name in ("kept", "stop", "line"):
                setattr(s, name, ctypes.addressof(getattr(self, f"_{name}")))

    def _judge(self, judge: Callable[[Shapes], Iterable[tuple[int, int, int]]]) -> None:
        first, many = self._judged, self._s.many
        if first == many:
            return
        begins = self._begin[first : many + 1]
        start, size = begins[0], begins[-1] - begins[0]
        blind, raw = (ctypes.string_at(ctypes.addressof(part) + start, size) for part in (self._blind, self._raw))
        told = judge(Shapes(blind, raw, [begin - start - 1 for begin in begins[1:]]))
        for k, (verdict, begin, end) in enumerate(told, first):
            self._verdict[k], self._from[k], self._to[k] = verdict, begin, end
        self._judged = many


def memory(cache: Path) -> Memory | None:
    """The helper, compiled if it is not in the cache yet."""
    return made(cache, Memory, SOURCE)
