"""What a watch finds, as events of recovery: about the run the scheduler shows, or about none."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.adapters.test_watch import BANNER, step

from defib.adapters import rulefiles
from defib.adapters.act.verdicts import LINES_MAX, TEXT_MAX, Verdicts
from defib.engine.core import State
from defib.engine.drive import Drive
from defib.engine.jobs import ClusterRead, JobFacts
from defib.engine.observe import Observer
from defib.engine.ports import Closed, Data, JobClosed, JobTold, Looked, Opened, Ticked
from defib.engine.recover.events import Event, Judged, Progressed, TakenBack
from defib.engine.words import JobKey, JobState, StreamFacts, StreamId

SECOND = 1_000_000
NOW = 1_780_000_000 * SECOND
FACTS = JobFacts(
    cluster="bed", job_id=7, state="RUNNING", submit_us=NOW - 60 * SECOND, restarts=0, user="ada", uid=7, account="lab",
    partition="train", start_us=NOW - 50 * SECOND, nodes=("n01",), node_count=1, gpus=8, requeue=True, batch=True, comment="",
    exit_code=None, exit_signal=0,
)  # fmt: skip
OOM = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


@pytest.fixture(scope="module")
def loaded() -> Any:
    return rulefiles.load([])


class World:
    """An engine fed by polls; `out` is everything the verdicts have said."""

    def __init__(self, loaded: Any) -> None:
        self.us = NOW
        self.state = State(loaded.book)
        self.verdicts = Verdicts(self.state, lambda: self.us)
        self.out: list[Event] = []
        self.drive = Drive(Observer(loaded.book, loaded.databases), self.state, self)

    def apply(self, effects: list[object]) -> None:
        self.out += self.verdicts.take(effects)

    def say(self, *items: Any) -> None:
        polls = [[*items, Ticked(self.us)], None]

        class Once:
            def poll(self) -> Any:
                return polls.pop(0)

            def close(self) -> None: ...

        self.drive.run(Once())

    def read(self, **changes: Any) -> None:
        jobs = (dataclasses.replace(FACTS, **changes),)
        self.out += self.verdicts.read(ClusterRead(self.us, True, jobs))

    def open(self, text: str, job: JobKey | None = None, n: int = 0) -> None:
        facts = StreamFacts(job or JobKey(cluster="bed", job_id="7"))
        self.say(Opened(n, StreamId(f"/logs/{n}.out"), facts, 0), *self.data(text, n))

    def data(self, text: str, n: int = 0) -> tuple[Any, ...]:
        return Data(n, text.encode(), len(text)), Looked(n)

    def over(self, job: JobKey | None = None) -> None:
        self.say(Closed(0), JobClosed(job or JobKey(cluster="bed", job_id="7")))

    def of(self, kind: type) -> list[Any]:
        return [e for e in self.out if isinstance(e, kind)]


@pytest.fixture
def world(loaded: Any) -> World:
    return World(loaded)


def steps(first: int, last: int) -> str:
    return "".join(map(step, range(first, last + 1)))


def test_an_end_is_told_about_the_run_the_scheduler_shows(world: World) -> None:
    world.read()
    world.open(BANNER + steps(1, 30) + OOM)
    world.read(state="FAILED", exit_code=1)
    world.over()
    (told,) = world.of(Judged)
    assert (told.kind, told.attempt, told.klass, told.step, told.drained) == ("dead", FACTS.key, "cuda-oom", 30, True)
    assert told.incident == "bed/7#0"
    kept = world.verdicts.evidence(FACTS.key)
    assert kept["step"] == 30
    assert any("OutOfMemoryError" in x["text"] and x["path"] == "/logs/0.out" for x in kept["lines"])


def test_a_good_end_takes_every_verdict_back(world: World) -> None:
    world.read()
    world.open(BANNER + steps(1, 30) + "[after training is done] datetime: 2026-01-01 00:00:00\n")
    world.over()
    assert world.of(Judged) == []
    assert [e.attempt for e in world.of(TakenBack)][-1:] == [FACTS.key]


@pytest.mark.parametrize("name", [None, "7;8", "-7", "٧", "7 8", "99999999999", "train.sh"])
def test_a_job_that_the_scheduler_did_not_number_is_nobody(world: World, name: str | None) -> None:
    job = JobKey(cluster="bed", job_id=name, place="/logs")
    world.read()
    world.open(BANNER + steps(1, 30) + OOM, job)
    world.over(job)
    assert world.out == []


def test_what_nobody_has_read_from_the_scheduler_is_not_told(world: World) -> None:
    world.open(BANNER + steps(1, 30) + OOM)
    world.over()
    assert world.out == []
    with pytest.raises(ValueError, match="no verdict about this run"):
        world.verdicts.evidence(FACTS.key)


def test_a_read_that_failed_changes_nothing(world: World) -> None:
    world.read()
    assert world.verdicts.read(ClusterRead(world.us, False, ())) == []
    world.open(BANNER + steps(1, 30))
    assert [(e.attempt, e.step) for e in world.of(Progressed)] == [(FACTS.key, 30)]


def test_steps_of_a_first_run_count_once_and_forwards(world: World) -> None:
    world.read()
    world.open(BANNER + steps(1, 10))
    world.say(*world.data(steps(5, 8)))
    world.say(*world.data(steps(11, 12)))
    assert [e.step for e in world.of(Progressed)] == [10, 12]


def test_steps_count_for_a_later_run_only_where_that_run_printed_them(world: World) -> None:
    """A log that was open before the run began, lines without stamps: an earlier run may have printed them."""
    world.read()
    world.open(BANNER + steps(1, 10))
    started = world.us + 100 * SECOND
    world.us += 110 * SECOND
    world.read(restarts=1, submit_us=world.us - 40 * SECOND, start_us=started)
    world.say(*world.data(steps(11, 20)))
    assert [e.step for e in world.of(Progressed)] == [10], "appended to the old log, without stamps: not believed"
    world.open(BANNER + steps(11, 30), n=1)
    (_, later) = world.of(Progressed)
    assert (later.step, later.attempt.restarts) == (30, 1)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_of_a_heterogeneous_job_the_leader_is_meant(world: World, order: tuple[int, ...]) -> None:
    parts = [dataclasses.replace(FACTS, job_id=7 + n, het_job_id=7, het_offset=n, state="FAILED") for n in order]
    world.verdicts.read(ClusterRead(world.us, True, tuple(parts)))
    world.open(BANNER + steps(1, 30) + OOM)
    world.over()
    (told,) = world.of(Judged)
    assert told.attempt.job_id == 7


@pytest.mark.parametrize("state", ["PENDING", "FAILED", "COMPLETING", "SUSPENDED"])
def test_steps_of_a_run_that_does_not_run_are_nobodys(world: World, state: str) -> None:
    world.read(state=state)
    world.open(BANNER + steps(1, 10))
    assert world.of(Progressed) == []


def test_evidence_is_bounded(world: World) -> None:
    world.read()
    long = OOM.strip() + " x" * 4000 + "\n"
    world.open(BANNER + steps(1, 30) + long * 400)
    world.read(state="FAILED", exit_code=1)
    world.over()
    kept = world.verdicts.evidence(FACTS.key)
    assert 0 < len(kept["lines"]) <= LINES_MAX
    assert all(len(x["text"]) <= TEXT_MAX for x in kept["lines"])


def test_a_silence_is_told_of_while_it_lasts_and_what_is_gone_is_forgotten(world: World) -> None:
    world.read()
    job = JobKey(cluster="bed", job_id="7")
    world.say(JobTold(job, JobState("RUNNING"), "train"))
    world.open(BANNER + steps(1, 40))
    for _ in range(600):
        world.us += 20 * SECOND
        world.say(Looked(0))
        if world.of(Judged):
            break
    (told,) = world.of(Judged)
    assert (told.kind, told.klass, told.step, told.attempt) == ("hung", "hang", 40, FACTS.key)
    world.read()
    assert world.verdicts.evidence(FACTS.key)
    world.out += world.verdicts.read(ClusterRead(world.us, True, ()))
    with pytest.raises(ValueError, match="no verdict"):
        world.verdicts.evidence(FACTS.key)


def test_a_silence_that_began_before_this_run_is_not_its_own(world: World) -> None:
    world.read()
    job = JobKey(cluster="bed", job_id="7")
    world.say(JobTold(job, JobState("RUNNING"), "train"))
    world.open(BANNER + steps(1, 40))
    world.read(restarts=1, start_us=world.us + 11_000 * SECOND)
    for _ in range(600):
        world.us += 20 * SECOND
        world.say(Looked(0))
    assert [w.health for w in world.state.live.watches.values()] == ["hung"]
    assert world.of(Judged) == []
