"""Columns of records as spans of the batch's bytes: what a kernel's programs find, as numbers, text and event time.

In: a kernel, records, a format. Out: the same columns that Polars takes from the same records, and the records that are left to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from defib.engine import stamps as forms
from defib.engine.columns import CLOCK, clock_seconds, numbers, texts
from defib.engine.fields import F64, FOUND, I64, LEFT, U8, Kernel, Program, program
from defib.engine.rulebook import Format
from defib.engine.units import NUMBERS, Bools, Units, unit_of, values

DATE = ("y", "mo", "d", "h", "mi", "s", "f", "z")  # in the order of `Kernel.dates`
Held = Callable[[bytes, bool], bool]  # whether a literal stands anywhere in the text; True: in any case of its letters
ABSENT = -1
FEW = 256  # records that are searched sooner than asked about


def _ours(pattern: str, loose: bool = False) -> Program:
    """The program of an expression of our own, all of which are simple enough."""
    made = program(pattern, loose)
    assert made is not None, pattern
    return made


CLOCK_PROGRAM = _ours(CLOCK)


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

    @property
    def blind(self) -> bool:
        """Whether all of them find the same whatever the digits."""
        return all(p.blind for p in (self.main, *(p for p, _ in self.more), *self.unless))

    @property
    def wide(self) -> bool:
        """Whether all of them know drawn characters."""
        return all(p.wide for p in (self.main, *(p for p, _ in self.more), *self.unless))


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
class Turn:
    """How places in the shapes of records become places in the records. which: number of each record's shape among those that were read; base:
    where each record starts in the text; origin: where each shape starts among the shapes; wide: shapes with drawn characters, and where in the
    text a record of each starts."""

    which: I64
    base: I64
    origin: I64
    wide: Bools
    sample: I64

    def inner(self, kernel: Kernel, text: bytes, place: I64) -> I64:
        """Places among the shapes, one a shape -> behind the starts of their records."""
        inner = np.where(place == ABSENT, ABSENT, place - self.origin)
        if self.wide.any():
            inner[self.wide] = kernel.widened(text, self.sample[self.wide], inner[self.wide])
        return inner

    def __call__(self, kernel: Kernel, text: bytes, place: I64) -> I64:
        """Places among the shapes, one a shape -> in the text, one a record."""
        inner = self.inner(kernel, text, place)
        out = inner[self.which]
        if (inner == ABSENT).any():
            return np.where(out == ABSENT, ABSENT, out + self.base)
        out += self.base
        return out


@dataclass(slots=True)
class Spans:
    """Captures of records by name: places in the text, -1 where a group took no part. turn: the places are those of shapes, which stand in
    `shown`."""

    kernel: Kernel
    text: bytes
    shown: bytes
    count: int
    spans: dict[str, tuple[I64, I64]]
    turn: Turn | None = None
    _known: dict[str, tuple[F64, Bools]] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return set(self.spans)

    @property
    def height(self) -> int:
        return self.count if self.turn is None else len(self.turn.which)

    def number(self, name: str) -> tuple[F64, Bools]:
        """As `units.Captures` has it; what is written in no plain way is read as text."""
        if name not in self._known:
            names = [n for n in self.spans if n in NUMBERS]
            self._known = dict(zip(names, self._numbers([self.spans[n] for n in names]), strict=True))
        return self._known[name]

    def clock(self, name: str) -> tuple[F64, Bools]:
        """As `units.Captures` has it."""
        begin, end = self.spans[name]
        has = np.flatnonzero(begin != ABSENT)
        state, slots = self.kernel.search(CLOCK_PROGRAM, self.shown, begin[has], end[has])
        if (state == LEFT).any():
            return values(clock_seconds(self._words(name)))
        pairs = []
        for k in map(CLOCK_PROGRAM.names.__getitem__, "dhms"):
            place = np.full((2, len(begin)), ABSENT)
            place[:, has] = slots[:, k], slots[:, k + 1]
            pairs.append((place[0], place[1]))
        (d, _), (h, _), (m, there), (s, _) = self._numbers(pairs)
        return d * 86400 + h * 3600 + m * 60 + s, there

    def unit(self, name: str) -> Units:
        """As `units.Captures` has it."""
        found = unit_of(cut_out(self.shown, *self.spans[name]))
        return found if self.turn is None else found[self.turn.which]

    def _numbers(self, pairs: list[tuple[I64, I64]]) -> list[tuple[F64, Bools]]:
        """Values of pieces, and where there are any; what is written in no plain way is read as text."""
        if self.turn is None:
            told = [self.kernel.numbers(self.text, begin, end) for begin, end in pairs]
        else:
            part = np.empty((len(self.turn.origin), len(pairs), 2), np.int64)
            for n, pair in enumerate(pairs):
                for side in (0, 1):
                    part[:, n, side] = self.turn.inner(self.kernel, self.text, pair[side])
            told = list(zip(*self.kernel.cells(self.text, self.turn.base, self.turn.which, part), strict=True))
        out = []
        for (value, state), pair in zip(told, pairs, strict=True):
            odd, there = np.flatnonzero(state == LEFT), state == FOUND
            if len(odd):
                start, stop = self._turned(*pair)
                value[odd], there[odd] = values(numbers(cut_out(self.text, start[odd], stop[odd])))
            out.append((value, there))
        return out

    def _words(self, name: str) -> pl.Series:
        return cut_out(self.text, *self._turned(*self.spans[name]))

    def _turned(self, begin: I64, end: I64) -> tuple[I64, I64]:
        if self.turn is None:
            return begin, end
        return self.turn(self.kernel, self.text, begin), self.turn(self.kernel, self.text, end)


def look(kernel: Kernel, one: Program, at: Places, held: Held) -> tuple[npt.NDArray[np.uint8], I64]:
    """As `Kernel.search`; nothing is looked for where none of the literals that a match needs stands anywhere in the text."""
    if len(at) and (len(at) < FEW or one.some is None or any(held(literal, one.fold) for literal in one.some)):
        return kernel.search(one, at.text, at.start, at.stop)
    return np.zeros(len(at), np.uint8), np.full((len(at), one.slots), ABSENT)


def read(kernel: Kernel, how: Plan, at: Places, held: Held, plain: Bools) -> tuple[Spans, I64, I64]:
    """(captures, the records that are lines of the format, the records that are left to another way), as numbers within `at`. plain: those
    the programs know every character of."""
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
    cells = Spans(kernel, at.text, at.text, len(good), {n: (a[good], b[good]) for n, (a, b) in spans.items()})
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


@dataclass(frozen=True, slots=True)
class Shaped:
    """Shapes that were read, and the records that have them."""

    shapes: Places
    turn: Turn
    held: Held


def stamps(kernel: Kernel, at: Places, mine: Shaped, text: Callable[[I64], pl.Series]) -> tuple[I64, Bools]:
    """As `engine.stamps.stamps` of these records, whose every character is known to the programs: values, and where there are any. mine: their
    shapes. text: those that are left, as strings."""
    out, known = np.zeros(len(at), np.int64), np.zeros(len(at), bool)
    left = np.zeros(len(at), bool)
    for pattern in (forms.MLLOG, forms.ISO, forms.US):
        loose, begin = _ours(pattern, loose=True), mine.shapes.start.copy()
        state, slots = kernel.search(loose, mine.shapes.text, mine.shapes.start, mine.shapes.stop, begin)
        here = state[mine.turn.which]
        left |= here == LEFT
        rows = np.flatnonzero((here == FOUND) & ~known & ~left)
        if not len(rows):
            continue
        us, got = (
            _milliseconds(kernel, at.text, mine, slots, rows)
            if pattern == forms.MLLOG
            else _dates(kernel, at.text, mine, loose, slots, rows)
        )
        # Its shape has a date, but this record's digits are none: then it may still hold one further on.
        odd = np.flatnonzero(got == LEFT)
        if len(odd):
            since = mine.turn(kernel, at.text, begin)[rows[odd]]
            us[odd], got[odd] = _sought(kernel, at.of(rows[odd]), _ours(pattern), since)
        left[rows[got == LEFT]] = True
        good = got == FOUND
        out[rows[good]], known[rows[good]] = us[good], True
    rest = np.flatnonzero(left)
    if len(rest):
        told = forms.stamps(text(rest))
        out[rest], known[rest] = told.fill_null(0).to_numpy(), told.is_not_null().to_numpy()
    return out, known


def _milliseconds(kernel: Kernel, text: bytes, mine: Shaped, slots: I64, rows: I64) -> tuple[I64, U8]:
    value, state = kernel.numbers(text, *(mine.turn(kernel, text, slots[:, k])[rows] for k in (0, 1)))
    return value.astype(np.int64) * 1000, state


def _dates(kernel: Kernel, text: bytes, mine: Shaped, form: Program, slots: I64, rows: I64) -> tuple[I64, U8]:
    part = np.full((len(slots), len(DATE), 2), ABSENT)
    for n, name in enumerate(DATE):
        for side in (0, 1) if name in form.names else ():
            part[:, n, side] = mine.turn.inner(kernel, text, slots[:, form.names[name] + side])
    return kernel.dates(text, mine.turn.base[rows], mine.turn.which[rows], part)


def _sought(kernel: Kernel, at: Places, form: Program, since: I64) -> tuple[I64, U8]:
    """The same where nothing is known of the shape but that no match begins before `since`."""
    state, slots = kernel.search(form, at.text, at.start, at.stop, np.ascontiguousarray(since))
    us, hit = np.zeros(len(at), np.int64), np.flatnonzero(state == FOUND)
    if len(hit):
        turn = Turn(np.arange(len(hit)), at.start[hit], at.start[hit], np.zeros(len(hit), bool), at.start[hit])
        us[hit], state[hit] = _dates(
            kernel, at.text, Shaped(at.of(hit), turn, lambda *_: True), form, slots[hit], np.arange(len(hit))
        )
    return us, state
