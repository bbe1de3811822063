"""Each fault as a script: the culprit's own lines first, then what follows from them.

In: a `Scene` (who, where, when). Out: events; those marked as cause are the truth.
Always: the spec of a kind fixes verdict and class, so truth never depends on what happened to be printed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loggen import aftermath, traps
from loggen.model import Fault, FaultKind, Verdict
from loggen.scribe import Scribe
from loggen.styles import Style

BUSES = (
    "0000:1b:00",
    "0000:43:00",
    "0000:52:00",
    "0000:61:00",
    "0000:9d:00",
    "0000:c3:00",
    "0000:d1:00",
    "0000:df:00",
)
ASYNC_ADVICE = (
    (
        "CUDA kernel errors might be asynchronously reported at some "
        "other API call, so the stacktrace below might be incorrect."
    ),
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "",
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A fault about to happen."""

    s: Scribe
    style: Style
    fault: Fault
    rank: int
    step: int

    @property
    def node(self) -> int:
        return self.s.job.node_of(self.rank)

    @property
    def host(self) -> str:
        return self.s.hosts[self.node]

    @property
    def bus(self) -> str:
        return BUSES[self.s.job.local(self.rank) % len(BUSES)]


@dataclass(frozen=True, slots=True)
class Spec:
    """What a kind of fault amounts to."""

    verdict: Verdict
    klass: str | None
    script: Callable[[Scene], None] | None = None
    blame: Literal["rank", "node", "nobody"] = "nobody"
    then: Literal["stop", "requeue", "restart"] = "stop"


def raised(scene: Scene, error: str, *, code: int = 1, tail: tuple[str, ...] = (), phase: str | None = None) -> None:
    """An exception on the culprit, its peers' cascade, and the end of the job."""
    frames = scene.style.frames(phase or scene.fault.phase)
    if scene.fault.everywhere:
        for rank in range(scene.s.job.world):
            scene.s.traceback(rank, frames, error, tail=tail, after=2.0 * scene.s.rng.random(), cause=True)
        scene.s.now += 2.5
        scene.s.flush()
    else:
        scene.s.traceback(scene.rank, frames, error, tail=tail, cause=True)
        scene.s.flush(scene.rank)
        aftermath.peers_notice(scene.s, scene.rank)
    aftermath.job_dies(scene.s, scene.rank, code)


def cuda_oom(scene: Scene) -> None:
    local = scene.s.job.local(scene.rank)
    raised(
        scene,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.62 GiB. "
        f"GPU {local} has a total capacity of 79.11 GiB of which 1.88 GiB is free. "
        "Including non-PyTorch memory, this process has 77.21 GiB memory in use.",
    )


def python_error(scene: Scene) -> None:
    raised(scene, "ValueError: expected sequence length 8192, got 8193 in batch 'web-0042'")


def no_space(scene: Scene) -> None:
    path = scene.style.shard(scene.step, scene.rank)
    raised(scene, f"OSError: [Errno 28] No space left on device: '{path}'", phase="checkpoint")


def nan_loss(scene: Scene) -> None:
    raised(scene, scene.style.nan_error.format(rank=scene.rank))


def gpu_fault(scene: Scene, lines: tuple[str, ...], error: str) -> None:
    """Kernel lines on the culprit's node, its CUDA error, everybody else's cascade."""
    s = scene.s
    for i, text in enumerate(lines):
        s.kernel(scene.node, text, after=0.00004 * i, cause=i == 0)
    s.now += 0.4 + s.rng.random()
    s.traceback(scene.rank, scene.style.frames(), error, tail=ASYNC_ADVICE)
    aftermath.watchdog_death(s, scene.rank, error.removeprefix("torch.AcceleratorError: "), 0.3)
    aftermath.peers_notice(s, scene.rank, within=6.0)
    aftermath.job_dies(s, scene.rank, -6, peer_code=-6)


