"""The life of a job, step by step, in simulated time.

In: a job, a fault, a seed. Out: one `Act` per attempt with its events in true order.
Always: a resumed attempt goes on after the last checkpoint that was written to its end.
"""

import re
from dataclasses import dataclass, replace
from math import exp, nan
from random import Random

from loggen import traps
from loggen.faults import SPECS, Scene
from loggen.model import Event, Fault, Job, Verdict, check
from loggen.scribe import Scribe
from loggen.styles import Progress, style_for


@dataclass(frozen=True, slots=True)
class Act:
    """One attempt as it went."""

    events: tuple[Event, ...]
    verdict: Verdict
    klass: str | None
    rank: int | None
    node: str | None
    started: float
    ended: float
    saved: int
    """The last checkpoint."""


def play(job: Job, fault: Fault, seed: int) -> list[Act]:
    """All attempts of a job."""
    check(job, fault)
    rng = Random(f"{seed}|{job.name}|{job.job_id}|{fault.kind}")
    fault = settle(job, fault, rng)
    acts = [Attempt(Scribe(job, rng, job.nodes), fault).run()]
    if (then := SPECS[fault.kind].then) != "stop":
        hosts, pause = job.nodes, 2.0
        if then == "requeue":
            pause = rng.uniform(240.0, 1500.0)
            hosts = tuple(spare(job.nodes) if host == acts[0].node else host for host in job.nodes)
        scribe = Scribe(job, rng, hosts, now=acts[0].ended + pause, attempt=1)
        again = Attempt(scribe, Fault(rank=fault.rank), acts[0].saved, inside=then == "restart")
        acts.append(again.run())
    return acts


