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
    recovery = load_policy((RULES / "policy/recovery.yaml").read_text(encoding="utf-8"), "recovery.yaml", RecoveryPolicy)
    nodes = load_policy((RULES / "policy/nodes.yaml").read_text(encoding="utf-8"), "nodes.yaml", NodesPolicy)
    raw = yaml.safe_load((RULES / "classes.yaml").read_text(encoding="utf-8"))["classes"]
    return Rules(recovery, nodes, {c["id"]: FailureClass(**c) for c in raw})


def site(seed: int) -> Rules:
    """The policy of one seed: mostly act, everything allowed that can be."""
    rng, base = random.Random(seed ^ 0x5EED), shipped()
    mode = rng.choice(("act", "act", "act", "approve", "observe")) if seed % 10 else "act"
    policy = dataclasses.replace(
        base.policy, mode=mode, allow=dataclasses.replace(base.policy.allow, partitions=("gpu",)), act_on_running=rng.random() < 0.8,
        act_on_timeout=rng.random() < 0.3,
        rate=dataclasses.replace(base.policy.rate, share_per_hour=rng.choice((0.02, 0.5)), share_at_once=rng.choice((0.1, 1.0))),
    )  # fmt: skip
    return dataclasses.replace(base, policy=policy)


def run(seed: int, hours: float = 72.0) -> Counter[str]:
    """One seed to its end. Raises BrokenError."""
    from tests.simulation.sim import Sim

    return Sim(seed, site(seed), hours).run()
