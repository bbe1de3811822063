"""What is asked for and what is known about it: jobs, faults, events on the way, truth at the end.

In: nothing. Out: frozen values only. Always: a value that passes `check` can be rendered.
Steps in a `Truth` are the numbers the log itself prints (NeMo and nanoGPT count from 0); Lightning restarts
its bar each epoch, there the step is epoch * epoch_steps + position.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias, get_args

Framework = Literal["megatron-lm", "deepspeed", "torchtitan", "nanogpt", "fairseq", "lightning", "nemo"]
Layout = Literal["single", "out-err", "per-rank", "per-node"]
Launcher = Literal["torchrun", "srun"]
Phase = Literal["train", "startup", "checkpoint"]
FaultKind = Literal[
    "none",
    "cuda-oom",
    "python-error",
    "gpu-xid79",
    "ecc",
    "nccl-timeout",
    "hang-silent",
    "host-oom",
    "no-space",
    "nan-loss",
    "segfault",
    "preempted",
    "time-limit",
    "cancelled",
    "node-failure",
    "slowdown",
    "restart-in-job",
]
Verdict = Literal["completed", "crashed", "stalled", "cancelled", "preempted", "time-limit", "running-at-end"]
# out, err: a rank's streams; trace, glog: its stderr as Python and as C++ write it;
# agent: a node's torchrun; batch: srun and slurmstepd; host: the batch script and forwarded kernel lines.
Stream = Literal["out", "err", "trace", "glog", "agent", "batch", "host"]

FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)


@dataclass(frozen=True, slots=True)
class Job:
    """One training job: where it runs, how long, and how it prints."""

    name: str
    job_id: str
    framework: Framework
    nodes: tuple[str, ...]
    gpus_per_node: int = 8
    start: datetime = datetime(2026, 11, 30, 21)  # noqa: DTZ001 - logs print local time without a zone
    steps: int = 200
    step_s: float = 2.0
    jitter: float = 0.03
    log_every: int = 10
    checkpoint_every: int = 50
    checkpoint_s: float = 20.0
    eval_every: int = 0
    eval_s: float = 15.0
    epoch_steps: int = 0
    layout: Layout = "single"
    launcher: Launcher = "torchrun"
    labels: bool = False
    """`srun -l`: each line begins with its task number."""
    rank_tags: bool = True
    """torch >= 2.3: stderr lines of a rank begin with `[rankN]:`."""
    skew: tuple[float, ...] = ()
    """Seconds by which each node's clock is ahead; shows in printed times only."""
    interleave: float = 0.0
    """0: blocks of lines stay whole; up to 1: writers mix, between lines and now and then inside one."""
    traps: bool = False
    """Sprinkle lines that look alarming and are not."""
    chatter: int = 0
    """NCCL INFO lines per rank at start-up."""
    timeout_s: float = 600.0
    stop_after: int | None = None
    """Cut the log after this step, as it looks while the job runs."""

    @property
    def world(self) -> int:
        return len(self.nodes) * self.gpus_per_node

    @property
    def epoch(self) -> int:
        return self.epoch_steps or self.steps

    def node_of(self, rank: int) -> int:
        return rank // self.gpus_per_node

    def local(self, rank: int) -> int:
        return rank % self.gpus_per_node

    def task_of(self, rank: int) -> int:
        """srun's task number: a GPU's process, or with torchrun the node's agent."""
        return rank if self.launcher == "srun" else self.node_of(rank)

    @property
    def tasks(self) -> int:
        return self.world if self.launcher == "srun" else len(self.nodes)


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, when and where; whatever is None is chosen from the seed."""

    kind: FaultKind = "none"
    step: int | None = None
    phase: Phase = "train"
    rank: int | None = None
    node: str | None = None
    depth: float = 2.0
    """slowdown: the step time is multiplied by this."""
    everywhere: bool = False
    """An exception is raised by every rank at once: nobody in particular is to blame."""


Case: TypeAlias = tuple[Job, Fault]


@dataclass(frozen=True, slots=True)
class Event:
    """One write of one writer. `end` is empty for a progress bar, which leaves its line open."""

    at: float
    text: str
    host: str
    node: int
    rank: int | None
    stream: Stream
    end: str = "\n"
    step: int | None = None
    cause: bool = False

    @property
    def writer(self) -> str:
        """The process that writes."""
        if self.rank is not None:
            return f"rank {self.rank}"
        return "srun" if self.stream == "batch" else f"{self.stream} {self.node}"


@dataclass(frozen=True, slots=True)
class Cause:
    """A line that may be named as the cause.

    `line` (from 1) counts line feeds; `offset` is the first byte of that line; `at` the first byte of the
    record itself, which differs when the record is glued to a progress bar or to another writer's line.
    """

    path: str
    line: int
    offset: int
    at: int
    text: str


@dataclass(frozen=True, slots=True)
class Truth:
    """What happened in one attempt of one job."""

    job_id: str
    name: str
    attempt: int
    framework: Framework
    fault: FaultKind
    verdict: Verdict
    klass: str | None
    """An id of rules/classes.yaml, or None when nothing went wrong."""
    culprit_rank: int | None
    culprit_node: str | None
    causes: tuple[Cause, ...]
    first_step: int | None
    last_step: int | None
    planned_steps: int
    started: str
    ended: str
    paths: tuple[str, ...]

    def as_json(self) -> str:
        """One line of truth.jsonl."""
        row: dict[str, object] = {
            ("class" if name == "klass" else name): getattr(self, name) for name in self.__slots__
        }
        row["causes"] = [{name: getattr(c, name) for name in Cause.__slots__} for c in self.causes]
        return json.dumps(row, ensure_ascii=False)


class Rendered(NamedTuple):
    """The files of a job by relative path, and one truth per attempt."""

    files: dict[str, bytes]
    truth: tuple[Truth, ...]


def check(job: Job, fault: Fault) -> None:
    """Refuse what cannot be rendered, with the reason."""
    if not job.nodes or job.gpus_per_node < 1 or job.steps < 1 or job.log_every < 1:
        raise ValueError(f"{job.name}: needs nodes, GPUs, steps and a log interval")
    if job.framework not in FRAMEWORKS or job.layout not in LAYOUTS or fault.kind not in FAULT_KINDS:
        raise ValueError(f"{job.name}: unknown framework, layout or fault kind")
    if job.skew and len(job.skew) != len(job.nodes):
        raise ValueError(f"{job.name}: {len(job.skew)} clock skews for {len(job.nodes)} nodes")
    if fault.rank is not None and not 0 <= fault.rank < job.world:
        raise ValueError(f"{job.name}: rank {fault.rank} is not one of {job.world}")
    if fault.node is not None and fault.node not in job.nodes:
        raise ValueError(f"{job.name}: {fault.node} is not one of its nodes")
    if fault.step is not None and not 1 <= fault.step <= job.steps:
        raise ValueError(f"{job.name}: step {fault.step} is not one of {job.steps}")
    if fault.phase == "startup" and fault.kind in ("none", "slowdown", "nan-loss", "no-space"):
        raise ValueError(f"{job.name}: {fault.kind} cannot happen before the first step")
    saves = 0 < job.checkpoint_every <= job.steps
    if (fault.phase == "checkpoint" or fault.kind == "no-space") and not saves:
        raise ValueError(f"{job.name}: {fault.kind} at a checkpoint needs checkpoints")
    if fault.kind == "nccl-timeout" and job.world < 2:
        raise ValueError(f"{job.name}: nobody waits in a job of one rank")
