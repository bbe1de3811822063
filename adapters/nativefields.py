"""The kernel that reads fields in C (`fields.c`, `shapes.c`): an `engine.fields.Kernel`, or None where the helper is switched off or cannot be had.

Always holds: as `native` has it, code is only run from a file and folders that nobody but us and root can write, nothing here fails, and
everything works without it, with the same rows.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import numpy.typing as npt

from defib.adapters.native import made
from defib.engine.fields import F64, I64, U8, Program

SOURCES = tuple(Path(__file__).with_name(name) for name in ("fields.c", "shapes.c"))
PARTS = 8  # of a date, as in shapes.c


class _Program(ctypes.Structure):
    """`struct program` of fields.c."""

    _fields_ = [
        ("code", ctypes.c_void_p), ("sets", ctypes.c_char_p), ("texts", ctypes.c_char_p), ("first", ctypes.c_char_p),
        ("prefix", ctypes.c_char_p), ("needed", ctypes.c_char_p), ("prefix_length", ctypes.c_int64), ("needed_length", ctypes.c_int64),
        ("slots", ctypes.c_int32), ("anchored", ctypes.c_int32), ("empty", ctypes.c_int32),
        ("run", ctypes.c_int32),
    ]  # fmt: skip


P, N = ctypes.c_void_p, ctypes.c_int64
FIELDS = {
    "search": (None, (P, P, N, P, P, P, P, P)), "has": (ctypes.c_int, (P, N, P, N)), "holding": (None, (P, N, P, P, N, P)),
    "numbers": (None, (P, N, P, P, P, P)), "cells": (None, (P, N, P, P, P, N, P, P)),
}  # fmt: skip
SHAPES = {
    "shapes": (N, (P, N, P, P, P, N, P, P, P, P, P, P, P)), "widened": (None, (P, N, P, P)), "dates": (None, (P, N, P, P, P, P, P)),
}  # fmt: skip


class Fields:
    """The loaded helper. Programs are handed over once."""

    def __init__(self, fields: Path, shapes: Path) -> None:
        """Raises OSError or AttributeError for what is no such helper."""
        self._c, self._s = ctypes.CDLL(str(fields)), ctypes.CDLL(str(shapes))
        for library, calls in ((self._c, FIELDS), (self._s, SHAPES)):
            for name, (result, types) in calls.items():
                call = getattr(library, name)
                call.restype, call.argtypes = result, types
        self._programs: dict[int, tuple[Program, _Program]] = {}

    def has(self, text: bytes, literal: bytes) -> bool:
        """As `Kernel` has it."""
        return bool(self._c.has(text, len(text), literal, len(literal)))

    def search(self, program: Program, text: bytes, start: I64, stop: I64, begin: I64 | None = None) -> tuple[U8, I64]:
        """As `Kernel` has it."""
        assert begin is None or (begin.flags.c_contiguous and begin.dtype == np.int64)
        start, stop = _flat(start), _flat(stop)
        state, slots = np.empty(len(start), np.uint8), np.empty((len(start), program.slots), np.int64)
        made = ctypes.byref(self._handed(program))
        since = _at(begin) if begin is not None else None
        self._c.search(made, text, len(start), _at(start), _at(stop), since, _at(state), _at(slots))
        return state, slots

    def shapes(self, text: bytes, start: I64, stop: I64) -> tuple[I64, I64, bytes, I64, I64, U8]:
        """As `Kernel` has it."""
        n, start, stop = len(start), _flat(start), _flat(stop)
        size = 1 << max(2 * n, 1).bit_length()
        table = np.empty(size, np.uint64)
        shape, sample, length, begin, end = (np.empty(n, np.int64) for _ in range(5))
        digest, kind = np.empty(len(text) + n, np.uint8), np.empty(n, np.uint8)
        many = self._s.shapes(
            text, n, _at(start), _at(stop), _at(table), size, _at(shape), _at(sample), _at(length), _at(digest),
            _at(begin), _at(end), _at(kind),
        )  # fmt: skip
        begin, end = begin[:many], end[:many]
        used = int(end[-1]) + 1 if many else 0
        return shape, sample[:many].copy(), digest[:used].tobytes(), begin.copy(), end.copy(), kind[:many].copy()

    def widened(self, text: bytes, start: I64, place: I64) -> I64:
        """As `Kernel` has it."""
        start, out = _flat(start), np.array(place, np.int64)
        self._s.widened(text, len(out), _at(start), _at(out))
        return out

    def dates(self, text: bytes, start: I64, shape: I64, part: I64) -> tuple[I64, U8]:
        """As `Kernel` has it."""
        start, shape, part = _flat(start), _flat(shape), _flat(part)
        assert part.shape[1:] == (PARTS, 2)
        us, state = np.empty(len(start), np.int64), np.empty(len(start), np.uint8)
        self._s.dates(text, len(start), _at(start), _at(shape), _at(part), _at(us), _at(state))
        return us, state

    def holding(self, text: bytes, stop: I64, literal: bytes) -> npt.NDArray[np.bool_]:
        """As `Kernel` has it."""
        stop, holds = _flat(stop), np.empty(len(stop), np.uint8)
        self._c.holding(text, len(stop), _at(stop), literal, len(literal), _at(holds))
        return holds.view(bool)

    def numbers(self, text: bytes, start: I64, stop: I64) -> tuple[F64, U8]:
        """As `Kernel` has it."""
        start, stop = _flat(start), _flat(stop)
        value, state = np.empty(len(start), np.float64), np.empty(len(start), np.uint8)
        self._c.numbers(text, len(start), _at(start), _at(stop), _at(value), _at(state))
        return value, state

    def cells(self, text: bytes, start: I64, shape: I64, part: I64) -> tuple[F64, U8]:
        """As `Kernel` has it."""
        start, shape, part = _flat(start), _flat(shape), _flat(part)
        rows = part.shape[1], len(start)
        value, state = np.empty(rows, np.float64), np.empty(rows, np.uint8)
        self._c.cells(text, len(start), _at(start), _at(shape), _at(part), rows[0], _at(value), _at(state))
        return value, state

    def _handed(self, p: Program) -> _Program:
        known = self._programs.get(id(p))
        if known is None:
            made = _Program(
                p.code.ctypes.data, p.sets, p.texts, p.first, p.prefix, p.needed, len(p.prefix), len(p.needed),
                p.slots, p.anchored, p.empty, p.run,
            )  # fmt: skip
            known = self._programs[id(p)] = p, made  # the program is kept: its memory is what the structure points to
        return known[1]


def _flat(a: I64) -> I64:
    return np.ascontiguousarray(a, np.int64)


def _at(a: npt.NDArray[np.generic]) -> int:
    return int(a.__array_interface__["data"][0])  # `a.ctypes` makes an object first


def kernel(cache: Path) -> Fields | None:
    """The helper, compiled if it is not in the cache yet."""
    return made(cache, Fields, *SOURCES)
