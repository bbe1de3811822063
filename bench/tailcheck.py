"""Any number of random lives of a log, each judged byte by byte (see tailcase), in memory or on disk.

In: how many, from which seed on. Out: one line with what was done, and the first failures with their seeds; exit status 1 if there were any.

    python bench/tailcheck.py [--cases 50000] [--first 0] [--acts 30] [--disk DIR] [--jobs 1]
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tailcase import run
from tailmodel import OnDisk

CHUNK = 250


@dataclass
class Tally:
    """What a stretch of seeds came to."""

    cases: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    generations: int = 0
    bytes: int = 0
    gaps: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.cases += other.cases
        self.acts += other.acts
        self.generations += other.generations
        self.bytes += other.bytes
        self.gaps += other.gaps
        self.failures += other.failures


def stretch(first: int, count: int, acts: int, disk: str | None) -> Tally:
    """Seeds first to first + count."""
    tally = Tally()
    for seed in range(first, first + count):
        tally.cases += 1
        folder = tempfile.mkdtemp(dir=disk) if disk else None
        try:
            case = run(seed, OnDisk(Path(folder)) if folder else None, acts)
        except AssertionError as e:
            tally.failures.append(str(e))
            continue
        finally:
            if folder:
                shutil.rmtree(folder)
        tally.acts.update(case.acts)
        tally.generations += len(case.got)
        tally.bytes += sum(map(len, case.got.values()))
        tally.gaps += len(case.told_gaps)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=50_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--acts", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--disk", help="play on real files below this folder")
    args = parser.parse_args()
    began, total = time.perf_counter(), Tally()
    firsts = range(args.first, args.first + args.cases, CHUNK)
    counts = [min(CHUNK, args.first + args.cases - f) for f in firsts]
    one = partial(stretch, acts=args.acts, disk=args.disk)
    with multiprocessing.Pool(args.jobs) as pool:
        for tally in pool.starmap(one, zip(firsts, counts, strict=True)):
            total.add(tally)
    spent = time.perf_counter() - began
    looks = total.acts["look"] + total.acts["glance"]
    print(
        f"{total.cases} cases in {spent:.0f} s: {sum(total.acts.values()) - looks} acts, {looks} polls, {total.generations} generations, "
        f"{total.bytes / 1e6:.0f} MB handed over, {total.gaps} gaps told, {len(total.failures)} failures"
    )
    for failure in total.failures[:5]:
        print("\n" + failure)
    return bool(total.failures)


if __name__ == "__main__":
    sys.exit(main())
