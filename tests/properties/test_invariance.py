"""The property everything rests on: the same bytes, cut and grouped in any way, give the same results.

(a) cutting: `LineCutter` and `Batch` against an oracle that splits the raw bytes; (b) the whole engine over generated logs;
the folds: `test_folds`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.conftest import Collected, Kit, replay

import loggen
from defib.engine import blocks
from defib.engine.blocks import Batch, LineCutter

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
