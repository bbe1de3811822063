"""Evidence about nodes: decay, one voice a job, quorum, breadth, caps; what is unknown never helps to keep a node out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defib.engine.nodes import HOUR_US, Fleet, NodeFact, NodeJudged, judge, weigh
from defib.engine.policies import NodesPolicy
from defib.engine.policyfiles import load_policy
from defib.engine.rulebook import FailureClass

ROOT = Path(__file__).resolve().parents[2]
POLICY = load_policy((ROOT / "rules" / "policy" / "nodes.yaml").read_text(encoding="utf-8"), "nodes.yaml", NodesPolicy)
NOW = 1_780_000_000_000_000
BIG = Fleet(1000)


def klass(name: str, fault: str, exclude: str) -> FailureClass:
    return FailureClass(name, name, "crashed", fault, "yes", exclude, "hardware", "w")


CLASSES = {
    c.id: c
    for c in (
        klass("lost", "gpu", "at-once"),
        klass("link", "network", "on-repeat"),
        klass("kernel", "framework", "on-repeat"),
        klass("mount", "storage", "if-one-node"),
        klass("peer", "network", "peer-on-repeat"),
        klass("code", "user", "never"),
    )
}


def fact(
    job: str, name: str = "link", *, hours: float | None = 0.0, node: str = "n1", sure: str = "certain", **more: object
) -> NodeFact:
    """An incident `hours` ago."""
    at = None if hours is None else NOW - round(hours * HOUR_US)
    given = {"gpu": None, "breadth": 1, "source": "cause", "incident": f"{job}#0", **more}
    return NodeFact(node=node, time_us=at, klass=name, confidence=sure, lineage=job, **given)  # type: ignore[arg-type]


def judged(*facts: NodeFact, policy: NodesPolicy = POLICY, fleet: Fleet = BIG, now: int = NOW) -> dict[str, NodeJudged]:
    return {j.node: j for j in judge(facts, CLASSES, policy, now, fleet)}


def only(*facts: NodeFact, **more: object) -> NodeJudged:
    (j,) = judged(*facts, **more).values()  # type: ignore[arg-type]
    return j


# --- weight ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "weight"),
    [
        (fact("a"), 1.0),
        (fact("a", hours=168), 0.5),
        (fact("a", hours=336), 0.25),
        (fact("a", hours=672), 1 / 16),
        (fact("a", hours=673), 0.0),  # expired
        (fact("a", sure="likely"), 0.5),
        (fact("a", sure="possible"), 0.1),
        (fact("a", sure="unknown"), 0.0),
        (fact("a", "mount"), 0.5),
        (fact("a", "mount", sure="likely", hours=168), 0.125),
        (fact("a", "mount", breadth=None), 0.0),  # not shown to be one node's alone
        (fact("a", "mount", breadth=2), 0.0),
        (fact("a", "peer", source="peer"), 0.5),
        (fact("a", "code"), 0.0),
        (fact("a", "no-such-class"), 0.0),
        (fact("a", breadth=2), 1.0),
        (fact("a", breadth=3), 0.0),  # shared
        (fact("a", breadth=None), 1.0),
        (fact("a", hours=None), 0.0),  # without a time
    ],
)
def test_weight_of_a_fact(one: NodeFact, weight: float) -> None:
    (w,) = weigh([one], CLASSES, POLICY, NOW)
    assert w.weight == pytest.approx(weight)
    assert bool(w.why) == (w.weight == 0)
    assert only(one).evidence[0].weight == pytest.approx(weight)


def test_a_job_is_one_voice_however_often_it_dies() -> None:
    many = [fact("a", hours=h, incident=f"a#{h}") for h in range(10)]
    j = only(*many)
    assert (j.candidate, j.weight, j.evidence[0].incidents, j.evidence[0].jobs) == (False, 1.0, 10, 1)
    assert "1 of 2 jobs" in j.because


# --- candidates ------------------------------------------------------------------------------------------------------------------------


def test_two_jobs_agree() -> None:
    j = only(fact("a"), fact("b", hours=168))
    assert j.candidate
    assert j.because == (
        "link: 2 incidents, 2 jobs agree (weight 1.50, 0.5 needed); keep it out, at the latest until 2026-06-08 22:43 UTC"
    )
    assert j.until_us is not None
    # 1.5 decays to 0.5 in log2(3) half-lives of 168 h.
    assert (j.until_us - NOW) / HOUR_US == pytest.approx(168 * 1.58496, abs=0.01)
    again = only(fact("a"), fact("b", hours=168), now=j.until_us + HOUR_US)
    assert not again.candidate, "it goes back in by itself"
    assert "too old" in again.because


def test_likely_counts_and_possible_does_not() -> None:
    assert only(fact("a", sure="likely"), fact("b", sure="likely")).candidate
    j = only(fact("a"), *(fact(f"p{i}", sure="possible") for i in range(20)))
    assert not j.candidate
    assert "1 of 2 incidents, 1 of 2 jobs needed" in j.because
    assert j.weight == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (fact("a", "lost"), None),
        (fact("a", "lost", source="scheduler"), None),
        (fact("a", "lost", sure="likely"), "the suspect is only likely"),
        (fact("a", "lost", source="silent-rank"), "inferred from the silent-rank"),
        (fact("a", "lost", source="printer"), "only who printed the cause is known"),
        (fact("a", "lost", hours=200), "too old"),
        (fact("a", "lost", breadth=5), "shared by 5 nodes"),
        (fact("a", "link"), "1 of 2 incidents"),
    ],
)
def test_one_incident_is_enough_only_where_class_confidence_and_source_say_so(one: NodeFact, why: str | None) -> None:
    j = only(one)
    assert j.candidate == (why is None)
    assert (why or "keeps a node out at once") in j.because


def test_blame_of_code_needs_the_same_board_twice() -> None:
    apart = only(fact("a", "kernel", gpu="0"), fact("b", "kernel", gpu="5"))
    assert not apart.candidate
    assert "on GPU" in apart.because
    assert [e.gpu for e in apart.evidence] == ["0", "5"]
    assert only(fact("a", "kernel", gpu="5"), fact("b", "kernel", gpu="5")).candidate
    assert only(fact("a", "kernel"), fact("b", "kernel")).candidate, "no board is named: the node is what repeats"
    assert only(fact("a", gpu="0"), fact("b", gpu="5")).candidate, (
        "a link's fault is the node's, whichever board saw it"
    )


def test_users_have_to_agree_where_the_site_asks_for_it() -> None:
    strict = replace(POLICY, quorum=replace(POLICY.quorum, users=2))
    for users, candidate in ((("u", "v"), True), (("u", "u"), False), ((None, None), False)):
        assert only(fact("a", user=users[0]), fact("b", user=users[1]), policy=strict).candidate is candidate


def test_a_cause_many_nodes_show_at_once_excludes_nobody() -> None:
    """Six jobs on three nodes lose the link in the same minutes: a switch. The same three nodes on three days: three bad nodes."""
    storm = [fact(f"{n}{k}", node=n, hours=k / 60) for n in ("n1", "n2", "n3") for k in (0, 3)]
    assert not any(j.candidate for j in judged(*storm).values())
    assert all("2 shared by 3 nodes" in j.because for j in judged(*storm).values())
    days = [fact(f"{n}{k}", node=n, hours=24 * i + k) for i, n in enumerate(("n1", "n2", "n3")) for k in (0, 3)]
    assert [j.candidate for j in judged(*days).values()] == [True, True, False]  # the third is over the cap of one call
    assert all(j.weight > 1.6 for j in judged(*days).values())


def test_other_classes_at_the_same_time_are_no_storm() -> None:
    mixed = [fact("a", "link", node="n1"), fact("b", "lost", node="n2"), fact("c", "kernel", node="n3")]
    assert all(j.weight > 0 for j in judged(*mixed).values())


@pytest.mark.parametrize(
    ("fleet", "kept"),
    [
        (Fleet(1000), 2),  # per call
        (Fleet(100), 2),
        (Fleet(99), 1),  # 2 % of 99 is one node
        (Fleet(10), 1),  # at least one
        (Fleet(None), 1),
        (Fleet(100, frozenset({"x"})), 1),
        (Fleet(100, frozenset({"x", "y"})), 0),
        (Fleet(1000, frozenset({"n1"})), 2),  # n1 needs no more than it has
    ],
)
def test_caps(fleet: Fleet, kept: int) -> None:
    facts = [fact(f"{n}{k}", node=n, hours=24 * i + k) for i, n in enumerate(("n1", "n2", "n3", "n4")) for k in (0, 3)]
    rows = judge(facts, CLASSES, POLICY, NOW, fleet)
    heaviest = [j.node for j in rows if j.candidate or "over the cap" in j.because]
    assert [j.node for j in rows if j.candidate] == heaviest[:kept], "the heaviest go first"
    for j in rows:
        assert j.candidate or "over the cap" in j.because or "kept out already" in j.because
        assert (j.until_us is not None) == j.candidate


def test_what_comes_after_the_moment_is_not_known_yet() -> None:
    facts = [fact("a", hours=10), fact("b", hours=0)]
    assert only(*facts).candidate
    assert not only(*facts, now=NOW - HOUR_US).candidate
    assert judge(facts, CLASSES, POLICY, NOW - 11 * HOUR_US, BIG) == ()


# --- laws ------------------------------------------------------------------------------------------------------------------------------

FACTS = st.lists(
    st.builds(
        NodeFact,
        node=st.sampled_from(["n1", "n2", "n3", "n4"]),
        gpu=st.sampled_from([None, "0", "1"]),
        time_us=st.none() | st.integers(0, 800 * 60).map(lambda m: NOW - m * HOUR_US // 60),
        klass=st.sampled_from([*CLASSES, "odd"]),
        confidence=st.sampled_from(["certain", "likely", "possible", "unknown"]),
        lineage=st.sampled_from(["a", "b", "c", "d"]),
        incident=st.sampled_from([f"i{n}" for n in range(12)]),
        user=st.sampled_from([None, "u", "v"]),
        breadth=st.sampled_from([None, 1, 2, 3, 9]),
        source=st.sampled_from(["cause", "scheduler", "silent-rank", "behind-rank", "peer", "printer"]),
    ),
    max_size=14,
)


@given(FACTS, st.integers(0, 9))
def test_the_order_of_the_facts_says_nothing(facts: list[NodeFact], seed: int) -> None:
    mixed = list(facts)
    Random(seed).shuffle(mixed)
    assert judge(mixed, CLASSES, POLICY, NOW, BIG) == judge(facts, CLASSES, POLICY, NOW, BIG)


@settings(max_examples=300)
@given(FACTS, st.sampled_from([None, 10, 100, 1000]), st.sets(st.sampled_from(["n1", "x"])))
def test_every_candidate_has_its_grounds(facts: list[NodeFact], size: int | None, out: set[str]) -> None:
    fleet = Fleet(size, frozenset(out))
    rows = judge(facts, CLASSES, POLICY, NOW, fleet)
    candidates = [j for j in rows if j.candidate]
    assert len(candidates) <= POLICY.caps.per_call
    assert len(candidates) + len(out) <= max(1, int(0.02 * (size or 0)), len(out))
    assert {j.node for j in rows} == {f.node for f in facts}
    for j in candidates:
        mine = [w for w in weigh(facts, CLASSES, POLICY, NOW) if w.fact.node == j.node and w.weight > 0]
        sure = [w.fact for w in mine if w.fact.confidence in ("certain", "likely")]
        alone = [
            f for f in sure if f.klass == "lost" and f.confidence == "certain" and f.source in ("cause", "scheduler")
        ]
        assert alone or (len({f.lineage for f in sure}) >= 2 and len({f.incident for f in sure}) >= 2)
        assert j.weight >= POLICY.quorum.weight
        assert j.until_us is not None
        assert j.until_us >= NOW
        assert j.node not in out


@settings(max_examples=300)
@given(FACTS, st.integers(0, 13), st.sampled_from(["time_us", "confidence", "user"]))
def test_not_knowing_never_keeps_a_node_out(facts: list[NodeFact], which: int, field: str) -> None:
    """Taking the time, confidence or user of a fact away makes no node heavier, where the fact is not part of a storm."""
    if which >= len(facts) or len({f.node for f in facts if f.klass == facts[which].klass}) > 1:
        return
    unknown = "unknown" if field == "confidence" else None
    less = [replace(f, **{field: unknown}) if i == which else f for i, f in enumerate(facts)]  # type: ignore[arg-type]
    before, after = (judged(*x, fleet=Fleet(10_000)) for x in (facts, less))
    for node, j in after.items():
        assert j.weight <= before[node].weight + 1e-9
