"""Progress lines: batch + the anchors that occur in it -> PROGRESS rows, vectorized and outside the scan's callbacks.

A format's anchors are plain literals; every record holding one is a candidate, and one regex per format takes the
captures from the candidates only. A low-priority format gives way where another one reads the same record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from defib.engine import spans
from defib.engine.blocks import I64, Batch
from defib.engine.columns import texts
from defib.engine.fields import NONE, Kernel, program, required, unnumbered
from defib.engine.rulebook import Format, Rulebook
from defib.engine.shapes import Shapes
from defib.engine.stamps import stamps
from defib.engine.units import USED, Bools, Texts, typed
from defib.engine.who import HEAD_CHARS, Who
from defib.engine.words import PROGRESS

GENERIC_BELOW = 10  # priority
DENSE = 0.5  # share of a sample's records from which testing for a literal costs more than it spares
SAMPLE_BYTES = 64 * 1024
FEW_SHARE = 8  # fewer records than one of so many are looked at by themselves
NAMED = re.compile(r"\(\?P?<([A-Za-z_]\w*)>")
PLACE = ("stream", "offset", "line")


class ProgressReader:
    """Formats made ready: anchors, required literals, order. kernel: takes the columns of plain records in a fraction of the time; they are the
    same without."""

    def __init__(self, book: Rulebook, anchors: tuple[str, ...], kernel: Kernel | None = None) -> None:
        # Formats of their own before generic ones; `order` keeps the book's order in the result.
        self._ordered = sorted(enumerate(book.formats), key=lambda x: (x[1].priority < GENERIC_BELOW, x[0]))
        self._anchors = anchors
        self._required = {f.id: required(f.pattern) for f in book.formats}
        self._who = Who(book.prefixes)
        self._kernel = kernel
        self._plans: dict[str, spans.Plan | None] = {}  # of the formats met: most logs show two of a hundred

    def read(self, batch: Batch, fired: frozenset[int]) -> pa.Table:
        """PROGRESS rows of the batch in record order."""
        names = {self._anchors[i] for i in fired}
        if not names or not len(batch.ends):
            return PROGRESS.empty_table()
        lines = Lines(batch)
        read = np.zeros(len(batch.ends), bool)  # records a format of its own has read; generic ones need not look
        parts = []
        for part in self._by_text(lines, names, read) if self._kernel is None else self._by_shape(lines, names, read):
            parts.append(part)
            if not part.generic:
                read[part.at] = True
        return _placed(batch, parts)

    def _by_text(self, lines: Lines, names: set[str], read: Bools) -> Iterator[Part]:
        for order, fmt in self._ordered:
            anchors = [a for a in fmt.anchors if a in names]
            literals = self._required[fmt.id]
            if not anchors or not all(map(lines.hold, literals)):
                continue
            at = np.flatnonzero(~read) if fmt.priority < GENERIC_BELOW else np.arange(len(read))
            # Rarest first: most formats end there. One that most records hold spares no regex work, and the pattern asks for it anyway.
            for literal in sorted(literals, key=lines.share):
                if lines.share(literal) < DENSE:
                    at = lines.any_of([literal], at)
            if not any(a in literal for a in anchors for literal in literals):
                at = lines.any_of(anchors, at)
            yield from self._of_text(fmt, order, lines, at)

    def _by_shape(self, lines: Lines, names: set[str], read: Bools) -> Iterator[Part]:
        """The same, searching records of the same shape once, by the kernel; what that leaves, as text."""
        assert self._kernel is not None
        shapes = Shapes(self._kernel, lines.buffer, lines.starts, lines.ends)
        for order, fmt in self._ordered:
            anchors = [a for a in fmt.anchors if a in names]
            rows = shapes.holding(self._required[fmt.id], anchors) if anchors else NOBODY
            if not len(rows):
                continue
            plan, but = self._plan(fmt), read if fmt.priority < GENERIC_BELOW else None
            if plan is not None and plan.blind and all(unnumbered(a.encode()) == a.encode() for a in anchors):
                yield from self._of_shapes(fmt, order, lines, shapes, plan, rows, but)
                continue
            at = shapes.records(rows, but)
            if not any(a in literal for a in anchors for literal in self._required[fmt.id]):
                at = lines.any_of(anchors, at)  # the shape holds one, but perhaps with other digits
            yield from self._of_places(fmt, order, lines, shapes, plan, at)

    def _of_shapes(
        self, fmt: Format, order: int, lines: Lines, shapes: Shapes, plan: spans.Plan, rows: I64, but: Bools | None
    ) -> Iterator[Part]:
        """What a format finds in records of these shapes."""
        assert self._kernel is not None
        plain = shapes.plain(rows, plan.wide)
        cells, good, left = spans.read(self._kernel, plan, shapes.all.of(rows), shapes.held, plain)
        at = shapes.records(rows[good], but)
        if len(at):
            mine = shapes.shaped(rows[good], at)
            cells.text, cells.turn = lines.buffer, mine.turn
            yield self._part(fmt, order, cells, lines, at, mine)
        yield from self._of_text(fmt, order, lines, shapes.records(rows[left], but))

    def _of_places(
        self, fmt: Format, order: int, lines: Lines, shapes: Shapes, plan: spans.Plan | None, at: I64
    ) -> Iterator[Part]:
        """What a format that asks for certain digits finds in these records."""
        assert self._kernel is not None
        if plan is not None and len(at):
            here = lines.places(at)
            plain = shapes.plain(shapes.of[at], wide=False)
            cells, good, left = spans.read(self._kernel, plan, here, shapes.held, plain)
            if len(good):
                mine = at[good]
                rows = np.unique(shapes.of[mine])
                yield self._part(fmt, order, cells, lines, mine, shapes.shaped(rows, mine))
            at = at[left]
        yield from self._of_text(fmt, order, lines, at)

    def _plan(self, fmt: Format) -> spans.Plan | None:
        if fmt.id not in self._plans:
            self._plans[fmt.id] = spans.plan(fmt, USED, _heads(fmt))
        return self._plans[fmt.id]

    def _part(self, fmt: Format, order: int, cells: spans.Spans, lines: Lines, at: I64, mine: spans.Shaped) -> Part:
        assert self._kernel is not None
        text = lambda rows: lines.text(at[rows])  # noqa: E731
        times = spans.stamps(self._kernel, lines.places(at), mine, text)
        columns = typed(fmt, cells)
        if columns["rank"].null_count:
            columns["rank"] = pc.coalesce(columns["rank"], self._ranks(lines, at, mine))
        return Part(fmt, order, at, columns, pa.array(times[0], pa.int64(), mask=~times[1]))

    def _of_text(self, fmt: Format, order: int, lines: Lines, at: I64) -> Iterator[Part]:
        """What a format finds in these records, by Polars."""
        if not len(at):
            return
        text = lines.text(at)
        got = _groups(fmt, text)
        if _heads(fmt):
            found = got["step"].is_not_null()
            at, text, got = at[found.to_numpy()], text.filter(found), got.filter(found)
        got = _with_more(fmt, text, got, USED)
        rows = kept(fmt, text, got).arg_true()
        if not len(rows):
            return
        if len(rows) < len(text):
            got, text = got[rows], text.gather(rows)
        columns = typed(fmt, Texts(got))
        if columns["rank"].null_count:
            columns["rank"] = pc.coalesce(columns["rank"], _arrow(self._told(self._who.of(text))))
        yield Part(fmt, order, at[rows.to_numpy()], columns, _arrow(stamps(text)))

    def _ranks(self, lines: Lines, at: I64, mine: spans.Shaped) -> pa.Array:
        """As `_told` of these records. Most have no prefix, and a program sees that at once."""
        assert self._kernel is not None
        here = mine.shapes
        here = spans.Places(here.text, here.start, np.minimum(here.stop, here.start + HEAD_CHARS))
        maybe = np.zeros(len(here), bool)
        for pattern in self._who.patterns:
            one = program(pattern, loose=True)
            if one is None:
                maybe[:] = True
                break
            maybe |= spans.look(self._kernel, one, here, mine.held)[0] != NONE
        rows = np.flatnonzero(maybe[mine.turn.which])
        if not len(rows):
            return pa.nulls(len(at), pa.int32())
        told = self._told(self._who.of(lines.text(at[rows])))
        out, there = np.zeros(len(at), np.int32), np.zeros(len(at), bool)
        out[rows], there[rows] = told.fill_null(0).to_numpy(), told.is_not_null().to_numpy()
        return pa.array(out, pa.int32(), mask=~there)

    @staticmethod
    def _told(who: pl.DataFrame) -> pl.Series:
        """A launcher's local number is better than none: one node's printers are told apart by it, and `Pace` sees where several share one."""
        return who.select(pl.coalesce("rank", "local_rank")).to_series()


NOBODY = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one format: their records, ascending, and their columns but for who stands where in which stream."""

    fmt: Format
    order: int
    at: I64
    columns: dict[str, pa.Array]
    time_us: pa.Array

    @property
    def generic(self) -> bool:
        return self.fmt.priority < GENERIC_BELOW

    def table(self) -> pa.Table:
        """PROGRESS without the places."""
        whole = {**self.columns, "format": pa.repeat(pa.scalar(self.fmt.id), len(self.at)), "time_us": self.time_us}
        return pa.table([whole[f.name] for f in PROGRESS if f.name not in PLACE], schema=UNPLACED)


