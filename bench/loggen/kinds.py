"""The kinds of runs a plan mixes: each draws a job and a fault.

In: a `Draw` (a job somebody might run, and a random source). Out: a case.
Always: a run trains for half an hour to some twenty simulated hours, with a line every few seconds to 20 minutes. What no log could tell is
not asked of it: a Lightning bar shows neither tokens nor samples and DeepSpeed no tokens, so no curriculum of that sort; and
a pause without a word is shorter than half an hour, since a longer one is what a hang looks like.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from loggen.model import FRAMEWORKS, Case, Fault, FaultKind, Habits, Job, Phase
from loggen.presets import hosts

Maker = Callable[["Draw"], Case]


@dataclass(slots=True)
class Draw:
    """A job to be made into a case: what is drawn so far, and the random source for the rest."""

    job: Job
    rng: Random
    detail: str = ""

    def habit(self, **changes: object) -> None:
        self.job = replace(self.job, habits=replace(self.job.habits, **changes))  # type: ignore[arg-type]

    def change(self, **changes: object) -> None:
        self.job = replace(self.job, **changes)  # type: ignore[arg-type]

    def some_step(self, low: float = 0.2, high: float = 0.9) -> int:
        return max(2, round(self.job.steps * self.rng.uniform(low, high)))


def base(rng: Random) -> Job:
    """A job somebody might run: its pace, its size, how it prints."""
    framework = rng.choice(FRAMEWORKS)
    bars = framework in ("deepspeed", "lightning")
    step_s = 10 ** rng.uniform(-0.2, 1.4)
    steps = min(round(3600 * rng.uniform(1.0, 10.0) / step_s), 3000 if bars else 6000)
    nodes = rng.choice((1, 1, 2, 2, 4, 8))
    every = max(1, round(rng.uniform(10.0, 90.0) / step_s))
    saves = max(2, steps // rng.randrange(3, 12))
    return Job(
        "run",
        "0",
        framework,
        hosts(rng.randrange(1, 90), nodes),
        steps=steps,
        step_s=step_s,
        jitter=rng.uniform(0.01, 0.08),
        log_every=min(every, max(1, steps // 60)),
        checkpoint_every=saves,
        checkpoint_s=rng.choice((10.0, 40.0, 120.0)),
        eval_every=rng.choice((0, max(2, saves // 2))),
        eval_s=rng.choice((15.0, 60.0, 240.0)),
        layout=rng.choice(("single", "single", "out-err", "per-node")),
        launcher=rng.choice(("torchrun", "torchrun", "srun")),
        interleave=rng.choice((0.0, 0.0, 0.5)),
        traps=rng.random() < 0.5,
        chatter=rng.choice((0, 0, 4)),
        habits=Habits(
            tails=rng.choice((0.0, 0.01, 0.03)),
            inclusive=framework in ("torchtitan", "nanogpt") and rng.random() < 0.7,
        ),
    )


def plain(d: Draw) -> Case:
    return d.job, Fault()


def warmup(d: Draw) -> Case:
    d.habit(warmup_steps=max(2, round(d.job.steps * d.rng.uniform(0.01, 0.15))), warmup_x=d.rng.uniform(1.3, 4.0))
    return plain(d)


def compiles(d: Draw) -> Case:
    d.habit(compile_s=d.rng.uniform(300.0, 3600.0))
    return plain(d)


def curriculum(d: Draw) -> Case:
    """Longer sequences or larger batches by stages."""
    if d.job.framework == "lightning":
        d.change(framework="megatron-lm")
    by = "batch" if d.job.framework in ("deepspeed", "nemo") else d.rng.choice(("batch", "sequence"))
    d.detail = by
    load, stages = 1.0, []
    for share in sorted(d.rng.uniform(0.15, 0.9) for _ in range(d.rng.randrange(1, 4))):
        load *= d.rng.choice((1.5, 2.0))
        stages.append((max(2, round(d.job.steps * share)), load))
    d.habit(curriculum=tuple(stages), curriculum_by=by)
    return plain(d)


def pauses(d: Draw) -> Case:
    """Long checkpoints and evaluations, the first of them late; as long as `quiet` ones where their begin is not printed."""
    unsaid = {"lightning": ("checkpoint_s",), "nanogpt": ("eval_s",), "torchtitan": ("eval_s",)}
    d.change(checkpoint_every=d.some_step(0.3, 0.6), checkpoint_s=d.rng.uniform(300.0, 1500.0))
    if d.rng.random() < 0.5:
        d.change(eval_every=d.some_step(0.3, 0.9), eval_s=d.rng.uniform(300.0, 1500.0))
    for name in unsaid.get(d.job.framework, ()):
        d.change(**{name: 0.5 * getattr(d.job, name)})
    return plain(d)


def quiet(d: Draw) -> Case:
    """Pauses without a word, shorter than half an hour in all: a longer one nobody could tell from a hang."""
    d.habit(quiet=("checkpoint", "evaluation"))
    d.change(checkpoint_every=d.some_step(0.3, 0.6), checkpoint_s=d.rng.uniform(120.0, 900.0))
    d.change(eval_every=d.some_step(0.3, 0.9), eval_s=d.rng.uniform(60.0, 480.0), jitter=min(d.job.jitter, 0.02))
    return plain(d)


def stalls(d: Draw) -> Case:
    d.habit(stalls=tuple((d.some_step(), d.rng.uniform(30.0, 400.0)) for _ in range(d.rng.randrange(1, 6))))
    return plain(d)


def sparse(d: Draw) -> Case:
    """One line each 5 to 20 minutes."""
    every = round(60.0 * d.rng.uniform(5.0, 20.0) / d.job.step_s)
    d.change(log_every=max(1, min(every, d.job.steps // 12)))
    if d.job.framework in ("deepspeed", "lightning"):
        d.change(framework=d.rng.choice(("nemo", "fairseq", "megatron-lm")))
    return plain(d)


LINE_BYTES = {"megatron-lm": 340, "deepspeed": 400, "torchtitan": 150, "nanogpt": 55, "fairseq": 290, "nemo": 190}


def buffered(d: Draw) -> Case:
    """Blocks of output with 2 to 20 minutes between them."""
    if d.job.framework == "lightning":
        d.change(framework="nanogpt")
    block = d.rng.choice((4096, 8192))
    between = 60.0 * d.rng.uniform(2.0, 20.0) * LINE_BYTES[d.job.framework] / block
    step_s = min(d.job.step_s, between)
    d.habit(buffer=block)
    d.change(step_s=step_s, log_every=max(1, round(between / step_s)), layout=d.rng.choice(("single", "out-err")))
    return plain(d)


def noisy(d: Draw) -> Case:
    d.habit(tails=d.rng.uniform(0.03, 0.08))
    d.change(jitter=d.rng.uniform(0.05, 0.08))
    return plain(d)


def suspended(d: Draw) -> Case:
    d.habit(suspends=((d.some_step(), d.rng.uniform(1800.0, 7200.0)),))
    return plain(d)


def clocks(d: Draw) -> Case:
    """Clocks of the nodes disagree, and one day all of them jump by an hour."""
    skew = tuple(d.rng.gauss(0.0, 3.0) for _ in d.job.nodes)
    jump = d.rng.choice((3600.0, -3600.0))
    d.detail = "forward" if jump > 0 else "back"
    d.habit(clock_steps=((d.rng.uniform(0.2, 0.8) * d.job.steps * d.job.step_s, jump),))
    d.change(skew=skew)
    return plain(d)


def alarming(d: Draw) -> Case:
    """Errors that are caught, lines that look bad."""
    d.change(traps=True, chatter=6)
    d.habit(retries=tuple(d.some_step() for _ in range(d.rng.randrange(1, 8))), lr_lines=True)
    return plain(d)


def collected(d: Draw) -> Case:
    d.habit(gc_every=max(2, round(d.job.steps / d.rng.uniform(8.0, 60.0))), gc_s=d.rng.uniform(1.0, 20.0))
    return plain(d)


def uploads(d: Draw) -> Case:
    """A tracker's spinner turns for a while after the last step."""
    d.habit(spinner_s=d.rng.uniform(2.0, 10.0), upload_s=d.rng.uniform(60.0, 1200.0))
    return plain(d)


