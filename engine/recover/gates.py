"""The seventeen gates between a plan and a call. All have to be open; the first closed one is named.

In: `Inputs` and the plan made of them. Out: one `Reading` per gate: open or closed, the value read, when it was read. Always: a gate
that cannot read its value is closed, whatever went wrong; gates only say, they change nothing and know no order of a command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from defib.engine.recover import consent, fence
from defib.engine.recover.inputs import SECOND, Inputs, same
from defib.engine.recover.words import Facts, Plan

# Ends that may be followed by a restart. CANCELLED, PREEMPTED, DEADLINE and COMPLETED are somebody's wish or nobody's trouble.
RESTARTABLE = frozenset(["FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "TIMEOUT"])


@dataclass(frozen=True, slots=True)
class Reading:
    """One gate as it stood. value: what was read, in words; read_us: when, None where it could not be read."""

    gate: int
    name: str
    open: bool
    value: str
    read_us: int | None


Told = tuple[bool, str, int | None]  # (open, value, read_us) as a gate's function gives it


def read(inputs: Inputs, plan: Plan | None) -> tuple[Reading, ...]:
    """Every gate in order."""
    return tuple(_read(number, name, gate, inputs, plan) for number, (name, gate) in enumerate(GATES, 1))


def _read(
    number: int, name: str, gate: Callable[[Inputs, Plan | None], Told], inputs: Inputs, plan: Plan | None
) -> Reading:
    try:
        opened, value, read_us = gate(inputs, plan)
    except Exception as e:  # a value of an unforeseen kind must close the gate, not stop the loop
        return Reading(number, name, False, f"could not be read: {type(e).__name__}", None)
    return Reading(number, name, opened is True and read_us is not None, value, read_us)


def kind_of(i: Inputs) -> str:
    """The kind of trouble as consent names it. Of an attempt that has ended it is never more than a crash or a time limit."""
    if i.target == "terminal":
        return "timeout" if i.found and i.found[0].state == "TIMEOUT" else "crash"
    return "slow" if i.judged.kind == "slow" else "hang"


# --- 1 to 5: may anything be done now -----------------------------------------------------------------------------------------------


def _mode(i: Inputs, plan: Plan | None) -> Told:
    if i.policy.mode == "act":
        return True, "act", i.now_us
    if i.policy.mode == "observe":
        return False, "observe", i.now_us
    if plan is None or not i.approved or i.approved_us is None:
        return False, "approve, and nobody has approved", i.now_us
    if i.approved != plan.digest:
        return False, "approve, and what was approved was another plan", i.approved_us
    age = (i.now_us - i.approved_us) / SECOND
    return age <= i.policy.call.approval_valid_s, f"approved {age:.0f} s ago", i.approved_us


def _kill_switch(i: Inputs, plan: Plan | None) -> Told:
    v = i.vitals
    if v is None or v.killed is None:
        return False, "it is not known whether the kill switch is there", None
    return not v.killed, "present" if v.killed else "absent", v.at_us


def _dead_man(i: Inputs, plan: Plan | None) -> Told:
    v, p = i.vitals, i.policy.vitals
    if v is None:
        return False, "nothing is known of our own state", None
    told = (i.now_us - v.at_us) / SECOND
    if told > p.told_s:
        return False, f"our own state was told {told:.0f} s ago", v.at_us
    if v.canary_us is None or i.now_us - v.canary_us > p.canary_s * SECOND:
        return False, "no self-test has passed lately", v.at_us
    if v.lag_s is None or v.lag_s > p.lag_s:
        return False, f"the loop lags by {v.lag_s} s", v.at_us
    if v.committed_us is None or i.now_us - v.committed_us > p.commit_s * SECOND:
        return False, "nothing was made durable lately", v.at_us
    if v.stepped_us is not None and i.now_us - v.stepped_us < p.step_quiet_s * SECOND:
        return False, f"the clock jumped {(i.now_us - v.stepped_us) / SECOND:.0f} s ago", v.at_us
    return True, f"self-test {(i.now_us - v.canary_us) / SECOND:.0f} s ago, lag {v.lag_s:g} s", v.at_us


def _lock(i: Inputs, plan: Plan | None) -> Told:
    v = i.vitals
    if v is None or not v.locked:
        return False, "we do not hold the cluster's lock", None if v is None else v.at_us
    return v.newest_epoch == i.epoch, f"epoch {i.epoch}, newest {v.newest_epoch}", v.at_us


def _controller(i: Inputs, plan: Plan | None) -> Told:
    v, p, c = i.vitals, i.policy.vitals, i.cluster
    if c is None or v is None:
        return False, "the cluster's settings are unknown", None
    if i.controller_us is None or i.now_us - i.controller_us < p.controller_quiet_s * SECOND:
        return False, "the controller started, or was first seen, lately", i.controller_us
    if v.pings is None or v.pings < p.pings:
        return False, f"{v.pings} good pings in a row, {p.pings} needed", v.at_us
    if v.backlog is None or v.backlog > p.backlog:
        return False, f"{v.backlog} requests wait in the controller", v.at_us
    return True, f"{v.pings} good pings, {v.backlog} requests waiting", v.at_us


# --- 6 to 12: may it be done to this job --------------------------------------------------------------------------------------------


def _one(i: Inputs) -> Facts:
    """The one record. Raises ValueError where there is none or are several."""
    (found,) = i.found
    return found


def _allowed(i: Inputs, plan: Plan | None) -> Told:
    f, allow, kind = _one(i), i.policy.allow, kind_of(i)
    for what, name, names in (("partition", f.partition, allow.partitions), ("account", f.account, allow.accounts)):
        if "*" not in names and (not name or name not in names):
            return False, f"{what} {name or 'unknown'} is not on the list", f.begun_us
    if i.target == "running" and not i.policy.act_on_running:
        return False, "the site does not act on runs that hold their nodes", f.begun_us
    if kind == "slow" and not i.policy.act_on_slow:
        return False, "the site does not act on slow runs", f.begun_us
    if kind == "timeout" and not i.policy.act_on_timeout:
        return False, "the site does not act on time limits", f.begun_us
    return True, f"partition {f.partition}, {kind}", f.begun_us


def _consent(i: Inputs, plan: Plan | None) -> Told:
    f, kind = _one(i), kind_of(i)
    if f.uid is None:
        return False, "the job's owner is unknown", None
    try:
        c = consent.parse(f.comment)
    except consent.ConsentError as e:
        return False, f"none: {e.why}", f.begun_us
    if kind not in c.restart:
        return False, f"not for {kind}, only for {', '.join(sorted(c.restart))}", f.begun_us
    if i.target == "running" and not c.act_on_running:
        return False, "not while the run holds its nodes", f.begun_us
    if c.max_restarts is not None and i.tally.lineage_all >= c.max_restarts:
        return False, f"{i.tally.lineage_all} of {c.max_restarts} restarts used", f.begun_us
    if plan is not None and plan.exclude and not c.exclude_nodes:
        return False, "not with nodes kept out", f.begun_us
    return _fresh(i, f, f"given for {kind}")


def _fresh(i: Inputs, f: Facts, value: str) -> Told:
    age = (i.now_us - f.begun_us) / SECOND
    if i.final and not 0 <= age <= i.policy.confirm.fresh_s:
        return False, f"{value}, but read {age:.1f} s ago", f.begun_us
    return True, value, f.begun_us


def _identity(i: Inputs, plan: Plan | None) -> Told:
    if len(i.found) != 1:
        return False, f"the id names {len(i.found)} records", i.looked_us
    f = _one(i)
    if i.moved or not same(f.attempt, i.attempt):
        return False, f"it is another run by now: restarts {f.attempt.restarts}, was {i.attempt.restarts}", f.begun_us
    if f.array_pending or (f.array_job_id is not None and f.attempt.array_task is None):
        return False, "it stands for tasks of an array that are not split off", f.begun_us
    if f.het_offset not in (None, 0):
        return False, "it is not the leader of its heterogeneous job", f.begun_us
    if f.requeue is not True or f.batch is not True:
        return False, f"requeue {f.requeue}, batch {f.batch}", f.begun_us
    if f.held or f.flags:
        return False, f"{'held ' if f.held else ''}{', '.join(sorted(f.flags))}".strip(), f.begun_us
    wanted = RESTARTABLE if i.target == "terminal" else frozenset(["RUNNING"])
    if f.state not in wanted:
        return False, f"state {f.state}", f.begun_us
    if plan is None:
        return False, "no plan could be made of it", f.begun_us
    late = fence.window(plan.by, i.cluster, i.policy)
    if late:
        return False, late, f.begun_us
    return _fresh(i, f, f"{f.state}, restarts {f.attempt.restarts}, by {plan.by}")


def _end(i: Inputs, plan: Plan | None) -> Told:
    f = _one(i)
    if i.target == "running":
        return True, "it has not ended", f.begun_us
    if i.klass.id in ("cancelled", "preempted", "requeued"):
        return False, f"the log tells of class {i.klass.id}", f.begun_us
    code, signal = f.exit_code, f.exit_signal
    if f.state == "FAILED" and code is None:
        return False, "the exit code is unknown", None
    if code is not None and code != 0 and code in i.policy.refuse_exit_codes:
        return False, f"exit code {code} asks not to be restarted", f.begun_us
    if f.state == "FAILED" and code == 0 and not signal and 0 in i.policy.refuse_exit_codes:
        return False, "exit code 0", f.begun_us
    if i.cluster is None:
        return False, "it is not known which exit codes Slurm requeues itself", None
    if code is not None and code in i.cluster.requeue_exits | i.cluster.requeue_hold_exits:
        return False, f"Slurm itself requeues exit code {code}", f.begun_us
    return True, f"{f.state}, exit code {code}:{signal}", f.begun_us


def _others(i: Inputs, plan: Plan | None) -> Told:
    f = _one(i)
    if i.others:
        return False, i.others[0], f.begun_us
    if i.target == "terminal":
        if i.settled_us is None:
            return False, "it is not known since when it has ended", None
        age = (i.now_us - i.settled_us) / SECOND
        if age < i.policy.confirm.settle_s:
            return False, f"ended {age:.0f} s ago; Slurm or its owner may restart it yet", f.begun_us
    return True, "nobody else restarts it", f.begun_us


def _evidence(i: Inputs, plan: Plan | None) -> Told:
    j, f = i.judged, _one(i)
    if not same(j.attempt, i.attempt):
        return False, "the verdict is about another run", j.at_us
    if i.copied_us is None:
        return False, "the evidence is not kept apart yet", None
    if not j.seeing:
        return False, "a log of it cannot be vouched for", j.at_us
    if i.vitals is None or i.vitals.full is not False:
        return False, "a file system is full, or it is not known", None
    if i.target == "running":
        age = (i.now_us - j.at_us) / SECOND
        if age > 3 * i.policy.call.retry_s:
            return False, f"the verdict was told {age:.0f} s ago", j.at_us
        if i.signs < i.policy.confirm.hang_looks:
            return False, f"{i.signs} observations, {i.policy.confirm.hang_looks} needed", j.at_us
        if i.now_us - i.signed_us < i.policy.confirm.hang_s * SECOND:
            return False, "not long enough", j.at_us
    return True, f"kept apart; read at {f.begun_us}", i.copied_us


def _independent(i: Inputs, plan: Plan | None) -> Told:
    f, j = _one(i), i.judged
    if i.target == "terminal":
        return f.state in RESTARTABLE, f"the scheduler says {f.state}", f.begun_us
    if not j.sign or j.sign_us is None:
        return False, "nothing but the log says so", None
    age = (i.now_us - j.sign_us) / SECOND
    return 0 <= age <= i.policy.confirm.sign_age_s, f"{j.sign} {age:.0f} s ago", j.sign_us


# --- 13 to 17: how often, and is it a good moment -----------------------------------------------------------------------------------


def class_limit(i: Inputs) -> int:
    """Calls without progress that this class may have."""
    group = i.policy.budgets.groups.get(i.klass.budget, 0)  # type: ignore[call-overload]  # its keys are words
    return {"yes": int(group), "once": min(1, int(group))}.get(i.klass.retry, 0)


def _budget(i: Inputs, plan: Plan | None) -> Told:
    t, b = i.tally, i.policy.budgets
    if not t.complete:
        return False, "not all that was done is remembered", None
    if t.attempt > (1 if i.reissue and i.target == "terminal" else 0):
        return False, f"{t.attempt} calls for this very run", i.now_us
    if class_limit(i) == 0:
        return False, f"class {i.klass.id} is not restarted", i.now_us
    if t.same_place:
        return False, f"the same cause at the same step {i.judged.step} as before the last restart", i.now_us
    limits: tuple[tuple[int, int, str], ...] = (
        (t.group, class_limit(i), f"of class {i.klass.id} without progress"),
        (t.lineage, b.lineage.without_progress, "for this job without progress"),
        (t.lineage_day, b.lineage.per_day, "for this job in 24 h"),
        (t.user_hour, b.user_per_hour, "for this user in an hour"),
        (t.user_day, b.user_per_day, "for this user in 24 h"),
        (t.partition_hour, b.partition_per_hour, "in this partition in an hour"),
    )
    if i.target == "running":
        hours = (t.killed_gpu_s_day + _loss(i)) / 3600
        if hours > b.running.killed_gpu_hours_per_day:
            return False, f"{hours:.0f} GPU-hours of runs ended in 24 h", i.now_us
        limits += (
            (t.running_now, b.running.at_once, "on runs at once"),
            (t.running_day, b.running.per_day, "on runs in 24 h"),
        )
    for used, limit, what in limits:
        if used >= limit:
            return False, f"{used} of {limit} calls {what}", i.now_us
    return True, f"{t.lineage} of {b.lineage.without_progress} without progress", i.now_us


def _loss(i: Inputs) -> float:
    f = _one(i)
    gpus = f.gpus if f.gpus is not None else 8 * (f.node_count or 1)
    return gpus * i.policy.budgets.running.loss_h * 3600


def _rate(i: Inputs, plan: Plan | None) -> Told:
    t, r = i.tally, i.policy.rate
    if plan is None or plan.due_us > i.now_us:
        wait = "no plan" if plan is None else f"it waits another {(plan.due_us - i.now_us) / SECOND:.0f} s"
        return False, wait, i.now_us
    if t.cluster_us is not None and i.now_us - t.cluster_us < r.gap_s * SECOND:
        return False, f"a call {(i.now_us - t.cluster_us) / SECOND:.0f} s ago", i.now_us
    if t.ten_minutes >= r.per_ten_minutes:
        return False, f"{t.ten_minutes} calls in ten minutes", i.now_us
    if t.running_jobs is None or t.gpus_running is None:
        return False, "it is not known how many jobs run", None
    if t.hour >= max(1, int(r.share_per_hour * t.running_jobs)):
        return False, f"{t.hour} calls in an hour, {t.running_jobs} jobs run", i.now_us
    f = _one(i)
    gpus = f.gpus if f.gpus is not None else 8 * (f.node_count or 1)
    if t.under_action and t.gpus_under_action + gpus > r.share_at_once * max(t.gpus_running, gpus):
        return False, f"{t.under_action} jobs are being restarted", i.now_us
    return True, f"{t.hour} calls in an hour", i.now_us


def _breakers(i: Inputs, plan: Plan | None) -> Told:
    shut = [b for b in i.breakers if b.state == "open" or (b.state == "half-open" and b.trial)]
    if shut:
        return False, f"{shut[0].name}: {shut[0].because}", shut[0].since_us
    tried = [b for b in i.breakers if b.state == "half-open"]
    return True, f"{tried[0].name} lets one call try" if tried else "all closed", i.now_us


def _maintenance(i: Inputs, plan: Plan | None) -> Told:
    v = i.vitals
    if v is None:
        return False, "it is not known whether there is maintenance", None
    inside = any(begin <= i.now_us < end for begin, end in v.maintenance)
    return not inside, "inside a maintenance window" if inside else "none", v.at_us


def _caught_up(i: Inputs, plan: Plan | None) -> Told:
    v = i.vitals
    if v is None or v.caught_up is not True:
        return False, "what lay before our start is not all read", None if v is None else v.at_us
    return (
        i.judged.drained,
        "its logs are read to their ends" if i.judged.drained else "its logs are not read to their ends",
        v.at_us,
    )


GATES: tuple[tuple[str, Callable[[Inputs, Plan | None], Told]], ...] = (
    ("mode", _mode),
    ("kill-switch", _kill_switch),
    ("dead-man", _dead_man),
    ("lock", _lock),
    ("controller", _controller),
    ("allow-list", _allowed),
    ("consent", _consent),
    ("identity", _identity),
    ("end", _end),
    ("other-requeuer", _others),
    ("evidence", _evidence),
    ("independent-sign", _independent),
    ("budget", _budget),
    ("rate", _rate),
    ("breakers", _breakers),
    ("maintenance", _maintenance),
    ("caught-up", _caught_up),
)
