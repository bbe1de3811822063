"""Columns of records as spans of the batch's bytes: what a kernel's programs find, as numbers, text and event time.

In: a kernel, records, a format. Out: the same columns that Polars takes from the same records, and the records that are left to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from defib.engine import stamps as forms
from defib.engine.columns import numbers, texts
from defib.engine.fields import FOUND, I64, LEFT, Kernel, Program, program
from defib.engine.rulebook import Format

Bools = npt.NDArray[np.bool_]
Held = Callable[[bytes, bool], bool]  # whether a literal stands anywhere in the text; True: in any case of its letters
ABSENT = -1
FEW = 256  # records that are searched sooner than asked about


@dataclass(slots=True)
class Places:
    """Records in a text: start and stop of each, without its line feed."""

    text: bytes
    start: I64
    stop: I64

    def of(self, rows: npt.NDArray[np.bool_] | I64) -> Places:
        return Places(self.text, self.start[rows], self.stop[rows])

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Plan:
    """The programs of one format. more: with the names looked for; heads: only the main pattern gives the step; some: names of which one must be
    there."""

    main: Program
    more: tuple[tuple[Program, tuple[str, ...]], ...]
    unless: tuple[Program, ...]
    heads: bool
    some: tuple[str, ...]


def plan(fmt: Format, used: frozenset[str], heads: bool) -> Plan | None:
    """The format's programs; None where one of its patterns uses what programs do not know."""
    main, more = program(fmt.pattern), [program(p) for p in fmt.more]
    unless = [program(p) for p in fmt.unless]
    if main is None or None in more or None in unless:
        return None
    looked = tuple((p, tuple(n for n in p.names if n in used)) for p in more if p is not None)
    names = {*main.names, *(n for _, told in looked for n in told)}
    some = ("step",) if fmt.of is None else tuple(sorted(names))
    if not names.issuperset(some) or not some:
        return None
    return Plan(main, tuple(x for x in looked if x[1]), tuple(u for u in unless if u is not None), heads, some)


@dataclass(slots=True)
class Spans:
    """Captures of records by name: places in the text, -1 where a group took no part."""

    kernel: Kernel
    text: bytes
    height: int
    spans: dict[str, tuple[I64, I64]]

    @property
    def names(self) -> set[str]:
        return set(self.spans)

    def number(self, name: str) -> pl.Series:
        """Float64; what is written in no plain way is read as text."""
        start, stop = self.spans[name]
        value, state = self.kernel.numbers(self.text, start, stop)
        odd = np.flatnonzero(state == LEFT)
        out = pl.Series(pl.from_arrow(pa.array(value, pa.float64(), mask=state != FOUND)))
        return out.scatter(odd, numbers(cut_out(self.text, start[odd], stop[odd]))) if len(odd) else out

    def words(self, name: str) -> pl.Series:
        """String."""
        return cut_out(self.text, *self.spans[name])


def look(kernel: Kernel, one: Program, at: Places, held: Held) -> tuple[npt.NDArray[np.uint8], I64]:
    """As `Kernel.search`; nothing is looked for where none of the literals that a match needs stands anywhere in the text."""
    if len(at) and (len(at) < FEW or one.some is None or any(held(literal, one.fold) for literal in one.some)):
        return kernel.search(one, at.text, at.start, at.stop)
    return np.zeros(len(at), np.uint8), np.full((len(at), one.slots), ABSENT)


def read(kernel: Kernel, how: Plan, at: Places, held: Held) -> tuple[Spans, I64, I64]:
    """(captures, the records that are lines of the format, the records that are left to another way), as numbers within `at`."""
    plain = kernel.ascii(at.text, at.start, at.stop)
    rows = np.flatnonzero(plain)
    left = ~plain
    state, slots = look(kernel, how.main, at.of(rows), held)
    left[rows[state == LEFT]] = True
    stay = state != LEFT
    if how.heads:
        stay &= slots[:, how.main.names["step"]] != ABSENT if how.main.slots else False
    rows, slots = rows[stay], slots[stay]
    spans = {name: (slots[:, k], slots[:, k + 1]) for name, k in how.main.names.items()}
    here = at.of(rows)
    gone = np.zeros(len(rows), bool)
    for one, names in how.more:
        state, slots = look(kernel, one, here, held)
        gone |= state == LEFT
        for name in names:
            k = one.names[name]
            spans[name] = _either(spans.get(name), (slots[:, k], slots[:, k + 1]))
    keep = np.logical_or.reduce([spans[name][0] != ABSENT for name in how.some])
    for one in how.unless:
        state, _ = look(kernel, one, here, held)
        gone |= state == LEFT
        keep &= state != FOUND
    left[rows[gone]] = True
    good = np.flatnonzero(keep & ~gone)
    cells = Spans(kernel, at.text, len(good), {n: (a[good], b[good]) for n, (a, b) in spans.items()})
    return cells, rows[good], np.flatnonzero(left)


