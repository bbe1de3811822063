"""The shapes of policy files (rules/policy/*.yaml): the numbers by which defib judges, as frozen dataclasses.

A policy file is told by its key `policy:`, whose value is the name here in `POLICIES`. The annotated bounds are checked where the file is
read (`policyfiles`); there are no defaults in code: a number that decides stands in the file, with its reason beside it.
A shape holds numbers, words, mappings of them, and further shapes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

from annotated_types import Ge, Gt, Le, MinLen

Share = Annotated[float, Ge(0), Le(1)]
Positive = Annotated[float, Gt(0), Le(1e9)]  # 1e9 seconds are 31 years
Count = Annotated[int, Ge(1), Le(1_000_000_000)]
Stance = Literal[
    "at-once", "on-repeat", "if-one-node", "peer-on-repeat"
]  # `exclude` of classes.yaml that may keep a node out
Source = Literal["cause", "scheduler", "silent-rank", "behind-rank", "peer", "printer"]
Fault = Literal["user", "data", "framework", "gpu", "node", "network", "storage", "scheduler", "unknown"]

BudgetGroup = Literal["hardware", "distributed", "start-up", "storage", "user", "numerics", "chain", "none"]


class Policy:
    """Base of every shape: a misspelt key and a number that is none are faults."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}


P = TypeVar("P", bound=Policy)


@dataclass(frozen=True, slots=True)
class NodeWeights(Policy):
    """What an incident weighs by how sure its suspect is. `unknown` weighs nothing."""

    certain: Share
    likely: Share
    possible: Share


@dataclass(frozen=True, slots=True)
class NodeQuorum(Policy):
    """What has to come together before a node may be kept out."""

    incidents: Count
    jobs: Count
    users: Count
    weight: Positive
    at_once_sources: tuple[Source, ...]
    same_gpu_faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class NodeBreadth(Policy):
    """From how many nodes within how many seconds a cause is taken as shared."""

    nodes: Annotated[int, Ge(2)]
    window_s: Positive


@dataclass(frozen=True, slots=True)
class NodeCaps(Policy):
    """How many nodes may be kept out: share of the cluster in all, nodes in one call."""

    cluster_share: Share
    per_call: Count


@dataclass(frozen=True, slots=True)
class NodesPolicy(Policy):
    """rules/policy/nodes.yaml: how evidence about nodes is weighed and when a node may be kept out."""

    policy: Literal["nodes"]
    half_life_hours: Positive
    expiry_hours: Positive
    weights: NodeWeights
    stances: Annotated[dict[Stance, Share], MinLen(4)]
    quorum: NodeQuorum
    breadth: NodeBreadth
    caps: NodeCaps


@dataclass(frozen=True, slots=True)
class PhaseLimit(Policy):
    """Seconds a phase may stay without progress: unlearned_s until the run has shown its own rhythm, then a multiple of that within
    [floor_s, ceiling_s]."""

    floor_s: Positive
    unlearned_s: Positive
    ceiling_s: Positive

    def __post_init__(self) -> None:
        if self.floor_s > self.ceiling_s:
            raise ValueError(f"floor_s ({self.floor_s:g}) is above ceiling_s ({self.ceiling_s:g})")


@dataclass(frozen=True, slots=True)
class PhaseLimits(Policy):
    """A limit for every phase. pause: unannounced and periodic; unknown: the run still writes, and nobody knows what."""

    startup: PhaseLimit
    compile: PhaseLimit
    steady: PhaseLimit
    evaluation: PhaseLimit
    checkpoint: PhaseLimit
    pause: PhaseLimit
    ending: PhaseLimit
    unknown: PhaseLimit

    def of(self, phase: str) -> PhaseLimit:
        found = getattr(self, phase, self.unknown)
        assert isinstance(found, PhaseLimit)
        return found

    def least_s(self) -> float:
        """No gap shorter than this is ever a hang by silence alone."""
        return min(min(self.of(f.name).floor_s, self.of(f.name).unlearned_s) for f in dataclasses.fields(self))


