"""Records as bytes: what was written is read, what was not written is not, and damage is told from a write that was cut off."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from defib.adapters.journal.frames import GENESIS, Bad, Record, frame, records

KINDS = st.text("abcdefghijklmnopqrstuvwxyz.-", min_size=1, max_size=20)
SAID = st.lists(st.tuples(KINDS, st.binary(max_size=300)), min_size=1, max_size=8)


def written(said: list[tuple[str, bytes]]) -> tuple[bytes, list[int]]:
    """A segment of these records, and where each one ends."""
    raw, chain, ends = b"", GENESIS, []
    for seq, (kind, payload) in enumerate(said, 1):
        one, chain = frame(seq, kind, payload, chain)
        raw += one
        ends.append(len(raw))
    return raw, ends


def whole(raw: bytes) -> tuple[list[tuple[str, bytes]], Bad | None]:
    found = list(records(raw, 1, GENESIS))
    bad = found.pop() if found and isinstance(found[-1], Bad) else None
    assert all(isinstance(r, Record) for r in found)
    return [(r.kind, r.payload) for r in found if isinstance(r, Record)], bad  # type: ignore[return-value]


@given(SAID)
def test_what_was_written_is_read(said: list[tuple[str, bytes]]) -> None:
    assert whole(written(said)[0]) == (said, None)


@given(SAID, st.data())
def test_a_write_that_was_cut_off_costs_only_itself(said: list[tuple[str, bytes]], data: st.DataObject) -> None:
    raw, ends = written(said)
    cut = data.draw(st.integers(0, len(raw)))
    found, bad = whole(raw[:cut])
    kept = sum(end <= cut for end in ends)
    assert found == said[:kept]
    assert (bad is None) == (cut in (0, *ends))
    assert bad is None or bad.torn


@given(SAID, st.data())
def test_a_changed_byte_is_seen_and_costs_nothing_before_it(said: list[tuple[str, bytes]], data: st.DataObject) -> None:
    raw, ends = written(said)
    at = data.draw(st.integers(0, len(raw) - 1))
    changed = bytearray(raw)
    changed[at] ^= data.draw(st.integers(1, 255))
    found, bad = whole(bytes(changed))
    kept = sum(end <= at for end in ends)
    assert found == said[:kept]
    assert bad is not None
    assert bad.at == (ends[kept - 1] if kept else 0)
    assert bad.torn == (kept == len(said) - 1), "with whole records behind it, it is damage"


def test_a_record_of_another_chain_is_none() -> None:
    one, _ = frame(1, "x", b"one", GENESIS)
    two, _ = frame(2, "x", b"two", b"another chain!!!")
    found, bad = whole(one + two)
    assert found == [("x", b"one")]
    assert bad is not None
    assert "does not follow" in bad.why


def test_a_number_is_never_left_out() -> None:
    one, chain = frame(1, "x", b"one", GENESIS)
    three, _ = frame(3, "x", b"three", chain)
    found, bad = whole(one + three)
    assert found == [("x", b"one")]
    assert bad is not None
    assert bad.why == "record 3 stands where 2 should"
