"""What the others print once somebody has died: peers, torchrun, srun, slurmstepd.

In: a scribe, who died and how. Out: events after `scribe.now`. Always: nothing here is marked as a cause.
"""

from collections.abc import Iterable, Mapping, Sequence

from loggen.scribe import TORCH, Scribe

SIGNALS = {6: "Aborted", 9: "Killed", 11: "Segmentation fault", 15: "Terminated"}
NAMES = {6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
C10D = "/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
GAVE_UP = "remote process exited or there was a network error, NCCL version 2.26.2"
RULE = "=" * 60


def spans(numbers: Iterable[int]) -> str:
    """0-3,7 as Slurm writes sets."""
    parts: list[list[int]] = []
    for n in sorted(numbers):
        if parts and n == parts[-1][1] + 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def frames_of_crash(rank: int, what: str) -> list[str]:
    """The native stack torch prints when its watchdog thread ends."""
    base = 0x7F00_0000_0000 + rank * 0x1000_0000
    places = (
        ("c10::Error::Error(c10::SourceLocation, std::string)", "libc10.so"),
        (f"c10d::ProcessGroupNCCL::{what}", "libtorch_cuda.so"),
        ("c10d::ProcessGroupNCCL::Watchdog::runLoop()", "libtorch_cuda.so"),
    )
    rows = [
        f"frame #{i}: {name} + {0x57 + 0x119 * i:#x} ({base + 0x1A2B3C * i:#x} in {TORCH}/lib/{library})"
        for i, (name, library) in enumerate(places)
    ]
    return [
        *rows,
        f"frame #3: <unknown function> + 0x94ac3 ({base + 0x94AC3:#x} in /lib/x86_64-linux-gnu/libc.so.6)",
        "",
    ]


def watchdog_death(s: Scribe, rank: int, reason: str, after: float, *, cause: bool = False) -> None:
    """The watchdog thread rethrows `reason`, which ends the process by SIGABRT."""
    text = (
        f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: {reason}"
    )
    s.glog(rank, "E", "ProcessGroupNCCL.cpp:1895", text, after=after, cause=cause)
    body = ["Exception raised from checkTimeout at " + C10D + ":632 (most recent call first):"]
    body += frames_of_crash(rank, "WorkNCCL::checkTimeout")
    body += ["terminate called after throwing an instance of 'c10::DistBackendError'", f"  what():  {text}"]
    s.block(rank, body, stream="err", after=after + 0.01)


def lost_peer(s: Scribe, rank: int, peer: str, after: float, form: float, *, cause: bool = False) -> None:
    """One rank notices that another is gone: by socket, by exception, or through the store.

    peer: its address; form: 0 to 1, below 0.75 a line names the peer.
    cause: nothing better will be said, so these lines are the cause.
    """
    local, pid = s.job.local(rank), s.pid(rank)
    host = s.hosts[s.job.node_of(rank)]
    gone = f"socketProgress: Connection closed by remote peer {peer}"
    if form < 0.75:
        head = f"{host}:{pid}:{pid + 900} [{local}]"
        s.put("nccl", f"{head} misc/socket.cc:71 NCCL WARN {gone}", rank=rank, after=after, cause=cause)
        s.put("nccl", f"{head} NCCL INFO transport/net_socket.cc:506 -> 6", rank=rank, after=after + 0.001)
    if form < 0.5:
        frames = (
            ("/home/ada/train/train.py", 301, "main", "dist.all_reduce(loss)"),
            (f"{TORCH}/distributed/c10d_logger.py", 81, "wrapper", "return func(*args, **kwargs)"),
            (
                f"{TORCH}/distributed/distributed_c10d.py",
                2810,
                "all_reduce",
                "work = group.allreduce([tensor], opts)",
            ),
        )
        tail = (
            ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."),
            "Last error:",
            gone,
        )
        error = f"torch.distributed.DistBackendError: NCCL error in: {C10D}:3690, {GAVE_UP}"
        s.traceback(rank, frames, error, tail=tail, after=after + 0.05, cause=cause)
    elif form < 0.9:
        watchdog_death(s, rank, f"NCCL error: {GAVE_UP}", after + 0.05, cause=cause)
    else:
        text = f"[c10d] recvValue failed on SocketImpl(fd={s.rng.randrange(20, 99)}): Failed to recv, got 0 bytes."
        s.glog(
            rank,
            "W",
            "TCPStore.cpp:125",
            f"{text} Connection was likely closed. Did the remote server shutdown or crash?",
            after=after,
            cause=cause,
        )


def peers_notice(
    s: Scribe,
    culprit: int,
    *,
    within: float = 4.0,
    silent: Sequence[int] = (),
    forms: tuple[float, float] = (0.0, 1.0),
    cause: bool = False,
) -> None:
    """Every other rank notices within `within` seconds; time then stands at the last of them."""
    host = s.hosts[s.job.node_of(culprit)]
    start, (low, high) = 0.3, forms
    for rank in range(s.job.world):
        if rank != culprit and rank not in silent:
            after = start + within * s.rng.random()
            port = s.rng.randrange(33000, 60000)
            lost_peer(s, rank, f"{host}.cluster<{port}>", after, low + (high - low) * s.rng.random(), cause=cause)
    s.now += start + within + 0.2


def agent_report(s: Scribe, node: int, dead: Mapping[int, int], after: float) -> None:
    """torchrun on one node: stop the siblings, then its table of failures, the first first."""
    job, api = s.job, "elastic/multiprocessing/api.py"
    ranks = range(node * job.gpus_per_node, (node + 1) * job.gpus_per_node)
    first = next(iter(dead))
    for rank in ranks:
        if rank not in dead:
            s.agent(node, "W", f"{api}:900", f"Sending process {s.pid(rank)} closing signal SIGTERM", after=after)
    code = dead[first]
    text = (
        f"failed (exitcode: {code}) local_rank: {job.local(first)} (pid: {s.pid(first)}) of binary: /opt/env/bin/python"
    )
    s.agent(node, "E", f"{api}:874", text, after=after + 0.4)
    rows = [
        "Traceback (most recent call last):",
        '  File "/opt/env/bin/torchrun", line 8, in <module>',
        "    sys.exit(main())",
    ]
    rows += [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        RULE,
        "train.py FAILED",
        "-" * 60,
        "Failures:",
    ]
    order = [rank for rank in dead if rank != first]
    for i, rank in enumerate(order, start=1):
        rows += failure_rows(s, node, i, rank, dead[rank], after)
    rows += ["  <NO_OTHER_FAILURES>"] if not order else []
    rows += [
        "-" * 60,
        "Root Cause (first observed failure):",
        *failure_rows(s, node, 0, first, code, after),
        RULE,
    ]
    for row in rows:
        s.put("agent", row, node=node, after=after + 0.6)


def failure_rows(s: Scribe, node: int, index: int, rank: int, code: int, after: float) -> list[str]:
    """One entry of torchrun's table."""
    trace = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    if code < 0:
        trace = f"Signal {-code} ({NAMES[-code]}) received by PID {s.pid(rank)}"
    return [
        f"[{index}]:",
        f"  time      : {s.clock(node, after):%Y-%m-%d_%H:%M:%S}",
        f"  host      : {s.hosts[node]}",
        f"  rank      : {rank} (local_rank: {s.job.local(rank)})",
        f"  exitcode  : {code} (pid: {s.pid(rank)})",
        "  error_file: <N/A>",
        f"  traceback : {trace}",
    ]


def ended(code: int) -> str:
    """How srun words the end of a task."""
    if code > 0:
        return f"Exited with exit code {code}"
    return SIGNALS[-code] + (" (core dumped)" if code in (-6, -11) else "")


def job_dies(
    s: Scribe, culprit: int, code: int, *, peer_code: int = 1, told: str = "", dead: int | None = None
) -> None:
    """torchrun and srun take the job down; `code` is the culprit's exit code (negative: signal).

    dead: a node that cannot speak any more.
    """
    job, step = s.job, f"{s.job.job_id}.0"
    home = job.node_of(culprit)
    order = [home, *(n for n in range(len(s.hosts)) if n not in (home, dead))]
    agents = job.launcher == "torchrun"
    for i, node in enumerate(order if agents else ()):
        ranks = range(node * job.gpus_per_node, (node + 1) * job.gpus_per_node)
        dead = {culprit: code} if node == home else {}
        dead |= {rank: peer_code for rank in ranks if rank != culprit and s.rng.random() < 0.4}
        agent_report(s, node, dead or {ranks[0]: peer_code}, 0.5 + 0.3 * i)
    s.now += 1.5 + (0.3 * len(order) if agents else 0.0)
    first = told or ended(1 if agents else code)
    s.batch(f"srun: error: {s.hosts[home]}: task {job.task_of(culprit)}: {first}", node=home)
    s.batch(f"srun: Terminating StepId={step}", after=0.2)
    why = s.rng.choice((" DUE TO TASK FAILURE", ""))
    s.batch(f"slurmstepd: error: *** STEP {step} ON {s.hosts[0]} CANCELLED AT {s.stamp(0)}{why} ***", after=0.3)
    s.batch("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", after=0.4)
    per_node = 1 if agents else job.gpus_per_node
    for node in s.rng.sample(order, len(order)):
        tasks = [t for t in range(node * per_node, (node + 1) * per_node) if t != job.task_of(culprit)]
        if tasks:
            word = "task" if len(tasks) == 1 else "tasks"
            text = f"srun: error: {s.hosts[node]}: {word} {spans(tasks)}: {ended(1 if agents else peer_code)}"
            s.batch(text, node=node, after=0.6)
    s.now += 2.0


def scheduler_stops(s: Scribe, reason: str, *, cause: bool = True, dead: int | None = None) -> None:
    """slurmstepd tells of a cancellation; the agents of all nodes but a dead one pass it on."""
    alive = [node for node in range(len(s.hosts)) if node != dead]
    job_id, host, when = s.job.job_id, s.hosts[alive[0] if alive else 0], s.stamp(0)
    s.batch("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.")
    s.batch(
        f"slurmstepd: error: *** JOB {job_id} ON {host} CANCELLED AT {when}{reason} ***",
        after=0.01,
        cause=cause,
    )
    s.batch(
        f"slurmstepd: error: *** STEP {job_id}.0 ON {host} CANCELLED AT {when}{reason} ***",
        after=0.02,
        cause=cause,
    )
    if s.job.launcher == "torchrun":
        for node in alive:
            api, first = "elastic/multiprocessing/api.py", node * s.job.gpus_per_node
            s.agent(
                node,
                "W",
                "elastic/agent/server/api.py:719",
                "Received 15 death signal, shutting down workers",
                after=0.1,
            )
            for rank in range(first, first + s.job.gpus_per_node):
                s.agent(
                    node,
                    "W",
                    f"{api}:900",
                    f"Sending process {s.pid(rank)} closing signal SIGTERM",
                    after=0.2,
                )
    s.now += 3.0
    for node in alive:
        task = s.job.task_of(node * s.job.gpus_per_node)
        s.batch(f"srun: error: {s.hosts[node]}: task {task}: Terminated", node=node, after=0.3 * s.rng.random())
    s.now += 1.0
