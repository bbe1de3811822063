"""Ready-made sets of jobs.

In: a preset's name, a start time, how many jobs. Out: cases for `write`.
Always: a larger count repeats the set with new job ids and later starts; every job has files of its own.

demo   what a newcomer should see: eight jobs, a few MB
small  every kind of fault once, each on another framework and layout
storm  512 ranks that all raise, and 512 ranks that follow one lost GPU

Seeded mixes of any length are in `loggen.plan`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from loggen.model import FAULT_KINDS, FRAMEWORKS, LAYOUTS, Case, Fault, Job

DAY_ONE = datetime(2026, 11, 30, 21)  # noqa: DTZ001 - logs print local time without a zone


def hosts(first: int, count: int, stem: str = "gpu") -> tuple[str, ...]:
    """gpu001, gpu002, …"""
    return tuple(f"{stem}{n:03d}" for n in range(first, first + count))


def demo() -> list[Case]:
    """A newcomer's cluster, in the order the jobs started."""
    return [*demo_single(), *demo_others()]


def demo_single() -> list[Case]:
    """One file a job."""
    base = Job("llama3-8b", "0", "megatron-lm", hosts(1, 4), traps=True, chatter=10)
    skew = (0.0, 0.4, -0.3, 0.0, 1.1, 0.0, -0.8, 0.2)
    moe = replace(base, name="moe-8x22b", nodes=hosts(21, 8), log_every=5, step_s=2.2, chatter=24, skew=skew)
    titan = replace(base, name="titan-70b", framework="torchtitan", nodes=hosts(11, 2), step_s=3.1)
    return [
        (
            replace(base, steps=10_000, log_every=5, step_s=1.4, checkpoint_every=1000, eval_every=2000),
            Fault(),
        ),
        (
            replace(titan, steps=3000, checkpoint_every=500, interleave=0.6),
            Fault("cuda-oom", step=1342, rank=6),
        ),
        (
            replace(moe, steps=12_000, checkpoint_every=1000, interleave=0.8, labels=True),
            Fault("gpu-xid79", step=8217, node="gpu024"),
        ),
    ]


def demo_others() -> list[Case]:
    """Files of ranks, .out with .err, and files that hold more than one attempt."""
    base = Job("titan-fsdp", "0", "torchtitan", hosts(31, 4), traps=True, chatter=10)
    sft = replace(base, name="sft-mix", framework="deepspeed", nodes=hosts(41, 2), layout="out-err")
    wmt = replace(base, name="wmt-big", framework="fairseq", nodes=hosts(51, 2), epoch_steps=1000)
    nemo = replace(base, name="nemo-long", framework="nemo", nodes=hosts(61, 2), layout="per-rank")
    probe = replace(base, name="vit-probe", framework="lightning", nodes=hosts(71, 1), epoch_steps=800)
    return [
        (
            replace(base, layout="per-rank", steps=1200, step_s=4.0, checkpoint_every=400),
            Fault("nccl-timeout", step=733, rank=19),
        ),
        (
            replace(sft, steps=1500, step_s=2.6, checkpoint_every=250, eval_every=500),
            Fault("no-space", step=1000, rank=5),
        ),
        (
            replace(wmt, steps=8000, step_s=0.9, log_every=20, checkpoint_every=1000),
            Fault("preempted", step=5390),
        ),
        (
            replace(nemo, launcher="srun", steps=4000, step_s=1.8, log_every=5, checkpoint_every=500),
            Fault("host-oom", step=2604, rank=9),
        ),
        (
            replace(probe, steps=2400, step_s=0.8, eval_every=800, checkpoint_every=800),
            Fault("cancelled", step=1877),
        ),
    ]


def small() -> list[Case]:
    """Every kind once."""
    base = Job(
        "small",
        "0",
        "megatron-lm",
        hosts(1, 2, "n"),
        gpus_per_node=4,
        steps=120,
        log_every=5,
        checkpoint_every=30,
        traps=True,
        chatter=6,
    )
    return [
        (
            replace(
                base,
                name=f"small-{kind}",
                framework=FRAMEWORKS[i % len(FRAMEWORKS)],
                layout=LAYOUTS[i % len(LAYOUTS)],
                launcher="srun" if i % 3 == 0 else "torchrun",
                labels=i % 2 == 1,
                interleave=(i % 5) / 4,
                eval_every=60 if i % 2 else 0,
            ),
            Fault(kind),
        )
        for i, kind in enumerate(FAULT_KINDS)
    ]


def storm() -> list[Case]:
    base = Job(
        "storm",
        "0",
        "megatron-lm",
        hosts(1, 64),
        steps=2000,
        log_every=5,
        checkpoint_every=500,
        interleave=1.0,
        chatter=20,
    )
    return [
        (
            replace(base, name="storm-user", launcher="srun", labels=True),
            Fault("python-error", step=777, everywhere=True),
        ),
        (replace(base, name="storm-gpu", traps=True), Fault("gpu-xid79", step=1333)),
    ]


PRESETS: dict[str, Callable[[], Sequence[Case]]] = {"demo": demo, "small": small, "storm": storm}


def cases(preset: str, *, start: datetime = DAY_ONE, count: int | None = None) -> list[Case]:
    """`count` jobs of a preset (all of it when None), with ids and start times of their own."""
    chosen = PRESETS[preset]()
    drawn = (chosen[i % len(chosen)] for i in range(len(chosen) if count is None else count))
    return [
        (replace(job, job_id=str(481_200 + 7 * i), start=start + timedelta(minutes=11 * i)), fault)
        for i, (job, fault) in enumerate(drawn)
    ]
