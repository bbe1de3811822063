"""What comes in: the events of `machine.advance`.

In, out: nothing; plain frozen values. Always: `at_us` is the observer's clock (see `words`); an event tells what was seen, never what is to be done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from defib.engine.jobs import AttemptKey, ClusterFacts, ClusterRead, JobFacts, NodeFacts

Answer = Literal["done", "rejected", "unclear", "not-run"]


@dataclass(frozen=True, slots=True)
class SuspectPlace:
    """A node or GPU that the verdict names. confidence, how, breadth as in `Suspect` of engine/words.py."""

    node: str
    gpu: str | None = None
    confidence: str = "unknown"
    how: str = "printer"
    breadth: int | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """Our process took the lock. epoch: grows with every start; clean: the process before it had ended in order."""

    at_us: int
    epoch: int
    clean: bool = True


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The scheduler's periodic read. cluster and nodes where they were read with it."""

    at_us: int
    read: ClusterRead
    cluster: ClusterFacts | None = None
    nodes: tuple[NodeFacts, ...] | None = None


@dataclass(frozen=True, slots=True)
class Fresh:
    """The answer to a `Look`: every record that the one id resolves to. begun_us: before the command was run.

    ok: the scheduler answered and the answer could be read. ok and nothing found: it knows no such job.
    """

    at_us: int
    begun_us: int
    attempt: AttemptKey
    ok: bool
    found: tuple[JobFacts, ...] = ()
    cluster: ClusterFacts | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict about an attempt; told again as long as it holds (each time is one observation).

    kind: dead | hung | slow. incident: its id. klass: failure class. cause: id of the rule of the first cause. fingerprint: same cause,
    same string, whatever the rank or node. step: the last training step it reached, None unknown. seeing: every stream of the attempt could
    be vouched for over the whole window; drained: its logs were read to their ends. sign: the source outside the log and outside the job's
    control that says the same (step state, counters of a node agent), "" for none; sign_us: when that was read.
    because: one plain sentence, escaped.
    """

    at_us: int
    attempt: AttemptKey
    kind: Literal["dead", "hung", "slow"]
    incident: str
    klass: str
    confidence: str = "unknown"
    cause: str = ""
    fingerprint: str = ""
    step: int | None = None
    suspects: tuple[SuspectPlace, ...] = ()
    seeing: bool = True
    drained: bool = True
    sign: str = ""
    sign_us: int | None = None
    because: str = ""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The detector no longer holds its verdict: the attempt is healthy, or ended well."""

    at_us: int
    attempt: AttemptKey
    why: str = ""


@dataclass(frozen=True, slots=True)
class Progressed:
    """A training step that this very attempt printed."""

    at_us: int
    attempt: AttemptKey
    step: int


@dataclass(frozen=True, slots=True)
class Copied:
    """The answer to a `Copy`: the evidence of the case is kept apart from the log, which a restart truncates."""

    at_us: int
    case: str
    ok: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Returned:
    """What the executor says of an order.

    done: exit code 0, which is not yet success. rejected: an error of a known class (code: disabled | pending | batch-only | access |
    invalid-id | finished | not-pending | bad-node | not-leader). unclear: killed, timed out, unknown exit code or message: it may have
    happened. not-run: the executor refused before it ran anything (code: late | epoch | kill-switch | key | id).
    began_us: when the command was started, None where it was not.
    """

    at_us: int
    number: int
    key: str
    answer: Answer
    code: str = ""
    began_us: int | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A person's word: approve or refuse a case (what = its plan's digest, so that nobody approves what has changed since), regret an
    action, close a breaker (target = its name), or take a case that waits for a person as settled. who: a name the front end has checked."""

    at_us: int
    who: str
    what: Literal["approve", "refuse", "regret", "close-breaker", "settle"]
    target: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class OutsideEvidence:
    """What somebody else holds against a node or GPU: another diagnoser, or a person. klass: a failure class of ours. until_us: expiry."""

    at_us: int
    id: str
    source: str
    node: str
    gpu: str | None
    klass: str
    confidence: str
    until_us: int
    because: str = ""


@dataclass(frozen=True, slots=True)
class Vitals:
    """How we ourselves are; told at least every 10 s in production. Unknown is None and closes the gate that asks for it.

    killed: the kill switch is there. canary_us: last self-test that passed. lag_s: of the main loop. committed_us: last durable write.
    stepped_us: last jump of the wall clock. locked: we hold the cluster's lock; newest_epoch: the greatest that the store knows.
    pings: good answers of the controller below a second in a row. backlog: requests that wait in it. streams, blind: how many are
    followed and cannot be vouched for. mounts_hung: names. full: a file system of ours or of a log is full. maintenance: (from, to) of
    reservations with flag MAINT or planned reboots. caught_up: everything that lay before our start has been read.
    """

    at_us: int
    killed: bool | None = None
    canary_us: int | None = None
    lag_s: float | None = None
    committed_us: int | None = None
    stepped_us: int | None = None
    locked: bool | None = None
    newest_epoch: int | None = None
    pings: int | None = None
    backlog: int | None = None
    streams: int | None = None
    blind: int | None = None
    mounts_hung: tuple[str, ...] = ()
    full: bool | None = None
    maintenance: tuple[tuple[int, int], ...] = ()
    caught_up: bool | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has come to at_us."""

    at_us: int


Event = (
    Started | Scheduled | Fresh | Judged | TakenBack | Progressed | Copied | Returned | Said | OutsideEvidence | Vitals | Tick
)  # fmt: skip
