"""Races on a real Slurm: whatever state a job is in, and whoever dies when, exactly one mutating call has its effect, or none."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.slurm.bed import Bed, wait_for
from tests.slurm.conftest import made

from defib.adapters.act import executor, switch, talk
from defib.adapters.act.client import ExecutorProcess
from defib.adapters.act.executor import Executor
from defib.adapters.journal.writer import Journal
from defib.adapters.slurm.calls import Commands
from defib.engine.jobs import AttemptKey
from defib.engine.recover.events import Returned
from defib.engine.recover.words import Order

pytestmark = pytest.mark.timeout(180)
FAILS, SLEEPS = "exit 7", "sleep 1000"


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    """A requeued job waits 31 s here, so that it does not run again while a test looks at it."""
    yield from made(name="races", cred_s=30, count=2, message_timeout=5)


class Caller:
    """An executor of this process with its own state, and the lock it asks."""

    def __init__(self, bed: Bed, folder: Path, commands: Commands | None = None) -> None:
        self.bed, self.folder = bed, folder
        self.commands = commands or Commands(conf=bed.conf)
        self.lock = Journal(str(folder / "actions"), ballast_bytes=4096)
        self.executor = self.fresh()
        self.number = 0

    def fresh(self) -> Executor:
        actions, stop = str(self.folder / "actions"), str(self.folder / "STOP")
        return Executor(
            str(self.folder / "executor"), lambda: switch.newest_epoch(actions), lambda: switch.stopped([stop]),
            lambda o: executor.call(self.commands, o),
        )  # fmt: skip

    def order(self, job: int, verb: str = "requeue", **changes: object) -> Order:
        self.number += 1
        now = talk.boot_us()
        running = changes.get("target") == "running"
        values: dict[str, object] = {
            "key": f"{self.number:032x}", "number": self.number, "verb": verb, "by": "id", "job_id": job, "array_task": None, "sluid": None,
            "incomplete": running, "expected": AttemptKey("races", job, None, 1, 0), "target": "terminal", "nodes": (), "read_us": now,
            "not_after_us": now + 2_000_000, "kill_after_s": 4.0, "epoch": 1,
            "release_by_us": 1 if verb == "requeuehold" else None,
        }  # fmt: skip
        return Order(**(values | changes))  # type: ignore[arg-type]

    def call(self, job: int, verb: str = "requeue", **changes: object) -> str:
        said = self.executor.take(self.order(job, verb, **changes), 0)
        return f"{said.answer} {said.code}".strip()

    def close(self) -> None:
        self.executor.close()
        self.lock.close()


@pytest.fixture
def caller(bed: Bed, tmp_path: Path) -> Iterator[Caller]:
    caller = Caller(bed, tmp_path)
    yield caller
    caller.close()
    bed.run("scancel", "-u", "nobody")


def restarts(bed: Bed, job: int | str) -> int:
    return int(bed.check("scontrol", "-o", "show", "job", str(job)).split("Restarts=")[1].split()[0])


def ended(bed: Bed, script: str = FAILS, *options: str, state: str = "FAILED") -> int:
    job = bed.submit(script, "--requeue", *options)
    bed.until(job, state)
    return job


def test_one_requeue_and_what_a_second_one_meets(bed: Bed, caller: Caller) -> None:
    job = ended(bed)
    assert caller.call(job) == "done"
    assert caller.call(job) == "rejected pending"
    assert restarts(bed, job) == 1


def test_a_running_job_and_the_second_call_on_it(bed: Bed, caller: Caller) -> None:
    job = bed.submit(SLEEPS, "--requeue")
    bed.until(job, "RUNNING")
    assert caller.call(job, "requeuehold", target="running") == "done"
    assert caller.call(job, "requeuehold", target="running").split()[0] in (
        "done",
        "rejected",
    )  # does nothing to one that waits
    assert restarts(bed, job) == 1
    assert caller.call(job, "exclude", target="held", nodes=("n02",)) == "done"
    assert "ExcNodeList=n02" in bed.check("scontrol", "-o", "show", "job", str(job))
    wait_for(lambda: bed.state(job) == "PENDING", "the old run to be gone")
    assert caller.call(job, "release", target="held") == "done"
    assert caller.call(job, "exclude", target="held", nodes=("n99",)) == "rejected bad-node"


@pytest.mark.parametrize("how", ["COMPLETED", "CANCELLED"])
def test_a_run_that_ended_meanwhile_is_not_brought_back(bed: Bed, caller: Caller, how: str) -> None:
    """The order meant a running job; by the time it is called the job is over."""
    job = bed.submit("exit 0" if how == "COMPLETED" else SLEEPS, "--requeue")
    if how == "CANCELLED":
        bed.until(job, "RUNNING")
        bed.check("scancel", str(job))
    bed.until(job, how)
    assert caller.call(job, "requeuehold", target="running") == "done"  # exit code 0 is no success
    assert caller.call(job, "requeue", target="running") == "done"
    assert (bed.state(job), restarts(bed, job)) == (how, 0)


def test_one_task_of_an_array_and_never_its_parent(bed: Bed, caller: Caller) -> None:
    job = bed.submit(FAILS, "--requeue", "--array=0-2")
    for task in range(3):
        bed.until(f"{job}_{task}", "FAILED")
    assert caller.call(job, by="task", array_task=1) == "done"
    assert [restarts(bed, f"{job}_{task}") for task in range(3)] == [0, 1, 0]


def test_a_suspended_job(bed: Bed, caller: Caller) -> None:
    job = bed.submit(SLEEPS, "--requeue")
    bed.until(job, "RUNNING")
    bed.check("scontrol", "suspend", str(job))
    bed.until(job, "SUSPENDED")
    before = restarts(bed, job)
    said = caller.call(job, "requeuehold", target="running")
    assert said == "done"
    assert restarts(bed, job) - before <= 1


def test_jobs_that_may_not_be_requeued(bed: Bed, caller: Caller) -> None:
    job = bed.submit(FAILS, "--no-requeue")
    bed.until(job, "FAILED")
    assert caller.call(job) == "rejected disabled"
    assert caller.call(999_999) == "rejected invalid-id"
    assert restarts(bed, job) == 0


def test_a_job_that_is_purged(frail: Bed, tmp_path: Path) -> None:
    caller, job = Caller(frail, tmp_path), ended(frail)
    wait_for(lambda: frail.state(job) == "", "the controller to forget it", 90)
    assert caller.call(job) == "rejected invalid-id"
    caller.close()


@pytest.mark.parametrize("ms", [1, 3, 6, 10, 20, 40])
def test_the_client_is_killed_in_the_middle(bed: Bed, caller: Caller, ms: int) -> None:
    """Whether it happened is not known, and it is not repeated."""
    job = ended(bed)
    order = caller.order(job)
    caller.executor.close()
    caller.commands = Commands(prefix=("timeout", "-s", "KILL", f"{ms / 1000}"), conf=bed.conf)
    caller.executor = caller.fresh()
    said = caller.executor.take(order, 0)
    assert said.answer in ("done", "unclear")
    again = caller.executor.take(dataclasses.replace(order, number=order.number + 1), 0)
    assert (again.answer, again.code) == ("not-run", "key")
    assert restarts(bed, job) <= 1


def test_the_executor_is_killed_in_the_middle(bed: Bed, caller: Caller, tmp_path: Path) -> None:
    """The client lives on without it, and is ended by its own deadline; the next executor knows that it does not know."""
    caller.executor.close()
    job, said = ended(bed), []  # type: ignore[var-annotated]
    client = ExecutorProcess(str(tmp_path / "executor"), str(tmp_path / "actions"), (), caller.commands, said.append)
    answers: list[Returned] = []
    deadline = time.monotonic() + 20
    client.ping(0)
    client.poll(talk.boot_us())
    client.ping(talk.boot_us())
    while client.ponged_us is None and time.monotonic() < deadline:
        answers += client.poll(talk.boot_us())
        time.sleep(0.01)
    client.order(caller.order(job), talk.boot_us())
    time.sleep(0.01)
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    while client._link is not None:
        answers += client.poll(talk.boot_us())
        time.sleep(0.01)
    client._due_us = 0
    again = dataclasses.replace(caller.order(job), key=f"{1:032x}")
    client.poll(talk.boot_us())
    time.sleep(1.0)
    client.order(
        dataclasses.replace(again, read_us=talk.boot_us(), not_after_us=talk.boot_us() + 20_000_000), talk.boot_us()
    )
    deadline = time.monotonic() + 20
    while not any(a.number == again.number for a in answers) and time.monotonic() < deadline:
        answers += client.poll(talk.boot_us())
        time.sleep(0.01)
    client.close()
    caller.executor = caller.fresh()
    assert restarts(bed, job) <= 1


def saved(bed: Bed) -> None:
    """The controller has written down what it knows by now: one that is killed forgets what it has not."""
    now = time.time()
    wait_for(lambda: (bed.root / "state/job_state").stat().st_mtime > now, "the controller to save its jobs")


def test_a_controller_that_is_down(bed: Bed, caller: Caller) -> None:
    job = ended(bed)
    bed.submit(SLEEPS, "-H")  # something to save, after the end
    saved(bed)
    bed.kill_controller()
    try:
        assert caller.call(job).startswith("unclear")  # refused at once, or no answer until the deadline
    finally:
        bed.start_controller()
    assert restarts(bed, job) == 0


def test_a_controller_that_hangs_carries_it_out_later(bed: Bed, caller: Caller) -> None:
    """The client is killed, the request lies in the queue: its end is not known, and it happens once."""
    job = ended(bed)
    bed.hang("slurmctld")
    try:
        order = caller.order(job)
        said = caller.executor.take(order, 0)
        assert said.answer == "unclear"
        again = caller.executor.take(dataclasses.replace(order, number=order.number + 1), 0)
        assert (again.answer, again.code) == ("not-run", "key")
    finally:
        bed.resume("slurmctld")
    time.sleep(2)
    assert restarts(bed, job) <= 1


def test_another_requeuer_came_first(bed: Bed, caller: Caller) -> None:
    job = ended(bed)
    bed.check("scontrol", "requeue", str(job), user="nobody")
    assert caller.call(job) == "rejected pending"
    assert restarts(bed, job) == 1


def test_the_kill_switch_before_each_verb(bed: Bed, caller: Caller, tmp_path: Path) -> None:
    job = ended(bed)
    (tmp_path / "STOP").touch()
    for verb, more in (
        ("requeue", {}), ("requeuehold", {}), ("exclude", {"target": "held", "nodes": ("n01",)}), ("release", {"target": "held"}),
    ):  # fmt: skip
        assert caller.call(job, verb, **more) == "not-run kill-switch"  # type: ignore[arg-type]
    assert restarts(bed, job) == 0


def test_through_a_wrapper(bed: Bed, caller: Caller, tmp_path: Path) -> None:
    """A script that stands for `kubectl exec` or ssh: the far side has an environment of its own."""
    far = tmp_path / "far"
    far.write_text(f'#!/bin/sh\nshift\nexport SLURM_CONF={bed.conf}\nexec sh -c "$*"\n')
    far.chmod(0o755)
    caller.commands = Commands(prefix=(str(far), "login-0"), shell=True, conf=bed.conf)
    job = ended(bed)
    assert caller.call(job) == "done"
    assert caller.call(job) == "rejected pending"
    assert restarts(bed, job) == 1
