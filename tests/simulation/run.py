"""Rules of the simulated site, and the run of one seed."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from functools import cache
from pathlib import Path

import yaml

from defib.engine.policies import NodesPolicy, RecoveryPolicy
from defib.engine.policyfiles import load_policy
from defib.engine.recover.desk import Rules
from defib.engine.rulebook import FailureClass

RULES = Path(__file__).resolve().parents[2] / "rules"


@cache
def shipped() -> Rules:
    """The shipped policies and classes."""
    recovery = load_policy(
        (RULES / "policy/recovery.yaml").read_text(encoding="utf-8"), "recovery.yaml", RecoveryPolicy
    )
    nodes = load_policy((RULES / "policy/nodes.yaml").read_text(encoding="utf-8"), "nodes.yaml", NodesPolicy)
    raw = yaml.safe_load((RULES / "classes.yaml").read_text(encoding="utf-8"))["classes"]
    return Rules(recovery, nodes, {c["id"]: FailureClass(**c) for c in raw})


def site(seed: int, acts: bool = False) -> Rules:
    """The policy of one seed: mostly act, everything allowed that can be, limits at random. acts: in any case."""
    rng, base = random.Random(seed ^ 0x5EED), shipped()
    mode = rng.choice(("act", "act", "act", "approve", "observe"))
    act = acts or seed % 10 == 0
    p = base.policy
    rate = dataclasses.replace(
        p.rate, share_per_hour=rng.choice((0.02, 1.0, 1.0)), share_at_once=rng.choice((0.1, 1.0)), gap_s=rng.choice((10.0, 900.0)),
        per_ten_minutes=rng.choice((1, 5)),
    )  # fmt: skip
    policy = dataclasses.replace(
        p, mode="act" if act else mode, allow=dataclasses.replace(p.allow, partitions=("gpu",)), act_on_running=acts or rng.random() < 0.8,
        act_on_timeout=rng.random() < 0.3, rate=rate, budgets=dataclasses.replace(p.budgets, user_per_hour=rng.choice((1, 3))),
    )  # fmt: skip
    return dataclasses.replace(base, policy=policy)


def run(seed: int, hours: float = 72.0, only: frozenset[str] | None = None) -> Counter[str]:
    """One seed to its end, with the faults it draws or only those named. Raises BrokenError."""
    from tests.simulation.sim import Sim

    return Sim(seed, site(seed, acts=only is not None), hours, only).run()
