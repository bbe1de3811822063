"""Nothing of a log, a file's name or a job's name reaches an output with the power to steer a terminal."""

from __future__ import annotations

import os
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defib.adapters.show import cell, csv_cell, safe

Run = Any  # the fixture's type lives in conftest.py
STEERS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
ATTACKS = [
    "\x1b[2J\x1b[H", "\x1b]0;owned\x07", "\x1b]52;c;ZWNobyBoaQ==\x07", "\x1b]8;;http://evil/\x1b\\link\x1b]8;;\x1b\\", "\x9b31m", "\x9d0;owned\x9c",
    "\x1bP+q544e\x1b\\", "\x1b_Gi=1;\x1b\\", "\x08\x08\x08ok", "\x0b\x0c", "\x7f", "\u202egnp.exe", "\u2066\u2067x\u2069", "\u200b\u200d\ufeff",
    "\u2028\u2029", "\x85", "\U000e0041\U000e007f", "\x0e\x0f", "\r=1+1",
]  # fmt: skip


def steering(data: bytes) -> set[str]:
    """What of an output could steer: code points, and bytes that are no text."""
    return {f"U+{ord(c):04X}" for c in STEERS.findall(data.decode("utf-8", "surrogateescape"))}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs whose names and lines attack, seeded."""
    folder = tmp_path_factory.mktemp("hostile") / "logs"
    folder.mkdir()
    rng = Random(7)
    for i in range(8):
        a, b, c = (rng.choice(ATTACKS) + rng.choice(ATTACKS) for _ in range(3))
        lines = [
            f"[rank{i}]: torch.OutOfMemoryError: CUDA out of memory. Tried {a} to allocate 4.62 GiB.",
            f"[rank{i}]: ValueError: boom {b} | x",
            f"slurmstepd: error: *** JOB 77 ON n{c}01 CANCELLED AT 2026-11-30T21:00:00 DUE TO {a} ***",
            f"ERROR: something {c} failed, an Exception without a rule {a}",
            f"=cmd|'/C calc'!A0 {b}",
            *(f"Error {attack} {i}" for attack in ATTACKS),
        ]
        name = f"job{rng.choice(ATTACKS).replace('/', '_')}-{i}.out".encode() + (b"\xff\x9b.log" if i % 2 else b"")
        data = "\n".join(lines).encode() + b"\nraw \x9b31m \xff\xc0\x80 bytes, error\n"
        with open(os.path.join(os.fsencode(folder), name.replace(b"\0", b"")), "wb") as f:
            f.write(data)
    return folder


@pytest.fixture(scope="module")
def hostile_history(run: Run, hostile: Path) -> Path:
    db = hostile.parent / "history.duckdb"
    done = run("replay", hostile, "--db", db, "--cluster", "c\x1b[31m\u202e")
    assert done.returncode == 0, done.stderr
    assert steering(done.stdout) == steering(done.stderr) == set()
    return db


FORMS = ([], ["--csv"], ["-P"], ["--json"], ["--jsonl"])


@pytest.mark.parametrize("form", FORMS, ids=lambda f: " ".join(f) or "table")
@pytest.mark.parametrize(
    "command",
    [["jobs"], ["attempts"], ["incidents"], ["sql", "FROM streams"], ["sql", "FROM why"], ["sql", "FROM signals"]],
    ids=" ".join,
)
def test_listings_and_sql(command: list[str], form: list[str], say: Run, hostile_history: Path) -> None:
    done = say(*command, "--db", hostile_history, *form)
    assert done.returncode == 0
    assert len(done.stdout) > 300
    assert steering(done.stdout) == set()


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_why_check_log_and_replay(form: list[str], say: Run, hostile: Path) -> None:
    files = sorted(os.scandir(os.fsencode(hostile)), key=lambda e: e.name)
    paths = [e.path for e in files]
    for command in (["why"], ["check-log"], ["replay", "--db", ":memory:"]):
        done = say(*command, *form, *paths)
        assert done.returncode == 0
        assert len(done.stdout) > 1000
        assert steering(done.stderr) == set()
        assert steering(done.stdout) == set(), command


def test_messages(say: Run, hostile: Path, hostile_history: Path, tmp_path: Path) -> None:
    odd = "x\x1b[31m\u202e"
    for arguments in (
        ["replay", f"{odd}.log", "--db", ":memory:"],
        ["check-log", f"{odd}.log"],
        ["jobs", "--db", f"{odd}.duckdb"],
        ["why", "--db", hostile_history, odd],
        ["sql", "--db", hostile_history, f"SELEC {odd}"],
        ["sql", "--db", hostile_history, f'SELECT 1 AS "{odd}"'],
        ["sql", "--db", hostile_history, f'SELECT 1 AS "{odd}"', "--csv"],
        ["sql", "--db", hostile_history, f'SELECT 1 AS "{odd}"', "-P"],
        ["rules", "show", odd],
        ["rules", "check", odd],
        ["replay", hostile, "--db", ":memory:", "--fail-on", odd],
    ):
        done = say(*arguments, cwd=tmp_path)
        assert done.returncode in (0, 1, 2, 3)
        assert steering(done.stdout) == steering(done.stderr) == set(), arguments[:2]


def test_faults_of_a_hostile_rule_file(say: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(
        'family: bad\nabout: "\\e[31m"\nsignatures:\n  - {id: "b\\e[2J", "ti\\u202etle": x}\n'
    )
    done = say("rules", "check", tmp_path)
    assert done.returncode == 1
    assert steering(done.stdout) == steering(done.stderr) == set()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(st.characters(codec=None)))
def test_shown_text_steers_nothing_and_loses_nothing(text: str) -> None:
    for shown in (safe(text), cell(text), cell([text]), csv_cell(text), csv_cell([text])):
        assert not STEERS.search(shown)
        assert "\n" not in shown
        shown.encode()
    assert STEERS.sub("", text).replace("\n", "") == text or safe(text) != text
