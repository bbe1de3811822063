"""Evidence about nodes over time: incidents of many jobs -> what speaks against a node or GPU, and whether it may be kept out.

In: facts (one per incident that suspects a node), the failure classes, the policy (rules/policy/nodes.yaml), a moment.
Out: `NodeJudged` per node, heaviest first, each with one sentence that holds the numbers. Always: pure, indifferent to the order of the
facts, and shy: what is unknown (time, breadth, confidence, cluster size) never helps to keep a node out. The history's view
`node_evidence` weighs by the same rules.

Weight of a fact = weight of its confidence x weight of its class's stance x 0.5^(age / half-life). A job is one voice: of its facts about a
place the heaviest counts. The idea of adding up signals of weeks per node is Meta's lemon-node detection (arXiv 2410.21680, section 4).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from defib.engine.policies import NodesPolicy
from defib.engine.rulebook import FailureClass

HOUR_US = 3_600_000_000
QUORUM_CONFIDENCES = ("certain", "likely")  # only these may keep a node out; possible lifts a sum
NOTHING = FailureClass("", "", "crashed", "unknown", "no", "never", "", "")


@dataclass(frozen=True, slots=True)
class NodeFact:
    """One incident that suspects a node. lineage: the job all of whose attempts are one voice. time_us: None where the logs tell none.
    breadth: nodes that showed the same cause, None unknown. source: how the suspect was found (`Suspect.how`), or printer."""

    node: str
    gpu: str | None
    time_us: int | None
    klass: str
    confidence: str
    lineage: str
    incident: str
    user: str | None = None
    breadth: int | None = None
    source: str = "printer"


@dataclass(frozen=True, slots=True)
class Weighed:
    """A fact with its weight now; where that is 0, why says the reason."""

    fact: NodeFact
    klass: FailureClass
    weight: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """What speaks against a place: a GPU of a node, or the node where no GPU was named. weight is the sum over jobs, now."""

    node: str
    gpu: str | None
    incidents: int
    jobs: int
    weight: float
    last_us: int | None
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeJudged:
    """A node: keep it out or not, and why. until_us: when its weight will have decayed below what is needed, if nothing new comes."""

    node: str
    candidate: bool
    because: str
    weight: float
    until_us: int | None
    evidence: tuple[NodeEvidence, ...]


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is known of the cluster: how many nodes it has (None unknown) and which are kept out already."""

    nodes: int | None = None
    out: frozenset[str] = frozenset()


def judge(
    facts: Iterable[NodeFact], classes: Mapping[str, FailureClass], policy: NodesPolicy, now_us: int, fleet: Fleet
) -> tuple[NodeJudged, ...]:
    """Every node some fact names by now, heaviest first. Facts after now_us are not known yet."""
    known = sorted(
        (f for f in facts if f.time_us is None or f.time_us <= now_us),
        key=lambda f: (f.node, f.gpu or "", f.time_us or 0, f.incident, f.lineage),
    )
    by_node: dict[str, list[Weighed]] = {}
    for w in weigh(known, classes, policy, now_us):
        by_node.setdefault(w.fact.node, []).append(w)
    judged = [_node(name, mine, policy, now_us, fleet) for name, mine in by_node.items()]
    judged.sort(key=lambda j: (-j.weight, j.node))
    return _capped(judged, policy, fleet)


def weigh(
    facts: Sequence[NodeFact], classes: Mapping[str, FailureClass], policy: NodesPolicy, now_us: int
) -> list[Weighed]:
    """Every fact with what it weighs at now_us."""
    together = _together(facts, policy.breadth.window_s)
    return [_weigh(f, classes.get(f.klass, NOTHING), n, policy, now_us) for f, n in zip(facts, together, strict=True)]


