"""The vocabulary: every type and Arrow schema that crosses a wall.

Times are microseconds UTC as `int` (`_us`), durations seconds as `float` (`_s`), offsets bytes, lines 1-based.
Unknown is None, never an invented value. Nothing here computes more than a property.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType

import pyarrow as pa

from defib.engine.errors import ConfigError as ConfigError
from defib.engine.errors import DefibError as DefibError
from defib.engine.errors import Problem as Problem
from defib.engine.errors import ProblemsError as ProblemsError
from defib.engine.errors import RuleError as RuleError
from defib.engine.errors import SourceError as SourceError
from defib.engine.errors import StoreError as StoreError

RuleId = NewType("RuleId", str)
StreamNo = NewType("StreamNo", int)  # index of a stream within one run of the engine

ROLES = ("root", "candidate", "cascade", "confirm", "locator", "lifecycle", "wrapper", "benign")
DOMAINS = ("user", "framework", "data", "gpu", "node", "network", "storage", "scheduler", "unknown")
MARKS = (
    "start", "restart", "trained", "completed", "ok-exit", "exit", "teardown", "ignored",
    "cancelled", "preempted", "time-limit", "requeued", "node-failure",
)  # fmt: skip
LIFECYCLE_MARKS = ("cancelled", "preempted", "time-limit", "requeued", "node-failure")
VERDICTS = (
    "completed", "crashed", "cancelled", "preempted", "time-limit", "stalled", "running-at-end", "unknown",
)  # fmt: skip
# What a run is right now. waiting: pending, held or suspended by the scheduler; dead: it failed; ended: it ended without failing.
HEALTH = ("starting", "healthy", "slow", "hung", "dead", "ended", "blind", "waiting")
EPISODES = ("hung", "slow", "blind")
CONFIDENCES = ("certain", "likely", "possible", "unknown")
PHASES = ("startup", "compile", "resume", "evaluation", "checkpoint", "data", "ending")  # as rules name them

TEXT_BYTES_MAX = 1024  # of a line kept as evidence

# One row per (rule, record) of a batch.
HITS = pa.schema([("rule", pa.uint16()), ("record", pa.uint32())])

# One row per claim a line makes. year_us: microseconds since the year began, of stamps that carry no year. `fields` is a JSON
# object of the captures that have no column of their own.
SIGNALS = pa.schema(
    [
        ("stream", pa.uint32()), ("offset", pa.int64()), ("line", pa.int64()), ("rule", pa.string()),
        ("time_us", pa.int64()), ("year_us", pa.int64()), ("rank", pa.int32()), ("local_rank", pa.int32()), ("node", pa.string()),
        ("fields", pa.string()), ("text", pa.string()),
    ]
)  # fmt: skip

# One row per progress line. rank: who printed it, a launcher's local number where nothing better is said. step_time_s seconds per step;
# throughput in throughput_unit; tflops TFLOP/s per GPU.
PROGRESS = pa.schema(
    [
        ("stream", pa.uint32()), ("offset", pa.int64()), ("line", pa.int64()), ("format", pa.string()),
        ("time_us", pa.int64()), ("rank", pa.int32()), ("step", pa.int64()), ("total", pa.int64()),
        ("step_time_s", pa.float64()), ("elapsed_s", pa.float64()), ("throughput", pa.float64()),
        ("throughput_unit", pa.string()), ("tflops", pa.float64()), ("loss", pa.float64()),
        ("grad_norm", pa.float64()), ("epoch", pa.float64()), ("samples", pa.float64()), ("tokens", pa.float64()),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobKey:
    """What offline identity rests on: cluster, job id and array task where a path or a caller tells them, else the place of the log.

    place: directory + stem shared by the files of one job; "" when job_id is known.
    """

    cluster: str | None = None
    job_id: str | None = None
    array_task: str | None = None
    submit_time_us: int | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class StreamId:
    """One log as it was read. generation counts truncations and replacements of the path (0 offline)."""

    path: str
    generation: int = 0


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What path and caller say about a stream before its first byte."""

    job: JobKey
    job_name: str | None = None
    node: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    restart_count: int | None = None
    attempt: int | None = None  # e.g. torchrun's attempt_N directory
    channel: str | None = None  # out | err
    user: int | None = None  # whose job it is, where a scheduler says so


