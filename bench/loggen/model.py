"""What is asked for and what is known about it: jobs, faults, events on the way, truth at the end.

In: nothing. Out: frozen values only. Always: a value that passes `check` can be rendered.
Steps in a `Truth` are the numbers the log itself prints (NeMo and nanoGPT count from 0); Lightning restarts
its bar each epoch, there the step is epoch * epoch_steps + position.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

Framework = Literal["megatron-lm", "deepspeed", "torchtitan", "nanogpt", "fairseq", "lightning", "nemo"]
Layout = Literal["single", "out-err", "per-rank", "per-node"]
Launcher = Literal["torchrun", "srun"]
Phase = Literal["train", "startup", "compile", "evaluation", "checkpoint", "ending"]
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
    "lost-peer",
]
Verdict = Literal["completed", "crashed", "stalled", "cancelled", "preempted", "time-limit", "running-at-end"]
# out, err: a rank's streams; trace, glog: its stderr as Python and as C++ write it;
# agent: a node's torchrun; batch: srun and slurmstepd; host: the batch script and forwarded kernel lines;
# nccl: what NCCL prints on a rank's stdout past Python's buffer;
# flush: no text, a process empties its buffer (all processes where no rank is named).
Stream = Literal["out", "err", "trace", "glog", "agent", "batch", "host", "nccl", "flush"]
Trouble = Literal["hung", "slow", "crash"]
Killer = Literal["nobody", "time-limit", "cancelled"]
Tells = Literal["silence", "sequence", "nothing"]

FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
HANGS: frozenset[FaultKind] = frozenset({"hang-silent", "nccl-timeout"})
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Habits:
    """How a run moves and prints when nothing is wrong, as far as a hasty observer might take it for trouble."""

    compile_s: float = 0.0
    """The first step takes so much longer (0: a few steps' time)."""
    warmup_steps: int = 0
    """Steps until the pace has settled; the first of them takes `warmup_x` times as long."""
    warmup_x: float = 2.0
    tails: float = 0.0
    """Share of steps that take 1.5 to 4 times as long."""
    gc_every: int = 0
    """Every so many steps the garbage collector takes `gc_s`."""
    gc_s: float = 0.0
    stalls: tuple[tuple[int, float], ...] = ()
    """(step, seconds): the step waits so long for data."""
    suspends: tuple[tuple[int, float], ...] = ()
    """(step, seconds): the scheduler suspends the job for so long within that step."""
    curriculum: tuple[tuple[int, float], ...] = ()
    """(step, factor): from that step on a step holds so many times the tokens, and takes as much longer."""
    curriculum_by: Literal["batch", "sequence"] = "batch"
    clock_steps: tuple[tuple[float, float], ...] = ()
    """(seconds since the start, seconds): every node's clock jumps by so much; shows in printed times only."""
    quiet: tuple[Literal["checkpoint", "evaluation"], ...] = ()
    """These pass without a word."""
    inclusive: bool = False
    """The printed pace counts the checkpoints and evaluations since the line before."""
    buffer: int = 0
    """Block size of a rank's stdout: it arrives in multiples of it, and what is left is lost with a killed process."""
    rank_lines: bool = False
    """Every rank prints its progress (torchtitan)."""
    loose: bool = False
    """Ranks do not wait for each other at each step but at checkpoints (as local SGD does)."""
    lr_lines: bool = False
    """Announce the stages of the learning-rate schedule."""
    retries: tuple[int, ...] = ()
    """Steps after which a caught error is printed and retried."""
    spinner_s: float = 0.0
    """A tracker's spinner redraws at this interval while a hung run waits or a finished one uploads."""
    upload_s: float = 0.0
    """How long the upload after the last step takes."""


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
    habits: Habits = Habits()

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
    wait_s: float = 0.0
    """hang-silent: seconds of silence until somebody acts, or until one stops watching."""
    killer: Killer = "nobody"
    """hang-silent: who ends the job after `wait_s`."""
    tells: Tells = "silence"
    """nccl-timeout: the culprit alone says nothing, or is behind in its work sequence, or cannot be told (nothing).
    lost-peer: the peers' lines name the lost node, or cannot (nothing)."""
    ramp_s: float = 0.0
    """slowdown: seconds until its depth is reached."""
    lasts_s: float | None = None
    """slowdown: seconds until it passes."""
    alone: bool = False
    """slowdown: only `rank` is slow, and ranks do not wait for each other (needs `rank_lines` and `loose`)."""
    then: "Fault | None" = None
    """What goes wrong in the attempt after this one."""

    @property
    def lost(self) -> float:
        """slowdown: the share of the throughput that is lost, 0 to 1."""
        return 1.0 - 1.0 / self.depth


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
    trouble: Trouble | None = None
    phase: Phase | None = None
    """What the run was doing when the trouble began."""
    onset_s: float | None = None
    """When it began, in seconds of true time since the job's start."""
    onset_step: int | None = None
    """Steps done before it."""
    depth: float | None = None
    """slow: the share of the throughput lost, 0 to 1."""
    passed_s: float | None = None
    """slow: when it passed, in seconds since the job's start; None if it lasted."""
    passed_step: int | None = None
    """Steps done before that."""

    def as_json(self) -> str:
        """One line of truth.jsonl."""
        row: dict[str, object] = {
            ("class" if name == "klass" else name): getattr(self, name) for name in self.__slots__
        }
        row["causes"] = [{name: getattr(c, name) for name in Cause.__slots__} for c in self.causes]
        return json.dumps(row, ensure_ascii=False)


class Told(NamedTuple):
    """What the scheduler says of the job from `at` on (seconds since the job's start): Slurm's words."""

    at: float
    state: str
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Rendered:
    """A job as it was left on disk and as it came about. Unpacks as `files, truth`."""

    files: dict[str, bytes]
    """By relative path."""
    truth: tuple[Truth, ...]
    """One per attempt."""
    arrivals: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """Per path: (seconds of true time since the job's start, size of the file from then on), ascending."""
    told: tuple[Told, ...] = ()
    ended_s: float = 0.0
    """When the last attempt ended, or when one stopped watching it."""

    def __iter__(self) -> Iterator[Any]:
        yield self.files
        yield self.truth


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
    if fault.phase in ("compile", "evaluation", "ending") and fault.kind not in HANGS:
        raise ValueError(f"{job.name}: {fault.kind} in {fault.phase} is not told of")
    if fault.phase == "evaluation" and not 0 < job.eval_every <= job.steps:
        raise ValueError(f"{job.name}: {fault.kind} in an evaluation needs evaluations")
    check_habits(job, fault)
    saves = 0 < job.checkpoint_every <= job.steps
    if (fault.phase == "checkpoint" or fault.kind == "no-space") and not saves:
        raise ValueError(f"{job.name}: {fault.kind} at a checkpoint needs checkpoints")
    if fault.kind == "nccl-timeout" and job.world < 2:
        raise ValueError(f"{job.name}: nobody waits in a job of one rank")
    if fault.kind == "lost-peer" and len(job.nodes) < 2:
        raise ValueError(f"{job.name}: a lost node needs another that notices")
    if fault.then is not None:
        check(job, fault.then)


def check_habits(job: Job, fault: Fault) -> None:
    """What does not go together."""
    habits = job.habits
    if habits.buffer and job.labels:
        raise ValueError(f"{job.name}: srun labels whole lines, so no buffered blocks pass it")
    if habits.rank_lines and job.framework != "torchtitan":
        raise ValueError(f"{job.name}: only torchtitan prints a line of every rank here")
    if fault.alone and not (habits.loose and habits.rank_lines):
        raise ValueError(f"{job.name}: a rank slow alone shows where ranks print their own pace and do not wait")
    if fault.kind == "slowdown" and fault.depth <= 1.0:
        raise ValueError(f"{job.name}: a slowdown multiplies the step time by more than 1")
