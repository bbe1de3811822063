"""A real Slurm for the tests that need one. Where none can run they are skipped with the reason; where DEFIB_REQUIRE names `slurm` that is a failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from tests.needs import lacking
from tests.slurm.bed import Bed, missing

from defib.adapters.slurm.calls import Commands
from defib.adapters.slurm.reader import Scheduler
from defib.engine.jobs import ClusterRead, JobFacts


def made(**options: object) -> Iterator[Bed]:
    """A cluster that is up, and gone afterwards."""
    if (why := missing()) is not None:
        lacking("slurm", f"no Slurm can run here: {why}")
    bed = Bed(**options).start()  # type: ignore[arg-type]
    try:
        yield bed
    finally:
        bed.stop()


@pytest.fixture(scope="session")
def slurm() -> Iterator[Bed]:
    """Four nodes, shared by tests that break nothing."""
    yield from made()


@pytest.fixture
def frail() -> Iterator[Bed]:
    """A cluster of one's own: its controller forgets finished jobs within seconds and is soon given up."""
    yield from made(name="frail", count=2, min_job_age=2, message_timeout=5, slurmd_timeout=8, first_job=7001)


def scheduler(bed: Bed, *, text: bool = False, **options: object) -> Scheduler:
    """A reader of this cluster; with text it begins as if JSON had failed."""
    made = Scheduler(Commands(conf=bed.conf), interval_us=100_000, **options)  # type: ignore[arg-type]
    made.form = "text" if text else None
    return made


def polled(reader: Scheduler) -> ClusterRead:
    """The next read."""
    while (read := reader.poll(time.time_ns() // 1000)) is None:
        time.sleep(0.01)
    return read


Look = Callable[[], dict[str, JobFacts]]


@pytest.fixture(params=["json", "text", "single"])
def look(request: pytest.FixtureRequest, slurm: Bed) -> Callable[..., dict[str, JobFacts]]:
    """`look(ids…)`: label -> facts, read in bulk as JSON, in bulk as text, or one by one. What is gone is not in it."""
    reader = scheduler(slurm, text=request.param == "text")

    def go(*ids: int | str) -> dict[str, JobFacts]:
        if request.param == "single":
            read = reader.read([str(i) for i in ids], time.time_ns() // 1000)
        else:
            read = polled(reader)
        assert read.ok, read.troubles
        wanted = {str(i).split("_")[0] for i in ids}
        assert not [t for t in read.troubles if t.startswith("job ")], read.troubles
        return {j.label: j for j in read.jobs if str(j.het_job_id or j.array_job_id or j.job_id) in wanted}

    go.form = request.param  # type: ignore[attr-defined]
    return go
