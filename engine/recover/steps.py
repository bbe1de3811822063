"""The way of a case up to the call: suspect, confirmed, planned, authorised, issued. Level-triggered: what is, decides, not what happened.

In: desk and case. Out: the case moved on, or as it was. Always: a second pass over unchanged facts changes nothing; the one place where an order
is made is `call`, on a read at most confirm.fresh_s old, with all gates open.
"""

from __future__ import annotations

import dataclasses

from defib.engine.jobs import TERMINAL_STATES
from defib.engine.recover import codec, fence, gather, planner
from defib.engine.recover.desk import Desk, Seen, name
from defib.engine.recover.inputs import SECOND, Inputs, line, same
from defib.engine.recover.planner import Decision
from defib.engine.recover.words import Ask, Case, Copy, Facts, Issue, Issued, Look

GONE_S, GONE_READS = 60.0, 2  # good reads without the job, and how long, until it is taken as purged
STALE_S = 3600.0  # a verdict about a run that still runs, not told again for so long
LOOK_S, LOOK_OFTEN_S = 5.0, 60.0  # between two looks at one job, and for how long so often
ANSWER_S = 30.0  # a look or a copy that is not answered is asked for again
PLANS_MAX = 3  # orders that were not run, until a person has to look


def step(desk: Desk, case: Case) -> Case:
    """One transition at most of a case that has no call underway."""
    over = outlived(desk, case)
    if over:
        return desk.move(case, "cleared", over)
    if case.state == "suspect":
        return _suspect(desk, case)
    if case.state == "confirmed":
        return _confirmed(desk, case)
    return _planned(desk, case)


def outlived(desk: Desk, case: Case) -> str:
    """Why there is nothing left to do about this very run; empty where there is."""
    seen = desk.seen.get(line(case.attempt))
    if seen is None:
        return ""
    if seen.gone >= GONE_READS and desk.age_s(seen.gone_us) >= GONE_S:
        return "the scheduler no longer knows it"
    f = seen.facts
    if not same(f.attempt, case.attempt):
        return (
            "it was restarted by Slurm or somebody else"
            if f.attempt.restarts > case.attempt.restarts
            else "its id is another job's by now"
        )
    if f.state in ("COMPLETED", "CANCELLED", "PREEMPTED", "DEADLINE", "REVOKED"):
        return f"the scheduler says {f.state}"
    if f.state == "RUNNING" and desk.age_s(case.judged.at_us) > STALE_S:
        return "the verdict was not told again"
    return ""


def view(desk: Desk, case: Case) -> Seen | None:
    """The newest record, where it is of this very run and can be trusted."""
    seen = desk.seen.get(line(case.attempt))
    return seen if seen is not None and not seen.gone and same(seen.facts.attempt, case.attempt) else None


def _suspect(desk: Desk, case: Case) -> Case:
    seen, p, j = view(desk, case), desk.rules.policy.confirm, case.judged
    if seen is None or not j.seeing or not j.drained or not same(j.attempt, case.attempt):
        return case
    f = seen.facts
    if f.state in TERMINAL_STATES and not f.flags:
        if seen.looks < p.terminal_looks or seen.ended_us is None or desk.age_s(seen.ended_us) < p.settle_s:
            return case
        return _confirm(desk, case, "terminal", f"the scheduler says {f.state}")
    if f.state == "RUNNING" and not f.flags and j.kind != "dead":
        if case.signs < p.hang_looks or desk.age_s(case.signed_us) < p.hang_s:
            return case
        return _confirm(desk, case, "running", f"{case.signs} observations in {desk.age_s(case.signed_us):.0f} s")
    return case


def _confirm(desk: Desk, case: Case, target: str, because: str) -> Case:
    confirmed = desk.move(case, "confirmed", because, target=target, ended_us=desk.seen[line(case.attempt)].ended_us)
    copy(desk, confirmed)
    return confirmed


def copy(desk: Desk, case: Case) -> None:
    """Have the evidence kept apart, and again where no answer came."""
    asked = desk.copying.get(case.id)
    if case.copied_us is None and (asked is None or desk.age_s(asked) >= ANSWER_S):
        desk.copying[case.id] = desk.now_us
        desk.effects.append(Copy(case.id, case.attempt, case.judged.incident))


def look(desk: Desk, case: Case) -> None:
    """Have the job read afresh: every few seconds while something has just changed, then rarely; again where no answer came."""
    asked, last = desk.looking.get(case.id), desk.looked.get(case.id)
    gap = LOOK_S if desk.age_s(case.since_us) < LOOK_OFTEN_S else desk.rules.policy.call.retry_s
    if (asked is None or desk.age_s(asked) >= ANSWER_S) and (last is None or desk.age_s(last) >= gap):
        desk.looking[case.id] = desk.looked[case.id] = desk.now_us
        seen = desk.seen.get(line(case.attempt))
        label = seen.label if seen is not None and seen.label else name(case.attempt).split()[1]
        desk.effects.append(Look(case.attempt, label))


def look_now(desk: Desk, case: Case) -> None:
    """The same at once: something has happened."""
    desk.looking.pop(case.id, None)
    desk.looked.pop(case.id, None)
    look(desk, case)


def _decide(
    desk: Desk, case: Case, final: bool, found: tuple[Facts, ...] | None = None, looked_us: int | None = None
) -> tuple[Decision, Inputs]:
    """The decision now, and what it was made of."""
    if found is None:
        seen = desk.seen.get(line(case.attempt))
        found, looked_us = ((seen.facts,), seen.facts.begun_us) if seen is not None and not seen.gone else ((), None)
    i = gather.inputs(desk, case, found, looked_us, final)
    return planner.decide(i), i


