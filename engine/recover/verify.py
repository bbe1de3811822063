"""The way of a case after the call: what became of it is read, never believed. Exit code 0 is not success.

In: desk, case, fresh reads. Out: the case moved on. Always: reads only, but for the two later steps on a job that we hold ourselves (set its
excluded nodes, release it), each once per fresh read that shows the hold to be ours still.

    issued -> accepted | rejected | unknown | satisfied-by-other | not-done | expired
    unknown -> accepted | satisfied-by-other | not-done | human        (by two good reads at least settle seconds apart)
    accepted -> started | stranded | cleared | satisfied-by-other      started -> recovered | not-recovered
"""

from __future__ import annotations

import dataclasses

from defib.engine.jobs import TERMINAL_STATES, AttemptKey
from defib.engine.recover import fence
from defib.engine.recover.desk import Desk
from defib.engine.recover.inputs import SECOND, line, same
from defib.engine.recover.steps import GONE_READS, GONE_S, PLANS_MAX, issue, look, look_now, outlived
from defib.engine.recover.words import Answer, Case, Facts, Issued

RELEASES_MAX = 10
EXCLUDES_MAX = 2
HOLD_SEEN_S = 8  # after a call a hold without a word of its own is taken as ours for so long
BAD_REASONS = ("BadConstraints", "JobHeldAdmin", "JobHoldMaxRequeue", "launch failed requeued held")


def heard(desk: Desk, case: Case, number: int, answer: Answer, code: str, began_us: int | None) -> Case:
    """The executor's word about an order. Late or doubled words change nothing that is known already."""
    orders = tuple(
        dataclasses.replace(o, answer=answer, code=code, answered_us=desk.now_us, began_us=began_us)
        if o.order.number == number and o.answer is None
        else o
        for o in case.orders
    )
    if orders == case.orders:
        return case
    case = desk.change(case, f"the executor says {answer} {code}".strip(), orders=orders)
    last = case.orders[-1]
    if case.state == "issued" and last.order.number == number:
        if answer == "unclear":
            return desk.move(case, "unknown", f"the end of the call is not known: {code or 'unclear'}")
        if answer == "not-run":
            return _not_run(desk, case, code)
    if case.state in ("issued", "unknown", "accepted"):
        look_now(desk, case)
    return case


def _not_run(desk: Desk, case: Case, code: str) -> Case:
    """Nothing was called: try again where the executor was only too late."""
    tries = sum(o.answer == "not-run" for o in case.orders)
    if code != "late" or tries >= PLANS_MAX:
        return desk.move(case, "expired", f"the executor did not run it: {code}")
    desk.try_us[case.id] = desk.now_us + int(desk.rules.policy.call.retry_s * SECOND)
    return desk.move(case, "planned", "the executor was too late to run it")


def step(desk: Desk, case: Case) -> Case:
    """One transition at most by time and by the newest record, of a case whose call went out."""
    if case.state == "issued":
        return _silent(desk, case)
    if case.state == "unknown":
        look(desk, case)
        return _lost(desk, case, "human")
    if case.state == "not-done":
        return _not_done(desk, case)
    if case.state == "accepted":
        return _accepted(desk, case)
    return _started(desk, case)


def fresh(desk: Desk, case: Case, found: tuple[Facts, ...]) -> Case:
    """A good fresh read of the job, asked for since the call."""
    if case.state in ("issued", "unknown"):
        return _outcome(desk, case, found)
    if case.state == "accepted" and _holding(case) and len(found) == 1:
        return _hold(desk, case, found[0])
    return case


# --- did it happen? -----------------------------------------------------------------------------------------------------------------


def _silent(desk: Desk, case: Case) -> Case:
    """An order of which nothing was heard."""
    order, c = case.orders[-1].order, desk.rules.policy.call
    if case.orders[-1].answer is None:
        if desk.now_us > order.not_after_us + int((c.kill_after_s + c.slack_s) * SECOND):
            return desk.move(case, "unknown", "nothing was heard of the call")
        return case
    look(desk, case)
    return _lost(desk, case, "human")


def _lost(desk: Desk, case: Case, state: str) -> Case:
    seen = desk.seen.get(line(case.attempt))
    if seen is not None and seen.gone >= GONE_READS and desk.age_s(seen.gone_us) >= GONE_S:
        return desk.move(case, state, "the scheduler no longer knows the job")  # type: ignore[arg-type]
    return case


def settle_us(desk: Desk) -> int:
    """How long nothing is believed after a call whose end is not known."""
    timeout = desk.cluster.message_timeout_s if desk.cluster is not None else 0.0
    return int(max(60.0, desk.rules.policy.call.unknown_settle_s, 2 * timeout) * SECOND)


