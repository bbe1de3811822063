"""How far a source has read, told after the items it belongs to: whoever keeps it goes on there, without a byte twice or missing."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tail.live import Live

from defib.adapters.tail.guard import Guard
from defib.adapters.tail.position import Position, key, mark, position
from defib.engine.ports import Data, Marked, SourceItem

raw = st.binary(max_size=64)
number = st.integers(0, 2**63)
guards = st.builds(Guard, number, st.just(64), raw.map(lambda b: b.ljust(64, b"x")), st.just(b""), number, raw)
positions = st.builds(
    Position,
    raw,
    number,
    number,
    number,
    guards,
    st.none() | number,
    st.none() | number,
    st.sampled_from(["path", "copy"]),
)


@given(positions)
def test_a_mark_is_its_position(p: Position) -> None:
    assert position(mark(p)) == p


def test_the_guard_of_a_mark_is_short() -> None:
    guard = Guard().extended(0, b"line of a log\n" * 1000)
    p = Position(b"/logs/a", 0, 14_000, 1001, guard)
    assert position(mark(p)).guard == guard.compact()
    assert len(mark(p)) < 1500


@pytest.mark.parametrize("kept", [b"", b"{}", b"[1,2]", b"nothing", b"[" + b"1," * 8 + b"1]"])
def test_other_bytes_are_no_mark(kept: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        position(kept)


def kept_of(items: Iterable[SourceItem]) -> dict[bytes, bytes]:
    kept: dict[bytes, bytes] = {}
    for item in items:
        if isinstance(item, Marked):
            kept[item.key] = item.mark
            if not item.mark:
                del kept[item.key]
    return kept


def test_marks_are_the_positions(live: Live) -> None:
    live.write("a.log", b"one\ntwo")
    log = live.write("b.log", b"one\n")
    live.poll(3)
    log.rename(live.folder / "b.log.1")
    live.write("b.log", b"new\n")
    live.poll(15)
    kept = kept_of(live.items)
    assert kept == {key(p): mark(p) for p in live.source.positions()}
    assert {k.rpartition(b"/")[2] for k in kept} == {b"a.log\x000", b"b.log\x000", b"b.log\x001"}
    live.poll(700)
    assert set(kept_of(live.items)) == set(kept) - {os.fsencode(live.folder) + b"/b.log\x000"}, "it has ended"


def test_a_mark_comes_after_what_it_covers(live: Live) -> None:
    live.write("a.log", b"one\n")
    live.poll(2)
    live.write("a.log", b"two\n")
    items = live.poll(3)
    (data,) = [n for n, i in enumerate(items) if isinstance(i, Data)]
    marks = [n for n, i in enumerate(items) if isinstance(i, Marked)]
    assert len(marks) == 1, "nothing is told again that has not changed"
    assert marks[0] > data
    assert live.poll(60)
    assert not [i for i in live.poll(60) if isinstance(i, Marked)]


def test_another_source_goes_on_from_the_marks(live: Live) -> None:
    live.write("a.log", b"one\ntwo")
    live.poll(3)
    before = [position(m) for m in kept_of(live.items).values()]
    live.items.clear()
    live.open(positions=before)
    live.write("a.log", b" and a half\nthree\n")
    live.poll(3)
    (data,) = live.of(Data)
    assert data.data == b"two and a half\nthree\n"
