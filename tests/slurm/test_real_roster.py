"""A job's whole life on a real Slurm, as the roster tells it: submitted, run, requeued, run again, ended, forgotten."""

from __future__ import annotations

import os
import time

from tests.slurm.bed import Bed, wait_for
from tests.slurm.conftest import polled, scheduler

from defib.adapters.slurm import paths
from defib.engine.ports import JobTold
from defib.engine.roster import Follow, Item, Odd, Over, Roster, Vanished
from defib.engine.words import JobKey


class Watcher:
    """Reads on and on; the observer's clock runs so fast that a minute of absence passes in a second."""

    def __init__(self, bed: Bed) -> None:
        self.reader = scheduler(bed)
        self.roster = Roster(paths.places(roots=(os.fsencode(bed.root),)), settle_us=0, absent_us=1_000_000)
        self.items: list[Item] = []

    def look(self) -> None:
        self.items += self.roster.take(polled(self.reader))

    def until(self, kind: type[Item], *states: str) -> Item:
        """Look until such an item was told; the last one."""

        def told() -> list[Item]:
            return [
                i
                for i in self.items
                if isinstance(i, kind) and (not states or (isinstance(i, JobTold) and i.state.state in states))
            ]

        def looked() -> bool:
            self.look()
            return bool(told())

        wait_for(looked, f"{kind.__name__} {states}")
        return told()[-1]


def content(path: bytes) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def words(items: list[Item]) -> list[str]:
    out: list[str] = []
    for i in items:
        match i:
            case JobTold():
                word = f"{i.state.state or 'gone'}:{i.state.restart_count}"
            case Odd():
                continue
            case _:
                word = type(i).__name__
        if not out or out[-1] != word:
            out.append(word)
    return out


def test_a_life_with_a_requeue(frail: Bed) -> None:
    watch = Watcher(frail)
    i = frail.submit("echo run ${SLURM_RESTART_COUNT:-0}; sleep 300", "--hold", "--open-mode=append")
    job = JobKey("frail", str(i))
    watch.until(JobTold, "PENDING")
    assert watch.roster.jobs() == (job,)
    frail.check("scontrol", "release", str(i))
    follow = watch.until(Follow)
    assert isinstance(follow, Follow)
    ((log, facts),) = follow.streams
    assert (log.path, follow.uid, facts.job, facts.channel) == (
        os.fsencode(frail.home("nobody")) + b"/slurm-%d.out" % i,
        65534,
        job,
        "out",
    )
    wait_for(lambda: b"run 0" in content(log.path), "the first run's line")
    frail.check("scontrol", "requeue", str(i))
    wait_for(lambda: frail.state(i) == "PENDING", "the requeue")
    watch.look()
    frail.begin_again(i)
    watch.look()
    wait_for(lambda: b"run 1" in content(log.path), "the second run's line")
    frail.check("scancel", str(i))
    watch.until(Over)
    frail.until(i, "")
    wait_for(lambda: watch.look() is None and watch.roster.jobs() == (), "the roster to forget it")
    told = words(watch.items)
    assert told[0] == "PENDING:0"
    assert [w for w in told if w.startswith("RUNNING")] == ["RUNNING:0", "RUNNING:1"]
    assert told.index("RUNNING:0") < told.index("PENDING:1") < told.index("RUNNING:1") < told.index("CANCELLED:1")
    assert told.count("Follow") == 1, "the same log all its life"
    assert told.count("Over") == 1
    assert not any(isinstance(i, Vanished) for i in watch.items)
    assert {i.job for i in watch.items if isinstance(i, JobTold)} == {job}


def test_an_array_and_a_heterogeneous_job(frail: Bed) -> None:
    watch = Watcher(frail)
    array = frail.submit("sleep 300", "--array=0-3%2")
    het = frail.submit("sleep 300", ":", "-N1")
    frail.until(f"{array}_1", "RUNNING")
    frail.until(het, "RUNNING")
    wait_for(lambda: watch.look() is None and len(watch.roster.jobs()) == 3, "two tasks and a job")
    tasks = [JobKey("frail", str(array), t) for t in "01"]
    assert set(watch.roster.jobs()) == {*tasks, JobKey("frail", str(het))}
    assert set(watch.roster.related(tasks[0])) == set(tasks)
    assert [m.het_offset for m in watch.roster.members(JobKey("frail", str(het)))] == [0, 1]
    frail.check("scancel", str(array), str(het))


def test_controller_down_changes_nothing_and_a_lost_job_is_told_once(frail: Bed) -> None:
    watch = Watcher(frail)
    i = frail.submit("sleep 300")
    frail.until(i, "RUNNING")
    watch.until(Follow)
    before = len(watch.items)
    frail.kill_controller()
    watch.reader.deadline_s = 2.0
    for _ in range(2):
        watch.look()
    assert all(isinstance(x, Odd) for x in watch.items[before:])
    assert watch.roster.members(JobKey("frail", str(i)))[0].state == "RUNNING"
    for name in os.listdir(frail.root / "state"):  # the controller forgets everything
        if name.startswith("job_state"):
            os.unlink(frail.root / "state" / name)
    frail.start_controller()
    watch.reader.deadline_s = 30.0
    gone = watch.until(Vanished)
    assert isinstance(gone, Vanished)
    assert "it was RUNNING when it was last seen" in gone.because
    for _ in range(3):
        watch.look()
        time.sleep(0.2)
    assert len([x for x in watch.items if isinstance(x, Vanished)]) == 1
    assert watch.roster.jobs() == ()
