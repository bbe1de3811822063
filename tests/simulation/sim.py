"""One simulated cluster for some days: jobs, users, Slurm, our process with its rows, the executor, and everything that goes wrong.

The code under test is `machine.advance` alone. After every step the rows are audited, and the world, which knows what was really hit, has its own
oracles: nothing that is not the judged run was ever ended or started by us.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation import faults as fault_words
from tests.simulation.executor import Executor
from tests.simulation.slurm import ENDED, Job, S, Slurm

from defib.engine.jobs import AttemptKey, ClusterRead, JobFacts
from defib.engine.recover import machine
from defib.engine.recover.desk import Desk, Rules, name
from defib.engine.recover.invariants import Auditor, settled
from defib.engine.recover.words import (
    Ask,
    Copied,
    Copy,
    Event,
    Fresh,
    Issue,
    Judged,
    Look,
    Progressed,
    Record,
    Row,
    Said,
    Scheduled,
    Started,
    SuspectPlace,
    Tick,
    Vitals,
)

USERS = ("u1", "u2", "u3", "u4")
CONSENT = '{"defib": {"restart": ["crash", "hang"], "act_on_running": true}}'
LITTLE = '{"defib": {"restart": ["crash"], "max_restarts": 1}}'
HOUR = 3600 * S


class BrokenError(AssertionError):
    """An invariant or an oracle does not hold. The message names seed, time and what."""


@dataclass
class Sim:
    """A run of one seed."""

    seed: int
    rules: Rules
    hours: float = 72.0
    only: frozenset[str] | None = None  # these faults instead of those that the seed draws
    now: int = 0
    events: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    count: Any = field(default_factory=itertools.count)
    stats: Counter[str] = field(default_factory=Counter)
    rows: list[Row] = field(default_factory=list)
    desk: Desk | None = None
    epoch: int = 0
    killed: bool = False
    stepped_us: int | None = None
    verdicts: dict[tuple[Any, ...], Judged] = field(default_factory=dict)
    polled: int = -HOUR
    revoked: dict[tuple[int, int | None], int] = field(default_factory=dict)
    blind_until: int = 0
    poll_no: int = 0
    recorded: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.faults = fault_words.draw(self.rng, self.seed) if self.only is None else fault_words.Faults(self.only)
        nodes = tuple(f"n{i:02d}" for i in range(1, self.rng.choice((6, 10, 16)) + 1))
        delay = self.rng.choice((5.0, 20.0)) if "short-delay" in self.faults else 121.0
        self.slurm = Slurm(
            self.rng, nodes, delay, sluids=self.rng.random() < 0.3, min_job_age_s=self.rng.choice((300.0, 3600.0))
        )
        if "bad-nodes" in self.faults:
            self.slurm.bad = set(self.rng.sample(nodes, 1))
        self.executor = Executor(self)
        self.auditor = Auditor()

    # --- time -----------------------------------------------------------------------------------------------------------------------

    def at(self, us: int, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (max(us, self.now), next(self.count), what))

    def after(self, s: float, what: Callable[[], None]) -> None:
        self.at(self.now + int(s * S), what)

    def run(self) -> Counter[str]:
        """Everything until the end of the time. Raises BrokenError."""
        end = int(self.hours * HOUR)
        self.after(0, lambda: self.start(clean=True))
        self.after(700, self._submit)
        self.after(0, self._poll)
        for fault, hours, what in self._plagues():
            if fault in self.faults:
                self._again(hours, what)
        while self.events:
            due = self.events[0][0]
            world = self.slurm.next_us()
            if world is not None and world <= due:
                due = max(self.now, world)
            if due > end:
                break
            self.now = due
            self.slurm.run(due)
            self._watch()
            if self.events and self.events[0][0] <= due:
                heapq.heappop(self.events)[2]()
                self._watch()
        self._liveness()
        return self.stats

    def _again(self, hours: float, what: Callable[[], None]) -> None:
        def go() -> None:
            what()
            self._again(hours, what)

        self.after(self.rng.expovariate(1 / (hours * 3600)), go)

    def fail(self, what: str) -> None:
        raise BrokenError(
            f"seed {self.seed}, {self.now / HOUR:.2f} h: {what} (faults: {', '.join(sorted(self.faults.on))})"
        )

    # --- our process ----------------------------------------------------------------------------------------------------------------

    def start(self, clean: bool) -> None:
        """A process takes the lock: what was recorded is all it knows."""
        self.epoch += 1
        self.executor.newest = self.epoch
        self.desk = machine.rebuilt(self.rules, self.rows)
        self.give(lambda: Started(self.now, self.epoch, clean))
        self.read()

    def crash(self) -> None:
        if self.desk is not None:
            self.desk = None
            self.stats["crashes"] += 1
            self.after(self.rng.choice((1.0, 20.0, 900.0)), lambda: self.start(clean=False))

    def vitals(self) -> Vitals:
        now = self.now
        blind = now < self.blind_until
        return Vitals(
            now, self.killed, now, 0.0, now, self.stepped_us, True, self.epoch, 3, 0, 20, 10 if blind else 0, (), False, (), True
        )  # fmt: skip

    def give(self, make: Callable[[], Event]) -> None:
        """An event reaches our process, if it lives; its effects leave it one by one."""
        if self.desk is None:
            return
        event = make()
        if self.desk.vitals is None or self.now - self.desk.vitals.at_us >= 10 * S:
            self._apply(machine.advance(self.desk, self.vitals()))
            if self.desk is None:
                return
        self._apply(machine.advance(self.desk, event))
        if self.desk is not None and self.rng.random() < 0.05:
            broken = settled(list(machine.advance(self.desk, Tick(self.desk.now_us))))
            if broken:
                self.fail(broken[0])

    def _apply(self, effects: list[Any]) -> None:
        may_crash = "crash" in self.faults
        for effect in effects:
            if may_crash and self.rng.random() < 0.002:
                self.crash()
                return
            if isinstance(effect, Record):
                self.rows.append(effect.row)
                if effect.row.case is not None:
                    self.recorded.update(o.order.number for o in effect.row.case.orders)
                self.stats[f"{effect.row.what} {effect.row.after}"] += effect.row.before != effect.row.after
                for broken in self.auditor.take(effect.row):
                    self.fail(broken)
            elif isinstance(effect, Look):
                self._look(effect)
            elif isinstance(effect, Copy):
                self.send(2.0, lambda e=effect: Copied(self.now, e.case, self.rng.random() < 0.95))  # type: ignore[misc]
            elif isinstance(effect, Ask):
                self._ask(effect)
            elif isinstance(effect, Issue):
                self.stats["orders"] += 1
                if effect.order.number not in self.recorded:
                    self.fail("I2: an order leaves before its row")
                late = (
                    self.rng.choice((0.0, 0.5, 60.0, 4000.0)) if "epoch" in self.faults else self.rng.choice((0.0, 0.3))
                )
                self.after(late, lambda o=effect.order: self.executor.take(o))  # type: ignore[misc]
                if may_crash and self.rng.random() < 0.1:
                    self.crash()
                    return
        if may_crash and self.rng.random() < 0.001:
            self.crash()

    def send(self, s: float, make: Callable[[], Event]) -> None:
        """A message to our process: some come late, some twice."""
        rng = self.rng
        if "delay" in self.faults and rng.random() < 0.2:
            s += rng.choice((1.0, 5.0, 120.0, 7200.0))
        made: list[Event] = []

        def event() -> Event:
            if not made:
                made.append(make())
            return made[0]

        self.after(s, lambda: self.give(event))
        if "double" in self.faults and rng.random() < 0.2:
            self.after(s + rng.choice((0.0, 3.0, 600.0)), lambda: self.give(event))

    # --- what it asks ---------------------------------------------------------------------------------------------------------------

    def _answers(self) -> bool:
        return self.slurm.up and not self.slurm.hung

    def read(self) -> None:
        """The periodic read."""
        self.polled = self.now
        ok = self._answers()
        jobs = tuple(f for j in self.slurm.jobs.values() for f in self.slurm.records(j)) if ok else ()
        self.poll_no += 1
        nodes = (
            self.slurm.nodes() if ok and (self.poll_no % 8 == 1 or self.desk is None or not self.desk.nodes) else None
        )
        event = Scheduled(
            self.now,
            ClusterRead(self.now, ok, jobs, took_s=0.1 if ok else 10.0),
            self.slurm.cluster() if ok else None,
            nodes,
        )
        if "slow-reads" in self.faults and self.rng.random() < 0.3:
            self.after(
                self.rng.choice((1.0, 30.0, 300.0)), lambda: self.give(lambda: Scheduled(self.now, *_parts(event)))
            )
        else:
            self.give(lambda: event)

    def _poll(self) -> None:
        busy = self.desk is not None and bool(self.desk.live)
        self.after(60 if busy else 600, self._poll)
        self._verdicts_again()
        self.read()

    def _look(self, effect: Look) -> None:
        key, begun = effect.attempt, self.now

        def answer() -> Event:
            ok = self._answers()
            found = self._named(effect.label) if ok else ()
            return Fresh(self.now, begun, key, ok, found)

        late = self.rng.choice((0.1, 3.0, 40.0)) if "slow-reads" in self.faults else 0.1
        event = answer()
        self.send(late, lambda: Fresh(self.now, begun, key, event.ok, event.found))  # type: ignore[union-attr]

    def _named(self, label: str) -> tuple[JobFacts, ...]:
        job, _, task = label.partition("_")
        return self.slurm.shown("task" if task else "id", int(job), int(task) if task else None)

    def _ask(self, effect: Ask) -> None:
        what = "approve" if self.rng.random() < 0.8 else "refuse"
        self.stats["asked"] += 1
        self.send(
            self.rng.choice((30.0, 1200.0, 4000.0)), lambda: Said(self.now, "op", what, effect.case, effect.digest)
        )  # type: ignore[arg-type]

    # --- the detector ---------------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """What the world did, as the detector and the oracles see it."""
        log, self.slurm.log = self.slurm.log, []
        for at, what, job in log:
            self.stats[what] += 1
            if what.startswith("ended") and job.state != "COMPLETED":
                self._judge(job, "dead")
            elif what == "hung":
                self._judge(job, "hung")
            elif what == "requeued by defib" and "hold" in self.faults and self.rng.random() < 0.2:
                self.after(self.rng.choice((0.5, 10.0, 25.0, 60.0)), lambda j=job: self.slurm.hold(j))  # type: ignore[misc]
            elif what == "started":
                self._steps(job, at)
            elif what.startswith("requeued by user") and "other-requeuer" in self.faults and self.rng.random() < 0.3:
                self._judge(job, "dead")  # a verdict about a run that is over

    def _key(self, job: Job) -> AttemptKey:
        return self.slurm.facts(job).key

    def _judge(self, job: Job, kind: str, wrong: bool = False) -> None:
        key, rng = self._key(job), self.rng
        klass, cause = {"hardware": ("gpu-hardware", "xid"), "bug": ("user-code", "traceback")}.get(
            job.ended_by, ("process-failed", "exit")
        )
        if kind == "hung":
            klass, cause = "hang", "silence"
        if "misjudged" in self.faults and rng.random() < 0.6:
            klass = rng.choice(("user-code", "gpu-hardware", "node-fault", "nic-link", "peer-lost", "hang", "nonsense"))
        suspects = tuple(
            SuspectPlace(n, "0", "certain", "cause", 1)
            for n in job.nodes
            if n in self.slurm.bad and klass == "gpu-hardware"
        )
        sign = "step-state" if kind == "hung" and not wrong and rng.random() < 0.8 else ""
        judged = Judged(
            self.now, key, kind, f"i{key.job_id}.{key.restarts}.{kind}", klass, "likely", cause,  # type: ignore[arg-type]
            f"{klass}/{cause}", self.slurm.reached(job), suspects, self.now >= self.blind_until, True, sign, self.now if sign else None, "wrong" if wrong else kind,
        )  # fmt: skip
        if kind == "hung":
            self.verdicts[(job.id, job.task, job.restarts)] = judged
        self.stats[f"judged {kind}{' wrongly' if wrong else ''}"] += 1
        late = rng.choice((1.0, 20.0))
        self._tell(judged, late)
        if job.parts:  # a detector that takes a part for the job must do no harm
            self.stats["judged a part"] += 1
            part = self.slurm.records(job)[-1].key
            self._tell(replace(judged, attempt=part, incident=judged.incident + ".part"), late)

    def _tell(self, judged: Judged, s: float) -> None:
        self.send(s, lambda: replace(judged, at_us=self.now, sign_us=self.now if judged.sign else None))

    def _verdicts_again(self) -> None:
        """A hang is told again as long as it lasts; a verdict of the dead until somebody has heard it."""
        for line, judged in list(self.verdicts.items()):
            job = self.slurm.jobs.get(line[:2])
            if job is None or job.restarts != line[2] or not (job.hung or judged.because == "wrong"):
                del self.verdicts[line]
            else:
                self._tell(judged, 0.5)

    def _steps(self, job: Job, started: int) -> None:
        """A run's progress, every half hour, and once soon after its start."""
        restarts = job.restarts

        def tell() -> None:
            if self.slurm.jobs.get(job.line) is job and job.restarts == restarts and job.state == "RUNNING":
                if not job.hung and not job.suspended:
                    key, step = self._key(job), self.slurm.reached(job)
                    self.send(0.0, lambda: Progressed(self.now, key, step))
                self.after(1800, tell)

        self.after(300, tell)

    # --- what goes wrong ------------------------------------------------------------------------------------------------------------

    def _plagues(self) -> list[tuple[str, float, Callable[[], None]]]:
        from tests.simulation.plagues import Plagues

        return Plagues(self).all()

    def _submit(self) -> None:
        """A few jobs at a time; a new one for each that is gone."""
        rng, s = self.rng, self.slurm
        live = [j for j in s.jobs.values() if j.state not in ENDED]
        if len(live) < min(6, len(s.node_names) // 2):
            user = rng.choice(USERS)
            goal = rng.randint(100, 2000)
            more: dict[str, Any] = {
                "comment": rng.choice((CONSENT, CONSENT, CONSENT, LITTLE, "", "{not json", '{"defib": {"restart": ["crash"], "x": 1}}')),
                "node_count": rng.choice((1, 1, 2)), "goal": goal, "requeue": rng.random() < 0.9, "batch": rng.random() < 0.95,
                "gpus": rng.choice((8, None)), "saved": 0,
            }  # fmt: skip
            if "bugs" in self.faults and rng.random() < 0.4:
                more["bug_at"] = rng.randint(10, goal)
            if "hangs" in self.faults and rng.random() < 0.4:
                more["hangs_at"] = rng.randint(10, goal)
            if rng.random() < 0.2:  # a list of the user's own, sometimes one that leaves just enough
                some = rng.sample(s.node_names, rng.choice((1, len(s.node_names) - more["node_count"])))
                more["excluded"] = tuple(sorted(some))
            more["partition"] = rng.choice(("gpu", "gpu", "gpu", "gpu", "debug"))
            if rng.random() < 0.15:
                s.submit_array(user, rng.randint(2, 3), **more)
            elif "parts" in self.faults and s.next_id % 4 == 3:
                s.submit_het(user, 1 + s.next_id % 2, **more)
            else:
                s.submit(user, **more)
        self.after(rng.uniform(600, 7200), self._submit)

    # --- oracles --------------------------------------------------------------------------------------------------------------------

    def _liveness(self) -> None:
        """Nothing that we hold stays held in silence."""
        for job in self.slurm.jobs.values():
            if not (job.held and job.hold_by == "defib") or self.desk is None or self.killed or not self._answers():
                continue
            case = next(
                (c for c in self.desk.cases.values() if c.next is not None and name(c.next) == name(self._key(job))),
                None,
            )
            told = case is not None and case.state in ("stranded", "human", "satisfied-by-other")
            quiet = self.faults.on & {
                "crash",
                "delay",
                "slow-reads",
                "controller-down",
                "controller-hung",
                "executor-crash",
                "epoch",
                "kill-switch",
            }
            if not told and not quiet and self.now - job.submit_us > 2 * HOUR:
                self.fail(f"job {job.id} is held by us and nobody was told")


def _parts(e: Scheduled) -> tuple[Any, ...]:
    return e.read, e.cluster, e.nodes
