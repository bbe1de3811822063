"""Policy files: every fault at its line with a mend, all at once; a site's file lays over ours; the shapes survive the cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.conftest import CLASSES, faults, rulebook

from defib.adapters import rulefiles
from defib.engine import rulecheck
from defib.engine.policies import POLICIES, NodesPolicy, restore
from defib.engine.policyfiles import load_policy
from defib.engine.rulebook import Rulebook
from defib.engine.words import ConfigError, Problem, RuleError

SHIPPED = Path(__file__).resolve().parents[2] / "rules" / "policy"
NODES = (SHIPPED / "nodes.yaml").read_text(encoding="utf-8")


def told(text: str) -> list[Problem]:
    with pytest.raises(RuleError) as e:
        load_policy(text, "site.yaml", NodesPolicy)
    return e.value.problems


def line_of(word: str, text: str = NODES) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if line.strip().startswith(word))


def test_every_shape_has_a_shipped_file_and_every_file_a_shape() -> None:
    assert {p.stem for p in SHIPPED.glob("*.yaml")} == set(POLICIES)
    for name, shape in POLICIES.items():
        policy = load_policy((SHIPPED / f"{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml", shape)
        assert type(policy) is shape
        assert restore(shape, dataclasses.asdict(policy)) == policy  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("was", "now", "said", "mend"),
    [
        ("half_life_hours: 168", "half_life_hours: soon", "'half_life_hours' is 'soon'", "a number is wanted"),
        ("half_life_hours: 168", "half_life_hours: nan", "'half_life_hours' is nan", "finite"),
        ("half_life_hours: 168", "half_life_hours: 0", "'half_life_hours' is 0", "greater than 0"),
        ("half_life_hours: 168", "half_live_hours: 168", "unknown key 'half_live_hours'", "did you mean 'half_life_hours'?"),
        ("  incidents: 2", "  incidents: 2.5", "'incidents' is '2.5'", "a whole number is wanted"),
        ("  incidents: 2", "  incidents: 0", "'incidents' is 0", "greater than or equal to 1"),
        ("weights: {certain: 1.0,", "weights: {certain: 1.5,", "'certain' is 1.5", "less than or equal to 1"),
        ("weights: {certain: 1.0,", "weights: {", "'certain' is missing", "add 'certain"),
        ("stances: {at-once: 1.0,", "stances: {at-onse: 1.0,", "unknown key 'at-onse'", "did you mean 'at-once'?"),
        ("stances: {at-once: 1.0,", "stances: {", "'stances' has 3 entries", "every one"),
        ("  at_once_sources: [cause,", "  at_once_sources: [couse,", "'at_once_sources, entry 1' is 'couse'", "did you mean 'cause'?"),
        ("breadth: {nodes: 3,", "breadth: {nodes: 3, nodes: 4,", "key 'nodes' is given twice", "keep one"),
    ],
)  # fmt: skip
def test_a_fault_is_told_at_its_line_with_a_mend(was: str, now: str, said: str, mend: str) -> None:
    assert was in NODES
    problems = told(NODES.replace(was, now))
    found = [p for p in problems if said in p.message]
    assert [p.line for p in found] == [line_of(was.strip())], problems
    assert mend in found[0].mend
    assert found[0].path == "site.yaml"


def test_all_faults_are_told_at_once() -> None:
    text = (
        NODES.replace("expiry_hours: 672", "expiry_hours: -1")
        .replace("nodes: 3", "nodes: 1")
        .replace("users: 1", "usres: 1")
    )
    assert [p.message for p in told(text)] == [
        "'expiry_hours' is -1", "'users' is missing", "unknown key 'usres'", "'nodes' is 1",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "- a\n", "policy: [\n", "policy: &a nodes\n", "policy: other\n"])
def test_what_is_no_policy_is_refused(text: str) -> None:
    assert told(text)


# --- in a rulebook -------------------------------------------------------------------------------------------------------------------


def book(*texts: str) -> Rulebook:
    return rulebook({"classes.yaml": CLASSES, **{f"{i}.yaml": t for i, t in enumerate(texts)}})


def test_a_sites_file_changes_only_what_it_names() -> None:
    ours = book(NODES).policy(NodesPolicy)
    site = book(NODES, "policy: nodes\ncaps: {per_call: 1}\nquorum:\n  at_once_sources: [scheduler]\n").policy(
        NodesPolicy
    )
    assert (site.caps.per_call, site.caps.cluster_share) == (1, ours.caps.cluster_share)
    assert site.quorum.at_once_sources == ("scheduler",)
    assert dataclasses.replace(site, caps=ours.caps, quorum=ours.quorum) == ours


def test_a_fault_is_told_of_the_file_that_has_it() -> None:
    problems = faults({"classes.yaml": CLASSES, "a.yaml": NODES, "b.yaml": "policy: nodes\n\ncaps: {per_call: none}\n"})
    assert [(p.path, p.line, p.message) for p in problems] == [("b.yaml", 3, "'per_call' is 'none'")]
    problems = faults({"classes.yaml": CLASSES, "b.yaml": "policy: nodse\n"})
    assert [(p.line, p.message, p.mend) for p in problems] == [
        (1, "there is no policy 'nodse'", "did you mean 'nodes'?")
    ]


def test_the_cache_keeps_policies_and_the_hash_knows_them() -> None:
    one, other = book(NODES), book(NODES.replace("half_life_hours: 168", "half_life_hours: 24"))
    assert Rulebook.from_json(one.to_json()).policy(NodesPolicy) == one.policy(NodesPolicy)
    assert other.policy(NodesPolicy).half_life_hours == 24
    assert one.hash != other.hash


def test_a_rulebook_without_the_policy_says_which_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"no policy 'nodes'\n    mend: add policy/nodes.yaml"):
        book().policy(NodesPolicy)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("hang: {phases: {steady: {floor_s: 90000, unlearned_s: 5, ceiling_s: 10}}}", "above ceiling_s"),
        ("slow: {steps: 99999999999999999999999}", "less than or equal to"),
        ("slow: {bin_s: 1e-300}", "greater than or equal to"),
        ("hang: {factor: 1e308}", "less than or equal to"),
    ],
)
def test_numbers_of_detection_have_bounds(changed: str, said: str) -> None:
    ours = (rulefiles.built_in() / "policy" / "detect.yaml").read_text()
    with pytest.raises(RuleError, match=said):
        rulecheck.load([("rules/policy/detect.yaml", ours), ("mine/detect.yaml", f"policy: detect\n{changed}\n")])
