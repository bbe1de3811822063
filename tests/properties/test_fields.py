"""The kernel that reads fields in C finds what Polars finds: spans, numbers, stamps, ranks, whole tables of progress."""

from __future__ import annotations

import random
import re

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.needs import lacking

from defib.adapters import rulefiles
from defib.adapters.nativefields import Fields, kernel
from defib.engine import spans
from defib.engine import stamps as forms
from defib.engine.blocks import Batch, LineCutter
from defib.engine.columns import numbers
from defib.engine.fields import FOUND, LEFT, program
from defib.engine.observe import Observer
from defib.engine.progress import _heads
from defib.engine.rulebook import Rulebook
from defib.engine.shapes import Shapes
from defib.engine.units import USED

LOADED = rulefiles.load([])
BOOK: Rulebook = LOADED.book
PATTERNS = sorted(
    {p for f in BOOK.formats for p in (f.pattern, *f.more, *f.unless)}
    | {forms.MLLOG, forms.ISO, forms.US, *(p.pattern for p in BOOK.prefixes)}
)
LINES = sorted({e.line for f in BOOK.formats for e in (*f.hits, *f.misses)})


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> Fields:
    folder = tmp_path_factory.mktemp("kernel")
    folder.chmod(0o700)
    found = kernel(folder)
    if found is None:
        lacking("native", "the kernel needs a C compiler")
    return found


def placed(lines: list[str]) -> spans.Places:
    text = b"".join(line.encode() + b"\n" for line in lines)
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == 10)
    return spans.Places(text, np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1)), ends)


def same(c: Fields, pattern: str, lines: list[str]) -> int:
    """Compares one pattern on many lines of ASCII; the number of matches."""
    p, at = program(pattern), placed(lines)
    assert p is not None, pattern
    state, slots = c.search(p, at.text, at.start, at.stop)
    known = np.flatnonzero(state != LEFT)
    series = pl.Series([lines[i] for i in known.tolist()], dtype=pl.String)
    assert (state[known] == FOUND).tolist() == series.str.contains(pattern).to_list(), pattern
    if p.names:
        told = series.str.extract_groups(pattern).struct.unnest()
        for name, k in p.names.items():
            mine = spans.cut_out(at.text, slots[known, k], slots[known, k + 1]).to_list()
            assert mine == told[name].to_list(), (pattern, name)
    return int(np.count_nonzero(state == FOUND))


def worn(line: str, rng: random.Random) -> str:
    """A line as it might be printed by something similar: pieces doubled, left out, swapped; other digits, spaces and case."""
    for _ in range(rng.randrange(1, 4)):
        i, j = sorted(rng.randrange(len(line) + 1) for _ in range(2))
        line = rng.choice((
            line[:i] + line[j:], line[:j] + line[i:], line[:i] + line[i:j].swapcase() + line[j:], line[j:] + " " + line[:i],
            line[:i] + rng.choice(("nan", "-1e5", "1,234", " ", "\t", "9" * 20, "%|", "[", ": ", "\x0b", "\x1c", "_")) + line[i:],
        ))  # fmt: skip
    return line


def test_nearly_every_shipped_pattern_has_a_program() -> None:
    """One that has none costs only time; a change that loses many of them should not go unnoticed."""
    missing = [f.id for f in BOOK.formats if spans.plan(f, USED, _heads(f)) is None]
    assert missing == []


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p[:40])
def test_programs_find_what_polars_finds(c: Fields, pattern: str) -> None:
    """Every shipped pattern on every shipped example of all formats, and on what hits it, worn in many ways."""
    rng = random.Random(pattern)
    plain = [line for line in LINES if line.isascii() and "\n" not in line]
    near = [
        line
        for line in plain
        if re.search("[A-Za-z]{3}", line) and set(re.findall("[a-z]{4,}", pattern)) & set(re.findall("[a-z]{4,}", line))
    ]
    lines = plain + [worn(rng.choice(near or plain), rng) for _ in range(400)]
    same(c, pattern, lines)


ATOMS = st.sampled_from(
    ["a", "b", "ab", ".", r"\d", r"\s", r"\w", r"[ab]", r"[^a]", r"\b", "^", "$", r"(?-u:\b)", "(?i:A)", "1", " "]
)
MARKS = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,2}?"])


