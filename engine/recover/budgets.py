"""How often already: the calls of the recorded rows, added up for one case.

In: calls (one per case that made one), the case, a moment. Out: `Tally`. Always: counted anew from what was recorded, never kept in counters of
their own; a call whose order was shown not to have been run does not count.
"""

from __future__ import annotations

from collections.abc import Iterable

from defib.engine.recover.inputs import SECOND, Tally
from defib.engine.recover.words import UNDERWAY, Call, Case, Issued

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


GPUS_PER_NODE = 8  # where the scheduler does not tell how many a job has


def mutations(case: Case) -> list[Issued]:
    """The orders of the attempt's one call: one, or two where it was repeated; those that were never run are left out."""
    return [o for o in case.orders if o.order.verb in ("requeue", "requeuehold") and o.answer != "not-run"]


def gpus_of(case: Case) -> int:
    """GPUs of the job, an estimate by its nodes where they are not told."""
    return case.gpus if case.gpus is not None else GPUS_PER_NODE * (case.node_count or 1)


def call_of(case: Case, loss_h: float) -> Call | None:
    """The case as one call, if it made one. loss_h: hours of work that ending a run may throw away at most."""
    made = mutations(case)
    if not made:
        return None
    gpus = gpus_of(case)
    running = made[0].order.target == "running"
    killed = gpus * loss_h * 3600.0 if running else 0.0
    return Call(
        made[-1].at_us, case.id, case.lineage, case.user, case.partition, case.group, "running" if running else "terminal",
        gpus, killed, case.judged.fingerprint, case.judged.step, made[-1].answer or "", case.state, case.node_count or 0,
    )  # fmt: skip


def without_progress(calls: Iterable[Call], case: Case) -> list[Call]:
    """Calls of the case's lineage that have not led past the step where it had failed, newest recovery onwards."""
    mine = sorted((c for c in calls if c.lineage == case.lineage and c.case != case.id), key=lambda c: c.at_us)
    for i in range(len(mine) - 1, -1, -1):
        if mine[i].state == "recovered":
            mine = mine[i + 1 :]
            break
    step = case.judged.step
    return [c for c in mine if c.step is None or step is None or step <= c.step]


def tally(
    calls: Iterable[Call], case: Case, now_us: int, running_jobs: int | None, gpus_running: int | None, complete: bool
) -> Tally:
    """What was done so far, as it bears on this case."""
    every = list(calls)
    others = [c for c in every if c.case != case.id]
    day = [c for c in others if now_us - c.at_us < DAY]
    hour = [c for c in day if now_us - c.at_us < HOUR]
    barren = without_progress(others, case)
    mine = [c for c in others if c.lineage == case.lineage]
    active = [c for c in others if c.state in UNDERWAY]
    fingerprint, step = case.judged.fingerprint, case.judged.step
    return Tally(
        attempt=len(mutations(case)),
        lineage=len(barren),
        group=sum(c.group == case.group for c in barren),
        lineage_day=sum(c.lineage == case.lineage for c in day),
        lineage_all=len(mine),
        same_place=sum(bool(fingerprint) and c.fingerprint == fingerprint and step is not None and c.step == step for c in mine),
        last_us=max((c.at_us for c in mine), default=None),
        user_hour=sum(c.user == case.user for c in hour),
        user_day=sum(c.user == case.user for c in day),
        partition_hour=sum(c.partition == case.partition for c in hour),
        running_now=sum(c.target == "running" for c in active),
        running_day=sum(c.target == "running" for c in day),
        killed_gpu_s_day=float(sum(c.killed_gpu_s for c in day)),
        cluster_us=max((c.at_us for c in every), default=None),
        ten_minutes=sum(now_us - c.at_us < 10 * MINUTE for c in hour),
        hour=len(hour),
        under_action=len(active),
        gpus_under_action=sum(c.gpus for c in active),
        running_jobs=running_jobs,
        gpus_running=gpus_running,
        complete=complete,
    )  # fmt: skip
