"""The one door of recovery: `advance(desk, event) -> effects`, for one cluster.

In: events (see `words`). Out: effects, rows before what follows from them. Always: pure but for the desk it is given; no clock; the same events give
the same effects; level-triggered, so a lost or doubled event costs time and never a second call.

A new policy takes effect from the next event on where `desk.rules` is replaced between two of them. After a start: `rebuilt(rules, rows)`, then
`Started`. Every order without an outcome is then unknown; nothing is sent again because of a start.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from defib.engine.jobs import ClusterFacts, JobFacts
from defib.engine.nodes import NodeFact
from defib.engine.recover import breakers, steps, verify
from defib.engine.recover.budgets import HOUR
from defib.engine.recover.desk import OUTCOMES, Desk, Rules, Seen, case_id, opened, remember
from defib.engine.recover.inputs import cut, line, same
from defib.engine.recover.words import (
    FINAL,
    Case,
    Copied,
    Effect,
    Event,
    Facts,
    Fresh,
    Judged,
    OutsideEvidence,
    Progressed,
    Returned,
    Row,
    Said,
    Scheduled,
    Started,
    TakenBack,
    Tick,
    Vitals,
)

PASSES = 6  # transitions of one case in one event; no path is longer


def rebuilt(rules: Rules, rows: Iterable[Row]) -> Desk:
    """The desk as the recorded rows leave it. Rows in their order; the last of a case is the case."""
    desk = Desk(rules)
    for row in rows:
        desk.seq, desk.now_us, desk.epoch = row.seq, max(desk.now_us, row.at_us), max(desk.epoch, row.epoch)
        if row.case is not None:
            _restore(desk, row.case)
            if row.after in OUTCOMES and row.before != row.after:
                desk.outcomes.append((row.at_us, row.after))
            if row.after == "suspect" and not row.before:
                desk.suspected.append((row.at_us, row.case.lineage, row.case.user))
                _hold_against(desk, row.case.judged, row.case)
        if row.breaker is not None:
            desk.breakers[row.breaker.name] = row.breaker
        if row.evidence is not None:
            desk.evidence[row.evidence.id] = row.evidence
        if row.cluster is not None:
            desk.cluster = row.cluster
    return desk


def _restore(desk: Desk, case: Case) -> None:
    desk.put(case)
    desk.number = max([desk.number, *(o.order.number for o in case.orders)])
    last = case.next or case.attempt
    known = desk.lineages.get(line(last))
    if known is None or last.submit_us >= known[1].submit_us:
        desk.lineages[line(last)] = (case.lineage, last, case.user)


def advance(desk: Desk, event: Event) -> list[Effect]:
    """What follows from one event."""
    desk.effects = []
    if event.at_us < desk.now_us:
        desk.stepped_us = desk.now_us
    before = desk.now_us
    desk.now_us = max(desk.now_us, event.at_us)
    _TAKE[type(event)](desk, event)
    reconcile(desk)
    if desk.now_us // HOUR != before // HOUR:
        remember(desk)
    return desk.effects


def reconcile(desk: Desk) -> None:
    """Bring every open case as far as what is known carries it. Twice is as good as once."""
    breakers.review(desk)
    seq = desk.seq
    for id_ in list(desk.live):
        for _ in range(PASSES):
            case = desk.cases[id_]
            if case.state in FINAL:
                break
            moved = verify.step(desk, case) if case.state in AFTER else steps.step(desk, case)
            if moved is case or moved.state == case.state:
                break
    if desk.seq != seq:
        breakers.review(desk)


AFTER = frozenset(["issued", "unknown", "accepted", "started", "not-done"])


# --- one function for each kind of event --------------------------------------------------------------------------------------------


def _take_start(desk: Desk, e: Started) -> None:
    desk.epoch = max(desk.epoch + 1, e.epoch) if e.epoch <= desk.epoch else e.epoch
    desk.record("start", "", "", f"epoch {desk.epoch}, {'after an orderly end' if e.clean else 'after a crash'}")
    if not e.clean:
        desk.crashed_us = desk.now_us
    for id_ in list(desk.live):
        case = desk.cases[id_]
        if case.state == "authorised":  # its order is in no row, so it never left
            desk.move(case, "planned", "we were started anew before the order was recorded")
        elif case.state == "issued" and case.orders[-1].answer is None:
            desk.move(case, "unknown", "we were started anew while a call may have been on its way")


def _take_read(desk: Desk, e: Scheduled) -> None:
    desk.reads.append((desk.now_us, e.read.ok, e.read.took_s))
    desk.read_trouble = breakers.read_trouble(desk)
    if e.cluster is not None:
        _cluster(desk, e.cluster)
    if not e.read.ok:
        return
    present = set()
    for facts in e.read.jobs:
        key = line(facts.key)
        present.add(key)
        old = desk.seen.get(key)
        new = desk.note(facts, e.read.at_us)
        if new is not None and old is not None:
            _foreign(desk, old.facts, new.facts)
    for key, seen in desk.seen.items():
        if key not in present and e.read.at_us > seen.facts.begun_us:
            seen.gone, seen.gone_us = seen.gone + 1, seen.gone_us if seen.gone else desk.now_us
    for id_ in desk.live:
        case = desk.cases[id_]
        key = line(case.attempt)
        if key not in desk.seen:  # known from the rows of an earlier start only
            gone = Facts(case.next or case.attempt, "", e.read.at_us)
            desk.seen[key] = Seen(gone, "", desk.now_us, gone=1, gone_us=desk.now_us)
    _amnesia(desk, present)
    running = [f for f in e.read.jobs if f.state == "RUNNING"]
    desk.running_jobs = len(running)
    desk.gpus_running = sum(f.gpus if f.gpus is not None else 8 * (f.node_count or 1) for f in running)
    desk.good_read_us = desk.now_us
    if e.nodes is not None:
        desk.nodes, desk.nodes_us = {n.name: n for n in e.nodes}, desk.now_us


def _cluster(desk: Desk, new: ClusterFacts) -> None:
    old = desk.cluster
    if old == new and desk.controller_us is not None:
        return
    started = old is None or old.booted_us != new.booted_us
    if started or desk.controller_us is None:
        # at our own start the controller counts as old where it is the one that the rows know
        desk.controller_us = desk.now_us if started else 0
    if old is not None and old.first_job_id != new.first_job_id:
        desk.forgot = "the least job id that the controller gives has changed"
    desk.cluster = new
    if old != new:
        desk.record("cluster", "", "", "the cluster's settings as read", cluster=new)


def _amnesia(desk: Desk, present: set[Any]) -> None:
    """After a controller's start every job that waited or ran is gone at once: it has lost its state, ids begin anew."""
    if desk.controller_us is None or desk.age_s(desk.controller_us) > HOUR / 1e6:
        return
    lasting = [
        k
        for k, s in desk.seen.items()
        if s.facts.state in ("RUNNING", "PENDING")
        and s.first_us < desk.controller_us
        and (not s.gone or s.gone_us >= desk.controller_us)
    ]
    if len(lasting) >= 3 and not any(k in present for k in lasting):
        desk.forgot = f"after a start of the controller all {len(lasting)} jobs are gone"


