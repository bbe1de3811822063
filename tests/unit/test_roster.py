"""Reads of a scheduler -> who is told, followed, over, gone. Real lives are in tests/slurm/test_real_roster.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from defib.engine.jobs import ClusterRead, JobFacts, LogPath
from defib.engine.ports import JobTold
from defib.engine.roster import Follow, Item, Odd, Over, Roster, Vanished
from defib.engine.words import JobKey

SECOND = 1_000_000


def places(facts: JobFacts) -> tuple[tuple[LogPath, ...], tuple[str, ...]]:
    if facts.stdout is None:
        return (), (f"job {facts.label}: no log",) if facts.name == "odd" else ()
    return (LogPath(facts.stdout),), ()


def fact(job_id: int = 7, state: str = "RUNNING", **more: Any) -> JobFacts:
    base: dict[str, Any] = {
        "submit_us": 100,
        "restarts": 0,
        "uid": 1001,
        "name": "llm",
        "stdout": b"/h/%d.log" % job_id,
        "nodes": ("n1",),
    }
    return JobFacts("c", job_id, state, **{**base, **more})


class Play:
    """A roster and its clock. `read(facts…, after=seconds)`: the items of one read."""

    def __init__(self) -> None:
        self.roster = Roster(places)
        self.now = 0

    def read(
        self,
        *jobs: JobFacts,
        after: int = 10,
        ok: bool = True,
        troubles: tuple[str, ...] = (),
        unread: frozenset[int] = frozenset(),
    ) -> list[Item]:
        self.now += after * SECOND
        return self.roster.take(ClusterRead(self.now, ok, jobs, troubles, 0.1, unread))


KEY = JobKey("c", "7")


def kinds(items: list[Item]) -> list[str]:
    return [f"{i.state.state}/{i.state.restart_count}" if isinstance(i, JobTold) else type(i).__name__ for i in items]


def test_a_life() -> None:
    play = Play()
    assert kinds(play.read(fact(state="PENDING", nodes=()))) == ["PENDING/0"]
    assert kinds(play.read(fact(state="PENDING", nodes=()))) == []
    told, follow = play.read(fact())
    assert told == JobTold(KEY, fact().told, "llm")
    assert isinstance(follow, Follow)
    ((log, facts),) = follow.streams
    assert (follow.job, follow.uid, log, facts.job, facts.job_name, facts.channel) == (
        KEY,
        1001,
        LogPath(b"/h/7.log"),
        KEY,
        "llm",
        "out",
    )
    assert play.read(fact()) == []
    assert kinds(play.read(fact(flags=frozenset(["COMPLETING"])))) == ["COMPLETING/0"]
    assert kinds(play.read(fact(state="FAILED", exit_code=1))) == ["FAILED/0"]
    assert kinds(play.read(fact(state="FAILED", exit_code=1), after=29)) == []
    assert play.read(fact(state="FAILED", exit_code=1), after=1) == [Over(KEY, "the scheduler says FAILED")]
    assert play.read(fact(state="FAILED", exit_code=1)) == []
    for _ in range(9):
        assert play.read() == []
    assert play.roster.jobs() == ()


def test_an_end_that_does_not_stand_is_none() -> None:
    """NODE_FAIL or RequeueExit: Slurm itself puts the job back within seconds."""
    play = Play()
    play.read(fact())
    assert kinds(play.read(fact(state="NODE_FAIL"))) == ["NODE_FAIL/0"]
    assert kinds(play.read(fact(state="PENDING", restarts=1, submit_us=200, nodes=()))) == ["PENDING/1"]
    assert kinds(play.read(fact(restarts=1, submit_us=200), after=600)) == ["RUNNING/1"]
    assert play.read(fact(restarts=1, submit_us=200)) == []


def test_a_finished_job_that_is_brought_back_is_followed_anew() -> None:
    play = Play()
    play.read(fact())
    play.read(fact(state="FAILED"))
    assert "Over" in kinds(play.read(fact(state="FAILED"), after=60))
    assert kinds(play.read(fact(state="PENDING", restarts=1, submit_us=200))) == ["PENDING/1", "Follow"]
    assert kinds(play.read(fact(restarts=1, submit_us=200))) == ["RUNNING/1"]
    play.read(fact(state="FAILED", restarts=1, submit_us=200))
    assert "Over" in kinds(play.read(fact(state="FAILED", restarts=1, submit_us=200), after=60))
    assert kinds(play.read(fact(state="FAILED", restarts=2, submit_us=300))) == ["FAILED/2", "Follow"], (
        "a run between two reads"
    )
    assert kinds(play.read(fact(state="FAILED", restarts=2, submit_us=300), after=60)) == ["Over"]


def test_a_job_that_ended_before_we_came_is_read_too() -> None:
    play = Play()
    assert kinds(play.read(fact(state="FAILED"))) == ["FAILED/0", "Follow"]
    assert kinds(play.read(fact(state="FAILED"), after=60)) == ["Over"]


def test_failed_reads_change_nothing() -> None:
    play = Play()
    play.read(fact())
    for _ in range(50):
        items = play.read(ok=False, troubles=("down",), after=60)
        assert all(isinstance(i, Odd) for i in items)
    assert play.roster.jobs() == (KEY,)
    assert play.read(fact()) == []


def test_a_trouble_is_told_once_while_it_lasts() -> None:
    play = Play()
    assert play.read(ok=False, troubles=("down",)) == [Odd("down")]
    assert play.read(ok=False, troubles=("down",)) == []
    assert play.read() == []
    assert play.read(ok=False, troubles=("down",)) == [Odd("down")]


def test_vanished_takes_several_good_reads_over_more_than_a_minute() -> None:
    play = Play()
    play.read(fact())
    assert [play.read(after=1) for _ in range(20)] == [[]] * 20, "many reads, too soon"
    play.read(fact())
    assert play.read(after=10) == []
    assert play.read(after=61) == [], "long enough, too few reads"
    told, gone = play.read(after=1)
    assert isinstance(told, JobTold)
    assert isinstance(gone, Vanished)
    assert (told.job, told.state.state, gone.job) == (KEY, "", KEY)
    assert "it was RUNNING when it was last seen" in gone.because
    for _ in range(9):
        assert play.read(after=100) == [], "told once"


def test_absence_between_failed_reads_counts_only_the_good_ones() -> None:
    play = Play()
    play.read(fact())
    play.read(after=50)
    for _ in range(5):
        assert play.read(ok=False, after=50) == []
    assert play.read(after=10) == []
    assert "Vanished" in kinds(play.read(after=10))


def test_a_record_that_cannot_be_read_is_not_absent() -> None:
    play = Play()
    play.read(fact())
    for _ in range(20):
        assert play.read(unread=frozenset([7]), after=30) == []
    assert play.roster.jobs() == (KEY,)


def test_one_that_comes_back_is_the_same() -> None:
    play = Play()
    play.read(fact())
    for _ in range(4):
        play.read(after=60)
    assert kinds(play.read(fact())) == ["RUNNING/0", "Follow"]
    assert play.roster.jobs() == (KEY,)


def test_an_id_given_to_another_job() -> None:
    play = Play()
    play.read(fact())
    again = fact(uid=1002, submit_us=900)
    items = play.read(again)
    new = JobKey("c", "7", None, 900)
    assert kinds(items) == ["Over", "RUNNING/0", "Follow"]
    assert items[0] == Over(KEY, "its id was given to another job")
    assert play.roster.jobs() == (new,)
    assert play.roster.owner(new) == 1002
    assert play.roster.owner(KEY) is None
    assert kinds(play.read(replace(again, restarts=1, submit_us=950))) == ["RUNNING/1"], (
        "its key stays through its requeues"
    )
    assert play.roster.jobs() == (new,)


def test_an_id_that_wrapped_after_its_job_was_gone() -> None:
    play = Play()
    play.read(fact())
    for _ in range(4):
        play.read(after=60)
    play.read(fact(submit_us=5000))
    assert play.roster.jobs() == (JobKey("c", "7", None, 5000),)


def test_what_a_requeue_and_a_forgetful_controller_do_is_the_same_life() -> None:
    play = Play()
    play.read(fact())
    play.read(fact(restarts=1, flags=frozenset(["COMPLETING"])))  # the count rises at the request
    play.read(fact(state="PENDING", restarts=1, submit_us=300))  # the submit time when it is done
    play.read(fact(restarts=1, submit_us=300))
    play.read(fact(restarts=0, submit_us=100))  # the controller lost its last seconds
    assert play.roster.jobs() == (KEY,)
    play.read(fact(restarts=0, submit_us=400))
    assert play.roster.jobs() == (JobKey("c", "7", None, 400),), "never requeued, yet submitted later: another job"


def test_tasks_of_arrays() -> None:
    play = Play()
    group = fact(7, "PENDING", array_job_id=7, array_pending=True)
    assert play.read(group) == [], "tasks that are not split off are nobody"
    tasks = [fact(8 + n, array_job_id=7, array_task=n) for n in range(2)]
    play.read(group, *tasks)
    keys = (JobKey("c", "7", "0"), JobKey("c", "7", "1"))
    assert play.roster.jobs() == keys == play.roster.related(keys[0])
    last = fact(7, array_job_id=7, array_task=2)  # the last one keeps the array's own id
    play.read(*tasks, last)
    assert play.roster.jobs() == (*keys, JobKey("c", "7", "2"))
    assert play.roster.members(JobKey("c", "7", "2")) == (last,)


def test_a_heterogeneous_job_is_one() -> None:
    play = Play()
    lead, other = (
        fact(7, het_job_id=7, het_offset=0),
        fact(8, het_job_id=7, het_offset=1, nodes=("n2", "n3"), stdout=None),
    )
    told, follow = play.read(other, lead)
    assert isinstance(told, JobTold)
    assert isinstance(follow, Follow)
    assert (told.job, told.state.nodes) == (KEY, ("n1", "n2", "n3"))
    assert [p.path for p, _ in follow.streams] == [b"/h/7.log"]
    assert play.roster.members(KEY) == (lead, other)
    assert play.read(lead, replace(other, nodes=("n2",))) == [
        JobTold(KEY, replace(told.state, nodes=("n1", "n2")), "llm")
    ]


def test_places_that_change_are_told_again() -> None:
    play = Play()
    play.read(fact())
    (follow,) = play.read(fact(stdout=b"/h/n2.log"))
    assert isinstance(follow, Follow)
    assert [p.path for p, _ in follow.streams] == [b"/h/n2.log"]


def test_a_job_without_a_log_is_told_as_such() -> None:
    play = Play()
    items = play.read(fact(stdout=None), fact(8, stdout=None, name="odd"))
    follows = {i.job.job_id: i for i in items if isinstance(i, Follow)}
    assert (follows["7"].streams, follows["7"].because) == ((), "the scheduler knows no log of it")
    assert (follows["8"].streams, follows["8"].because) == ((), "job 8: no log")
    assert Odd("job 8: no log") in items
    assert play.read(fact(stdout=None), fact(8, stdout=None, name="odd")) == []


def test_a_late_read_is_ignored() -> None:
    play = Play()
    play.read(fact())
    assert play.roster.take(ClusterRead(play.now - 1, True, (fact(state="FAILED"),))) == []


def test_names_and_reasons_of_users_are_only_shown() -> None:
    play = Play()
    told, *_ = play.read(fact(name="FAILED\n8", comment="JobState=FAILED"))
    assert isinstance(told, JobTold)
    assert (told.name, told.state.state, told.job) == ("FAILED\n8", "RUNNING", KEY)


ONE = st.builds(
    lambda job, state, restarts, submit, uid, task: fact(
        job, state, restarts=restarts, submit_us=submit, uid=uid, array_job_id=1 if task is not None else None, array_task=task
    ),
    st.integers(1, 4), st.sampled_from(["PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "FAILED", "NODE_FAIL", ""]), st.integers(0, 2),
    st.integers(1, 4), st.integers(1, 2), st.sampled_from([None, None, 0, 1]),
)  # fmt: skip
READ = st.tuples(st.lists(ONE, max_size=5, unique_by=lambda j: j.job_id), st.booleans(), st.integers(1, 90))


@given(reads=st.lists(READ, max_size=30))
@settings(max_examples=300, deadline=None)
def test_whatever_comes(reads: list[tuple[list[JobFacts], bool, int]]) -> None:
    """Keys are one job's at a time; over and vanished come once until something new is told; the same reads give the same items."""
    play, twin = Play(), Play()
    closed: set[JobKey] = set()
    for jobs, ok, after in reads:
        items = play.read(*jobs, after=after, ok=ok)
        assert items == twin.read(*jobs, after=after, ok=ok)
        for i in items:
            if isinstance(i, Follow) or (isinstance(i, JobTold) and "has not known it" not in i.state.reason):
                closed.discard(i.job)
            elif isinstance(i, Over | Vanished):
                assert i.job not in closed, "said twice"
                closed.add(i.job)
        keys = play.roster.jobs()
        assert len(set(keys)) == len(keys)
        seen = {(str(j.array_job_id or j.job_id), None if j.array_task is None else str(j.array_task)) for j in jobs}
        assert seen <= {(k.job_id, k.array_task) for k in keys}, "whoever was read is known"
        if not ok:
            assert not any(isinstance(i, Vanished) for i in items)