def _outcome(desk: Desk, case: Case, found: tuple[Facts, ...]) -> Case:
    """What a read after the call says of it."""
    issued = case.orders[-1]
    facts = found[0] if len(found) == 1 else None
    if (
        facts is None
        or line(facts.attempt) != line(case.attempt)
        or (facts.user and case.user and facts.user != case.user)
    ):
        return case if not found else desk.move(case, "human", "the id names another job by now")
    moved = facts.attempt.restarts - case.attempt.restarts
    if moved == 0 and same(facts.attempt, case.attempt):
        return _unmoved(desk, case, issued, facts)
    if moved != 1:
        return desk.move(case, "satisfied-by-other", f"it was restarted {moved} times since", next=facts.attempt)
    if issued.answer == "rejected":
        return desk.move(
            case,
            "satisfied-by-other",
            f"the call was refused ({issued.code}), somebody else restarted it",
            next=facts.attempt,
        )
    if issued.order.verb == "requeuehold" and not facts.held:
        return desk.move(
            case, "satisfied-by-other", "it was restarted, but not by our call: it is not held", next=facts.attempt
        )
    if issued.order.verb == "requeuehold" and not _ours(facts, issued):
        return desk.move(
            case, "stranded", f"it is held ({facts.reason}); whether by us is not known", next=facts.attempt
        )
    sure = "" if issued.answer == "done" else "; whether by us is not certain"
    hold = facts.reason if issued.order.verb == "requeuehold" else ""
    return desk.move(
        case, "accepted", f"restarts {facts.attempt.restarts}{sure}", next=facts.attempt, hold_reason=hold, unmoved=()
    )


def _ours(facts: Facts, issued: Issued) -> bool:
    """The hold is the one that requeuehold places: by the scheduler's own word, or, where that word only says that a user holds it, because it was
    seen right after the call."""
    if "requeued" in facts.reason and "held" in facts.reason:
        return True
    return facts.reason == "JobHeldUser" and facts.begun_us - issued.at_us <= HOLD_SEEN_S * SECOND


def _unmoved(desk: Desk, case: Case, issued: Issued, facts: Facts) -> Case:
    """The very run is still there as it was."""
    if issued.answer == "rejected":
        return desk.move(case, "rejected", f"the scheduler refused: {issued.code}")
    if facts.begun_us <= max(issued.answered_us or 0, issued.at_us):
        return case
    if not case.unmoved:
        return desk.change(case, "nothing has happened yet", unmoved=(facts.begun_us,))
    if facts.begun_us - case.unmoved[0] < settle_us(desk):
        return case
    return desk.move(
        case, "not-done", "two good reads show that nothing has happened", unmoved=(*case.unmoved, facts.begun_us)
    )


def _not_done(desk: Desk, case: Case) -> Case:
    """A call that did not happen: repeated once for a run that has ended; of one that still runs a person hears."""
    over = outlived(desk, case)
    if over:
        return desk.move(case, "cleared", over)
    seen = desk.seen.get(line(case.attempt))
    ended = seen is not None and seen.facts.state in TERMINAL_STATES and not seen.facts.flags
    if not ended or case.reissue:
        return desk.move(case, "human", "a call did nothing and is not repeated")
    return desk.move(case, "planned", "to be called once more, all gates again", reissue=True, target="terminal")


# --- what became of it --------------------------------------------------------------------------------------------------------------


def _holding(case: Case) -> bool:
    """Our hold may still be on the job."""
    return any(o.order.verb == "requeuehold" for o in case.orders) and bool(case.hold_reason or case.release_by_us)


def _accepted(desk: Desk, case: Case) -> Case:
    seen, nxt = desk.seen.get(line(case.attempt)), case.next
    assert nxt is not None
    if seen is None:
        return case
    if seen.gone >= GONE_READS and desk.age_s(seen.gone_us) >= GONE_S:
        return desk.move(case, "human", "the scheduler no longer knows the job")
    f = seen.facts
    if seen.gone or f.begun_us < case.since_us:
        return case
    if f.attempt.restarts > nxt.restarts:
        return desk.move(case, "satisfied-by-other", "it was restarted once more by somebody else", next=f.attempt)
    if not _is_next(f.attempt, nxt):
        return case
    nxt = f.attempt
    if f.state == "RUNNING" and not f.flags:
        wrong = [n for n in f.nodes if case.plan is not None and n in case.plan.exclude]
        if wrong and _verified(case):
            return desk.move(case, "stranded", f"it started on {wrong[0]}, which was to be kept out", next=nxt)
        return desk.move(case, "started", f"running, restarts {nxt.restarts}", next=nxt, running_us=desk.now_us)
    if f.state in ("CANCELLED", "COMPLETED"):
        return desk.move(case, "cleared", f"after the restart the scheduler says {f.state}", next=nxt)
    if f.state in TERMINAL_STATES and not f.flags:
        return desk.move(case, "not-recovered", f"it ended as {f.state} before a step was seen", next=nxt)
    if _holding(case) and not _released(case):
        look(desk, case)
        _overdue(desk, case)
        return case
    if f.reason in BAD_REASONS or (f.held and not _holding(case)):
        return desk.move(case, "stranded", f"it waits and cannot start: {f.reason or 'held'}", next=nxt)
    if _holding(case) and f.held:
        look(desk, case)
    return case


def _is_next(found: AttemptKey, nxt: AttemptKey) -> bool:
    """The run that followed: by its count (its submit time is set anew when it comes out of completing)."""
    return line(found) == line(nxt) and found.restarts == nxt.restarts


