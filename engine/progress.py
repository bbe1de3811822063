"""Progress lines: batch + the anchors that occur in it -> PROGRESS rows, vectorized and outside the scan's callbacks.

A format's anchors are plain literals; every record holding one is a candidate, and one regex per format takes the
captures from the candidates only. A low-priority format gives way where another one reads the same record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from defib.engine import spans
from defib.engine.blocks import I64, Batch
from defib.engine.columns import SECONDS, clock_seconds, nothing, numbers, seconds_per_step, texts
from defib.engine.fields import NONE, Kernel, program, required
from defib.engine.rulebook import Format, Rulebook
from defib.engine.spans import Places
from defib.engine.stamps import stamps
from defib.engine.who import HEAD_CHARS, Who
from defib.engine.words import PROGRESS

GENERIC_BELOW = 10  # priority
VALUES = ("throughput", "tflops", "loss", "grad_norm", "epoch", "samples", "tokens")
STEP_MAX = 10**12
STEP_S_MAX = 1e6  # eleven days: no step takes longer, so the number is no step time
DENSE = 0.5  # share of a sample's records from which testing for a literal costs more than it spares
SAMPLE_BYTES = 64 * 1024
FEW_SHARE = 8  # fewer records than one of so many are looked at by themselves
USED = frozenset((*VALUES, "step", "total", "rank", "step_time", "rate", "rate_unit", "elapsed"))
NAMED = re.compile(r"\(\?P?<([A-Za-z_]\w*)>")


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
        lines = Lines(batch, self._kernel)
        parts: list[pl.DataFrame] = []
        read = np.zeros(len(batch.ends), bool)  # records a format of its own has read; generic ones need not look
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
            for part in self._extract(fmt, order, lines, at) if len(at) else ():
                parts.append(part)
                if fmt.priority >= GENERIC_BELOW:
                    read[part["record"].to_numpy()] = True
        if not parts:
            return PROGRESS.empty_table()
        return _placed(batch, pl.concat(parts).sort("record", "order"))

    def _extract(self, fmt: Format, order: int, lines: Lines, at: I64) -> list[pl.DataFrame]:
        """The records that really are lines of the format, as numbers: by the kernel, and by Polars what that leaves."""
        plan = self._plan(fmt) if self._kernel is not None else None
        if plan is None or self._kernel is None:
            return _some(self._by_text(fmt, order, lines.text(at), at))
        cells, rows, left = spans.read(self._kernel, plan, lines.places(at), lines.held)
        parts = []
        if len(rows):
            here = at[rows]
            times = spans.stamps(self._kernel, lines.places(here), lines.held, lambda k: lines.text(here[k]))
            rank = lambda: self._ranks(lines, here)  # noqa: E731
            parts.append(_whole(fmt, order, typed(fmt, cells), here, times, rank))
        if len(left):
            parts += _some(self._by_text(fmt, order, lines.text(at[left]), at[left]))
        return parts

    def _plan(self, fmt: Format) -> spans.Plan | None:
        if fmt.id not in self._plans:
            self._plans[fmt.id] = spans.plan(fmt, USED, _heads(fmt))
        return self._plans[fmt.id]

    def _by_text(self, fmt: Format, order: int, text: pl.Series, at: I64) -> pl.DataFrame | None:
        """The same of records as text; None if none is a line of the format."""
        got = _groups(fmt, text)
        if _heads(fmt):
            found = got["step"].is_not_null()
            at, text, got = at[found.to_numpy()], text.filter(found), got.filter(found)
        got = _with_more(fmt, text, got, USED)
        rows = kept(fmt, text, got).arg_true()
        if not len(rows):
            return None
        if len(rows) < len(text):
            got, text = got[rows], text.gather(rows)
        return _whole(
            fmt,
            order,
            typed(fmt, Texts(got)),
            at[rows.to_numpy()],
            stamps(text),
            lambda: self._told(self._who.of(text)),
        )

    def _ranks(self, lines: Lines, at: I64) -> pl.Series:
        """As `_told` of these records. Most have no prefix, and a program sees that at once."""
        assert self._kernel is not None
        here = lines.places(at)
        here.stop = np.minimum(here.stop, here.start + HEAD_CHARS)
        maybe = np.zeros(len(at), bool)
        for pattern in self._who.patterns:
            one = program(pattern)
            if one is None:
                maybe[:] = True
                break
            maybe |= spans.look(self._kernel, one, here, lines.held)[0] != NONE
        rows = np.flatnonzero(maybe)
        out = nothing(len(at), pl.Int32)
        return out.scatter(rows, self._told(self._who.of(lines.text(at[rows])))) if len(rows) else out

    @staticmethod
    def _told(who: pl.DataFrame) -> pl.Series:
        """A launcher's local number is better than none: one node's printers are told apart by it, and `Pace` sees where several share one."""
        return who.select(pl.coalesce("rank", "local_rank")).to_series()


def _some(part: pl.DataFrame | None) -> list[pl.DataFrame]:
    return [] if part is None else [part]


def _whole(
    fmt: Format, order: int, values: pl.DataFrame, at: I64, times: pl.Series, ranks: Callable[[], pl.Series]
) -> pl.DataFrame:
    """Rows of one format, all but their places in the streams. ranks: who printed the records, asked where the format does not tell."""
    out = values.with_columns(
        record=pl.Series(at, dtype=pl.Int64), order=pl.lit(order, pl.Int32), format=pl.lit(fmt.id), time_us=times.alias("time_us"),
    )  # fmt: skip
    if out["rank"].null_count():
        out = out.with_columns(pl.coalesce(pl.col("rank"), ranks()).alias("rank"))
    return out


@dataclass(frozen=True, slots=True)
class Texts:
    """Captures as text, by name."""

    got: pl.DataFrame

    @property
    def names(self) -> set[str]:
        return set(self.got.columns)

    @property
    def height(self) -> int:
        return self.got.height

    def number(self, name: str) -> pl.Series:
        """Float64."""
        return numbers(self.got[name])

    def words(self, name: str) -> pl.Series:
        """String."""
        return self.got[name]


class Lines:
    """A batch's records, asked for literals and taken as text. What several formats ask for is worked out once."""

    def __init__(self, batch: Batch, kernel: Kernel | None = None) -> None:
        self._kernel = kernel
        self._buffer = batch.buffer
        self._records, self._starts, self._ends = _records(batch), batch.starts, batch.ends
        self._masks: dict[str, npt.NDArray[np.bool_]] = {}
        self._held: dict[tuple[bytes, bool], bool] = {}
        self._lower = b""
        self._sample = self._buffer[:SAMPLE_BYTES]
        self._shares: dict[str, float] = {}
        self._taken: tuple[I64, pl.Series] | None = None

    def hold(self, literal: str) -> bool:
        """Whether it stands anywhere at all: most formats are not of this log, and one of their literals is nowhere in it."""
        return self.held(literal.encode())

    def held(self, literal: bytes, fold: bool = False) -> bool:
        """The same of bytes. fold: in any case; the literal is in lower case."""
        if (literal, fold) not in self._held:
            if fold and not self._lower:
                self._lower = self._buffer.lower()
            has = self._kernel.has if self._kernel is not None else bytes.__contains__
            self._held[literal, fold] = has(self._lower if fold else self._buffer, literal)
        return self._held[literal, fold]

    def share(self, literal: str) -> float:
        """How often it stands in the first records, as a share of their number. It decides about the order of work, never about a result."""
        if literal not in self._shares:
            self._shares[literal] = self._sample.count(literal.encode()) / max(self._sample.count(b"\n"), 1)
        return self._shares[literal]

    def places(self, at: I64) -> Places:
        """Where these records stand in the buffer."""
        return Places(self._buffer, self._starts[at], self._ends[at])

    def any_of(self, literals: Sequence[str], at: I64) -> I64:
        """Those of the records that hold one of the literals."""
        if not len(at):
            return at
        if len(at) < len(self._records) // FEW_SHARE:
            part = self._records.take(pa.array(at))
            return at[np.logical_or.reduce([self._among(part, literal) for literal in literals])]
        return at[np.logical_or.reduce([self._holding(literal)[at] for literal in literals])]

    def _holding(self, literal: str) -> npt.NDArray[np.bool_]:
        """Of all records, those that hold the literal: found in the buffer as a whole, which is several times faster than record by record."""
        if literal not in self._masks and self._kernel is not None:
            self._masks[literal] = self._kernel.holding(self._buffer, self._ends, literal.encode())
        elif literal not in self._masks:
            mask = np.zeros(len(self._ends), bool)
            if self.hold(literal):
                found = [m.start() for m in re.finditer(re.escape(literal.encode()), self._buffer)]
                mask[np.searchsorted(self._ends, np.array(found, np.int64))] = True
            self._masks[literal] = mask
        return self._masks[literal]

    @staticmethod
    def _among(records: pa.Array, literal: str) -> npt.NDArray[np.bool_]:
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