@dataclass(frozen=True, slots=True)
class HangPolicy(Policy):
    """When silence is a hang."""

    factor: Annotated[float, Ge(1), Le(100)]
    quantile: Share
    learn_gaps: Count
    learn_pauses: Count
    pause_factor: Annotated[float, Gt(1), Le(1000)]
    after_error_s: Positive
    after_exit_s: Positive
    buffer_bytes: Count
    phases: PhaseLimits


@dataclass(frozen=True, slots=True)
class SlowPolicy(Policy):
    """When a slower pace is a slowdown. depth: share of the throughput lost."""

    depth: Annotated[float, Gt(0), Le(0.9)]
    tolerance: Share
    for_s: Positive
    steps: Count
    bin_s: Annotated[float, Ge(0.1), Le(86400)]
    learn_bins: Annotated[int, Ge(2), Le(1_000_000)]
    learn_bins_max: Count


@dataclass(frozen=True, slots=True)
class BlindPolicy(Policy):
    """When a stream is not vouched for. stale_tick_s: a longer pause of the observer itself restarts every silence."""

    after_s: Positive
    no_log_s: Positive
    stale_tick_s: Positive


@dataclass(frozen=True, slots=True)
class Detect(Policy):
    """rules/policy/detect.yaml: limits of silence per phase, what a slowdown is, when a stream is not vouched for."""

    policy: Literal["detect"]
    hang: HangPolicy
    slow: SlowPolicy
    blind: BlindPolicy


@dataclass(frozen=True, slots=True)
class AllowLists(Policy):
    """Where defib may act at all. An empty list is nobody; "*" is everybody, and has to be written."""

    partitions: tuple[str, ...]
    accounts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfirmPolicy(Policy):
    """What turns a suspicion into a case for action."""

    settle_s: Annotated[float, Ge(5), Le(3600)]
    terminal_looks: Annotated[int, Ge(1), Le(100)]
    hang_s: Annotated[float, Ge(10), Le(86400)]
    hang_looks: Annotated[int, Ge(3), Le(100)]
    fresh_s: Annotated[float, Gt(0), Le(2)]
    sign_age_s: Annotated[float, Gt(0), Le(600)]


@dataclass(frozen=True, slots=True)
class CallPolicy(Policy):
    """Times of one call and of what follows it."""

    kill_after_s: Annotated[float, Ge(1), Le(10)]
    slack_s: Annotated[float, Ge(5), Le(60)]
    least_delay_s: Annotated[float, Ge(30), Le(3600)]
    unknown_settle_s: Annotated[float, Ge(60), Le(3600)]
    retry_s: Annotated[float, Ge(10), Le(3600)]
    plan_valid_s: Annotated[float, Ge(60), Le(604_800)]
    approval_valid_s: Annotated[float, Ge(60), Le(86400)]
    release_within_s: Annotated[float, Ge(60), Le(3600)]
    recovered_after_s: Annotated[float, Ge(60), Le(86400)]
    backoff_s: Annotated[tuple[Annotated[float, Ge(0), Le(86400)], ...], MinLen(1)]
    jitter: Share


@dataclass(frozen=True, slots=True)
class LineageBudget(Policy):
    """Calls for one job, all its attempts together."""

    without_progress: Annotated[int, Ge(0), Le(10)]
    per_day: Annotated[int, Ge(0), Le(100)]


@dataclass(frozen=True, slots=True)
class RunningBudget(Policy):
    """Calls that end a run which still has its nodes."""

    at_once: Annotated[int, Ge(0), Le(100)]
    per_day: Annotated[int, Ge(0), Le(1000)]
    loss_h: Positive
    killed_gpu_hours_per_day: Annotated[float, Ge(0), Le(1e9)]


