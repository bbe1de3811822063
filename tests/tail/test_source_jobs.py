"""Restarts from saved positions, how jobs end, and what the engine makes of a log that is followed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Collected, Kit, place_facts, replay
from tests.tail.live import Live

from defib.adapters.tail.body import Patience
from defib.adapters.tail.files import SystemFiles
from defib.adapters.tail.pace import SECOND, Pace
from defib.engine import core
from defib.engine.drive import Drive
from defib.engine.ports import Closed, Data, JobClosed, Looked, Opened, Ticked

# ---- positions ------------------------------------------------------------------------------------------------------


def restart(live: Live, change: Callable[[], None] = lambda: None) -> None:
    positions = live.source.positions()
    live.source.close()
    change()
    live.open(positions=positions)
    live.poll(3)


def test_a_restart_reads_nothing_twice_and_misses_nothing(live: Live) -> None:
    live.write("a.log", b"one\ntw")
    live.write("b.log", b"b\n")
    live.poll(3)
    before = len(live.of(Data))
    restart(live, lambda: live.write("a.log", b"o\nthree\n") and None)
    assert [d.data for d in live.of(Data)[before:]] == [b"two\nthree\n"]
    opened = live.of(Opened)[-2:]
    assert {(o.offset, o.line) for o in opened} == {(4, 2), (2, 2)}


def test_p8_rotated_while_down_is_not_followed_twice(live: Live) -> None:
    log = live.write("a.log", b"one\n")
    live.poll(3)

    def rotate() -> None:
        live.write("a.log", b"two\n")
        log.rename(live.folder / "a.log.1")
        live.write("a.log", b"three\n")

    restart(live, rotate)
    assert live.streams == {("a.log", 0): b"one\ntwo\n", ("a.log", 1): b"three\n"}


def test_p11_a_path_that_is_gone_keeps_its_position(live: Live) -> None:
    log = live.write("a.log", b"one\n")
    live.poll(3)
    restart(live, lambda: log.rename(live.folder / ".away") and None)
    restart(live)
    (live.folder / ".away").rename(log)
    live.write("a.log", b"two\n")
    live.poll(70)
    assert live.streams == {("a.log", 0): b"one\ntwo\n"}


# ---- jobs -----------------------------------------------------------------------------------------------------------


def test_a_job_that_is_over_is_closed_when_its_logs_are_read_and_quiet(live: Live) -> None:
    live.write("slurm-7.out", b"x\nno end")
    live.poll(3)
    live.source.over(live.job)
    live.poll(2)
    assert live.of(JobClosed) == []
    live.write("slurm-7.out", b" yet\n")
    live.poll(4)
    assert live.of(JobClosed) == []
    live.poll(9)
    assert [type(i) for i in live.items if isinstance(i, Closed | JobClosed)] == [Closed, JobClosed]
    assert live.streams == {("slurm-7.out", 0): b"x\nno end yet\n"}
    live.write("slurm-7.out", b"a leaked process\n")
    live.poll(60)
    assert len(live.of(Opened)) == 1


def test_a_job_whose_logs_cannot_be_read_is_closed_in_the_end(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.open(pace=Pace(handles=0))
    live.write("slurm-7.out", b"x\n")
    live.poll(3)

    def fail(self: SystemFiles, path: bytes) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(SystemFiles, "open", fail)
    live.poll(20)
    live.source.over(live.job)
    live.poll(100)
    assert live.of(JobClosed) == []
    live.poll(30)
    assert len(live.of(JobClosed)) == 1
    assert live.of(Looked)[-1].trouble == os.strerror(errno.EIO)
    assert "before the end of the file was read" in live.of(Closed)[0].note


def test_a_requeued_job_is_followed_again(live: Live) -> None:
    live.write("slurm-7.out", b"first attempt\n")
    live.poll(3)
    job = live.job
    live.source.over(job)
    live.poll(15)
    live.write("slurm-7.out", b"second\n", "wb")
    live.source.running(job)
    live.poll(15)
    assert live.streams[("slurm-7.out", 1)] == b"second\n"
    assert live.job == job


def test_nuls_at_the_end_of_a_job_that_is_over_are_not_waited_for(live: Live) -> None:
    live.open(patience=Patience(nul_us=10_000 * SECOND))
    log = live.write("slurm-7.out", b"x\n")
    os.truncate(log, 100)
    live.poll(3)
    live.source.over(live.job)
    live.poll(15)
    assert live.streams == {("slurm-7.out", 0): b"x\n" + bytes(98)}
    assert len(live.of(JobClosed)) == 1


def test_stop_closes_everything(live: Live) -> None:
    live.write("a.log", b"x\n")
    live.poll()
    live.source.stop()
    items = live.source.poll() or []
    assert [type(i) for i in items] == [Closed, JobClosed, Ticked]
    assert live.source.poll() is None


def test_another_users_log_is_blind(tmp_path: Path, language: Kit) -> None:
    live = Live(tmp_path.resolve(), language, owner=lambda job: os.getuid() + 1)
    live.write("a.log", b"x\n")
    live.poll()
    assert live.streams == {("a.log", 0): b""}
    assert live.of(Looked)[0].trouble == "belongs to another user"
    live.source.close()


# ---- with the engine ------------------------------------------------------------------------------------------------

STORY = [b"LAUNCH\n", *(b"step=%d/99 time=1\n" % n for n in range(1, 60)), b"ROOT\n", b"EXIT\n"]


def test_followed_line_by_line_the_engine_finds_what_it_finds_in_the_finished_log(live: Live, language: Kit) -> None:
    sink = Collected()
    drive = Drive(language.observer(), core.State(language.book), sink, verify=True)
    for n, line in enumerate(STORY):
        live.write("slurm-7.out", line[: n % 5])
        for item in live.poll():
            drive._take(item)
        live.write("slurm-7.out", line[n % 5 :])
        for item in live.poll(1):
            drive._take(item)
    live.source.over(live.job)
    for item in live.poll(20):
        drive._take(item)
    path = str(live.folder / "slurm-7.out")
    offline = replay(language, {path: b"".join(STORY)}, facts=place_facts(language.book, [path]))
    assert [(a.verdict, a.cause and a.cause.signal.text) for a in sink.attempts] == [
        (a.verdict, a.cause and a.cause.signal.text) for a in offline.attempts
    ]
    assert sink.rows("progress") == offline.rows("progress")
    assert sink.rows("signals") == offline.rows("signals")


def test_a_job_that_begins_to_run_is_read_at_once(live: Live) -> None:
    """While it waited its log was looked at rarely; the silence until the next such look would be ours."""
    live.write("a.log", b"queued\n")
    live.poll(2)
    (opened,) = live.of(Opened)
    live.source.running(opened.facts.job, False)
    live.poll(5)
    live.write("a.log", b"step 1\n")
    live.poll(3)
    assert live.streams == {("a.log", 0): b"queued\n"}
    live.source.running(opened.facts.job)
    live.poll(2)
    assert live.streams == {("a.log", 0): b"queued\nstep 1\n"}
