"""A watch with recovery against a real Slurm: the shipped parts put together, with limits that fit a test."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from tests.act.loop import RULES, shipped
from tests.slurm.bed import Bed

from defib.adapters import hosting, rulefiles
from defib.adapters.act.asking import Asker
from defib.adapters.act.audit import ROW, Audit, understood
from defib.adapters.act.client import ExecutorProcess
from defib.adapters.act.ports import Ports, Told
from defib.adapters.act.verdicts import Verdicts
from defib.adapters.control import Controller
from defib.adapters.journal import segments
from defib.adapters.slurm import paths
from defib.adapters.slurm.calls import Commands
from defib.adapters.slurm.reader import Scheduler
from defib.adapters.tail.clock import SystemClock
from defib.adapters.tail.files import SystemFiles
from defib.adapters.tail.pace import looking
from defib.adapters.tail.session import Session
from defib.adapters.tail.source import TailSource
from defib.engine.core import State
from defib.engine.drive import Drive
from defib.engine.identity import Known
from defib.engine.jobs import JobFacts, LogPath
from defib.engine.observe import Observer
from defib.engine.recover.desk import Rules
from defib.engine.recover.words import Case, Row
from defib.engine.roster import Roster

SECOND = 1_000_000
CONSENT = '{"defib": {"restart": ["crash", "hang"], "act_on_running": true}}'
TOY = Path(__file__).with_name("toy.py")
LIMITS = "{floor_s: 10, unlearned_s: 12, ceiling_s: 30}"  # a busy machine stands still for seconds
PHASES = ("startup", "compile", "steady", "evaluation", "checkpoint", "pause", "ending", "unknown")
DETECT = f"""policy: detect
hang:
  after_error_s: 3
  after_exit_s: 3
  phases: {{{", ".join(f"{p}: {LIMITS}" for p in PHASES)}}}
