"""A live watch under load: many growing logs, or one that is loud beside many that are quiet, with real readers and the shipped rules.

In: how many files, lines a second, for how long. Out: whether every byte came once (against the writer's own record), how long lines waited until
the engine had judged with them, memory of every process, CPU time. The writer is a process of its own; it tells what it wrote when.
Exit status 1 if a byte is missing or came twice.

    python bench/livespeed.py [--files 10000] [--lines 100000] [--seconds 120] [--every 10] [--loud MIB_PER_S] [--folder DIR]
"""

from __future__ import annotations

import argparse
import bisect
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
import zlib
from array import array
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from defib.adapters import rulefiles
from defib.adapters.metrics import resident_bytes
from defib.adapters.mounts.router import Setup
from defib.adapters.mounts.source import Mounts
from defib.adapters.tail.clock import SystemClock
from defib.adapters.tail.pace import looking
from defib.adapters.tail.session import Session
from defib.engine.core import State
from defib.engine.drive import Drive
from defib.engine.observe import Observer
from defib.engine.ports import Data, Opened, Skipped, SourceItem

CHATTER = (
    "[{stamp}][rank{rank}] INFO dataloader: prefetched shard {n} of 4096 in 12.4 ms",
    "{stamp} INFO [trainer.py:412] gradient bucket {n} reduced over 64 ranks",
    "node{rank:03}: NCCL INFO Channel {n}/0 : 3[3] -> 4[4] via P2P/CUMEM",
    "  warnings.warn('the given buffer is not writable, batch {n}')",
    "{stamp} DEBUG allocator: 41.2 GiB reserved, 38.9 GiB active, fragment {n}",
)
STEP = (
    " iteration {n}/ 1000000 | consumed samples: {n} | elapsed time per iteration (ms): 400.0 | learning rate: 1.000E-04 | "
    "global batch size:    64 | lm loss: 2.012345E+00 | loss scale: 1.0 | grad norm: 1.203 |"
)
DRAIN_S = 300.0  # for what could not be read meanwhile
SAMPLE = 97  # of so many writes one is timed


BLANK = "@@@@@@@@@@@@"  # where the step of a line goes


def block(rng: Random, lines: int, at: int) -> list[bytes]:
    """Lines as a trainer writes them, cut where a step goes: one of twenty tells progress."""
    out = []
    for n in range(at, at + lines):
        form = STEP if n % 20 == 0 else CHATTER[n % len(CHATTER)]
        out.append(form.format(n=BLANK if form is STEP else n, rank=rng.randrange(64), stamp="2026-12-01 10:00:00,123"))
    return ("\n".join(out) + "\n").encode().split(BLANK.encode())