UNPLACED = pa.schema([f for f in PROGRESS if f.name not in PLACE])


def _arrow(column: pl.Series) -> pa.Array:
    found = column.to_arrow()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


class Lines:
    """A batch's records, asked for literals and taken as text. What several formats ask for is worked out once."""

    def __init__(self, batch: Batch) -> None:
        self.buffer, self.starts, self.ends = batch.buffer, batch.starts, batch.ends
        self._records = _records(batch)
        self._masks: dict[str, Bools] = {}
        self._held: dict[str, bool] = {}
        self._sample = self.buffer[:SAMPLE_BYTES]
        self._shares: dict[str, float] = {}
        self._taken: tuple[I64, pl.Series] | None = None

    def hold(self, literal: str) -> bool:
        """Whether it stands anywhere at all: most formats are not of this log, and one of their literals is nowhere in it."""
        if literal not in self._held:
            self._held[literal] = literal.encode() in self.buffer
        return self._held[literal]

    def share(self, literal: str) -> float:
        """How often it stands in the first records, as a share of their number. It decides about the order of work, never about a result."""
        if literal not in self._shares:
            self._shares[literal] = self._sample.count(literal.encode()) / max(self._sample.count(b"\n"), 1)
        return self._shares[literal]

    def places(self, at: I64) -> spans.Places:
        """Where these records stand in the buffer."""
        return spans.Places(self.buffer, self.starts[at], self.ends[at])

    def any_of(self, literals: Sequence[str], at: I64) -> I64:
        """Those of the records that hold one of the literals."""
        if not len(at):
            return at
        if len(at) < len(self._records) // FEW_SHARE:
            part = self._records.take(pa.array(at))
            return at[np.logical_or.reduce([self._among(part, literal) for literal in literals])]
        return at[np.logical_or.reduce([self._holding(literal)[at] for literal in literals])]

    def _holding(self, literal: str) -> Bools:
        """Of all records, those that hold the literal: found in the buffer as a whole, which is several times faster than record by record."""
        if literal not in self._masks:
            mask = np.zeros(len(self.ends), bool)
            if self.hold(literal):
                found = [m.start() for m in re.finditer(re.escape(literal.encode()), self.buffer)]
                mask[np.searchsorted(self.ends, np.array(found, np.int64))] = True
            self._masks[literal] = mask
        return self._masks[literal]

    @staticmethod
    def _among(records: pa.Array, literal: str) -> Bools:
        return np.asarray(pc.match_substring(records, pattern=literal).to_numpy(zero_copy_only=False))

    def text(self, at: I64) -> pl.Series:
        """These records as text."""
        if self._taken is None or not np.array_equal(self._taken[0], at):
            whole = len(at) == len(self._records)
            self._taken = at, texts(self._records if whole else self._records.take(pa.array(at)))
        return self._taken[1]