@dataclass(frozen=True, slots=True)
class Budgets(Policy):
    """How many calls at most. groups: per budget group of classes.yaml, without progress in between."""

    groups: Annotated[dict[BudgetGroup, Annotated[int, Ge(0), Le(10)]], MinLen(8)]
    lineage: LineageBudget
    user_per_hour: Annotated[int, Ge(0), Le(1000)]
    user_per_day: Annotated[int, Ge(0), Le(10000)]
    partition_per_hour: Annotated[int, Ge(0), Le(1000)]
    running: RunningBudget


@dataclass(frozen=True, slots=True)
class Rate(Policy):
    """Calls in a cluster over time; share_* of running jobs, share_at_once of the GPUs of all running jobs."""

    gap_s: Annotated[float, Ge(1), Le(3600)]
    per_ten_minutes: Annotated[int, Ge(1), Le(1000)]
    share_per_hour: Share
    share_at_once: Share


@dataclass(frozen=True, slots=True)
class BreakerPolicy(Policy):
    """When everything stops. within_s are windows; half_open_s: then one call may try."""

    half_open_s: Annotated[float, Ge(60), Le(604_800)]
    quiet_s: Annotated[float, Ge(60), Le(86400)]
    correlated_within_s: Positive
    correlated_lineages: Annotated[int, Ge(2), Le(1000)]
    correlated_users: Annotated[int, Ge(1), Le(1000)]
    correlated_share: Share
    verify_within_s: Positive
    unknown: Count
    stranded: Count
    not_recovered: Count
    surprises: Count
    blind_share: Share
    scheduler_reads: Annotated[int, Ge(2), Le(1000)]
    scheduler_errors: Share
    scheduler_p95_s: Positive
    lag_s: Positive
    crash_s: Positive
    alerts_per_hour: Count


@dataclass(frozen=True, slots=True)
class VitalsPolicy(Policy):
    """How well defib itself has to be before it acts."""

    canary_s: Positive
    lag_s: Positive
    commit_s: Positive
    step_quiet_s: Positive
    pings: Count
    backlog: Count
    controller_quiet_s: Positive
    told_s: Positive


@dataclass(frozen=True, slots=True)
class ExclusionPolicy(Policy):
    """Nodes kept out of the next start (evidence is weighed by rules/policy/nodes.yaml)."""

    enabled: bool
    per_attempt: Annotated[int, Ge(0), Le(64)]
    partition_share: Share
    spare_nodes: Annotated[int, Ge(0), Le(10000)]


@dataclass(frozen=True, slots=True)
class RecoveryPolicy(Policy):
    """rules/policy/recovery.yaml: whether, when and how often a job is restarted."""

    policy: Literal["recovery"]
    mode: Literal["observe", "approve", "act"]
    allow: AllowLists
    act_on_running: bool
    act_on_slow: bool
    act_on_timeout: bool
    confirm: ConfirmPolicy
    call: CallPolicy
    budgets: Budgets
    rate: Rate
    breakers: BreakerPolicy
    vitals: VitalsPolicy
    exclusion: ExclusionPolicy
    refuse_exit_codes: tuple[Annotated[int, Ge(0), Le(255)], ...]

    def __post_init__(self) -> None:
        late = self.confirm.fresh_s + self.call.kill_after_s + self.call.slack_s
        if late >= self.call.least_delay_s:
            raise ValueError(
                f"fresh_s + kill_after_s + slack_s ({late:g}) is not below least_delay_s ({self.call.least_delay_s:g})"
            )


# The value of `policy:` -> its shape.
POLICIES: dict[str, type[Policy]] = {"nodes": NodesPolicy, "detect": Detect, "recovery": RecoveryPolicy}


def restore(shape: type[P], values: dict[str, Any]) -> P:
    """The policy of checked plain values (`dataclasses.asdict`, JSON), without checking them again."""
    hints = get_type_hints(shape)
    made: dict[str, Any] = {}
    for name, value in values.items():
        if dataclasses.is_dataclass(hints[name]):
            made[name] = restore(hints[name], value)
        else:
            made[name] = tuple(value) if isinstance(value, list) else value
    return shape(**made)
