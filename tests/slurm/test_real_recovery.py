"""The whole of it on a real Slurm: a run goes wrong, is brought back, and is proven to be past the place where it failed; or is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.slurm.bed import Bed, wait_for
from tests.slurm.conftest import made
from tests.slurm.recovering import SITE, Watch, submit

from defib.adapters.act import spool
from defib.adapters.act.audit import verify

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def bed() -> Iterator[Bed]:
    """One for each test, as a watch acts on every job it sees. Requeued jobs wait 31 s here: long enough for the fence, short enough for a test."""
    yield from made(name="acted", cred_s=30, count=3)


Begin = Callable[..., Watch]


@pytest.fixture
def begin(bed: Bed, tmp_path: Path) -> Iterator[Begin]:
    """`begin(site, detect, prefix)`: a watch of this cluster; gone after the test, whatever became of it."""
    begun: list[Watch] = []

    def make(*more: Any, **named: Any) -> Watch:
        begun.append(Watch(bed, tmp_path / "state", *more, **named))
        return begun[-1]

    yield make
    for watch in begun:
        if watch.process.poll() is None:
            watch.die()


def restarts(bed: Bed, job: int) -> int:
    said = bed.check("scontrol", "-o", "show", "job", str(job))
    return int(said.split("Restarts=")[1].split()[0])


def test_a_crash_is_requeued_and_proven_where_slurm_lives_behind_a_prefix(
    bed: Bed, begin: Begin, tmp_path: Path
) -> None:
    login, went = tmp_path / "login", tmp_path / "went"
    login.write_text(f'#!/bin/sh\nprintf "%s " "$@" >>{went}; echo >>{went}\nexec "$@"\n')
    login.chmod(0o755)
    watch = begin(prefix=(str(login), "nice"))
    job = submit(bed, "-w", "n01", FAULT="crash", FAULT_NODE="n01", FAULT_STEP="12")
    watch.until(lambda: watch.was(job, "accepted"), "the requeue")
    assert watch.calls() == [f"requeue {job}"]
    # the node is mended while the job waits
    home = bed.home("nobody")
    toy = (home / "toy.py").read_text().replace('where in (node, "any")', "not step")
    (home / "toy.py").write_text(toy)
    watch.until(lambda: watch.was(job, "recovered"), "the proof", 120)
    assert restarts(bed, job) == 1
    case = watch.case(job)
    assert case is not None
    assert (case.judged.step, case.judged.klass) == (12, "gpu-hardware")
    assert case.reached is not None
    assert case.reached > 12
    assert watch.calls() == [f"requeue {job}"]
    watch.until(lambda: watch.sql("SELECT job FROM actions WHERE state = 'recovered'"), "the history to know")
    assert "loaded checkpoint" in (home / f"slurm-{job}.out").read_text()
    bed.check("scancel", str(job))
    watch.close()
    assert verify(str(tmp_path / "state/actions")).evidence == 1
    words = went.read_text().splitlines()
    assert all(w.startswith("nice ") for w in words)
    assert next(w for w in words if " requeue " in w).rstrip().endswith(f"scontrol requeue {job}")
    assert sum(" requeue " in w for w in words) == 1
    assert {"squeue", "scontrol", "sdiag"} <= {x for w in words for x in w.split()}, "every question goes the same way"


def test_a_hang_is_requeued_without_its_bad_node_and_proven(bed: Bed, begin: Begin, tmp_path: Path) -> None:
    watch = begin()
    job = submit(bed, FAULT="hang", FAULT_NODE="n01", FAULT_STEP="12")
    watch.until(lambda: watch.was(job, "planned"), "the hang to be seen")
    case = watch.case(job)
    assert case is not None
    assert case.gate == "independent-sign"
    assert watch.calls() == []
    spool.post(
        str(tmp_path / "state/inbox"),
        {
            "kind": "node",
            "node": "n01",
            "class": "gpu-hardware",
            "source": "nhc",
            "confidence": "certain",
            "expires_s": 3600,
        },
    )
    watch.until(lambda: watch.was(job, "started"), "the restart", 120)
    assert watch.calls() == [f"requeuehold Incomplete {job}", f"update JobId={job} ExcNodeList=n01", f"release {job}"]
    watch.until(lambda: watch.was(job, "recovered"), "the proof", 60)
    said = bed.check("scontrol", "-o", "show", "job", str(job))
    assert "ExcNodeList=n01" in said
    assert restarts(bed, job) == 1
    case = watch.case(job)
    assert case is not None
    assert case.judged.step == 12
    bed.check("scancel", str(job))
    watch.close()


def test_observe_decides_the_same_and_calls_nothing_until_the_policy_says_so(
    bed: Bed, begin: Begin, tmp_path: Path
) -> None:
    watch = begin({"mode": "observe"})
    job = submit(bed, FAULT="crash", FAULT_NODE="any", FAULT_STEP="8")
    watch.until(lambda: (c := watch.case(job)) is not None and c.plan is not None, "a plan")
    watch.watch(12)
    case = watch.case(job)
    assert case is not None
    assert case.plan is not None
    assert (case.state, case.gate, case.plan.verb) == ("planned", "mode", "requeue")
    assert not (tmp_path / "state/executor").exists()
    assert restarts(bed, job) == 0
    # the same watch, another policy: a bad file changes nothing, a good one counts from then on
    watch.policy("policy: recovery\nmode: axt\n")
    watch.until(lambda: "recovery.yaml:2:1" in watch.errors(), "the refusal")
    assert "did you mean 'act'" in watch.errors()
    watch.watch(3)
    assert (watch.case(job).gate, watch.calls()) == ("mode", [])  # type: ignore[union-attr]
    watch.policy(yaml.safe_dump(SITE))
    watch.until(lambda: watch.was(job, "accepted"), "the requeue")
    assert watch.calls() == [f"requeue {job}"]
    assert restarts(bed, job) == 1
    watch.close()


def test_a_job_that_completes_is_never_requeued(bed: Bed, begin: Begin, tmp_path: Path) -> None:
    watch = begin()
    job = submit(bed, steps=12)
    bed.until(job, "COMPLETED")
    watch.watch(15)
    assert watch.calls() == []
    assert restarts(bed, job) == 0
    assert watch.case(job) is None or watch.is_(job, "cleared")
    watch.close()


def test_refusals_name_the_first_closed_gate(bed: Bed, begin: Begin) -> None:
    watch = begin()
    wrong = {
        submit(bed, FAULT="crash", FAULT_NODE="any", FAULT_STEP="8", comment=""): "consent",
        submit(
            bed, FAULT="crash", FAULT_NODE="any", FAULT_STEP="8", comment='{"defib": {"restart": ["hang"]}}'
        ): "consent",
        submit(bed, "--no-requeue", FAULT="crash", FAULT_NODE="any", FAULT_STEP="8"): "identity",
        submit(bed, FAULT="exit:93", FAULT_NODE="any", FAULT_STEP="8"): "end",
    }
    for job, gate in wrong.items():
        watch.until(
            lambda job=job, gate=gate: watch.is_(job, "refused", "planned") and watch.case(job).gate == gate,  # type: ignore[misc,union-attr]
            f"the gate {gate}",
        )
    watch.watch(3)
    assert watch.calls() == []
    for job, gate in wrong.items():
        assert restarts(bed, job) == 0
        told = f"SELECT DISTINCT gate FROM decisions WHERE job LIKE '%/{job}' AND gate = '{gate}' AND value IS NOT NULL"
        assert watch.sql(told) == [(gate,)]
    watch.close()


def test_after_a_nodes_death_slurm_requeues_by_itself_and_nobody_does_it_twice(bed: Bed, begin: Begin) -> None:
    watch = begin()
    job = submit(bed, "-w", "n01")
    bed.until(job, "RUNNING")
    log = bed.home("nobody") / f"slurm-{job}.out"
    watch.until(lambda: log.exists() and "iteration" in log.read_text(), "its first step")
    bed.power_off("n01")
    bed.down("n01", "power")
    wait_for(lambda: restarts(bed, job) == 1, "Slurm to requeue it")
    watch.watch(25)
    assert watch.calls() == []
    assert restarts(bed, job) == 1
    assert watch.case(job) is None or watch.is_(job, "suspect", "cleared")
    watch.close()


def test_consent_taken_back_between_plan_and_call_is_no_call(bed: Bed, begin: Begin, tmp_path: Path) -> None:
    watch = begin()
    job = submit(bed, FAULT="hang", FAULT_NODE="any", FAULT_STEP="8")
    watch.until(lambda: watch.is_(job, "planned") and watch.case(job).gate == "independent-sign", "the plan")  # type: ignore[union-attr]
    revoked = '{"defib": {"restart": []}}'
    bed.check("scontrol", "update", f"JobId={job}", f"Comment={revoked}", user="nobody")
    spool.post(str(tmp_path / "state/inbox"), {"kind": "sign", "job": str(job), "source": "steps"})
    watch.until(lambda: watch.case(job).gate == "consent", "the gate")  # type: ignore[union-attr]
    watch.watch(5)
    assert watch.calls() == []
    assert restarts(bed, job) == 0
    bed.check("scancel", str(job))
    watch.close()


def test_a_slow_run_is_restarted_only_where_site_and_owner_both_want_it(bed: Bed, begin: Begin, tmp_path: Path) -> None:
    slow = {"bin_s": 1, "learn_bins": 4, "for_s": 6, "steps": 4}
    watch = begin({"act_on_slow": True}, {"slow": slow})
    wants = '{"defib": {"restart": ["slow"], "act_on_running": true}}'
    fault = {"FAULT": "slow", "FAULT_NODE": "any", "FAULT_STEP": "48"}
    yes, no = submit(bed, steps=400, comment=wants, **fault), submit(bed, steps=400, **fault)
    for job in (yes, no):
        watch.until(lambda job=job: watch.was(job, "planned", "issued", "accepted"), "a plan")  # type: ignore[misc]
        spool.post(str(tmp_path / "state/inbox"), {"kind": "sign", "job": str(job), "source": "steps"})
    watch.until(lambda: watch.was(yes, "accepted", "started", "recovered"), "the restart")
    assert watch.calls() == [f"requeue Incomplete {yes}"]
    (gate,) = watch.sql(f"SELECT gate, value FROM decisions WHERE job LIKE '%/{no}' ORDER BY seq DESC LIMIT 1")
    assert gate == ("consent", "not for slow, only for crash, hang")
    assert (restarts(bed, yes), restarts(bed, no)) == (1, 0)
    bed.check("scancel", str(yes), str(no))
    watch.close()
