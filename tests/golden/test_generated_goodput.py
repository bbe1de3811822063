"""Goodput of generated jobs with real restarts, against the generator's own account of where the time went."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pytest

from defib.adapters import wire
from loggen.model import Fault, Job
from loggen.presets import hosts
from loggen.render import write
from loggen.timeline import Act, play

SEED = 11
STAMP_S = 1.01  # these frameworks print whole seconds, cut off
FRAMEWORKS = ("megatron-lm", "torchtitan", "fairseq")
BASE = Job(
    "chain", "48900", "megatron-lm", hosts(1, 2), steps=900, step_s=2.0, log_every=10, checkpoint_every=200, eval_every=300, traps=True, chatter=4,
)  # fmt: skip
CASES = [
    (replace(BASE, framework=framework, job_id=str(48_900 + 10 * i + k), name=f"chain-{kind}"), Fault(kind, step=step))
    for i, framework in enumerate(FRAMEWORKS)
    for k, (kind, step) in enumerate([("preempted", 533), ("node-failure", 777), ("restart-in-job", 455)])
]
SLOWED = replace(BASE, job_id="48990", name="slowed", log_every=5, eval_every=0), Fault("slowdown", step=400, depth=2.0)
HUNG = (
    replace(BASE, job_id="48991", name="hung", framework="torchtitan", layout="per-rank"),
    Fault("nccl-timeout", step=433, rank=5),
)


@dataclass(frozen=True)
class Told:
    """What the generator knows of one attempt: (step, second) of every printed step, its ends, its last checkpoint."""

    steps: list[tuple[int, float]]
    act: Act

    @staticmethod
    def of(act: Act) -> Told:
        return Told([(e.step, e.at) for e in act.events if e.step is not None], act)

    def kept(self, resumed: int) -> list[tuple[int, float]]:
        return [(s, at) for s, at in self.steps if s <= resumed]


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """View -> job -> rows."""
    folder = tmp_path_factory.mktemp("chains")
    write(folder / "logs", [*CASES, SLOWED, HUNG], SEED)
    db = str(folder / "history.duckdb")
    wire.replay(wire.ReplayOptions([str(folder / "logs")], db), lambda *_: None)
    con = duckdb.connect(db, read_only=True)
    out: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for view in ("attempt_time", "goodput", "fleet_goodput"):
        result = con.execute(f"SELECT * FROM {view} ORDER BY ALL")
        names = [d[0] for d in result.description]
        out[view] = {}
        for row in result.fetchall():
            named = dict(zip(names, row, strict=True))
            out[view].setdefault(named.get("job", ""), []).append(named)
    con.close()
    return out


@pytest.fixture(params=CASES, ids=[f"{j.framework}-{f.kind}" for j, f in CASES])
def chain(request: pytest.FixtureRequest, views: Any) -> tuple[Told, Told, list[dict[str, Any]], dict[str, Any]]:
    """The truth of both attempts, their rows, their job's row."""
    job, fault = request.param
    first, second = (Told.of(a) for a in play(job, fault, SEED))
    return first, second, views["attempt_time"][job.job_id], views["goodput"][job.job_id][0]


Chain = tuple[Told, Told, list[dict[str, Any]], dict[str, Any]]


def test_steps_done_again(chain: Chain) -> None:
    """From the last checkpoint to the last printed step: steps exactly, seconds to the stamps' resolution."""
    first, _, rows, _ = chain
    resumed = first.act.saved
    assert len(rows) == 2
    assert rows[0]["repeated_steps"] == first.steps[-1][0] - resumed > 0
    lost = first.steps[-1][1] - first.kept(resumed)[-1][1]
    assert rows[0]["repeated_s"] == pytest.approx(lost, abs=2 * STAMP_S)
    assert (rows[1]["repeated_steps"], rows[1]["repeated_s"]) == (0, 0)


def test_time_of_steps_that_counted(chain: Chain) -> None:
    first, second, rows, _ = chain
    kept = first.kept(first.act.saved)
    assert rows[0]["counted_s"] == pytest.approx(kept[-1][1] - kept[0][1], abs=2 * STAMP_S)
    assert rows[1]["counted_s"] == pytest.approx(second.steps[-1][1] - second.steps[0][1], abs=2 * STAMP_S)


def test_parts_add_up_to_the_wall_time(chain: Chain) -> None:
    _, _, rows, job = chain
    for r in rows:
        assert r["startup_s"] + r["training_s"] + r["stall_s"] + r["ending_s"] == pytest.approx(r["wall_s"], abs=1e-3)
        assert min(r[k] for k in ("startup_s", "training_s", "stall_s", "ending_s")) >= 0
    parts = ("startup_s", "counted_s", "repeated_s", "stall_s", "ending_s", "gap_s")
    assert sum(job[k] for k in parts) == pytest.approx(job["wall_s"], abs=1e-3)


def test_the_gap_and_the_ratio(chain: Chain) -> None:
    """Lines without a stamp or a rule are not seen, so a gap seen is never shorter, and the wall time never longer, than the true one."""
    first, second, rows, job = chain
    pause = second.act.started - first.act.ended
    assert pause - 2 * STAMP_S <= rows[0]["gap_s"] <= second.steps[0][1] - first.steps[-1][1] + 2 * STAMP_S
    wall = second.act.ended - first.act.started
    assert wall - 60 < job["wall_s"] < wall + 2 * STAMP_S
    kept = first.kept(first.act.saved)
    counted = kept[-1][1] - kept[0][1] + second.steps[-1][1] - second.steps[0][1]
    assert job["ettr"] == pytest.approx(counted / wall, abs=0.03)
    assert job["ettr"] < job["kept_ratio"], "steps alone do not know of gaps and start-up"


def test_a_slowdown_costs_its_share(views: Any) -> None:
    """From step 400 on every step takes twice as long, so half of the time until the last step is lost."""
    (act,) = play(*SLOWED, SEED)
    told = Told.of(act)
    slow = told.steps[-1][1] - told.kept(400)[-1][1]
    (row,) = views["attempt_time"]["48990"]
    assert row["slow_s"] == pytest.approx(slow, rel=0.05)
    assert row["slow_lost_s"] == pytest.approx(slow / 2, rel=0.1)
    assert row["counted_s"] == pytest.approx(told.steps[-1][1] - told.steps[0][1], abs=2 * STAMP_S), (
        "slow steps count all the same"
    )


def test_the_wait_for_a_watchdog_is_a_stall(views: Any) -> None:
    """Nothing moves after the last step until the timeout of ten minutes has passed."""
    (act,) = play(*HUNG, SEED)
    told = Told.of(act)
    (row,) = views["attempt_time"]["48991"]
    assert row["training_s"] == pytest.approx(told.steps[-1][1] - told.steps[0][1], abs=2 * STAMP_S)
    assert 600 - STAMP_S <= row["stall_s"] <= act.ended - told.steps[-1][1] + STAMP_S
    assert views["goodput"]["48991"][0]["stall_s"] == row["stall_s"]


def test_the_fleet(views: Any) -> None:
    jobs = [r for rows in views["goodput"].values() for r in rows]
    (fleet,) = views["fleet_goodput"][""]
    assert (fleet["jobs"], fleet["jobs_known"], fleet["attempts"]) == (len(jobs), len(jobs), 2 * len(CASES) + 2)
    assert fleet["ettr"] == pytest.approx(sum(j["counted_s"] for j in jobs) / sum(j["wall_s"] for j in jobs), abs=1e-4)
