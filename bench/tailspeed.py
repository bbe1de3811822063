"""What following costs: CPU time per live log and poll, with many real files, on the machine it runs on.

In: how many files. Out: microseconds per file for the first reading, for a poll in which nothing is new (through kept descriptors, and by
path), for a poll in which every file has a new line; and the share of one core at the default pace.

    python bench/tailspeed.py [--files 10000] [--handles 12000]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

from defib.adapters.tail.files import SystemFiles
from defib.adapters.tail.pace import SECOND, Pace
from defib.adapters.tail.source import TailSource
from defib.engine.ports import Data


class Clock:
    """The bench's own time."""

    us = 1_000 * SECOND

    def now_us(self) -> int:
        return self.us

    def sleep_us(self, us: int) -> None:
        self.us += us


def rounds(source: TailSource, clock: Clock, seconds: float) -> tuple[float, int, int]:
    """(CPU seconds, polls of a log, logs with new bytes) until so much time has passed and nothing is left to read."""
    until, fresh, polls = clock.us + int(seconds * SECOND), 0, 0
    tracks = len(source._tracks)
    began = time.process_time()
    while clock.us < until or source.behind:
        before = clock.us
        items = source.poll() or []
        fresh += sum(isinstance(i, Data) for i in items)
        polls += tracks * (clock.us - before) // SECOND
    return time.process_time() - began, polls, fresh


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--handles", type=int, default=12_000)
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder = Path(tempfile.mkdtemp()).resolve()
    try:
        measure(folder, args.files, min(args.handles, hard - 200))
    finally:
        shutil.rmtree(folder)


def measure(folder: Path, count: int, handles: int) -> None:
    paths = [folder / f"slurm-{n}.out" for n in range(count)]
    header = b"".join(b"setting %03d of the run\n" % n for n in range(300))
    for path in paths:
        path.write_bytes(header)
    clock, never = Clock(), 10**9 * SECOND
    hot = Pace(
        handles=handles, warm_after_us=never, cold_after_us=never, list_us=never, poll_max_us=never, poll_us=SECOND
    )
    for name, look_us in (("kept descriptor", never), ("by path", 1)):
        pace = Pace(**{**{f: getattr(hot, f) for f in hot.__slots__}, "look_us": look_us, "looks_per_s": 10**9})
        source = TailSource([os.fsencode(folder)], (), SystemFiles((os.fsencode(folder),)), clock, pace=pace)
        first, _, _ = rounds(source, clock, 0.1)
        idle, polls, _ = rounds(source, clock, 10)
        for path in paths:
            with path.open("ab") as f:
                f.write(b"step 1234 loss 1.2345 a line like any other of a training log\n")
        grown, _, fresh = rounds(source, clock, 1.5)
        print(
            f"{name:>16}: first {first / count * 1e6:6.1f} us a file, idle {idle / max(1, polls) * 1e6:5.1f} us a poll, "
            f"with a new line {grown / max(1, fresh) * 1e6:5.1f} us"
        )
        source.close()
    source = TailSource(
        [os.fsencode(folder)], (), SystemFiles((os.fsencode(folder),)), clock, pace=Pace(handles=handles)
    )
    rounds(source, clock, 5)
    for seconds, state in ((50, "hot"), (400, "warm"), (600, "cold")):
        spent, _, _ = rounds(source, clock, seconds)
        print(f"{count} quiet logs, {state:>4}, at the default pace: {spent / seconds:6.1%} of a core")
    source.close()
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