def _foreign(desk: Desk, old: Facts, new: Facts) -> None:
    """Restarts that are not ours."""
    count = new.attempt.restarts - old.attempt.restarts
    if count <= 0:
        return
    case = desk.cases.get(case_id(old.attempt))
    ours = 1 if case is not None and any(o.order.verb in ("requeue", "requeuehold") for o in case.orders) else 0
    times = desk.foreign.setdefault(line(new.attempt), deque(maxlen=32))
    times.extend([desk.now_us] * min(32, count - ours))


def _take_fresh(desk: Desk, e: Fresh) -> None:
    if e.cluster is not None:
        _cluster(desk, e.cluster)
    id_ = case_id(e.attempt)
    case = desk.cases.get(id_)
    if case is not None and desk.looking.get(id_, 0) <= e.at_us:
        desk.looking.pop(id_, None)
    if not e.ok:
        return
    for facts in e.found:
        old = desk.seen.get(line(facts.key))
        new = desk.note(facts, e.begun_us)
        if new is not None and old is not None:
            _foreign(desk, old.facts, new.facts)
    if case is None or case.state in FINAL:
        return
    found = tuple(cut(f, e.begun_us) for f in _objects(e.found))
    if case.state == "planned":
        if not steps.outlived(desk, case):
            steps.call(desk, case, found, e.begun_us)
    elif case.state in AFTER:
        verify.fresh(desk, case, found)


def _objects(found: tuple[JobFacts, ...]) -> tuple[JobFacts, ...]:
    """A heterogeneous job is one object, named by its leader: its other parts go with it."""
    leaders = {f.job_id for f in found if f.het_offset == 0}
    return tuple(f for f in found if not (f.het_offset and f.het_job_id in leaders))


def _take_verdict(desk: Desk, e: Judged) -> None:
    seen = desk.seen.get(line(e.attempt))
    if seen is None or not same(seen.facts.attempt, e.attempt) or seen.gone:
        return  # a verdict about a run that is not there: late, or nobody has seen the job yet; it will be told again
    case = desk.cases.get(case_id(e.attempt))
    if case is None:
        case = opened(desk, seen.facts, e)
        desk.put(case)
        desk.record("case", "", "suspect", f"{e.kind}: {e.because}", case=case)
        desk.suspected.append((desk.now_us, case.lineage, case.user))
        desk.alerts.setdefault(case.user, deque(maxlen=2000)).append(desk.now_us)
        _hold_against(desk, e, case)
    elif case.state in ("suspect", "confirmed", "planned"):
        _again(desk, case, e)


