"""The property everything rests on: the same bytes, cut and grouped in any way, give the same results.

(a) cutting: `LineCutter` and `Batch` against an oracle that splits the raw bytes; (b) the whole engine over generated logs;
(c) the folds: `Sketch`, `Windows`, `StreamFold`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.conftest import Collected, Kit, replay, signal

import loggen
from defib.engine import blocks, trace, windows
from defib.engine.blocks import Batch, LineCutter
from defib.engine.policies import Detect, PhaseLimit
from defib.engine.sketch import Sketch
from defib.engine.trace import NONE, ProgressRows, StreamFold, Trace
from defib.engine.windows import Windows
from defib.engine.words import Signal

# ---- (a) bytes to records -------------------------------------------------------------------------------------------

SIDE = 16
NASTY = [
    b"\n", b"\r", b"\r\n", b"\n\r", b"\0", b"\0" * 7, b"\x1b[31m", b"\x1b[", b"\x1b", b"\x1b]0;title\x07", b"\x1b]8;;x\x1b\\",
    b"\x1b(B", b"\x1b[?25l", b"\x1bP1$r\x1b\\", b"m", b"\x07", b"\\", b"\xff\xfe", b"\xc3", b"\xa9", b"\xe2\x80\xa8", b"\x0b", b"\x0c",
    b"word ", b"12", b"x" * 9, b"y" * (2 * SIDE - 1), b"z" * (2 * SIDE), b"w" * (2 * SIDE + 1), b"v" * (5 * SIDE), b"\xef\xbb\xbf",
]  # fmt: skip
nasty_bytes = st.lists(st.sampled_from(NASTY), max_size=40).map(b"".join)
Record = tuple[int, int, bytes]


def stripped(record: bytes) -> bytes:
    """A record without NUL bytes and escapes, by a scanner written apart from the engine's regex (ECMA-48)."""
    data = record.replace(b"\0", b"")
    out = bytearray()
    i = 0
    while i < len(data):
        if data[i] != 0x1B:
            out.append(data[i])
            i += 1
            continue
        i += 1
        if i == len(data):
            break
        c = data[i : i + 1]
        if c == b"[":
            j = i + 1
            while j < len(data) and 0x30 <= data[j] <= 0x3F:
                j += 1
            while j < len(data) and 0x20 <= data[j] <= 0x2F:
                j += 1
            # a sequence without its final byte is no sequence: only the escape itself goes ("ESC [" counts as one of two bytes)
            i = j + 1 if j < len(data) and 0x40 <= data[j] <= 0x7E else i
        elif c in b"]PX^_":
            j = i + 1
            while j < len(data) and data[j] not in (0x07, 0x1B):
                j += 1
            if data[j : j + 1] == b"\x07":
                j += 1
            elif data[j : j + 2] == b"\x1b\\":
                j += 2
            i = j
        elif 0x20 <= data[i] <= 0x2F:
            j = i
            while j < len(data) and 0x20 <= data[j] <= 0x2F:
                j += 1
            i = j + 1 if j < len(data) and 0x30 <= data[j] <= 0x7E else i
        elif 0x30 <= data[i] <= 0x7E:
            i += 1
    return bytes(out)


def oracle(data: bytes, side: int) -> list[Record]:
    """Every record of a whole stream: split the raw bytes at LF and CR, count lines by LF, shorten what is too long."""
    out: list[Record] = []
    at, line = 0, 1
    parts = re.split(rb"([\n\r])", data)
    for raw, end in zip(parts[::2], [*parts[1::2], b""], strict=True):
        if raw or end:
            seen = raw if len(raw) <= 2 * side else raw[:side] + blocks.GIANT_MARK + raw[-side:]
            out.append((at, line, stripped(seen)))
        at += len(raw) + len(end)
        line += end == b"\n"
    return out


def cut_at(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    marks = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    for a, b in itertools.pairwise(marks):
        yield data[a:b]


def records_of(batch: Batch) -> list[tuple[int, Record]]:
    every = np.arange(len(batch.ends))
    stream, offset, line = batch.place(every)
    return [
        (int(s), (int(o), int(n), batch.text(i))) for i, (s, o, n) in enumerate(zip(stream, offset, line, strict=True))
    ]


@pytest.fixture
def short_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SIDE_MAX", SIDE)
    monkeypatch.setattr(blocks, "RECORD_MAX", 2 * SIDE)


cutting = settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])


