"""What a watch's memory costs: opening a journal of a gigabyte, and commits of polls that ten thousand logs grew in.

In: how much. Out: a line per measurement. Records of the journal are commits as a watch encodes them, of random progress so that they do not
compress away; time is wall time, on a disk, with its syncs.

    python bench/livecost.py FOLDER [--gigabytes 1] [--streams 10000] [--polls 20]
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import time
from pathlib import Path
from typing import Any

from defib.adapters import daemon, rulefiles
from defib.adapters.journal.segments import read
from defib.adapters.journal.writer import Journal
from defib.adapters.wire import Fan
from defib.engine.ports import Data, Looked, Opened, Ticked
from defib.engine.words import JobKey, StreamFacts, StreamId

NOW = 1_700_000_000_000_000
BANNER = b"using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1\n"


def step(n: int) -> bytes:
    return (
        b" iteration %8d/   10000 | consumed samples: %12d | elapsed time per iteration (ms): 400.0 | learning rate: 1.000E-04 | "
        b"global batch size:    64 | lm loss: 2.0%05dE+00 | loss scale: 1.0 | grad norm: 1.203 |\n" % (n, n * 64, n)
    )


class Hooks:
    """Nothing ends it; alarms are printed."""

    def asked(self) -> bool:
        return False

    def alarm(self, text: str) -> None:
        print(f"alarm: {text}")


class Polls:
    """Every log grows by a line in every poll, a second apart."""

    def __init__(self, streams: int, polls: int) -> None:
        self.streams, self.polls, self.at = streams, polls, 0
        self.began: list[float] = []

    def poll(self) -> Any:
        self.began.append(time.monotonic())
        if self.at > self.polls:
            return None
        out: list[Any] = []
        for n in range(self.streams):
            if self.at == 0:
                job = JobKey(job_id=str(n))
                out.append(Opened(n, StreamId(f"/logs/slurm-{n}.out"), StreamFacts(job), 0))
                out.append(Data(n, BANNER, len(BANNER)))
            line = step(self.at + 1)
            out += [Data(n, line, len(line)), Looked(n)]
        self.at += 1
        return [*out, Ticked(NOW + self.at * 1_000_000)]

    def close(self) -> None: ...


def opening(folder: Path, gigabytes: float) -> None:
    """A journal of this size: how long it takes to open, and to read through."""
    chance = random.Random(1)
    journal = Journal(str(folder / "big"))
    record = chance.randbytes(64 * 1024)
    began = time.monotonic()
    while journal._size + 64 * 1024**2 * (len(os.listdir(folder / "big")) - 3) < gigabytes * 1e9:
        for _ in range(64):
            journal.append("word", record)
        journal.sync()
    journal.close()
    wrote = time.monotonic() - began
    began = time.monotonic()
    again = Journal(str(folder / "big"))
    opened = time.monotonic() - began
    size = again.size
    again.close()
    began = time.monotonic()
    count = sum(1 for _ in read(str(folder / "big")))
    took = time.monotonic() - began
    print(
        f"journal of {size / 1e9:.2f} GB, {count} records: written in {wrote:.1f} s, opened in {opened:.2f} s, read and checked in {took:.1f} s"
    )


def commits(folder: Path, streams: int, polls: int) -> None:
    """Turns of the loop in which every log grew by a line, and the next start."""
    loaded = rulefiles.load([])
    station = daemon.open_station(str(folder / "state"), loaded, Fan([], lambda a, paths: None), Hooks())
    k = station.keeper
    spent: list[float] = []
    commit = k.commit

    class Timed:
        def commit(self, *args: Any) -> None:
            began = time.monotonic()
            commit(*args)
            spent.append(time.monotonic() - began)

    drive = station.drive()
    drive.log = Timed()
    source = Polls(streams, polls)
    station.run(source, drive)
    turns = [b - a for a, b in zip(source.began[1:], source.began[2:], strict=False)]
    before = k.journal.size
    station.close()
    print(
        f"{streams} logs, {polls} polls, a line each: a commit {statistics.median(spent[1:]):.3f} s (median; most {max(spent[1:]):.3f}), "
        f"a whole turn {statistics.median(turns):.2f} s (most {max(turns):.2f}), journal {before / (polls + 1) / streams:.0f} bytes a line"
    )
    began = time.monotonic()
    again = daemon.open_station(str(folder / "state"), loaded, Fan([], lambda a, paths: None), Hooks())
    print(f"the next start over {len(again.state.streams)} open logs: {time.monotonic() - began:.2f} s")
    again.close()
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("folder", type=Path, help="a new folder on the disk to measure")
    p.add_argument("--gigabytes", type=float, default=1.0)
    p.add_argument("--streams", type=int, default=10_000)
    p.add_argument("--polls", type=int, default=20)
    args = p.parse_args()
    args.folder.mkdir(mode=0o700)
    opening(args.folder, args.gigabytes)
    commits(args.folder, args.streams, args.polls)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