def made(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.builds(lambda p, m: f"(?:{p}){m}", inner, MARKS)
    return st.one_of(
        group,
        st.builds(lambda p, q: p + q, inner, inner),
        st.builds(lambda p, q: f"(?:{p}|{q})", inner, inner),
        st.builds(lambda p: f"({p})", inner),
    )


REGEX = st.recursive(st.builds(lambda a, m: a if a in ("^", "$", r"\b", r"(?-u:\b)") else (a if len(a) == 1 or a[0] in "\\[(" else f"(?:{a})") + m,
                               ATOMS, MARKS), made, max_leaves=8)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(REGEX, st.lists(st.text("ab1 A_", max_size=12), min_size=1, max_size=8))
def test_any_expression_of_this_kind(c: Fields, pattern: str, lines: list[str]) -> None:
    p, at = program(pattern), placed(lines)
    if p is None:
        return
    state, slots = c.search(p, at.text, at.start, at.stop)
    try:
        told = pl.Series(lines).str.extract_groups(pattern) if p.slots else None
    except pl.exceptions.ComputeError:
        return
    known = state != LEFT
    assert (state[known] == FOUND).tolist() == pl.Series(lines).str.contains(pattern).filter(pl.Series(known)).to_list()
    for k, column in enumerate(told.struct.unnest().get_columns() if told is not None else ()):
        mine = spans.cut_out(at.text, slots[known, 2 * k], slots[known, 2 * k + 1]).to_list()
        assert mine == column.filter(pl.Series(known)).to_list(), (pattern, lines)


WRITTEN = st.one_of(
    st.floats(allow_nan=True).map(repr), st.integers(-(10**25), 10**25).map(str), st.floats(-1e6, 1e6).map("{:.3E}".format),
    st.text("0123456789.eE+-, _kMnaif", max_size=10), st.decimals(allow_nan=False, allow_infinity=False).map(str),
)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(st.lists(WRITTEN.filter(str.isascii), min_size=1, max_size=20))
def test_numbers_are_read_to_the_last_bit(c: Fields, written: list[str]) -> None:
    at = placed(written)
    cells = spans.Spans(c, at.text, at.text, len(at), {"loss": (at.start, at.stop)})
    (value, there), told = cells.number("loss"), numbers(pl.Series(written, dtype=pl.String))
    mine = [v if known else None for v, known in zip(value.tolist(), there.tolist(), strict=True)]
    assert list(map(repr, mine)) == list(map(repr, told.to_list()))


DATES = st.builds(
    lambda y, mo, d, a, b, h, mi, s, f, z, us: (f"{mo:02}/{d:02}/{y:04}, " if us else f"{y:04}{a}{mo:02}{a}{d:02}{b}") + f"{h:02}:{mi:02}:{s:02}{f}{z}",
    st.integers(1899, 2100), st.integers(0, 19), st.integers(0, 39), st.sampled_from("-/."), st.sampled_from(["T", " ", ", ", "_"]),
    st.integers(0, 29), st.integers(0, 61), st.integers(0, 61), st.sampled_from(["", ".1", ",123", ".123456789", "."]),
    st.sampled_from(["", "Z", "+01:00", "-0330", " +0530", "+1"]), st.booleans(),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(DATES, st.text("0123456789-:T ", max_size=20), st.just('"time_ms": 1700000000123, x')),
        min_size=1,
        max_size=12,
    )
)
def test_stamps_are_the_same(c: Fields, lines: list[str]) -> None:
    at = placed(lines)
    text = pl.Series(lines, dtype=pl.String)
    shapes, every = Shapes(c, at.text, at.start, at.stop), np.arange(len(at))
    mine = shapes.shaped(np.arange(len(shapes.all)), every)
    us, there = spans.stamps(c, at, mine, lambda k: text.gather(k))
    found = [v if known else None for v, known in zip(us.tolist(), there.tolist(), strict=True)]
    assert found == forms.stamps(text).to_list()


def observed(c: Fields | None, data: bytes) -> list[object]:
    observer, cutter, batch = Observer(BOOK, LOADED.databases, c), LineCutter(0), Batch()
    for piece in [*cutter.feed(data), *cutter.finish()]:
        batch.add(piece)
    return observer.observe(batch).progress.to_pylist() if batch.size else []


