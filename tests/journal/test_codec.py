"""Every event and mark through bytes and back."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from defib.adapters.journal import codec
from defib.adapters.journal.codec import decode, encode
from defib.engine import core
from defib.engine.observe import Observation
from defib.engine.ports import Marked, Reached
from defib.engine.words import PROGRESS, SIGNALS, JobKey, JobState, StoreError, StreamFacts, StreamId

# What version 1 writes. Where these change, the old columns go into codec.TABLES under the old number, and this learns the new one.
COLUMNS = {1: "5c53ecc84afecaf5"}

NUMBER = st.integers(0, 2**62)
TEXT = st.text(max_size=20)  # lone surrogates excluded by Arrow; names may hold them
NAME = st.text(st.characters(exclude_categories=()), max_size=20)
WORD = st.none() | TEXT
JOB = st.builds(JobKey, WORD, WORD, WORD, st.none() | NUMBER, NAME)
SMALL = st.none() | st.integers(0, 2**31 - 1)
FACTS = st.builds(StreamFacts, JOB, st.none() | NAME, WORD, SMALL, SMALL, SMALL, SMALL, WORD)
STREAM = st.integers(0, 2**32 - 1)


def column(kind: pa.DataType) -> st.SearchStrategy[object]:
    if pa.types.is_string(kind):
        return WORD
    if pa.types.is_floating(kind):
        return st.none() | st.floats(allow_nan=False)
    return SMALL


def rows(schema: pa.Schema) -> st.SearchStrategy[pa.Table]:
    one = st.fixed_dictionaries({f.name: column(f.type) for f in schema})
    return st.lists(one, max_size=3).map(lambda r: pa.Table.from_pylist(r, schema=schema))


GROWN = st.dictionaries(STREAM, st.tuples(NUMBER, NUMBER, NUMBER), max_size=3)
FRAMEWORKS = st.dictionaries(STREAM, st.frozensets(TEXT, max_size=2), max_size=2)
EVENT = st.one_of(
    st.builds(core.StreamOpened, STREAM, st.builds(StreamId, NAME, st.integers(0, 9)), FACTS),
    st.builds(core.Observed, st.builds(Observation, rows(SIGNALS), rows(PROGRESS), FRAMEWORKS), GROWN),
    st.builds(
        core.StreamEnded,
        STREAM,
        NUMBER,
        NUMBER,
        st.lists(TEXT, max_size=3).map(tuple),
        st.lists(TEXT, max_size=2).map(tuple),
    ),
    st.builds(core.JobEnded, JOB),
    st.builds(core.StreamLooked, STREAM, WORD),
    st.builds(
        core.JobSeen,
        JOB,
        st.builds(JobState, TEXT, st.booleans(), TEXT, SMALL, SMALL, SMALL, st.lists(TEXT, max_size=3).map(tuple)),
        WORD,
    ),
    st.builds(core.Tick, NUMBER),
)
MARK = st.builds(Marked, TEXT, st.binary(max_size=20), st.binary(max_size=50))
REACHED = st.builds(Reached, STREAM, NUMBER, NUMBER, NUMBER, st.integers(0, 99), st.binary(max_size=50))


@given(st.lists(EVENT, max_size=5), st.lists(MARK, max_size=3), st.lists(REACHED, max_size=3))
def test_what_a_poll_brought_comes_back(events: list[core.Event], marks: list[Marked], reached: list[Reached]) -> None:
    back = decode(encode(events, marks, reached))
    assert back.events == events
    assert back.marks == marks
    assert back.reached == reached


def test_a_payload_is_small_where_little_happened() -> None:
    assert len(encode([core.StreamLooked(3, None), core.Tick(1_700_000_000_000_000)], [], [])) < 150


@given(st.binary(max_size=60))
def test_bytes_that_are_no_payload_are_refused(raw: bytes) -> None:
    with pytest.raises(StoreError):
        decode(raw)


def test_a_payload_of_a_newer_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "VERSION", 99)
    payload = encode([], [], [])
    with pytest.raises(StoreError, match="newer defib"):
        decode(payload)


def test_rows_of_older_columns_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that is new since is null."""
    row = {"stream": 1, "offset": 2, "line": 3, "format": "f", "step": 4}
    before = core.Observed(Observation(SIGNALS.empty_table(), pa.Table.from_pylist([row], schema=PROGRESS)), {})
    old = pa.schema([f for f in PROGRESS if f.name != "tokens"])
    with monkeypatch.context() as m:
        m.setattr(codec, "PROGRESS", old)
        payload = encode([before], [], [])
    monkeypatch.setitem(codec.TABLES, 1, (SIGNALS, old))
    assert decode(payload).events == [before]


def test_the_columns_of_a_version_never_change() -> None:
    said = "\n".join(str(f) for schema in codec.TABLES[codec.VERSION] for f in schema)
    assert hashlib.sha256(said.encode()).hexdigest()[:16] == COLUMNS[codec.VERSION]
