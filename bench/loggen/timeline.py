"""The life of a job, step by step, in simulated time.

In: a job, a fault, a seed. Out: one `Act` per attempt with its events in true order.
Always: a resumed attempt goes on after the last checkpoint that was written to its end; waiting costs no real time.
"""

import re
from dataclasses import dataclass, replace
from math import exp, nan
from random import Random

from loggen import traps
from loggen.faults import SPECS, Scene
from loggen.model import HANGS, Event, Fault, FaultKind, Job, Phase, Told, Trouble, Verdict, check
from loggen.rhythm import Beat, Rhythm
from loggen.scribe import Scribe
from loggen.styles import Progress, style_for

STATES: dict[Verdict, str] = {
    "completed": "COMPLETED",
    "crashed": "FAILED",
    "stalled": "FAILED",
    "cancelled": "CANCELLED",
    "preempted": "PREEMPTED",
    "time-limit": "TIMEOUT",
}


@dataclass(frozen=True, slots=True)
class Happened:
    """What went wrong, on true time; see `Truth`."""

    trouble: Trouble | None = None
    phase: Phase | None = None
    onset_s: float | None = None
    onset_step: int | None = None
    depth: float | None = None
    passed_s: float | None = None
    passed_step: int | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """One attempt as it went."""

    kind: FaultKind
    events: tuple[Event, ...]
    verdict: Verdict
    klass: str | None
    rank: int | None
    node: str | None
    started: float
    ended: float
    saved: int
    """The last checkpoint."""
    happened: Happened
    told: tuple[Told, ...]


def play(job: Job, fault: Fault, seed: int) -> list[Act]:
    """All attempts of a job."""
    check(job, fault)
    rng = Random(f"{seed}|{job.name}|{job.job_id}|{fault.kind}")
    fault = settle(job, fault, rng)
    scribe, saved, inside, restarts = Scribe(job, rng, job.nodes), 0, False, 0
    acts: list[Act] = []
    while True:
        act = Attempt(scribe, fault, saved, inside=inside, restarts=restarts).run()
        acts.append(act)
        how = SPECS[fault.kind].then
        if fault.then is None and how == "stop":
            return acts
        hosts, pause, inside = scribe.hosts, 2.0, how == "restart"
        if not inside:
            pause, restarts = rng.uniform(240.0, 1500.0), restarts + 1
            hosts = tuple(spare(hosts) if host == act.node else host for host in hosts)
        saved = act.saved
        fault = settle(job, fault.then, rng, saved) if fault.then else Fault(rank=fault.rank)
        scribe = Scribe(job, rng, hosts, now=act.ended + pause, attempt=len(acts))


