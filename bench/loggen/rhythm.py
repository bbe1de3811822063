"""How long each step takes, and how much work it holds.

In: a job with its habits, a fault, the run's random source. Out: one `Beat` a step.
Always: a job without habits draws the same random numbers as it always did; the pace never depends on what is printed.
"""

from dataclasses import dataclass
from random import Random

from loggen.model import Fault, Habits, Job

PLAIN = Habits()


@dataclass(slots=True)
class Beat:
    """One step."""

    seconds: float
    load: float = 1.0
    """Tokens in the step, as a multiple of the first step's."""
    batch: float = 1.0
    """Samples in the step, as a multiple of the first step's."""


@dataclass(slots=True)
class Slow:
    """A slowdown as it went: seconds since the job's start and the last step before."""

    since: float | None = None
    step: int | None = None
    until: float | None = None
    last: int | None = None


class Rhythm:
    """The pace of one attempt."""

    def __init__(self, job: Job, fault: Fault, rng: Random, first: int) -> None:
        self.job, self.fault, self.rng, self.first = job, fault, rng, first
        self.habits = job.habits
        self.plain = job.habits == PLAIN
        self.stalls = dict(job.habits.stalls)
        self.slow = Slow()
        self.onset = fault.step or 0

    def beat(self, step: int, now: float) -> Beat:
        """The step that begins at `now`."""
        seconds = self.vary(self.job.step_s)
        habits = self.habits
        if step == self.first + 1:
            seconds = seconds + habits.compile_s if habits.compile_s else seconds * self.rng.uniform(4.0, 7.0)
        beat = Beat(seconds) if self.plain else self.habitual(step, seconds)
        if self.fault.kind == "slowdown" and step >= self.onset:
            beat.seconds *= self.drag(step, now)
        return beat

    def habitual(self, step: int, seconds: float) -> Beat:
        """What the job's habits make of the step."""
        habits, since = self.habits, step - self.first - 1
        load = self.load(step)
        if since < habits.warmup_steps:
            seconds *= habits.warmup_x - (habits.warmup_x - 1.0) * since / habits.warmup_steps
        seconds *= load
        if habits.tails and self.rng.random() < habits.tails:
            seconds *= self.rng.uniform(1.5, 4.0)
        if habits.gc_every and step % habits.gc_every == 0:
            seconds += habits.gc_s
        seconds += self.stalls.get(step, 0.0)
        return Beat(seconds, load, load if habits.curriculum_by == "batch" else 1.0)

    def load(self, step: int) -> float:
        """Tokens of a step as a multiple of the first step's."""
        load = 1.0
        for since, factor in self.habits.curriculum:
            if step >= since:
                load = factor
        return load

    def samples(self, step: int) -> float:
        """Samples of all steps up to this one, as a multiple of the first step's."""
        if not self.habits.curriculum or self.habits.curriculum_by != "batch":
            return float(step)
        total, at, load = 0.0, 1, 1.0
        for since, factor in self.habits.curriculum:
            if since > step:
                break
            total += (since - at) * load
            at, load = since, factor
        return total + (step + 1 - at) * load

    def drag(self, step: int, now: float) -> float:
        """What a slowdown multiplies the step by; a slow rank that others need not wait for drags only itself."""
        fault, slow = self.fault, self.slow
        if slow.since is None:
            slow.since, slow.step = now, step - 1
        spent = now - slow.since
        if fault.lasts_s is not None and spent >= fault.lasts_s:
            if slow.until is None:
                slow.until, slow.last = now, step - 1
            return 1.0
        if fault.alone:
            return 1.0
        return self.depth(spent)

    def depth(self, spent: float) -> float:
        """The factor so many seconds after the onset."""
        fault = self.fault
        return 1.0 + (fault.depth - 1.0) * spent / fault.ramp_s if spent < fault.ramp_s else fault.depth

    def lag(self, seconds: float, now: float) -> float:
        """How many seconds the slow rank falls behind in a step that takes the others `seconds`."""
        slow = self.slow
        if not self.fault.alone or slow.since is None or slow.until is not None:
            return 0.0
        return seconds * (self.depth(now - slow.since) - 1.0)

    def vary(self, seconds: float) -> float:
        """Jitter with a rare slow outlier, never below half."""
        factor = self.rng.gauss(1.0, self.job.jitter)
        if self.rng.random() < 0.01:
            factor *= 1.0 + 10.0 * self.job.jitter
        return seconds * max(0.5, factor)