def _records(batch: Batch) -> pa.Array:
    """Zero-copy view of the records (each with its line feed) as an Arrow binary array."""
    offsets = np.concatenate((np.zeros(1, np.int64), batch.ends + 1))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(batch.buffer)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(batch.ends), buffers)


def captures(fmt: Format, text: pl.Series, wanted: frozenset[str] | None = None) -> pl.DataFrame:
    """Captures of the format as text; the main pattern wins over `more`. wanted: those of `more` that are looked for, None for all."""
    return _with_more(fmt, text, _groups(fmt, text), wanted)


def _groups(fmt: Format, text: pl.Series) -> pl.DataFrame:
    """Captures of the main pattern."""
    return (
        text.to_frame("text")
        .select(pl.col("text").str.extract_groups(fmt.pattern).alias("g"))
        .to_series()
        .struct.unnest()
    )


def _heads(fmt: Format) -> bool:
    """Whether only the main pattern gives the step: then the others need not look at a record without one."""
    return fmt.of is None and not any("step" in NAMED.findall(pattern) for pattern in fmt.more)


def _with_more(fmt: Format, text: pl.Series, got: pl.DataFrame, wanted: frozenset[str] | None) -> pl.DataFrame:
    if not fmt.more:
        return got
    frame, whole = text.to_frame("text"), pl.col("text").str
    # One group per pattern is the usual case, and taking a single group is far cheaper than building a struct.
    singles: dict[str, list[pl.Expr]] = {c: [] for c in got.columns}
    for pattern in fmt.more:
        names = NAMED.findall(pattern)
        for name in names if wanted is None else [n for n in names if n in wanted]:
            one = (
                whole.extract(pattern, 1)
                if len(names) == 1 and plain(pattern)
                else whole.extract_groups(pattern).struct.field(name)
            )
            singles.setdefault(name, []).append(one)
    extra = frame.select(pl.coalesce(v).alias(k) for k, v in singles.items() if v)
    merged = [pl.coalesce(got[c], extra[c]).alias(c) if c in got.columns else extra[c] for c in extra.columns]
    return got.with_columns(merged)