def xid79(scene: Scene) -> None:
    xid = f"NVRM: Xid (PCI:{scene.bus}): "
    lines = (
        f"{xid}79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        f"NVRM: GPU {scene.bus}.0: GPU has fallen off the bus.",
        f"{xid}154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    )
    gpu_fault(scene, lines, "torch.AcceleratorError: CUDA error: unspecified launch failure")


def ecc(scene: Scene) -> None:
    xid, pid = f"NVRM: Xid (PCI:{scene.bus}): ", scene.s.pid(scene.rank)
    lines = (
        f"{xid}48, pid={pid}, name=python, DBE (double bit error): FBPA 3, subpartition 0",
        (
            f"{xid}63, pid={pid}, name=python, Row Remapper: New row "
            "(0x00000000012f4e00) marked for remapping, reset gpu to activate."
        ),
        f"{xid}45, pid={pid}, name=python, Ch 00000008",
    )
    gpu_fault(scene, lines, "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered")


def hang_silent(scene: Scene) -> None:
    """Nothing at all, until somebody ends it."""
    traps.wait(scene.s, scene.fault.wait_s)
    if scene.fault.killer != "nobody":
        aftermath.scheduler_stops(scene.s, " DUE TO TIME LIMIT" if scene.fault.killer == "time-limit" else "")


def nccl_timeout(scene: Scene) -> None:
    """After the timeout all who waited say so; the culprit prints nothing, or is behind, or looks like the rest."""
    s, job, tells = scene.s, scene.s.job, scene.fault.tells
    s.now += job.timeout_s
    limit, work = round(job.timeout_s * 1000), 40 * scene.step + 17
    waiting = [rank for rank in range(job.world) if rank != scene.rank or tells != "silence"]
    delays = {rank: 1.5 * s.rng.random() for rank in waiting}
    first = min(delays, key=lambda rank: delays[rank], default=None)
    for rank, after in delays.items():
        behind = tells == "sequence" and rank == scene.rank
        watchdog(s, rank, work - behind, limit + s.rng.randrange(5, 95), after, cause=rank == first)
    s.now += 62.5
    witness = first if first is not None else scene.rank
    aftermath.job_dies(s, witness, -6, peer_code=-6)


def watchdog(s: Scribe, rank: int, work: int, ran: int, after: float, *, cause: bool) -> None:
    """One rank's watchdog gives up on `work` after `ran` milliseconds and takes its process down a minute later."""
    limit = round(s.job.timeout_s * 1000)
    what = (
        f"[Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={work}, OpType=ALLREDUCE, "
        f"NumelIn=466119168, NumelOut=466119168, Timeout(ms)={limit}) "
        f"ran for {ran} milliseconds before timing out."
    )
    s.glog(rank, "E", "ProcessGroupNCCL.cpp:632", what, after=after, cause=cause)
    state = f"last enqueued work: {work + 2}, last completed work: {work - 1}"
    text = (
        f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] failure detected "
        f"by watchdog at work sequence id: {work} PG status: {state}"
    )
    s.glog(rank, "E", "ProcessGroupNCCL.cpp:2268", text, after=after + 0.002)
    for text in (
        "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
        "subsequent GPU operations might run on corrupted/incomplete data.",
        "To avoid data inconsistency, we are taking the entire process down.",
    ):
        s.glog(rank, "E", "ProcessGroupNCCL.cpp:681", f"[Rank {rank}] {text}", after=after + 60.0)
    aftermath.watchdog_death(s, rank, what, after + 60.01)


def host_oom(scene: Scene) -> None:
    """The kernel kills one process without a word in its own log; slurmstepd tells when the step ends."""
    s = scene.s
    aftermath.peers_notice(s, scene.rank, within=3.0)
    step = f"{s.job.job_id}.0"
    s.batch(
        f"slurmstepd: error: Detected 1 oom_kill event in StepId={step}. Some of the step tasks have been OOM Killed.",
        node=scene.node,
        cause=True,
    )
    aftermath.job_dies(s, scene.rank, -9, told="Out Of Memory")


def lost_peer(scene: Scene) -> None:
    """A node goes dark: only what its peers say of their connections is left, and torchrun takes a victim for the root."""
    s, job = scene.s, scene.s.job
    dark = [rank for rank in range(job.world) if job.node_of(rank) == scene.node]
    forms = (0.75, 1.0) if scene.fault.tells == "nothing" else (0.0, 0.75)
    aftermath.peers_notice(s, scene.rank, within=6.0, silent=dark, forms=forms, cause=True)
    witness = s.rng.choice([rank for rank in range(job.world) if rank not in dark])
    aftermath.job_dies(s, witness, 1, dead=scene.node)


def segfault(scene: Scene) -> None:
    crash(scene)
    aftermath.peers_notice(scene.s, scene.rank)
    aftermath.job_dies(scene.s, scene.rank, -11)


def crash(scene: Scene) -> None:
    """What faulthandler leaves of a process that touched the wrong address."""
    rows = [
        "Fatal Python error: Segmentation fault",
        "",
        f"Thread 0x00007f{scene.rank:03x}a4b8640 (most recent call first):",
    ]
    for path, number, function, _ in reversed(scene.style.frames()):
        rows.append(f'  File "{path}", line {number} in {function}')
    rows += ["", "Extension modules: numpy._core._multiarray_umath, torch._C, torch._C._fft (total: 3)"]
    scene.s.block(scene.rank, rows, stream="err", cause=0)


