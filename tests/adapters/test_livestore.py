"""The history while jobs run: rows in batches, once each, whatever fails in between."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.adapters.test_watch import BANNER, SECOND, step

from defib.adapters import daemon, rulefiles
from defib.adapters.duck import BusyError, DuckStore, UnreadableError, connect
from defib.adapters.livestore import LiveStore
from defib.adapters.room import FullError
from defib.engine.core import Event, JobEnded, Observed, State, StreamEnded, StreamLooked, StreamOpened, Tick, advance
from defib.engine.drive import Drive
from defib.engine.observe import Observer
from defib.engine.ports import Closed, Data, JobClosed, Looked, Opened, Ticked
from defib.engine.words import JobKey, StoreError, StreamFacts, StreamId

NOW = 1_700_000_000 * SECOND
Take = Callable[..., None]


@pytest.fixture(scope="module")
def loaded() -> Any:
    return rulefiles.load([])


class Live:
    """A store, and commits made from items as the drive makes them."""

    def __init__(self, path: Path, loaded: Any) -> None:
        self.path, self.loaded = path, loaded
        self.store = LiveStore(str(path), loaded.book, "one")
        self.state = State(loaded.book)
        self.seq = 0
        self.events: list[Event] = []
        self.drive = Drive(Observer(loaded.book, loaded.databases), self.state, self, log=self)

    def commit(self, events: Any, marks: Any, reached: Any) -> None:
        self.seq += 1
        self.events = list(events)

    def apply(self, effects: list[object]) -> None:
        self.store.take(self.seq, self.events, effects, self.state)

    def say(self, *items: Any) -> None:
        """One poll."""
        polls = [list(items), None]

        class Once:
            def poll(self) -> Any:
                return polls.pop(0)

            def close(self) -> None: ...

        self.drive.run(Once())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.store.cursor().execute(query).fetchall()


FACTS = StreamFacts(JobKey(job_id="7"), job_name="llama")
OPENED = Opened(0, StreamId("/logs/slurm-7.out"), FACTS, 0)


def lines(first: int, last: int) -> Data:
    raw = "".join(map(step, range(first, last + 1))).encode()
    return Data(0, raw, len(raw))


@pytest.fixture
def live(tmp_path: Path, loaded: Any) -> Any:
    made = Live(tmp_path / "h.duckdb", loaded)
    yield made
    made.store.abandon()


def test_a_running_job_is_there_before_it_ends(live: Live) -> None:
    live.say(OPENED, Data(0, BANNER.encode(), len(BANNER)), lines(1, 30), Looked(0), Ticked(NOW))
    assert live.rows("SELECT count(*) FROM progress") == [(0,)], "not before the flush"
    live.store.flush()
    assert live.rows("SELECT count(*), max(step) FROM progress") == [(30, 30)]
    assert live.rows("SELECT job, job_name, attempt, health, step, streams, line_age_s FROM live") == [
        ("7", "llama", 1, "healthy", 30, 1, 0.0)
    ]
    live.say(Looked(0, "Stale file handle"), Ticked(NOW + 5 * SECOND))
    live.store.flush()
    assert live.rows("SELECT path, lines, trouble, lag_s, trouble_s FROM live_lag") == [
        ("/logs/slurm-7.out", 31, "Stale file handle", 5.0, 0.0)
    ]
    assert live.rows("SELECT job, was, health FROM health") == [("7", "starting", "healthy")]
    live.say(Closed(0), JobClosed(FACTS.job), Ticked(NOW + 6 * SECOND))
    live.store.flush()
    assert live.rows("SELECT job, verdict, last_step FROM attempts") == [("7", "running-at-end", 30)]
    assert live.rows("SELECT * FROM live_jobs") == []
    assert live.rows("SELECT * FROM live_streams") == []
    assert live.rows("SELECT value FROM meta WHERE key = 'applied'") == [("3",)]


def test_a_job_that_runs_again_after_it_was_judged_gets_the_next_numbers(live: Live) -> None:
    """Also when both lives are judged between two flushes."""
    for n, name in enumerate(("/logs/slurm-7.out", "/logs/slurm-7.b.out")):
        opened = Opened(0, StreamId(name), FACTS, 0)
        live.say(opened, Data(0, BANNER.encode(), len(BANNER)), lines(1, 30), Ticked(NOW + n * SECOND))
        live.say(Closed(0), JobClosed(FACTS.job), Ticked(NOW + n * SECOND))
    live.store.flush()
    found = live.rows(
        "SELECT attempt_id, s.path FROM attempts JOIN attempt_streams USING (attempt_id) JOIN streams s USING (stream_id) ORDER BY 1"
    )
    assert found == [("7#0", "/logs/slurm-7.out"), ("7#1", "/logs/slurm-7.b.out")]


def test_commits_that_are_applied_are_not_written_again(live: Live, loaded: Any, tmp_path: Path) -> None:
    """As at a start: the same commits are taken in, those the database has and one it has not."""
    live.say(OPENED, Data(0, BANNER.encode(), len(BANNER)), lines(1, 30), Ticked(NOW))
    live.store.flush()
    live.say(lines(31, 40), Closed(0), JobClosed(FACTS.job), Ticked(NOW + SECOND))
    live.store.abandon()  # killed before the flush
    again = Live(live.path, loaded)
    assert again.store.applied == 1
    again.say(OPENED, Data(0, BANNER.encode(), len(BANNER)), lines(1, 30), Ticked(NOW))
    again.say(lines(31, 40), Closed(0), JobClosed(FACTS.job), Ticked(NOW + SECOND))
    again.store.flush()
    assert again.rows("SELECT count(*), count(DISTINCT line) FROM progress") == [(40, 40)]
    assert again.rows("SELECT last_step FROM attempts") == [(40,)]
    again.store.abandon()


class Failing:
    """A connection that fails once at the n-th statement, as a full disk makes it fail."""

    def __init__(self, con: Any, at: int, error: duckdb.Error) -> None:
        self._con, self._at, self._error = con, at, error

    def execute(self, *args: Any) -> Any:
        self._at -= 1
        if self._at == 0:
            raise self._error
        return self._con.execute(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._con, name)


@contextlib.contextmanager
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The disk takes no byte more."""

    def refuse(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(os, "posix_fallocate", refuse)
        yield m


@pytest.mark.parametrize("at", range(1, 16))
def test_a_write_that_fails_anywhere_is_made_again_whole(at: int, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.say(OPENED, Data(0, BANNER.encode(), len(BANNER)), lines(1, 30), Ticked(NOW))
    live.say(Closed(0), JobClosed(FACTS.job), Ticked(NOW + SECOND))
    live.store.con = Failing(live.store.con, at, duckdb.FatalException("FATAL Error: No space left on device"))
    with full(monkeypatch), pytest.raises(FullError):
        live.store.flush()
    live.store.flush()
    assert live.rows("SELECT count(*) FROM progress") == [(30,)]
    assert live.rows("SELECT count(*) FROM attempts") == [(1,)]
    assert live.rows("SELECT count(*) FROM health") == [(1,)]
    assert live.rows("SELECT count(*) FROM live_jobs") == [(0,)]


def test_a_fault_of_ours_is_not_taken_for_a_full_disk(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.say(OPENED, Ticked(NOW))
    live.store.con = Failing(live.store.con, 3, duckdb.ConstraintException("Constraint Error: duplicate key"))
    with full(monkeypatch), pytest.raises(StoreError) as e:
        live.store.flush()
    assert not isinstance(e.value, FullError)


def test_the_words_of_an_error_decide_nothing(tmp_path: Path, loaded: Any) -> None:
    """Neither its message nor a path in it: there is room on this disk, and nobody holds this file."""
    folder = tmp_path / "disk full, no space left, lock"
    folder.mkdir()
    live = Live(folder / "h.duckdb", loaded)
    live.say(OPENED, Ticked(NOW))
    live.store.con = Failing(live.store.con, 3, duckdb.IOException("IO Error: No space left on device, lock"))
    with pytest.raises(StoreError) as e:
        live.store.flush()
    assert not isinstance(e.value, FullError)
    live.store.abandon()
    (folder / "x.duckdb").write_bytes(b"no database at all" * 1000)
    with pytest.raises(UnreadableError):
        connect(str(folder / "x.duckdb"), read_only=False)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_history_that_is_held_is_told_from_one_that_cannot_be_read(tmp_path: Path, read_only: bool) -> None:
    db = tmp_path / "h.duckdb"
    connect(str(db), read_only=False).close()
    hold = "import duckdb, sys; con = duckdb.connect(sys.argv[1]); print(flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", hold, str(db)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(BusyError):
            connect(str(db), read_only=read_only)
    finally:
        holder.communicate()
    connect(str(db), read_only=read_only).close()


def test_a_store_whose_disk_stays_full_goes_on_when_there_is_room(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where not even a connection can be had meanwhile: questions are told so, and nothing is lost or doubled."""
    live.say(OPENED, Data(0, BANNER.encode(), len(BANNER)), lines(1, 30), Ticked(NOW))
    live.store.con = Failing(live.store.con, 4, duckdb.IOException("IO Error"))
    real = duckdb.connect
    with full(monkeypatch) as m:

        def refuse(*args: Any, **more: Any) -> Any:
            raise duckdb.IOException("IO Error: could not write")

        m.setattr(duckdb, "connect", refuse)
        for _ in range(3):
            with pytest.raises(FullError):
                live.store.flush()
        with pytest.raises(StoreError, match="cannot be opened just now"):
            live.store.cursor()
    assert duckdb.connect is real
    live.store.flush()
    assert live.rows("SELECT count(*), count(DISTINCT line) FROM progress") == [(30, 30)]


def test_a_history_belongs_to_its_journal(live: Live, loaded: Any, tmp_path: Path) -> None:
    live.store.close()
    with pytest.raises(StoreError, match="a watch's own"):
        DuckStore(str(live.path), loaded.book)
    with pytest.raises(StoreError, match="not made from the journal"):
        LiveStore(str(live.path), loaded.book, "another")
    DuckStore(str(tmp_path / "replayed.duckdb"), loaded.book).close()
    with pytest.raises(StoreError, match="not made from the journal"):
        LiveStore(str(tmp_path / "replayed.duckdb"), loaded.book, "one")
    live.store = LiveStore(str(live.path), loaded.book, "one")


def test_the_board_depends_on_commits_alone(loaded: Any) -> None:
    """Events one by one or together, flushed or not: the rows are the same."""
    from defib.adapters.board import Board

    job = JobKey(job_id="7")
    events: list[Event] = [
        StreamOpened(0, StreamId("/x"), StreamFacts(job)),
        Observed(Observer(loaded.book, loaded.databases).observe(_batch()), {0: (10, 10, 1)}),
        StreamLooked(0, "gone"),
        Tick(NOW),
        StreamLooked(0, "gone"),
        Tick(NOW + SECOND),
        StreamLooked(0, None),
        Tick(NOW + 2 * SECOND),
    ]
    board, state = Board(), State(loaded.book)
    for at in range(0, len(events), 2):
        effects = [e for event in events[at : at + 2] for e in advance(state, event)]
        board.take(events[at : at + 2], effects, state)
        board.clean()
    assert board.streams[0]["trouble"] is None
    assert board.streams[0]["last_look"] == NOW + 2 * SECOND
    assert board.jobs[job]["since"] == NOW
    ended = [StreamEnded(0, 10, 1), JobEnded(job)]
    board.take(ended, [x for e in ended for x in advance(state, e)], state)
    assert (board.jobs, board.streams, board.gone_jobs) == ({}, {}, {"7"})


def _batch() -> Any:
    from defib.engine.blocks import Batch, Piece

    batch = Batch()
    batch.add(Piece(0, 0, 1, b"something\n"))
    return batch


def test_a_keeper_waits_for_room_and_says_so(tmp_path: Path, loaded: Any) -> None:
    """Alarmed once, tried again at times, told when it goes on; asked to end meanwhile it gives the reserve up."""
    alarms: list[str] = []
    asked = [False]

    class Hooks:
        def asked(self) -> bool:
            return asked[0]

        def alarm(self, text: str) -> None:
            alarms.append(text)

    class Clock:
        us = NOW

        def now_us(self) -> int:
            return self.us

        def sleep_us(self, us: int) -> None:
            self.us += us

    class Deaf:
        def apply(self, effects: list[object]) -> None: ...

    clock = Clock()
    station = daemon.open_station(
        str(tmp_path / "s"), loaded, Deaf(), Hooks(), clock, daemon.Keeping(ballast_bytes=1 << 16)
    )
    tries = [3]

    def act() -> str:
        if tries[0]:
            tries[0] -= 1
            raise FullError("No space left on device")
        return "done"

    assert station.keeper.patiently(act) == "done"
    assert clock.us == NOW + 3 * daemon.FULL_US
    assert ["No space" in alarms[0], "going on" in alarms[1], len(alarms)] == [True, True, 2]
    ballast = tmp_path / "s" / "journal" / "ballast"
    assert ballast.stat().st_size == 1 << 16
    asked[0], tries[0] = True, 9
    with pytest.raises(FullError):
        station.keeper.patiently(act)
    assert ballast.stat().st_size == 0
    station.close()


def test_no_snapshot_is_left_of_what_the_journal_does_not_hold(tmp_path: Path, loaded: Any) -> None:
    """Where a run breaks off between taking events in and writing them down, the next start knows only what was written."""
    from defib.adapters.journal import snapshot
    from killcase import Quiet, World

    class Deaf:
        def apply(self, effects: list[object]) -> None: ...

    class Broken:
        polls = 0

        def poll(self) -> Any:
            self.polls += 1
            if self.polls == 1:
                return [OPENED, lines(1, 5), Ticked(NOW)]
            return [lines(6, 9), Ticked(NOW - SECOND)]  # an assertion of ours fails: the clock went back

        def close(self) -> None: ...

    state = str(tmp_path / "s")
    station = daemon.open_station(state, loaded, Deaf(), Quiet(), World(tmp_path))
    with pytest.raises(AssertionError):
        station.run(Broken())
    station.close()
    assert snapshot.found(str(tmp_path / "s" / "journal")) == []
    again = daemon.open_station(state, loaded, Deaf(), Quiet(), World(tmp_path))
    assert [r.read for r in again.keeper.resumed.reached.values()] == [len(lines(1, 5).data)]
    assert again.keeper.store.cursor().execute("SELECT count(*) FROM progress").fetchall() == [(5,)]
    again.close()
