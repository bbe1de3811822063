"""The steps on a job that is held to keep a node out."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.unit.recover_world import KEY, Driver, S, job
from tests.unit.test_recover_machine import answer, called, requeued

from defib.engine.jobs import NodeFacts
from defib.engine.recover import machine
from defib.engine.recover.invariants import Auditor
from defib.engine.recover.planner import replay
from defib.engine.recover.words import (
    Copied,
    Fresh,
    Look,
    OutsideEvidence,
    Started,
    SuspectPlace,
    Tick,
)

NODE = SuspectPlace("n1", "0", "certain", "cause", 1)


def held(r: Any = None) -> Driver:
    """A job that we have requeued and hold, to keep n1 out."""
    d = Driver(r, job(excluded=("n9",)))
    d.jobs[0] = dataclasses.replace(d.jobs[0], state="FAILED", exit_code=1, exit_signal=0)
    d.read()
    d.judge(klass="gpu-hardware", suspects=(NODE,))
    d.wait(40)
    d.read()
    d.serve()
    d.wait(61)
    d.serve()
    assert [(o.verb) for o in d.orders] == ["requeuehold"], d.case
    requeued(d, held=True, reason="job_requeued_in_held_state")
    answer(d)
    d.serve()
    assert d.case.state == "accepted"
    return d


def step(d: Driver) -> str:
    """The next order on the held job."""
    d.wait(6)
    d.serve()
    return d.orders[-1].verb if d.orders else ""


def test_a_hold_is_used_to_set_the_union_and_then_released() -> None:
    d = held()
    assert step(d) == "exclude"
    assert d.orders[-1].nodes == ("n1", "n9")
    d.jobs[0] = dataclasses.replace(d.jobs[0], excluded=("n1", "n9"), flags=frozenset(["COMPLETING"]))
    answer(d)
    d.serve()
    assert step(d) == "", "not while it is completing"
    d.jobs[0] = dataclasses.replace(d.jobs[0], flags=frozenset())
    assert step(d) == "release"
    d.jobs[0] = dataclasses.replace(d.jobs[0], held=False, reason="BeginTime")
    answer(d)
    d.serve()
    d.jobs[0] = dataclasses.replace(d.jobs[0], state="RUNNING", nodes=("n2", "n3"), reason="None")
    d.wait(130)
    d.read()
    assert d.case.state == "started"
    assert d.case.plan.exclude == ("n1",)
    auditor = Auditor()
    assert [b for r in d.rows for b in auditor.take(r)] == []


def test_an_exclusion_that_does_not_take_is_given_up_and_the_job_is_released() -> None:
    d = held()
    for _ in range(2):
        assert step(d) == "exclude"
        answer(d, "rejected", "bad-node")
        d.effects = [e for e in d.effects if isinstance(e, Look)]  # the executor's word is looked after at once
    assert step(d) == "release"


def test_an_overdue_hold_is_released_whatever_else() -> None:
    d = held()
    d.jobs[0] = dataclasses.replace(d.jobs[0], flags=frozenset(["COMPLETING"]))
    d.now += 700 * S
    assert step(d) == "release"


def test_our_hold_is_released_by_the_process_that_comes_after_us() -> None:
    d = held()
    d.effects = []
    d.restart()
    d.serve()
    seen = []
    for _ in range(6):
        verb = step(d)
        seen.append(verb)
        if verb == "exclude":
            d.jobs[0] = dataclasses.replace(d.jobs[0], excluded=d.orders[-1].nodes)
        if verb:
            answer(d)
            d.effects = [e for e in d.effects if isinstance(e, Look)]
    assert "exclude" in seen
    assert "release" in seen


def test_a_hold_of_somebody_else_is_left_alone() -> None:
    d = held()
    d.jobs[0] = dataclasses.replace(d.jobs[0], reason="JobHeldUser")
    assert step(d) == ""
    assert d.case.state == "stranded"


def test_the_kill_switch_also_stops_the_later_steps() -> None:
    d = held()
    d.desk.vitals = None
    assert d.desk.cases
    d.effects = []
    d.now += 10 * S
    machine.advance(d.desk, dataclasses.replace(_vitals(d), killed=True))
    machine.advance(d.desk, Fresh(d.now, d.now, KEY, True, tuple(d.jobs)))
    assert d.case.state == "accepted"
    assert len(d.case.orders) == 1


def _vitals(d: Driver) -> Any:
    from tests.unit.recover_world import vitals

    return vitals(d.now, newest_epoch=d.desk.epoch)


def test_it_must_not_start_on_the_node_that_was_kept_out() -> None:
    d = held()
    step(d)
    d.jobs[0] = dataclasses.replace(d.jobs[0], excluded=("n1", "n9"))
    answer(d)
    d.serve()
    d.jobs[0] = dataclasses.replace(d.jobs[0], held=False, state="RUNNING", nodes=("n1", "n2"))
    d.wait(10)
    d.read()
    assert d.case.state == "stranded"


def test_evidence_from_outside_keeps_a_node_out_until_it_expires() -> None:
    for until, verb in ((10_000, "requeuehold"), (60, "requeue")):
        d = Driver()
        d.give(OutsideEvidence(d.now, "e1", "dcgm", "n2", "3", "gpu-hardware", "certain", d.now + until * S))
        d.give(OutsideEvidence(d.now, "e2", "dcgm", "no-such-node", None, "gpu-hardware", "certain", d.now + until * S))
        assert set(d.desk.evidence) == {"e1"}
        d.fail()
        d.serve()
        assert [o.verb for o in d.orders] == [verb]
        if verb == "requeuehold":
            assert d.case.plan.exclude == ("n2",)


def test_without_evidence_or_nodes_a_restart_goes_on_without_exclusion() -> None:
    d = Driver()
    d.nodes = (NodeFacts("n1", "IDLE", partitions=("gpu",)),)
    d.jobs[0] = dataclasses.replace(d.jobs[0], state="FAILED", exit_code=1, exit_signal=0)
    d.read()
    d.judge(klass="gpu-hardware", suspects=(NODE,))
    d.wait(40)
    d.read()
    d.serve()
    d.wait(61)
    d.serve()
    assert [o.verb for o in d.orders] == ["requeue"]
    assert any("n1 is not kept out" in r.because for r in d.rows)


# --- what holds for all -------------------------------------------------------------------------------------------------------------


def test_the_clock_of_events_may_jump_back_and_then_nothing_is_called() -> None:
    d = Driver()
    d.fail()
    d.give(Tick(d.now - 600 * S))
    d.serve()
    assert not d.orders
    assert "dead-man" in replay(next(r.inputs for r in reversed(d.rows) if r.inputs)).closed()


def test_a_start_keeps_epochs_and_numbers_going() -> None:
    d = called()
    before = d.desk.number, d.desk.epoch
    d.restart()
    assert d.desk.number == before[0]
    assert d.desk.epoch > before[1]
    d.give(Started(d.now, 1))
    assert d.desk.epoch > before[1] + 1, "an epoch that is not new is made new"


def test_copies_are_asked_for_again_until_they_are_made() -> None:
    d = Driver()
    d.jobs[0] = dataclasses.replace(d.jobs[0], state="FAILED", exit_code=1, exit_signal=0)
    d.read()
    d.judge()
    d.wait(40)
    d.read()
    d.give(Copied(d.now, d.case.id, False, "disk full"))
    d.effects = []
    d.wait(61)
    assert [type(e).__name__ for e in d.effects].count("Copy") == 1
    assert d.case.copied_us is None


def test_a_start_forgets_no_closed_case_before_it_has_read_who_is_still_there() -> None:
    """Two days later, the scheduler silent over the turn of an hour: else the same run would get a second case, and a second call."""
    d = Driver(None, job(comment=""))
    d.fail()
    assert d.case.state == "refused"
    d.now += 49 * 3600 * S
    d.desk = machine.rebuilt(d.rules, d.rows)
    d.give(Started(d.now, 8))
    d.wait(3600)
    d.read()
    d.judge()
    assert [c.state for c in d.desk.cases.values()] == ["refused"]
