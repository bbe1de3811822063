"""Patterns of real jobs: where defib says that a job writes, and where the file really appears."""

from __future__ import annotations

import os
import time

import pytest
from tests.slurm.bed import Bed, wait_for
from tests.slurm.conftest import polled, scheduler

from defib.adapters.slurm import paths
from defib.engine.jobs import JobFacts

PATTERNS = [
    b"", b"o-%j.txt", b"%x-%j.log", b"%x_%A_%a.log", b"N-%N-%j.log", b"n-%n-t-%t-%j.log", b"u-%u-%j.log", b"s-%s-%j.log", b"J-%J.log",
    b"5-%5j.log", b"15-%15j.log", b"w-%3x-%4a-%j.log", b"pc-%%-%j.log", b"pj-%%j-%j.log", b"odd-%q-%j.log", b"r-%r-%b-%j.log", b"bs\\\\-%j.log",
    b"b1\\-%j.log", b"end-%j-%", b"./here/../dot-%j.log", b"uml-\xc3\xa4-%j.log", b"raw-\xff-%j.log", b"b l a n k-%j.log", b"star-*-[%j]-?.log",
]  # fmt: skip
NAME = b"my %j job"


def found(facts: JobFacts) -> list[bytes]:
    logs = paths.logs(facts)
    assert logs.troubles == ()
    return [p.path for p in logs.paths]


@pytest.fixture(scope="module")
def written(slurm: Bed) -> dict[int, tuple[bytes, bytes]]:
    """job -> (pattern, folder); every job has written one line into its log and ended."""
    jobs = {}
    for n, pattern in enumerate(PATTERNS):
        folder = slurm.home("nobody") / f"p{n}"
        (folder / "here").mkdir(parents=True)
        os.chown(folder, 65534, 65534)
        options = [b"-D", os.fsencode(folder), b"-J", NAME, *([b"-o", pattern] if pattern else [])]
        jobs[slurm.submit("echo here", *options)] = (pattern, os.fsencode(folder))
    for i in jobs:
        slurm.until(i, "COMPLETED", "FAILED")
    return jobs


def really(folder: bytes) -> list[bytes]:
    return [os.path.join(folder, n) for n in os.listdir(folder) if n != b"here"]


@pytest.mark.parametrize("form", ["json", "text", "single"])
def test_the_path_is_the_file_that_appears(slurm: Bed, written: dict[int, tuple[bytes, bytes]], form: str) -> None:
    reader = scheduler(slurm, text=form == "text")
    reader.cluster()  # what this release knows of symbols
    if form == "single":
        read = reader.read([str(i) for i in written], 0)
    else:
        read = polled(reader)
    assert read.ok, read.troubles
    facts = {j.job_id: j for j in read.jobs}
    wrong = {
        pattern: (found(facts[i]), really(folder))
        for i, (pattern, folder) in written.items()
        if found(facts[i]) != really(folder)
    }
    assert not wrong


@pytest.mark.parametrize("form", ["json", "text", "single"])
def test_tasks_and_two_channels(slurm: Bed, form: str) -> None:
    home = os.fsencode(slurm.home("nobody"))
    array = slurm.submit("echo out; echo err >&2", "--array=3,5", "-o", "ar_%A_%a_%j.out", "-e", "ar_%A_%a.err")
    plain = slurm.submit("true", "--array=7")
    for task in (f"{array}_3", f"{array}_5", f"{plain}_7"):
        slurm.until(task, "COMPLETED")
    reader = scheduler(slurm, text=form == "text")
    read = reader.read([str(array), str(plain)], 0) if form == "single" else polled(reader)
    facts = {j.label: j for j in read.jobs}
    for task in (3, 5):
        f = facts[f"{array}_{task}"]
        logs = {p.channel: p.path for p in paths.logs(f).paths}
        assert logs == {
            "out": b"%s/ar_%d_%d_%d.out" % (home, array, task, f.job_id),
            "err": b"%s/ar_%d_%d.err" % (home, array, task),
        }
        assert all(map(os.path.exists, logs.values()))
    (log,) = paths.logs(facts[f"{plain}_7"]).paths
    assert log.path == b"%s/slurm-%d_7.out" % (home, plain)
    assert os.path.exists(log.path)


def test_interactive_jobs_have_no_log(slurm: Bed) -> None:
    done = slurm.run("srun", "-J", "inter", "true", user="nobody")
    assert done.returncode == 0, done.stderr
    for text in (False, True):
        read = polled(scheduler(slurm, text=text))
        (facts,) = [j for j in read.jobs if j.name == "inter"]
        assert (facts.batch, facts.stdout, facts.stderr) == (False, None, None)


def test_a_name_that_climbs_is_told_not_followed(slurm: Bed) -> None:
    i = slurm.submit("true", "-J", "../../../../etc/passwd", "-o", "%x", "--hold")
    try:
        read = polled(scheduler(slurm))
        (facts,) = [j for j in read.jobs if j.job_id == i]
        logs = paths.logs(facts, ("{work_dir}/{name}/*",), (os.fsencode(slurm.root / "home"),))
        assert logs.paths == ()
        assert logs.troubles == (f"job {i}: its out is not followed: its path leaves the folders logs are allowed in",)
    finally:
        slurm.check("scancel", str(i))


def test_the_node_in_a_name_changes_with_the_run(slurm: Bed) -> None:
    i = slurm.submit("sleep 300", "-o", "node-%N-%j.log", "-w", "n01")
    slurm.until(i, "RUNNING")
    reader = scheduler(slurm)

    def path() -> list[bytes]:
        return [p for j in polled(reader).jobs if j.job_id == i for p in found(j)]

    first = b"%s/node-n01-%d.log" % (os.fsencode(slurm.home("nobody")), i)
    assert path() == [first]
    wait_for(lambda: os.path.exists(first), "the log")
    slurm.check("scontrol", "requeuehold", str(i))
    slurm.until(i, "PENDING")
    slurm.check("scontrol", "update", f"JobId={i}", "ReqNodeList=n02")
    slurm.check("scontrol", "release", str(i))
    slurm.begin_again(i)
    second = first.replace(b"n01", b"n02")
    assert path() == [second]
    wait_for(lambda: os.path.exists(second), "the second run's log")
    slurm.check("scancel", str(i))
    time.sleep(0)
