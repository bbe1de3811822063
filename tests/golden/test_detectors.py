"""A small run of the detectors' bench: the plan is replayed and watched, and what must never happen does not.

How often and how soon detectors speak is measured by `python bench/detectors.py`; here the answers that hold for every run are asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from detecting.ask import Asker, Row, Wanted
from detecting.score import Board, score
from loggen.plan import plan

ROOT = Path(__file__).resolve().parents[2]
SEED = 7
NAMES = (
    "crash-nan-loss-megatron-lm-0001", "hang-steady-train-time-limit-nanogpt-0003", "slow-40pct-step-passing-torchtitan-0010",
    "healthy-noisy-torchtitan-0011", "hang-ending-ending-time-limit-nemo-0026", "lost-peer-named-nemo-0029",
    "blocks-lost-cancelled-megatron-lm-0037", "healthy-plain-fairseq-0078", "healthy-suspended-torchtitan-0142",
)  # fmt: skip
"""Of the plan: short ones of many kinds."""
CUT = "lost-peer-named-nemo-0029"


@pytest.fixture(scope="module")
def told() -> tuple[list[Row], Board]:
    chosen = {p.name: (i, p) for i, p in enumerate(plan(SEED, 150)) if p.name in NAMES}
    assert set(chosen) == set(NAMES)
    asker = Asker(Wanted(sample=chosen[CUT][0]))
    rows = [asker.ask(*chosen[name]) for name in NAMES]
    return rows, score(rows)


def test_every_run_is_asked_both_ways(told: tuple[list[Row], Board]) -> None:
    rows, board = told
    for mode in ("live", "replay"):
        assert board.tallies[f"{mode} attempts counted"].asked == len(rows) == len(NAMES)
    assert board.tallies["any cut = whole"].asked == 1
    assert any(name.startswith("live hang seen") for name in board.tallies)
    assert any(name.startswith("live slow seen") for name in board.tallies)


def test_watched_or_replayed_in_any_cut_the_answers_are_the_same(told: tuple[list[Row], Board]) -> None:
    _, board = told
    assert board.tallies["live = replay"].misses == []
    assert board.tallies["any cut = whole"].misses == []


def test_no_healthy_run_is_called_hung_or_dead(told: tuple[list[Row], Board]) -> None:
    _, board = told
    for mode in ("live", "replay"):
        assert board.tallies[f"{mode} healthy never hung or dead"].misses == []
        assert board.tallies[f"{mode} never hung too early"].misses == []


def test_nobody_else_is_blamed(told: tuple[list[Row], Board]) -> None:
    _, board = told
    assert [
        t.misses for name, t in board.tallies.items() if "never another" in name or "unknown kept" in name if t.misses
    ] == []


def test_the_command_says_it_in_json_and_knows_names() -> None:
    bench = ROOT / "bench" / "detectors.py"
    name = next(p.name for p in plan(3, 8) if p.group == "crash")
    command = [sys.executable, str(bench), "--seed", "3", "--runs", "8", "--only", name, "--json"]
    got = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (got["runs"], got["seed"]) == (1, 3)
    assert got["questions"]["live = replay"]["asked"] == 1
    nothing = subprocess.run([*command[:-2], "no-such-run"], check=False, capture_output=True, text=True)
    assert nothing.returncode == 3
    assert "no run of seed 3 is called no-such-run" in nothing.stderr
