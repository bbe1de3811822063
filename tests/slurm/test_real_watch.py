"""`defib watch --slurm` on a real Slurm: jobs are found, followed where they really write, judged by both, kept, and taken up again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.slurm.bed import Bed, wait_for

from defib.adapters import rulefiles

# In bash: a job's user may not be able to run the interpreter of these tests.
TRAINER = r"""#!/bin/bash
for ((i = 1; i < {steps}; i++)); do
  printf ' [2026-12-02 03:%02d:%02d] iteration %8d/  100000 | consumed samples: %12d | elapsed time per iteration (ms): 100.0 | ' \
    $((i / 60 % 60)) $((i % 60)) $i $i
  printf 'learning rate: 2.9E-04 | global batch size:  1024 | lm loss: 2.1E+00 | loss scale: 1.0 | grad norm: 0.5 | '
  printf 'number of skipped iterations:   0 | number of nan iterations:   0 |\n'
  sleep 0.05
done
{end}
"""
BOOM = """echo 'Traceback (most recent call last):
  File "/work/train.py", line 9, in <module>
    raise RuntimeError("boom")
RuntimeError: boom' >&2
exit 1"""


class Watch:
    """A watch as a process, and what it has told."""

    def __init__(self, bed: Bed, state: Path) -> None:
        self.state, self.told = state, state.parent / f"told-{len(list(state.parent.glob('told-*')))}.jsonl"
        self.db = state / "history.duckdb"
        with self.told.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "defib", "watch", "--slurm", "--conf", bed.conf, "--root", str(bed.root), "--ask-every", "1s",
                    "--every", "1s", "--state", str(state), "--jsonl",
                ],
                stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            )  # fmt: skip

        wait_for(self.db.exists, "the watch is up")

    def healths(self, job: int) -> list[str]:
        rows = [json.loads(line) for line in self.told.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [r["health"] for r in rows if r["kind"] == "health" and r["job"]["job_id"] == str(job)]

    def until(self, job: int, health: str) -> None:
        def seen() -> bool:
            assert self.process.poll() is None, self.process.stderr.read() if self.process.stderr else ""
            return health in self.healths(job)

        wait_for(seen, f"job {job} {health}")

    def sql(self, text: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "defib", "sql", "--db", str(self.db), "--json", text],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
        return rows

    def end(self, number: signal.Signals = signal.SIGTERM) -> str:
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return str(said)


@pytest.fixture
def watches(slurm: Bed, tmp_path: Path) -> Iterator[list[Watch]]:
    rulefiles.load()  # compiled once, not by every watch
    begun = [Watch(slurm, tmp_path / "state")]
    yield begun
    for w in begun:
        if w.process.poll() is None:
            w.process.kill()
            w.process.communicate()


def script(steps: int, end: str = "") -> str:
    return TRAINER.replace("{steps}", str(steps)).replace("{end}", end)


def test_jobs_are_found_followed_and_judged_by_logs_and_scheduler(slurm: Bed, watches: list[Watch]) -> None:
    (watch,) = watches
    crashes = slurm.submit(script(300, BOOM), "-o", "train-%j.log")
    trains = slurm.submit(script(4000), "-J", "long", "-o", "%x-%j.log")
    watch.until(crashes, "healthy")
    watch.until(crashes, "dead")
    watch.until(trains, "healthy")
    rows = {r["job_id"]: r for r in watch.sql("SELECT job_id, health, state FROM live_jobs")}
    assert rows[str(trains)]["health"] == "healthy"
    assert rows[str(trains)]["state"] == "RUNNING"
    state = f"SELECT state FROM live_jobs WHERE job_id = '{crashes}'"
    wait_for(lambda: watch.sql(state) == [{"state": "FAILED"}], "the scheduler's word, which may come after the log's")
    # Killed without a word: the next one goes on where it was, and tells no change twice.
    watch.end(signal.SIGKILL)
    again = Watch(slurm, watch.state)
    watches.append(again)
    # The cluster is shared: what other tests' jobs left behind is in this history too.
    ours = f"SELECT job_id, verdict FROM attempts WHERE job_id IN ('{crashes}', '{trains}')"
    crashed = [{"job_id": str(crashes), "verdict": "crashed"}]
    wait_for(lambda: again.sql(ours) == crashed, "the crash is in the history, once, and the other run is not over")
    assert "dead" not in again.healths(crashes)
    slurm.check("scancel", str(trains))
    again.until(trains, "ended")
    assert "Traceback" not in again.end()


def test_a_job_without_a_log_is_seen_and_an_array_has_one_run_per_task(slurm: Bed, watches: list[Watch]) -> None:
    (watch,) = watches
    silent = slurm.submit("#!/bin/bash\nsleep 600\n", "-o", "/dev/null", "-e", "/dev/null")
    array = slurm.submit(script(2000), "--array=1-2", "-o", "array-%A_%a.log")
    wait_for(
        lambda: (
            {
                (r["job_id"], r["array_task"], r["health"])
                for r in watch.sql("SELECT job_id, array_task, health FROM live_jobs")
            }
            >= {(str(array), "1", "healthy"), (str(array), "2", "healthy"), (str(silent), None, "starting")}
        ),
        "three runs",
    )
    asked = [sys.executable, "-m", "defib", "status", "--state", str(watch.state), "--json"]

    def without_logs() -> bool:
        told = json.loads(subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout)
        return bool(told["scheduler"]["without_logs"] == 1)

    wait_for(without_logs, "the status to count the one run without a log")  # it is written from time to time
    slurm.check("scancel", str(array), str(silent))
    assert "Traceback" not in watch.end()
