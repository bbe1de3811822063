"""One command: what comes back, what never happens. Real processes, small shell scripts in the place of Slurm's tools."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defib.adapters.slurm.calls import ERR_MAX, Answer, Call, Commands

ENV = {"PATH": "/usr/bin:/bin"}
Tool = Callable[[str], Commands]


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    """`tool(script)`: commands whose `squeue` is this script."""

    def make(script: str) -> Commands:
        path = tmp_path / "squeue"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return Commands(folder=str(tmp_path), conf="/etc/x/slurm.conf")

    return make


def test_an_answer(tool: Tool) -> None:
    answer = tool('echo "$# $1|$2"; echo odd >&2; exit 3').run("squeue", "a b", "$HOME;`id`")
    assert (answer.rc, answer.stdout, answer.stderr, answer.good) == (3, b"2 a b|$HOME;`id`\n", b"odd\n", False)
    assert answer.said == "odd"
    assert 0 < answer.took_s < 10


def test_the_environment_is_ours_alone(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SQUEUE_FORMAT", "SLURM_CLUSTERS", "LD_PRELOAD", "PYTHONPATH", "HOME"):
        monkeypatch.setenv(name, "evil")
    seen = dict(line.split("=", 1) for line in tool("env").run("squeue").stdout.decode().split())
    own = {"PWD", "SHLVL", "_"}  # the shell of this test adds them
    assert seen.keys() - own == {"PATH", "LC_ALL", "TZ", "SLURM_CONF", "SLURM_TIME_FORMAT"}
    assert (seen["TZ"], seen["LC_ALL"], seen["SLURM_CONF"]) == ("UTC", "C", "/etc/x/slurm.conf")


@pytest.mark.parametrize("why", ["missing", "no program", "no permission"])
def test_what_cannot_be_run_is_an_answer(tmp_path: Path, why: str) -> None:
    path = tmp_path / "squeue"
    if why != "missing":
        path.write_bytes(b"\x00\x01nothing")
        path.chmod(0o755 if why == "no program" else 0o644)
    answer = Commands(folder=str(tmp_path)).run("squeue")
    assert (answer.rc, answer.good) == (None, False)
    assert "cannot be run" in answer.said
    assert answer.said == Commands(folder=str(tmp_path)).run("squeue").said


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    "script", ["sleep 60", "trap '' TERM INT HUP; sleep 60 & sleep 60", "sleep 60 & echo $! ; wait"]
)
def test_the_deadline_kills_the_whole_group(tool: Tool, script: str, tmp_path: Path) -> None:
    began = time.monotonic()
    answer = tool(f"echo $$ > {tmp_path}/pid; {script}").run("squeue", deadline_s=0.4)
    assert (answer.rc, answer.timed_out, answer.good) == (None, True, False)
    assert time.monotonic() - began < 5
    assert re.fullmatch(r"no answer within \d+ s", answer.said)  # a busy machine notices a passed deadline late
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 5
    while any(alive(p) for p in group(pid)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(alive(p) for p in group(pid))


def group(leader: int) -> list[int]:
    """Processes of this group."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getpgid(int(pid)) == leader:
                found.append(int(pid))
        except ProcessLookupError:
            continue
    return found


def test_output_is_bounded() -> None:
    call = Call(["sh", "-c", "yes 0123456789"], ENV, 20.0, out_max=100_000)
    began = time.monotonic()
    call.start()
    while (answer := call.poll()) is None:
        time.sleep(0.01)
    assert time.monotonic() - began < 10
    assert (answer.rc, answer.cut, answer.good, answer.timed_out) == (answer.rc, True, False, False)
    assert len(answer.stdout) == 100_000
    assert answer.said == "it printed more than is read"


def test_long_errors_are_cut_and_are_no_failure() -> None:
    call = Call(["sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' e >&2; echo fine"], ENV, 20.0)
    call.start()
    while (answer := call.poll()) is None:
        time.sleep(0.01)
    assert (answer.rc, answer.stdout, len(answer.stderr), answer.good) == (0, b"fine\n", ERR_MAX, True)
    assert len(answer.said) <= 300


def test_a_megabyte_passes_while_nobody_looks() -> None:
    """A pipe would fill up after 64 KiB and stop the command until somebody reads."""
    call = Call(["sh", "-c", "head -c 1000000 /dev/zero"], ENV, 20.0)
    call.start()
    end = time.monotonic() + 10
    while call._process is not None and alive(call._process.pid) and time.monotonic() < end:
        time.sleep(0.05)
    answer = call.poll()
    assert answer is not None
    assert (answer.rc, len(answer.stdout)) == (0, 1_000_000)
    assert call.poll() is answer


def test_polling_does_not_wait() -> None:
    call = Call(["sleep", "1"], ENV, 20.0)
    call.start()
    slowest, looks = 0.0, 0
    while True:
        before = time.monotonic()
        answer = call.poll()
        slowest, looks = max(slowest, time.monotonic() - before), looks + 1
        if answer is not None:
            break
        time.sleep(0.01)
    assert looks > 10
    assert slowest < 0.3


def test_nothing_is_left_open() -> None:
    before = os.listdir("/proc/self/fd")
    for script in ("true", "exit 1", "sleep 9"):
        Commands(prefix=("sh", "-c", script)).run("squeue", deadline_s=0.2)
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_what_a_command_says_cannot_steer_a_terminal() -> None:
    answer = Answer(("x",), 1, stderr=b"a\x1b[2J\xff\nb\n\nc\nd")
    assert answer.said == "a\\x1b[2J\ufffd; b; c"


# ---- where Slurm lives elsewhere ----


def test_a_prefix_takes_the_environment_along(tmp_path: Path) -> None:
    wrapper = tmp_path / "far"
    wrapper.write_text('#!/bin/sh\ntest "$1" = head1 || exit 9\nshift\nexec "$@"\n')  # kubectl exec and the like
    wrapper.chmod(0o755)
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\nprintf "%s\\n" "$@"; env | grep -c .; echo "$TZ $SLURM_CONF"\n')
    squeue.chmod(0o755)
    answer = Commands((str(wrapper), "head1"), folder=str(tmp_path), conf="/e/s.conf").run("squeue", "--json", "a b")
    lines = answer.stdout.decode().splitlines()
    assert lines[:2] == ["--json", "a b"]
    assert lines[-1] == "UTC /e/s.conf"


@given(
    words=st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=4
    )
)
@settings(max_examples=40, deadline=None)
def test_words_through_a_shell_arrive_as_they_were(words: list[str]) -> None:
    """ssh joins its words with blanks and hands them to a shell: so does this wrapper."""
    far = ("sh", "-c", 'exec sh -c "$*"', "ssh")
    answer = Commands(far, shell=True).run("printf", "%s\\0", *words)
    assert answer.stdout.split(b"\0")[:-1] == [w.encode() for w in words]


def test_without_a_shell_words_are_not_quoted() -> None:
    commands = Commands(("kubectl", "exec", "login-0", "--"))
    assert commands.argv("squeue", "-O", "a b")[-3:] == ["squeue", "-O", "a b"]
    assert Commands(("ssh", "head1"), shell=True).argv("squeue", "a b")[-1] == "'a b'"
