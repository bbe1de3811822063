"""Everything a decision rests on, as one value that can be stored and decided again.

In, out: plain values. Always: small (no lists of the whole cluster, no paths, no log text beyond one sentence), so that every decision can be
kept with what it was made of.
"""

from __future__ import annotations

from dataclasses import dataclass

from defib.engine.jobs import AttemptKey, ClusterFacts, JobFacts
from defib.engine.policies import RecoveryPolicy
from defib.engine.recover.words import COMMENT_MAX, Breaker, Facts, Judged, Plan, Target, Vitals
from defib.engine.rulebook import FailureClass

REASON_MAX = 256
SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Tally:
    """Calls so far as they bear on one case (its own not counted). Windows are those of the policy's names.

    attempt: calls for this very attempt; lineage, group: without progress since, of all classes and of the budget group; lineage_all: ever;
    same_place: calls after the same cause at the same step. last_us: newest call of the lineage, cluster_us: of the cluster.
    under_action, running_jobs: jobs; gpus_*: GPUs. complete: False where history was forgotten that would count.
    """

    attempt: int = 0
    lineage: int = 0
    group: int = 0
    lineage_day: int = 0
    lineage_all: int = 0
    same_place: int = 0
    last_us: int | None = None
    user_hour: int = 0
    user_day: int = 0
    partition_hour: int = 0
    running_now: int = 0
    running_day: int = 0
    killed_gpu_s_day: float = 0.0
    cluster_us: int | None = None
    ten_minutes: int = 0
    hour: int = 0
    under_action: int = 0
    gpus_under_action: int = 0
    running_jobs: int | None = None
    gpus_running: int | None = None
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that the evidence would keep out, with the sentence that holds the numbers, and until when at the latest."""

    node: str
    because: str
    until_us: int | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """What a partition has: usable nodes in all; those of them that are named as candidate or excluded already; nodes in all; nodes that defib's own
    exclusions keep out there now. read_us: when nodes were read."""

    usable: int
    usable_named: tuple[str, ...]
    nodes: int
    out_by_us: tuple[str, ...] = ()
    read_us: int = 0


@dataclass(frozen=True, slots=True)
class Inputs:
    """What `planner.decide` is given.

    final: asked right before the call, so that reads have to be fresh. looked_us: when the scheduler's answer was asked for; found: every
    record the id resolved to. newest: the attempt's key as the newest read of any kind shows it. settled_us: since when the attempt is
    seen ended. others: what points at another requeuer. controller_us: when the controller was last seen started anew, by our clock.
    """

    now_us: int
    final: bool
    attempt: AttemptKey
    lineage: str
    target: Target
    policy: RecoveryPolicy
    klass: FailureClass
    judged: Judged
    signs: int
    signed_us: int
    settled_us: int | None
    copied_us: int | None
    found: tuple[Facts, ...]
    looked_us: int | None
    cluster: ClusterFacts | None
    controller_us: int | None
    vitals: Vitals | None
    epoch: int
    tally: Tally
    breakers: tuple[Breaker, ...]
    others: tuple[str, ...]
    approved: str
    approved_us: int | None
    candidates: tuple[Candidate, ...]
    room: Room | None
    reissue: bool = False
    moved: bool = False
    plan: Plan | None = None


def cut(facts: JobFacts, begun_us: int) -> Facts:
    """The part of a record that decides; what users wrote is bounded."""
    return Facts(
        facts.key, facts.state, begun_us, facts.flags, facts.reason[:REASON_MAX], facts.user, facts.uid, facts.account,
        facts.partition, facts.array_job_id, facts.array_pending, facts.het_offset, facts.het_job_id, facts.start_us, facts.end_us,
        facts.exit_code, facts.exit_signal, facts.nodes, facts.excluded, facts.required, facts.node_count, facts.gpus, facts.held,
        facts.requeue, facts.batch, _text(facts.comment[: COMMENT_MAX + 1]),
    )  # fmt: skip


def _text(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def same(a: AttemptKey, b: AttemptKey) -> bool:
    """One and the same run. Slurm's own id of a run decides along where both are known."""
    fences = (a.cluster, a.job_id, a.array_task, a.submit_us, a.restarts) == (
        b.cluster, b.job_id, b.array_task, b.submit_us, b.restarts,
    )  # fmt: skip
    return fences and (a.sluid is None or b.sluid is None or a.sluid == b.sluid)


def line(key: AttemptKey) -> tuple[str, int, int | None]:
    """What stays the same over the attempts of a job: cluster, job id, array task."""
    return key.cluster, key.job_id, key.array_task