def filled(parts: list[bytes], step: int) -> tuple[bytes, int]:
    """The lines, with steps that go on from `step`; and the last of them."""
    if len(parts) == 1:
        return parts[0], step
    out = [parts[0]]
    for n, part in enumerate(parts[1:]):
        out += (b"%12d" % (step + 1 + n // 2), part)  # twice in a line: as the iteration and as the samples
    return b"".join(out), step + len(parts) // 2


def write(folder: str, count: int, rate: int, seconds: float, loud: int, pipe: Connection) -> None:
    """The writer: every file gets its lines once a second, spread over it; samples of (file, end of what was written, when) come back."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rng = Random(1)
    paths = [os.path.join(folder, f"d{n // 100:03}", f"slurm-{n}.out") for n in range(count)]
    handles = []
    for n, path in enumerate(paths):
        if n % 100 == 0:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        handles.append(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644))
    each = max(1, rate // max(1, count))
    ready = [block(rng, each, k * each) for k in range(60)]
    sizes, steps, samples, lines = [0] * count, [0] * count, [], 0
    pipe.send(paths)
    pipe.recv()
    began, writes, late = time.monotonic(), 0, 0.0
    noise, _ = filled(block(rng, 80_000, 0), 0)
    big = (
        os.open(os.path.join(folder, "slurm-999999.out"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        if loud
        else None
    )
    poured = 0
    while (now := time.monotonic() - began) < seconds:
        # Rounds of one second; where the lines of one are not enough for every file, they go to different ones in turn.
        due = int(min(now, seconds) * max(1, rate // each))
        while writes < due:
            n = writes % count
            data, steps[n] = filled(ready[(writes // count) % len(ready)], steps[n])
            os.write(handles[n], data)
            sizes[n] += len(data)
            lines += each
            if writes % SAMPLE == 0:
                samples.append((n, sizes[n], time.monotonic()))
            writes += 1
        if big is not None and poured < now * loud * 1024 * 1024:
            poured += os.write(big, noise)  # a block at a time: a disk that cannot keep up slows only this log
        late = max(late, time.monotonic() - began - now)
        time.sleep(0.005)
    pipe.send((samples, sizes, lines, poured, late))


@dataclass
class Seen:
    """Of one log: how far it was judged when, and a checksum of what came. at: ends, and when all up to there had been judged."""

    path: str
    end: int = 0
    crc: int = 0
    ends: array[int] = field(default_factory=lambda: array("Q"))
    at: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class Meter:
    """Between the source and the engine: when the engine asks for more, everything handed over before has been judged."""

    session: Session
    seen: dict[int, Seen] = field(default_factory=dict)
    polls: int = 0
    slowest: float = 0.0
    _fresh: list[Seen] = field(default_factory=list)
    _left: float = 0.0

    def poll(self) -> list[SourceItem] | None:
        now = time.monotonic()
        if self._left:
            self.slowest = max(self.slowest, now - self._left)
        for s in self._fresh:
            if not s.ends or s.ends[-1] != s.end:
                s.ends.append(s.end)
                s.at.append(now)
        self._fresh = []
        items = self.session.poll()
        self.polls += 1
        for item in items or ():
            if isinstance(item, Opened):
                self.seen[item.stream] = Seen(item.id.path)
            elif isinstance(item, Data):
                s = self.seen[item.stream]
                s.end += len(item.data)
                s.crc = zlib.crc32(item.data, s.crc)
                self._fresh.append(s)
            elif isinstance(item, Skipped):
                raise SystemExit("a hole where nobody left one")
        self._left = time.monotonic()
        return items

    def close(self) -> None:
        self.session.close()


class Silent:
    """Nobody listens to the effects."""

    def apply(self, effects: list[object]) -> None:
        pass


def cpu_s(pid: int) -> float:
    """CPU time of another process, seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def judge(m: Meter, paths: list[str], told: tuple[Any, ...], folder: str, loud: int) -> bool:
    """Every byte once, and how long the sampled lines waited."""
    samples, sizes, lines, poured, late = told
    by_path = {s.path: s for s in m.seen.values()}
    wrong = 0
    for path, size in zip(paths, sizes, strict=True):
        s = by_path.get(path)
        whole = s is not None and s.end == size and s.crc == zlib.crc32(Path(path).read_bytes())
        wrong += not whole and size > 0
    waits = []
    for n, end, at in samples:
        s = by_path.get(paths[n])
        where = bisect.bisect_left(s.ends, end) if s is not None else 0
        waits.append(s.at[where] - at if s is not None and where < len(s.ends) else float("inf"))
    waits.sort()
    pick = lambda q: waits[min(len(waits) - 1, int(q * len(waits)))] if waits else float("nan")  # noqa: E731
    print(
        f"written: {lines:,} lines, {sum(sizes) / 1e6:,.0f} MB in {len(paths):,} files; the writer was late by {late:.2f} s at most"
    )
    print(f"nothing lost, nothing twice: {'yes' if not wrong else f'NO, {wrong} files differ'}")
    print(
        f"line to verdict of {len(waits):,} samples: median {pick(0.5):.2f} s, p99 {pick(0.99):.2f} s, most {waits[-1] if waits else 0:.2f} s"
    )
    if loud:
        s = by_path.get(os.path.join(folder, "slurm-999999.out"))
        print(
            f"the loud log: {poured / 1e6:,.0f} MB written, {(s.end if s else 0) / 1e6:,.0f} MB read; the rest stays in its file"
        )
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--every", type=float, default=10)
    parser.add_argument("--loud", type=int, default=0, metavar="MIB_PER_S")
    parser.add_argument("--folder", default=None)
    args = parser.parse_args()
    folder = os.path.realpath(tempfile.mkdtemp(dir=args.folder))
    needed = args.seconds * (args.lines * 100 + args.loud * 2**20)
    if needed > 0.5 * shutil.disk_usage(folder).free:
        os.rmdir(folder)
        parser.error(f"{needed / 1e9:.0f} GB would be written, more than half of what is free")
    try:
        return 0 if measure(args, folder) else 1
    finally:
        shutil.rmtree(folder)


def measure(args: argparse.Namespace, folder: str) -> bool:
    ours, theirs = multiprocessing.Pipe()
    words = (folder, args.files, args.lines, args.seconds, args.loud, theirs)
    writer = multiprocessing.get_context("spawn").Process(target=write, args=words)
    writer.start()
    paths = ours.recv()
    loaded = rulefiles.load()
    source = Mounts([os.fsencode(folder)], SystemClock())
    source.begin(Setup(loaded.book.paths, None, looking(int(args.every * 1e6))))
    state, ends, told = State(loaded.book), 0.0, []
    most: dict[str, float] = {"main": 0, "readers": 0, "cpu": 0}

    def enough() -> bool:
        nonlocal ends
        pids = [r.process.pid for r in source.readers() if r.process.pid]
        most["main"] = max(most["main"], resident_bytes())
        most["readers"] = max(most["readers"], sum(map(resident_bytes, pids)))
        most["cpu"] = max(most["cpu"], sum(map(cpu_s, pids)))
        if not told and ours.poll():
            told.append(ours.recv())
            ends = time.monotonic() + 2 * args.every + 5
        if not ends or time.monotonic() < ends:
            return False
        unread = sum(told[0][1]) + (0 if args.loud else told[0][3]) - sum(s.end for s in m.seen.values())
        return unread <= 0 or time.monotonic() >= ends + DRAIN_S

    m = Meter(Session(source, enough, lambda: None))
    spent = time.process_time()
    ours.send("go")
    try:
        Drive(Observer(loaded.book, loaded.databases), state, Silent()).run(m)
    finally:
        m.close()
    writer.join()
    good = judge(m, paths, told[0], folder, args.loud)
    here, lines = time.process_time() - spent, told[0][2]
    print(f"memory at most: {most['main'] / 2**20:.0f} MiB here, {most['readers'] / 2**20:.0f} MiB in the readers")
    print(f"CPU for a million lines: {here / lines * 1e6:.1f} s here, {most['cpu'] / lines * 1e6:.1f} s in the readers")
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(f"{m.polls} polls, slowest turn of the engine {m.slowest:.2f} s; {waiting:.1f} processes want each processor")
    for path, why in list(source.unread.items())[:3]:
        print(f"not followed: {os.fsdecode(path)}: {why}")
    return good


if __name__ == "__main__":
    sys.exit(main())