@cutting
@given(data=nasty_bytes, cuts=st.lists(st.integers(0, 2000), max_size=30))
@example(data=b"x" * 33 + b"\n", cuts=list(range(34)))
@example(data=b"x" * 32 + b"\r\n" + b"y" * 33, cuts=[32, 33, 34])
def test_any_cut_gives_the_records_of_the_oracle(short_sides: None, data: bytes, cuts: list[int]) -> None:
    cutter, batch = LineCutter(0), Batch()
    for block in cut_at(data, cuts):
        for piece in cutter.feed(block):
            batch.add(piece)
        assert len(cutter._carry) <= 2 * SIDE, "what is carried is bounded"
    for piece in cutter.finish():
        batch.add(piece)
    wanted = oracle(data, SIDE)
    got = [r for _, r in records_of(batch)] if batch.size else []
    assert [r[:2] for r in got] == [r[:2] for r in wanted]
    assert [r[2] for r in got] == [r[2] for r in wanted]
    assert cutter.offset == len(data)
    assert cutter.giants == sum(len(raw) > 2 * SIDE for raw in re.split(rb"[\n\r]", data))


@cutting
@given(
    streams=st.lists(nasty_bytes, min_size=1, max_size=4),
    block=st.integers(1, 50),
    seed=st.integers(0, 2**16),
    per_batch=st.integers(1, 200),
)
def test_streams_mixed_in_batches_keep_their_own_records(
    short_sides: None, streams: list[bytes], block: int, seed: int, per_batch: int
) -> None:
    draw = Random(seed)
    cutters = [LineCutter(n) for n in range(len(streams))]
    left = dict(enumerate(streams))
    got: list[list[Record]] = [[] for _ in streams]
    batch = Batch()

    def flush() -> None:
        nonlocal batch
        if batch.size:
            for n, record in records_of(batch):
                got[n].append(record)
        batch = Batch()

    while left:
        n = draw.choice(sorted(left))
        size = draw.randint(1, block)
        for piece in cutters[n].feed(left[n][:size]):
            batch.add(piece)
        left[n] = left[n][size:]
        if not left[n]:
            del left[n]
            for piece in cutters[n].finish():
                batch.add(piece)
        if batch.size >= per_batch:
            flush()
    flush()
    assert got == [oracle(data, SIDE) for data in streams]


# ---- (b) the whole engine -------------------------------------------------------------------------------------------

NOISE = [
    b"\x1b[31mred\x1b[0m\n", b"\0\0\0\0\n", b"50%|####\r", b"\r\n", b"caf\xe9 \xff\n", b"\x1b]0;t\x07", b"tail without end",
    b"Traceback (most recent call last):\n", b"ValueError: odd\n", b"RuntimeError: CUDA error: out of memory\n", b"\n",
    b"[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n", b" 10%|#  | 10/100 [00:10<01:30, 1.0s/it]\r",
    b"slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-30T21:05:00 ***\n", b"[2026-11-30 21:01:00,000] epoch\n",
    b"srun: error: n001: task 3: Exited with exit code 1\n",
]  # fmt: skip


@st.composite
def logs(draw: st.DrawFn) -> dict[str, bytes]:
    """The files of a job or two as loggen renders them, with noise put in at line ends and in the middle of lines."""
    files: dict[str, bytes] = {}
    for number in range(draw(st.integers(1, 2))):
        job = loggen.Job(
            "job", str(4711 + number), draw(st.sampled_from(loggen.FRAMEWORKS)), ("n001", "n002"), gpus_per_node=2,
            steps=24, log_every=2, checkpoint_every=10, layout=draw(st.sampled_from(loggen.LAYOUTS)), labels=draw(st.booleans()),
            interleave=draw(st.sampled_from([0.0, 0.7])), traps=draw(st.booleans()), eval_every=draw(st.sampled_from([0, 12])),
        )  # fmt: skip
        fault = loggen.Fault(draw(st.sampled_from(loggen.FAULT_KINDS)))
        for path, data in loggen.render(job, fault, seed=draw(st.integers(0, 99))).files.items():
            for place, noise in draw(st.lists(st.tuples(st.integers(0, 20_000), st.sampled_from(NOISE)), max_size=4)):
                k = place % (len(data) + 1)
                if draw(st.booleans()):
                    k = data.rfind(b"\n", 0, k) + 1
                data = data[:k] + noise + data[k:]
            files[path] = data
    return files


def told(seen: Collected) -> dict[str, object]:
    """Everything the engine says, apart from how its rows were batched."""
    return {
        "attempts": seen.attempts, "signals": [plain(r) for r in seen.rows("signals")],
        "progress": [plain(r) for r in seen.rows("progress")], "windows": seen.windows,
    }  # fmt: skip


