"""Questions to the scheduler: a failure is an answer, and maintenance is read or unknown."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from defib.adapters.act.asking import Asker, Survey, windows
from defib.adapters.slurm.calls import Commands
from defib.engine.jobs import AttemptKey
from defib.engine.recover.events import Fresh

KEY = AttemptKey("bed", 7, None, 1, 0)


@pytest.fixture
def tools(tmp_path: Path) -> Callable[[str], Commands]:
    """Slurm's tools, each of them this script."""

    def make(script: str) -> Commands:
        for name in ("squeue", "scontrol", "sinfo", "sdiag"):
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        return Commands(folder=str(tmp_path))

    return make


def answers(asker: Asker, many: int) -> list[Fresh | Survey]:
    out: list[Fresh | Survey] = []
    end = time.monotonic() + 30
    while len(out) < many:
        assert time.monotonic() < end, out
        out += asker.poll()
        time.sleep(0.01)
    return out


@pytest.mark.parametrize(
    "script",
    ["exit 1", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "echo '{\"jobs\": 7'", "printf '\\377\\000'"],
    ids=["fails", "unreachable", "cut-off", "garbage"],
)  # fmt: skip
def test_a_question_that_fails_is_answered_with_not_ok(script: str, tools: Callable[[str], Commands]) -> None:
    asker = Asker(tools(script), lambda: 5)
    asker.look(KEY, "7")
    asker.survey()
    asker.survey()  # one is under way: not asked twice
    look, survey = answers(asker, 2)
    assert isinstance(look, Fresh)
    assert (look.attempt, look.ok, look.found) == (KEY, False, ())
    assert isinstance(survey, Survey)
    assert (survey.swift, survey.backlog, survey.maintenance) == (False, None, None)
    assert not survey.nodes
    assert survey.cluster is None or not survey.cluster.up
    assert asker.poll() == []
    asker.survey()
    assert isinstance(answers(asker, 1)[0], Survey)
    asker.close()


def test_questions_to_a_scheduler_that_hangs_do_not_pile_up(tools: Callable[[str], Commands]) -> None:
    asker = Asker(tools("exec sleep 1"), lambda: 5)
    began = time.monotonic()
    for _ in range(1000):
        asker.look(KEY, "7")
    assert time.monotonic() - began < 1, "asking never waits"
    assert asker._todo.qsize() <= 256


PRINTED = b"ReservationName=m StartTime=%s EndTime=%s Duration=01:00:00 Nodes=n01 Flags=%s TRES=cpu=4\n"


def test_only_maintenance_counts() -> None:
    other = PRINTED % (b"100", b"200", b"SPEC_NODES")
    maint = PRINTED % (b"300", b"400", b"MAINT,SPEC_NODES")
    later = PRINTED % (b"500", b"600", b"IGNORE_JOBS,MAINT")
    assert windows(other + maint + later) == ((300_000_000, 400_000_000), (500_000_000, 600_000_000))
    assert windows(b"No reservations in the system\n") == ()


def test_maintenance_that_cannot_be_read_is_unknown() -> None:
    assert windows(PRINTED % (b"2026-12-01T00:00:00", b"400", b"MAINT")) is None
    assert windows(b"ReservationName=m Flags=MAINT\n") is None
    assert windows(b"\xff\x00") is None
    assert windows(b"") == ()