def _overdue(desk: Desk, case: Case) -> None:
    if case.release_by_us is not None and desk.now_us > case.release_by_us + 60 * SECOND:
        desk.notify(
            "human", f"{case.id}:overdue", "a job is still held by us past its time; it is to be released", case.id
        )


def _started(desk: Desk, case: Case) -> Case:
    seen, nxt = desk.seen.get(line(case.attempt)), case.next
    assert nxt is not None
    failed = case.judged.step
    if case.reached is not None and failed is not None and case.reached > failed:
        return desk.move(case, "recovered", f"step {case.reached} is past {failed}, where it had failed")
    ran = desk.age_s(case.running_us) if case.running_us is not None else 0.0
    steady = ran >= desk.rules.policy.call.recovered_after_s
    if seen is None or seen.gone:
        if seen is not None and seen.gone >= GONE_READS and desk.age_s(seen.gone_us) >= GONE_S:
            return desk.move(case, "human", "the scheduler no longer knows the job")
        return case
    f = seen.facts
    if f.attempt.restarts > nxt.restarts or (
        _is_next(f.attempt, nxt) and f.state in TERMINAL_STATES and f.state != "COMPLETED"
    ):
        what = f.state if f.attempt.restarts == nxt.restarts else "another restart"
        if f.state == "CANCELLED" and f.attempt.restarts == nxt.restarts:
            return desk.move(case, "cleared", "somebody cancelled it after the restart")
        return desk.move(case, "not-recovered", f"{what} before the step where it had failed")
    if _is_next(f.attempt, nxt) and f.state == "COMPLETED":
        return desk.move(case, "recovered", "it completed")
    if failed is None and steady and case.reached is not None:
        return desk.move(case, "recovered", f"steps for {ran:.0f} s; where it had failed is not known")
    return case


# --- the job that we hold -----------------------------------------------------------------------------------------------------------


def _last(case: Case, verb: str) -> Issued | None:
    return next((o for o in reversed(case.orders) if o.order.verb == verb), None)


def _released(case: Case) -> bool:
    last = _last(case, "release")
    return last is not None and last.answer == "done"


def _verified(case: Case) -> bool:
    """The excluded nodes were seen to be set."""
    last = _last(case, "exclude")
    return last is not None and last.answer == "done"


def _hold(desk: Desk, case: Case, f: Facts) -> Case:
    """The next step on a held job, on a read of just now."""
    nxt, plan = case.next, case.plan
    assert nxt is not None
    if not _is_next(f.attempt, nxt) or plan is None:
        return case
    if not f.held:
        if _released(case):
            return desk.change(case, "released", release_by_us=None, hold_reason="", next=f.attempt)
        return desk.change(case, "somebody else released it", release_by_us=None, hold_reason="", next=f.attempt)
    if f.reason != case.hold_reason or _released(case):
        return desk.move(case, "stranded", f"it is held by somebody else: {f.reason}", next=f.attempt)
    if f.state != "PENDING" and "COMPLETING" not in f.flags:
        return case
    waiting = [o for o in case.orders if o.answer is None and _may_come(desk, o)]
    if waiting or (desk.age_s(f.begun_us) > desk.rules.policy.confirm.fresh_s) or not _may_call(desk):
        return case
    overdue = case.release_by_us is not None and desk.now_us >= case.release_by_us
    if not overdue and not set(plan.all_excluded) <= set(f.excluded) and _count(case, "exclude") < EXCLUDES_MAX:
        return _follow(desk, case, f, "exclude", plan.all_excluded)
    if "COMPLETING" in f.flags and not overdue:
        return case
    if _count(case, "release") >= RELEASES_MAX:
        return desk.move(case, "stranded", "it cannot be released", next=f.attempt)
    return _follow(desk, case, f, "release", ())


def _may_come(desk: Desk, o: Issued) -> bool:
    c = desk.rules.policy.call
    return desk.now_us <= o.order.not_after_us + int((c.kill_after_s + c.slack_s) * SECOND)


def _count(case: Case, verb: str) -> int:
    return sum(o.order.verb == verb for o in case.orders)


def _may_call(desk: Desk) -> bool:
    """Later steps restore what we have changed; they ask for no mode and no breaker, but for the kill switch and the lock."""
    v = desk.vitals
    return v is not None and v.killed is False and v.locked is True and v.newest_epoch == desk.epoch


def _follow(desk: Desk, case: Case, f: Facts, verb: str, nodes: tuple[str, ...]) -> Case:
    desk.number += 1
    by: fence.By = "task" if f.attempt.array_task is not None else "id"
    again = _count(case, verb) > 0
    try:
        order = fence.following(
            verb, case.attempt, f, nodes, by, desk.rules.policy, desk.number, desk.epoch, again  # type: ignore[arg-type]
        )  # fmt: skip
    except ValueError as e:
        return desk.move(case, "human", str(e))
    return issue(
        desk, dataclasses.replace(case, next=f.attempt), Issued(order, desk.now_us), "accepted", "about to call"
    )