def plain(row: dict[str, object]) -> tuple[object, ...]:
    return tuple("nan" if v != v else v for v in row.values())


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(files=logs(), block=st.integers(1, 3000), share=st.integers(1, 15), seed=st.integers(0, 2**16))
def test_blocks_batches_and_mixing_change_nothing(
    shipped: Kit, files: dict[str, bytes], block: int, share: int, seed: int
) -> None:
    whole = told(replay(shipped, files))
    size = sum(map(len, files.values()))
    pieces = told(replay(shipped, files, block=block, batch_bytes=size // share + 1, mixed=Random(seed)))
    for what, wanted in whole.items():
        assert pieces[what] == wanted, what


@pytest.mark.parametrize("kind", ["restart-in-job", "gpu-xid79"])
def test_one_byte_blocks_and_a_batch_per_record_change_nothing(shipped: Kit, kind: loggen.FaultKind) -> None:
    job = loggen.Job("job", "4711", "deepspeed", ("n001",), gpus_per_node=2, steps=8, log_every=4, checkpoint_every=4)
    files = loggen.render(replace(job, interleave=0.5), loggen.Fault(kind), seed=1).files
    whole = told(replay(shipped, files))
    assert told(replay(shipped, files, block=1)) == whole
    assert told(replay(shipped, files, block=50, batch_bytes=1)) == whole


story_lines = st.lists(
    st.sampled_from(
        [
            "ROOT", "MAYBE", "EXIT", "PEER", "LAUNCH", "AGAIN", "COMPLETED", "TRAINED", "CANCELLED job=1", "CANCELLED job=2", "x",
            "step=1/9", "step=2/9 time=1", "step=3/9", "step=8/9", "step=2/7", "value 5", "eval=3", "batch=1/4", "batch=2/4",
            "[rank1]: step=3/9", "2026-01-02 03:04:05 step=4/9", "2026-01-02 03:44:05 step=5/9", "map=1/2", "map=2/2",
        ]
    ),
    max_size=25,
)  # fmt: skip


@settings(max_examples=40)
@given(lines=story_lines, per_batch=st.integers(1, 60))
def test_a_story_told_in_small_batches_is_the_same_story(language: Kit, lines: list[str], per_batch: int) -> None:
    assert told(replay(language, lines, block=20, batch_bytes=per_batch)) == told(replay(language, lines))


# ---- (c) the folds --------------------------------------------------------------------------------------------------

some_values = st.lists(
    st.one_of(st.floats(1e-6, 1e6), st.sampled_from([0.0, -1.0, float("nan"), float("inf")])), max_size=40
)


def groups(n: int, cuts: list[int]) -> list[tuple[int, int]]:
    marks = sorted({0, n, *(c % (n + 1) for c in cuts)})
    return list(itertools.pairwise(marks))


@given(values=some_values, cuts=st.lists(st.integers(0, 100), max_size=8), seed=st.integers(0, 999))
def test_a_sketch_knows_neither_order_nor_grouping(values: list[float], cuts: list[int], seed: int) -> None:
    whole = Sketch()
    whole.add(np.array(values, np.float64))
    shuffled = values[:]
    Random(seed).shuffle(shuffled)
    parts, merged = Sketch(), Sketch()
    for lo, hi in groups(len(values), cuts):
        parts.add(np.array(shuffled[lo:hi], np.float64))
        one = Sketch()
        one.add(np.array(values[lo:hi], np.float64))
        merged.merge(one)
    assert parts.bins == merged.bins == whole.bins
    assert [parts.count, merged.count] == [whole.count] * 2


@st.composite
def window_points(draw: st.DrawFn, forward: bool) -> tuple[list[float], list[int], list[float]]:
    jumps = draw(
        st.lists(st.sampled_from([0.0, 1.0, 100.0, 299.0, 300.0, 700.0] + ([] if forward else [-400.0])), max_size=30)
    )
    at = np.cumsum([1000.0, *jumps]).tolist()
    steps = draw(st.lists(st.integers(0, 50), min_size=len(at), max_size=len(at)))
    seconds = draw(st.lists(st.sampled_from([0.5, 2.0, float("nan")]), min_size=len(at), max_size=len(at)))
    return at, steps, seconds


def fold_windows(
    points: tuple[list[float], list[int], list[float]], parts: list[tuple[int, int]]
) -> list[dict[str, object]]:
    w = Windows()
    at, steps, seconds = points
    for lo, hi in parts:
        w.add(np.array(at[lo:hi]), np.array(steps[lo:hi], np.int64), np.array(seconds[lo:hi]))
    return w.rows("a", "s", "f", "event")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("forward", [True, False], ids=["clock-goes-forward", "clocks-of-ranks-differ"])
@given(data=st.data(), cuts=st.lists(st.integers(0, 100), max_size=10))
def test_windows_do_not_depend_on_grouping(
    monkeypatch: pytest.MonkeyPatch, forward: bool, data: st.DataObject, cuts: list[int]
) -> None:
    monkeypatch.setattr(windows, "CELLS_MAX", 4)
    points = data.draw(window_points(forward))
    n = len(points[0])
    assert fold_windows(points, groups(n, cuts)) == fold_windows(points, [(0, n)])


Said = tuple[str, int, int | None, int | None, float]  # format or rule, step, total, time in seconds, step time

said = st.one_of(
    st.tuples(
        st.sampled_from(["t.step", "t.step", "t.eval", "t.inepoch", "t.bar"]),
        st.integers(0, 12),
        st.sampled_from([None, 20, 30]),
        st.one_of(st.none(), st.integers(0, 2000)),
        st.sampled_from([1.0, 1.0, 2.5, float("nan")]),
    ),
    st.tuples(st.just("t.value"), st.just(int(NONE)), st.none(), st.none(), st.just(float("nan"))),
    st.tuples(
        st.sampled_from(["t.saving", "t.saved", "t.root", "t.exit", "t.start", "t.restart", "t.done", "t.cancelled", "t.peer"]),
        st.just(0), st.none(), st.one_of(st.none(), st.integers(0, 2000)), st.just(0.0),
    ),
)  # fmt: skip


def rows_of(part: list[tuple[int, Said]]) -> ProgressRows:
    n = len(part)
    offset = np.array([o for o, _ in part], np.int64)
    whole = [[s[k] if s[k] is not None else NONE for _, s in part] for k in (1, 2, 3)]
    times = np.array([t if t == NONE else int(t) * 1_000_000 for t in whole[2]], np.int64)
    return ProgressRows(
        offset, offset + 1, times, [s[0] for _, s in part], np.array(whole[0], np.int64), np.array(whole[1], np.int64),
        np.full(n, NONE, np.int64), np.array([s[4] for _, s in part], np.float64), np.arange(n) * 0.0 + offset + 1.0,
        np.full(n, np.nan), np.zeros(n, bool), np.full(n, np.nan), np.full(n, np.nan),
    )  # fmt: skip


LIMIT = PhaseLimit(50.0, 100.0, 400.0)


def nervous(policy: Detect) -> Detect:
    """Small numbers, so that short stories have hangs, pauses and slowdowns in them."""
    phases = replace(policy.hang.phases, **{f.name: LIMIT for f in fields(policy.hang.phases)})
    return replace(
        policy,
        hang=replace(policy.hang, learn_gaps=2, learn_pauses=1, phases=phases),
        slow=replace(policy.slow, for_s=2.0, steps=2, bin_s=1.0, learn_bins=2, learn_bins_max=8),
    )


def fold_story(made: Kit, story: list[Said], parts: list[tuple[int, int]]) -> list[object]:
    fold = StreamFold(0, made.book.format_by_id, nervous(made.book.detect))
    for lo, hi in parts:
        part = list(enumerate(story))[lo:hi]
        signals: list[Signal] = [
            signal(made, s[0], at, line=at + 1, time_us=None if s[3] is None else s[3] * 1_000_000)
            for at, s in part
            if s[0] in made.book.by_id
        ]
        fold.fold(signals, rows_of([(at, s) for at, s in part if s[0] not in made.book.by_id]))
    fold.finish(len(story), len(story))
    return [summary(t) for t in fold.traces]


def inside(thing: object) -> object:
    """Everything an object remembers, as plain values. NaN equals itself."""
    if isinstance(thing, dict):
        return {k: inside(v) for k, v in thing.items()}
    if isinstance(thing, list | tuple):
        return [inside(v) for v in thing]
    names = getattr(thing, "__dict__", None) or getattr(type(thing), "__slots__", ())
    if names and not isinstance(thing, str | int | float):
        return {name: inside(getattr(thing, name)) for name in names}
    return repr(thing)


def summary(t: Trace) -> object:
    counters = [
        (
            key, c.first_step, c.last_step, c.points, c.advances, c.nan_losses, c.pace, c.stamp, c.last_at, c.clock, c.step_clock_s,
            c.printed.bins, c.stamped.bins, c.throughput.bins, c.windows.rows("", "", "", ""), inside(c.rhythm), inside(c.slowdown), inside(c.work),
        )
        for key, c in t.counters.items()
    ]  # fmt: skip
    rest = {name: getattr(t, name) for name in Trace.__slots__ if name != "counters"}
    return rest, sorted(counters, key=lambda c: (c[0][0], c[0][1] or -1))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=st.lists(said, max_size=25), cuts=st.lists(st.integers(0, 100), max_size=12))
def test_a_fold_does_not_depend_on_grouping(language: Kit, story: list[Said], cuts: list[int]) -> None:
    n = len(story)
    assert fold_story(language, story, groups(n, cuts)) == fold_story(language, story, [(0, n)])


@st.composite
def trainings(draw: st.DrawFn) -> list[Said]:
    """A run that moves on by its stamps, with pauses, hangs, slower stretches and other counters between."""
    story: list[Said] = []
    at = 0
    for n in range(1, draw(st.integers(4, 30))):
        at += draw(st.sampled_from([20, 20, 20, 21, 60, 300, 900]))
        for other in draw(
            st.lists(st.sampled_from(["t.saving", "t.saved", "t.eval", "t.bar", "t.inepoch", "t.value"]), max_size=2)
        ):
            story.append((other, n, None, draw(st.sampled_from([None, at])), 1.0))
        story.append(step(n, None, at, draw(st.sampled_from([1.0, 20.0, 300.0, float("nan")]))))
    return story


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=trainings(), cuts=st.lists(st.integers(0, 100), max_size=12))
def test_a_training_does_not_depend_on_grouping(language: Kit, story: list[Said], cuts: list[int]) -> None:
    n = len(story)
    assert fold_story(language, story, groups(n, cuts)) == fold_story(language, story, [(0, n)])


