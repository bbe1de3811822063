"""A controller that is down, hung, or forgets: a read that failed says so, in time, and changes nothing. The testbed's own promises, too."""

from __future__ import annotations

import os
import time

from tests.slurm.bed import Bed, wait_for
from tests.slurm.conftest import polled, scheduler

from defib.adapters.slurm.calls import Commands
from defib.adapters.slurm.reader import Scheduler


def test_down_then_up(frail: Bed) -> None:
    i = frail.submit("sleep 300")
    frail.until(i, "RUNNING")
    reader = scheduler(frail, deadline_s=4.0)
    assert polled(reader).ok
    time.sleep(5.5)  # the controller saves its state within 5 s: without, the job would wait again
    frail.kill_controller()
    began = time.monotonic()
    read = polled(reader)
    assert time.monotonic() - began < 15
    assert (read.ok, read.jobs) == (False, ())
    assert read.troubles
    assert read.troubles[0].startswith("the scheduler could not be read: ")
    single = reader.read([str(i)], 0, deadline_s=4.0)
    assert (single.ok, single.jobs) == (False, ())
    facts, troubles = reader.cluster(4.0)
    assert facts is None
    assert troubles
    frail.start_controller()
    wait_for(lambda: polled(reader).ok, "a good read")
    assert [j.job_id for j in polled(reader).jobs] == [i]


def test_hung_is_given_up_at_the_deadline_and_never_asked_twice_at_once(frail: Bed) -> None:
    reader = Scheduler(Commands(conf=frail.conf), interval_us=100_000, deadline_s=1.0)
    assert polled(reader).ok
    frail.hang("slurmctld")
    began, slowest, read = time.monotonic(), 0.0, None
    while read is None and time.monotonic() - began < 20:
        before = time.monotonic()
        read = reader.poll(time.time_ns() // 1000)
        slowest = max(slowest, time.monotonic() - before)
        assert len(running_squeues(frail)) <= 1
        time.sleep(0.02)
    assert read is not None
    assert not read.ok
    assert "no answer within 1 s" in read.troubles[0]
    assert slowest < 0.5, "a poll never waits for the scheduler"
    assert running_squeues(frail) == []
    frail.resume("slurmctld")
    wait_for(lambda: polled(reader).ok, "a good read")


def running_squeues(bed: Bed) -> list[int]:
    """PIDs of squeue processes that ask this cluster."""
    out = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line, open(f"/proc/{pid}/environ", "rb") as env:
                words, seen = line.read().split(b"\0"), env.read()
        except OSError:
            continue
        if words[0].endswith(b"squeue") and bed.conf.encode() in seen:
            out.append(int(pid))
    return out


def test_purged_jobs_are_absent(frail: Bed) -> None:
    i = frail.submit("true")
    reader = scheduler(frail)
    frail.until(i, "COMPLETED")
    assert [j.state for j in polled(reader).jobs] == ["COMPLETED"]
    frail.until(i, "")
    read = reader.read([str(i)], 0)
    assert (read.ok, read.jobs) == (True, ())
    assert (polled(reader).ok, polled(reader).jobs) == (True, ())


def test_a_node_loses_power_and_comes_back(frail: Bed) -> None:
    i = frail.submit("sleep 300", "-w", "n02", "--no-requeue")
    frail.until(i, "RUNNING")
    frail.power_off("n02")
    frail.down("n02", "power")
    frail.until(i, "NODE_FAIL")
    frail.power_on("n02")
    frail.up("n02")
    wait_for(lambda: frail.states().get("n02") == "IDLE", "n02 to be back")
    frail.hang("n01")
    wait_for(lambda: frail.states().get("n01", "").endswith("*"), "n01 to be missed")
    nodes, _ = scheduler(frail).nodes()
    assert nodes is not None
    hung = next(n for n in nodes if n.name == "n01")
    assert not hung.usable
    assert "NOT_RESPONDING" in hung.flags
    frail.resume("n01")
    wait_for(lambda: frail.states().get("n01") == "IDLE", "n01 to be back")


def test_stop_leaves_nothing() -> None:
    from tests.slurm.conftest import made

    beds = made(name="gone", count=2, first_job=9001)
    bed = next(beds)
    i = bed.submit("setsid sleep 4242 & sleep 4243")  # a child that leaves its job's process group
    bed.until(i, "RUNNING")
    wait_for(lambda: len(sleepers()) == 2, "both children")
    root = bed.root
    began = time.monotonic()
    beds.close()
    assert time.monotonic() - began < 10
    wait_for(lambda: sleepers() == [], "the children to be gone", 5)
    assert not root.exists()


def sleepers() -> list[str]:
    out = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                words = line.read().split(b"\0")
        except OSError:
            continue
        if words[:1] == [b"sleep"] and words[1] in (b"4242", b"4243"):
            out.append(pid)
    return out
