"""Logs nobody here wrote: how often defib agrees with a person. Floors, not goals; bench/accuracy.py lists every miss."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT.parent / "shared" / "corpus"
FLOORS = {"verdict group": 0.93, "class": 0.90, "cause line within 3": 0.85, "framework": 0.85}

pytestmark = [
    pytest.mark.skipif(
        not (CORPUS / "manifest.tsv").is_file(), reason=f"{CORPUS}: the shared corpus is not on this machine"
    ),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "bench" / "accuracy.py"), str(CORPUS / "manifest.tsv"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("question", "floor"), FLOORS.items(), ids=list(FLOORS))
def test_agreement(question: str, floor: float, result: dict[str, Any]) -> None:
    score = result["scores"][question]
    assert score["asked"] > 50
    assert score["rate"] >= floor, "\n".join(score["misses"])


def test_no_healthy_log_is_accused(result: dict[str, Any]) -> None:
    assert result["healthy_files"] >= 40
    assert result["false_alarms"] == 0, "\n".join(result["scores"]["healthy not accused"]["misses"])


def test_block_sizes_do_not_matter() -> None:
    """The same bytes out, whatever the bytes in were cut into. On the smaller half of the files, so that it stays quick."""
    with (CORPUS / "manifest.tsv").open(encoding="utf-8") as f:
        files = [CORPUS / r["file"] for r in csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE)]
    chosen = sorted(files, key=lambda p: (p.stat().st_size, p))[: len(files) * 6 // 10]
    command = [sys.executable, "-m", "defib", "replay", "--jsonl", "-q", "--db", ":memory:", "--block-bytes"]
    small, large = (
        subprocess.run([*command, size, *map(str, chosen)], capture_output=True, check=True, cwd=ROOT).stdout
        for size in ("4K", "16M")
    )
    assert small.count(b"\n") >= len(chosen) // 2
    assert small == large