def typed(fmt: Format, got: Texts | spans.Spans) -> pl.DataFrame:
    """Captures as numbers in house units (seconds, steps)."""
    have = got.names

    def number(name: str) -> pl.Series:
        return got.number(name).alias(name) if name in have else nothing(got.height, pl.Float64).alias(name)

    out = pl.DataFrame([number(c) for c in VALUES])
    for name in ("step", "total", "rank"):
        value = number(name)
        bounded = (
            pl.DataFrame({"v": value})
            .select(pl.when(pl.col("v").is_between(0, STEP_MAX)).then(pl.col("v").round()))
            .to_series()
        )
        out = out.with_columns(bounded.cast(pl.Int32 if name == "rank" else pl.Int64, strict=False).alias(name))
    step_time = number("step_time") * SECONDS[fmt.step_time_unit]
    if "rate" in have and "rate_unit" in have:
        step_time = (
            pl.DataFrame({"a": step_time, "b": seconds_per_step(got.words("rate"), got.words("rate_unit"))})
            .select(pl.coalesce("a", "b"))
            .to_series()
        )
    step_time = pl.select(pl.when(step_time.abs() <= STEP_S_MAX).then(step_time)).to_series()
    elapsed = clock_seconds(got.words("elapsed")) if "elapsed" in have else nothing(got.height, pl.Float64)
    return out.with_columns(
        step_time_s=step_time.alias("s"), elapsed_s=elapsed.alias("e"),
        throughput_unit=pl.when(pl.col("throughput").is_not_null()).then(pl.lit(fmt.throughput_unit, pl.String)),
    )  # fmt: skip


def _placed(batch: Batch, rows: pl.DataFrame) -> pa.Table:
    records = rows["record"].to_numpy()
    stream, offset, line = batch.place(records)
    rows = rows.with_columns(stream=pl.Series(stream, dtype=pl.UInt32), offset=pl.Series(offset), line=pl.Series(line))
    return rows.select(PROGRESS.names).to_arrow().cast(PROGRESS)