def _either(first: tuple[I64, I64] | None, second: tuple[I64, I64]) -> tuple[I64, I64]:
    if first is None:
        return second
    has = first[0] != ABSENT
    return np.where(has, first[0], second[0]), np.where(has, first[1], second[1])


def cut_out(text: bytes, start: I64, stop: I64) -> pl.Series:
    """Pieces of a text in ascending order as strings, null where start is -1; nothing is copied on the way."""
    there = np.flatnonzero(start != ABSENT)
    offsets = np.empty(2 * len(there) + 1, np.int64)
    offsets[0:-1:2], offsets[1::2] = start[there], stop[there]
    offsets[-1] = offsets[-2] if len(there) else 0
    pieces = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2 * len(there), [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )
    which = np.zeros(len(start), np.int64)
    which[there] = 2 * np.arange(len(there))
    return texts(pieces.take(pa.array(which, mask=start == ABSENT)))


def stamps(kernel: Kernel, at: Places, held: Held, text: Callable[[I64], pl.Series]) -> pl.Series:
    """As `engine.stamps.stamps` of these records (ASCII all of them). text: those that are left, as strings."""
    out, known = np.zeros(len(at), np.int64), np.zeros(len(at), bool)
    left = np.zeros(len(at), bool)
    for pattern, take in ((forms.MLLOG, _milliseconds), (forms.ISO, _date), (forms.US, _date)):
        form = program(pattern)
        assert form is not None, "our own forms are simple"
        rows = np.flatnonzero(~known & ~left)
        if not len(rows):
            break
        state, slots = look(kernel, form, at.of(rows), held)
        left[rows[state == LEFT]] = True
        hit = rows[state == FOUND]
        if len(hit):
            us, valid = take(kernel, at.text, form, slots[state == FOUND])
            out[hit[valid]], known[hit[valid]] = us[valid], True
    stamped = pl.Series(pl.from_arrow(pa.array(out, pa.int64(), mask=~known)))
    rest = np.flatnonzero(left)
    return stamped.scatter(rest, forms.stamps(text(rest))) if len(rest) else stamped


def _milliseconds(kernel: Kernel, text: bytes, _form: Program, slots: I64) -> tuple[I64, Bools]:
    return _whole(kernel, text, slots[:, 0], slots[:, 1]) * 1000, np.ones(len(slots), bool)


def _date(kernel: Kernel, text: bytes, form: Program, slots: I64) -> tuple[I64, Bools]:
    """Microseconds UTC, and whether month and day are such."""

    def part(name: str) -> I64:
        k = form.names[name]
        return _whole(kernel, text, slots[:, k], slots[:, k + 1])

    month, day = part("mo"), part("d")
    k = form.names["f"]
    begin, end = slots[:, k], np.minimum(slots[:, k + 1], slots[:, k] + 6)
    fraction = np.where(begin == ABSENT, 0, _whole(kernel, text, begin, end) * 10 ** np.clip(6 - (end - begin), 0, 6))
    seconds = part("h") * 3600 + part("mi") * 60 + part("s")
    if "z" in form.names:
        seconds -= 60 * _shift(text, slots[:, form.names["z"]], slots[:, form.names["z"] + 1])
    us = (days(part("y"), month, day) * 86400 + seconds) * 1_000_000 + fraction
    return us, (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)


def _whole(kernel: Kernel, text: bytes, start: I64, stop: I64) -> I64:
    """Digits as numbers; 0 where there are none."""
    return kernel.numbers(text, start, stop)[0].astype(np.int64)


def _shift(text: bytes, start: I64, stop: I64) -> I64:
    """Minutes east of Greenwich of `+hh:mm`, `-hhmm`; 0 for `Z` and nothing."""
    raw = np.frombuffer(text, np.uint8)
    out = np.zeros(len(start), np.int64)
    told = np.flatnonzero(stop - start > 1)
    a, b = start[told], stop[told]
    h1, h2, m1, m2 = (raw[k].astype(np.int64) - ord("0") for k in (a + 1, a + 2, b - 2, b - 1))
    minutes = (h1 * 10 + h2) * 60 + m1 * 10 + m2
    out[told] = np.where(raw[a] == ord("-"), -minutes, minutes)
    return out


def days(year: I64, month: I64, day: I64) -> I64:
    """Days since 1970-01-01, as `engine.stamps` counts them."""
    y = year - (month <= 2)
    m = (month + 9) % 12
    return 365 * y + y // 4 - y // 100 + y // 400 + (153 * m + 2) // 5 + day - 719469
