"""A control loop with a clock, a scheduler and an executor of the test's own: hours pass in moments."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import yaml

from defib.adapters.act.asking import Survey
from defib.adapters.act.audit import ROW, Audit
from defib.adapters.act.ports import Ports, Told, Watching
from defib.adapters.acts import Acts
from defib.adapters.control import Controller
from defib.adapters.journal import segments
from defib.engine.jobs import AttemptKey, ClusterFacts, ClusterRead, JobFacts, NodeFacts
from defib.engine.policies import NodesPolicy, RecoveryPolicy
from defib.engine.policyfiles import load_policy
from defib.engine.recover import codec
from defib.engine.recover.desk import Rules
from defib.engine.recover.words import Copy, Fresh, Judged, Order, Progressed, Returned, Row
from defib.engine.rulebook import FailureClass

SECOND = 1_000_000
RULES = Path(__file__).resolve().parents[2] / "rules"
CONSENT = '{"defib": {"restart": ["crash", "hang"], "act_on_running": true}}'


@cache
def shipped() -> Rules:
    """The shipped policies and classes."""
    recovery = load_policy(
        (RULES / "policy/recovery.yaml").read_text(encoding="utf-8"), "recovery.yaml", RecoveryPolicy
    )
    nodes = load_policy((RULES / "policy/nodes.yaml").read_text(encoding="utf-8"), "nodes.yaml", NodesPolicy)
    raw = yaml.safe_load((RULES / "classes.yaml").read_text(encoding="utf-8"))["classes"]
    return Rules(recovery, nodes, {c["id"]: FailureClass(**c) for c in raw})


def site(mode: str = "act", **changes: object) -> Rules:
    """A site where everything that may be switched on is."""
    base = shipped()
    allow = dataclasses.replace(base.policy.allow, partitions=("train",))
    vitals = dataclasses.replace(base.policy.vitals, controller_quiet_s=60.0)
    policy = dataclasses.replace(base.policy, mode=mode, allow=allow, act_on_running=True, vitals=vitals)  # type: ignore[arg-type]
    return dataclasses.replace(base, policy=dataclasses.replace(policy, **changes))  # type: ignore[arg-type]


class FakeScheduler:
    """One cluster in memory. asked: every question."""

    def __init__(self, now: Any) -> None:
        self.now = now
        self.jobs: dict[int, JobFacts] = {}
        self.asked: list[str] = []
        self.answers: list[Fresh | Survey] = []
        self.up = True
        self.cluster = ClusterFacts("bed", (22, 5, 8), 1, 1, 121.0, up=True, ping_s=0.1)
        self.nodes = tuple(NodeFacts(f"n0{i}", "IDLE", partitions=("train",)) for i in range(1, 9))

    def look(self, attempt: AttemptKey, label: str) -> None:
        self.asked.append(label)
        found = tuple(j for j in self.jobs.values() if j.label == label)
        self.answers.append(Fresh(self.now(), self.now(), attempt, self.up, found if self.up else ()))

    def survey(self) -> None:
        self.answers.append(
            Survey(self.cluster, self.nodes, True, 0, ()) if self.up else Survey(None, None, False, None, None)
        )

    def poll(self) -> list[Fresh | Survey]:
        found, self.answers = self.answers, []
        return found

    def close(self) -> None:
        pass

    def read(self) -> ClusterRead:
        return ClusterRead(self.now(), self.up, tuple(self.jobs.values()) if self.up else ())


class FakeExecutor:
    """Runs orders against the scheduler in memory, after it has seen that they are in the audit on disk."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.ponged_us: int | None = None
        self.epoch: int | None = None
        self.orders: list[Order] = []
        self.answers: list[Returned] = []
        self.silent = False
        self.answer = ("done", "")
        self.acts = True

    def order(self, order: Order, now_us: int) -> None:
        assert order.number in self.loop.on_disk(), "an order left before its row was on disk"
        assert order.number not in [o.number for o in self.orders], "an order was handed over twice"
        self.orders.append(order)
        if self.acts:
            self.loop.effect(order)
        if not self.silent:
            word, code = self.answer
            self.answers.append(Returned(now_us, order.number, order.key, word, code, now_us))  # type: ignore[arg-type]

    def poll(self, now_us: int) -> list[Returned]:
        said, self.answers = self.answers, []
        return said

    def ping(self, now_us: int) -> None:
        self.ponged_us, self.epoch = now_us, self.loop.controller.audit.epoch

    def close(self) -> None:
        pass