def _weigh(f: NodeFact, klass: FailureClass, together: int, policy: NodesPolicy, now_us: int) -> Weighed:
    def nothing(why: str) -> Weighed:
        return Weighed(f, klass, 0.0, why)

    stances: Mapping[str, float] = policy.stances  # type: ignore[assignment]  # its keys are words
    stance, sure = stances.get(klass.exclude, 0.0), getattr(policy.weights, f.confidence, 0.0)
    shown = max(f.breadth or 1, together)
    if shown >= policy.breadth.nodes:
        return nothing(f"shared by {shown} nodes")
    if not stance:
        return nothing(f"of class {f.klass}, which keeps no node out")
    if klass.exclude == "if-one-node" and (f.breadth is None or shown > 1):
        return nothing(f"of class {f.klass} not shown to be of one node alone")
    if not sure:
        return nothing("with an unknown suspect")
    if f.time_us is None:
        return nothing("without a time")
    age_h = (now_us - f.time_us) / HOUR_US
    if age_h > policy.expiry_hours:
        return nothing(f"older than {_number(policy.expiry_hours)} h")
    return Weighed(f, klass, sure * stance * 0.5 ** (age_h / policy.half_life_hours))


def _together(facts: Sequence[NodeFact], window_s: float) -> list[int]:
    """For each fact: distinct nodes with a fact of the same class no further than window_s from it; 1 where it has no time."""
    out = [1] * len(facts)
    by_class: dict[str, list[tuple[int, int]]] = {}
    for i, f in enumerate(facts):
        if f.time_us is not None:
            by_class.setdefault(f.klass, []).append((f.time_us, i))
    for same in by_class.values():
        same.sort()
        near: Counter[str] = Counter()
        low = high = 0
        for time, i in same:
            while high < len(same) and same[high][0] - time <= window_s * 1e6:
                near[facts[same[high][1]].node] += 1
                high += 1
            while time - same[low][0] > window_s * 1e6:
                gone = facts[same[low][1]].node
                near[gone] -= 1
                if not near[gone]:
                    del near[gone]
                low += 1
            out[i] = len(near)
    return out


def evidence(weighed: Iterable[Weighed]) -> tuple[NodeEvidence, ...]:
    """One row per node and GPU, in order of the names."""
    places: dict[tuple[str, str], list[Weighed]] = {}
    for w in weighed:
        places.setdefault((w.fact.node, w.fact.gpu or ""), []).append(w)
    return tuple(
        NodeEvidence(
            node, gpu or None, len({w.fact.incident for w in mine}), len({w.fact.lineage for w in mine}), _voices(mine),
            max((w.fact.time_us for w in mine if w.fact.time_us is not None), default=None),
            tuple(sorted({w.fact.klass for w in mine})),
        )
        for (node, gpu), mine in sorted(places.items())
    )  # fmt: skip


def _voices(weighed: Iterable[Weighed]) -> float:
    """Sum over jobs of the heaviest fact of each."""
    best: dict[str, float] = {}
    for w in weighed:
        best[w.fact.lineage] = max(best.get(w.fact.lineage, 0.0), w.weight)
    return math.fsum(best.values())


# --- one node ------------------------------------------------------------------------------------------------------------------------


def _node(name: str, weighed: list[Weighed], policy: NodesPolicy, now_us: int, fleet: Fleet) -> NodeJudged:
    """The node's case without the caps: the first of its units that has a quorum decides, else the nearest tells what is lacking."""
    heard = [w for w in weighed if w.weight > 0]
    told = [_unit(unit, board, policy) for unit, board in _units(heard, policy)]
    passed = [t for t in told if t[0]]
    keep, because, weight = max(passed or told, key=lambda t: t[2], default=(False, _unheard(weighed), 0.0))
    if keep and name in fleet.out:
        keep, because = False, f"it is kept out already; {because}"
    until = None
    if keep:
        left_h = policy.half_life_hours * math.log2(weight / policy.quorum.weight)
        newest = max(w.fact.time_us or 0 for w in heard)
        until = min(now_us + int(left_h * HOUR_US), newest + int(policy.expiry_hours * HOUR_US))
        because += f"; keep it out, at the latest until {_moment(until)}"
    return NodeJudged(name, keep, because, _voices(weighed), until, evidence(weighed))


def _units(heard: list[Weighed], policy: NodesPolicy) -> list[tuple[list[Weighed], str | None]]:
    """What may be added up: everything that blames the node, and with it, GPU by GPU, what blames the code unless one GPU repeats it."""
    code = policy.quorum.same_gpu_faults
    boards: dict[str, list[Weighed]] = {}
    common: list[Weighed] = []
    for w in heard:
        if w.fact.gpu is not None and w.klass.fault in code:
            boards.setdefault(w.fact.gpu, []).append(w)
        else:
            common.append(w)
    node: list[tuple[list[Weighed], str | None]] = [(common, None)] if common else []
    return [*node, *(([*common, *mine], gpu) for gpu, mine in sorted(boards.items()))]


