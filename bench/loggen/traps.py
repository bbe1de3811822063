"""Lines of healthy runs that look alarming, and NCCL's chatter.

In: a scribe. Out: events that are nobody's fault. Always: none is marked as a cause; training goes on.
"""

from loggen.scribe import TORCH, Scribe

DUMP = {
    "abort_on_error": "False",
    "accumulate_allreduce_grads_in_fp32": "True",
    "check_for_nan_in_loss_and_grad": "True",
    "ckpt_error_handler": "raise",
    "distributed_timeout_minutes": "10",
    "error_injection_rate": "0",
    "error_injection_type": "transient_error",
    "exit_signal_handler": "False",
    "log_num_zeros_in_grad": "False",
    "nccl_timeout": "600000",
    "on_cuda_out_of_memory": "fail",
    "rerun_mode": "validate_results",
    "retry_on_failed_download": "True",
}

ADVICE = (
    (
        "hint: if you see CUDA out of memory, lower micro_batch_size "
        "or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    ),
    "note: For debugging consider passing CUDA_LAUNCH_BLOCKING=1 (see docs/debugging.md)",
    ("In case of a hang, TORCH_NCCL_DUMP_ON_TIMEOUT=1 writes a trace before the watchdog terminates the process."),
    "data check finished: 128 shards, 0 errors, 0 failed",
    "monitor: loss z-score (+nanz), norm z-score (+nanz) until 128 values are in",
    "health check on start: ECC errors: 0, Xid: none, link flaps: 0",
)


def startup_traps(s: Scribe) -> None:
    """Dump of the configuration, advice, warnings in colour, a bar of data preparation."""
    s.out(0, "------------------------ arguments ------------------------")
    for name, value in DUMP.items():
        s.out(0, f"  {name} {'.' * (46 - len(name))} {value}")
    s.out(0, "-------------------- end of arguments ---------------------")
    for text in s.rng.sample(ADVICE, 4):
        s.out(0, text)
    s.err(
        0,
        "\x1b[33m\x1b[1mWARNING\x1b[0m TORCH_NCCL_AVOID_RECORD_STREAMS is the default now, setting it has no effect",
    )
    s.err(
        s.job.world - 1,
        "\x1b[31mcould not import flash_attn_3\x1b[0m, falling back to flash_attn (this is not an error)",
    )
    total = 64_000
    for i in range(9):
        done = total * i // 8
        cells = "█" * i + " " * (8 - i)
        text = (
            f"\rMap (num_proc=8): {100 * i // 8:3d}%|{cells}| {done}/{total} [00:0{i}<00:0{8 - i}, 8123.44 examples/s]"
        )
        s.put("err", text, rank=0, end="\n" if i == 8 else "")
        s.now += 1.0


def midway_trap(s: Scribe, rank: int) -> None:
    """A caught and retried error with its traceback; the next step shows that it did no harm."""
    pick = s.rng.randrange(3)
    if pick == 0:
        frames = (("/home/ada/train/track.py", 57, "push", "response = session.post(url, json=row, timeout=10)"),)
        s.err(rank, "metrics server did not answer, will retry (1/5):")
        s.traceback(
            rank,
            frames,
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='metrics', port=443): Read timed out.",
        )
    elif pick == 1:
        frames = (("/home/ada/train/data.py", 140, "read", "sample = decode(raw)"),)
        s.traceback(rank, frames, "ValueError: sample 81233 has no tokens")
        s.err(rank, "skipped 1 bad sample, going on")
    else:
        s.err(
            rank,
            f"{TORCH}/optim/lr_scheduler.py:182: UserWarning: Detected "
            "call of `lr_scheduler.step()` before `optimizer.step()`.",
        )
        s.out(rank, "gc: 3 failed weakrefs cleared, 0 errors")


def exit_noise(s: Scribe) -> None:
    """What healthy runs print after their last step."""
    text = "Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources."
    for rank in range(min(4, s.job.world)):
        s.glog(rank, "W", "ProcessGroupNCCL.cpp:1524", text, after=0.1 * rank)


def retried(s: Scribe, rank: int) -> None:
    """An error that is caught, told of and got over."""
    pick = s.rng.randrange(3)
    if pick == 0:
        local = s.job.local(rank)
        frames = (("/home/ada/train/batching.py", 91, "fit", "loss = model(batch[:size])"),)
        error = (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.25 GiB. "
            f"GPU {local} has a total capacity of 79.11 GiB of which 3.40 GiB is free."
        )
        s.traceback(rank, frames, error)
        s.err(rank, "caught it; trying again with micro batch 4 instead of 8")
    elif pick == 1:
        frames = (("/home/ada/train/shards.py", 33, "open", "return fs.open(path, 'rb')"),)
        s.traceback(rank, frames, "TimeoutError: [Errno 110] Connection timed out")
        s.err(rank, "shard web-0113 not reachable, retry 1 of 5 in 2 s")
    else:
        s.err(rank, "warning: NaN in the gradients of 1 micro batch, batch skipped, training goes on")
        s.err(rank, "telemetry: upload failed: HTTP 503, dropped 12 points")


def lr_stage(s: Scribe, stage: int) -> None:
    """The schedule's next stage."""
    s.out(0, f"lr scheduler: stage {stage} of 5 ends, learning rate now {3e-4 * 0.7**stage:.3e}")


def wait(s: Scribe, seconds: float) -> None:
    """Let time pass in which nothing is done; a tracker's spinner may go on turning."""
    until, every = s.now + seconds, s.job.habits.spinner_s
    turn = 0
    while every and s.now + every <= until:
        s.now += every
        s.put("err", f"\rwandb: {'|/-'[turn % 3]} 0.012 MB of 0.012 MB uploaded", rank=0, end="")
        turn += 1
    s.now = until


def nccl_chatter(s: Scribe, lines: int) -> None:
    """`lines` NCCL INFO lines for each rank, spread over the start-up."""
    world = s.job.world
    for rank in range(world if lines else 0):
        node, local = s.job.node_of(rank), s.job.local(rank)
        head = f"{s.hosts[node]}:{s.pid(rank)}:{s.pid(rank)} [{local}] NCCL INFO "
        fixed = (
            f"Bootstrap : Using ib0:10.12.{node}.{20 + local}<0>",
            "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
            "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.12.0.20<0>",
            "NCCL_IB_TIMEOUT set by environment to 22.",
            f"Trees [0] {(rank + 1) % world}/-1/-1->{rank}->{rank - 1}",
        )
        for i in range(lines):
            if i == lines - 1:
                text = (
                    f"ncclCommInitRank comm 0x{0x55D0_0000 + rank * 4096:x} rank "
                    f"{rank} nranks {world} cudaDev {local} - Init COMPLETE"
                )
            elif i < len(fixed):
                text = fixed[i]
            else:
                peer = (rank + 1 + i) % world
                way = "P2P/CUMEM/read" if s.job.node_of(peer) == node else f"NET/IB/{local}/GDRDMA"
                text = f"Channel {i % 16:02d}/0 : {rank}[{local}] -> {peer}[{s.job.local(peer)}] via {way}"
            s.put("nccl", head + text, rank=rank, after=3.0 * i / lines + 0.2 * s.rng.random())
    s.now += 3.5 if lines else 0.0
