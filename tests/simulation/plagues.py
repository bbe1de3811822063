"""The things that happen to a cluster, each now and then, where its seed has turned it on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.slurm import ENDED, Job, S

from defib.engine.recover.words import Said

if TYPE_CHECKING:
    from tests.simulation.sim import Sim


class Plagues:
    """Every plague as a function without arguments."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.rng = sim.rng
        self.slurm = sim.slurm

    def all(self) -> list[tuple[str, float, Callable[[], None]]]:
        """(fault, mean hours between two, what happens)."""
        return [
            ("crash", 8, self.sim.crash), ("controller-down", 12, self.controller_down), ("controller-hung", 8, self.controller_hung),
            ("other-requeuer", 2, self.other_requeuer), ("cancel", 4, self.cancel), ("revoke", 2, self.revoke), ("hold", 1, self.hold),
            ("suspend", 3, self.suspend), ("node-death", 10, self.node_death), ("false-hang", 6, self.false_hang),
            ("kill-switch", 6, self.kill_switch), ("clock", 12, self.clock), ("storm", 30, self.storm), ("blind", 10, self.blind),
            ("reuse", 20, self.reuse), ("regret", 12, self.regret), ("regret", 20, self.close_breakers),
        ]  # fmt: skip

    def _one(self, *states: str) -> Job | None:
        jobs = [j for j in self.slurm.jobs.values() if j.state in states and j.completing_until is None]
        return self.rng.choice(jobs) if jobs else None

    def _soon(self) -> Job | None:
        """A job about which something is going on just now, or any."""
        desk = self.sim.desk
        live = [desk.cases[c].attempt for c in desk.live] if desk is not None else []
        jobs = [j for j in self.slurm.jobs.values() if any((a.job_id, a.array_task) == j.line for a in live)]
        return self.rng.choice(jobs) if jobs else self._one("RUNNING", "PENDING", "FAILED")

    def controller_down(self) -> None:
        self.slurm.up = False

        def back() -> None:
            self.slurm.up, self.slurm.booted_us = True, self.sim.now

        self.sim.after(self.rng.choice((20.0, 300.0, 3600.0)), back)

    def controller_hung(self) -> None:
        self.slurm.hung = True

        def wake() -> None:
            """What waited is executed now, one after the other, before anything is scheduled."""
            slurm, sim = self.slurm, self.sim
            slurm.hung = False
            waiting, slurm.queue = slurm.queue, []
            orders = {o.order.number: o.order for r in sim.rows if r.case is not None for o in r.case.orders}
            for request in waiting:
                verb, by, job_id, task, sluid, *_ = request
                order = next(
                    (
                        o
                        for _, o in sorted(orders.items(), reverse=True)
                        if (o.verb, o.by, str(o.job_id), o.sluid or "") == (verb, by, job_id, sluid)
                        and ("" if o.array_task is None else str(o.array_task)) == task
                    ),
                    None,
                )
                if order is not None and request[-1] == "defib":
                    sim.executor.judged(order, lambda r=request: slurm.answer(*r))  # type: ignore[misc]
                else:
                    slurm.answer(*request)
            slurm.run(sim.now)

        self.sim.after(self.rng.choice((5.0, 30.0, 600.0, 3600.0)), wake)

    def other_requeuer(self) -> None:
        """A script of the user's, or the user, restarts jobs; often just when we are about to."""
        job = self._soon() if self.rng.random() < 0.7 else self._one("RUNNING", "FAILED")
        if job is None or not self.slurm.up:
            return
        if self.slurm.hung:
            if job.task is None:
                self.slurm.queue.append(("requeue", "id", str(job.id), "", "", "0", "", "user"))
            return
        self.slurm.requeue(job, by="user")
        if self.rng.random() < 0.3:
            self.sim.after(self.rng.choice((1.0, 130.0, 200.0)), self.other_requeuer)

    def cancel(self) -> None:
        job = self._soon() if self.rng.random() < 0.5 else self._one("RUNNING", "PENDING")
        if job is not None:
            self.slurm.cancel(job)

    def revoke(self) -> None:
        job = self._soon()
        if job is not None:
            job.comment = self.rng.choice(
                ("", '{"defib": {"restart": []}}', '{"defib": {"restart": ["hang"]}}' if job.state in ENDED else "")
            )
            if job.state in ENDED or job.comment != '{"defib": {"restart": ["hang"]}}':
                self.sim.revoked.setdefault(job.line, self.sim.now)

    def hold(self) -> None:
        job = self._soon()
        if job is None:
            return
        if job.held and job.hold_by in ("user", "defib") and self.rng.random() < 0.5:
            self.slurm.release(job, "user")
        else:
            self.slurm.hold(job)
            self.sim.after(
                self.rng.choice((60.0, 7200.0)),
                lambda: self.slurm.release(job, "user") if job.hold_by == "user" else None,
            )

    def suspend(self) -> None:
        job = self._one("RUNNING")
        if job is not None:
            self.slurm.suspend(job)
            self.sim.after(
                self.rng.choice((30.0, 4000.0)), lambda: self.slurm.resume(job) if job.state == "RUNNING" else None
            )

    def node_death(self) -> None:
        node = self.rng.choice(self.slurm.node_names)
        self.slurm.node_down(node)
        self.sim.after(self.rng.choice((600.0, 20_000.0)), lambda: self.slurm.down.discard(node))

    def false_hang(self) -> None:
        job = self._one("RUNNING")
        if job is not None and not job.suspended:
            self.sim._judge(job, "hung", wrong=True)

    def kill_switch(self) -> None:
        self.sim.killed = True
        self.sim.after(self.rng.choice((60.0, 3600.0)), lambda: setattr(self.sim, "killed", False))

    def clock(self) -> None:
        self.sim.stepped_us = self.sim.now

    def storm(self) -> None:
        for job in list(self.slurm.jobs.values()):
            if job.state == "RUNNING" and self.rng.random() < 0.8:
                job.ended_by = ""
                self.slurm._end(job, "FAILED", (1, 0))

    def blind(self) -> None:
        self.sim.blind_until = self.sim.now + self.rng.choice((60, 3600)) * S

    def reuse(self) -> None:
        """An id comes back for a new job, of the same user or another."""
        job = self._one(*ENDED)
        if job is not None and job.task is None:
            user = self.rng.choice((job.user, "u4"))
            again = Job(job.id, user, 1000 + int(user[1:]), self.sim.now, comment=job.comment, goal=500)
            again.sluid = self.slurm._sluid()
            self.slurm.jobs[again.line] = again
            self.sim.revoked.pop(again.line, None)

    def regret(self) -> None:
        desk = self.sim.desk
        if desk is not None and desk.cases:
            case = self.rng.choice(sorted(desk.cases))
            what = self.rng.choice(("regret", "refuse", "settle"))
            self.sim.send(1.0, lambda: Said(self.sim.now, "op", what, case))  # type: ignore[arg-type]

    def close_breakers(self) -> None:
        for name in ("regret", "amnesia", "surprise"):
            self.sim.send(1.0, lambda n=name: Said(self.sim.now, "op", "close-breaker", n))  # type: ignore[misc]