class Loop:
    """A controller and its world; `run` lets time pass."""

    controller: Controller

    def __init__(self, folder: Path, rules: Rules, acts: Acts | None = None) -> None:
        self.folder, self.rules, self.acts = folder, rules, acts
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
        self.us = 1_000_000 * SECOND
        self.scheduler = FakeScheduler(lambda: self.us)
        self.executor = FakeExecutor(self)
        self.told = Told()
        self.copies: list[Copy] = []
        self.caught_up = True
        self.steps: list[tuple[int, int]] = []  # (at, step) that the newest run will print
        self.start()

    def start(self) -> None:
        """A controller, new or after one that is gone."""
        executor = None if self.rules.policy.mode == "observe" else self.executor
        ports = Ports(self.scheduler, executor, self._copy, self.told, self._watching, lambda: self.us)
        audit = Audit(str(self.folder / "actions"))
        if self.acts is not None:
            self.acts.of(audit.identity)
            audit.heard = self.acts.take
        self.controller = Controller(str(self.folder), self.rules, ports, audit)

    def die(self) -> None:
        """Killed: nothing is said, the kernel lets go of the lock."""
        self.controller.audit._journal._let_go()

    def run(self, seconds: float, each: float = 1.0) -> None:
        """Time passes; the scheduler is read every ten seconds."""
        end = self.us + int(seconds * SECOND)
        while self.us < end:
            self.us += int(each * SECOND)
            if (self.us // SECOND) % 10 == 0:
                self.controller.scheduled(self.scheduler.read())
            self.controller.step()

    def job(self, state: str = "RUNNING", job_id: int = 1001, **changes: object) -> JobFacts:
        """A job as the scheduler shows it from now on."""
        values: dict[str, object] = {
            "cluster": "bed", "job_id": job_id, "state": state, "submit_us": self.us - 60 * SECOND, "restarts": 0, "user": "ada", "uid": 7,
            "account": "lab", "partition": "train", "start_us": self.us - 50 * SECOND, "nodes": ("n01", "n02"), "node_count": 2, "gpus": 8,
            "requeue": True, "batch": True, "comment": CONSENT, "exit_code": 1 if state == "FAILED" else None, "exit_signal": 0,
        }  # fmt: skip
        self.scheduler.jobs[job_id] = JobFacts(**(values | changes))  # type: ignore[arg-type]
        return self.scheduler.jobs[job_id]

    def change(self, job_id: int = 1001, **changes: object) -> JobFacts:
        self.scheduler.jobs[job_id] = dataclasses.replace(self.scheduler.jobs[job_id], **changes)  # type: ignore[arg-type]
        return self.scheduler.jobs[job_id]

    def effect(self, order: Order) -> None:
        """What Slurm does to a job that is ordered about."""
        j = self.scheduler.jobs[order.job_id]
        if order.verb in ("requeue", "requeuehold"):
            held = order.verb == "requeuehold"
            reason = "job_requeued_in_held_state" if held else "BeginTime"
            self.change(
                order.job_id, state="PENDING", restarts=j.restarts + 1, submit_us=self.us, held=held, reason=reason,
                nodes=(), start_us=None, exit_code=None,
            )  # fmt: skip
        elif order.verb == "exclude":
            self.change(order.job_id, excluded=order.nodes)
        elif order.verb == "release":
            self.change(order.job_id, held=False, reason="Priority")

    def judge(self, kind: str = "dead", step: int | None = 100, job_id: int = 1001, **changes: object) -> None:
        """The watch says so about the newest run."""
        j = self.scheduler.jobs[job_id]
        klass = {"dead": "gpu-hardware", "hung": "hang"}[kind]
        values: dict[str, object] = {
            "incident": "incident",
            "klass": klass,
            "confidence": "certain",
            "fingerprint": f"{klass}-{job_id}",
            "step": step,
        }
        self.controller.feed(Judged(self.us, j.key, kind, **(values | changes)))  # type: ignore[arg-type]

    def progress(self, step: int, job_id: int = 1001) -> None:
        self.controller.feed(Progressed(self.us, self.scheduler.jobs[job_id].key, step))

    @property
    def state(self) -> str:
        """Of the only case."""
        (case,) = self.controller.desk.cases.values()
        return case.state

    @property
    def history(self) -> list[str]:
        """States and reasons of every row of a case."""
        rows = [codec.load(Row, r.payload) for r in segments.read(str(self.folder / "actions")) if r.kind == ROW]
        return [f"{r.after}: {r.because}" for r in rows if r.case is not None]

    @property
    def gate(self) -> str:
        (case,) = self.controller.desk.cases.values()
        return case.gate

    @property
    def verbs(self) -> list[str]:
        return [o.verb for o in self.executor.orders]

    def on_disk(self) -> set[int]:
        """Numbers of the orders that rows on disk hold."""
        found: set[int] = set()
        for record in segments.read(str(self.folder / "actions")):
            if record.kind == ROW:
                case = orjson.loads(record.payload).get("case")
                found |= {o["order"]["number"] for o in (case or {}).get("orders", [])}
        return found

    def _copy(self, effect: Copy) -> dict[str, object]:
        self.copies.append(effect)
        return {"lines": [{"line": 7, "text": "Xid 79"}]}

    def _watching(self) -> Watching:
        return Watching(self.us, 0.1, 2, 0, (), False, self.caught_up)