@pytest.mark.parametrize("seed", range(12))
def test_whole_tables_are_the_same(c: Fields, seed: int) -> None:
    """Lines of all formats, worn, some beyond ASCII, some behind the prefixes of launchers, with CR and escapes between them."""
    rng = random.Random(seed)
    heads = [
        "",
        "",
        "",
        "12: ",
        "[rank3]: ",
        "gpu011: ",
        "[default7]:",
        "(Worker pid=12, ip=10.0.0.4) ",
        "[1,5]<stdout>:",
        "2026-11-30T21:11:54.590+01:00 ",
    ]
    lines = []
    for _ in range(700):
        line = rng.choice(LINES)
        line = worn(line, rng) if rng.random() < 0.5 else line
        for _ in range(rng.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 3))):
            at = rng.randrange(len(line) + 1)
            line = line[:at] + rng.choice(("█", "é", "\ud7ff", "K", "│", "→", "—", "▏", "\u2028", "①")) + line[at:]
        line = rng.choice(heads) + line
        for _ in range(rng.choice((1, 1, 3))):
            lines.append(line + rng.choice(("\n", "\n", "\r", "\x1b[0m\n")))
            line = re.sub("[0-9]", lambda m: rng.choice((m[0], "0", "1", "9")), line)
    rng.shuffle(lines)
    data = "".join(lines).encode() + b"\xff\xfe iteration 5/ 10 | x\n"
    mine, told = observed(c, data), observed(None, data)
    assert len(told) > 100
    assert [str(row) for row in mine] == [str(row) for row in told]  # as text: NaN is not equal to itself


def test_work_on_one_record_is_bounded(c: Fields) -> None:
    """A line made to keep a backtracking matcher busy for ever is left to Polars, and the result is the same."""
    hostile = [
        "iteration 1/ 2 |" * 4000 + "elapsed time per iteration (ms)",
        "a" * 100_000,
        "iteration " + " " * 100_000,
        "step " * 20_000,
    ]
    p, at = program(r"(?:a|ab)*c"), placed(["a" * 50_000])
    assert p is not None
    assert c.search(p, at.text, at.start, at.stop)[0].tolist() == [LEFT]
    data = "\n".join(hostile).encode() + b"\n"
    assert observed(c, data) == observed(None, data)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("019ab \u2588\u2192\u2014é", max_size=40), min_size=1, max_size=30))
def test_records_of_one_shape_differ_in_their_digits_only(c: Fields, lines: list[str]) -> None:
    at = placed(lines)
    shapes = Shapes(c, at.text, at.start, at.stop)
    zeros = [re.sub("[0-9]", "0", line) for line in lines]
    told = [shapes.all.text[a:b] for a, b in zip(shapes.all.start.tolist(), shapes.all.stop.tolist(), strict=True)]
    for k, line in enumerate(zeros):
        one = int(shapes.of[k])
        assert shapes.records(np.array([one])).tolist() == [i for i, other in enumerate(zeros) if other == line]
        if "é" not in line:
            assert told[one] == re.sub("[\u2588\u2192\u2014]", "\x80", line).encode("latin-1")
        assert shapes.plain(np.array([one]), wide=True).tolist() == ["é" not in line]
        assert shapes.plain(np.array([one]), wide=False).tolist() == [line.isascii()]


def test_what_counts_as_drawn_is_nothing_to_any_expression(c: Fields) -> None:
    """No letter, digit, space or mark, and without case; and nothing else counts as drawn."""
    every = [chr(n) for n in range(128, 0x30000) if not 0xD800 <= n < 0xE000 and n not in (0x85,)]
    at = placed(every)
    shapes = Shapes(c, at.text, at.start, at.stop)
    drawn = [line for line, good in zip(every, shapes.plain(shapes.of, wide=True).tolist(), strict=True) if good]
    assert len(drawn) > 300
    text = pl.Series(drawn)
    assert not text.str.contains(r"\w|\s|\d|(?i:[a-z])").any()
    assert text.str.contains(r"^.$").all()
    assert text.str.contains(r"^\W\b").any() is False
    assert [x for x in drawn if x.lower() != x or x.upper() != x] == []