def step(n: int, total: int | None = None, at: int | None = None, seconds: float = 1.0) -> Said:
    return ("t.step", n, total, at, seconds)


VALUE: Said = ("t.value", int(NONE), None, None, float("nan"))


@pytest.mark.parametrize(
    "story",
    [
        pytest.param([step(1), step(2), step(3, at=100), step(4, at=200)], id="stamps begin in the middle"),
        pytest.param([VALUE, step(1), VALUE], id="a value line stands before its first step"),
        pytest.param([step(1, 20), VALUE, step(1, 30), VALUE], id="value lines of two counters"),
        pytest.param([step(10), step(10), step(20), step(21), step(22), step(18)], id="the interval shrinks"),
        pytest.param([step(1), ("t.exit", 0, None, None, 0.0), step(1), step(2)], id="a run begins again"),
        pytest.param([step(k, at=20 * k) for k in range(9)] + [step(9, at=900), step(10, at=920)], id="a long silence"),
        pytest.param(
            [step(k, at=20 * k) for k in range(6)] + [("t.eval", 1, None, 300, 1.0), step(6, at=320), step(7, at=340)],
            id="evaluation between",
        ),
        pytest.param([step(k, seconds=1.0 if k < 9 else 3.0) for k in range(24)], id="slower"),
        pytest.param(
            [step(k, at=20 * k) for k in range(9)]
            + [
                ("t.saving", 0, None, 170, 0.0),
                ("t.inepoch", 1, 9, 180, 1.0),
                ("t.inepoch", 2, 9, 190, 1.0),
                step(9, at=250),
                step(10, at=270),
            ],
            id="another counter moves between a checkpoint and the next step",
        ),
        pytest.param(
            [step(k, at=20 * k) for k in range(9)] + [step(9, at=900, seconds=740.0), step(10, at=920)],
            id="the line after a long silence says how long its step took",
        ),
    ],
)
def test_a_fold_row_by_row_is_the_fold_at_once(language: Kit, story: list[Said]) -> None:
    n = len(story)
    whole = fold_story(language, story, [(0, n)])
    for k in range(1, n):
        assert fold_story(language, story, [(0, k), (k, n)]) == whole, f"cut before row {k}"
    assert fold_story(language, story, [(i, i + 1) for i in range(n)]) == whole


def test_more_counters_than_fit_give_way_in_the_same_order(language: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "COUNTERS_MAX", 2)
    bars: list[Said] = [("t.bar", k, total, None, 1.0) for total in (5, 6, 7, 5, 8) for k in range(total % 4 + 1)]
    n = len(bars)
    assert fold_story(language, bars, [(i, i + 1) for i in range(n)]) == fold_story(language, bars, [(0, n)])
