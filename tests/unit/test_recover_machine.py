"""The life of a case: from a verdict to the proof, over starts of our own, lost words and other hands."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.unit.recover_world import Driver, S, job, rules

from defib.engine.recover import codec, machine
from defib.engine.recover.invariants import Auditor, settled
from defib.engine.recover.planner import replay
from defib.engine.recover.words import (
    Ask,
    Fresh,
    Judged,
    Look,
    Progressed,
    Returned,
    Row,
    Said,
    SuspectPlace,
    TakenBack,
    Tick,
)

NODE = SuspectPlace("n1", "0", "certain", "cause", 1)


def states(d: Driver) -> list[str]:
    return [r.after for r in d.rows if r.case is not None and r.after != r.before]


def answer(d: Driver, said: str = "done", code: str = "") -> None:
    order = d.orders[-1]
    d.give(Returned(d.now, order.number, order.key, said, code, d.now))  # type: ignore[arg-type]


def requeued(d: Driver, **more: Any) -> None:
    """What Slurm does on a requeue."""
    new = {
        "state": "PENDING",
        "restarts": d.jobs[0].restarts + 1,
        "submit_us": d.now,
        "exit_code": None,
        "exit_signal": None,
        "reason": "BeginTime",
    }
    d.jobs[0] = dataclasses.replace(d.jobs[0], **{**new, **more})


def called(**more: Any) -> Driver:
    d = Driver()
    d.fail()
    d.serve()
    assert len(d.orders) == 1, d.case
    return d


def test_a_dead_run_comes_back_and_has_to_pass_the_step_where_it_failed() -> None:
    d = called()
    order = d.orders[0]
    assert (order.verb, order.by, order.job_id, order.target, order.incomplete) == (
        "requeue",
        "id",
        41,
        "terminal",
        False,
    )
    assert order.not_after_us - order.read_us == 2 * S
    requeued(d)
    answer(d)
    d.serve()
    assert d.case.state == "accepted"
    d.jobs[0] = dataclasses.replace(d.jobs[0], state="RUNNING", reason="None")
    d.now += 130 * S
    d.read()
    assert d.case.state == "started"
    d.give(Progressed(d.now, d.jobs[0].key, 100))
    assert d.case.state == "started", "the same step is not past it"
    d.give(Progressed(d.now, d.jobs[0].key, 101))
    assert d.case.state == "recovered"
    assert states(d) == ["suspect", "confirmed", "planned", "authorised", "issued", "accepted", "started", "recovered"]
    auditor = Auditor()
    assert [b for r in d.rows for b in auditor.take(r)] == []


def test_every_row_can_be_stored_and_the_decision_made_again() -> None:
    d = called()
    for r in d.rows:
        assert codec.load(Row, codec.dump(r)) == r
    made_of = next(r.inputs for r in d.rows if r.after == "authorised")
    decision = replay(made_of)
    assert decision.refusal is None
    assert decision.plan == next(r.case.plan for r in d.rows if r.after == "authorised" and r.case is not None)


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_start_at_any_row_sends_nothing_again(cut: int) -> None:
    """Whatever was durable, whatever was not: at most one call, unless it is shown not to have happened."""
    d = called()
    d.rows = d.rows[:cut]
    sent = any(r.after == "issued" for r in d.rows)
    d.effects = []
    d.restart()
    for _ in range(40):
        d.serve()
        d.now += 30 * S
        d.read()
        if d.orders:
            break
    if sent:
        assert "not-done" in states(d), "only after two good reads that show it did not happen"
        assert all(o.reissue for o in d.orders)
    assert len(d.orders) <= 1


def test_reconciling_twice_is_reconciling_once() -> None:
    d = called()
    for event in (Tick(d.now), Tick(d.now)):
        machine.advance(d.desk, event)
    assert settled(list(machine.advance(d.desk, Tick(d.now)))) == []


def test_silence_after_a_call_is_unknown_and_a_run_is_never_called_twice() -> None:
    d = Driver()
    seen = set()
    for _ in range(20):
        d.judge("hung", "hang", sign="step-state", sign_us=d.now)
        d.serve()
        d.wait(31)
        d.read()
        seen.add(d.case.state)
    assert "unknown" in seen
    assert d.case.state == "human"
    issued = [r.case.orders[-1].order for r in d.rows if r.after == "issued" and r.case is not None]
    assert [(o.verb, o.incomplete) for o in issued] == [("requeue", True)]
    assert "human" in states(d)


def test_a_call_shown_not_to_have_happened_is_repeated_once() -> None:
    d = called()
    answer(d, "unclear", "killed")
    assert d.case.state == "unknown"
    for _ in range(5):
        d.serve()
        d.wait(61)
        d.read()
        if d.orders:
            break
    assert d.orders[-1].reissue
    assert d.orders[-1].number == 2
    assert d.orders[-1].key == next(
        r.case.orders[0].order.key for r in d.rows if r.after == "issued" and r.case is not None
    )
    answer(d, "unclear", "killed")
    for _ in range(6):
        d.serve()
        d.wait(61)
        d.read()
    assert d.case.state == "human"


def test_somebody_else_was_first() -> None:
    d = called()
    requeued(d)
    answer(d, "rejected", "pending")
    d.serve()
    assert d.case.state == "satisfied-by-other"


def test_a_refusal_of_the_scheduler_is_final() -> None:
    d = called()
    answer(d, "rejected", "disabled")
    d.serve()
    assert d.case.state == "rejected"


def test_an_order_that_was_not_run_is_tried_again_only_where_it_was_late() -> None:
    d = called()
    answer(d, "not-run", "late")
    assert d.case.state == "planned"
    d.wait(61)
    d.serve()
    assert len(d.orders) == 1
    assert not d.orders[0].reissue
    answer(d, "not-run", "kill-switch")
    assert d.case.state == "expired"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "COMPLETED"}, "COMPLETED"),
        ({"state": "CANCELLED"}, "CANCELLED"),
        ({"state": "PENDING", "restarts": 1, "submit_us": 5}, "somebody else"),
        ({"state": "RUNNING", "user": "u2", "submit_us": 5}, "another job"),
    ],
)
def test_a_case_dies_with_its_run(change: dict[str, Any], said: str) -> None:
    d = Driver()
    d.jobs[0] = dataclasses.replace(d.jobs[0], state="FAILED", exit_code=1)
    d.read()
    d.judge()
    d.jobs[0] = dataclasses.replace(d.jobs[0], **change)
    d.wait(5)
    d.read()
    assert d.case.state == "cleared"
    assert said in d.case.because


def test_absence_proves_something_only_in_good_reads_over_a_minute() -> None:
    d = Driver()
    d.jobs[0] = dataclasses.replace(d.jobs[0], state="FAILED", exit_code=1)
    d.read()
    d.judge()
    d.jobs.clear()
    for _ in range(5):
        d.wait(61)
        d.read(ok=False)
    assert d.case.state == "suspect"
    d.read()
    assert d.case.state == "suspect"
    d.wait(61)
    d.read()
    assert d.case.state == "cleared"


def test_a_verdict_that_is_late_is_about_nobody() -> None:
    d = Driver()
    old = d.jobs[0].key
    d.jobs[0] = dataclasses.replace(d.jobs[0], restarts=1, submit_us=d.now)
    d.wait(10)
    d.read()
    d.give(Judged(d.now, old, "dead", "i", "node-fault"))
    assert not d.desk.cases


def test_progress_and_second_thoughts_clear_a_suspicion() -> None:
    for event in (
        lambda d: Progressed(d.now, d.jobs[0].key, 500),
        lambda d: TakenBack(d.now, d.jobs[0].key, "it writes again"),
    ):
        d = Driver()
        d.judge("hung", "hang")
        d.give(event(d))  # type: ignore[no-untyped-call]
        assert d.case.state == "cleared"


SLOW = '{"defib": {"restart": ["slow"], "act_on_running": true}}'


def slowed(on: bool, comment: str) -> Driver:
    """A run that trains on, slower, while verdict and sign are told again."""
    d = Driver(rules(act_on_slow=on, act_on_running=True), job(comment=comment))
    for n in range(40):
        d.judge("slow", "slowdown", sign="step-state", sign_us=d.now)
        d.give(Progressed(d.now, d.jobs[0].key, 101 + n))
        d.wait(10)
        d.read()
        d.serve()
    return d


def test_a_slow_run_is_restarted_where_site_and_owner_both_want_it() -> None:
    d = slowed(True, SLOW)
    assert [o.order.verb for o in d.case.orders] == ["requeue"]
    assert d.case.orders[0].order.incomplete


@pytest.mark.parametrize(
    ("on", "comment", "gate"), [(False, SLOW, "allow-list"), (True, SLOW.replace("slow", "hang"), "consent")]
)
def test_a_slow_run_is_left_alone_where_one_of_them_does_not(on: bool, comment: str, gate: str) -> None:
    d = slowed(on, comment)
    assert (d.case.gate, d.case.orders) == (gate, ())


def test_steps_do_not_clear_a_slow_run_but_the_detector_does() -> None:
    d = Driver()
    d.judge("slow", "slowdown")
    d.give(Progressed(d.now, d.jobs[0].key, 500))
    assert d.case.state == "suspect"
    d.give(TakenBack(d.now, d.jobs[0].key, "as fast as before"))
    assert d.case.state == "cleared"


def test_a_user_error_is_refused_and_says_which_gate() -> None:
    d = Driver()
    d.jobs[0] = dataclasses.replace(d.jobs[0], state="FAILED", exit_code=1)
    d.read()
    d.judge(klass="user-code")
    d.wait(40)
    d.read()
    assert d.case.state == "confirmed"  # its evidence is kept apart first
    d.serve()
    assert d.case.state == "refused"
    assert "gate 13" in d.case.because
    assert d.case.gate == "budget"
    assert "user-code" in next(r.because for r in d.rows if r.after == "refused")


def test_observe_decides_the_same_and_reads_nothing_for_it() -> None:
    d = Driver(rules(mode="observe"))
    d.fail()
    assert d.case.state == "planned"
    assert d.case.gate == "mode"
    made_of = next(r.inputs for r in reversed(d.rows) if r.inputs)
    assert replay(made_of).would
    assert not any(isinstance(e, Look) for e in d.effects)
    for _ in range(400):
        d.wait(61)
    assert d.case.state == "expired"
    assert not d.orders


def test_approve_asks_once_and_calls_after_a_word_for_that_plan() -> None:
    d = Driver(rules(mode="approve"))
    d.fail()
    d.wait(61)
    asked = [e for e in d.effects if isinstance(e, Ask)]
    assert len(asked) == 1
    d.wait(61)
    assert len([e for e in d.effects if isinstance(e, Ask)]) == 1
    d.give(Said(d.now, "eve", "approve", asked[0].case, "0" * 16))
    d.wait(61)
    d.serve()
    assert not d.orders, "another digest approves nothing"
    d.give(Said(d.now, "ann", "approve", asked[0].case, asked[0].digest))
    d.serve()
    assert len(d.orders) == 1
    assert any(r.who == "ann" for r in d.rows)


def test_a_person_can_refuse_and_take_over() -> None:
    d = Driver(rules(mode="approve"))
    d.fail()
    d.give(Said(d.now, "ann", "refuse", d.case.id))
    assert d.case.state == "refused"
    d = called()
    d.give(Said(d.now, "ann", "settle", d.case.id))
    assert d.case.state == "human"


def test_consent_taken_back_between_plan_and_call_stops_the_call() -> None:
    d = Driver()
    d.fail()
    looks = [e for e in d.effects if isinstance(e, Look)]
    assert looks
    d.jobs[0] = dataclasses.replace(d.jobs[0], comment='{"defib": {"restart": []}}')
    d.serve()
    assert not d.orders
    assert d.case.state == "refused"
    assert "taken back" in d.case.because


def test_an_old_answer_is_no_fresh_read() -> None:
    d = Driver()
    d.fail()
    d.effects = []
    d.give(Fresh(d.now, d.now - 3 * S, d.jobs[0].key, True, tuple(d.jobs)))
    assert not d.orders
    assert d.case.state == "planned"


def test_all_parts_of_a_heterogeneous_job_are_one_object() -> None:
    leader = job(job_id=45, het_job_id=45, het_offset=0, state="FAILED", exit_code=1, exit_signal=0)
    part = job(job_id=46, het_job_id=45, het_offset=1, state="FAILED", exit_code=1, exit_signal=0)
    d = Driver(None, leader, part)
    d.fail()
    d.effects = []
    d.give(Fresh(d.now, d.now, d.jobs[0].key, True, tuple(d.jobs)))
    assert [o.job_id for o in d.orders] == [45]
    d = Driver(None, part)
    d.fail()
    assert "identity" in replay(next(r.inputs for r in reversed(d.rows) if r.inputs)).closed()


# --- with a node kept out -----------------------------------------------------------------------------------------------------------
