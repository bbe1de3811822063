"""The vocabulary of recovery: what comes out (effects), what is kept (rows); what goes in: `events`.

In, out: nothing; plain frozen values. Always: times are microseconds on the observer's clock, which never runs backwards and does not jump
when the wall clock is set (whoever drives `advance` derives it from a monotonic clock); the scheduler's own times are compared only
with each other. Unknown is None.

Who drives it owes three things: a `Record` is durable before any effect after it leaves the process; an `Order` is handed to the executor at
most once; after a start `machine.rebuilt(rows)` comes before the first event.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from defib.engine.jobs import AttemptKey, ClusterFacts
from defib.engine.recover.events import Answer as Answer
from defib.engine.recover.events import Copied as Copied
from defib.engine.recover.events import Event as Event
from defib.engine.recover.events import Fresh as Fresh
from defib.engine.recover.events import Judged as Judged
from defib.engine.recover.events import OutsideEvidence as OutsideEvidence
from defib.engine.recover.events import Progressed as Progressed
from defib.engine.recover.events import Returned as Returned
from defib.engine.recover.events import Said as Said
from defib.engine.recover.events import Scheduled as Scheduled
from defib.engine.recover.events import Started as Started
from defib.engine.recover.events import SuspectPlace as SuspectPlace
from defib.engine.recover.events import TakenBack as TakenBack
from defib.engine.recover.events import Tick as Tick
from defib.engine.recover.events import Vitals as Vitals

State = Literal[
    "observed", "suspect", "confirmed", "planned", "authorised", "issued", "accepted", "started", "recovered", "cleared", "refused",
    "expired", "rejected", "unknown", "satisfied-by-other", "not-done", "stranded", "not-recovered", "human",
]  # fmt: skip
# Nothing more is done by defib about a case in one of these.
FINAL = frozenset(
    [
        "recovered",
        "cleared",
        "refused",
        "expired",
        "rejected",
        "satisfied-by-other",
        "stranded",
        "not-recovered",
        "human",
    ]
)
# A call may have gone out, and its end is not known yet.
UNDERWAY = frozenset(["issued", "unknown", "accepted", "started"])
Mode = Literal["observe", "approve", "act"]
Target = Literal["terminal", "running"]
Verb = Literal["requeue", "requeuehold", "exclude", "release"]

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
CLUSTER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}", re.ASCII)
SLUID = re.compile(r"s[0-9A-Z]{13}", re.ASCII)
KEY = re.compile(r"[0-9a-f]{32}", re.ASCII)
JOB_ID_MAX = 0x03FFFFFF  # MAX_JOB_ID of Slurm
EXCLUDED_MAX = 256  # names in one list; more than that is no exclusion but a site's own trouble
COMMENT_MAX = 4096


# --- what is known of a job, cut down to what decides -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """A record of the scheduler without paths and names: what gates read, and what a stored decision holds of it.

    begun_us: when the command that read it was begun. comment: at most COMMENT_MAX + 1 characters. text that the user wrote never goes
    further than consent.
    """

    attempt: AttemptKey
    state: str
    begun_us: int
    flags: frozenset[str] = frozenset()
    reason: str = ""
    user: str = ""
    uid: int | None = None
    account: str = ""
    partition: str = ""
    array_job_id: int | None = None
    array_pending: bool = False
    het_offset: int | None = None
    het_job_id: int | None = None
    start_us: int | None = None
    end_us: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    nodes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    node_count: int | None = None
    gpus: int | None = None
    held: bool = False
    requeue: bool | None = None
    batch: bool | None = None
    comment: str = ""


# --- what is kept of one case -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """What the executor is to run: a fixed record without any text of a log, a name or a comment. Raises ValueError for what is none.

    key: of the attempt's one mutating call (requeue and requeuehold share it), or of a later step of the same action. number: counts the
    orders of a cluster. by: how the target is named: job_id alone, job_id_task (then job_id is the array's), or the sluid. expected: what a read
    must show right before; target: in which kind of state. nodes: for exclude, the whole list to set (it replaces).
    read_us: when the read that this rests on was begun. not_after_us: it is not to be begun later. kill_after_s: then the client is killed.
    release_by_us: for requeuehold, when the hold has to be gone. reissue: the same call once more after it was shown not to have happened.
    """

    key: str
    number: int
    verb: Verb
    by: Literal["id", "task", "sluid"]
    job_id: int
    array_task: int | None
    sluid: str | None
    incomplete: bool
    expected: AttemptKey
    target: Literal["terminal", "running", "held"]
    nodes: tuple[str, ...]
    read_us: int
    not_after_us: int
    kill_after_s: float
    epoch: int
    reissue: bool = False
    release_by_us: int | None = None

    def __post_init__(self) -> None:
        task = self.array_task
        faults = {
            "key": KEY.fullmatch(self.key) is None,
            "job_id": not 0 < self.job_id <= JOB_ID_MAX,
            "array_task": (task is not None) if self.by == "id" else self.by == "task" and not 0 <= (task if task is not None else -1) < 2**32,
            "sluid": self.by == "sluid" and SLUID.fullmatch(self.sluid or "") is None,
            "cluster": CLUSTER_NAME.fullmatch(self.expected.cluster) is None,
            "nodes": bool(self.nodes) != (self.verb == "exclude") or len(self.nodes) > EXCLUDED_MAX,
            "a node's name": not all(NODE_NAME.fullmatch(n) for n in self.nodes),
            "incomplete": self.incomplete != (self.target == "running"),
            "target": (self.target == "held") != (self.verb in ("exclude", "release")),
            "release_by_us": (self.release_by_us is not None) != (self.verb == "requeuehold"),
        }  # fmt: skip
        wrong = [name for name, bad in faults.items() if bad]
        if wrong:
            raise ValueError(f"no order can be made of this: {', '.join(wrong)}")


@dataclass(frozen=True, slots=True)
class Issued:
    """An order that was recorded, and what came of it. answer None: nothing was heard yet."""

    order: Order
    at_us: int
    answer: Answer | None = None
    code: str = ""
    answered_us: int | None = None
    began_us: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done about a case. exclude: the nodes to be added; all_excluded: the union to set. due_us: not before (backoff).

    digest: names exactly this, for approvals. sentence: for people.
    """

    verb: Literal["requeue", "requeuehold"]
    target: Target
    by: Literal["id", "task", "sluid"]
    exclude: tuple[str, ...]
    all_excluded: tuple[str, ...]
    due_us: int
    digest: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Case:
    """One attempt that is not well, from suspicion to proof. The whole of it stands in every row, so the last row of a case is its state.

    id: names the attempt (digest of its key and the cluster's epoch). lineage: the job all of whose attempts share budgets.
    since_us: of the present state. signs: observations of the verdict; signed_us: of the first. ended_us: when a read first showed the attempt
    in a terminal state (our clock). judged: the newest verdict. orders: every order of the case. next: the attempt that
    followed. hold_reason: the scheduler's word for the hold that we placed. unmoved: good reads that showed nothing had happened since a
    call, first and last of them. reached: greatest step of the next attempt; running_us: when it was first seen running.
    gate: the first closed gate, where it waits or was refused. reissue: the next call is the one repetition. regret: who regrets it. would: only
    the mode keeps it back.
    """

    id: str
    attempt: AttemptKey
    lineage: str
    state: State
    since_us: int
    begun_us: int
    judged: Judged
    user: str = ""
    uid: int | None = None
    account: str = ""
    partition: str = ""
    group: str = ""
    gpus: int | None = None
    node_count: int | None = None
    target: Target = "terminal"
    signs: int = 1
    signed_us: int = 0
    ended_us: int | None = None
    copied_us: int | None = None
    plan: Plan | None = None
    approved: str = ""
    approved_us: int | None = None
    gate: str = ""
    orders: tuple[Issued, ...] = ()
    reissue: bool = False
    next: AttemptKey | None = None
    hold_reason: str = ""
    release_by_us: int | None = None
    unmoved: tuple[int, ...] = ()
    reached: int | None = None
    running_us: int | None = None
    because: str = ""
    regret: str = ""
    would: bool = False


BREAKERS = ("correlated", "verify", "surprise", "blind", "scheduler", "health", "regret", "flood", "amnesia")


@dataclass(frozen=True, slots=True)
class Breaker:
    """A reason to make no call. name: of BREAKERS, `flood:USER` for one user's. trial: the case that tries whether it may be closed.

    state: open | half-open | closed.
    """

    name: str
    state: Literal["open", "half-open", "closed"]
    since_us: int
    because: str
    trial: str = ""


# --- effects ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the audit. seq: gapless. what: case | breaker | evidence | person | start | cluster | broken.

    before, after: states of the case or breaker. inputs: for a decision, the JSON text that `planner.decide` makes the same decision of.
    Restarting from all rows in order gives the state again.
    """

    seq: int
    at_us: int
    epoch: int
    what: str
    before: str
    after: str
    because: str
    case: Case | None = None
    breaker: Breaker | None = None
    evidence: OutsideEvidence | None = None
    inputs: str = ""
    who: str = ""
    cluster: ClusterFacts | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Make this row durable before anything after it leaves the process."""

    row: Row


@dataclass(frozen=True, slots=True)
class Look:
    """Read this one job afresh (`Fresh`). label: the name Slurm's commands take for exactly this record."""

    attempt: AttemptKey
    label: str


@dataclass(frozen=True, slots=True)
class Copy:
    """Keep the evidence of this case apart (`Copied`)."""

    case: str
    attempt: AttemptKey
    incident: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A person's approval is wanted (`Said`). until_us: asked again or given up then."""

    case: str
    digest: str
    sentence: str
    until_us: int


@dataclass(frozen=True, slots=True)
class Issue:
    """Hand this order to the executor, once."""

    order: Order


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell people. kind: asked | acted | recovered | refused | human | breaker | disarmed. key: same key, same news."""

    kind: str
    key: str
    sentence: str
    case: str = ""


Effect = Record | Look | Copy | Ask | Issue | Notify


@dataclass(frozen=True, slots=True)
class Call:
    """A mutating call as budgets count it. killed_gpu_s: GPU-seconds of work it may have thrown away (0 for terminal targets)."""

    at_us: int
    case: str
    lineage: str
    user: str
    partition: str
    group: str
    target: Target
    gpus: int
    killed_gpu_s: float
    fingerprint: str
    step: int | None
    answer: str = ""
    state: str = ""
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing is done: the first closed gate in the order of gates, the value read, and when it was read."""

    gate: int
    name: str
    value: str
    read_us: int | None
    others: tuple[int, ...] = field(default=())