"""


def site(mode: str = "act", **changes: object) -> Rules:
    """A site where everything is switched on, as quick as the bounds of the policy let it be."""
    base = shipped()
    p = base.policy
    policy = dataclasses.replace(
        p, mode=mode, act_on_running=True, allow=dataclasses.replace(p.allow, partitions=("train",)),  # type: ignore[arg-type]
        confirm=dataclasses.replace(p.confirm, settle_s=5.0, hang_s=10.0),
        call=dataclasses.replace(p.call, kill_after_s=3.0, slack_s=5.0, retry_s=10.0, backoff_s=(0.0,)),
        rate=dataclasses.replace(p.rate, gap_s=1.0, share_per_hour=1.0, share_at_once=1.0),
        vitals=dataclasses.replace(p.vitals, controller_quiet_s=2.0, pings=1, lag_s=30.0),
        breakers=dataclasses.replace(p.breakers, lag_s=30.0),
        exclusion=dataclasses.replace(p.exclusion, partition_share=0.5, spare_nodes=0),
    )  # fmt: skip
    policy = dataclasses.replace(policy, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(base, policy=policy)


class Watch:
    """Logs of one user's home, the scheduler, the controller, an executor as a process of its own."""

    def __init__(self, bed: Bed, folder: Path, rules: Rules, commands: Commands | None = None) -> None:
        self.bed, self.rules, self.folder = bed, rules, folder
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
        self.commands = commands or Commands(conf=bed.conf)
        site_rules = folder / "rules"
        site_rules.mkdir(exist_ok=True)
        (site_rules / "detect.yaml").write_text(DETECT)
        self.loaded = rulefiles.load([site_rules])
        self.told, self.said = Told(), []  # type: ignore[var-annotated]
        self.start()

    def start(self) -> None:
        book, clock = self.loaded.book, SystemClock()
        self.state = State(book)
        self.scheduler = Scheduler(self.commands, interval_us=SECOND)
        home = os.fsencode(self.bed.home("nobody"))
        self.files = SystemFiles([home])
        logs = TailSource(
            [home + b"/slurm-*.out"], book.paths, self.files, clock, Known(self.bed.name), looking(SECOND // 2)
        )
        verdicts = Verdicts(self.state, clock.now_us)
        audit = Audit(str(self.folder / "actions"))
        stops = (str(self.folder / "STOP"),)
        self.executor = (
            None if self.rules.policy.mode == "observe"
            else ExecutorProcess(str(self.folder / "executor"), audit.folder, stops, self.commands, self.said.append)
        )  # fmt: skip
        ports = Ports(
            Asker(self.commands, clock.now_us), self.executor, lambda c: verdicts.evidence(c.attempt), self.told,
            lambda: hosting.watching(str(self.folder), self.state, clock.now_us, lambda: self.source.behind), clock.now_us,
        )  # fmt: skip
        self.controller = Controller(str(self.folder), self.rules, ports, audit, tell_us=3 * SECOND)

        def places(j: JobFacts) -> tuple[tuple[LogPath, ...], tuple[str, ...]]:
            found = paths.logs(j, (), (b"/",))
            return found.paths, found.troubles

        self.source = hosting.Recovering(
            logs, self.scheduler, Roster(places, settle_us=5 * SECOND), verdicts, self.controller, clock.now_us
        )
        self.session = Session(self.source, lambda: False, lambda: None)
        self.drive = Drive(Observer(book, self.loaded.databases), self.state, self.source)

    def until(self, done: Callable[[], object], why: str, seconds: float = 90.0) -> None:
        """Watch until it is so."""
        end = time.monotonic() + seconds
        source = _Until(self.session, lambda: bool(done()) or time.monotonic() > end)
        self.drive.run(source)
        assert done(), f"waited {seconds:.0f} s for {why}: {self.history()[-14:]} {self.said} {self.controller.broken}"

    def watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > end, "time to pass", seconds + 30)

    def close(self) -> None:
        self.session.close()
        self.files.shut()
        self.controller.close()

    def die(self) -> None:
        """Killed: the kernel lets go of lock and sockets, nobody says good-bye."""
        self.session.close()
        self.files.shut()
        self.controller.audit._journal._let_go()
        if self.executor is not None and self.executor._link is not None:
            self.executor._link.close()

    # what is to be seen

    def case(self, job: int) -> Case | None:
        """The first case about this job."""
        return next((c for c in self.controller.desk.cases.values() if c.attempt.job_id == job), None)

    def is_(self, job: int, *states: str) -> bool:
        case = self.case(job)
        return case is not None and case.state in states

    def rows(self) -> list[Row]:
        return [understood(r.payload) for r in segments.read(str(self.folder / "actions")) if r.kind == ROW]

    def history(self) -> list[str]:
        return [f"{r.after} {r.because}" for r in self.rows() if r.case is not None]

    def calls(self) -> list[str]:
        """Commands whose intent was written and which were not held back."""
        folder = self.folder / "executor"
        if not folder.exists():
            return []
        begun: dict[int, str] = {}
        for r in segments.read(str(folder)):
            v: dict[str, Any] = orjson.loads(r.payload)
            if r.kind == "intent":
                begun[v["order"]["number"]] = " ".join(v["argv"])
            elif r.kind == "outcome" and v["answer"] == "not-run":
                begun.pop(v["number"], None)
        return list(begun.values())


class _Until:
    """The session, ended for this time only."""

    def __init__(self, session: Session, done: Callable[[], bool]) -> None:
        self.session, self.done = session, done

    def poll(self) -> Any:
        return None if self.done() else self.session.poll()

    def close(self) -> None:
        pass


def submit(bed: Bed, *options: str, steps: int = 60, comment: str = CONSENT, **env: str) -> int:
    """A toy training in a folder of its own."""
    home = bed.home("nobody")
    work = home / f"work-{time.monotonic_ns()}"
    work.mkdir()
    shutil.chown(work, "nobody")
    shutil.copy(TOY, home / "toy.py")
    exports = " ".join(f"{k}={v}" for k, v in env.items())
    script = f"cd {work}; exec env {exports} /usr/bin/python3 {home}/toy.py {work} {steps}"
    return bed.submit(script, "--requeue", f"--comment={comment}", "-o", f"{home}/slurm-%j.out", *options)


__all__ = ["RULES", "Watch", "site", "submit"]
