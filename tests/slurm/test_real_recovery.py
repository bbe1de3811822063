"""The whole of it on a real Slurm: a run goes wrong, is brought back, and is proven to be past the place where it failed; or is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.slurm.bed import Bed
from tests.slurm.conftest import made
from tests.slurm.recovering import Watch, submit

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


def test_a_crash_is_requeued_and_proven(bed: Bed, begin: Begin, tmp_path: Path) -> None:
    watch = begin()
    job = submit(bed, "-w", "n01", FAULT="crash", FAULT_NODE="n01", FAULT_STEP="12")
    watch.until(lambda: watch.is_(job, "accepted"), "the requeue")
    assert watch.calls() == [f"requeue {job}"]
    # the node is mended while the job waits
    home = bed.home("nobody")
    toy = (home / "toy.py").read_text().replace('where in (node, "any")', "not step")
    (home / "toy.py").write_text(toy)
    watch.until(lambda: watch.is_(job, "recovered"), "the proof", 120)
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


def test_a_hang_is_requeued_without_its_bad_node_and_proven(bed: Bed, begin: Begin, tmp_path: Path) -> None:
    watch = begin()
    job = submit(bed, FAULT="hang", FAULT_NODE="n01", FAULT_STEP="12")
    watch.until(lambda: watch.is_(job, "planned"), "the hang to be seen")
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
    watch.until(lambda: watch.is_(job, "started"), "the restart", 120)
    assert watch.calls() == [f"requeuehold Incomplete {job}", f"update JobId={job} ExcNodeList=n01", f"release {job}"]
    watch.until(lambda: watch.is_(job, "recovered"), "the proof", 60)
    said = bed.check("scontrol", "-o", "show", "job", str(job))
    assert "ExcNodeList=n01" in said
    assert restarts(bed, job) == 1
    case = watch.case(job)
    assert case is not None
    assert case.judged.step == 12
    bed.check("scancel", str(job))
    watch.close()


def test_observe_decides_the_same_and_calls_nothing(bed: Bed, begin: Begin, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("comment", "options", "fault", "gate"),
    [
        ("", (), "crash", "consent"),
        ('{"defib": {"restart": ["hang"]}}', (), "crash", "consent"),
        (None, ("--no-requeue",), "crash", "identity"),
        (None, (), "exit:93", "end"),
    ],
    ids=["no-comment", "not-for-crashes", "no-requeue", "exit-93"],
)
def test_refusals_name_the_first_closed_gate(
    bed: Bed, begin: Begin, comment: str | None, options: tuple[str, ...], fault: str, gate: str
) -> None:
    watch = begin()
    more = {} if comment is None else {"comment": comment}
    job = submit(bed, *options, FAULT=fault, FAULT_NODE="any", FAULT_STEP="8", **more)
    watch.until(lambda: watch.is_(job, "refused", "planned") and watch.case(job).gate == gate, f"the gate {gate}")  # type: ignore[union-attr]
    watch.watch(3)
    assert watch.calls() == []
    assert restarts(bed, job) == 0
    watch.close()
