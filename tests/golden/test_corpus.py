"""Logs nobody here wrote: how often defib agrees with a person. Floors, not goals; bench/accuracy.py lists every miss."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Collected, Kit

from defib.engine.core import HealthChanged, State
from defib.engine.drive import Drive
from defib.engine.ports import Closed, Data, JobClosed, JobTold, Opened, SourceItem, Ticked
from defib.engine.words import JobKey, JobState, StreamFacts, StreamId

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT.parent / "shared" / "corpus"
FLOORS = {"verdict group": 0.93, "class": 0.90, "cause line within 3": 0.85, "framework": 0.85}

pytestmark = [
    pytest.mark.skipif(
        not (CORPUS / "manifest.tsv").is_file(),
        reason="the corpus lies outside the repository, and not on this machine",
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


# ---- live: the same logs as they would have arrived -------------------------------------------------------------------

CHUNK = 2048  # bytes a poll: nothing of it is silent for long
SILENT_S = 5 * 3600.0


def manifest() -> list[dict[str, str]]:
    if not (CORPUS / "manifest.tsv").is_file():
        return []
    with (CORPUS / "manifest.tsv").open(encoding="utf-8") as f:
        return list(csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE))


@dataclass
class Arriving:
    """A log that arrives in pieces, one a poll of ten seconds, and then nothing for some hours while the job is said to run."""

    facts: StreamFacts
    data: bytes

    def items(self) -> Iterator[list[SourceItem]]:
        now = 0.0
        size = max(CHUNK, len(self.data) // 400)
        yield [
            Opened(0, StreamId("job.log"), self.facts, 0),
            JobTold(self.facts.job, JobState("RUNNING", restart_count=0)),
            Ticked(0),
        ]
        for k in range(0, len(self.data), size):
            now += 10.0
            piece = self.data[k : k + size]
            yield [Data(0, piece, len(piece)), Ticked(round(now * 1e6))]
        end = now + SILENT_S
        while now < end:
            now += 60.0
            yield [Ticked(round(now * 1e6))]
        yield [Closed(0), JobClosed(self.facts.job)]


def watched(made: Kit, data: bytes) -> tuple[list[HealthChanged], float]:
    """Every change of health, and when the last byte had arrived."""
    source = Arriving(StreamFacts(JobKey(job_id="1")), data)
    polls = source.items()

    class Feed:
        def poll(self) -> list[SourceItem] | None:
            return next(polls, None)

        def close(self) -> None:
            pass

    sink = Collected()
    Drive(made.observer(), State(made.book), sink).run(Feed())
    size = max(CHUNK, len(data) // 400)
    return sink.of(HealthChanged), 10.0 * -(-len(data) // size)


@pytest.mark.parametrize("row", [r for r in manifest() if r["flags"] == "hang"], ids=lambda r: r["file"])
def test_a_log_that_a_person_calls_hung_is_hung_or_dead_once_it_is_silent(shipped: Kit, row: dict[str, str]) -> None:
    changes, _ = watched(shipped, (CORPUS / row["file"]).read_bytes())
    assert changes
    assert changes[-1].health in ("hung", "dead"), changes[-1].because


@pytest.mark.parametrize("row", [r for r in manifest() if "healthy" in r["flags"]], ids=lambda r: r["file"])
def test_a_healthy_log_is_neither_hung_nor_dead_while_it_arrives(shipped: Kit, row: dict[str, str]) -> None:
    changes, arrived = watched(shipped, (CORPUS / row["file"]).read_bytes())
    accused = [c for c in changes if c.health in ("hung", "dead") and c.at_us / 1e6 <= arrived]
    assert not accused, accused[0].because
