"""Killed at any call that changes the disk, taken up again: the same history. A bounded sample; `bench/killcheck.py` does them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"


def check(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCH / "killcheck.py"), *words], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_a_killed_life_comes_to_the_same_history() -> None:
    said = check("--every", "17", "--first", "3", "--seconds", "20")
    assert int(said.split()[0]) >= 1, said
    assert "0 failures" in said


def test_a_life_killed_twice_while_it_forgets() -> None:
    said = check("--every", "31", "--first", "12", "--seconds", "12", "--twice", "--forget")
    assert int(said.split()[0]) >= 1, said
    assert "0 failures" in said
