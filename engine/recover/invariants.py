"""What may never be seen in the rows of recovery, whatever fails: checked after every step of a simulation, and in production (what is broken
disarms).

In: rows in their order, with what their decisions were made of. Out: one sentence per broken invariant, named as in the design. Always: an account
of its own: it reads the stored facts and counts by itself, and asks neither the gates nor the machine.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from dataclasses import dataclass, field

from defib.engine.jobs import AttemptKey, ClusterFacts
from defib.engine.policies import RecoveryPolicy
from defib.engine.recover import codec
from defib.engine.recover.inputs import SECOND, Inputs
from defib.engine.recover.planner import decide
from defib.engine.recover.words import FINAL, Breaker, Case, Facts, Issued, Row

MUTATING = ("requeue", "requeuehold")
ENDS = ("FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "TIMEOUT")
STATES_MAX = 100_000
HOUR, DAY = 3600 * SECOND, 86400 * SECOND
PATH: dict[str, frozenset[str]] = {
    "": frozenset(["suspect"]),
    "suspect": frozenset(["confirmed", "cleared", "refused", "suspect"]),
    "confirmed": frozenset(["planned", "refused", "cleared", "suspect"]),
    "planned": frozenset(["authorised", "refused", "cleared", "expired", "suspect", "human"]),
    "authorised": frozenset(["issued", "planned"]),
    "issued": frozenset(
        ["accepted", "rejected", "unknown", "satisfied-by-other", "not-done", "expired", "planned", "human", "stranded"]
    ),
    "unknown": frozenset(["accepted", "satisfied-by-other", "not-done", "human", "rejected", "stranded"]),
    "not-done": frozenset(["planned", "human", "cleared"]),
    "accepted": frozenset(["started", "stranded", "cleared", "satisfied-by-other", "not-recovered", "human"]),
    "started": frozenset(["recovered", "not-recovered", "cleared", "human"]),
}


@dataclass(frozen=True, slots=True)
class Sent:
    """A mutating call as this account keeps it."""

    at_us: int
    case: str
    lineage: str
    user: str
    partition: str
    running: bool
    gpu_s: float
    step: int | None
    number: int
    reissue: bool


@dataclass(slots=True)
class Auditor:
    """A fold over rows: `take` gives what the row breaks, nothing for a sound one."""

    seq: int = 0
    epoch: int = 0
    at_us: int = 0
    states: dict[str, str] = field(default_factory=dict)
    keys: dict[str, list[Issued]] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    not_run: set[int] = field(default_factory=set)
    moved: dict[tuple[str, int, int | None], AttemptKey] = field(default_factory=dict)
    suspected: deque[tuple[int, str, str]] = field(default_factory=lambda: deque(maxlen=1000))
    recovered: dict[str, int] = field(default_factory=dict)
    breakers: dict[str, Breaker] = field(default_factory=dict)
    cluster: ClusterFacts | None = None
    last_inputs: dict[str, str] = field(default_factory=dict)

    def take(self, row: Row) -> list[str]:
        """What this row breaks."""
        out: list[str] = []
        if row.seq != self.seq + 1:
            out.append(f"I18: row {row.seq} follows {self.seq}")
        if row.epoch < self.epoch:
            out.append(f"I21: epoch {row.epoch} after {self.epoch}")
        if row.at_us < self.at_us:
            out.append("I27: the observer's clock ran backwards")
        self.seq, self.epoch, self.at_us = row.seq, max(self.epoch, row.epoch), row.at_us
        if row.breaker is not None:
            self.breakers[row.breaker.name] = row.breaker
        if row.case is not None:
            out += self._case(row, row.case)
        return out

    def _case(self, row: Row, case: Case) -> list[str]:
        was = self.states.get(case.id, "")
        out = [] if row.before == was else [f"I18: case {case.id} was {was}, the row says {row.before}"]
        if row.after != row.before and row.after not in PATH.get(row.before, frozenset()):
            out.append(f"I18: no way leads from {row.before} to {row.after}")
        if not was:
            out += _inherits(case)
            self.suspected.append((row.at_us, case.lineage, case.user))
        if case.judged.attempt.restarts != case.attempt.restarts or case.judged.attempt.job_id != case.attempt.job_id:
            out.append("I12: a verdict about another run")
        self.states[case.id] = row.after
        if row.inputs:
            self.last_inputs[case.id] = row.inputs
        self.not_run |= {o.order.number for o in case.orders if o.answer == "not-run"}
        if row.after == "recovered":
            self.recovered[case.lineage] = row.at_us
        if case.next is not None and row.after != row.before:
            self.moved[(case.attempt.cluster, case.attempt.job_id, case.attempt.array_task)] = case.next
        new = [o for o in case.orders if o.at_us == row.at_us and o.answer is None]
        known = self.keys.setdefault(case.id, [])
        for issued in new:
            if issued.order.number not in {k.order.number for k in known}:
                out += self._issued(row, case, issued, known)
                known.append(issued)
        if row.after in FINAL:
            self._forget(case.id)
        elif row.after != "issued" and len(known) != len({o.order.number for o in case.orders}):
            out.append("I2: an order without its row")
        return out

    def _forget(self, case: str) -> None:
        """A closed case takes no order any more; its state is kept for a while to see that."""
        self.keys.pop(case, None)
        self.last_inputs.pop(case, None)
        while len(self.states) > STATES_MAX:
            del self.states[next(iter(self.states))]

    # --- one order ------------------------------------------------------------------------------------------------------------------

    def _issued(self, row: Row, case: Case, issued: Issued, known: list[Issued]) -> list[str]:
        order = issued.order
        out: list[str] = []
        if order.epoch != self.epoch:
            out.append(f"I21: an order of epoch {order.epoch} in epoch {self.epoch}")
        if not 0 <= row.at_us - order.read_us <= 2 * SECOND or order.not_after_us - order.read_us > 2 * SECOND:
            out.append("I3: the read that the call rests on is old")
        if order.verb not in MUTATING:
            held = case.next
            if held is None or (order.expected.job_id, order.expected.restarts) != (held.job_id, held.restarts):
                out.append("I3: a later step on a run that is not the held one")
            if sum(k.order.verb == order.verb for k in known) >= (10 if order.verb == "release" else 2):
                out.append(f"I1: too many orders to {order.verb}")
            return out
        out += self._once(case, issued, known)
        text = self.last_inputs.get(case.id, "")
        if not text:
            return [*out, "I2: a call without a stored decision"]
        i = codec.load(Inputs, text)
        out += _decision(i, case)
        out += self._target(i, case, issued)
        out += self._windows(row, i, case, issued)
        return out

    def _once(self, case: Case, issued: Issued, known: list[Issued]) -> list[str]:
        earlier = [k for k in known if k.order.verb in MUTATING and k.order.number not in self.not_run]
        if not earlier:
            return []
        if len(earlier) > 1 or not issued.order.reissue or issued.order.target != "terminal":
            return [f"I1: call number {len(earlier) + 1} for one run"]
        return []

    def _target(self, i: Inputs, case: Case, issued: Issued) -> list[str]:
        order = issued.order
        out = single(i, case)
        if out:
            return out
        f = i.found[0]
        out = fenced(i, f, issued) + harmless(f, issued) + consented(i, f, case)
        if not {"*", f.partition} & set(i.policy.allow.partitions) or not {"*", f.account} & set(
            i.policy.allow.accounts
        ):
            out.append("I10: a partition or account that is not on the list")
        if order.target == "terminal" and (
            i.settled_us is None or i.now_us - i.settled_us < i.policy.confirm.settle_s * SECOND
        ):
            out.append("I4: an end that has not settled")
        after = self.moved.get((case.attempt.cluster, case.attempt.job_id, case.attempt.array_task))
        if after is not None and after.restarts > case.attempt.restarts and after.submit_us >= case.attempt.submit_us:
            out.append("I8: a call for a run that was seen to be over")
        if order.target == "running" and not (order.incomplete and i.judged.sign and i.policy.act_on_running):
            out.append("I5: a run that holds its nodes without option, sign or policy")
        if i.judged.kind in ("hung", "slow") and not i.judged.seeing:
            out.append("I11: a hang where a log could not be seen")
        return out

    def _windows(self, row: Row, i: Inputs, case: Case, issued: Issued) -> list[str]:
        out: list[str] = []
        v, p = i.vitals, i.policy
        if v is None or v.killed is not False:
            out.append("I10: the kill switch was there, or unknown")
        if p.mode == "observe" or (
            p.mode == "approve" and (not case.approved or case.plan is None or case.approved != case.plan.digest)
        ):
            out.append(f"I10: a call in mode {p.mode}")
        open_ = [
            b.name for b in self.breakers.values() if b.state == "open" and b.name.partition(":")[2] in ("", case.user)
        ]
        if open_:
            out.append(f"I10: a call while the breaker {open_[0]} is open")
        if self._many(row, p):
            out.append("I10: many jobs are in trouble at once, and no breaker is open")
        out += self._budgets(row, p, case, issued)
        used = sum(s.lineage == case.lineage for s in self.sent)
        if used > (granted := _granted(i)):
            out.append(f"I7: {used} restarts, the owner allowed {granted}")
        return out

    def _many(self, row: Row, p: RecoveryPolicy) -> bool:
        """What the breaker for correlated failures has to see, counted anew since it was last let go."""
        b = self.breakers.get("correlated")
        after = max(row.at_us - int(p.breakers.correlated_within_s * SECOND), b.since_us if b is not None else 0)
        recent = [s for s in self.suspected if s[0] > after]
        jobs, users = len({s[1] for s in recent}), len({s[2] for s in recent})
        return jobs >= p.breakers.correlated_lineages and users >= p.breakers.correlated_users

    def _budgets(self, row: Row, p: RecoveryPolicy, case: Case, issued: Issued) -> list[str]:
        b = p.budgets
        running = issued.order.target == "running"
        gpus = case.gpus if case.gpus is not None else 8 * (case.node_count or 1)
        sent = Sent(
            row.at_us, case.id, case.lineage, case.user, case.partition, running, gpus * b.running.loss_h * 3600.0 if running else 0.0,
            case.judged.step, issued.order.number, issued.order.reissue,
        )  # fmt: skip
        self.sent = [
            s
            for s in self.sent
            if row.at_us - s.at_us < 30 * DAY and s.number not in self.not_run and s.case != case.id
        ]
        self.sent.append(sent)
        day = [s for s in self.sent if row.at_us - s.at_us < DAY]
        hour = [s for s in day if row.at_us - s.at_us < HOUR]
        barren = [
            s
            for s in self.sent
            if s.lineage == case.lineage
            and s.at_us > self.recovered.get(case.lineage, -1)
            and (s.step is None or sent.step is None or sent.step <= s.step)
        ]
        counts = {
            "user in an hour": (sum(s.user == case.user for s in hour), b.user_per_hour),
            "user in a day": (sum(s.user == case.user for s in day), b.user_per_day),
            "partition in an hour": (sum(s.partition == case.partition for s in hour), b.partition_per_hour),
            "job in a day": (sum(s.lineage == case.lineage for s in day), b.lineage.per_day),
            "job without progress": (len(barren), b.lineage.without_progress),
            "ten minutes": (sum(row.at_us - s.at_us < 600 * SECOND for s in hour), p.rate.per_ten_minutes),
            "runs in a day": (sum(s.running for s in day), b.running.per_day if running else 10**9),
        }
        out = [f"I9: {n} calls, {limit} allowed: {what}" for what, (n, limit) in counts.items() if n > limit]
        if len(self.sent) > 1 and row.at_us - self.sent[-2].at_us < p.rate.gap_s * SECOND:
            out.append("I9: two calls too close together")
        if running and sum(s.gpu_s for s in day) > b.running.killed_gpu_hours_per_day * 3600:
            out.append("I29: more GPU-hours ended in a day than allowed")
        return out


# --- predicates on stored facts -----------------------------------------------------------------------------------------------------


def _inherits(case: Case) -> list[str]:
    """A case begins with nothing of an earlier attempt."""
    clean = (
        not case.orders
        and case.copied_us is None
        and not case.approved
        and case.plan is None
        and case.signs == 1
        and case.next is None
    )
    return [] if clean and not case.unmoved and case.reached is None else ["I28: a case that does not begin anew"]


def _decision(i: Inputs, case: Case) -> list[str]:
    """The stored inputs give the same plan again, and in every mode."""
    out = []
    first = decide(i)
    if first != decide(i) or first.plan is None or case.plan is None or first.plan.digest != case.plan.digest:
        out.append("I19: the stored inputs do not give the plan that was carried out")
    for mode in ("observe", "approve", "act"):
        other = decide(dataclasses.replace(i, policy=dataclasses.replace(i.policy, mode=mode)))
        if other.plan != first.plan or other.would != first.would:
            out.append(f"I19: another plan in mode {mode}")
    return out


def single(i: Inputs, case: Case) -> list[str]:
    """Exactly one record, the scheduler's own, no array's parent, no later part of a heterogeneous job."""
    if len(i.found) != 1:
        return [f"I6: the id names {len(i.found)} records"]
    f = i.found[0]
    if (
        f.array_pending
        or (f.array_job_id is not None and f.attempt.array_task is None)
        or f.het_offset not in (None, 0)
    ):
        return ["I6: an array's parent or a later part of a heterogeneous job"]
    if f.attempt.job_id != case.attempt.job_id:
        return ["I13: an id that the scheduler did not give for this"]
    return []


def fenced(i: Inputs, f: Facts, issued: Issued) -> list[str]:
    """The identity is the one judged, read just now, and a late call cannot hit a later run."""
    out = []
    o, a = issued.order, i.attempt
    if (f.attempt.submit_us, f.attempt.restarts, f.attempt.array_task) != (a.submit_us, a.restarts, a.array_task):
        out.append("I3: the read shows another run")
    if f.begun_us != o.read_us or issued.at_us - f.begun_us > 2 * SECOND:
        out.append("I3: the identity was not read just before the call")
    late = 2 + o.kill_after_s + i.policy.call.slack_s
    if o.by != "sluid" and not (i.cluster is not None and (i.cluster.requeue_delay_s or 0) > late):
        out.append("I3: no window in which the call is safe")
    if o.by == "sluid" and o.sluid != f.attempt.sluid:
        out.append("I3: another run's id")
    if f.attempt.array_task is not None and o.by == "id":
        out.append("I6: a task named by the id of its array")
    return out


def harmless(f: Facts, issued: Issued) -> list[str]:
    """Only ends that may be followed by a restart, or a run; nothing suspended, ending, held, or cancelled by a person."""
    out = []
    if f.flags or f.held or f.requeue is not True or f.batch is not True:
        out.append("I4: held, ending, suspended, or not to be requeued")
    if f.state not in (ENDS if issued.order.target == "terminal" else ("RUNNING",)):
        out.append(f"I4: a call on state {f.state}")
    if f.state == "FAILED" and ((f.exit_code == 0 and not f.exit_signal) or f.exit_code == 93):
        out.append(f"I4: a call after exit code {f.exit_code}")
    return out


def consented(i: Inputs, f: Facts, case: Case) -> list[str]:
    """The comment of that very read grants this, by a reading of its own."""
    try:
        granted = json.loads(f.comment)["defib"]
        kinds = set(granted["restart"])
    except (ValueError, KeyError, TypeError):
        return ["I7: no consent in the read that the call rests on"]
    if case.target == "terminal":
        kind = "timeout" if f.state == "TIMEOUT" else "crash"
    else:
        kind = "slow" if i.judged.kind == "slow" else "hang"
    if kind not in kinds or (case.target == "running" and granted.get("act_on_running") is not True):
        return [f"I7: no consent for {kind}"]
    return []


def _granted(i: Inputs) -> int:
    """Restarts that the owner allows, as far as the comment can be read."""
    try:
        return int(json.loads(i.found[0].comment)["defib"].get("max_restarts", 10**9))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return 0


def settled(effects_again: list[object]) -> list[str]:
    """I20: after a second pass over unchanged facts."""
    return [f"I20: a second pass made {len(effects_again)} effects"] if effects_again else []


def narrower(faulty: set[str], free: set[str]) -> list[str]:
    """I30: with a fault nothing is done that would not have been done without it. Names of what is done."""
    more = faulty - free
    return [f"I30: a fault led to {', '.join(sorted(more))}"] if more else []
