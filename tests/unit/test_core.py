"""core: one door; every event gives its effects in order, a judged job leaves nothing behind, misuse is caught."""

from __future__ import annotations

import pytest
from tests.conftest import CLASSES, Kit, batch_of, kit, replay

from defib.engine import core, trace
from defib.engine.core import (
    Append,
    JobEnded,
    JobJudged,
    Observed,
    State,
    StreamEnded,
    StreamOpened,
    StreamRead,
    StreamSeen,
)
from defib.engine.words import JobKey, Signal, StreamFacts, StreamId

JOB, OTHER = JobKey(job_id="7"), JobKey(job_id="8")


def opened(state: State, stream: int, job: JobKey = JOB) -> list[core.Effect]:
    return core.advance(state, StreamOpened(stream, StreamId(f"s{stream}"), StreamFacts(job)))


def observed(made: Kit, state: State, *data: bytes) -> list[core.Effect]:
    effects = core.advance(state, Observed(made.observer().observe(batch_of(*data))))
    core.check(state)
    return effects


def test_a_stream_is_seen_before_its_rows_and_its_job_judged_last(language: Kit) -> None:
    sink = replay(language, {"a.log": b"step=1\nROOT\n", "b.log": b"x\n"})
    kinds = [type(e).__name__ for e in sink.effects]
    assert kinds == ["StreamSeen"] * 2 + ["Append"] * 2 + ["StreamRead"] * 2 + ["JobJudged"] * 2


def test_a_stream_opened_is_seen(language: Kit) -> None:
    state = State(language.book)
    assert opened(state, 0) == [StreamSeen(0, StreamId("s0"), StreamFacts(JOB))]


def test_an_empty_observation_has_no_effect(language: Kit) -> None:
    state = State(language.book)
    opened(state, 0)
    assert observed(language, state, b"x\n") == []


def test_rows_are_passed_on_as_they_are(language: Kit) -> None:
    state = State(language.book)
    opened(state, 0)
    effects = observed(language, state, b"ROOT\nstep=1\n")
    assert [(e.table, e.rows.num_rows) for e in effects if isinstance(e, Append)] == [("signals", 1), ("progress", 1)]


def test_a_stream_that_ends_tells_its_size_lines_and_tail(language: Kit) -> None:
    (read,) = replay(language, b"step=1\nlast words\n").of(StreamRead)
    assert (read.size, read.lines, read.tail, read.notes) == (18, 2, ("step=1", "last words"), ())


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", 0),
        (b"a\n", 1),
        (b"a", 1),
        (b"a\nb", 2),
        (b"a\nb\n", 2),
        (b"a\n\n", 2),
        (b"a\r\nb\r\n", 2),
        (b"a\r\nb", 2),
        (b"a\n" + b"x" * 140_000, 2),
    ],
)
def test_lines_are_counted_as_editors_count_them(language: Kit, data: bytes, lines: int) -> None:
    (read,) = replay(language, data).of(StreamRead)
    assert read.lines == lines


@pytest.mark.parametrize("data", [b"step=1\nROOT", b"step=1\nROOT\r", b"step=1\rROOT\r", b"step=1\nROOT\n"])
def test_the_cause_lies_within_the_lines_of_its_attempt(language: Kit, data: bytes) -> None:
    a = replay(language, data).only
    assert a.cause is not None
    stream = a.cause.signal.stream
    assert a.first_line[stream] <= a.cause.signal.line <= a.last_line[stream]


def test_a_job_is_judged_alone_and_leaves_nothing_behind(language: Kit) -> None:
    state = State(language.book)
    opened(state, 0)
    opened(state, 1, OTHER)
    observed(language, state, b"ROOT\n", b"step=1\n")
    core.advance(state, StreamEnded(0, 5, 1))
    (judged,) = core.advance(state, JobEnded(JOB))
    assert isinstance(judged, JobJudged)
    assert [a.verdict for a in judged.attempts] == ["crashed"]
    assert list(state.streams) == [1]
    assert list(state.jobs) == [OTHER]
    core.check(state)
    core.advance(state, StreamEnded(1, 7, 1))
    (judged,) = core.advance(state, JobEnded(OTHER))
    assert isinstance(judged, JobJudged)
    assert [a.verdict for a in judged.attempts] == ["running-at-end"]
    assert (state.streams, state.jobs) == ({}, {})


def test_the_same_events_give_the_same_effects(language: Kit) -> None:
    lines = ["step=1", "ROOT", "AGAIN", "2026-01-02 03:04:05 step=1", "EXIT"]
    assert repr(replay(language, lines).effects) == repr(replay(language, lines).effects)


def test_misuse_is_caught(language: Kit) -> None:
    state = State(language.book)
    opened(state, 0)
    with pytest.raises(AssertionError, match="used once"):
        opened(state, 0)
    with pytest.raises(AssertionError, match="after its streams"):
        core.advance(state, JobEnded(JOB))
    state = State(language.book)
    opened(state, 0)
    core.advance(state, StreamEnded(0, 0, 0))
    with pytest.raises(AssertionError, match="ends once"):
        core.advance(state, StreamEnded(0, 0, 0))


def test_check_sees_broken_invariants(language: Kit) -> None:
    def broken() -> tuple[State, trace.Trace, Signal]:
        state = State(language.book)
        opened(state, 0)
        observed(language, state, b"ROOT\nAGAIN\nROOT\n")
        traces = state.streams[0].fold.traces
        return state, traces[0], traces[0].kept[0]

    state, t, s = broken()
    core.check(state)
    t.end_offset += 1
    with pytest.raises(AssertionError, match="touch"):
        core.check(state)
    state, t, s = broken()
    t.early += [s] * (trace.KEEP + trace.KEEP_LIVE)
    with pytest.raises(AssertionError, match="bounded"):
        core.check(state)
    state, t, s = broken()
    t.early.append(s)
    with pytest.raises(AssertionError, match="counted"):
        core.check(state)
    state, t, s = broken()
    state.jobs[OTHER] = [0]
    with pytest.raises(AssertionError, match="belongs"):
        core.check(state)


def test_a_start_up_phase_announces_a_launch() -> None:
    phases = """
        framework: f
        about: a
        phases:
          - {id: f.begin, phase: startup, edge: begin, pattern: BEGIN, hits: [BEGIN], misses: [x]}
          - {id: f.end, phase: startup, edge: end, pattern: READY, hits: [READY], misses: [x]}
    """
    made = kit({"classes.yaml": CLASSES, "f.yaml": phases})
    empty = {
        "time_us": None,
        "year_us": None,
        "rank": None,
        "local_rank": None,
        "node": None,
        "fields": "{}",
        "text": "x",
    }
    row = {"stream": 0, "offset": 0, "line": 1, **empty}
    assert core.signal(made.book, {**row, "rule": "f.begin"}).mark == "start"
    assert core.signal(made.book, {**row, "rule": "f.end"}).mark is None


def test_the_tail_of_a_log_is_its_last_lines_whatever_the_blocks(language: Kit) -> None:
    data = b"".join(b"line %d\n" % n for n in range(3000)) + b"\x1b[31mlast\x1b[0m \xff\n\n"
    tails = {replay(language, data, block=block).of(StreamRead)[0].tail for block in (1000, 3, 100_000)}
    assert tails == {("line 2996", "line 2997", "line 2998", "line 2999", "last \ufffd")}
