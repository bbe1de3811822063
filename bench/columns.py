"""What the columns of progress lines cost beside matching alone, in one process: with the kernel in C, without it, and matching only.

Out, for each corpus of `speed.py`: MB per CPU second of each, medians of interleaved rounds with spread, and the share of matching alone that
matching with all columns reaches. The rows are compared; exit code 1 where the kernel's differ.

    python bench/columns.py [--size MIB] [--rounds 5] [--corpora a,c]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from defib.adapters import rulefiles
from defib.engine.blocks import Batch, LineCutter
from defib.engine.observe import Observer
from defib.engine.shapes import Shapes

BATCH = 4 << 20


def batches(data: bytes) -> list[Batch]:
    cutter, out = LineCutter(0), []
    for k in range(0, len(data), BATCH):
        batch = Batch()
        for piece in cutter.feed(data[k : k + BATCH]):
            batch.add(piece)
        out.append(batch)
    return out


def timed(observers: dict[str, Observer], data: bytes) -> tuple[dict[str, float], bool]:
    """CPU seconds of each way over fresh batches, and whether the rows are the same."""
    spent: dict[str, float] = dict.fromkeys(("match", *observers), 0.0)
    same = True
    for n, batch in enumerate(batches(data)):
        began = time.process_time()
        first = next(iter(observers.values()))
        hits = first.scanner.scan(batch)
        both = time.process_time() - began
        spent["match"] += both
        tables: list[Any] = []
        for name, observer in sorted(observers.items(), reverse=bool(n % 2)):
            fresh = Batch(list(batch.pieces), batch.size)
            fresh.buffer  # noqa: B018 - what matching has made already
            began = time.process_time()
            tables.append(observer._progress.read(fresh, hits.anchors))
            spent[name] += time.process_time() - began + both
        same &= all(t.equals(tables[0]) for t in tables[1:])
    return spent, same


def main() -> int:
    import speed

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=64, metavar="MIB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--corpora", default="a,c")
    args = parser.parse_args()
    loaded, kernel = rulefiles.load(), rulefiles.kernel()
    observers = {"polars": Observer(loaded.book, loaded.databases)}
    if kernel is None:
        print("no kernel: it needs a C compiler")
    else:
        observers["kernel"] = Observer(loaded.book, loaded.databases, kernel)
    good = True
    shapes = []
    print("| corpus | what | MB per CPU s | low-high | of match only |\n|---|---|--:|--:|--:|")
    for name in args.corpora.split(","):
        data = b"".join(speed.CORPORA[name](random.Random(1), args.size << 20))[: args.size << 20]
        if kernel is not None:
            batch = batches(data)[0]
            of = Shapes(kernel, batch.buffer, batch.starts, batch.ends)
            shapes.append(f"{name}: {len(batch.ends)} records of {len(of.all)} shapes in the first batch")
        rounds = []
        for _ in range(args.rounds):
            spent, same = timed(observers, data)
            rounds.append({k: len(data) / 1e6 / s for k, s in spent.items()})
            good &= same
        match = statistics.median(r["match"] for r in rounds)
        for way in rounds[0]:
            rates = [r[way] for r in rounds]
            middle = statistics.median(rates)
            print(f"| {name} | {way} | {middle:.1f} | {min(rates):.1f}-{max(rates):.1f} | {middle / match:.2f} |")
    print("\n".join(shapes))
    print("rows are the same" if good else "ROWS DIFFER")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
