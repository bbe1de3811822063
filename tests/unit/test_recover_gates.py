"""The gates: each closed by its own lack and by every unknown value; a decision comes again out of its stored inputs, in any mode."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.recover_world import CONSENT, KEY, NOW, S, facts, inputs, rules, vitals

from defib.engine.jobs import ClusterFacts
from defib.engine.recover import codec
from defib.engine.recover.gates import GATES
from defib.engine.recover.inputs import Candidate, Inputs, Room, Tally
from defib.engine.recover.invariants import narrower
from defib.engine.recover.planner import decide, replay
from defib.engine.recover.words import Breaker

CLASSES = rules().classes
TALLY = Tally(running_jobs=100, gpus_running=1000)


def tally(**more: Any) -> Tally:
    return dataclasses.replace(TALLY, **more)


def found(**more: Any) -> dict[str, Any]:
    return {"found": (facts(**more),)}


def judged(**more: Any) -> dict[str, Any]:
    return {"judged": dataclasses.replace(inputs().judged, **more)}


def running(**more: Any) -> Inputs:
    """A hang of a run that holds its nodes, every gate open."""
    sign = {"sign": "step-state", "sign_us": NOW - 10 * S, "kind": "hung", "klass": "hang", "at_us": NOW - 10 * S}
    base: dict[str, Any] = {
        "target": "running", "klass": CLASSES["hang"], "settled_us": None, **found(state="RUNNING", exit_code=None), **judged(**sign),
    }  # fmt: skip
    return inputs(**{**base, **more})


def test_everything_open_is_a_plan() -> None:
    for i in (inputs(), running()):
        d = decide(i)
        assert d.refusal is None, d.refusal
        assert d.would
        assert len(d.readings) == len(GATES) == 17
        assert d.plan is not None
        assert d.plan.verb == "requeue"


CLOSED: list[tuple[str, dict[str, Any]]] = [
    ("mode", {"policy": dataclasses.replace(rules().policy, mode="observe")}),
    ("mode", {"policy": dataclasses.replace(rules().policy, mode="approve")}),
    ("mode", {"policy": dataclasses.replace(rules().policy, mode="approve"), "approved": "another", "approved_us": NOW}),
    ("kill-switch", {"vitals": vitals(killed=True)}),
    ("kill-switch", {"vitals": None}),
    ("dead-man", {"vitals": vitals(NOW - 31 * S)}),
    ("dead-man", {"vitals": vitals(canary_us=NOW - 61 * S)}),
    ("dead-man", {"vitals": vitals(lag_s=6.0)}),
    ("dead-man", {"vitals": vitals(committed_us=NOW - 11 * S)}),
    ("dead-man", {"vitals": vitals(stepped_us=NOW - 300 * S)}),
    ("lock", {"vitals": vitals(locked=False)}),
    ("lock", {"vitals": vitals(newest_epoch=8)}),
    ("controller", {"controller_us": NOW - 60 * S}),
    ("controller", {"vitals": vitals(pings=2)}),
    ("controller", {"vitals": vitals(backlog=1000)}),
    ("allow-list", found(partition="debug")),
    ("allow-list", found(partition="")),
    ("allow-list", {"policy": dataclasses.replace(rules().policy, allow=dataclasses.replace(rules().policy.allow, partitions=()))}),
    ("consent", found(comment="")),
    ("consent", found(comment='{"defib": {"restart": ["hang"]}}')),
    ("consent", found(comment='{"defib": {"restart": []}}')),
    ("consent", found(uid=None)),
    ("consent", found(begun_us=NOW - 3 * S)),
    ("consent", {**found(comment='{"defib": {"restart": ["crash"], "max_restarts": 1}}'), "tally": tally(lineage_all=1)}),
    ("identity", {"found": ()}),
    ("identity", {"found": (facts(), facts())}),
    ("identity", {"moved": True}),
    ("identity", found(attempt=dataclasses.replace(KEY, restarts=1))),
    ("identity", found(attempt=dataclasses.replace(KEY, submit_us=1))),
    ("identity", found(array_pending=True)),
    ("identity", found(array_job_id=40)),
    ("identity", found(het_offset=1)),
    ("identity", found(requeue=False)),
    ("identity", found(requeue=None)),
    ("identity", found(batch=False)),
    ("identity", found(held=True)),
    ("identity", found(flags=frozenset(["COMPLETING"]))),
    ("identity", found(state="SUSPENDED")),
    ("identity", found(state="COMPLETED")),
    ("identity", found(state="SOMETHING_NEW")),
    ("identity", {"cluster": ClusterFacts("c", requeue_delay_s=None)}),
    ("identity", {"cluster": ClusterFacts("c", requeue_delay_s=20.0)}),
    ("end", found(exit_code=93)),
    ("end", found(exit_code=0)),
    ("end", found(exit_code=None)),
    ("end", {"cluster": ClusterFacts("c", requeue_delay_s=121.0, requeue_exits=frozenset([1]))}),
    ("end", {"klass": CLASSES["cancelled"]}),
    ("other-requeuer", {"others": ("somebody",)}),
    ("other-requeuer", {"settled_us": NOW - 20 * S}),
    ("other-requeuer", {"settled_us": None}),
    ("evidence", {"copied_us": None}),
    ("evidence", judged(seeing=False)),
    ("evidence", judged(attempt=dataclasses.replace(KEY, restarts=1))),
    ("evidence", {"vitals": vitals(full=True)}),
    ("budget", {"tally": tally(attempt=1)}),
    ("budget", {"tally": tally(lineage=2)}),
    ("budget", {"tally": tally(group=2)}),
    ("budget", {"tally": tally(same_place=1)}),
    ("budget", {"tally": tally(lineage_day=5)}),
    ("budget", {"tally": tally(user_hour=3)}),
    ("budget", {"tally": tally(user_day=10)}),
    ("budget", {"tally": tally(partition_hour=5)}),
    ("budget", {"tally": tally(complete=False)}),
    ("budget", {"klass": CLASSES["user-code"]}),
    ("rate", {"signed_us": NOW + S}),
    ("rate", {"tally": tally(lineage=1)}),
    ("rate", {"tally": tally(cluster_us=NOW - 5 * S)}),
    ("rate", {"tally": tally(ten_minutes=5)}),
    ("rate", {"tally": tally(hour=2)}),
    ("rate", {"tally": tally(running_jobs=None)}),
    ("rate", {"tally": tally(under_action=1, gpus_under_action=90)}),
    ("breakers", {"breakers": (Breaker("verify", "open", 1, "why"),)}),
    ("breakers", {"breakers": (Breaker("verify", "half-open", 1, "why", "another"),)}),
    ("maintenance", {"vitals": vitals(maintenance=((NOW - 1, NOW + 1),))}),
    ("caught-up", {"vitals": vitals(caught_up=None)}),
    ("caught-up", judged(drained=False)),
]  # fmt: skip


@pytest.mark.parametrize(("gate", "lack"), CLOSED)
def test_a_gate_is_closed_by_its_own_lack(gate: str, lack: dict[str, Any]) -> None:
    d = decide(inputs(**lack))
    assert gate in d.closed()
    assert d.refusal is not None
    shut = next(r for r in d.readings if r.name == gate)
    assert shut.value
    first = next(r for r in d.readings if not r.open)
    assert (d.refusal.name, d.refusal.value, d.refusal.read_us) == (first.name, first.value, first.read_us)


RUNNING: list[tuple[str, dict[str, Any]]] = [
    ("allow-list", {"policy": dataclasses.replace(rules().policy, act_on_running=False)}),
    ("consent", found(state="RUNNING", comment='{"defib": {"restart": ["crash", "hang"]}}')),
    ("independent-sign", judged(kind="hung", sign="")),
    ("independent-sign", judged(kind="hung", sign="gpu-counters", sign_us=NOW - 200 * S)),
    ("evidence", {"signs": 2}),
    ("evidence", {"signed_us": NOW - 60 * S}),
    ("evidence", judged(kind="hung", at_us=NOW - 300 * S)),
    ("budget", {"tally": tally(running_now=1)}),
    ("budget", {"tally": tally(running_day=2)}),
    ("budget", {"tally": tally(killed_gpu_s_day=4096 * 3600.0)}),
    ("budget", {"reissue": True, "tally": tally(attempt=1)}),
    ("identity", found(state="FAILED")),
]  # fmt: skip


@pytest.mark.parametrize(("gate", "lack"), RUNNING)
def test_a_run_that_holds_its_nodes_needs_more(gate: str, lack: dict[str, Any]) -> None:
    assert gate in decide(running(**lack)).closed()


def test_slow_runs_and_time_limits_need_the_site_and_the_owner() -> None:
    slow = running(**judged(kind="slow", sign="x", sign_us=NOW))
    assert {"allow-list", "consent"} <= set(decide(slow).closed())
    late = inputs(**found(state="TIMEOUT", exit_code=0), klass=CLASSES["time-limit"])
    assert {"allow-list", "consent"} <= set(decide(late).closed())
    policy = dataclasses.replace(rules().policy, act_on_timeout=True)
    comment = '{"defib": {"restart": ["timeout"]}}'
    assert decide(
        inputs(**found(state="TIMEOUT", exit_code=0, comment=comment), klass=CLASSES["time-limit"], policy=policy)
    ).would


def test_an_approval_is_for_one_plan_and_for_a_while() -> None:
    policy = dataclasses.replace(rules().policy, mode="approve")
    waiting = decide(inputs(policy=policy))
    assert waiting.closed() == ("mode",)
    assert waiting.plan is not None
    given = {"policy": policy, "approved": waiting.plan.digest}
    assert decide(inputs(**given, approved_us=NOW - 60 * S)).refusal is None
    assert decide(inputs(**given, approved_us=NOW - 1801 * S)).closed() == ("mode",)
    other = inputs(**given, approved_us=NOW, candidates=(Candidate("n1", "x"),), room=Room(10, ("n1",), 40))
    assert decide(other).closed() == ("mode",), "a node to be kept out makes another plan"


@pytest.mark.parametrize("lack", [lack for _, lack in CLOSED])
def test_the_mode_changes_nothing_but_its_gate(lack: dict[str, Any]) -> None:
    i = inputs(**lack)
    told = {
        m: decide(dataclasses.replace(i, policy=dataclasses.replace(i.policy, mode=m)))
        for m in ("observe", "approve", "act")
    }  # type: ignore[arg-type]
    assert told["observe"].plan == told["act"].plan == told["approve"].plan
    assert told["observe"].would == told["act"].would == told["approve"].would
    assert told["observe"].closed("mode") == told["act"].closed("mode")


@pytest.mark.parametrize("i", [inputs(**lack) for _, lack in CLOSED] + [running(**lack) for _, lack in RUNNING])
def test_a_decision_comes_again_out_of_its_stored_inputs(i: Inputs) -> None:
    text = codec.dump(i)
    assert codec.load(Inputs, text) == i
    assert replay(text) == decide(i)
    assert codec.dump(replay(text)) == codec.dump(decide(i))


OPTIONAL = [f.name for f in dataclasses.fields(vitals()) if f.name not in ("at_us", "mounts_hung", "maintenance")]


@given(
    st.sets(st.sampled_from(OPTIONAL)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "state", "comment"]),
)
def test_what_is_unknown_never_opens_a_gate(
    names: set[str], cluster: bool, copied: bool, hang: bool, lost: str
) -> None:
    """I30: every value taken away leaves a subset of what would have been done."""
    whole = running() if hang else inputs()
    v = dataclasses.replace(vitals(), **dict.fromkeys(names))
    less = dataclasses.replace(
        whole, vitals=v, cluster=whole.cluster if cluster else None, copied_us=whole.copied_us if copied else None,
        found=tuple(dataclasses.replace(f, **{lost: ""}) for f in whole.found) if lost else whole.found,
    )  # fmt: skip

    def act(i: Inputs) -> set[str]:
        d = decide(i)
        return {d.plan.digest} if d.plan is not None and d.refusal is None else set()

    assert narrower(act(less), act(whole)) == []
    if names - {"stepped_us", "streams", "blind"} or not cluster or not copied or lost:
        assert not act(less)


def test_a_value_of_an_unforeseen_kind_closes_its_gate() -> None:
    odd = dataclasses.replace(inputs(), tally=None)  # type: ignore[arg-type]
    d = decide(odd)
    assert "budget" in d.closed()
    assert any("could not be read" in r.value for r in d.readings)


def test_backoff_is_spread_by_the_attempt_and_never_earlier() -> None:
    dues = set()
    for n in range(20):
        key = dataclasses.replace(KEY, job_id=100 + n)
        i = inputs(attempt=key, **found(attempt=key), **judged(attempt=key), tally=tally(lineage=1, group=1))
        plan = decide(i).plan
        assert plan is not None
        wait = (plan.due_us - i.signed_us) / S
        assert 300 <= wait <= 375
        dues.add(wait)
    assert len(dues) > 15


def test_a_job_with_an_id_of_its_own_run_needs_no_window() -> None:
    key = dataclasses.replace(KEY, sluid="s509M8SE8EQC00")
    cluster = ClusterFacts("c", requeue_delay_s=1.0, sluids=True)
    d = decide(inputs(attempt=key, **found(attempt=key), **judged(attempt=key), cluster=cluster))
    assert d.refusal is None
    assert d.plan is not None
    assert d.plan.by == "sluid"


def test_consent_of_the_comment_is_what_counts() -> None:
    assert decide(inputs(**found(comment=CONSENT))).would
    assert not decide(inputs(**found(comment=CONSENT + "x"))).would
