"""How soon and how truly the detectors speak, on generated runs whose truth is known by construction.

In: a seed and a number of runs (the plan is in loggen/plan.py). Out: a table of questions with Wilson intervals (95 %), delays,
false alarms per 1,000 run-hours, two published rivals on the same series, and every miss by the name of its run.

    python bench/detectors.py [--runs 200] [--seed 7] [--jobs 2] [--only NAME] [--json] [--replay-only]

Each run is replayed, and watched live: looked at every 10 simulated seconds, with the bytes that had arrived by then. A name
taken from the list of misses runs that one again: `--only NAME` with the same seed prints all that was said of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from accuracy import wilson
from detecting.ask import Asker, Row, Wanted
from detecting.score import Board, score
from loggen.plan import Planned, plan, shares

MISSES = 12
"""Of each question, unless all are asked for."""
_asker: Asker | None = None


def begin(wanted: Wanted) -> None:
    """Make this process ready."""
    global _asker
    _asker = Asker(wanted)


def ask(item: tuple[int, Planned]) -> Row:
    assert _asker is not None, "begin comes first"
    return _asker.ask(*item)


def rows(planned: list[tuple[int, Planned]], wanted: Wanted, jobs: int) -> Iterator[Row]:
    """A row per run, in the plan's order."""
    if jobs == 1:
        begin(wanted)
        yield from map(ask, planned)
        return
    os.environ.setdefault(
        "POLARS_MAX_THREADS", "1"
    )  # small frames: processes of several threads each only get in each other's way
    with multiprocessing.get_context("spawn").Pool(jobs, begin, (wanted,)) as pool:
        yield from pool.imap(ask, planned, chunksize=4)


def show_shares(planned: list[tuple[int, Planned]], seed: int) -> None:
    """What was run."""
    share, have = shares(), Counter(p.group for _, p in planned)
    print(f"{len(planned)} runs, seed {seed}; runs (and share of the plan) by kind:")
    for part in range(0, len(share), 4):
        print(
            "  "
            + "".join(
                f"{name} {have[name]} ({100 * value:.1f} %)".ljust(34)
                for name, value in islice(share.items(), part, part + 4)
            )
        )


def show(board: Board, *, every_miss: bool) -> None:
    """The table, then the misses."""
    print(f"\n{'question':<44}{'right':>7}{'asked':>7}{'rate':>8}   95 % interval")
    for name, t in sorted(board.tallies.items()):
        low, high = wilson(t.right, t.asked)
        print(
            f"{name:<44}{t.right:>7}{t.asked:>7}{100 * t.right / t.asked:>7.1f}%   {100 * low:.1f}-{100 * high:.1f} %"
        )
    print(f"\n{'measured':<44}{'count':>7}{'p50':>10}{'p99':>10}")
    for name, values in sorted(board.values.items()):
        print(f"{name:<44}{len(values):>7}{np.quantile(values, 0.5):>10.3g}{np.quantile(values, 0.99):>10.3g}")
    print(f"\n{'false alarms of slowness':<44}{'alarms':>7}{'hours':>9}{'per 1,000 hours':>18}")
    for who, kind, alarms, hours in false_alarms(board):
        print(f"{f'{who}, {kind} runs':<44}{alarms:>7}{hours:>9.0f}{1000 * alarms / hours:>18.2f}")
    for who, seen, false in precision(board):
        print(
            f"precision of {who}: {seen}/{seen + false}"
            + (f" = {100 * seen / (seen + false):.1f} %" if seen + false else "")
        )
    for name, misses in [*((n, t.misses) for n, t in sorted(board.tallies.items())), *sorted(board.alarms.items())]:
        if name.startswith(("rolling", "bocpd")) and not every_miss:
            continue
        for miss in misses if every_miss else misses[:MISSES]:
            print(f"  miss [{name}] {miss}")
        if len(misses) > MISSES and not every_miss:
            print(f"  miss [{name}] … {len(misses) - MISSES} more (--all)")


def false_alarms(board: Board) -> Iterator[tuple[str, str, int, float]]:
    """Who, on which runs, how many, in how many hours."""
    for who in ("live", "replay", "rolling", "bocpd"):
        for kind, hours in sorted(board.hours.items()):
            if any(name.startswith(who) for name in board.tallies):
                yield who, kind, len(board.alarms.get(f"{who} slow, {kind}", [])), hours


def precision(board: Board) -> Iterator[tuple[str, int, int]]:
    """Who, slowdowns seen, false alarms."""
    for who in ("live", "replay", "rolling", "bocpd"):
        seen = sum(
            t.right
            for name, t in board.tallies.items()
            if name.startswith(f"{who} slow seen") and "passing" not in name
        )
        false = sum(len(v) for name, v in board.alarms.items() if name.startswith(f"{who} slow"))
        if any(name.startswith(f"{who} slow seen") for name in board.tallies):
            yield who, seen, false


def as_json(board: Board, runs: int, seed: int) -> dict[str, Any]:
    return {
        "runs": runs,
        "seed": seed,
        "questions": {name: t.as_json() for name, t in sorted(board.tallies.items())},
        "measured": {
            name: {"count": len(v), "p50": float(np.quantile(v, 0.5)), "p99": float(np.quantile(v, 0.99))}
            for name, v in sorted(board.values.items())
        },
        "false_alarms": [{"who": w, "runs": k, "alarms": n, "hours": h} for w, k, n, h in false_alarms(board)],
        "false_alarm_names": board.alarms,
        "precision": {who: {"seen": seen, "false": false} for who, seen, false in precision(board)},
    }


def show_row(row: Row) -> None:
    """All that is known and was said of one run."""
    for name, value in dataclasses.asdict(row).items():
        if isinstance(value, list | tuple) and value:
            print(f"{name}:")
            for item in value:
                print(f"  {item}")
        else:
            print(f"{name}: {value}")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--runs", type=int, default=200)
    made.add_argument("--seed", type=int, default=7)
    made.add_argument("--jobs", type=int, default=1, help="processes")
    made.add_argument(
        "--only", default="", metavar="NAME", help="runs whose name holds this, with all that was said of them"
    )
    made.add_argument("--json", action="store_true")
    made.add_argument("--all", action="store_true", help="list every miss, the rivals' too")
    made.add_argument("--replay-only", action="store_true")
    made.add_argument(
        "--sample", type=int, default=20, metavar="N", help="every Nth run is read in other cuts too (default 20)"
    )
    return made


def main() -> int:
    args = parser().parse_args()
    planned = [(i, p) for i, p in enumerate(plan(args.seed, args.runs)) if args.only in p.name]
    if not planned:
        print(f"no run of seed {args.seed} is called {args.only} (of {args.runs}; more with --runs)", file=sys.stderr)
        return 3
    started = time.perf_counter()
    got = []
    for row in rows(planned, Wanted(not args.replay_only, max(1, args.sample)), max(1, args.jobs)):
        got.append(row)
        if sys.stderr.isatty():
            print(f"\r{len(got)} of {len(planned)} runs", end="", file=sys.stderr, flush=True)
    board = score(got)
    if args.json:
        print(json.dumps(as_json(board, len(got), args.seed), indent=1))
        return 0
    if args.only:
        for row in got:
            show_row(row)
    show_shares(planned, args.seed)
    show(board, every_miss=args.all)
    took = time.perf_counter() - started
    print(f"\n{sum(r.size for r in got) / 1e6:.1f} MB, {sum(r.hours for r in got):.0f} run-hours in {took:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