def worker_restart(scene: Scene) -> None:
    """One worker crashes; torchelastic stops the group on every node and starts it again."""
    s, api = scene.s, "elastic/multiprocessing/api.py"
    crash(scene)
    aftermath.peers_notice(s, scene.rank, silent=[r for r in range(s.job.world) if s.job.node_of(r) != scene.node])
    for node in range(len(s.hosts)):
        after = 0.0 if node == scene.node else 5.0
        first = node * s.job.gpus_per_node
        for rank in range(first, first + s.job.gpus_per_node):
            if rank != scene.rank:
                s.agent(
                    node,
                    "W",
                    f"{api}:900",
                    f"Sending process {s.pid(rank)} closing signal SIGTERM",
                    after=after,
                )
        if node == scene.node:
            text = (
                f"failed (exitcode: -11) local_rank: {s.job.local(scene.rank)} "
                f"(pid: {s.pid(scene.rank)}) of binary: /opt/env/bin/python"
            )
            s.agent(node, "E", f"{api}:874", text, after=after + 0.3)
            s.agent(
                node,
                "I",
                "elastic/agent/server/api.py:879",
                "[default] Worker group FAILED. 3/3 attempts left; will restart worker group",
                after=after + 0.5,
            )
        else:
            s.agent(
                node,
                "I",
                "elastic/agent/server/api.py:897",
                "[default] Detected 1 new nodes from group_rank=0; will restart worker group",
                after=after,
            )
        s.agent(node, "I", "elastic/agent/server/api.py:523", "[default] Stopping worker group", after=after + 0.6)
        s.agent(
            node,
            "I",
            "elastic/agent/server/api.py:525",
            "[default] Rendezvous'ing worker group",
            after=after + 0.9,
        )
    s.now += 9.0
    workers_start(s)


def workers_start(s: Scribe) -> None:
    """The agents found each other again."""
    for node in range(len(s.hosts)):
        text = "[default] Rendezvous complete for workers. Result:"
        s.agent(node, "I", "elastic/agent/server/api.py:525", text)
        for row in ("  restart_count=1", f"  master_addr={s.hosts[0]}", f"  group_rank={node}"):
            s.put("agent", row, node=node)
        s.agent(node, "I", "elastic/agent/server/api.py:533", "[default] Starting worker group", after=0.1)
    s.now += 0.5


def node_failure(scene: Scene) -> None:
    s = scene.s
    s.now += 180.0
    s.batch(f"srun: error: Node failure on {scene.host}", cause=True)
    aftermath.scheduler_stops(s, " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", cause=False, dead=scene.node)


def stopped(reason: str) -> Callable[[Scene], None]:
    return lambda scene: aftermath.scheduler_stops(scene.s, reason)


SPECS: dict[FaultKind, Spec] = {
    "none": Spec("completed", None),
    "cuda-oom": Spec("crashed", "cuda-oom", cuda_oom, "rank"),
    "python-error": Spec("crashed", "user-code", python_error, "rank"),
    "gpu-xid79": Spec("crashed", "gpu-hardware", xid79, "rank"),
    "ecc": Spec("crashed", "gpu-hardware", ecc, "rank"),
    "nccl-timeout": Spec("stalled", "collective-timeout", nccl_timeout, "rank"),
    "hang-silent": Spec("stalled", "hang", hang_silent),
    "host-oom": Spec("crashed", "host-oom", host_oom, "rank"),
    "no-space": Spec("crashed", "storage-space", no_space, "rank"),
    "nan-loss": Spec("crashed", "numerics", nan_loss, "rank"),
    "segfault": Spec("crashed", "native-crash", segfault, "rank"),
    "preempted": Spec("preempted", "preempted", stopped(" DUE TO PREEMPTION"), then="requeue"),
    "time-limit": Spec("time-limit", "time-limit", stopped(" DUE TO TIME LIMIT")),
    "cancelled": Spec("cancelled", "cancelled", stopped("")),
    "node-failure": Spec("crashed", "node-lost", node_failure, "node", then="requeue"),
    "slowdown": Spec("completed", "slow-path"),
    "restart-in-job": Spec("crashed", "native-crash", worker_restart, "rank", then="restart"),
    "lost-peer": Spec("crashed", "peer-lost", lost_peer, "node"),
}