@dataclass(frozen=True, slots=True)
class Signal:
    """A claim a line makes, with the place where anyone can check it."""

    rule: RuleId
    stream: StreamNo
    offset: int
    line: int
    text: str
    time_us: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    # resolved from rule (or its table) so that folds need no rulebook
    role: str = "confirm"
    klass: str | None = None
    domain: str = "unknown"
    mark: str | None = None
    generic: bool = False
    title: str = ""
    year_us: int | None = None  # since the year began, where the line's stamp carries no year
    order_us: int | None = None  # for comparing lines of different streams; set when a job is judged
    phase: str | None = None  # of phase lines, with edge: begin | end | point
    edge: str | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """The first cause of an attempt's end as far as its logs tell."""

    signal: Signal
    klass: str
    domain: str
    confidence: str
    because: str  # one plain sentence


@dataclass(frozen=True, slots=True)
class ProgressSummary:
    """Steps an attempt printed. median_step_s has a relative error of at most 0.05 %."""

    format: str
    framework: str
    kind: str  # train | eval | other: what the counter counts; only `train` is training
    first_step: int | None
    last_step: int | None
    total_steps: int | None
    points: int
    median_step_s: float | None
    p90_step_s: float | None
    throughput: float | None
    throughput_unit: str | None
    clock: str  # event | step | none


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line kept because it tells something: why (cause, cascade, exit, lifecycle, background, suspect, tail) and where."""

    why: str
    signal: Signal
    count: int = 1


@dataclass(frozen=True, slots=True)
class Episode:
    """A stretch of an attempt in which it was not well. Times are microseconds on `clock`: Unix time for event, the observer's own
    clock for arrival, time since the first step for step.

    kind: hung | slow | blind. onset: the last progress before a silence, or where the pace changed. declared: when a limit was passed or
    an alarm was raised; None while it is only suspected. ended: when it passed; None if it lasted to the end.
    """

    kind: str
    phase: str
    clock: str
    onset_us: int
    declared_us: int | None
    ended_us: int | None
    onset_step: int | None = None
    end_step: int | None = None
    stream: StreamNo | None = None
    onset_offset: int | None = None
    onset_line: int | None = None
    limit_s: float | None = None  # hung: the limit that was passed
    baseline_s: float | None = None  # slow: seconds per step before
    pace_s: float | None = None  # slow: seconds per step during
    depth: float | None = None  # slow: share of the throughput lost, 0 to 1
    scope: str = "unknown"  # slow: all | some | unknown ranks
    ranks: tuple[int, ...] = ()  # slow: those ranks, where scope is some
    because: str = ""  # one plain sentence


@dataclass(frozen=True, slots=True)
class Suspect:
    """Who is behind a failure, as far as lines tell. Who prints a symptom is a witness, never a suspect.

    how: cause | scheduler | silent-rank | behind-rank | peer. breadth: nodes that show the same cause; where it is broad nobody is suspect.
    """

    rank: int | None
    node: str | None
    gpu: str | None
    how: str
    confidence: str
    because: str  # one plain sentence
    evidence: tuple[Signal, ...] = ()
    breadth: int = 1


@dataclass(frozen=True, slots=True)
class JobState:
    """What a scheduler says of a job. state: Slurm's word for it (PENDING, RUNNING, SUSPENDED, COMPLETING, FAILED …); "" unknown."""

    state: str
    held: bool = False
    reason: str = ""
    restart_count: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptVerdict:
    """The story of one attempt; the row of `attempts` and the object of `replay --jsonl`."""

    attempt_id: str
    job: JobKey
    job_name: str | None
    restart_count: int | None
    index: int
    streams: tuple[StreamNo, ...]
    framework: str | None
    verdict: str
    klass: str | None
    cause: Cause | None
    cascades: int
    progress: ProgressSummary | None
    clock: str
    notes: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    first_us: int | None
    last_us: int | None
    first_line: dict[StreamNo, int] = field(default_factory=dict)
    last_line: dict[StreamNo, int] = field(default_factory=dict)
    suspect: Suspect | None = None
    episodes: tuple[Episode, ...] = ()
