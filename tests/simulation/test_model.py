"""The model of Slurm does what real clusters were seen to do (22.05, 24.11, 26.05)."""

from __future__ import annotations

import random

import pytest
from tests.simulation.slurm import ENDED, HELD_BY_REQUEUE, Job, S, Slurm


def cluster(**more: object) -> Slurm:
    return Slurm(random.Random(1), ("n1", "n2", "n3"), **more)  # type: ignore[arg-type]


def running(s: Slurm, **more: object) -> Job:
    job = s.submit("u1", goal=10_000, **more)
    s.run(s.now)
    assert job.state == "RUNNING"
    return job


def ended(s: Slurm, state: str) -> Job:
    job = running(s)
    s._end(job, state, (1, 0))
    s.run(s.now + 30 * S)
    assert job.state == state
    assert job.completing_until is None
    return job


def test_a_requeue_counts_at_the_request_and_waits() -> None:
    s = cluster()
    job = running(s)
    first = job.submit_us, job.sluid
    s.now += 50 * S
    assert s.requeue(job) == "done"
    assert (job.restarts, job.state) == (1, "PENDING")
    assert job.submit_us != first[0]
    assert "COMPLETING" in s.facts(job).flags
    s.run(s.now + 60 * S)
    assert job.sluid != first[1], "another run, another id"
    assert job.state == "PENDING", "the requeue delay has not passed"
    s.run(s.now + 200 * S)
    assert job.state == "RUNNING"


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"])
def test_a_plain_requeue_brings_back_whatever_has_ended(state: str) -> None:
    s = cluster()
    job = ended(s, state)
    assert s.requeue(job, incomplete=True) == "done"
    assert job.restarts == 0, "Incomplete does nothing, and says done"
    assert s.requeue(job) == "done"
    assert job.restarts == 1


def test_a_pending_job_refuses_and_a_fresh_run_is_killed() -> None:
    s = cluster()
    job = running(s)
    s.requeue(job)
    assert s.requeue(job) == "pending"
    assert job.restarts == 1
    s.run(s.now + 60 * S)
    s.run(s.now + 200 * S)
    assert job.state == "RUNNING"
    assert s.requeue(job) == "done"
    assert job.restarts == 2


def test_refusals() -> None:
    s = cluster()
    assert s.requeue(running(s, requeue=False)) == "disabled"
    assert s.requeue(running(s, batch=False)) == "batch-only"
    assert s.answer("requeue", "id", "999", "", "", "0", "", "defib") == "invalid-id"
    job = running(s)
    assert s.exclude(job, ("n1",)) == "not-pending"
    s.requeue(job, hold=True)
    assert s.exclude(job, ("nope",)) == "bad-node"
    assert s.exclude(job, ("n1",)) == "done"


def test_a_held_requeue_stays_until_it_is_released() -> None:
    s = cluster()
    job = running(s)
    s.requeue(job, hold=True, by="defib")
    s.run(s.now + 60 * S)
    s.run(s.now + 1000 * S)
    assert job.state == "PENDING"
    assert job.held
    assert job.reason == HELD_BY_REQUEUE
    s.exclude(job, (*job.excluded, "n1"))
    assert s.release(job) == "done"
    s.run(s.now + S)
    assert job.state == "RUNNING"
    assert "n1" not in job.nodes


def test_a_suspended_job_gets_stuck() -> None:
    s = cluster()
    job = running(s)
    s.suspend(job)
    assert s.facts(job).state == "SUSPENDED"
    s.requeue(job)
    assert job.held
    assert job.reason == "JobHeldAdmin"
    assert s.release(job, "user") == "access"


def test_the_bare_id_of_an_array_is_every_task() -> None:
    s = cluster()
    tasks = s.submit_array("u1", 3, goal=10_000)
    s.run(s.now)
    base = tasks[0].array_job_id
    assert base is not None
    assert tasks[-1].id == base
    assert len(s.resolve("id", base, None, None)) == 3
    assert s.resolve("task", base, 1, None) == [tasks[1]]
    s.answer("requeue", "id", str(base), "", "", "0", "", "user")
    assert [t.restarts for t in tasks] == [1, 1, 1]


def test_too_many_excluded_nodes_leave_bad_constraints() -> None:
    s = cluster()
    job = s.submit("u1", node_count=2)
    job.excluded = ("n1", "n2")
    s.run(s.now)
    assert job.held
    assert job.reason == "BadConstraints"


def test_a_dead_node_requeues_by_itself_or_fails_the_job() -> None:
    s = cluster()
    one, other = running(s), running(s, requeue=False)
    s.node_down(one.nodes[0])
    s.node_down(other.nodes[0])
    assert (one.state, one.restarts) == ("PENDING", 1)
    assert other.state == "NODE_FAIL"


def test_ended_jobs_are_purged_and_a_hung_controller_does_it_later() -> None:
    s = cluster()
    job = ended(s, "FAILED")
    assert job.state in ENDED
    s.hung = True
    s.queue.append(("requeue", "id", str(job.id), "", "", "0", "", "defib"))
    s.run(s.now + 1000 * S)
    assert job.restarts == 0
    s.hung = False
    s.run(s.now + S)
    assert job.restarts == 1, "what it was asked while it stood still is executed when it wakes"
    done = ended(s, "FAILED")
    s.run(s.now + 400 * S)
    assert done.line not in s.jobs


def test_the_id_of_a_run_no_longer_names_the_next() -> None:
    s = cluster(sluids=True)
    job = ended(s, "FAILED")
    old = job.sluid
    assert s.answer("requeue", "sluid", str(job.id), "", old, "0", "", "user") == "done"
    assert s.answer("requeue", "sluid", str(job.id), "", old, "0", "", "defib") == "invalid-id"
    assert job.restarts == 1


def test_a_heterogeneous_job_is_read_whole_and_requeued_by_its_leader_only() -> None:
    s = cluster()
    job = s.submit_het("u1", 2, goal=10_000)
    s.run(s.now)
    assert job.state == "RUNNING"
    ids = [job.id, job.id + 1, job.id + 2]
    assert [(f.job_id, f.het_job_id, f.het_offset) for f in s.shown("id", job.id, None)] == [
        (i, job.id, n) for n, i in enumerate(ids)
    ]
    assert [f.job_id for f in s.shown("id", ids[1], None)] == ids[1:2]
    assert s.answer("requeue", "id", str(ids[1]), "", "", "0", "", "defib") == "not-leader"
    assert job.restarts == 0
    assert s.answer("requeue", "id", str(job.id), "", "", "0", "", "defib") == "done"
    assert [f.restarts for f in s.shown("id", job.id, None)] == [1, 1, 1]
    assert s.submit("u1").id == ids[2] + 1
