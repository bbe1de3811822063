"""A real Slurm read in every form: what jobs of all kinds look like, and that nothing they say of themselves is believed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest
from tests.slurm.bed import Bed, wait_for
from tests.slurm.conftest import polled, scheduler

from defib.adapters.slurm.answers import COLUMNS
from defib.engine.jobs import JobFacts

Look = Callable[..., dict[str, JobFacts]]
LONG = "sleep 300"


@pytest.fixture
def job(slurm: Bed):  # type: ignore[no-untyped-def]
    """`job(script, options…)`: a job that is cancelled when the test ends."""
    made: list[int] = []

    def submit(script: str, *options: str | bytes, user: str = "nobody") -> int:
        made.append(slurm.submit(script, *options, user=user))
        return made[-1]

    yield submit
    slurm.run("scancel", *map(str, made))
    for one in made:
        wait_for(lambda one=one: set(slurm.state(one).split()) & {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING"} == set(), f"{one} to end")  # type: ignore[misc]  # fmt: skip


def test_running(slurm: Bed, look: Look, job: Callable[..., int]) -> None:
    i = job(
        LONG,
        "-N2",
        "--gres=gpu:2",
        "-x",
        "n04",
        "--comment",
        '{"defib": {"restart": ["crash"]}}',
        "-J",
        "llm",
        "-t",
        "90",
        "--requeue",
    )
    slurm.until(i, "RUNNING")
    f = look(i)[str(i)]
    assert (f.state, f.restarts, f.user, f.uid, f.name, f.partition) == ("RUNNING", 0, "nobody", 65534, "llm", "train")
    assert (len(f.nodes), f.node_count, f.batch_host, f.gpus) == (2, 2, f.nodes[0], 4)
    assert (f.requeue, f.batch, f.held, f.time_limit_s, f.cluster) == (True, True, False, 5400, "bed")
    assert (f.exit_code, f.exit_signal, f.end_us) == (None, None, None)
    assert json.loads(f.comment) == {"defib": {"restart": ["crash"]}}
    assert f.stdout == f"{slurm.home('nobody')}/slurm-{i}.out".encode()
    assert f.stderr is None
    assert f.start_us is not None
    assert 0 <= time.time() - f.start_us / 1e6 < 60
    known_excluded = (
        ("n04",) if look.form != "text" or "ExcNodes" in slurm.check("squeue", "-O", "JobID,ExcNodes:9") else ()
    )  # type: ignore[attr-defined]
    assert f.excluded == known_excluded


def test_pending_held_and_suspended(slurm: Bed, look: Look, job: Callable[..., int]) -> None:
    big, held, run = job(LONG, "-N4", "--exclusive", "-b", "now+1hour"), job(LONG, "--hold"), job(LONG)
    slurm.until(run, "RUNNING")
    slurm.check("scontrol", "suspend", str(run))
    found = look(big, held, run)
    assert (found[str(big)].state, found[str(big)].held, found[str(big)].nodes) == ("PENDING", False, ())
    assert (found[str(held)].state, found[str(held)].held, found[str(held)].priority) == ("PENDING", True, 0)
    assert found[str(held)].told.held
    assert found[str(held)].reason.startswith("JobHeld")
    assert (found[str(run)].state, found[str(run)].held) == ("SUSPENDED", False)
    slurm.check("scontrol", "resume", str(run))


def test_ended(slurm: Bed, look: Look, job: Callable[..., int]) -> None:
    good, bad, killed, cancelled = job("exit 0"), job("exit 3"), job("kill -9 $$"), job(LONG)
    slurm.until(cancelled, "RUNNING")
    slurm.check("scancel", str(cancelled))
    for one, state in ((good, "COMPLETED"), (bad, "FAILED"), (killed, "FAILED"), (cancelled, "CANCELLED")):
        slurm.until(one, state)
    found = look(good, bad, killed, cancelled)
    ends = {
        i: (found[str(i)].state, found[str(i)].exit_code, found[str(i)].exit_signal)
        for i in (good, bad, killed, cancelled)
    }
    assert ends[good] == ("COMPLETED", 0, None)
    assert ends[bad] == ("FAILED", 3, None)
    assert ends[killed] == ("FAILED", 0, 9)
    # Which signal ends a cancelled job is Slurm's affair (TERM, KILL where the shell lingers, none before it exists):
    # it is read as Slurm prints it.
    printed = re.search(r"ExitCode=(\d+):(\d+)", slurm.check("scontrol", "show", "job", str(cancelled)))
    assert printed is not None
    assert ends[cancelled] == ("CANCELLED", int(printed[1]), int(printed[2]) or None)
    assert ends[cancelled][1:] in ((0, 15), (0, 9), (0, None))
    assert all(f.end_us is not None for f in found.values())


def test_array_split_and_not(slurm: Bed, look: Look, job: Callable[..., int]) -> None:
    i = job(LONG, "--array=0-4%2", "-o", "t_%A_%a.out")
    slurm.until(f"{i}_1", "RUNNING")
    found = look(i)
    assert {f"{i}_0", f"{i}_1", str(i)} <= found.keys()
    group, one = found[str(i)], found[f"{i}_1"]
    assert (group.array_pending, group.array_task, group.state) == (True, None, "PENDING")
    assert (one.array_job_id, one.array_task, one.array_pending, one.state) == (i, 1, False, "RUNNING")
    assert one.job_id != i
    assert one.stdout == f"{slurm.home('nobody')}/t_{i}_1.out".encode()


def test_heterogeneous(slurm: Bed, look: Look, job: Callable[..., int]) -> None:
    i = job(LONG, "-N1", ":", "-N2")
    slurm.until(i, "RUNNING")
    found = look(i) if look.form != "single" else look(i, f"{i}+1")  # type: ignore[attr-defined]
    lead, other = found[str(i)], found[str(i + 1)]
    assert (lead.het_job_id, lead.het_offset, other.het_job_id, other.het_offset) == (i, 0, i, 1)
    assert (len(lead.nodes), len(other.nodes)) == (1, 2)
    assert lead.stdout is not None
    assert other.stdout is None


def test_requeued(slurm: Bed, look: Look, job: Callable[..., int]) -> None:
    i = job(LONG)
    slurm.until(i, "RUNNING")
    before = look(i)[str(i)]
    slurm.check("scontrol", "requeue", str(i))
    during = look(i)[str(i)]
    assert during.restarts == 1
    assert during.told.state in ("COMPLETING", "PENDING")
    slurm.until(i, "PENDING")
    waiting = look(i)[str(i)]
    assert (waiting.state, waiting.restarts, waiting.exit_code) == ("PENDING", 1, None)
    assert waiting.submit_us > before.submit_us, "a requeue sets the submit time anew"
    assert waiting.key != before.key


def test_node_failed(slurm: Bed, look: Look, job: Callable[..., int]) -> None:
    lost, again = job(LONG, "-w", "n03", "--no-requeue"), job(LONG, "-w", "n03", "--requeue")
    slurm.until(lost, "RUNNING")
    slurm.until(again, "RUNNING")
    slurm.down("n03", "a test of ours")
    try:
        slurm.until(lost, "NODE_FAIL")
        found = look(lost, again)
        assert (found[str(lost)].state, found[str(lost)].requeue) == ("NODE_FAIL", False)
        assert found[str(again)].restarts == 1
        assert found[str(again)].required == ("n03",)
        nodes, troubles = scheduler(slurm).nodes()
        assert nodes is not None
        assert not troubles
        down = next(n for n in nodes if n.name == "n03")
        assert (down.state, down.usable, down.reason) == ("DOWN", False, "a test of ours")
        assert [n.usable for n in nodes if n.name != "n03"] == [True] * 3
    finally:
        slurm.up("n03")
    wait_for(lambda: slurm.states()["n03"] in ("IDLE", "MIXED"), "n03 to be up")


HOSTILE = {
    "a record of its own": b"x UserId=root(0) GroupId=root(0) JobState=FAILED Restarts=9\nJobId=1 JobName=y UserId=root(0) JobState=FAILED ",
    "columns": b"a|b|c~d",
    "terminal": b"\x1b[2J\x1b]0;title\x07",
    "no UTF-8": b"run-\xff\xfe-\xc3",
    "JSON": b'","job_id":1,"job_state":"FAILED","x":"',
    "nothing said": b"(null)",
    "long": b"n" * 1000,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_names_and_comments(slurm: Bed, look: Look, job: Callable[..., int], what: str) -> None:
    text = HOSTILE[what]
    neighbour = job(LONG, "--hold")
    i = job(LONG, "--hold", "-J", text, "--comment", text)
    found = look(neighbour, i)
    f = found[str(i)]
    assert f.name == text.decode("utf-8", "replace")
    assert f.comment == text.decode("utf-8", "replace").replace("(null)", "(null)" if look.form == "json" else "")  # type: ignore[attr-defined]
    assert (f.state, f.held, f.restarts, f.uid, f.requeue) == ("PENDING", True, 0, 65534, True)
    assert found[str(neighbour)].state == "PENDING"
    assert len(found) == 2


def test_a_name_of_64_kib_blinds_nobody(slurm: Bed, look: Look, job: Callable[..., int]) -> None:
    neighbour = job(LONG, "--hold")
    done = slurm.run("sbatch", "--parsable", "--hold", "-J", "n" * 65536, "--wrap", "true", user="nobody")
    ids = [neighbour, *([int(done.stdout)] if done.returncode == 0 else [])]
    try:
        found = look(*ids)
        assert found[str(neighbour)].state == "PENDING"
        assert set(found) == set(map(str, ids))
    finally:
        slurm.run("scancel", *map(str, ids))


def test_users_are_told_apart(slurm: Bed, look: Look, job: Callable[..., int]) -> None:
    i = job(LONG, "--hold", user="games")
    assert (look(i)[str(i)].uid, look(i)[str(i)].user) == (5, "games")


def test_unknown_jobs_are_absent_and_the_read_is_good(slurm: Bed) -> None:
    read = scheduler(slurm).read(["999999", "999999_3"], 0)
    assert (read.ok, read.jobs, read.troubles) == (True, (), ())


def test_every_column_is_known_or_missed(slurm: Bed) -> None:
    """A column that were misspelled would be left out on every release, and nobody would notice."""
    reader = scheduler(slurm, text=True)
    assert polled(reader).ok
    assert reader._without <= {"ExcNodes"} < COLUMNS.keys()


def test_the_clusters_settings(slurm: Bed) -> None:
    facts, troubles = scheduler(slurm).cluster()
    assert facts is not None
    assert troubles == ()
    assert (facts.name, facts.first_job_id, facts.up, facts.job_requeue, facts.append) == (
        "bed",
        1001,
        True,
        True,
        False,
    )
    assert (facts.requeue_delay_s, facts.min_job_age_s, facts.message_timeout_s) == (6.0, 300.0, 10.0)
    assert facts.version >= (20, 11)
    assert facts.booted_us is not None
    assert abs(time.time() - facts.booted_us / 1e6) < 3600


def test_no_accounting_is_said(slurm: Bed) -> None:
    runs, troubles = scheduler(slurm).history([1001], 0)
    assert runs == ()
    assert troubles == ("no history: Slurm accounting storage is disabled",)