def plain(pattern: str) -> bool:
    """The named group is the pattern's first capturing group."""
    first = re.search(r"(?<!\\)\((?!\?(?!P?<))", pattern)
    return first is not None and pattern.startswith(("(?P<", "(?<"), first.start())


def kept(fmt: Format, text: pl.Series, got: pl.DataFrame) -> pl.Series:
    """Which candidates really are lines of this format."""
    main = [c for c in (["step"] if fmt.of is None else got.columns) if c in got.columns]
    keep = got.select(pl.any_horizontal(pl.col(c).is_not_null() for c in main).alias("keep")).to_series()
    for pattern in fmt.unless:
        keep = keep & ~text.str.contains(pattern)
    return keep


def _placed(batch: Batch, parts: list[Part]) -> pa.Table:
    if not parts:
        return PROGRESS.empty_table()
    table, records = parts[0].table(), parts[0].at
    if len(parts) > 1:
        records = np.concatenate([p.at for p in parts])
        order = np.lexsort((np.repeat([p.order for p in parts], [len(p.at) for p in parts]), records))
        table, records = pa.concat_tables([p.table() for p in parts]).take(pa.array(order)), records[order]
    for name, column in zip(PLACE, batch.place(records), strict=True):
        table = table.append_column(
            PROGRESS.field(name), pa.array(column.astype(PROGRESS.field(name).type.to_pandas_dtype()))
        )
    return table.select(PROGRESS.names)
