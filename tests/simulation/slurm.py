"""A model of Slurm, as far as a restart concerns it. Event-driven: it knows when something happens next and does nothing in between.

Behaviours are those seen on real clusters of 22.05, 24.11 and 26.05: what requeue does in every state, the requeue delay, Incomplete,
requeuehold, an array's parent, suspended jobs, purge after MinJobAge, a controller that is down or hung and executes later what it was asked.
`test_model.py` states them one by one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from defib.engine.jobs import ClusterFacts, JobFacts, NodeFacts

S = 1_000_000
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
HELD_BY_REQUEUE = "job_requeued_in_held_state"


@dataclass(slots=True, eq=False)
class Job:
    """One job or one task, with what only the world knows of it (last block)."""

    id: int
    user: str
    uid: int
    submit_us: int
    node_count: int = 1
    gpus: int | None = 8
    partition: str = "gpu"
    account: str = "lab"
    comment: str = ""
    requeue: bool = True
    batch: bool = True
    array_job_id: int | None = None
    task: int | None = None
    parts: int = 0  # of a heterogeneous job: how many records follow this one, its leader's
    pending_tasks: int = 0  # > 0: this record stands for tasks that are not split off
    state: str = "PENDING"
    completing_until: int | None = None
    suspended: bool = False
    restarts: int = 0
    start_us: int | None = None
    end_us: int | None = None
    eligible_us: int = 0
    exit: tuple[int, int] | None = None
    nodes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    held: bool = False
    hold_by: str = ""
    held_us: int = 0
    reason: str = "None"
    sluid: str = ""
    limit_s: float = 86400.0
    # the world's own: what the program does
    step: int = 0
    saved: int = 0
    rate: float = 0.01  # steps a second
    goal: int = 4000
    bug_at: int | None = None
    hangs_at: int | None = None
    fate: str = ""
    fate_us: int | None = None
    hung: bool = False
    ended_by: str = ""
    starts: int = 0

    @property
    def line(self) -> tuple[int, int | None]:
        return self.id, self.task


@dataclass(slots=True)
class Slurm:
    """The controller with its nodes and jobs."""

    rng: random.Random
    node_names: tuple[str, ...]
    delay_s: float = 121.0
    sluids: bool = False
    min_job_age_s: float = 300.0
    now: int = 0
    booted_us: int = 0
    up: bool = True
    hung: bool = False
    jobs: dict[tuple[int, int | None], Job] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    bad: set[str] = field(default_factory=set)
    next_id: int = 100
    queue: list[tuple[str, ...]] = field(default_factory=list)
    sluid_no: int = 0
    log: list[tuple[int, str, Job]] = field(default_factory=list)  # what happened, for the world

    # --- what users and we ask of it ------------------------------------------------------------------------------------------------

    def submit(self, user: str, **more: object) -> Job:
        self.next_id += 1
        job = Job(self.next_id, user, 1000 + int(user[1:]), self.now, **more)  # type: ignore[arg-type]
        job.sluid = self._sluid()
        self.jobs[job.line] = job
        return job

    def submit_het(self, user: str, parts: int, **more: object) -> Job:
        """A heterogeneous job: one batch script, one id for the leader, further ids for its other parts, which go with it."""
        job = self.submit(user, parts=parts, **more)
        self.next_id += parts
        return job

    def part_of(self, job_id: int) -> tuple[Job, int] | None:
        """The leader whose part has this id, and which part it is."""
        found = (j for j in self.jobs.values() if j.id < job_id <= j.id + j.parts)
        return next(((j, job_id - j.id) for j in found), None)

    def submit_array(self, user: str, tasks: int, **more: object) -> list[Job]:
        """An array whose tasks are all split off; the last keeps the array's own id, as Slurm does it."""
        self.next_id += tasks
        base, made = self.next_id - tasks + 1, []
        for t in range(tasks):
            own = base if t == tasks - 1 else base + t + 1
            job = Job(own, user, 1000 + int(user[1:]), self.now, array_job_id=base, task=t, **more)  # type: ignore[arg-type]
            job.sluid = self._sluid()
            self.jobs[job.line] = job
            made.append(job)
        return made

    def _sluid(self) -> str:
        self.sluid_no += 1
        return f"s{self.sluid_no:013d}"

    def resolve(self, by: str, job_id: int, task: int | None, sluid: str | None) -> list[Job]:
        """Every record that a name addresses. A bare id is a whole array's."""
        if by == "sluid":
            return [j for j in self.jobs.values() if j.sluid == sluid]
        if by == "task":
            return [j for j in self.jobs.values() if j.array_job_id == job_id and j.task == task]
        return [
            j
            for j in self.jobs.values()
            if job_id in (j.id, j.array_job_id) and (j.array_job_id in (None, job_id) or j.id == job_id)
        ]

    def requeue(self, job: Job, hold: bool = False, incomplete: bool = False, by: str = "user") -> str:
        """done, or the class of the error. What it does to the run is in `log`."""
        if job.completing_until is not None and job.state == "PENDING":
            return "done" if incomplete else "pending"
        if job.state == "PENDING":
            return "done" if incomplete else "pending"
        if incomplete and job.state != "RUNNING":
            return "done"
        if not job.batch:
            return "batch-only"
        if not job.requeue:
            return "disabled"
        self.log.append((self.now, f"requeued by {by}", job))
        was = job.state
        job.ended_by = "requeue"
        job.restarts += 1
        job.submit_us = self.now
        job.state, job.hung, job.fate, job.fate_us = "PENDING", False, "", None
        grace = self.rng.choice((1, 5, 30)) * S if was == "RUNNING" else 0
        job.completing_until = self.now + grace
        job.eligible_us = self.now + grace + int(self.delay_s * S)
        job.reason = "BeginTime"
        if hold or job.suspended:
            job.held, job.hold_by = True, by if hold else "admin"
            job.reason = HELD_BY_REQUEUE if hold else "JobHeldAdmin"
        job.suspended = False
        if not grace:
            self._completed(job)
        return "done"

    def exclude(self, job: Job, nodes: tuple[str, ...]) -> str:
        if job.state in ENDED:
            return "finished"
        if job.state != "PENDING":
            return "not-pending"
        if not set(nodes) <= set(self.node_names):
            return "bad-node"
        job.excluded = nodes
        return "done"

    def release(self, job: Job, by: str = "user") -> str:
        if job.state in ENDED:
            return "finished"
        if job.hold_by == "admin" and by != "root":
            return "access"
        if job.held:
            self.log.append((self.now, f"released by {by}", job))
        job.held, job.hold_by, job.reason = False, "", "BeginTime" if job.eligible_us > self.now else "Priority"
        return "done"

    def hold(self, job: Job, by: str = "user") -> None:
        if job.state in ("PENDING", "RUNNING"):
            job.held, job.hold_by, job.reason, job.held_us = True, by, "JobHeldUser", self.now

    def cancel(self, job: Job) -> None:
        if job.state in ("PENDING", "RUNNING"):
            self._end(job, "CANCELLED", (0, 15))

    def suspend(self, job: Job) -> None:
        if job.state == "RUNNING" and not job.suspended:
            job.suspended, job.fate_us = True, None
            self._bank(job)

    def resume(self, job: Job) -> None:
        if job.suspended:
            job.suspended, job.start_us = False, self.now
            self._draw(job)

    def node_down(self, node: str) -> None:
        """Slurm requeues what may be requeued, and fails the rest."""
        self.down.add(node)
        for job in list(self.jobs.values()):
            if job.state == "RUNNING" and node in job.nodes:
                self._bank(job)
                if job.requeue and job.batch:
                    self.requeue(job, by="slurm")
                else:
                    self._end(job, "NODE_FAIL", (0, 0))

    # --- time -----------------------------------------------------------------------------------------------------------------------

    def next_us(self) -> int | None:
        """When something happens next by itself. A job that waits for nodes waits for another event."""
        times = [j.fate_us for j in self.jobs.values() if j.fate_us is not None]
        if self.up and not self.hung:
            for j in self.jobs.values():
                if j.completing_until is not None:
                    times.append(j.completing_until)
                elif j.state == "PENDING" and not j.held and j.eligible_us > self.now:
                    times.append(j.eligible_us)
                elif j.state in ENDED and j.end_us is not None:
                    times.append(j.end_us + int(self.min_job_age_s * S))
        return min(times, default=None)

    def run(self, now: int) -> None:
        """Let time come to now. A controller that is down or hung starts and purges nothing; programs go on."""
        self.now = max(self.now, now)
        for job in list(self.jobs.values()):
            if job.fate_us is not None and job.fate_us <= now:
                self._fate(job)
        if not self.up or self.hung:
            return
        while self.queue:
            self.answer(*self.queue.pop(0))
        for job in list(self.jobs.values()):
            if job.completing_until is not None and job.completing_until <= now:
                self._completed(job)
            if job.state in ENDED and job.end_us is not None and now - job.end_us >= self.min_job_age_s * S:
                del self.jobs[job.line]
        self._start()

    def answer(
        self, verb: str, by: str, job_id: str, task: str, sluid: str, incomplete: str, nodes: str, who: str
    ) -> str:
        """One request executed now, as the controller would: every record that the name addresses."""
        targets = self.resolve(by, int(job_id), int(task) if task else None, sluid)
        if not targets and by == "id" and self.part_of(int(job_id)) is not None:
            return "not-leader"
        if not targets:
            return "invalid-id"
        said = [
            self.requeue(j, verb == "requeuehold", incomplete == "1", who)
            if verb in ("requeue", "requeuehold")
            else self.exclude(j, tuple(nodes.split(",")))
            if verb == "exclude"
            else self.release(j, who)
            for j in targets
        ]
        return said[0]

    def _completed(self, job: Job) -> None:
        job.completing_until = None
        if job.state == "PENDING":
            job.nodes, job.sluid = (), self._sluid()

    def _start(self) -> None:
        free = {n for n in self.node_names if n not in self.down}
        for job in self.jobs.values():
            if job.state == "RUNNING" or job.completing_until is not None:
                free.difference_update(job.nodes)
        for job in self.jobs.values():
            if (
                job.state != "PENDING"
                or job.held
                or job.completing_until is not None
                or job.eligible_us > self.now
                or job.pending_tasks
            ):
                continue
            if len(set(self.node_names) - set(job.excluded)) < job.node_count:
                job.held, job.hold_by, job.reason = True, "constraints", "BadConstraints"
                continue
            fit = sorted(free - set(job.excluded))
            if len(fit) < job.node_count:
                job.reason = "Resources"
                continue
            job.nodes = tuple(fit[: job.node_count])
            free.difference_update(job.nodes)
            job.state, job.reason, job.start_us, job.step, job.exit, job.end_us = (
                "RUNNING",
                "None",
                self.now,
                job.saved,
                None,
                None,
            )
            job.starts += 1
            self._draw(job)
            self.log.append((self.now, "started", job))

    # --- programs -------------------------------------------------------------------------------------------------------------------

    def _draw(self, job: Job) -> None:
        """What becomes of this run, and when."""
        r, rate = self.rng, job.rate
        ends = [
            ((job.goal - job.step) / rate, "complete"),
            (job.limit_s, "timeout"),
            (r.expovariate(1 / 90_000), "transient"),
        ]
        if job.bug_at is not None and job.step < job.bug_at:
            ends.append(((job.bug_at - job.step) / rate, "bug"))
        if job.hangs_at is not None and job.step < job.hangs_at:
            ends.append(((job.hangs_at - job.step) / rate, "hang"))
        if any(n in self.bad for n in job.nodes):
            ends.append((r.uniform(300, 7200), "hardware"))
        after, job.fate = min(ends)
        job.fate_us = self.now + max(S, int(after * S))

    def _bank(self, job: Job) -> None:
        """Steps done up to now; a checkpoint every 50."""
        if job.start_us is not None and not job.hung:
            job.step = min(job.goal, job.step + int((self.now - job.start_us) / S * job.rate))
            job.start_us = self.now
        job.saved = job.step // 50 * 50

    def reached(self, job: Job) -> int:
        """The step the program is at."""
        if job.state != "RUNNING" or job.start_us is None or job.hung or job.suspended:
            return job.step
        return min(job.goal, job.step + int((self.now - job.start_us) / S * job.rate))

    def _fate(self, job: Job) -> None:
        fate, job.fate_us = job.fate, None
        if fate == "hang" and self.rng.random() < 0.9:
            self._bank(job)
            job.hung, job.hangs_at = True, None
            job.fate, job.fate_us = "timeout", self.now + int(12 * 3600 * S)
            self.log.append((self.now, "hung", job))
            return
        state, code = {
            "complete": ("COMPLETED", (0, 0)), "timeout": ("TIMEOUT", (0, 0)), "bug": ("FAILED", (1, 0)), "hardware": ("FAILED", (1, 0)),
        }.get(fate, ("FAILED", self.rng.choice([(1, 0), (0, 9), (93, 0), (0, 6)])))  # fmt: skip
        self._end(job, state, code)

    def _end(self, job: Job, state: str, code: tuple[int, int]) -> None:
        self._bank(job)
        job.ended_by, job.fate_us, job.hung, job.suspended = job.fate or state, None, False, False
        job.state, job.exit, job.end_us = state, code, self.now
        job.held = False
        job.reason = {"FAILED": "NonZeroExitCode", "TIMEOUT": "TimeLimit", "NODE_FAIL": "NodeDown"}.get(state, "None")
        job.completing_until = self.now + self.rng.choice((0, 2, 20)) * S
        self.log.append((self.now, f"ended {state}", job))
        if job.completing_until <= self.now:
            job.completing_until = None

    # --- what is read of it ---------------------------------------------------------------------------------------------------------

    def facts(self, job: Job) -> JobFacts:
        flags = {"COMPLETING"} if job.completing_until is not None else set()
        state = "SUSPENDED" if job.suspended else job.state
        return JobFacts(
            "c", job.id, state, job.submit_us, job.restarts, job.user, job.uid, job.account, job.partition, flags=frozenset(flags),
            reason=job.reason, array_job_id=job.array_job_id, array_task=job.task, array_pending=job.pending_tasks > 0,
            start_us=job.start_us, end_us=job.end_us, exit_code=job.exit[0] if job.exit else None,
            exit_signal=job.exit[1] if job.exit else None, nodes=job.nodes, excluded=job.excluded, node_count=job.node_count, gpus=job.gpus,
            held=job.held, requeue=job.requeue, batch=job.batch, comment=job.comment, sluid=job.sluid if self.sluids else None,
        )  # fmt: skip

    def records(self, job: Job) -> tuple[JobFacts, ...]:
        """All records of a job: its own, and those of its other parts behind it."""
        own = self.facts(job)
        if not job.parts:
            return (own,)
        own = replace(own, het_job_id=job.id, het_offset=0)
        return (own, *(replace(own, job_id=job.id + n, het_offset=n, sluid=None) for n in range(1, job.parts + 1)))

    def shown(self, by: str, job_id: int, task: int | None) -> tuple[JobFacts, ...]:
        """What is read of a name: all parts where it is the leader's, that part alone where it is a part's."""
        named = self.resolve(by, job_id, task, None)
        part = self.part_of(job_id) if by == "id" and not named else None
        if part is not None:
            return (self.records(part[0])[part[1]],)
        return tuple(f for j in named for f in self.records(j))

    def nodes(self) -> tuple[NodeFacts, ...]:
        busy = {n for j in self.jobs.values() if j.state == "RUNNING" for n in j.nodes}
        return tuple(
            NodeFacts(
                n, "DOWN" if n in self.down else "ALLOCATED" if n in busy else "IDLE", partitions=("gpu", "debug")
            )
            for n in self.node_names
        )

    def cluster(self) -> ClusterFacts:
        return ClusterFacts(
            "c", (24, 11), self.booted_us, 1, self.delay_s, 10.0, self.min_job_age_s, sluids=self.sluids
        )
