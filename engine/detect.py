"""The numbers detection rests on: limits of silence per phase, what a slowdown is, when a stream is not vouched for.

Plain data. The shipped values and the reason for each stand in `rules/policy/detect.yaml`; a site's own folder may name others.
All durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PhaseLimit:
    """How long a phase may stay without progress: unlearned_s until the run has shown its own rhythm, then a multiple of that within
    [floor_s, ceiling_s]."""

    floor_s: float
    unlearned_s: float
    ceiling_s: float


@dataclass(frozen=True, slots=True)
class HangPolicy:
    """When silence is a hang."""

    factor: float = 3.0
    quantile: float = 0.999
    learn_gaps: int = 10
    learn_pauses: int = 2
    pause_factor: float = 5.0
    after_error_s: float = 300.0
    after_exit_s: float = 120.0
    buffer_bytes: int = 4096
    phases: dict[str, PhaseLimit] = field(
        default_factory=lambda: {
            "startup": PhaseLimit(1800.0, 7200.0, 14400.0),
            "compile": PhaseLimit(1800.0, 7200.0, 14400.0),
            "steady": PhaseLimit(1800.0, 1800.0, 14400.0),
            "evaluation": PhaseLimit(1800.0, 7200.0, 14400.0),
            "checkpoint": PhaseLimit(1800.0, 3600.0, 14400.0),
            "pause": PhaseLimit(1800.0, 7200.0, 14400.0),
            "ending": PhaseLimit(1800.0, 3600.0, 14400.0),
            "unknown": PhaseLimit(7200.0, 7200.0, 14400.0),
        }
    )


@dataclass(frozen=True, slots=True)
class SlowPolicy:
    """When a slower pace is a slowdown. depth: share of the throughput lost."""

    depth: float = 0.10
    tolerance: float = 0.2
    for_s: float = 300.0
    steps: int = 20
    bin_s: float = 10.0
    learn_bins: int = 8
    learn_bins_max: int = 256


@dataclass(frozen=True, slots=True)
class BlindPolicy:
    """When a stream is not vouched for. stale_tick_s: a longer pause of the observer itself restarts every silence."""

    after_s: float = 120.0
    no_log_s: float = 900.0
    stale_tick_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Detect:
    """The whole policy of detection."""

    hang: HangPolicy = field(default_factory=HangPolicy)
    slow: SlowPolicy = field(default_factory=SlowPolicy)
    blind: BlindPolicy = field(default_factory=BlindPolicy)

    @staticmethod
    def from_dict(raw: dict[str, Any]) -> Detect:
        """From `dataclasses.asdict` of one."""
        hang = {**raw["hang"], "phases": {name: PhaseLimit(**p) for name, p in raw["hang"]["phases"].items()}}
        return Detect(HangPolicy(**hang), SlowPolicy(**raw["slow"]), BlindPolicy(**raw["blind"]))
