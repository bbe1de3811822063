"""Long runs of the recovery simulator: many seeds, or every planted bug with the number of seeds until it is caught.

    python bench/simulate.py --seeds 5000 --jobs 2          exit 1 where an invariant breaks
    python bench/simulate.py --mutations --seeds 100        exit 1 where a planted bug is not caught
    python bench/simulate.py --first 214 --seeds 1          one seed again, with its numbers

Each seed is a cluster of its own for --hours simulated hours, with the random subset of faults that its number draws.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.simulation.mutations import MUTATIONS, planted
from tests.simulation.run import run


def one(job: tuple[int, float]) -> tuple[int, Counter[str], str]:
    """(seed, numbers, what broke)."""
    seed, hours = job
    try:
        return seed, run(seed, hours), ""
    except AssertionError as e:
        return seed, Counter(), str(e)


def caught(job: tuple[int, int, int]) -> tuple[str, int | None, str]:
    """(name of the bug, seed that caught it, how); None where none did."""
    index, first, seeds = job
    m = MUTATIONS[index]
    with planted(m):
        for seed in range(first, first + seeds):
            try:
                run(seed, only=m.only)
            except AssertionError as e:
                return m.name, seed, str(e)
    return m.name, None, ""


def main() -> int:
    """Parse, run, tell; the exit code."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seeds", type=int, default=300)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--hours", type=float, default=72.0)
    p.add_argument("--mutations", action="store_true", help="plant every bug of tests/simulation/mutations.py")
    args = p.parse_args()
    begun = time.monotonic()
    with ProcessPoolExecutor(args.jobs) as pool:
        if args.mutations:
            return mutations(pool, args.first, args.seeds)
        total: Counter[str] = Counter()
        broken = []
        jobs = ((seed, args.hours) for seed in range(args.first, args.first + args.seeds))
        for seed, stats, what in pool.map(one, jobs, chunksize=8):
            total += stats
            if what:
                broken.append(seed)
                print(what, flush=True)
    for name, n in sorted(total.items()):
        print(f"{n:>10}  {name}")
    print(
        f"{args.seeds} seeds of {args.hours:g} h: {len(broken)} broken, {total['orders']} orders, {total['effective']} effective restarts, "
        f"{total['case recovered']} recovered; {time.monotonic() - begun:.0f} s"
    )
    return 1 if broken else 0


def mutations(pool: ProcessPoolExecutor, first: int, seeds: int) -> int:
    """Every planted bug; 1 where one is not caught."""
    missed = 0
    for name, seed, how in pool.map(caught, ((i, first, seeds) for i in range(len(MUTATIONS)))):
        missed += seed is None
        print(f"{'NOT CAUGHT' if seed is None else f'seed {seed}':>12}  {name}: {how[:110]}", flush=True)
    print(f"{len(MUTATIONS) - missed} of {len(MUTATIONS)} planted bugs caught within {seeds} seeds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