def settle(job: Job, fault: Fault, rng: Random, done: int = 0) -> Fault:
    """Choose what the fault left open: its rank and its step. done: steps of earlier attempts."""
    rank, step = fault.rank, fault.step
    if rank is None:
        nodes = [job.nodes.index(fault.node)] if fault.node else range(len(job.nodes))
        rank = rng.choice(nodes) * job.gpus_per_node + rng.randrange(job.gpus_per_node)
    if step is None:
        step = max(1, round(job.steps * rng.uniform(0.5, 0.7)))
    if step <= done:
        step = min(job.steps, done + max(1, round((job.steps - done) * rng.uniform(0.3, 0.8))))
    phase = "checkpoint" if fault.kind == "no-space" else fault.phase
    every = {"checkpoint": job.checkpoint_every, "evaluation": job.eval_every}.get(phase, 0)
    if every:
        step = max(every, step // every * every)
    return replace(fault, rank=rank, step=step, phase=phase)


def spare(nodes: tuple[str, ...]) -> str:
    """The host that replaces a lost one: the next number after the last."""
    match = re.search(r"\d+$", nodes[-1])
    digits = match.group() if match else ""
    return nodes[-1].removesuffix(digits) + str(int(digits or 0) + 1).zfill(len(digits))


class Attempt:
    """Runs one attempt from its start to whatever ends it."""

    def __init__(self, scribe: Scribe, fault: Fault, done: int = 0, *, inside: bool = False, restarts: int = 0) -> None:
        self.s, self.job, self.fault = scribe, scribe.job, fault
        self.inside, self.restarts = inside, restarts
        """inside: workers start again under a launcher that never ended; restarts: how often the scheduler did."""
        self.style = style_for(scribe, done)
        self.spec = SPECS[fault.kind]
        self.first, self.saved = done, done
        self.started, self.trained = scribe.now, scribe.now
        self.rhythm = Rhythm(scribe.job, fault, scribe.rng, done)
        self.window: list[Beat] = []
        self.nans = self.skipped = 0
        self.lag = self.aside = 0.0
        """lag: how far a slow rank is behind; aside: seconds of checkpoints and evaluations since the last step."""
        self.marked = False
        self.onset = fault.step or 0
        grace = 3 * self.job.log_every if fault.kind == "nan-loss" else 0
        self.strike = min(self.job.steps, self.onset + grace)
        self.told: list[Told] = [] if inside else [Told(scribe.now, "RUNNING", restarts)]
        self.struck: tuple[float, int] | None = None
        """When the fault struck, and the last step done."""

    def strikes(self, phase: Phase) -> bool:
        return self.spec.script is not None and self.fault.phase == phase

    def run(self) -> Act:
        self.arrive()
        if self.strikes("startup") and self.fault.kind in HANGS:
            return self.fail(self.first)
        self.greet()
        if self.strikes("startup") or self.strikes("compile"):
            return self.fail(self.first)
        for step in range(self.first + 1, self.job.steps + 1):
            self.train(step)
            if step == self.strike and self.strikes("train"):
                return self.fail(step)
            if self.job.stop_after == step:
                return self.act("running-at-end", self.spec.klass if self.marked else None)
            if self.job.eval_every and step % self.job.eval_every == 0 and not self.evaluate(step):
                return self.fail(step)
            saves = self.job.checkpoint_every and step % self.job.checkpoint_every == 0
            if saves and not self.checkpoint(step):
                return self.fail(step)
        if not self.finish():
            return self.fail(self.job.steps)
        return self.act(self.spec.verdict, self.spec.klass)

    def startup(self) -> None:
        self.arrive()
        self.greet()

    def arrive(self) -> None:
        s, job = self.s, self.job
        if not self.inside:
            self.launch()
        s.now += 5.0
        if job.traps:
            traps.startup_traps(s)
        traps.nccl_chatter(s, job.chatter)

    def greet(self) -> None:
        """The program says what it will do, up to its first step."""
        self.style.banner()
        if self.first:
            self.style.resume(self.first)
        self.trained = self.s.now

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
        beat = self.rhythm.beat(step, s.now)
        beat.seconds += self.suspended(step, s.now + 0.3 * beat.seconds) if job.habits.suspends else 0.0
        hit = kind in ("slowdown", "nan-loss") and step >= self.onset
        bad = hit and kind == "nan-loss"
        self.lag += self.rhythm.lag(beat.seconds, s.now)
        s.now += beat.seconds
        if job.habits.inclusive:
            beat.seconds, self.aside = beat.seconds + self.aside, 0.0
        self.nans += bad
        if job.traps and not self.first and step in (2, 3, 5):
            self.skipped += 1
            self.style.overflow(65536 >> min(step, 4))
        self.window.append(beat)
        before = len(s.events)
        if self.style.step(self.progress(step, beat, bad=bad, cause=hit and not self.marked)):
            self.window.clear()
            self.nans = self.skipped = 0
            self.style.lagged = self.lag
        self.marked = self.marked or any(event.cause for event in s.events[before:])
        if job.traps and step == self.trap_step():
            traps.midway_trap(s, s.rng.randrange(job.world))
        if step in job.habits.retries:
            traps.retried(s, s.rng.randrange(job.world))
        if job.habits.lr_lines and step % max(1, job.steps // 5) == 0:
            traps.lr_stage(s, 5 * step // job.steps)

    def progress(self, step: int, beat: Beat, *, bad: bool, cause: bool) -> Progress:
        """The step as the trainer knows it."""
        s, window = self.s, self.window
        return Progress(
            step=step,
            seconds=beat.seconds,
            mean=sum([b.seconds for b in window]) / len(window),
            elapsed=s.now - self.trained,
            loss=nan if bad else self.loss(step),
            grad_norm=nan if bad else 0.4 + 0.1 * s.rng.random(),
            lr=3e-4 * min(1.0, step / 20),
            skipped=self.skipped,
            nans=self.nans,
            cause=cause,
            load=beat.load,
            work=sum([b.load for b in window]) / len(window),
            batch=beat.batch,
            samples=self.rhythm.samples(step),
            late=self.fault.rank if self.fault.alone and self.lag else None,
            lag=self.lag,
            pull=(self.lag - self.style.lagged) / len(window),
        )

    def suspended(self, step: int, at: float) -> float:
        """How long the scheduler keeps the job stopped within this step."""
        for when, seconds in self.job.habits.suspends:
            if when == step:
                self.told += [Told(at, "SUSPENDED", self.restarts), Told(at + seconds, "RUNNING", self.restarts)]
                return seconds
        return 0.0

    def trap_step(self) -> int:
        """Early enough that progress follows."""
        last = self.strike if self.spec.script else self.job.steps
        return self.first + max(1, (last - self.first) // 3)

    def loss(self, step: int) -> float:
        return 1.8 + 8.6 * exp(-8.0 * step / self.job.steps) + 0.02 * self.s.rng.random()

    def meet(self) -> None:
        """All ranks wait for the slowest."""
        self.s.now += self.lag
        self.lag = self.style.lagged = 0.0

    def evaluate(self, step: int) -> bool:
        """Evaluate; False when the fault strikes in the middle of it."""
        s, before = self.s, len(self.s.events)
        loss, seconds = self.loss(step) + 0.05, self.rhythm.vary(self.job.eval_s)
        self.meet()
        begin = s.now
        if "evaluation" in self.job.habits.quiet:
            s.now += seconds
        else:
            self.style.evaluation(step, loss, seconds)
        self.aside += s.now - begin
        if self.strikes("evaluation") and step == self.onset:
            s.break_off(before, begin + 0.4 * (s.now - begin))
            return False
        return True

    def checkpoint(self, step: int) -> bool:
        """Write a checkpoint; False when the fault strikes in the middle of it."""
        seconds = self.rhythm.vary(self.job.checkpoint_s)
        self.meet()
        quiet = "checkpoint" in self.job.habits.quiet
        if not quiet:
            self.style.checkpoint_begin(step)
        if self.strikes("checkpoint") and step == self.onset:
            self.s.now += seconds * 0.4
            return False
        self.s.now += seconds
        self.aside += seconds
        if not quiet:
            self.style.checkpoint_end(step, seconds)
        self.saved = step
        return True

    def fail(self, step: int) -> Act:
        """The fault strikes."""
        s, rank = self.s, self.fault.rank or 0
        s.now += self.job.step_s * s.rng.uniform(0.2, 0.8)
        self.struck = (s.now, step)
        if self.spec.script:
            self.spec.script(Scene(s, self.style, self.fault, rank, step))
        killer = self.fault.killer if self.fault.kind == "hang-silent" else "nobody"
        if killer != "nobody":
            return self.act(SPECS[killer].verdict, SPECS[killer].klass)
        return self.act(self.spec.verdict, self.spec.klass)

    def finish(self) -> bool:
        """The run ends; False when it hangs after its last step."""
        s, job = self.s, self.job
        self.meet()
        s.now += 1.0
        self.style.finish(s.now - self.trained)
        if job.traps:
            traps.exit_noise(s)
        if self.strikes("ending"):
            return False
        if job.habits.upload_s:
            traps.wait(s, job.habits.upload_s)
        s.flush()
        s.now += 2.0
        s.put("host", f"=== job {job.job_id} ({job.name}) done {s.stamp()}, exit code 0")
        return True

    def act(self, verdict: Verdict, klass: str | None) -> Act:
        events = tuple(sorted(self.s.events, key=lambda event: event.at))
        blame, rank = self.spec.blame, self.fault.rank or 0
        if self.fault.alone:
            blame = "rank"
        elif self.fault.everywhere or self.fault.tells == "nothing":
            blame = "nobody"
        ended = max([self.s.now, *(event.at for event in events)])
        self.leave(verdict, ended)
        return Act(
            self.fault.kind,
            events,
            verdict,
            klass,
            rank if blame == "rank" else None,
            self.s.hosts[self.job.node_of(rank)] if blame != "nobody" else None,
            self.started,
            ended,
            self.saved,
            self.happened(),
            tuple(self.told),
        )

    def leave(self, verdict: Verdict, at: float) -> None:
        """What the scheduler says when the attempt is over; a run nobody ends goes on in its eyes."""
        alive = self.fault.kind == "hang-silent" and verdict == "stalled"
        if verdict in STATES and not alive and self.spec.then != "restart":
            state = "NODE_FAIL" if self.fault.kind == "node-failure" else STATES[verdict]
            self.told.append(Told(at, state, self.restarts))

    def happened(self) -> Happened:
        slow = self.rhythm.slow
        if slow.since is not None:
            return Happened("slow", "train", slow.since, slow.step, self.fault.lost, slow.until, slow.last)
        if self.struck is None:
            return Happened()
        at, step = self.struck
        trouble: Trouble = "hung" if self.fault.kind in HANGS else "crash"
        return Happened(trouble, self.fault.phase, at, step)
