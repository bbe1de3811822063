"""Records by shape in C (`shapes.c`), without numpy: an `engine.shorter.Sorter`, or None where the helper is switched off or cannot be had."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from defib.adapters.native import made, pages
from defib.engine.shorter import MOST, SHARE, SHORTEST, Short

SOURCE = Path(__file__).with_name("shapes.c")
P, N = ctypes.c_void_p, ctypes.c_int64
CALLS = {
    "sorted": (N, (P, N, P, N, N, N, N, P, P, P, P, P, P, P)),
    "marked": (None, (N, P, P, P, P, N, P)),
    "gathered": (N, (P, N, P, P, P, P, N, P, P, N, P, P, P, P, P)),
}  # fmt: skip
PLACES = 4 * MOST


class Sorter:
    """The loaded helper, and room for the records of a text, which is used again for the next."""

    def __init__(self, path: Path) -> None:
        """Raises OSError or AttributeError for what is no such helper."""
        self.c = ctypes.CDLL(str(path))
        for name, (result, types) in CALLS.items():
            call = getattr(self.c, name)
            call.restype, call.argtypes = result, types
        self.table = (ctypes.c_uint64 * PLACES)()
        self.sample, self.length, self.end, self.at = ((N * (MOST + 2))() for _ in range(4))
        self.room = self.records = 0

    def sorted(self, text: bytes) -> Sorted | None:
        """As `engine.shorter.Sorter` has it."""
        self._make_room(len(text))
        n, room = N(), len(text) // SHARE
        many = self.c.sorted(
            text, len(text), self.table, PLACES, MOST, room, self.records, self.of, self.stop, ctypes.byref(n), self.sample, self.length,
            self.out, self.end,
        )  # fmt: skip
        if many < 0:
            return None
        stops = self.end[:many]
        return Sorted(self, text, n.value, ctypes.string_at(self.out, stops[-1] + 1 if stops else 0), stops)

    def _make_room(self, size: int) -> None:
        if size > self.room:
            self.room = size + size // 4
            self.records = self.room // SHORTEST
            self.of, self.shape = (pages(ctypes.c_int32, self.records) for _ in range(2))
            self.stop, self.ends, self.count, self.first, self.last = (pages(N, self.records) for _ in range(5))
            self.out = pages(ctypes.c_uint8, self.room)


@dataclass(slots=True)
class Sorted:
    """As `engine.shorter.Shaped` has it; good until the next text is sorted."""

    by: Sorter
    text: bytes
    count: int
    digest: bytes
    stops: list[int]
    _apart: Any = None

    def mark(self, doubt: Iterable[int], ends: array[int]) -> None:
        """As `engine.shorter.Shaped` has it."""
        self._apart = self._apart or (ctypes.c_uint8 * max(self.count, 1))()
        where = (N * max(len(ends), 1)).from_buffer(ends) if len(ends) else (N * 1)()
        by = self.by
        by.c.marked(self.count, by.stop, by.of, self._flags(doubt), where, len(ends), self._apart)

    def gathered(self, split: Iterable[int]) -> Short | None:
        """As `engine.shorter.Shaped` has it."""
        by = self.by
        apart = self._apart or (ctypes.c_uint8 * max(self.count, 1))()
        made = by.c.gathered(
            self.text, self.count, by.stop, by.of, apart, self._flags(split), len(self.stops), by.at, by.out, len(self.text) // SHARE,
            by.ends, by.shape, by.count, by.first, by.last,
        )  # fmt: skip
        if made < 0:
            return None
        stops = by.ends[:made]
        text = ctypes.string_at(by.out, stops[-1] + 1 if stops else 0)
        return Short(text, stops, by.shape[:made], by.count[:made], by.first[:made], by.last[:made])

    def _flags(self, shapes: Iterable[int]) -> Any:
        flags = (ctypes.c_uint8 * max(len(self.stops), 1))()
        for one in shapes:
            flags[one] = 1
        return flags


def sorter(cache: Path) -> Sorter | None:
    """The helper, compiled if it is not in the cache yet."""
    return made(cache, Sorter, SOURCE)
