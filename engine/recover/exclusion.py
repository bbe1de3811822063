"""Which nodes the next start keeps out: few, on evidence, together with the user's own, and never so many that the job cannot start.

In: candidates (judged by rules/policy/nodes.yaml), the job's record, what its partition has, policy and consent. Out: the names to add, the
whole list to set (it replaces the old one), and why a candidate was left in. Always: leaving a node in never stops a restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from defib.engine.policies import ExclusionPolicy
from defib.engine.recover.inputs import Candidate, Room
from defib.engine.recover.words import EXCLUDED_MAX, NODE_NAME, Facts


@dataclass(frozen=True, slots=True)
class Excluded:
    """add: new names; whole: the union to set, empty where nothing is added; notes: one sentence per candidate left in."""

    add: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def choose(
    candidates: tuple[Candidate, ...],
    facts: Facts,
    room: Room | None,
    policy: ExclusionPolicy,
    allowed: bool,
    now_us: int,
) -> Excluded:
    """What to keep out. allowed: the owner did not forbid it."""
    if not candidates:
        return Excluded()
    if not policy.enabled or not allowed:
        return Excluded(
            notes=("the site's policy excludes no nodes" if allowed else "the owner wants no node kept out",)
        )
    if facts.het_job_id is not None:
        return Excluded(notes=("a heterogeneous job has one list per component: none is changed",))
    if not all(NODE_NAME.fullmatch(n) for n in facts.excluded):
        return Excluded(notes=("the job's own list of excluded nodes cannot be read: it is left alone",))
    if room is None or facts.node_count is None:
        return Excluded(notes=("it is not known how many nodes the partition or the job has",))
    add: list[str] = []
    notes: list[str] = []
    for c in candidates:
        why = _against(c, facts, room, policy, add, now_us)
        if why:
            notes.append(f"{c.node} is not kept out: {why}")
        else:
            add.append(c.node)
    whole = tuple(sorted({*facts.excluded, *add})) if add else ()
    return Excluded(tuple(add), whole, tuple(notes))


def _against(c: Candidate, facts: Facts, room: Room, policy: ExclusionPolicy, add: list[str], now_us: int) -> str:
    """Why this candidate stays in; empty where nothing speaks for that."""
    if NODE_NAME.fullmatch(c.node) is None:
        return "its name is none of the scheduler's"
    if c.until_us is not None and c.until_us <= now_us:
        return "what speaks against it has expired"
    if c.node in facts.excluded:
        return "the job excludes it already"
    if c.node in facts.required:
        return "the job asks for it by name"
    if len(add) >= policy.per_attempt:
        return f"at most {policy.per_attempt} for one restart"
    if len(facts.excluded) + len(add) + 1 > EXCLUDED_MAX:
        return f"the list would hold more than {EXCLUDED_MAX} names"
    share = max(1, math.floor(policy.partition_share * room.nodes))
    if len({*room.out_by_us, *add, c.node}) > share:
        return f"at most {share} of the partition's {room.nodes} nodes"
    union = {*facts.excluded, *add, c.node}
    left = room.usable - len(union.intersection(room.usable_named))
    need = (facts.node_count or 0) + policy.spare_nodes
    if left < need:
        return f"{left} usable nodes would be left, {need} are needed"
    return ""