def lockstep(d: Draw) -> Case:
    """Every rank prints, none is slow."""
    ranks(d)
    return plain(d)


HEALTHY: dict[str, tuple[float, Maker]] = {
    "plain": (10, plain),
    "warmup": (6, warmup),
    "compile": (6, compiles),
    "curriculum": (8, curriculum),
    "pauses": (8, pauses),
    "quiet": (8, quiet),
    "stalls": (8, stalls),
    "sparse": (8, sparse),
    "buffered": (8, buffered),
    "noisy": (8, noisy),
    "suspended": (5, suspended),
    "clocks": (6, clocks),
    "alarming": (8, alarming),
    "collected": (5, collected),
    "uploads": (4, uploads),
    "lockstep": (4, lockstep),
}


def hang(phase: Phase) -> Maker:
    """A hang in this phase: silent, ended by the scheduler, or ended by the collective watchdog."""

    def make(d: Draw) -> Case:
        d.change(checkpoint_every=max(2, d.job.checkpoint_every))
        if phase == "evaluation":
            d.change(eval_every=max(2, d.job.steps // d.rng.randrange(2, 9)))
        if d.rng.random() < 0.2:
            d.habit(spinner_s=d.rng.uniform(10.0, 60.0))
        if phase != "ending" and d.rng.random() < 0.4:
            tells = d.rng.choice(("silence", "sequence", "nothing"))
            d.detail = f"{phase}-watchdog-{tells}"
            d.change(timeout_s=d.rng.choice((600.0, 1800.0)), gpus_per_node=8)
            return d.job, Fault("nccl-timeout", d.some_step(), phase, tells=tells)
        killer = d.rng.choice(("nobody", "nobody", "time-limit", "cancelled"))
        d.detail = f"{phase}-{'silent' if killer == 'nobody' else killer}"
        wait = 3600.0 * (8.0 if killer == "nobody" else d.rng.uniform(5.0, 8.0))
        return d.job, Fault("hang-silent", d.some_step(), phase, wait_s=wait, killer=killer)

    return make


def slow(d: Draw) -> Case:
    """All ranks lose 3 to 60 % of their throughput."""
    lost = d.rng.uniform(0.03, 0.6)
    d.change(steps=max(d.job.steps, 400))
    d.change(log_every=min(d.job.log_every, max(1, d.job.steps // 100)))
    fault = Fault(
        "slowdown",
        d.some_step(0.3, 0.7),
        depth=1.0 / (1.0 - lost),
        ramp_s=d.rng.choice((0.0, 0.0, d.rng.uniform(120.0, 1800.0))),
        lasts_s=d.rng.choice((None, None, d.rng.uniform(900.0, 7200.0))),
    )
    shape = "ramp" if fault.ramp_s else "step"
    d.detail = f"{lost * 100:02.0f}pct-{shape}{'-passing' if fault.lasts_s else ''}"
    return d.job, fault


def ranks(d: Draw) -> None:
    """Every rank prints its own pace, in a file of its own or not."""
    d.change(
        framework="torchtitan", layout=d.rng.choice(("per-rank", "single")), nodes=d.job.nodes[:2], gpus_per_node=4
    )
    d.change(steps=min(d.job.steps, 3000))
    d.change(log_every=max(d.job.log_every, d.job.steps // 200))
    d.habit(rank_lines=True)


def slow_ranks(d: Draw) -> Case:
    """All ranks print, all are slow."""
    ranks(d)
    return slow(d)


def straggler(d: Draw) -> Case:
    """One rank is slow and the others do not wait for it."""
    ranks(d)
    d.habit(loose=True)
    case = slow(d)
    return d.job, replace(case[1], alone=True)


CRASHES: tuple[FaultKind, ...] = (
    "cuda-oom", "python-error", "gpu-xid79", "ecc", "host-oom", "no-space", "nan-loss", "segfault", "node-failure",
    "preempted", "time-limit", "cancelled",
)  # fmt: skip


def shorter(d: Draw) -> None:
    """An hour or two: what ends the run matters here, not what came before."""
    d.change(steps=max(60, min(d.job.steps, round(5400 / d.job.step_s), 1500)))
    every = max(2, d.job.steps // 6)
    d.change(checkpoint_every=every, eval_every=min(d.job.eval_every, every))


def crash(d: Draw) -> Case:
    shorter(d)
    d.change(chatter=4, skew=tuple(d.rng.gauss(0.0, 1.0) for _ in d.job.nodes))
    d.detail = kind = d.rng.choice(CRASHES)
    return d.job, Fault(kind)


def cascade(d: Draw) -> Case:
    """8 to 512 ranks follow one, with clocks that disagree and lines that mix."""
    shorter(d)
    nodes = d.rng.choice((1, 2, 4, 8, 8, 16, 32, 64))
    d.change(nodes=hosts(d.rng.randrange(1, 90), nodes), interleave=d.rng.uniform(0.3, 1.0), chatter=12)
    d.change(skew=tuple(d.rng.gauss(0.0, 1.5) for _ in d.job.nodes))
    d.detail = kind = d.rng.choice(("gpu-xid79", "ecc", "cuda-oom", "segfault", "host-oom"))
    d.detail += f"-{d.job.world}"
    return d.job, Fault(kind)


def lost_peer(d: Draw) -> Case:
    shorter(d)
    d.change(nodes=hosts(d.rng.randrange(1, 90), d.rng.choice((2, 4, 8))))
    tells = d.rng.choice(("silence", "silence", "nothing"))
    d.detail = "unnamed" if tells == "nothing" else "named"
    return d.job, Fault("lost-peer", tells=tells)


def appended(d: Draw) -> Case:
    """Two or three attempts in the same files."""
    shorter(d)
    d.change(layout=d.rng.choice(("single", "out-err")), checkpoint_every=max(2, d.job.steps // 6))
    kinds = [d.rng.choice(("cuda-oom", "segfault", "node-failure", "preempted", "host-oom")) for _ in range(2)]
    d.detail = "-".join(kinds)
    last = Fault() if d.rng.random() < 0.6 else Fault(d.rng.choice(("gpu-xid79", "hang-silent")), wait_s=8 * 3600.0)
    return d.job, Fault(kinds[0], then=Fault(kinds[1], then=last))


def restarted(d: Draw) -> Case:
    """Workers start again within the job."""
    shorter(d)
    d.change(launcher="torchrun")
    return d.job, Fault("restart-in-job")


def blocks_lost(d: Draw) -> Case:
    """A killed process takes its last lines with it."""
    buffered(d)
    shorter(d)
    d.detail = kind = d.rng.choice(("segfault", "time-limit", "host-oom", "cancelled"))
    return d.job, Fault(kind)


TROUBLE: dict[str, tuple[float, Maker]] = {
    "hang-startup": (3, hang("startup")),
    "hang-compile": (3, hang("compile")),
    "hang-steady": (6, hang("train")),
    "hang-evaluation": (3, hang("evaluation")),
    "hang-checkpoint": (3, hang("checkpoint")),
    "hang-ending": (3, hang("ending")),
    "slow": (18, slow),
    "slow-ranks": (2, slow_ranks),
    "straggler": (4, straggler),
    "crash": (8, crash),
    "cascade": (4, cascade),
    "lost-peer": (3, lost_peer),
    "appended": (4, appended),
    "restarted": (2, restarted),
    "blocks-lost": (2, blocks_lost),
}
