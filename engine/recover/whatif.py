"""What another policy would have advised, over what is recorded: the same decision on past attempts, everything else taken as favourable.

In: past attempts in order of their ends, two sets of rules. Out: one `Changed` per attempt whose advice differs, and sums. Always: the
decision itself is `planner.decide`. What logs do not tell is assumed, for both policies alike: every job consents, its state lets it be
requeued, mode act, partition allowed, we ourselves well, each job a user and a partition of its own.

GPU-hours are estimates from what really followed. A restart of a run whose next attempt passed the failing step saves the wait until somebody
started that attempt, less our own waits; one whose next attempt did not pass it costs that attempt's time. Where nothing followed, nothing is
counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from defib.engine.jobs import AttemptKey, ClusterFacts
from defib.engine.nodes import NOTHING
from defib.engine.recover import budgets
from defib.engine.recover.desk import Rules
from defib.engine.recover.inputs import SECOND, Inputs
from defib.engine.recover.planner import decide
from defib.engine.recover.words import Call, Case, Facts, Judged, Target, Vitals

CONSENT = '{"defib": {"restart": ["crash", "hang", "slow", "timeout"], "act_on_running": true}}'
STATES = {
    "time-limit": "TIMEOUT",
    "stalled": "RUNNING",
    "cancelled": "CANCELLED",
    "preempted": "PREEMPTED",
    "completed": "COMPLETED",
}


@dataclass(frozen=True, slots=True)
class Past:
    """An attempt as the history has it. step: the last it reached. next_*: the attempt of the same job that followed, None where none did.

    gpus: of the job, an estimate. healed: it was called hung and went on by itself; then ended_us is when it was called so.
    """

    attempt: str
    job: str
    index: int
    verdict: str
    klass: str
    fingerprint: str
    step: int | None
    begun_us: int
    ended_us: int
    next_begun_us: int | None = None
    next_ended_us: int | None = None
    next_step: int | None = None
    gpus: int = 1
    healed: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    """What a policy says: restart, with the wait until the call; or the gate that is closed."""

    restart: bool
    because: str
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Changed:
    """An attempt whose advice differs. gpu_h: GPU-hours that the new policy wins (or loses, below 0) by it, None where nothing can be said."""

    past: Past
    before: Advice
    after: Advice
    gpu_h: float | None


@dataclass(frozen=True, slots=True)
class Compared:
    """Sums over all attempts. alone_*: restarts of runs that went on by themselves."""

    attempts: int
    changed: tuple[Changed, ...]
    restarts_before: int
    restarts_after: int
    alone_before: int
    alone_after: int
    won_gpu_h: float
    lost_gpu_h: float
    unknown: int


def compare(past: Sequence[Past], before: Rules, after: Rules) -> Compared:
    """Both policies over the same past."""
    old, new = _advise(past, before), _advise(past, after)
    changed = tuple(
        Changed(p, a, b, _gain(p, a, b)) for p, a, b in zip(past, old, new, strict=True) if a.restart != b.restart
    )
    gains = [c.gpu_h for c in changed if c.gpu_h is not None]
    healed = [(a, b) for p, a, b in zip(past, old, new, strict=True) if p.healed]
    return Compared(
        len(past), changed, sum(a.restart for a in old), sum(b.restart for b in new),
        sum(a.restart for a, _ in healed), sum(b.restart for _, b in healed),
        sum(g for g in gains if g > 0), -sum(g for g in gains if g < 0), sum(c.gpu_h is None for c in changed),
    )  # fmt: skip


def _gain(p: Past, before: Advice, after: Advice) -> float | None:
    """GPU-hours won by the change."""
    acts = after if after.restart else before
    if p.healed:
        return None
    if p.next_begun_us is None:
        return None
    hours = p.gpus / 3600
    passed = p.step is not None and p.next_step is not None and p.next_step > p.step
    if passed:
        worth = max(0.0, (p.next_begun_us - p.ended_us) / SECOND - acts.wait_s) * hours
    elif p.next_ended_us is not None:
        worth = -((p.next_ended_us - p.next_begun_us) / SECOND) * hours
    else:
        return None
    return worth if after.restart else -worth


def _advise(past: Sequence[Past], rules: Rules) -> list[Advice]:
    """One policy's advice on every attempt, its own earlier restarts counted."""
    policy = dataclasses.replace(
        rules.policy, mode="act", allow=dataclasses.replace(rules.policy.allow, partitions=("*",), accounts=("*",))
    )
    rules = dataclasses.replace(rules, policy=policy)
    calls: dict[str, Call] = {}
    return [_one(p, past, rules, calls) for p in past]


