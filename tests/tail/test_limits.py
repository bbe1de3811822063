"""What one job or one user may cost: over a limit nothing is dropped, it is told, read later, and goes away by itself."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st
from tests.tail.live import Live

from defib.adapters.tail.limits import BURST_S, SECOND, UNREAD_MAX, Limits, Meter, Unread
from defib.adapters.tail.pace import Pace
from defib.engine.ports import Data, Looked, Opened
from defib.engine.words import JobKey, StreamFacts

JOB = JobKey(None, "1")


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 5 * SECOND)), min_size=1, max_size=60))
def test_no_more_is_read_than_the_rate_and_one_burst_allow(reads: list[tuple[int, int]]) -> None:
    meter, now, total, biggest = Meter(Limits(job_bytes_s=100_000)), 0, 0, 0
    for size, pause in reads:
        now += pause
        wait, why = meter.wait_us(JOB, None, now)
        if wait:
            assert "100000 bytes per second of one job" in why
            now += wait
            assert meter.wait_us(JOB, None, now) == (0, ""), "a wait is long enough"
        meter.took(JOB, None, size, now)
        total, biggest = total + size, max(biggest, size)
    assert total <= 100_000 * (BURST_S + now / SECOND) + biggest + 1


def test_users_and_jobs_have_budgets_of_their_own() -> None:
    meter = Meter(Limits(job_bytes_s=100, user_bytes_s=150))
    meter.took(JOB, 7, 10_000, 0)
    assert meter.wait_us(JOB, 7, 0)[0] > 0
    assert "one user" in meter.wait_us(JobKey(None, "2"), 7, 0)[1]
    assert meter.wait_us(JobKey(None, "2"), 8, 0) == (0, "")
    assert meter.wait_us(JobKey(None, "2"), None, 0) == (0, "")


def test_files_are_counted_as_they_come_and_go() -> None:
    meter = Meter(Limits(files=3, job_files=2, user_files=2))
    for _ in range(2):
        assert meter.full(JOB, 7) is None
        meter.follows(JOB, 7, 1)
    assert "2 logs of one job" in (meter.full(JOB, 8) or "")
    assert "2 logs of one user" in (meter.full(JobKey(None, "2"), 7) or "")
    meter.follows(JobKey(None, "2"), 8, 1)
    assert "3 logs of one reader" in (meter.full(JobKey(None, "3"), 9) or "")
    meter.follows(JOB, 7, -1)
    assert meter.full(JOB, 7) is None


def test_the_unread_are_bounded() -> None:
    unread = Unread()
    for n in range(UNREAD_MAX + 10):
        unread[b"%d" % n] = "why"
    unread[b"0"] = "another"
    assert (len(unread), unread.more, unread[b"0"]) == (UNREAD_MAX, 10, "another")


def test_logs_over_the_limit_are_told_and_followed_when_there_is_room(live: Live) -> None:
    for n in range(4):
        live.write(f"{n}.log", b"x\n")
    live.open(limits=Limits(files=2))
    live.poll(3)
    assert len(live.of(Opened)) == 2
    assert list(live.source.unread.values()) == ["over the limit of 2 logs of one reader"] * 2
    for opened in live.of(Opened):
        live.source.over(opened.facts.job)
    live.poll(30)
    assert {name for name, _ in live.streams} == {"0.log", "1.log", "2.log", "3.log"}
    assert live.source.unread == {}


def test_a_limit_of_one_job_leaves_the_others_alone(live: Live) -> None:
    for n in range(4):
        live.write(f"ranks/r{n}.log", b"x\n")
    live.open([os.fsencode(live.folder / "nothing")], limits=Limits(job_files=2))
    live.source.assign(os.fsencode(live.folder / "ranks" / "r*.log"), StreamFacts(JOB))
    live.source.assign(os.fsencode(live.folder / "other.log"), StreamFacts(JobKey(None, "2")))
    live.write("other.log", b"x\n")
    live.poll(3)
    assert len(live.of(Opened)) == 3
    over = [why for why in live.source.unread.values() if not why.startswith("not there yet")]
    assert over == ["over the limit of 2 logs of one job"] * 2


def test_a_log_over_the_limit_is_told_and_read_in_the_end(live: Live) -> None:
    live.open(pace=Pace(quantum=1000), limits=Limits(job_bytes_s=1000))
    text = b"line of a log\n" * 3000  # 42 s worth
    live.write("slurm-1.out", text)
    live.write("slurm-2.out", b"quiet\n")
    live.poll(2)
    assert ("slurm-2.out", 0) in live.streams
    live.poll(20)
    assert len(live.streams[("slurm-1.out", 0)]) <= 1000 * (BURST_S + 24) + 1000
    loud = next(o.stream for o in live.of(Opened) if o.id.path.endswith("slurm-1.out"))
    assert [i.trouble for i in live.of(Looked) if i.stream == loud][
        -1
    ] == "over the limit of 1000 bytes per second of one job"
    live.poll(40)
    assert live.streams[("slurm-1.out", 0)] == text
    assert [i.trouble for i in live.of(Looked) if i.stream == loud][-1] is None
    assert len([i for i in live.of(Looked) if i.stream == loud and i.trouble]) <= 3
    assert live.of(Data)
