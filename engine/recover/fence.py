"""How a call is aimed so that it can hit only the attempt that was judged.

In: facts of the job, of the cluster, the policy. Out: how to name the target, whether the window holds, keys, orders. Always: exactly one job or
task, never an array's parent.

Slurm's requeue has no precondition of its own: repeated after the next run has begun it kills that run, and a completed job it runs again. Two
things fence it. By SLUID (25.11 and newer) the name itself belongs to one run. Elsewhere by time: a job somebody else requeued meanwhile stays
pending for requeue_delay, and a pending job refuses the call; so a call that rests on a read of age g, killed after d, with slack for what
waits in the controller, is safe while g + d + slack < requeue_delay.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from defib.engine.jobs import AttemptKey, ClusterFacts
from defib.engine.policies import RecoveryPolicy
from defib.engine.recover.inputs import SECOND
from defib.engine.recover.words import SLUID, Facts, Order, Plan

By = Literal["id", "task", "sluid"]


def key_of(attempt: AttemptKey, step: Literal["mutate", "exclude", "release"]) -> str:
    """The key of one step of an attempt's one action, 32 hex digits. Slurm's own id of the run is left out: not every read tells it."""
    text = "|".join(
        map(str, (attempt.cluster, attempt.job_id, attempt.array_task, attempt.submit_us, attempt.restarts, step))
    )
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def named_by(facts: Facts, cluster: ClusterFacts | None) -> By:
    """How exactly this record is named in a command."""
    if cluster is not None and cluster.sluids and SLUID.fullmatch(facts.attempt.sluid or ""):
        return "sluid"
    return "task" if facts.attempt.array_task is not None else "id"


def window(by: By, cluster: ClusterFacts | None, policy: RecoveryPolicy) -> str:
    """Why the window is not known to hold; empty where it does."""
    if by == "sluid":
        return ""
    delay = cluster.requeue_delay_s if cluster is not None else None
    if delay is None:
        return "requeue delay unknown"
    late = policy.confirm.fresh_s + policy.call.kill_after_s + policy.call.slack_s
    if delay < policy.call.least_delay_s or late >= delay:
        return f"requeue delay {delay:g} s, at least {max(late, policy.call.least_delay_s):g} s needed"
    return ""


def mutating(
    plan: Plan, facts: Facts, policy: RecoveryPolicy, number: int, epoch: int, now_us: int, reissue: bool
) -> Order:
    """The order of the attempt's one call. Raises ValueError where the record is none that can be aimed at."""
    hold = plan.verb == "requeuehold"
    return _order(
        facts, key_of(facts.attempt, "mutate"), number, plan.verb, plan.by, plan.target, (), policy, epoch, reissue,
        now_us + int(policy.call.release_within_s * SECOND) if hold else None,
    )  # fmt: skip


def following(
    verb: Literal["exclude", "release"], attempt: AttemptKey, facts: Facts, nodes: tuple[str, ...], by: By,
    policy: RecoveryPolicy, number: int, epoch: int, again: bool,
) -> Order:  # fmt: skip
    """The order of a later step on the job that we hold. attempt: whose action it belongs to; facts: the held successor."""
    return _order(facts, key_of(attempt, verb), number, verb, by, "held", nodes, policy, epoch, again, None)


def _order(
    facts: Facts, key: str, number: int, verb: Literal["requeue", "requeuehold", "exclude", "release"], by: By,
    target: Literal["terminal", "running", "held"], nodes: tuple[str, ...], policy: RecoveryPolicy, epoch: int, reissue: bool,
    release_by_us: int | None,
) -> Order:  # fmt: skip
    key_ = facts.attempt
    job_id = key_.job_id
    if by == "task":
        if facts.array_job_id is None or key_.array_task is None:
            raise ValueError("a task without its array")
        job_id = facts.array_job_id
    return Order(
        key, number, verb, by, job_id, key_.array_task if by != "id" else None, key_.sluid if by == "sluid" else None,
        target == "running", key_, target, nodes, facts.begun_us,
        facts.begun_us + int(policy.confirm.fresh_s * SECOND), policy.call.kill_after_s, epoch, reissue, release_by_us,
    )  # fmt: skip
