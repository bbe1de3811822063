"""`defib watch --slurm` that recovers, as a process of its own, against a real Slurm, with limits that fit a test."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import yaml
from tests.slurm.bed import Bed

from defib.adapters import rulefiles
from defib.adapters.act.audit import written
from defib.adapters.history import open_history
from defib.adapters.journal import segments
from defib.engine.recover.words import Case, Row
from defib.engine.words import StoreError

CONSENT = '{"defib": {"restart": ["crash", "hang"], "act_on_running": true}}'
TOY = Path(__file__).with_name("toy.py")
PHASES = ("startup", "compile", "steady", "evaluation", "checkpoint", "pause", "ending", "unknown")
DETECT: dict[str, Any] = {
    "policy": "detect",
    "hang": {
        "after_error_s": 3,
        "after_exit_s": 3,
        # a busy machine stands still for seconds
        "phases": {p: {"floor_s": 10, "unlearned_s": 12, "ceiling_s": 30} for p in PHASES},
    },
}
# A site where everything is switched on, as quick as the bounds of the policy let it be.
SITE: dict[str, Any] = {
    "policy": "recovery",
    "mode": "act",
    "allow": {"partitions": ["train"], "accounts": ["*"]},
    "act_on_running": True,
    "confirm": {"settle_s": 5, "hang_s": 10},
    "call": {"kill_after_s": 3, "slack_s": 5, "retry_s": 10, "backoff_s": [0]},
    "rate": {"gap_s": 1, "share_per_hour": 1, "share_at_once": 1},
    "vitals": {"controller_quiet_s": 2, "pings": 1, "lag_s": 30},
    "breakers": {"lag_s": 30},
    "exclusion": {"partition_share": 0.5, "spare_nodes": 0},
}
SETTINGS = """
[watch]
every = "500ms"
roots = ["{home}"]
[slurm]
enabled = true
conf = "{conf}"
interval = "1s"
settle = "5s"
prefix = {prefix}
[state]
directory = "{state}"
[policy]
shadow = "0s"
rules = ["{rules}"]
"""


class Watch:
    """The logs of one user's home, the scheduler, an executor. site: laid over SITE; detect: over DETECT's hang and beside it."""

    def __init__(
        self,
        bed: Bed,
        folder: Path,
        site: Mapping[str, Any] | None = None,
        detect: Mapping[str, Any] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.bed, self.folder, self.root = bed, folder, folder.parent
        rules = self.root / "rules"
        rules.mkdir()
        (rules / "detect.yaml").write_text(yaml.safe_dump(DETECT | dict(detect or {})))
        (rules / "recovery.yaml").write_text(yaml.safe_dump(SITE | dict(site or {})))
        rulefiles.load([rules])  # compiled here, in the process that keeps them
        self.config = self.root / "defib.toml"
        self.config.write_text(
            SETTINGS.format(
                home=bed.home("nobody"),
                conf=bed.conf,
                prefix=orjson.dumps(prefix).decode(),
                state=folder,
                rules=rules,
            )
        )
        self.start()

    def start(self) -> None:
        with (self.root / "told").open("ab") as told, (self.root / "errors").open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "defib", "watch", "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=errors,
            )
        self.until(lambda: (self.folder / "asked.json").exists(), "the watch to be up")

    def until(self, done: Callable[[], object], why: str, seconds: float = 90.0) -> None:
        """Wait until it is so, while the watch lives."""
        end = time.monotonic() + seconds
        while not done():
            late = time.monotonic() > end
            assert not late, f"waited {seconds:.0f} s for {why}: {self.history()[-14:]} {self.told()} {self.errors()}"
            assert self.process.poll() is None, self.errors()
            time.sleep(0.3)

    def policy(self, text: str) -> None:
        """Another file for the site, and a word to the watch."""
        (self.root / "rules" / "recovery.yaml").write_text(text)
        self.process.send_signal(signal.SIGHUP)

    def watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > end, "time to pass", seconds + 30)

    def close(self) -> None:
        """End in order."""
        self.process.terminate()
        assert self.process.wait(60) == 0, self.errors()
        assert "Traceback" not in self.errors()

    def die(self) -> None:
        """Killed, in whatever it does."""
        self.process.kill()
        self.process.wait()

    # what is to be seen

    def case(self, job: int) -> Case | None:
        """The first case about this job, as it was last written down."""
        mine = [r.case for r in self.rows() if r.case is not None and r.case.attempt.job_id == job]
        return next((c for c in reversed(mine) if c.id == mine[0].id), None)

    def is_(self, job: int, *states: str) -> bool:
        case = self.case(job)
        return case is not None and case.state in states

    def was(self, job: int, *states: str) -> bool:
        """Whether the first case about this job has been in one of these states: a busy machine passes some between two looks."""
        mine = [r for r in self.rows() if r.case is not None and r.case.attempt.job_id == job]
        first = mine[0].case.id if mine and mine[0].case is not None else None
        return any(r.after in states for r in mine if r.case is not None and r.case.id == first)

    def rows(self) -> list[Row]:
        return [row for row, _ in written(str(self.folder / "actions"))]

    def history(self) -> list[str]:
        return [f"{r.after} {r.because}" for r in self.rows() if r.case is not None]

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        """A question to the history while the watch holds it."""
        con = open_history(str(self.folder))
        try:
            found: list[tuple[Any, ...]] = con.execute(query).fetchall()
        finally:
            con.close()
        return found

    def calls(self) -> list[str]:
        """Commands whose intent was written and which were not held back."""
        try:
            records = list(segments.read(str(self.folder / "executor")))
        except StoreError:
            return []
        begun: dict[int, str] = {}
        for r in records:
            v: dict[str, Any] = orjson.loads(r.payload)
            if r.kind == "intent":
                begun[v["order"]["number"]] = " ".join(v["argv"])
            elif r.kind == "outcome" and v["answer"] == "not-run":
                begun.pop(v["number"], None)
        return list(begun.values())

    def told(self) -> list[str]:
        return (self.root / "told").read_text().splitlines()[-12:]

    def errors(self) -> str:
        return (self.root / "errors").read_text()[-4000:]


def submit(bed: Bed, *options: str, steps: int = 400, comment: str = CONSENT, **env: str) -> int:
    """A toy training in a folder of its own."""
    home = bed.home("nobody")
    work = home / f"work-{time.monotonic_ns()}"
    work.mkdir()
    shutil.chown(work, "nobody")
    shutil.copy(TOY, home / "toy.py")
    exports = " ".join(f"{k}={v}" for k, v in env.items())
    script = f"cd {work}; exec env {exports} /usr/bin/python3 {home}/toy.py {work} {steps}"
    return bed.submit(script, "--requeue", f"--comment={comment}", "-o", f"{home}/slurm-%j.out", *options)
