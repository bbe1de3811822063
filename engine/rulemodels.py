"""The shapes of rule files, as pydantic models: the one place that says which keys exist.

Used to validate (all faults at once) and to print the JSON schema for editors. Values are strings throughout; the
models turn a lone string into a list where the format allows both.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

CAPTURES = frozenset(
    [
        "rank",
        "local_rank",
        "node",
        "peer",
        "peer_rank",
        "gpu",
        "pci",
        "xid",
        "timeout_ms",
        "ran_ms",
        "errno",
        "path",
        "pid",
        "step",
        "job_id",
        "exit_code",
        "signal",
        "seq",
        "op",
        "exception",
        "message",
        "task",
        "expected",
        "joined",
        "bytes",
        "version",
        "world",
        "address",
        "missing",
        "group",
        "completed",
        "enqueued",
    ]
)
PROGRESS_CAPTURES = frozenset(
    [
        "step",
        "total",
        "epoch",
        "epochs",
        "step_time",
        "rate",
        "rate_unit",
        "elapsed",
        "throughput",
        "tflops",
        "loss",
        "grad_norm",
        "lr",
        "samples",
        "tokens",
        "rank",
        "time_ms",
        "skipped",
        "nan",
    ]
)
PATH_CAPTURES = frozenset(
    [
        "cluster",
        "job_id",
        "job_name",
        "array_job",
        "array_task",
        "node",
        "rank",
        "local_rank",
        "task",
        "step",
        "restart_count",
        "attempt",
        "stream",
    ]
)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _hit(value: Any) -> Any:
    return {"line": value} if isinstance(value, str) else value


Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.+-]*$", max_length=60)]
Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Strings = Annotated[list[Annotated[str, StringConstraints(min_length=1)]], BeforeValidator(_listed)]
Role = Literal["root", "candidate", "cascade", "confirm", "locator", "lifecycle", "wrapper", "benign"]
Domain = Literal["user", "framework", "data", "gpu", "node", "network", "storage", "scheduler", "unknown"]
Mark = Literal[
    "start", "restart", "trained", "completed", "ok-exit", "exit", "teardown", "ignored",
    "cancelled", "preempted", "time-limit", "requeued", "node-failure",
]  # fmt: skip


class Strict(BaseModel):
    """Unknown keys are faults: a misspelt key must never be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Hit(Strict):
    """A line that must match, with captures to check and other rules that may fire."""

    line: str
    fields: dict[str, str] = Field(default_factory=dict)
    also: list[str] = Field(default_factory=list)


Hits = Annotated[list[Annotated[Hit, BeforeValidator(_hit)]], Field(min_length=1)]
Misses = Annotated[list[str], Field(min_length=1)]


class Signature(Strict):
    """One entry of `signatures:`."""

    id: Id
    title: Text
    pattern: str | None = None
    patterns: list[str] = Field(default_factory=list)
    unless: Strings = Field(default_factory=list)
    extract: Strings = Field(default_factory=list)
    role: Role
    class_: str | None = Field(default=None, alias="class")
    domain: Domain = "unknown"
    mark: Mark | None = None
    looks_back: Literal["timeout_ms", "ran_ms"] | None = None
    table: str | None = None
    generic: Literal["true", "false"] = "false"
    traits: Annotated[list[Literal["sticky", "witness", "certain"]], BeforeValidator(_listed)] = Field(
        default_factory=list
    )
    status: Literal["trial", "stable", "retired"] = "stable"
    successor: str | None = None
    limits: str | None = None
    see: Strings = Field(default_factory=list)
    hits: Hits
    misses: Misses


class SignatureFile(Strict):
    """A family of signatures."""

    family: Id
    about: Text
    signatures: list[Signature]


class Format(Strict):
    """One entry of `formats:`."""

    id: Id
    title: Text
    anchor: Strings
    pattern: str
    unless: Strings = Field(default_factory=list)
    more: Strings = Field(default_factory=list)
    units: dict[Literal["step_time", "throughput"], str] = Field(default_factory=dict)
    counts: Literal["step", "epoch", "samples", "tokens"] = "step"
    kind: Literal["train", "eval", "other"] = "train"
    priority: str = "50"
    of: str | None = None
    limits: str | None = None
    see: Strings = Field(default_factory=list)
    hits: Hits
    misses: Misses


class Phase(Strict):
    """One entry of `phases:`."""

    id: Id
    title: Text | None = None
    phase: Literal["startup", "compile", "resume", "evaluation", "checkpoint", "data", "ending"]
    edge: Literal["begin", "end", "point"]
    pattern: str | None = None
    patterns: list[str] = Field(default_factory=list)
    unless: Strings = Field(default_factory=list)
    extract: Strings = Field(default_factory=list)
    limits: str | None = None
    see: Strings = Field(default_factory=list)
    hits: Hits
    misses: Misses


class Banner(Strict):
    """One entry of `banners:`."""

    id: Id
    title: Text | None = None
    pattern: str | None = None
    patterns: list[str] = Field(default_factory=list)
    limits: str | None = None
    see: Strings = Field(default_factory=list)
    hits: Hits
    misses: Misses


class ProgressFile(Strict):
    """One framework."""

    framework: Id
    about: Text
    refines: Strings = Field(default_factory=list)
    formats: list[Format] = Field(default_factory=list)
    phases: list[Phase] = Field(default_factory=list)
    banners: list[Banner] = Field(default_factory=list)


class FailureClass(Strict):
    """One entry of `classes:`."""

    id: Id
    title: Text
    verdict: Literal["crashed", "stalled", "cancelled", "preempted", "time-limit", "running-at-end"]
    fault: Domain
    retry: Literal["yes", "once", "no"]
    exclude: Literal["at-once", "on-repeat", "if-one-node", "peer-on-repeat", "never"]
    budget: Id
    why: Text


class ClassFile(Strict):
    """classes.yaml."""

    classes: list[FailureClass]


class Row(Strict):
    """One row of a table."""

    value: str
    title: Text
    role: Role
    class_: str | None = Field(default=None, alias="class")
    domain: Domain = "unknown"
    action: str | None = None
    see: str | None = None


class Default(Strict):
    """What a value without a row stands for."""

    title: Text
    role: Role
    class_: str | None = Field(default=None, alias="class")
    domain: Domain = "unknown"
    action: str | None = None


class TableFile(Strict):
    """What a number means."""

    table: Id
    key: str
    about: Text
    rows: list[Row]
    default: Default


class Template(Strict):
    """One entry of `prefixes:` or `paths:`."""

    id: Id
    title: Text
    pattern: str
    limits: str | None = None
    see: Strings = Field(default_factory=list)
    hits: Hits
    misses: Misses


class PrefixFile(Strict):
    """prefixes.yaml."""

    about: Text | None = None
    prefixes: list[Template]


class PathFile(Strict):
    """paths.yaml."""

    about: Text | None = None
    paths: list[Template]


# The key that tells which kind of file it is -> its model.
FILE_KINDS: dict[str, type[Strict]] = {
    "family": SignatureFile,
    "framework": ProgressFile,
    "classes": ClassFile,
    "table": TableFile,
    "prefixes": PrefixFile,
    "paths": PathFile,
}