def _again(desk: Desk, case: Case, e: Judged) -> None:
    """The verdict told again: one observation more; where it has become another one, the case begins anew with it."""
    old = case.judged
    if (old.kind, old.klass) == (e.kind, e.klass):
        desk.put(dataclasses.replace(case, judged=e, signs=case.signs + 1))
        return
    group = desk.rules.classes[e.klass].budget if e.klass in desk.rules.classes else "none"
    desk.move(
        case, "suspect", f"the verdict is now {e.kind} of class {e.klass}", judged=e, signs=1, signed_us=desk.now_us, plan=None,
        gate="", group=group, approved="", approved_us=None, copied_us=None,
    )  # fmt: skip
    _hold_against(desk, e, case)


def _hold_against(desk: Desk, e: Judged, case: Case) -> None:
    for s in e.suspects[:8]:
        desk.held_against[(e.incident, s.node)] = NodeFact(
            s.node, s.gpu, e.at_us, e.klass, s.confidence, case.lineage, e.incident, case.user or None, s.breadth, s.how
        )


def _take_back(desk: Desk, e: TakenBack) -> None:
    case = desk.cases.get(case_id(e.attempt))
    if case is not None and case.state in ("suspect", "confirmed", "planned"):
        desk.move(case, "cleared", f"the verdict was taken back: {e.why}")


def _take_progress(desk: Desk, e: Progressed) -> None:
    case = desk.cases.get(case_id(e.attempt))
    seen = desk.seen.get(line(e.attempt))
    runs = seen is not None and seen.facts.state == "RUNNING" and same(seen.facts.attempt, e.attempt)
    slow = case is not None and case.judged.kind == "slow"  # a slow run goes on: only the detector takes that back
    waits = case is not None and case.state in ("suspect", "confirmed", "planned")
    if case is not None and waits and not slow and (runs or case.target != "terminal"):
        failed = case.judged.step
        if failed is None or e.step > failed:
            desk.move(case, "cleared", f"it goes on: step {e.step}")
    for id_ in desk.live:
        case = desk.cases[id_]
        if case.next is None or line(case.next) != line(e.attempt) or case.next.restarts != e.attempt.restarts:
            continue
        if case.state in ("accepted", "started") and e.step > (case.reached if case.reached is not None else -1):
            desk.put(dataclasses.replace(case, reached=e.step))


def _take_copy(desk: Desk, e: Copied) -> None:
    case = desk.cases.get(e.case)
    if case is None or case.state in FINAL or case.copied_us is not None:
        return
    if e.ok:
        desk.copying.pop(e.case, None)
        desk.try_us.pop(e.case, None)
        desk.change(case, "the evidence is kept apart", copied_us=desk.now_us)


def _take_answer(desk: Desk, e: Returned) -> None:
    for id_ in list(desk.live):
        case = desk.cases[id_]
        if any(o.order.number == e.number and o.order.key == e.key for o in case.orders):
            verify.heard(desk, case, e.number, e.answer, e.code, e.began_us)


def _take_word(desk: Desk, e: Said) -> None:
    case = desk.cases.get(e.target)
    if e.what == "close-breaker":
        if e.target in desk.breakers and desk.breakers[e.target].state != "closed":
            if e.target == "amnesia":
                desk.forgot = ""
                for key in [k for k, s in desk.seen.items() if s.gone]:  # a person knows of them
                    del desk.seen[key]
            breakers.set_state(desk, e.target, "closed", f"closed by {e.who}", who=e.who)
        return
    if case is None:
        desk.record("person", "", "", f"{e.what} of what is not known", who=e.who)
    elif e.what == "regret":
        desk.change(case, f"regretted by {e.who}", who=e.who, regret=e.who)
        breakers.set_state(desk, "regret", "open", f"{e.who} regrets what was done to case {case.id}", who=e.who)
    elif e.what == "approve" and case.state == "planned":
        desk.try_us.pop(case.id, None)
        desk.change(case, f"approved by {e.who}", who=e.who, approved=e.digest, approved_us=desk.now_us)
    elif e.what == "refuse" and case.state in ("suspect", "confirmed", "planned"):
        desk.move(case, "refused", f"refused by {e.who}", who=e.who)
    elif e.what == "settle" and case.state in ("issued", "unknown", "accepted", "started", "not-done"):
        desk.move(case, "human", f"taken over by {e.who}", who=e.who)
    else:
        desk.record("person", case.state, case.state, f"{e.what} came too late", who=e.who)


def _take_evidence(desk: Desk, e: OutsideEvidence) -> None:
    if e.until_us > desk.now_us and e.node in desk.nodes and desk.evidence.get(e.id) != e:
        desk.evidence[e.id] = e
        desk.record("evidence", "", "", f"{e.source} holds {e.klass} against a node", evidence=e)


def _take_vitals(desk: Desk, e: Vitals) -> None:
    desk.vitals = e


def _take_tick(desk: Desk, e: Tick) -> None:
    pass


_TAKE: dict[type[Any], Callable[[Desk, Any], None]] = {
    Started: _take_start, Scheduled: _take_read, Fresh: _take_fresh, Judged: _take_verdict, TakenBack: _take_back,
    Progressed: _take_progress, Copied: _take_copy, Returned: _take_answer, Said: _take_word, OutsideEvidence: _take_evidence,
    Vitals: _take_vitals, Tick: _take_tick,
}  # fmt: skip
