"""Orders, exclusion, budgets, breakers, policy bounds, what-if: the parts by themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.recover_world import KEY, NOW, Driver, S, facts, inputs, job, rules, vitals

from defib.engine.jobs import ClusterRead
from defib.engine.policies import RecoveryPolicy
from defib.engine.policyfiles import load_policy
from defib.engine.recover import breakers, exclusion, fence, machine
from defib.engine.recover.inputs import Candidate, Room, same
from defib.engine.recover.planner import decide
from defib.engine.recover.whatif import Past, compare
from defib.engine.recover.words import Order, Said, Scheduled, Started, Tick
from defib.engine.words import RuleError

SHIPPED = (Path(__file__).resolve().parents[2] / "rules/policy/recovery.yaml").read_text(encoding="utf-8")


def order(**more: Any) -> Order:
    base: dict[str, Any] = {
        "key": "0" * 32, "number": 1, "verb": "requeue", "by": "id", "job_id": 41, "array_task": None, "sluid": None, "incomplete": False,
        "expected": KEY, "target": "terminal", "nodes": (), "read_us": 1, "not_after_us": 2, "kill_after_s": 5.0, "epoch": 1,
    }  # fmt: skip
    return Order(**{**base, **more})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"key": "x"}, "key"),
        ({"job_id": 0}, "job_id"),
        ({"job_id": 2**31}, "job_id"),
        ({"array_task": 3}, "array_task"),
        ({"by": "task"}, "array_task"),
        ({"by": "sluid", "sluid": "41"}, "sluid"),
        ({"by": "sluid", "sluid": "s509M8SE8EQC00; rm"}, "sluid"),
        ({"verb": "exclude", "target": "held"}, "nodes"),
        ({"verb": "exclude", "target": "held", "nodes": ("n1,n2",)}, "node's name"),
        ({"verb": "exclude", "target": "held", "nodes": ("-n1",)}, "node's name"),
        ({"verb": "exclude", "target": "held", "nodes": ("n1\n",)}, "node's name"),
        ({"verb": "exclude", "target": "held", "nodes": tuple(f"n{i}" for i in range(300))}, "nodes"),
        ({"nodes": ("n1",)}, "nodes"),
        ({"target": "running"}, "incomplete"),
        ({"incomplete": True}, "incomplete"),
        ({"verb": "release"}, "target"),
        ({"target": "held"}, "target"),
        ({"verb": "requeuehold"}, "release_by_us"),
        ({"expected": dataclasses.replace(KEY, cluster="a b")}, "cluster"),
    ],
)
def test_what_could_hit_something_else_is_no_order(more: dict[str, Any], said: str) -> None:
    order()
    with pytest.raises(ValueError, match=said):
        order(**more)


def test_one_key_for_one_run_whatever_is_done_and_another_for_the_next() -> None:
    plan = decide(inputs()).plan
    assert plan is not None
    first = fence.mutating(plan, facts(), rules().policy, 1, 7, NOW, False)
    hold = fence.mutating(dataclasses.replace(plan, verb="requeuehold"), facts(), rules().policy, 2, 7, NOW, False)
    assert first.key == hold.key == fence.key_of(dataclasses.replace(KEY, sluid="s509M8SE8EQC00"), "mutate")
    assert fence.key_of(dataclasses.replace(KEY, restarts=1), "mutate") != first.key
    assert hold.release_by_us == NOW + 600 * S


def test_a_task_is_named_by_its_array_and_never_by_a_bare_id() -> None:
    key = dataclasses.replace(KEY, array_task=3)
    f = facts(attempt=key, array_job_id=41)
    plan = decide(inputs(attempt=key, found=(f,), judged=dataclasses.replace(inputs().judged, attempt=key))).plan
    assert plan is not None
    made = fence.mutating(plan, f, rules().policy, 1, 7, NOW, False)
    assert (made.by, made.job_id, made.array_task) == ("task", 41, 3)
    with pytest.raises(ValueError, match="without its array"):
        fence.mutating(plan, dataclasses.replace(f, array_job_id=None), rules().policy, 1, 7, NOW, False)


def test_the_id_of_a_run_decides_where_both_know_it() -> None:
    a, b = dataclasses.replace(KEY, sluid="s1"), dataclasses.replace(KEY, sluid="s2")
    assert same(a, KEY)
    assert not same(a, b)


# --- exclusion ----------------------------------------------------------------------------------------------------------------------

ROOM = Room(10, ("n1", "n2", "n3"), 40)
C = tuple(Candidate(n, "two incidents") for n in ("n1", "n2", "n3"))


def choose(
    more: dict[str, Any], policy: dict[str, Any] | None = None, c: tuple[Candidate, ...] = C, **room: Any
) -> exclusion.Excluded:
    p = dataclasses.replace(rules().policy.exclusion, partition_share=1.0, **(policy or {}))
    return exclusion.choose(c, facts(**more), dataclasses.replace(ROOM, **room), p, True, NOW)


def test_the_list_is_the_union_with_the_users_own_and_capped() -> None:
    done = choose({"excluded": ("n7",)})
    assert done.add == ("n1", "n2")
    assert done.whole == ("n1", "n2", "n7")
    assert "at most 2" in done.notes[0]


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (lambda: choose({"required": ("n1", "n2", "n3")}), "by name"),
        (lambda: choose({"excluded": ("n1", "n2", "n3")}), "already"),
        (lambda: choose({"node_count": 9}), "usable"),
        (lambda: choose({"node_count": None}), "not known"),
        (lambda: choose({"het_job_id": 41}), "heterogeneous"),
        (lambda: choose({"excluded": ("n[1-3]",)}), "cannot be read"),
        (lambda: choose({}, {"enabled": False}), "excludes no nodes"),
        (lambda: choose({}, c=(Candidate("n1", "x", NOW),)), "expired"),
        (lambda: choose({}, c=(Candidate("n1 n2", "x"),)), "name"),
        (lambda: exclusion.choose(C, facts(), None, rules().policy.exclusion, True, NOW), "not known"),
        (lambda: exclusion.choose(C, facts(), ROOM, rules().policy.exclusion, False, NOW), "owner"),
    ],
)
def test_a_candidate_stays_in_and_it_is_said_why(done: Callable[[], exclusion.Excluded], said: str) -> None:
    result = done()
    assert result.add == ()
    assert result.whole == ()
    assert said in " ".join(result.notes)


def test_the_partition_has_a_cap_of_its_own() -> None:
    p = dataclasses.replace(rules().policy.exclusion, partition_share=0.05)
    full = dataclasses.replace(ROOM, out_by_us=("n8", "n9"))
    assert exclusion.choose(C, facts(), full, p, True, NOW).add == ()
    assert exclusion.choose(C, facts(), dataclasses.replace(ROOM, out_by_us=("n1", "n9")), p, True, NOW).add == ("n1",)


@given(
    st.sets(st.sampled_from([f"n{i}" for i in range(12)])), st.sets(st.sampled_from([f"n{i}" for i in range(12)])), st.integers(1, 12)
)  # fmt: skip
def test_there_are_always_enough_nodes_left(bad: set[str], own: set[str], count: int) -> None:
    usable = {f"n{i}" for i in range(12)}
    room = Room(12, tuple(sorted(usable & (bad | own))), 12)
    p = dataclasses.replace(rules().policy.exclusion, partition_share=1.0, per_attempt=64)
    c = tuple(Candidate(n, "x") for n in sorted(bad))
    done = exclusion.choose(c, facts(excluded=tuple(sorted(own)), node_count=count), room, p, True, NOW)
    if done.add:
        assert own <= set(done.whole)
        assert set(done.add) <= bad
        assert len(usable - set(done.whole)) >= count + p.spare_nodes


# --- breakers -----------------------------------------------------------------------------------------------------------------------


def many(users: tuple[str, ...]) -> Driver:
    d = Driver(None, *(job(job_id=41 + n, user=u) for n, u in enumerate(users)))
    for n in range(len(users)):
        d.jobs.insert(0, d.jobs.pop(n))
        d.judge("hung", "hang")
    return d


def test_many_at_once_open_a_breaker_and_a_few_do_not() -> None:
    assert many(("u1", "u2", "u2")).desk.breakers["correlated"].state == "open"
    assert "correlated" not in many(("u1", "u2")).desk.breakers


def test_a_breaker_lets_one_call_try_after_half_an_hour_and_opens_again() -> None:
    d = many(("u1", "u2", "u3"))
    d.wait(1801)
    assert d.desk.breakers["correlated"].state == "half-open"
    for j in list(d.jobs):
        d.jobs.insert(0, d.jobs.pop(d.jobs.index(j)))
        d.desk.suspected.append((d.now, j.user, j.user))
    d.wait(1)
    assert d.desk.breakers["correlated"].state == "open"


def test_a_trial_closes_it_by_recovery_only() -> None:
    for state, after in (("recovered", "closed"), ("stranded", "open"), ("accepted", "half-open")):
        d = Driver()
        d.judge("hung", "hang")
        case = dataclasses.replace(d.case, state=state)
        d.desk.cases[case.id] = case
        breakers.set_state(d.desk, "verify", "half-open", "x")
        d.desk.breakers["verify"] = dataclasses.replace(d.desk.breakers["verify"], trial=case.id)
        breakers.review(d.desk)
        assert d.desk.breakers["verify"].state == after


def test_regret_is_closed_by_a_person_only_and_survives_a_start() -> None:
    d = Driver()
    d.judge()
    d.give(Said(d.now, "ann", "regret", d.case.id))
    assert d.desk.breakers["regret"].state == "open"
    d.wait(100_000)
    d.restart()
    assert d.desk.breakers["regret"].state == "open"
    d.give(Said(d.now, "ann", "close-breaker", "regret"))
    assert d.desk.breakers["regret"].state == "closed"


def test_being_blind_or_behind_or_cut_off_opens_a_breaker_while_it_lasts() -> None:
    for name, more in (
        ("blind", {"blind": 2}),
        ("blind", {"mounts_hung": ("/x",)}),
        ("health", {"lag_s": 9.0}),
        ("health", {"stepped_us": NOW}),
    ):
        d = Driver()
        machine.advance(d.desk, vitals(d.now, newest_epoch=d.desk.epoch, **more))  # type: ignore[arg-type]
        assert d.desk.breakers[name].state == "open", more
        d.wait(700)
        d.wait(700)
        assert d.desk.breakers[name].state == "closed"
    d = Driver()
    for _ in range(6):
        d.read(ok=False)
    assert d.desk.breakers["scheduler"].state == "open"
    d = Driver()
    for _ in range(6):
        d.give(Scheduled(d.now, ClusterRead(d.now, True, tuple(d.jobs), took_s=9.0)))
    assert d.desk.breakers["scheduler"].state == "open"
    d.give(Started(d.now, 99, clean=False))
    assert d.desk.breakers["health"].state == "open"


def test_one_users_flood_stops_that_user() -> None:
    d = Driver()
    d.judge()
    d.desk.alerts["u1"].extend([d.now] * 101)
    d.give(Tick(d.now))
    assert d.desk.breakers["flood:u1"].state == "open"


def test_a_controller_that_has_forgotten_everything_disarms_until_a_person_says_otherwise() -> None:
    d = Driver(None, *(job(job_id=n) for n in (41, 42, 43)))
    d.cluster = dataclasses.replace(d.cluster, booted_us=99)
    d.jobs = [job(job_id=1)]
    d.wait(10)
    d.read()
    assert d.desk.breakers["amnesia"].state == "open"
    d.give(Said(d.now, "ann", "close-breaker", "amnesia"))
    d.wait(10)
    d.read()
    assert d.desk.breakers["amnesia"].state == "closed"


# --- policy -------------------------------------------------------------------------------------------------------------------------


def test_as_shipped_nobody_is_acted_on() -> None:
    p = load_policy(SHIPPED, "recovery.yaml", RecoveryPolicy)
    assert p.mode == "observe"
    assert p.allow.partitions == ()
    assert not (p.act_on_running)
    assert not (p.act_on_slow)
    assert not (p.act_on_timeout)
    assert "allow-list" in decide(inputs(policy=dataclasses.replace(p, mode="act"))).closed()


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("mode: observe", "mode: always", "'mode' is 'always'"),
        ("  fresh_s: 2", "  fresh_s: 3", "'fresh_s' is 3"),
        ("  slack_s: 10", "  slack_s: 25", "is not below least_delay_s"),
        ("  hang_looks: 3", "  hang_looks: 1", "'hang_looks' is 1"),
        ("groups: {hardware: 2,", "groups: {hardwear: 2,", "hardwear"),
        ("groups: {hardware: 2,", "groups: {hardware: 99,", "'hardware' is 99"),
        ("allow: {partitions: [],", "allow: {partition: [],", "unknown key 'partition'"),
    ],
)
def test_a_policy_cannot_be_made_unsafe_by_a_slip(was: str, now: str, said: str) -> None:
    assert was in SHIPPED
    with pytest.raises(RuleError) as e:
        load_policy(SHIPPED.replace(was, now), "site.yaml", RecoveryPolicy)
    assert any(said in p.message for p in e.value.problems), e.value.problems


# --- what if ------------------------------------------------------------------------------------------------------------------------


def past(n: int, begun: int, ended: int, step: int | None, klass: str = "node-fault", **more: Any) -> Past:
    return Past(f"a{n}", "j", n, "crashed", klass, f"f{n}", step, begun * 3600 * S, ended * 3600 * S, gpus=8, **more)


def test_a_new_policy_is_told_by_what_really_followed() -> None:
    h = 3600 * S
    history = [
        past(0, 10, 20, 100, next_begun_us=30 * h, next_ended_us=40 * h, next_step=200),
        past(1, 30, 40, 200, klass="user-code", next_begun_us=41 * h, next_ended_us=43 * h, next_step=200),
    ]
    never = rules(
        budgets=dataclasses.replace(
            rules().policy.budgets, lineage=dataclasses.replace(rules().policy.budgets.lineage, without_progress=0)
        )
    )
    told = compare(history, never, rules())
    assert (told.restarts_before, told.restarts_after) == (0, 1)
    (change,) = told.changed
    assert change.past.attempt == "a0"
    assert change.gpu_h == pytest.approx(8 * (10 - 30 / 3600))
    back = compare(history, rules(), never)
    assert back.lost_gpu_h == pytest.approx(told.won_gpu_h)
    same_ = compare(history, rules(), rules())
    assert same_.changed == ()


def test_restarts_of_runs_that_went_on_by_themselves_are_counted() -> None:
    healed = dataclasses.replace(past(0, 10, 20, 100, klass="hang"), verdict="stalled", healed=True)
    off = rules(act_on_running=False)
    told = compare([healed], off, rules())
    assert (told.alone_before, told.alone_after, told.unknown) == (0, 1, 1)
