"""The reader against tools that behave as each release does: which form is used, when it asks, what it says when it cannot."""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from shlex import quote

import pytest
from tests.slurm import printed
from tests.slurm.printed import job

from defib.adapters.slurm import reader as reader_module
from defib.adapters.slurm import settings
from defib.adapters.slurm.answers import COLUMNS
from defib.adapters.slurm.calls import Commands
from defib.adapters.slurm.reader import Scheduler
from defib.engine.jobs import ClusterRead

MARK = "~00ff="
NO_OPTION = "squeue: unrecognized option '--json'"
NO_PLUGIN = "squeue: fatal: Unable to find plugin: serializer/json"
DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
SECOND = 1_000_000


class Tools:
    """A folder of tools. `says(tool, when, stdout, stderr, rc)`: what it does when its words match; the first that matches counts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rules = folder, dict[str, list[str]]()
        self.count = 0

    def says(self, tool: str, when: str, stdout: bytes = b"", stderr: str = "", rc: int = 0, before: str = "") -> None:
        self.count += 1
        out = self.folder / f"out{self.count}"
        out.write_bytes(stdout)
        self.rules.setdefault(tool, []).insert(
            0, f"  *{quote(when)}*) {before} cat {out}; echo {quote(stderr)} >&2; exit {rc};;"
        )
        path = self.folder / tool
        rules = "\n".join(self.rules[tool])
        path.write_text(
            f'#!/bin/sh\necho "$*" >> {self.folder}/{tool}.asked\ncase "$*" in\n{rules}\nesac\necho none >&2; exit 99\n'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def asked(self, tool: str) -> list[str]:
        path = self.folder / f"{tool}.asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    monkeypatch.setattr(reader_module, "divider", lambda: MARK)
    return Tools(tmp_path)


def asks(tools: Tools, **options: object) -> Scheduler:
    return Scheduler(Commands(folder=str(tools.folder)), draw=lambda: 0.5, **options)  # type: ignore[arg-type]


def read(reader: Scheduler, now_us: int) -> ClusterRead:
    end = time.monotonic() + 20
    while (found := reader.poll(now_us)) is None:
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


def columns(*jobs: printed.Job, without: str = "") -> bytes:
    return printed.columns(list(jobs), MARK, [k for k in COLUMNS if k != without])


def test_json_where_there_is_json(tools: Tools) -> None:
    tools.says("squeue", "--json", printed.squeue_2411([job()]))
    reader = asks(tools)
    found = read(reader, 5 * SECOND)
    assert (found.ok, found.at_us, [j.job_id for j in found.jobs]) == (True, 5 * SECOND, [4711])
    assert found.troubles == ("jobs are read from squeue as JSON",)
    assert read(reader, 60 * SECOND).troubles == ()
    assert (reader.form, reader.version) == ("json", (24, 11, 5))
    assert tools.asked("squeue") == ["-a -t all --json"] * 2


@pytest.mark.parametrize("why", [NO_OPTION, NO_PLUGIN])
def test_text_where_there_is_none(tools: Tools, why: str) -> None:
    tools.says("squeue", "-O", columns(job(), job(job_id=4712)))
    tools.says("squeue", "--json", stderr=why, rc=1)
    reader = asks(tools)
    found = read(reader, 0)
    assert (found.ok, [j.job_id for j in found.jobs], reader.form) == (True, [4711, 4712], "text")
    assert found.troubles == ("jobs are read from squeue as text",)
    assert read(reader, 60 * SECOND).ok
    assert sum("--json" in a for a in tools.asked("squeue")) == 1, "learnt once"


def test_a_column_that_is_not_known_is_left_out(tools: Tools) -> None:
    tools.says("squeue", "-O", columns(job(), without="ExcNodes"))
    tools.says(
        "squeue",
        "ExcNodes",
        columns(job(), without="ExcNodes"),
        stderr="squeue: error: Invalid job format specification: ExcNodes",
    )
    tools.says("squeue", "--json", stderr=NO_OPTION, rc=1)
    reader = asks(tools)
    found = read(reader, 0)
    assert (found.ok, len(found.jobs)) == (True, 1)
    assert found.troubles == ("jobs are read from squeue as text; this release has no column ExcNodes",)


def test_broken_json_is_read_as_text_and_tried_again_later(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "AGAIN", 3)
    tools.says("squeue", "-O", columns(job()))
    tools.says("squeue", "--json", printed.squeue_2411([job()]))
    reader = asks(tools)
    assert read(reader, 0).ok
    tools.says("squeue", "--json", printed.squeue_2411([job()])[:-40])
    assert (read(reader, 60 * SECOND).ok, reader.form) == (True, "text")
    tools.says("squeue", "--json", printed.squeue_2411([job()]))
    forms = []
    for n in range(2, 7):
        assert read(reader, n * 60 * SECOND).ok
        forms.append(reader.form)
    assert forms[-1] == "json"
    assert forms[0] == "text"


def test_a_controller_that_is_down(tools: Tools) -> None:
    tools.says("squeue", "-O", stderr=DOWN, rc=1)
    tools.says("squeue", "--json", stderr=DOWN, rc=1)
    reader = asks(tools)
    found = read(reader, 0)
    assert (found.ok, found.jobs, found.troubles) == (False, (), (f"the scheduler could not be read: {DOWN}",))
    assert reader.form is None
    tools.says("squeue", "--json", printed.squeue_2411([job()]))
    assert read(reader, 100 * SECOND).ok
    tools.says("squeue", "--json", stderr=DOWN, rc=1)
    asked = len(tools.asked("squeue"))
    assert not read(reader, 200 * SECOND).ok
    assert len(tools.asked("squeue")) == asked + 1, "text would do no better"


def test_when_it_asks(tools: Tools) -> None:
    """Every interval; after failures in a row later and later, up to eight intervals; never sooner."""
    tools.says("squeue", "--json", printed.squeue_2411([]))
    reader = asks(tools, interval_us=10 * SECOND)
    now, gaps = 0, []
    for n in range(9):
        read(reader, now)
        # Before the next call begins, which is still in this turn: a script that runs already may be read as it was or as it is.
        if n == 1:
            tools.says("squeue", "--json", stderr=DOWN, rc=1)
        if n == 7:
            tools.says("squeue", "--json", printed.squeue_2411([]))
        began = now
        while reader.poll(now) is None and reader._call is None:
            now += SECOND
        gaps.append((now - began) // SECOND)
    reader.close()
    assert gaps[:4] == [10, 10, 10, 20]
    assert gaps[4:8] == [40, 80, 80, 80]
    assert gaps[8] == 10


@pytest.mark.parametrize(("draw", "wait"), [(0.0, 9), (1.0, 11)])
def test_jitter(tools: Tools, draw: float, wait: int) -> None:
    tools.says("squeue", "--json", printed.squeue_2411([]))
    reader = asks(tools, interval_us=10 * SECOND)
    reader.draw = lambda: draw
    read(reader, 0)
    assert reader._due_us == wait * SECOND


def test_a_poll_never_waits_and_never_asks_twice_at_once(tools: Tools) -> None:
    tools.says("squeue", "--json", printed.squeue_2411([job()]), before="sleep 0.5;")
    reader = asks(tools, interval_us=1)
    slowest, polls, end = 0.0, 0, time.monotonic() + 20
    while time.monotonic() < end:
        before = time.monotonic()
        found = reader.poll(polls)
        slowest, polls = max(slowest, time.monotonic() - before), polls + 1
        if found is not None:
            break
        time.sleep(0.005)
    assert found is not None
    assert found.ok
    assert polls > 10
    assert slowest < 0.3
    assert len(tools.asked("squeue")) == 1


def test_closing_ends_a_running_call(tools: Tools) -> None:
    tools.says("squeue", "--json", before="sleep 30;")
    reader = asks(tools)
    assert reader.poll(0) is None
    assert reader._call is not None
    process = reader._call._process
    reader.close()
    assert process is not None
    assert process.wait(5) == -9


def test_single_jobs_as_json(tools: Tools) -> None:
    tools.says("scontrol", "show job", stderr="slurm_load_jobs error: Invalid job id specified", rc=1)
    tools.says("scontrol", "show job 4711_3 --json", printed.squeue_2411([job(job_id=4714, array=4711, task=3)]))
    found = asks(tools).read(["4711_3", "99"], 7)
    assert (found.ok, found.at_us, [j.label for j in found.jobs]) == (True, 7, ["4711_3"])


def test_single_jobs_as_text(tools: Tools) -> None:
    tools.says("scontrol", "-o show job", printed.scontrol(job(comment=b"JobState=FAILED")))
    tools.says("scontrol", "--json", stderr="scontrol: unrecognized option '--json'", rc=1)
    tools.says("squeue", "-O", columns(job(comment=b"JobState=FAILED"), without="ExcNodes"))
    tools.says(
        "squeue",
        "ExcNodes",
        columns(job(), without="ExcNodes"),
        stderr="squeue: error: Invalid job format specification: ExcNodes",
    )
    reader = asks(tools)
    found = reader.read(["4711"], 0)
    assert (found.ok, found.troubles) == (True, ())
    (facts,) = found.jobs
    assert (facts.state, facts.excluded, facts.comment, facts.cluster) == (
        "RUNNING",
        ("g07", "g08"),
        "JobState=FAILED",
        "bed",
    )
    tools.says("squeue", "-O", stderr="slurm_load_jobs error: Invalid job id specified", rc=1)
    gone = reader.read(["4711"], 0)
    assert (gone.ok, gone.jobs) == (True, ())


def test_a_single_read_that_fails_is_not_absence(tools: Tools) -> None:
    tools.says("scontrol", "--json", stderr=DOWN, rc=1)
    found = asks(tools).read(["1"], 0)
    assert (found.ok, found.jobs, found.troubles) == (False, (), (f"job 1 could not be read: {DOWN}",))
    tools.says("scontrol", "--json", printed.squeue_2411([job(nodes="n[1-")]))
    found = asks(tools).read(["4711"], 0)
    assert (found.ok, found.jobs, found.unread) == (False, (), {4711})


@pytest.mark.parametrize(
    "label", ["", "1;2", "1 2", "1_", "_1", "-1", "1,2", "1_[0-3]", "x", "1" * 11, "--help", "1\n", "٣"]
)
def test_odd_ids_are_never_passed_on(tools: Tools, label: str) -> None:
    with pytest.raises(ValueError, match="job ids"):
        asks(tools).read([label], 0)


def test_ids_are_bounded(tools: Tools) -> None:
    for labels in ([], [str(n) for n in range(1, 66)]):
        with pytest.raises(ValueError, match="64"):
            asks(tools).read(labels, 0)


CONFIG = b"""Configuration data as of 2026-12-01T18:37:03
AuthInfo                = %s
BOOT_TIME               = 1796150140
ClusterName             = tau
FirstJobId              = 17
JobFileAppend           = 1
JobRequeue              = 0
MessageTimeout          = 20 sec
MinJobAge               = 0 sec
RequeueExit             = 5,7-9
RequeueExitHold         = (null)
SchedulerParameters     = %s
SLURM_VERSION           = 25.11.2

