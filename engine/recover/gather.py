"""From what the desk knows to the inputs of one decision.

In: desk, case, the records a look found. Out: `Inputs`. Always: nothing is decided here; what is unknown stays None.
"""

from __future__ import annotations

import dataclasses

from defib.engine import nodes as node_evidence
from defib.engine.nodes import NOTHING, Fleet, NodeFact
from defib.engine.recover import budgets
from defib.engine.recover.desk import DAY, Desk
from defib.engine.recover.inputs import Candidate, Inputs, Room, line, same
from defib.engine.recover.words import UNDERWAY, Case, Facts, OutsideEvidence, Vitals

FOREIGN_MAX = 2  # restarts by somebody else in a day, from which on the job is left to them


def inputs(desk: Desk, case: Case, found: tuple[Facts, ...], looked_us: int | None, final: bool) -> Inputs:
    """Everything the decision about this case rests on, now."""
    seen = desk.seen.get(line(case.attempt))
    facts = found[0] if len(found) == 1 else None
    candidates = _candidates(desk, case, facts)
    return Inputs(
        now_us=desk.now_us, final=final, attempt=case.attempt, lineage=case.lineage, target=case.target, policy=desk.rules.policy,
        klass=desk.rules.classes.get(case.judged.klass, NOTHING), judged=case.judged, signs=case.signs, signed_us=case.signed_us,
        settled_us=seen.ended_us if seen is not None else None, copied_us=case.copied_us, found=found, looked_us=looked_us,
        cluster=desk.cluster, controller_us=desk.controller_us, vitals=_vitals(desk), epoch=desk.epoch,
        tally=budgets.tally(
            desk.calls.values(), case, desk.now_us, desk.running_jobs, desk.gpus_running, desk.complete
        ),
        breakers=tuple(
            b for n, b in sorted(desk.breakers.items()) if b.state != "closed" and n.partition(":")[2] in ("", case.user)
        ),
        others=_others(desk, case), approved=case.approved, approved_us=case.approved_us, candidates=candidates,
        room=_room(desk, facts, candidates) if candidates else None, reissue=case.reissue,
        moved=seen is not None and not same(seen.facts.attempt, case.attempt), plan=case.plan if case.reissue else None,
    )  # fmt: skip


def _vitals(desk: Desk) -> Vitals | None:
    """As told, with the jumps of the clock that the desk itself has seen."""
    v = desk.vitals
    if v is None or desk.stepped_us is None or (v.stepped_us or 0) >= desk.stepped_us:
        return v
    return dataclasses.replace(v, stepped_us=desk.stepped_us)


def _others(desk: Desk, case: Case) -> tuple[str, ...]:
    """What points at somebody else who restarts this job."""
    times = [t for t in desk.foreign.get(line(case.attempt), ()) if desk.now_us - t < DAY]
    if len(times) >= FOREIGN_MAX:
        return (f"somebody else restarted it {len(times)} times in 24 h",)
    return ()


def _candidates(desk: Desk, case: Case, facts: Facts | None) -> tuple[Candidate, ...]:
    """Nodes that this attempt ran on and that the evidence would keep out."""
    if facts is None:
        return ()
    mine = set(facts.nodes) | {s.node for s in case.judged.suspects}
    told = [*desk.held_against.values(), *(_fact_of(e) for e in desk.evidence.values() if e.until_us > desk.now_us)]
    if not any(f.node in mine for f in told):
        return ()
    judged = node_evidence.judge(
        told, desk.rules.classes, desk.rules.nodes, desk.now_us, Fleet(len(desk.nodes) or None)
    )
    return tuple(
        Candidate(j.node, j.because[:200], j.until_us)
        for j in judged
        if j.candidate and j.node in mine and j.node in desk.nodes
    )


def _fact_of(e: OutsideEvidence) -> NodeFact:
    """Evidence from outside weighs like our own: what is certain is as good as the line of a cause."""
    source = "cause" if e.confidence == "certain" else "printer"
    return NodeFact(e.node, e.gpu, e.at_us, e.klass, e.confidence, f"outside:{e.source}", e.id, None, 1, source)


def _room(desk: Desk, facts: Facts | None, candidates: tuple[Candidate, ...]) -> Room | None:
    """What the job's partition has to offer."""
    if facts is None or not desk.nodes:
        return None
    there = [n for n in desk.nodes.values() if facts.partition in n.partitions]
    usable = {n.name for n in there if n.usable}
    named = {c.node for c in candidates} | set(facts.excluded)
    return Room(
        len(usable),
        tuple(sorted(usable & named)),
        len(there),
        tuple(sorted(out_by_us(desk) & {n.name for n in there})),
        desk.nodes_us,
    )


def out_by_us(desk: Desk) -> set[str]:
    """Nodes that some job does without because of a restart of ours that still goes on, or that succeeded in the last week."""
    return {
        n
        for c in desk.cases.values()
        if c.plan is not None
        and c.plan.exclude
        and (c.state in UNDERWAY or (c.state == "recovered" and desk.now_us - c.since_us < 7 * DAY))
        for n in c.plan.exclude
    }