def _confirmed(desk: Desk, case: Case) -> Case:
    copy(desk, case)
    asked = desk.copying.get(case.id)
    if case.copied_us is None and asked is not None and desk.age_s(case.since_us) < ANSWER_S:
        return case  # the copy is on its way: deciding before it comes would name the wrong gate
    if desk.now_us < desk.try_us.get(case.id, 0):
        return case
    decision, made_of = _decide(desk, case, final=False)
    if decision.lasting and decision.refusal is not None:
        return refuse(desk, case, decision, made_of)
    if decision.plan is None:
        _later(desk, case)
        return case
    because = "; ".join((decision.plan.sentence, *decision.notes))
    return desk.move(case, "planned", because, codec.dump(made_of), plan=decision.plan, gate=_first(decision))


def refuse(desk: Desk, case: Case, decision: Decision, made_of: Inputs) -> Case:
    """Nothing will be done about this attempt; the first closed gate is named, and the one that is closed for good where it is another."""
    r, g = decision.refusal, decision.for_good
    assert r is not None
    because = f"gate {r.gate} {r.name}: {r.value}"
    if g is not None and g.gate != r.gate:
        because += f"; for good by gate {g.gate} {g.name}: {g.value}"
    return desk.move(case, "refused", because, codec.dump(made_of), gate=r.name)


def _first(decision: Decision) -> str:
    return decision.refusal.name if decision.refusal is not None else ""


def _later(desk: Desk, case: Case) -> None:
    desk.try_us[case.id] = desk.now_us + int(desk.rules.policy.call.retry_s * SECOND)


def _planned(desk: Desk, case: Case) -> Case:
    copy(desk, case)
    if desk.age_s(case.since_us) > desk.rules.policy.call.plan_valid_s:
        return desk.move(case, "expired", f"not possible for {desk.rules.policy.call.plan_valid_s:g} s: {case.gate}")
    if desk.now_us < desk.try_us.get(case.id, 0):
        return case
    decision, made_of = _decide(desk, case, final=False)
    _later(desk, case)
    case = waits(desk, case, decision, made_of)
    if case.state != "planned" or decision.plan is None:
        return case
    if decision.closed() == ("mode",) and desk.rules.policy.mode == "approve":
        ask(desk, case)
    elif not decision.closed():
        look(desk, case)
    return case


def waits(desk: Desk, case: Case, decision: Decision, made_of: Inputs) -> Case:
    """The plan as it is now, and the gate that keeps it back; recorded where either changed."""
    if decision.lasting and decision.refusal is not None:
        return refuse(desk, case, decision, made_of)
    gate, plan = _first(decision), decision.plan or case.plan
    would = decision.would and decision.refusal is not None
    if (gate, plan, would) == (case.gate, case.plan, case.would):
        return case
    r = decision.refusal
    because = f"gate {r.gate} {r.name}: {r.value}" if r is not None else "all gates are open"
    because += "; every other gate is open, it would be called" if would else ""
    return desk.change(case, because, codec.dump(made_of), gate=gate, plan=plan, would=would)


def ask(desk: Desk, case: Case) -> None:
    """Ask a person, once for each plan, and again when an approval would have run out."""
    valid = desk.rules.policy.call.approval_valid_s
    assert case.plan is not None
    digest, until = desk.asked.get(case.id, ("", 0))
    if digest != case.plan.digest or desk.now_us >= until:
        until = desk.now_us + int(valid * SECOND)
        desk.asked[case.id] = (case.plan.digest, until)
        desk.effects.append(Ask(case.id, case.plan.digest, case.plan.sentence, until))


def call(desk: Desk, case: Case, found: tuple[Facts, ...], looked_us: int) -> Case:
    """A fresh read has come: if every gate is open on it, the call is authorised, recorded and handed out, all in this one step."""
    decision, made_of = _decide(desk, case, final=True, found=found, looked_us=looked_us)
    if decision.closed() or decision.plan is None:
        case = waits(desk, case, decision, made_of)
        if case.state == "planned":
            _later(desk, case)
        return case
    desk.number += 1
    try:
        order = fence.mutating(
            decision.plan, found[0], desk.rules.policy, desk.number, desk.epoch, desk.now_us, case.reissue
        )
    except ValueError as e:
        return desk.move(case, "human", str(e), codec.dump(made_of))
    case = desk.move(
        case,
        "authorised",
        "all gates are open",
        codec.dump(made_of),
        plan=decision.plan,
        gate="",
        release_by_us=order.release_by_us,
    )
    return issue(desk, case, Issued(order, desk.now_us), "issued", "about to call")


def issue(desk: Desk, case: Case, issued: Issued, state: str, because: str) -> Case:
    """The order is recorded, and only then goes out."""
    moved = desk.move(case, state, f"{because}: {issued.order.verb}", orders=(*case.orders, issued), unmoved=())  # type: ignore[arg-type]
    _try_breakers(desk, moved)
    desk.effects.append(Issue(issued.order))
    return moved


def _try_breakers(desk: Desk, case: Case) -> None:
    """The call that a half-open breaker lets through decides about it."""
    for b in [
        b
        for b in desk.breakers.values()
        if b.state == "half-open" and not b.trial and b.name.partition(":")[2] in ("", case.user)
    ]:
        desk.breakers[b.name] = dataclasses.replace(b, trial=case.id)
        desk.record("breaker", "half-open", "half-open", "one call tries", breaker=desk.breakers[b.name])
