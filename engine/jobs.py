"""What a scheduler tells in one read: jobs, nodes, the cluster's own settings. Plain values, parsed by shape in the adapters.

Everything a user may have written (name, comment, paths, dependency) is text to show or to check, never a target: only numeric ids, states
and times decide. Unknown is None. Times are microseconds UTC.
"""

from __future__ import annotations

from dataclasses import dataclass

from defib.engine.words import JobState

# Base states and flags as Slurm prints them (squeue(1), JOB STATE CODES). A flag wins over its base state.
BASE_STATES = frozenset(
    [
        "PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL",
        "DEADLINE", "OUT_OF_MEMORY",
    ]
)  # fmt: skip
TERMINAL_STATES = frozenset(
    ["COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"]
)
FLAGS = frozenset(
    [
        "COMPLETING", "CONFIGURING", "STOPPED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "RESIZING",
        "SIGNALING", "STAGE_OUT", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL", "POWER_UP_NODE", "EXPEDITING",
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """One run of one job, fenced: ids wrap, start times move while pending, submit time is set anew and restarts counts up at a requeue.

    array_task: index of an array's task. sluid: Slurm's own id of this very run, where it has one (25.11 and newer).
    """

    cluster: str
    job_id: int
    array_task: int | None
    submit_us: int
    restarts: int
    sluid: str | None = None


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One job, one task of an array, or one component of a heterogeneous job, as one read told of it.

    job_id: the raw id of this record (the last task of an array to be split off keeps the array's own id). array_job_id, array_task: where
    the record is one task. array_pending: this record stands for tasks that have not been split off; it is nobody's target.
    state: base state, "" where only a flag was told; flags: what Slurm adds to it. priority 0 is held. stdout, stderr: bytes of the expanded
    paths, None where unknown or, of stderr, where it goes to stdout. Texts are valid: bytes that were no UTF-8 are replaced in them.
    requeue: the job may be requeued (--requeue). batch: it was submitted with sbatch. excluded, required: node names that were asked for;
    of many jobs read at once as text, old releases do not tell the excluded ones. exit_code, exit_signal: of the batch script, None before
    the end.
    """

    cluster: str
    job_id: int
    state: str
    submit_us: int
    restarts: int
    user: str = ""
    uid: int | None = None
    account: str = ""
    partition: str = ""
    qos: str = ""
    name: str = ""
    flags: frozenset[str] = frozenset()
    reason: str = ""
    array_job_id: int | None = None
    array_task: int | None = None
    array_pending: bool = False
    het_job_id: int | None = None
    het_offset: int | None = None
    start_us: int | None = None
    end_us: int | None = None
    suspended_us: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    nodes: tuple[str, ...] = ()
    batch_host: str | None = None
    excluded: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    node_count: int | None = None
    gpus: int | None = None
    priority: int | None = None
    held: bool = False
    requeue: bool | None = None
    batch: bool | None = None
    comment: str = ""
    admin_comment: str = ""
    dependency: str = ""
    reservation: str = ""
    stdout: bytes | None = None
    stderr: bytes | None = None
    work_dir: bytes | None = None
    time_limit_s: int | None = None
    sluid: str | None = None

    @property
    def key(self) -> AttemptKey:
        return AttemptKey(self.cluster, self.job_id, self.array_task, self.submit_us, self.restarts, self.sluid)

    @property
    def label(self) -> str:
        """The name Slurm's commands take for exactly this record."""
        if self.array_task is not None and self.array_job_id is not None:
            return f"{self.array_job_id}_{self.array_task}"
        return str(self.job_id)

    @property
    def told(self) -> JobState:
        """What the fold needs of it. A flag that says the job is waiting or still ending wins over the base state."""
        word = next(
            (f for f in ("COMPLETING", "CONFIGURING", "STOPPED", "SPECIAL_EXIT", "REQUEUE_HOLD") if f in self.flags),
            self.state,
        )
        held = self.held and self.state == "PENDING"
        return JobState(word, held, self.reason, self.restarts, self.exit_code, self.exit_signal, self.nodes)


@dataclass(frozen=True, slots=True)
class LogPath:
    """Where a job writes. path: absolute, without `..`; with glob it is a pattern of which only the site's own wildcards are live.

    channel: out, err, or step for files of the site's templates.
    """

    path: bytes
    channel: str = "out"
    glob: bool = False


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run of a job as the accounting keeps it: history, late by seconds and sometimes half written. Never a reason to act."""

    job_id: int
    label: str
    uid: int | None
    state: str
    submit_us: int | None
    start_us: int | None = None
    end_us: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as one read told of it. flags: DRAIN, MAINTENANCE, NOT_RESPONDING, REBOOT_REQUESTED … ."""

    name: str
    state: str
    flags: frozenset[str] = frozenset()
    partitions: tuple[str, ...] = ()
    reason: str = ""

    @property
    def usable(self) -> bool:
        """New work may start there."""
        bad = {"DRAIN", "NOT_RESPONDING", "FAIL", "MAINTENANCE", "REBOOT_REQUESTED", "REBOOT_ISSUED", "POWERED_DOWN"}
        return self.state in ("IDLE", "MIXED", "ALLOCATED") and not (self.flags & bad)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The cluster's own settings, and what its controller says of itself.

    booted_us: when the controller started; first_job_id: the least id it gives (a change of either is another epoch). requeue_delay_s: how
    long a requeued job waits before it may start; None unknown. sluids: jobs can be named by the id of one very run. requeue_exits:
    exit codes Slurm itself requeues. append: logs are appended to by default (JobFileAppend). up: its controller said so when asked, within
    ping_s; None where it was not asked.
    """

    name: str
    version: tuple[int, ...] = ()
    booted_us: int | None = None
    first_job_id: int | None = None
    requeue_delay_s: float | None = None
    message_timeout_s: float = 10.0
    min_job_age_s: float = 300.0
    job_requeue: bool = True
    append: bool = False
    requeue_exits: frozenset[int] = frozenset()
    requeue_hold_exits: frozenset[int] = frozenset()
    sluids: bool = False
    up: bool | None = None
    ping_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterRead:
    """One look at the scheduler. ok: it answered and the answer could be read as a whole; where it is not, absence proves nothing.

    troubles: what went wrong or was odd, one sentence each, names of jobs escaped. unread: ids of records that were there but could not be
    read; they are not absent. at_us: when the command was begun, on the observer's clock.
    """

    at_us: int
    ok: bool
    jobs: tuple[JobFacts, ...] = ()
    troubles: tuple[str, ...] = ()
    took_s: float = 0.0
    unread: frozenset[int] = frozenset()