def settle(job: Job, fault: Fault, rng: Random) -> Fault:
    """Choose what the fault left open: its rank and its step."""
    rank, step = fault.rank, fault.step
    if rank is None:
        nodes = [job.nodes.index(fault.node)] if fault.node else range(len(job.nodes))
        rank = rng.choice(nodes) * job.gpus_per_node + rng.randrange(job.gpus_per_node)
    if step is None:
        step = max(1, round(job.steps * rng.uniform(0.5, 0.7)))
    phase = "checkpoint" if fault.kind == "no-space" else fault.phase
    if phase == "checkpoint":
        every = job.checkpoint_every
        step = max(every, step // every * every)
    return replace(fault, rank=rank, step=step, phase=phase)


def spare(nodes: tuple[str, ...]) -> str:
    """The host that replaces a lost one: the next number after the last."""
    match = re.search(r"\d+$", nodes[-1])
    digits = match.group() if match else ""
    return nodes[-1].removesuffix(digits) + str(int(digits or 0) + 1).zfill(len(digits))


class Attempt:
    """Runs one attempt from its start to whatever ends it."""

    def __init__(self, scribe: Scribe, fault: Fault, done: int = 0, *, inside: bool = False) -> None:
        self.s, self.job, self.fault = scribe, scribe.job, fault
        self.inside = inside
        """Workers start again under a launcher that never ended."""
        self.style = style_for(scribe, done)
        self.spec = SPECS[fault.kind]
        self.first, self.saved = done, done
        self.started, self.trained = scribe.now, scribe.now
        self.window: list[float] = []
        self.nans = self.skipped = 0
        self.marked = False
        self.onset = fault.step or 0
        grace = 3 * self.job.log_every if fault.kind == "nan-loss" else 0
        self.strike = min(self.job.steps, self.onset + grace)

    def run(self) -> Act:
        self.startup()
        acts_up = self.spec.script is not None
        if acts_up and self.fault.phase == "startup":
            return self.fail(0)
        for step in range(self.first + 1, self.job.steps + 1):
            self.train(step)
            if acts_up and step == self.strike and self.fault.phase == "train":
                return self.fail(step)
            if self.job.stop_after == step:
                return self.act("running-at-end", self.spec.klass if self.marked else None)
            if self.job.eval_every and step % self.job.eval_every == 0:
                self.style.evaluation(step, self.loss(step) + 0.05, self.vary(self.job.eval_s))
            saves = self.job.checkpoint_every and step % self.job.checkpoint_every == 0
            if saves and not self.checkpoint(step):
                return self.fail(step)
        self.finish()
        return self.act(self.spec.verdict, self.spec.klass)

    def startup(self) -> None:
        s, job = self.s, self.job
        if not self.inside:
            self.launch()
        s.now += 5.0
        if job.traps:
            traps.startup_traps(s)
        traps.nccl_chatter(s, job.chatter)
        self.style.banner()
        if self.first:
            self.style.resume(self.first)
        self.trained = s.now

    def launch(self) -> None:
        """The batch script and torchrun speak before the program does."""
        s, job = self.s, self.job
        where = f"{len(s.hosts)} nodes: {','.join(s.hosts)}"
        s.put("host", f"=== job {job.job_id} ({job.name}) starts {s.stamp()} on {where}")
        text = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"
        for node in range(len(s.hosts) if job.launcher == "torchrun" else 0):
            s.agent(node, "W", "run.py:766", text, after=0.1 * node)

    def train(self, step: int) -> None:
        """One step: let its time pass, print what is due."""
        s, job, kind = self.s, self.job, self.fault.kind
        seconds = self.vary(job.step_s)
        if step == self.first + 1:
            seconds *= s.rng.uniform(4.0, 7.0)
        hit = kind in ("slowdown", "nan-loss") and step >= self.onset
        if hit and kind == "slowdown":
            seconds *= self.fault.depth
        bad = hit and kind == "nan-loss"
        s.now += seconds
        self.nans += bad
        if job.traps and not self.first and step in (2, 3, 5):
            self.skipped += 1
            self.style.overflow(65536 >> min(step, 4))
        self.window.append(seconds)
        progress = Progress(
            step=step,
            seconds=seconds,
            mean=sum(self.window) / len(self.window),
            elapsed=s.now - self.trained,
            loss=nan if bad else self.loss(step),
            grad_norm=nan if bad else 0.4 + 0.1 * s.rng.random(),
            lr=3e-4 * min(1.0, step / 20),
            skipped=self.skipped,
            nans=self.nans,
            cause=hit and not self.marked,
        )
        before = len(s.events)
        if self.style.step(progress):
            self.window.clear()
            self.nans = self.skipped = 0
        self.marked = self.marked or any(event.cause for event in s.events[before:])
        if job.traps and step == self.trap_step():
            traps.midway_trap(s, s.rng.randrange(job.world))

    def trap_step(self) -> int:
        """Early enough that progress follows."""
        last = self.strike if self.spec.script else self.job.steps
        return self.first + max(1, (last - self.first) // 3)

    def loss(self, step: int) -> float:
        return 1.8 + 8.6 * exp(-8.0 * step / self.job.steps) + 0.02 * self.s.rng.random()

    def vary(self, seconds: float) -> float:
        """Jitter with a rare slow outlier, never below half."""
        factor = self.s.rng.gauss(1.0, self.job.jitter)
        if self.s.rng.random() < 0.01:
            factor *= 1.0 + 10.0 * self.job.jitter
        return seconds * max(0.5, factor)

    def checkpoint(self, step: int) -> bool:
        """Write a checkpoint; False when the fault strikes in the middle of it."""
        seconds = self.vary(self.job.checkpoint_s)
        self.style.checkpoint_begin(step)
        if self.spec.script and self.fault.phase == "checkpoint" and step == self.onset:
            self.s.now += seconds * 0.4
            return False
        self.s.now += seconds
        self.style.checkpoint_end(step, seconds)
        self.saved = step
        return True

    def fail(self, step: int) -> Act:
        """The fault strikes."""
        s, rank = self.s, self.fault.rank or 0
        s.now += self.job.step_s * s.rng.uniform(0.2, 0.8)
        if self.spec.script:
            self.spec.script(Scene(s, self.style, self.fault, rank, step))
        return self.act(self.spec.verdict, self.spec.klass)

    def finish(self) -> None:
        self.s.now += 1.0
        self.style.finish(self.s.now - self.trained)
        if self.job.traps:
            traps.exit_noise(self.s)
        self.s.now += 2.0
        self.s.put("host", f"=== job {self.job.job_id} ({self.job.name}) done {self.s.stamp()}, exit code 0")

    def act(self, verdict: Verdict, klass: str | None) -> Act:
        events = tuple(sorted(self.s.events, key=lambda event: event.at))
        blame, rank = "nobody" if self.fault.everywhere else self.spec.blame, self.fault.rank or 0
        return Act(
            events,
            verdict,
            klass,
            rank if blame == "rank" else None,
            self.s.hosts[self.job.node_of(rank)] if blame != "nobody" else None,
            self.started,
            max([self.s.now, *(event.at for event in events)]),
            self.saved,
        )
