"""Generated jobs, whose truth is known by construction: what defib says of each is compared with it, question by question.

A disagreement is a fault of the product or of the generator; it is not to be loosened here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from defib.adapters import wire
from defib.adapters.rows import attempt_object
from loggen.presets import cases
from loggen.render import write

SEED = 7
PRESETS = ("demo", "small")
JOBS = [(preset, job.job_id, f"{job.name}-{fault.kind}") for preset in PRESETS for job, fault in cases(preset)]

Attempts = dict[str, list[dict[str, Any]]]  # job id -> its attempts in order


def by_job(rows: list[dict[str, Any]], key: Any) -> Attempts:
    out: Attempts = {}
    for row in rows:
        out.setdefault(key(row), []).append(row)
    return out


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Attempts, Attempts]]:
    """preset -> its folder, the truth, what defib says."""
    out = {}
    for preset in PRESETS:
        folder = tmp_path_factory.mktemp(preset)
        write(folder, cases(preset), SEED)
        truth = [json.loads(line) for line in (folder / "truth.jsonl").read_text().splitlines()]
        said: list[dict[str, Any]] = []
        wire.replay(
            wire.ReplayOptions([str(folder)], ":memory:"), lambda a, p, to=said: to.append(attempt_object(a, p))
        )
        out[preset] = (
            folder,
            by_job(truth, lambda t: t["job_id"]),
            by_job(said, lambda a: a["attempt"]["job_id"] or a["attempt"]["job_name"]),
        )
    return out


@pytest.fixture(params=JOBS, ids=[f"{preset}-{name}" for preset, _, name in JOBS])
def pair(
    request: pytest.FixtureRequest, told: dict[str, Any]
) -> tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]:
    """Folder, truths and answers of one job."""
    preset, job, _ = request.param
    folder, truth, said = told[preset]
    return folder, truth[job], said.get(job, [])


Pair = tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]


def both(pair: Pair) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Truth and answer of each attempt, as far as both have one."""
    return list(zip(pair[1], pair[2], strict=False))


def test_attempts_are_counted(pair: Pair) -> None:
    said = [(a["verdict"], (a["cause"] or {}).get("rule")) for a in pair[2]]
    assert len(pair[2]) == len(pair[1]), said
    assert [a["attempt"]["index"] for a in pair[2]] == list(range(len(pair[1])))


def test_verdict(pair: Pair) -> None:
    """A run that hangs without a word looks, in its finished log, like one whose log was copied while it ran."""
    for t, a in both(pair):
        assert a["verdict"] == ("running-at-end" if t["fault"] == "hang-silent" else t["verdict"])


def test_class(pair: Pair) -> None:
    """A slowdown ends well, so nothing classes it yet; every other fault has its class."""
    for t, a in both(pair):
        if t["class"] != "slow-path" and t["fault"] != "hang-silent":
            assert a["class"] == t["class"], (a["cause"] or {}).get("rule")


def test_steps(pair: Pair) -> None:
    """The run's own counter speaks: DeepSpeed prints its steps every few, Lightning's bar counts within the epoch."""
    for t, a in both(pair):
        p = a["progress"] or {}
        if t["framework"] == "deepspeed":
            assert 0 <= p["first_step"] - t["first_step"] < 10, p["format"]
            assert 0 <= t["last_step"] - p["last_step"] < 10, p["format"]
        elif t["framework"] == "lightning" and t["last_step"] > (p.get("total_steps") or 0):
            assert t["last_step"] % p["total_steps"] == p["last_step"], p["format"]
        else:
            assert (p.get("first_step"), p.get("last_step")) == (t["first_step"], t["last_step"]), p.get("format")


def test_framework(pair: Pair) -> None:
    """The generator's DeepSpeed runs under the HF Trainer, which prints its own bars: either name is right."""
    for t, a in both(pair):
        assert a["framework"] == t["framework"] or (t["framework"], a["framework"]) == ("deepspeed", "hf-trainer")


def test_cause_line(pair: Pair) -> None:
    """One of the lines the truth names; no line where nothing may be accused."""
    folder = pair[0]
    for t, a in both(pair):
        cause = a["cause"]
        if t["class"] == "slow-path":
            assert cause is None, "a slow run that completed accuses nobody"
        elif not t["causes"]:
            assert cause is None or t["verdict"] == "stalled", f"accuses {cause['rule']} line {cause['line']}"
        else:
            lines = {(str(folder / c["path"]), c["line"]) for c in t["causes"]}
            assert cause is not None, f"no cause; the truth has {sorted(lines)[:3]}"
            assert (cause["stream"], cause["line"]) in lines, (
                f"{cause['rule']} {cause['text'][:80]!r}, not one of {sorted(lines)[:3]}"
            )


def test_rank_and_node(pair: Pair) -> None:
    """The culprit's, or unknown; never another's. Where many printed the cause, its printer is no culprit and may be named."""
    for t, a in both(pair):
        cause = a["cause"]
        if cause is None or len(t["causes"]) > 1:
            continue
        assert cause["rank"] in (None, t["culprit_rank"])
        if t["culprit_node"] is not None:
            assert cause["node"] in (None, t["culprit_node"])


def test_a_culprit_that_prints_its_own_end_is_named(told: dict[str, Any]) -> None:
    """In the demo, OOM, lost GPU and full disk name their rank or node."""
    _, truth, said = told["demo"]
    for job in ("481207", "481214", "481228"):
        cause, t = said[job][0]["cause"], truth[job][0]
        assert cause["rank"] == t["culprit_rank"] or cause["node"] == t["culprit_node"]


@pytest.mark.parametrize("preset", PRESETS)
def test_no_job_is_invented(preset: str, told: dict[str, Any]) -> None:
    _, truth, said = told[preset]
    assert set(said) == set(truth)
