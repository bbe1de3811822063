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


# The value of `policy:` -> its shape.
POLICIES: dict[str, type[Policy]] = {"nodes": NodesPolicy, "detect": Detect}


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