def _unit(unit: list[Weighed], gpu: str | None, policy: NodesPolicy) -> tuple[bool, str, float]:
    """(keep out, the sentence, the weight of what was added up)."""
    q, weight = policy.quorum, _voices(unit)
    sums = f"weight {weight:.2f}, {_number(q.weight)} needed"
    not_at_once = {_not_at_once(w, policy): w for w in unit if w.klass.exclude == "at-once"}
    if "" in not_at_once:
        f = not_at_once[""].fact
        by = "the scheduler" if f.source == "scheduler" else "the line of the cause"
        return True, f"{f.klass} is certain, told by {by}, and that class keeps a node out at once ({sums})", weight
    heavy = [w for w in unit if w.fact.confidence in QUORUM_CONFIDENCES]
    have = {
        "incident": (len({w.fact.incident for w in heavy}), q.incidents),
        "job": (len({w.fact.lineage for w in heavy}), q.jobs),
        "user": (len({w.fact.user for w in heavy}), q.users),
    }
    kinds = ", ".join(sorted({w.fact.klass for w in unit}))
    place = f" on GPU {gpu}" if gpu is not None else ""
    lacking = [f"{n} of {need} {name}s" for name, (n, need) in have.items() if n < need]
    if lacking:
        once = f"; not at once: {min(not_at_once)}" if not_at_once else ""
        return False, f"{kinds}{place}: {', '.join(lacking)} needed ({sums}){once}", weight
    what = ", ".join(f"{n} {name}{'' if n == 1 else 's'}" for name, (n, _) in have.items() if name != "user")
    if weight < q.weight:
        return False, f"{kinds}{place}: {what}, too old or too unsure by now ({sums})", weight
    return True, f"{kinds}{place}: {what} agree ({sums})", weight


def _not_at_once(w: Weighed, policy: NodesPolicy) -> str:
    """Why this fact of an at-once class does not decide alone; empty where it does."""
    if w.fact.confidence != "certain":
        return f"the suspect is only {w.fact.confidence}"
    if w.fact.source not in policy.quorum.at_once_sources:
        return (
            "only who printed the cause is known"
            if w.fact.source == "printer"
            else f"inferred from the {w.fact.source}"
        )
    return "too old" if w.weight < policy.quorum.weight else ""


def _unheard(weighed: list[Weighed]) -> str:
    """Why nothing said about a node counts."""
    whys = Counter(w.why for w in weighed)
    told = ", ".join(f"{n} {why}" for why, n in sorted(whys.items(), key=lambda x: (-x[1], x[0])))
    return f"nothing counts: {len(weighed)} incident{'' if len(weighed) == 1 else 's'}, {told}"


# --- all nodes -----------------------------------------------------------------------------------------------------------------------


def _capped(judged: list[NodeJudged], policy: NodesPolicy, fleet: Fleet) -> tuple[NodeJudged, ...]:
    """The heaviest candidates up to the caps; the rest wait and say so."""
    caps = policy.caps
    share = max(1, math.floor(caps.cluster_share * (fleet.nodes or 0)))
    room = max(0, min(caps.per_call, share - len(fleet.out)))
    of = (
        f"{_number(100 * caps.cluster_share)} % of {fleet.nodes} nodes"
        if fleet.nodes
        else "the cluster's size is not told"
    )
    out: list[NodeJudged] = []
    taken = 0
    for j in judged:
        if not j.candidate:
            out.append(j)
        elif taken < room:
            taken += 1
            out.append(j)
        else:
            already = f", {len(fleet.out)} out already" if fleet.out else ""
            cap = f"at most {share} out in all ({of}{already}), {caps.per_call} at a time"
            reason = j.because.partition("; keep it out")[0]
            out.append(NodeJudged(j.node, False, f"over the cap: {cap}; else: {reason}", j.weight, None, j.evidence))
    return tuple(out)


def _moment(us: int) -> str:
    return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _number(value: float) -> str:
    return f"{value:g}"