def _one(p: Past, past: Iterable[Past], rules: Rules, calls: dict[str, Call]) -> Advice:
    policy, state = rules.policy, STATES.get(p.verdict, "FAILED")
    key = AttemptKey("past", 1, None, p.begun_us, p.index)
    target: Target = "running" if state == "RUNNING" else "terminal"
    wait = policy.confirm.hang_s if target == "running" else policy.confirm.settle_s
    now = p.ended_us + int(wait * SECOND)
    judged = Judged(
        now, key, "hung" if target == "running" else "dead", p.attempt, p.klass, fingerprint=p.fingerprint, step=p.step,
        sign="assumed", sign_us=now,
    )  # fmt: skip
    klass = rules.classes.get(p.klass, NOTHING)
    case = Case(
        p.attempt, key, p.job, "planned", now, now, judged, p.job, 1, "", p.job, klass.budget, p.gpus, 1,
        target=target, signs=policy.confirm.hang_looks, signed_us=p.ended_us, ended_us=p.ended_us, copied_us=now,
    )  # fmt: skip
    running = [o for o in past if o.begun_us <= p.ended_us < o.ended_us or o.attempt == p.attempt]
    inputs = _inputs(case, rules, now, p, state, calls, len(running), sum(o.gpus for o in running))
    decision = decide(inputs)
    if decision.plan is not None and decision.plan.due_us > now:
        inputs = _inputs(case, rules, decision.plan.due_us, p, state, calls, len(running), sum(o.gpus for o in running))
        decision = decide(inputs)
    if decision.refusal is not None:
        return Advice(False, f"{decision.refusal.name}: {decision.refusal.value}")
    wait_s = (inputs.now_us - p.ended_us) / SECOND
    passed = p.step is not None and p.next_step is not None and p.next_step > p.step
    killed = p.gpus * policy.budgets.running.loss_h * 3600 if target == "running" else 0.0
    calls[p.attempt] = Call(
        inputs.now_us, p.attempt, p.job, p.job, p.job, klass.budget, target, p.gpus, killed, p.fingerprint, p.step, "done",
        "recovered" if passed else "not-recovered",
    )  # fmt: skip
    return Advice(True, "all gates open", wait_s)


def _inputs(
    case: Case, rules: Rules, now: int, p: Past, state: str, calls: dict[str, Call], running: int, gpus: int
) -> Inputs:  # fmt: skip
    facts = Facts(
        case.attempt, state, now, user=p.job, uid=1, partition=p.job, exit_code=None if state == "RUNNING" else 1, exit_signal=0,
        node_count=1, gpus=p.gpus, requeue=True, batch=True, comment=CONSENT,
    )  # fmt: skip
    judged = dataclasses.replace(case.judged, at_us=now, sign_us=now)
    vitals = Vitals(now, False, now, 0.0, now, None, True, 1, 10, 0, 1, 0, (), False, (), True)
    return Inputs(
        now_us=now, final=True, attempt=case.attempt, lineage=case.lineage, target=case.target, policy=rules.policy,
        klass=rules.classes.get(p.klass, NOTHING), judged=judged, signs=case.signs, signed_us=p.ended_us, settled_us=p.ended_us,
        copied_us=now, found=(facts,), looked_us=now, cluster=ClusterFacts("past", requeue_delay_s=121.0), controller_us=0,
        vitals=vitals, epoch=1, tally=budgets.tally(calls.values(), case, now, running, gpus, True), breakers=(), others=(), approved="",
        approved_us=None, candidates=(), room=None,
    )  # fmt: skip
