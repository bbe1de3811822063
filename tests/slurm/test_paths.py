"""Patterns and templates: which files, which never. That the symbols are right is for real jobs to show (test_real_paths)."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defib.adapters.slurm import paths
from defib.adapters.slurm.paths import Values, expand, finish, logs
from defib.engine.jobs import JobFacts, LogPath

VALUES = Values(4711, None, None, b"my.job", b"ada", b"n01", 2, (22, 5, 8))
TASK = replace(VALUES, job_id=4713, array_job_id=4711, array_task=12)
FACTS = JobFacts(
    "bed",
    4711,
    "RUNNING",
    1,
    2,
    user="ada",
    name="llm",
    batch_host="n01",
    stdout=b"/home/ada/run/o-4711.log",
    work_dir=b"/home/ada/run",
)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (b"slurm-%j.out", b"/w/slurm-4711.out"), (b"/abs/%u/%x.log", b"/abs/ada/my.job.log"), (b"%A_%a", b"/w/4711_4294967294"),
        (b"%5j-%12j", b"/w/04711-0000004711"), (b"%N.%n.%t.%s", b"/w/n01.0.0.batch"), (b"%%j%%%j", b"/w/%j%4711"), (b"a\\%j", b"/w/a%j"),
        (b"a\\\\%j", b"/w/a\\%j"), (b"%q%", b"/w/%q%"), (b"%r%b", b"/w/%r%b"), (b"%5x", b"/w/my.job"), (b"", b"/w/"),
    ],
)  # fmt: skip
def test_symbols(pattern: bytes, path: bytes) -> None:
    assert expand(pattern, VALUES, b"/w") == path


def test_symbols_of_tasks_and_of_later_releases() -> None:
    assert expand(b"%A_%a_%j_%3a", TASK, b"/w") == b"/w/4711_12_4713_012"
    assert expand(b"%b-%r", replace(TASK, version=(26, 5, 5)), b"/w") == b"/w/2-2"
    assert expand(b"%b-%r", replace(TASK, version=(24, 11, 5)), b"/w") == b"/w/2-%r"
    assert expand(b"%N", replace(VALUES, node=None), b"/w") == b"/w/%N", "there is no node yet"


def test_what_the_scheduler_left_is_finished() -> None:
    assert finish(b"/w/o-4711-%N-%t-%%.log", VALUES, b"/w") == b"/w/o-4711-n01-0-%.log"
    odd = replace(VALUES, name=b"50%j%N")
    assert finish(b"/w/50%j%N-%N.log", odd, b"/w") == b"/w/50%j%N-n01.log", "a name's own percent signs are no symbols"


@given(name=st.binary(min_size=1, max_size=20).filter(lambda b: b"\0" not in b))
def test_a_name_is_put_in_as_it_is(name: bytes) -> None:
    values = replace(VALUES, name=name)
    assert expand(b"/w/a-%x-%j", values, b"/w") == b"/w/a-" + name + b"-4711"
    assert expand(b"/w/%3x%N", values, b"/w") == b"/w/" + name + b"n01"


def test_its_own_logs_and_those_of_templates() -> None:
    found = logs(
        replace(FACTS, stderr=b"/home/ada/run/e.log"),
        ("{work_dir}/logs/{job_id}/rank_*.log", "/lustre/{user}/{array_task}/x"),
    )
    assert found.troubles == ()
    assert found.paths == (
        LogPath(b"/home/ada/run/o-4711.log", "out"),
        LogPath(b"/home/ada/run/e.log", "err"),
        LogPath(b"/home/ada/run/logs/4711/rank_*.log", "step", True),
    )


def test_a_pending_group_writes_nowhere() -> None:
    assert logs(replace(FACTS, array_job_id=4711, array_pending=True)).paths == ()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (b"/home/ada/../../etc/shadow", "leaves the folders"), (b"/etc/shadow", "leaves the folders"), (b"/home/ada2/x", "leaves the folders"),
        (b"/home/ada", "leaves the folders"), (b"/dev/null", "/dev/null"), (b"/home/ada/" + b"x" * 5000, "no path"), (b"/home/ada/a\0b", "no path"),
        (b"//home/../etc/x", "leaves the folders"),
    ],
)  # fmt: skip
def test_a_path_that_leaves_the_roots_is_told(path: bytes, why: str) -> None:
    found = logs(replace(FACTS, stdout=path), roots=(b"/home/ada", b"/lustre/"))
    assert found.paths == ()
    assert len(found.troubles) == 1
    assert why in found.troubles[0]
    assert found.troubles[0].startswith("job 4711: its out is not followed: ")


def test_inside_the_roots_dots_are_resolved() -> None:
    assert logs(replace(FACTS, stdout=b"/home/ada/./a/../b.log"), roots=(b"/home/ada",)).paths == (
        LogPath(b"/home/ada/b.log"),
    )


ODD_NAME = st.text(st.sampled_from("ab/.*?[]{}\\\n %\ufffd"), min_size=1, max_size=10)


@given(name=ODD_NAME, user=ODD_NAME, folder=st.binary(min_size=1, max_size=10).filter(lambda b: b"\0" not in b))
def test_values_of_templates_are_never_live(name: str, user: str, folder: bytes) -> None:
    """Below the roots, whatever they say; and a wildcard of theirs only matches itself, unless bytes of it are unknown."""
    facts = replace(FACTS, stdout=None, name=name, user=user, work_dir=b"/home/ada/" + folder)
    found = logs(facts, ("/home/{user}/{name}/rank_*.log", "{work_dir}/{name}.log"), (b"/home",))
    for log in found.paths:
        assert log.path.startswith(b"/home/")
        assert b"/../" not in log.path + b"/"
        live = log.path.replace(b"[*]", b"").replace(b"[?]", b"").replace(b"[[]", b"").replace(b"rank_*", b"")
        unknown = "\ufffd" in name + user
        assert unknown or not any(c in live for c in b"*?")


def test_faults_of_templates_are_found_when_they_are_given() -> None:
    assert paths.template_fault("{work_dir}/logs/{job_id}/*.log") is None
    assert paths.template_fault("/lustre/{user}/{array_job_id}_{array_task}/{name}.{restarts}.{batch_host}") is None
    assert "{rank} is not known" in str(paths.template_fault("/x/{rank}"))
    assert "begin with /" in str(paths.template_fault("logs/{job_id}"))


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    facts = replace(FACTS, stdout=b"/home/ada/\xff\n.log")
    assert logs(facts).paths == (LogPath(b"/home/ada/\xff\n.log"),)
    assert os.fsencode(os.fsdecode(b"\xff")) == b"\xff"
