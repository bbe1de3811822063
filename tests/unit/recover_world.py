"""Favourable inputs and a desk with one job, from which the tests of recovery take away one thing at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.simulation.run import shipped

from defib.engine.jobs import AttemptKey, ClusterFacts, ClusterRead, JobFacts, NodeFacts
from defib.engine.recover import machine
from defib.engine.recover.desk import Desk, Rules
from defib.engine.recover.inputs import Inputs, Tally
from defib.engine.recover.words import (
    Copied,
    Copy,
    Effect,
    Event,
    Facts,
    Fresh,
    Issue,
    Judged,
    Look,
    Record,
    Row,
    Scheduled,
    Started,
    Tick,
    Vitals,
)

S = 1_000_000
NOW = 1_000_000 * S
CONSENT = '{"defib": {"restart": ["crash", "hang"], "act_on_running": true}}'
KEY = AttemptKey("c", 41, None, NOW - 9_000 * S, 0)


def rules(**more: Any) -> Rules:
    """The shipped rules in mode act, one partition allowed."""
    base = shipped()
    policy = dataclasses.replace(
        base.policy, mode="act", act_on_running=True, allow=dataclasses.replace(base.policy.allow, partitions=("gpu",))
    )
    return dataclasses.replace(base, policy=dataclasses.replace(policy, **more))


def facts(**more: Any) -> Facts:
    base: dict[str, Any] = {
        "attempt": KEY, "state": "FAILED", "begun_us": NOW - S, "user": "u1", "uid": 1001, "partition": "gpu", "account": "lab",
        "exit_code": 1, "exit_signal": 0, "nodes": ("n1", "n2"), "node_count": 2, "gpus": 16, "requeue": True, "batch": True, "comment": CONSENT,
    }  # fmt: skip
    return Facts(**{**base, **more})


def vitals(at_us: int = NOW, **more: Any) -> Vitals:
    v = Vitals(at_us, False, at_us, 0.1, at_us, None, True, 7, 3, 0, 10, 0, (), False, (), True)
    return dataclasses.replace(v, **more)


def inputs(**more: Any) -> Inputs:
    """Inputs for which every gate is open."""
    r = rules()
    base: dict[str, Any] = {
        "now_us": NOW, "final": True, "attempt": KEY, "lineage": "l", "target": "terminal", "policy": r.policy,
        "klass": r.classes["node-fault"], "judged": Judged(NOW - 60 * S, KEY, "dead", "i", "node-fault", fingerprint="f", step=100),
        "signs": 3, "signed_us": NOW - 200 * S, "settled_us": NOW - 60 * S, "copied_us": NOW - 50 * S, "found": (facts(),),
        "looked_us": NOW - S, "cluster": ClusterFacts("c", (24, 11), 1, 1, 121.0), "controller_us": 0, "vitals": vitals(), "epoch": 7,
        "tally": Tally(running_jobs=100, gpus_running=1000), "breakers": (), "others": (), "approved": "", "approved_us": None,
        "candidates": (), "room": None,
    }  # fmt: skip
    return Inputs(**{**base, **more})


def job(**more: Any) -> JobFacts:
    base: dict[str, Any] = {
        "cluster": "c", "job_id": 41, "state": "RUNNING", "submit_us": NOW - 9_000 * S, "restarts": 0, "user": "u1", "uid": 1001,
        "partition": "gpu", "account": "lab", "nodes": ("n1", "n2"), "node_count": 2, "gpus": 16, "requeue": True, "batch": True,
        "comment": CONSENT,
    }  # fmt: skip
    return JobFacts(**{**base, **more})


class Driver:
    """A desk with its clock; keeps rows and effects. Reads show whatever `jobs` holds at the time."""

    def __init__(self, r: Rules | None = None, *jobs: JobFacts) -> None:
        self.rules = r or rules()
        self.desk: Desk = machine.rebuilt(self.rules, ())
        self.now = NOW
        self.jobs = list(jobs) or [job()]
        self.rows: list[Row] = []
        self.effects: list[Effect] = []
        self.cluster = ClusterFacts("c", (24, 11), 1, 1, 121.0)
        self.nodes = tuple(NodeFacts(f"n{i}", "IDLE", partitions=("gpu",)) for i in range(1, 41))
        self.start()

    def start(self) -> None:
        self.give(Started(self.now, 7 + sum(r.what == "start" for r in self.rows)))
        self.read()
        self.desk.controller_us = 0

    def give(self, event: Event) -> list[Effect]:
        out = list(machine.advance(self.desk, vitals(self.now, newest_epoch=self.desk.epoch)))
        out += machine.advance(self.desk, event)
        self.rows += [e.row for e in out if isinstance(e, Record)]
        self.effects += out
        return out

    def read(self, ok: bool = True) -> list[Effect]:
        return self.give(
            Scheduled(self.now, ClusterRead(self.now, ok, tuple(self.jobs) if ok else ()), self.cluster, self.nodes)
        )

    def wait(self, s: float) -> list[Effect]:
        self.now += int(s * S)
        return self.give(Tick(self.now))

    def restart(self) -> None:
        """Our process dies and comes back with nothing but its rows."""
        self.desk = machine.rebuilt(self.rules, self.rows)
        self.start()

    def serve(self) -> list[Effect]:
        """Answer what was asked last: looks with the jobs as they are, copies with yes."""
        asked, self.effects = self.effects, []
        for e in asked:
            if isinstance(e, Look):
                found = tuple(j for j in self.jobs if j.label == e.label)
                self.give(Fresh(self.now, self.now, e.attempt, True, found))
            elif isinstance(e, Copy):
                self.give(Copied(self.now, e.case, True))
        return self.effects

    def judge(self, kind: str = "dead", klass: str = "node-fault", **more: Any) -> list[Effect]:
        key = self.jobs[0].key
        return self.give(Judged(self.now, key, kind, f"i{key.restarts}", klass, "likely", "c", "f", 100, **more))  # type: ignore[arg-type]

    def fail(self) -> None:
        """The job has failed, has been judged, and has settled."""
        self.jobs[0] = dataclasses.replace(self.jobs[0], state="FAILED", exit_code=1, exit_signal=0)
        self.read()
        self.judge()
        self.wait(40)
        self.read()
        self.serve()
        self.wait(61)
        self.read()

    @property
    def orders(self) -> list[Any]:
        return [e.order for e in self.effects if isinstance(e, Issue)]

    @property
    def case(self) -> Any:
        return next(reversed(self.desk.cases.values()))
