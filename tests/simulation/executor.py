"""The executor as it is meant to be: durable intent, last checks, one call, an honest answer. And the oracles of what the call really hit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.slurm import ENDED, Job, S

from defib.engine.recover.words import Order, Returned

if TYPE_CHECKING:
    from tests.simulation.sim import Sim

MUTATING = ("requeue", "requeuehold")


class Executor:
    """Takes orders; everything it runs is written down before (`numbers`, `keys`), and survives its own crashes."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.newest = 0
        self.numbers: set[int] = set()
        self.keys: dict[str, int] = {}
        self.hit: dict[str, int] = {}

    def take(self, order: Order) -> None:
        sim = self.sim
        refused = self._refusal(order)
        if refused:
            sim.stats[f"not run: {refused}"] += 1
            self._answer(order, "not-run", refused)
            return
        if "executor-crash" in sim.faults and sim.rng.random() < 0.25:
            return  # dead before the intent was durable: nothing runs, nobody answers
        self.numbers.add(order.number)
        self.keys[order.key] = self.keys.get(order.key, 0) + 1
        if order.number not in sim.recorded:
            sim.fail("I2: an order runs that is in no row")
        sim.after(sim.rng.choice((0.05, 0.5, 4.0)), lambda: self._call(order))

    def _refusal(self, order: Order) -> str:
        if order.number in self.numbers:
            return "key"
        if order.epoch != self.newest:
            return "epoch"
        if self.sim.now > order.not_after_us:
            return "late"
        if self.keys.get(order.key) and not order.reissue:
            return "key"
        return "kill-switch" if self.sim.killed else ""

    def _call(self, order: Order) -> None:
        """The client runs. It may find the controller gone, or standing still, and be killed."""
        sim, slurm = self.sim, self.sim.slurm
        request = (
            order.verb, order.by, str(order.job_id), "" if order.array_task is None else str(order.array_task), order.sluid or "",
            "1" if order.incomplete else "0", ",".join(order.nodes), "defib",
        )  # fmt: skip
        sim.stats[f"called {order.verb}"] += 1
        if not slurm.up:
            self._answer(order, "unclear", "unreachable")
            return
        if "lost-reply" in sim.faults and sim.rng.random() < 0.15:
            self._answer(order, "unclear", "killed")  # before it had sent anything
            return
        if slurm.hung:
            slurm.queue.append(request)
            sim.after(order.kill_after_s, lambda: self._answer(order, "unclear", "killed"))
            return
        said = self.judged(order, lambda: slurm.answer(*request))
        if ("lost-reply" in sim.faults and sim.rng.random() < 0.3) or (
            "executor-crash" in sim.faults and sim.rng.random() < 0.1
        ):
            if sim.rng.random() < 0.5:
                self._answer(order, "unclear", "killed")
            return
        self._answer(order, "done" if said == "done" else "rejected", "" if said == "done" else said)

    def _answer(self, order: Order, answer: str, code: str) -> None:
        sim = self.sim
        sim.send(0.1, lambda: Returned(sim.now, order.number, order.key, answer, code, sim.now))  # type: ignore[arg-type]

    # --- oracles --------------------------------------------------------------------------------------------------------------------

    def judged(self, order: Order, run) -> str:  # type: ignore[no-untyped-def]
        """Run it, and see what it did against what it was meant to do."""
        sim, slurm = self.sim, self.sim.slurm
        if order.by == "id" and slurm.part_of(order.job_id) is not None:
            sim.fail(f"I6: job {order.job_id}: the call names a later part of a heterogeneous job")
        targets = slurm.resolve(order.by, order.job_id, order.array_task, order.sluid)
        before = [(j, j.restarts, j.state, j.submit_us, j.suspended, j.held, j.hold_by) for j in targets]
        excluded = [(j, set(j.excluded)) for j in targets]
        said = str(run())
        if order.verb == "exclude" and said == "done":
            self._exclusion(order, excluded)
        if order.verb in MUTATING:
            self._mutation(order, before)
        elif order.verb == "release":
            for j, *_, held, by in before:
                if held and by not in ("defib",):
                    sim.stats["released another's hold"] += 1
                    if sim.now - j.held_us > 8 * S and j.held_us - j.submit_us > 9 * S:
                        sim.fail(f"job {j.id}: a hold of {by} was released by us")
        return said

    def _exclusion(self, order: Order, before: list[tuple[Job, set[str]]]) -> None:
        for job, own in before:
            if not own <= set(order.nodes):
                self.sim.fail(f"job {job.id}: nodes that its user excluded were let in again")
            if len(set(self.sim.slurm.node_names) - set(order.nodes)) < job.node_count:
                self.sim.fail(f"job {job.id}: too few nodes are left for it")

    def _mutation(self, order: Order, before: list[tuple[Job, int, str, int, bool, bool, str]]) -> None:
        sim = self.sim
        changed = [b for b in before if b[0].restarts != b[1]]
        if len(before) > 1:
            sim.fail(f"I6: one call addressed {len(before)} records")
        for job, restarts, state, submit, suspended, _, _ in changed:
            sim.stats["effective"] += 1
            if (restarts, submit) != (order.expected.restarts, order.expected.submit_us):
                sim.fail(f"job {job.id}: the call hit run {restarts}, meant was {order.expected.restarts}")
            if state in ("COMPLETED", "CANCELLED") or suspended:
                sim.fail(f"job {job.id}: the call brought back a run that was {'SUSPENDED' if suspended else state}")
            if order.target == "terminal" and state not in ENDED:
                sim.fail(f"job {job.id}: a run that had not ended was ended")
            self.hit[order.key] = self.hit.get(order.key, 0) + 1
            if self.hit[order.key] > 1:
                sim.fail(f"I1: job {job.id}: two effective calls for one run")
            revoked = sim.revoked.get(job.line)
            if revoked is not None and sim.now - revoked > 8 * S:
                sim.fail(f"I7: job {job.id}: consent had been taken back {(sim.now - revoked) / S:.0f} s before")
