"""One very large Megatron-like log, streamed: for throughput and for needles in haystacks.

In: a directory, a size, a seed. Out: one file and truth.jsonl.
Always: never more than a few MB in memory; progress lines are 445 bytes, other lines about one in ten
thousand, and every attempt but the last ends in a real error.
"""

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import BinaryIO

from loggen.faults import SPECS, Scene
from loggen.model import Cause, Event, Fault, FaultKind, Job, Truth
from loggen.presets import DAY_ONE, hosts
from loggen.render import moment
from loggen.scribe import Scribe
from loggen.sheets import Sheets
from loggen.styles import style_for
from loggen.timeline import Attempt

LINE = 445
POOL = 8191
CHECKPOINT = 25_000
BATCH = 4096
SMALLEST = 1 << 18
ENDS: tuple[tuple[float, FaultKind], ...] = (
    (0.3, "gpu-xid79"),
    (0.55, "node-failure"),
    (0.8, "ecc"),
    (1.0, "none"),
)


class Tape:
    """The file, with what has been written so far in bytes and line feeds."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size, self.lines = file, 0, 0

    def add(self, data: bytes, lines: int) -> None:
        self.file.write(data)
        self.size += len(data)
        self.lines += lines


def bulk(out: str | os.PathLike[str], size: int, seed: int, *, start: datetime = DAY_ONE) -> list[Truth]:
    """Write a log of at most `size` bytes (short of it by less than two lines) and its truth."""
    if size < SMALLEST:
        raise ValueError(f"a bulk log needs {SMALLEST} bytes or more")
    root = Path(out)
    root.mkdir(parents=True, exist_ok=True)
    rng = Random(f"{seed}|bulk")
    total = size // LINE * 5 // 4
    job = Job(
        "big",
        "490000",
        "megatron-lm",
        hosts(1, 16),
        start=start,
        steps=total,
        step_s=1.4,
        checkpoint_every=CHECKPOINT,
        log_every=1,
    )
    path = root / f"{job.name}-{job.job_id}.out"
    with path.open("wb") as file:
        truth = list(attempts(Tape(file), job, size, rng))
    (root / "truth.jsonl").write_text("".join(t.as_json() + "\n" for t in truth), encoding="utf-8")
    return truth


def attempts(tape: Tape, job: Job, size: int, rng: Random) -> Iterator[Truth]:
    """Start, run, die, be started again; the last one is still running when the log ends."""
    pool = [tail(rng) for _ in range(POOL)]
    now, saved = 0.0, 0
    for i, (share, kind) in enumerate(ENDS):
        s = Scribe(job, rng, job.nodes, now=now, attempt=i)
        run = Attempt(s, Fault(), saved)
        run.startup()
        block(tape, s)
        room = int(size * share) - tape.size - (0 if kind == "none" else 40_000)
        first, last = saved + 1, saved + max(1, room // LINE)
        last = progress(tape, s, pool, first, last, size)
        saved = max(saved, last // CHECKPOINT * CHECKPOINT)
        spec, rank = SPECS[kind], rng.randrange(8, job.world - 8)
        s.now += 1.0
        if spec.script:
            spec.script(Scene(s, style_for(s), Fault(kind, rank=rank), rank, last))
        causes = block(tape, s)
        yield Truth(
            job.job_id,
            job.name,
            i,
            job.framework,
            kind,
            "running-at-end" if kind == "none" else spec.verdict,
            spec.klass,
            rank if spec.blame == "rank" else None,
            None if spec.blame == "nobody" else job.nodes[job.node_of(rank)],
            causes,
            first,
            last,
            job.steps,
            moment(job, now),
            moment(job, s.now),
            (f"{job.name}-{job.job_id}.out",),
        )
        now = s.now + 300.0


def block(tape: Tape, s: Scribe) -> tuple[Cause, ...]:
    """Write those of the scribe's events that reach this log (see `heard`)."""
    sheets = Sheets(s.job, s.rng)
    kept = [event for event in s.events if heard(s.job, event)]
    s.events.clear()
    placed = [p for event in sorted(kept, key=lambda event: event.at) for p in sheets.write(event)]
    data = b"".join(sheets.files().values())
    causes = tuple(
        Cause(c.path, c.line + tape.lines, c.offset + tape.size, c.at + tape.size, c.text)
        for p in placed
        if (c := p.cause)
    )
    tape.add(data, data.count(b"\n"))
    return causes


def heard(job: Job, event: Event) -> bool:
    return (
        event.stream in ("host", "batch") or event.rank in (0, job.world - 1) or (event.rank is None and not event.node)
    )


def tail(rng: Random) -> tuple[int, bytes]:
    """Everything of a progress line after the sample count, and the microseconds the step took."""
    took = round(1_400_000 * max(0.75, rng.gauss(1.0, 0.02)))
    text = (
        f" | elapsed time per iteration (ms): {took / 1000:.1f} | throughput per GPU (TFLOP/s/GPU): "
        f"{857_000_000 / took:.1f} | learning rate: 3.000000E-04 | global batch size:  4096 | "
        f"lm loss: {rng.uniform(1.78, 1.92):.6E} | load_balancing_loss: {rng.uniform(1.0, 1.1):.6E} "
        f"| z_loss: {rng.uniform(0.001, 0.002):.6E} | loss scale: 1.0 | "
        f"grad norm: {rng.uniform(0.2, 0.6):.3f} | params norm: {rng.uniform(811.0, 813.0):.3f} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |"
    )
    return took, text.encode()


def progress(tape: Tape, s: Scribe, pool: list[tuple[int, bytes]], first: int, last: int, size: int) -> int:
    """Progress lines `first` to `last`, with checkpoints between; returns the last step that still fitted."""
    style, total = style_for(s), b"%8d" % s.job.steps
    step = first
    while step <= last:
        stop = min(last, step + 4095, (step - 1) // CHECKPOINT * CHECKPOINT + CHECKPOINT)
        stop = min(stop, step - 1 + (size - tape.size) // LINE)
        if stop < step:
            return step - 1
        lines = list(spread(s, pool, total, step, stop))
        tape.add(b"".join(lines), len(lines))
        if stop % CHECKPOINT == 0 and stop < last:
            style.checkpoint_begin(stop)
            s.now += 20.0
            style.checkpoint_end(stop, 20.0)
            block(tape, s)
        step = stop + 1
    return last


def spread(s: Scribe, pool: list[tuple[int, bytes]], total: bytes, first: int, last: int) -> Iterator[bytes]:
    """The lines themselves; only what changes from line to line is formatted."""
    clock = s.clock()
    minute = clock.replace(second=0, microsecond=0)
    micros = begin = clock.second * 1_000_000 + clock.microsecond
    passed = 0
    head = f" [{minute:%Y-%m-%d %H:%M}:".encode()
    for step in range(first, last + 1):
        took, rest = pool[step % POOL]
        micros += took
        while micros >= 60_000_000:
            micros -= 60_000_000
            passed += 60_000_000
            minute += timedelta(minutes=1)
            head = f" [{minute:%Y-%m-%d %H:%M}:".encode()
        yield b"%b%09.6f] iteration %8d/%b | consumed samples: %12d%b\n" % (
            head,
            micros / 1e6,
            step,
            total,
            step * BATCH,
            rest,
        )
    s.now += (passed + micros - begin) / 1e6
