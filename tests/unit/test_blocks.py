"""blocks: where records begin and end, their offsets and lines, and the cleaned view patterns see."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import batch_of

from defib.engine import blocks
from defib.engine.blocks import Batch, LineCutter, Piece, clean


def places(data: bytes, blocks: int | None = None) -> list[tuple[int, int, bytes]]:
    batch = batch_of(data, blocks=blocks)
    _, offset, line = batch.place(np.arange(len(batch.ends)))
    return [(int(o), int(n), batch.text(i)) for i, (o, n) in enumerate(zip(offset, line, strict=True))]


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"a\nb\n", [(0, 1, b"a"), (2, 2, b"b")]),
        (b"a\nb", [(0, 1, b"a"), (2, 2, b"b")]),
        (b"a\r\nb\r\n", [(0, 1, b"a"), (2, 1, b""), (3, 2, b"b"), (5, 2, b"")]),
        (b"1%\r2%\r\nx\n", [(0, 1, b"1%"), (3, 1, b"2%"), (6, 1, b""), (7, 2, b"x")]),
        (b"\n\n", [(0, 1, b""), (1, 2, b"")]),
        (b"a\x0bb\x0c\xe2\x80\xa8c\n", [(0, 1, b"a\x0bb\x0c\xe2\x80\xa8c")]),
        (b"\0\0a\0\nb\n", [(0, 1, b"a"), (5, 2, b"b")]),
        (b"\x1b[31mred\x1b[0m\nx\n", [(0, 1, b"red"), (13, 2, b"x")]),
        (b"", []),
    ],
)
def test_only_lf_and_cr_end_a_record_and_only_lf_a_line(data: bytes, wanted: list[tuple[int, int, bytes]]) -> None:
    assert places(data) == wanted
    assert places(data, blocks=1) == wanted


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        (b"a\x1b[1;31mb\x1b[0m\n", b"ab\n"),
        (b"a\x1b[?25lb\n", b"ab\n"),
        (b"a\x1b]0;a title\x07b\n", b"ab\n"),
        (b"a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b\n", b"alinkb\n"),
        (b"a\x1b(Bb\n", b"ab\n"),
        (b"a\x1b7b\x1bcd\n", b"abd\n"),
        (b"a\x1b\n", b"a\n"),
        (b"a\x1b]never closed\nb\n", b"a\nb\n"),
        (b"a\x1b[12\nm\n", b"a[12\nm\n"),
        (b"a\x1b\0[31mb\n", b"ab\n"),
        (b"a\rb\r\n", b"a\nb\n\n"),
        (b"caf\xe9 \xff\n", b"caf\xe9 \xff\n"),
    ],
)
def test_cleaning_takes_escapes_and_nul_out_and_never_a_line_end(raw: bytes, seen: bytes) -> None:
    assert clean(raw) == seen


def test_a_record_at_the_bound_is_whole_and_one_byte_more_is_head_and_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SIDE_MAX", 4)
    monkeypatch.setattr(blocks, "RECORD_MAX", 8)
    for size in (1, 3, 100):
        assert places(b"12345678\nx\n", blocks=size) == [(0, 1, b"12345678"), (9, 2, b"x")]
        assert places(b"123456789\nx\n", blocks=size) == [(0, 1, b"1234 [...] 6789"), (10, 2, b"x")]
        assert places(b"123456789\ry\nz\n", blocks=size) == [(0, 1, b"1234 [...] 6789"), (10, 1, b"y"), (12, 2, b"z")]
        assert places(b"a\n123456789", blocks=size) == [(0, 1, b"a"), (2, 2, b"1234 [...] 6789")]


def test_the_real_bound_is_128_kib_and_giants_are_counted() -> None:
    giant = b"h" * 64 * 1024 + b"m" + b"t" * 64 * 1024
    cutter = LineCutter(0)
    (piece,) = cutter.feed(giant + b"\n")
    assert piece.giant
    assert len(piece.payload) == 128 * 1024 + len(blocks.GIANT_MARK) + 1
    assert b"m" not in piece.payload
    assert cutter.giants == 1
    assert not LineCutter(0).feed(giant[1:] + b"\n")[0].giant


def test_what_is_carried_of_an_endless_line_is_bounded() -> None:
    cutter = LineCutter(0)
    for _ in range(40):
        assert cutter.feed(b"x" * 64 * 1024) == []
        assert len(cutter._carry) <= blocks.RECORD_MAX
    (piece,) = cutter.feed(b"\n")
    assert piece.giant
    assert cutter.offset == 40 * 64 * 1024 + 1


def test_a_cutter_begins_where_it_is_told() -> None:
    assert LineCutter(3, offset=100, line=7).feed(b"a\nb\n") == [Piece(3, 100, 7, b"a\nb\n")]


def test_an_ended_cutter_knows_whether_the_last_line_was_whole() -> None:
    for data, unterminated in ((b"a\n", False), (b"a", True), (b"", False), (b"a\r", False)):
        cutter = LineCutter(0)
        cutter.feed(data)
        cutter.finish()
        assert cutter.unterminated is unterminated, data
        assert cutter.offset == len(data)


def test_streams_in_one_batch_keep_their_own_places() -> None:
    batch = batch_of(b"a\nb\n", b"\r\rc\n", b"d")
    stream, offset, line = batch.place(np.arange(6))
    assert stream.tolist() == [0, 0, 1, 1, 1, 2]
    assert offset.tolist() == [0, 2, 0, 1, 2, 0]
    assert line.tolist() == [1, 2, 1, 1, 1, 1]
    some = batch.place(np.array([1, 4]))
    assert [x.tolist() for x in some] == [[0, 1], [2, 2], [2, 1]]


def test_an_empty_batch_has_no_records() -> None:
    batch = Batch()
    assert len(batch.ends) == len(batch.starts) == 0
    assert batch.buffer == b""


@pytest.mark.parametrize(
    "length", [1, 5, blocks.SIDE_MAX, blocks.RECORD_MAX, blocks.RECORD_MAX + 1, 3 * blocks.RECORD_MAX]
)
@pytest.mark.parametrize("before", [b"", b"a\n", b"a\nbegun ", b"x" * (blocks.RECORD_MAX + 9)])
@pytest.mark.parametrize("after", [b"", b"\n", b" ends\nz\n", b"y" * blocks.SIDE_MAX + b"\n"])
def test_skipping_nuls_is_the_same_as_feeding_them(before: bytes, length: int, after: bytes) -> None:
    fed, skipped = LineCutter(0), LineCutter(0)
    a = fed.feed(before + bytes(length)) + fed.feed(after) + fed.finish()
    b = skipped.feed(before)
    skipped.skip(length)
    b += skipped.feed(after) + skipped.finish()
    assert [(p.offset, p.line, p.giant, clean(p.payload)) for p in b] == [
        (p.offset, p.line, p.giant, clean(p.payload)) for p in a
    ]
    assert (skipped.lines, skipped.giants, skipped.offset) == (fed.lines, fed.giants, fed.offset)
