"""The executor against a scontrol that writes down how it was called: at most one call per key, whatever dies when."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time

import orjson
import pytest
from tests.act.world import World, answers, finished, now_us, order, up

from defib.adapters.act import executor, talk, verbs
from defib.adapters.journal import segments
from defib.adapters.journal.writer import Journal
from defib.engine.recover.events import Returned
from defib.engine.words import StoreError

AHEAD = 1_000_000_000_000


def word(said: Returned) -> str:
    return f"{said.answer} {said.code}".strip()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "requeue 1001"),
        ({"verb": "requeue", "incomplete": True, "target": "running"}, "requeue Incomplete 1001"),
        ({"verb": "requeuehold", "release_by_us": 1}, "requeuehold 1001"),
        (
            {"verb": "requeuehold", "incomplete": True, "target": "running", "release_by_us": 1},
            "requeuehold Incomplete 1001",
        ),
        ({"by": "task", "array_task": 7}, "requeue 1001_7"),
        ({"by": "sluid", "sluid": "s0123456789ABC"}, "requeue s0123456789ABC"),
        ({"verb": "exclude", "target": "held", "nodes": ("n01", "n03")}, "update JobId=1001 ExcNodeList=n01,n03"),
        ({"verb": "release", "target": "held"}, "release 1001"),
    ],
)
def test_an_order_is_one_fixed_command(world: World, changes: dict[str, object], words: str) -> None:
    made = world.executor()
    assert word(made.take(order(now_us(), **changes), AHEAD)) == "done"
    assert world.calls == [words]
    made.close()


def test_what_no_order_can_say() -> None:
    for changes in (
        {"job_id": 0},
        {"job_id": 1 << 40},
        {"by": "task"},
        {"verb": "exclude", "target": "held", "nodes": ("n1;rm",)},
    ):
        with pytest.raises(ValueError, match="no order"):
            order(0, **changes)
    raw = orjson.loads(talk.ask(order(5), 0, 5))
    for odd in (
        {"verb": "cancel"},
        {"verb": "scancel"},
        {"nodes": ["--all"], "verb": "exclude", "target": "held"},
        {"extra": 1},
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - which one differs
            talk.asked(orjson.dumps(raw | {"order": raw["order"] | odd}))
    with pytest.raises(ValueError, match="bytes"):
        talk.asked(b" " * (talk.PACKET_MAX + 1))


def test_the_first_reason_not_to_run_is_said(world: World) -> None:
    made = world.executor()
    now = now_us()
    assert word(made.take(order(now - 3_000_000), AHEAD)) == "not-run late"
    assert word(made.take(order(now + 60_000_000), AHEAD)) == "not-run late"  # a read of the future is none
    assert word(made.take(order(now, epoch=2), AHEAD)) == "not-run epoch"
    world.stop.touch()
    assert word(made.take(order(now), AHEAD)) == "not-run kill-switch"
    world.stop.unlink()
    assert world.calls == []
    # a call that was not begun has used nothing up but its number
    assert word(made.take(order(now_us(), 1), AHEAD)) == "not-run key"
    assert word(made.take(order(now_us(), 2), AHEAD)) == "done"
    assert word(made.take(order(now_us(), 3), AHEAD)) == "not-run key"
    assert word(made.take(order(now_us(), 4, reissue=True), AHEAD)) == "done"
    assert word(made.take(order(now_us(), 5, reissue=True), AHEAD)) == "not-run key"
    assert len(world.calls) == 2
    made.close()


def test_the_kill_switch_is_looked_at_after_the_intent_is_on_disk(world: World) -> None:
    """Thrown at the last moment, while the intent was being written."""

    def stopped() -> bool:
        kinds = [r.kind for r in segments.read(str(world.state))]
        assert kinds[-1] == "intent"
        return True

    made = world.executor(stopped=stopped)
    assert word(made.take(order(now_us()), AHEAD)) == "not-run kill-switch"
    made.close()
    assert world.calls == []


def test_a_switch_that_cannot_be_looked_at_stops(world: World) -> None:
    from defib.adapters.act import switch

    assert not switch.stopped([str(world.stop)])
    assert switch.stopped([str(world.calls_file / "below a file")]) is False  # nothing there yet
    world.calls_file.write_text("")
    assert switch.stopped([str(world.calls_file / "below a file")])
    world.stop.symlink_to("nowhere")
    assert switch.stopped([str(world.stop)])


@pytest.mark.parametrize("why", ["late", "epoch"])
def test_what_changes_while_the_intent_is_written_stops_the_call(world: World, why: str) -> None:
    seen = {"newest": iter([1, 2]), "boot": iter([100, 100 + 3_000_000])}
    newest = (lambda: next(seen["newest"])) if why == "epoch" else (lambda: 1)
    clock = [10, 10, 10] if why == "epoch" else [10, 5_000_000, 5_000_000]
    times = iter(clock)
    made = world.executor(newest=newest, boot_us=lambda: next(times))
    assert word(made.take(order(0), 0)) == f"not-run {why}"
    made.close()
    assert world.calls == []


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (finished(), "done"),
        (finished(1, b"Requested operation is presently disabled for job 6"), "rejected disabled"),
        (finished(1, b"Job is pending execution for job 2"), "rejected pending"),
        (finished(1, b"Job is no longer pending execution for job 4"), "rejected not-pending"),
        (finished(1, b"Only batch jobs are accepted or processed for job 40"), "rejected batch-only"),
        (finished(1, b"Access/permission denied for job 6"), "rejected access"),
        (finished(1, b"Invalid user id for job 6"), "rejected access"),
        (finished(1, b"Invalid job id specified for job 6"), "rejected invalid-id"),
        (finished(1, b"Job has already finished for job 5\nslurm_suspend error: Job has already finished"), "rejected finished"),
        (finished(1, b"Invalid node name specified for job 4"), "rejected bad-node"),
        (finished(1, b"Job not heterogeneous job leader for job 46"), "rejected not-leader"),
        (finished(1, b"Unexpected message received for job 7"), "unclear unreachable"),
        (finished(1, b"slurm_requeue error: Unable to contact slurm controller (connect failure)"), "unclear unreachable"),
        (finished(1, b"Socket timed out on send/recv operation"), "unclear unreachable"),
        (finished(1, b"41_0,3: No error\n41_1-2: Job is pending execution"), "unclear unreachable"),
        (finished(1, b"something of a newer release"), "unclear exit-1"),
        (finished(1, b"Job is pending execution\nAccess/permission denied"), "unclear exit-1"),
        (finished(137), "unclear killed"),
        (finished(None, timed_out=True), "unclear killed"),
        (finished(None, failed="scontrol cannot be run"), "not-run cannot-run"),
    ],
)  # fmt: skip
def test_what_slurm_says_is_understood_or_unclear(world: World, done: object, said: str) -> None:
    made = world.executor(run=lambda _: done)
    assert word(made.take(order(now_us()), AHEAD)) == said
    made.close()


def test_a_client_that_hangs_is_killed(world: World) -> None:
    world.scontrol("sleep 60")
    made = world.executor()
    began = time.monotonic()
    assert word(made.take(order(now_us(), kill_after_s=1.0), AHEAD)) == "unclear killed"
    assert time.monotonic() - began < 10
    made.close()


def test_no_room_for_the_intent_is_no_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world.executor()

    def full(_: Journal) -> None:
        raise StoreError("full")

    monkeypatch.setattr(Journal, "sync", full)
    assert word(made.take(order(now_us()), AHEAD)) == "not-run journal"
    monkeypatch.undo()
    assert world.calls == []
    made.close()


def test_it_sees_no_log() -> None:
    """Nothing that reads logs is loaded in the process that calls."""
    code = "import sys, defib.adapters.act.executor; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    for name in ("hyperscan", "polars", "duckdb", "watchfiles", "yaml", "defib.adapters.tail", "defib.adapters.matching",
                 "defib.adapters.slurm.reader", "defib.engine.core", "defib.engine.scan", "defib.engine.blocks"):  # fmt: skip
        assert name not in loaded
    assert "defib.adapters.act.verbs" in loaded


def test_orders_travel_and_come_back(world: World) -> None:
    client = world.process()
    up(client)
    assert client.epoch == 1
    client.order(order(now_us()), now_us())
    (said,) = answers(client)
    assert (said.number, said.key, word(said)) == (1, f"{1:032x}", "done")
    assert said.began_us is not None
    assert abs(said.began_us - now_us()) < 5_000_000
    client.close()
    assert world.calls == ["requeue 1001"]


def test_a_newer_controller_fences_the_older(world: World) -> None:
    client = world.process()
    up(client)
    world.journal.close()
    world.journal = Journal(str(world.actions), ballast_bytes=4096)
    client.order(order(now_us()), now_us())
    assert [word(s) for s in answers(client)] == ["not-run epoch"]
    client.close()
    assert world.calls == []


def test_two_executors_at_once(world: World) -> None:
    """The second waits for the first to end; what the first has called, the second does not call again."""
    world.scontrol("sleep 0.5")
    one, two = world.process(), world.process()
    up(one)
    two.poll(now_us())
    one.order(order(now_us()), now_us())
    two.order(order(now_us(), not_after_us=now_us() + 60_000_000), now_us())
    assert [word(s) for s in answers(one)] == ["done"]
    assert answers(two, seconds=0.5) == []
    one.close()
    assert [word(s) for s in answers(two)] == ["not-run key"]
    two.close()
    assert world.calls == ["requeue 1001"]


@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_moment_it_calls_at_most_once_per_key(world: World, seed: int) -> None:
    """The same order is handed to process after process, each killed somewhere between the order and its answer."""
    rng = random.Random(seed)
    world.scontrol("sleep 0.02")
    said: list[str] = []
    got: list[Returned] = []
    client = world.process(said)
    same = order(now_us(), not_after_us=now_us() + 600_000_000)
    for _ in range(3):
        client._due_us = 0
        up(client)
        client.order(dataclasses.replace(same, read_us=now_us() - 1000), now_us())
        time.sleep(rng.choice((0.0, 0.002, 0.005, 0.01, 0.02, 0.04)))
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        while client._link is not None:
            got += client.poll(now_us())
            time.sleep(0.005)
    client._due_us = 0
    up(client)
    time.sleep(0.1)
    got += client.poll(now_us())
    client.close()
    assert len(world.calls) <= 1, said
    if world.calls:  # it was called: somebody was told so, or that its end is not known
        kinds = [r.kind for r in segments.read(str(world.state))]
        assert kinds.count("intent") == kinds.count("outcome")


def test_an_order_for_a_dead_executor_is_not_run(world: World) -> None:
    client = world.process()
    client.order(order(now_us()), now_us())
    assert [word(s) for s in client.poll(now_us())] == ["not-run no-executor"]
    client.close()
    assert world.calls == []


def test_a_damaged_journal_of_its_own_ends_it(world: World) -> None:
    made = world.executor()
    made.take(order(now_us()), AHEAD)
    made.close()
    (segment,) = world.state.glob("*.seg")
    raw = bytearray(segment.read_bytes())
    raw[60] ^= 0xFF
    segment.write_bytes(bytes(raw))
    argv = [
        "--state",
        str(world.state),
        "--actions",
        str(world.actions),
        "--commands",
        executor.described(world.commands),
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-m", "defib.adapters.act.executor", *argv, "--socket", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "damaged" in done.stderr


def test_where_slurm_lives_elsewhere(world: World) -> None:
    """Through a wrapper that hands its words to a shell, as ssh does: the far side gets the same command, bounded in time."""
    ssh = world.root / "ssh"
    ssh.write_text(f'#!/bin/sh\nshift\necho "$*" >>{world.root}/wire\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    commands = dataclasses.replace(world.commands, prefix=(str(ssh), "head1"), shell=True)
    made = world.executor(run=lambda o: executor.call(commands, o))
    assert word(made.take(order(now_us()), AHEAD)) == "done"
    assert (
        word(made.take(order(now_us(), 2, key=f"{2:032x}", verb="exclude", target="held", nodes=("n01", "n02")), AHEAD))
        == "done"
    )
    world.scontrol("sleep 30")
    assert word(made.take(order(now_us(), 3, key=f"{3:032x}", kill_after_s=1.0), AHEAD)) == "unclear killed"
    made.close()
    assert world.calls == ["requeue 1001", "update JobId=1001 ExcNodeList=n01,n02", "requeue 1001"]
    assert all(line.startswith("timeout -s KILL ") for line in (world.root / "wire").read_text().splitlines())
    assert verbs.bounded(commands, 1.0).prefix[-4:] == ("timeout", "-s", "KILL", "1")