Slurmctld(primary) at head1 is UP
"""


@pytest.mark.parametrize(
    ("auth", "parameters", "delay"),
    [
        (b"(null)", b"(null)", 121), (b"cred_expire=5", b"bf_interval=1", 6), (b"socket=/x,cred_expire=60", b"", 61), (b"cred_expire=1", b"", 121),
        (b"cred_expire=60", b"bf_interval=1,requeue_delay=45", 45),
    ],
)  # fmt: skip
def test_the_clusters_settings(tools: Tools, auth: bytes, parameters: bytes, delay: float) -> None:
    tools.says("scontrol", "show config", CONFIG % (auth, parameters))
    tools.says("scontrol", "ping", b"Slurmctld(primary) at head1 is UP\n")
    facts, troubles = asks(tools).cluster()
    assert facts is not None
    assert troubles == ()
    assert (facts.name, facts.version, facts.booted_us, facts.first_job_id) == (
        "tau",
        (25, 11, 2),
        1796150140 * SECOND,
        17,
    )
    assert (facts.append, facts.job_requeue, facts.message_timeout_s, facts.min_job_age_s) == (True, False, 20.0, 0.0)
    assert (facts.requeue_exits, facts.requeue_hold_exits, facts.requeue_delay_s, facts.up) == (
        {5, 7, 8, 9},
        frozenset(),
        delay,
        True,
    )


def test_settings_nobody_told_are_not_made_up() -> None:
    facts = settings.facts({}, None, sluids=False, up=None, ping_s=None)
    assert (facts.requeue_delay_s, facts.booted_us, facts.first_job_id, facts.version) == (None, None, None, ())


def test_sluids_are_believed_when_one_was_found_by_its_own(tools: Tools) -> None:
    tools.says("squeue", "--json", printed.squeue_2605([job()]))
    tools.says("scontrol", "show config", CONFIG % (b"", b""))
    tools.says("scontrol", "ping", b"Slurmctld(primary) at head1 is UP\n")
    tools.says("scontrol", "show job s509M8SE8EK500", printed.scontrol(job()))
    reader = asks(tools)
    facts, _ = reader.cluster()
    assert facts is not None
    assert not facts.sluids
    read(reader, 0)
    facts, _ = reader.cluster()
    assert facts is not None
    assert facts.sluids
    tools.says("scontrol", "show job s509M8SE8EK500", printed.scontrol(job(job_id=12)))
    facts, _ = reader.cluster()
    assert facts is not None
    assert not facts.sluids


def test_history(tools: Tools) -> None:
    rows = [
        ["4", "4", "1001", "REQUEUED", "0:0", "n[01-02]", "1796150521", "1796150522", "1796150523"],
        ["4", "4", "1001", "CANCELLED by 1002", "0:15", "n04", "1796150537", "1796150547", "1796150548"],
        ["5", "5", "", "allocation", "", "root", "", "", ""],  # half written
        ["6", "4_1", "1001", "PENDING", "0:0", "None assigned", "1796150537", "Unknown", "Unknown"],
        ["x", "x", "1", "FAILED", "0:0", "", "", "", ""],
    ]
    tools.says("sacct", "-j", "".join(MARK.join(r) + "\n" for r in rows).encode())
    runs, troubles = asks(tools).history([5, 4], 1796150000 * SECOND)
    assert [(r.job_id, r.label, r.uid, r.state, r.exit_signal, r.nodes) for r in runs] == [
        (4, "4", 1001, "REQUEUED", None, ("n01", "n02")),
        (4, "4", 1001, "CANCELLED", 15, ("n04",)),
        (6, "4_1", 1001, "PENDING", None, ()),
    ]
    assert len(troubles) == 2
    (asked,) = tools.asked("sacct")
    assert "-S 2026-12-01T18:33:20 -j 4,5" in asked
    assert not re.search(r"JobName|Comment", asked), "nothing users wrote is asked for"


def test_through_a_prefix_with_and_without_a_shell(tools: Tools) -> None:
    tools.says("squeue", "-O", columns(job()))
    tools.says("squeue", "--json", stderr=NO_OPTION, rc=1)
    for prefix, shell in ((("sh", "-c", 'exec "$@"', "far"), False), (("sh", "-c", 'exec sh -c "$*"', "far"), True)):
        reader = Scheduler(Commands(prefix, shell, str(tools.folder)))
        found = read(reader, 0)
        assert (found.ok, [j.job_id for j in found.jobs]) == (True, [4711])


def test_the_dividing_word_is_new_each_time() -> None:
    words = {reader_module.divider() for _ in range(100)}
    assert len(words) == 100
    for word in words:
        assert not any(word.endswith(word[:n]) for n in range(1, len(word))), "text before it cannot run into it"


def test_look_shows_and_fails(tools: Tools, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from defib.adapters.cli import main

    say: Callable[..., int] = lambda *words: main(["slurm", "look", "--bin-dir", str(tools.folder), *words])  # noqa: E731
    assert say() == 3
    assert "could not be read" in capsys.readouterr().err
    tools.says("scontrol", "show config", CONFIG % (b"", b""))
    tools.says("scontrol", "ping", b"Slurmctld(primary) at head1 is UP\n")
    tools.says(
        "squeue",
        "--json",
        printed.squeue_2411([job(name=b"\x1b[2J\xff|x"), job(job_id=12, array=12, tasks="2-5%2", state=["PENDING"])]),
    )
    assert say("--template", "{work_dir}/r/{job_id}-*.log", "--root", "/home") == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "cluster tau, Slurm 25.11.2, controller up, requeue delay 121 s" in out
    assert "/home/ada/run/out-4711.log; /home/ada/run/r/4711-*.log" in out
    assert "12 (tasks waiting)" in out
    assert say("--json", "--root", "/nowhere") == 0
    out = capsys.readouterr().out
    assert '"schema": "defib/slurm-look/1"' in out
    assert "leaves the folders logs are allowed in" in out
    with pytest.raises(SystemExit):
        say("--template", "{work_dir}/{rank}")
    assert "{rank} is not known" in capsys.readouterr().err
