"""A year of a large site in one DuckDB file: how fast jobs go in, how large the file grows, and how long an analyst's questions take.

Sixty-four generated jobs (seeded, of every kind the generator knows) are read once by the real pipeline; what it told of them is stored again
and again under other job numbers, paths and days until there are so many jobs, through the same store that `defib replay` writes to. So the
rows are real and only matching and folding are left out. Then each question is asked `--rounds` times in a process of its own.

    python bench/year.py [--jobs 10000] [--seed 1] [--rounds 5] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from defib.adapters import rulefiles
from defib.adapters.archive import Archive
from defib.adapters.duck import DuckStore
from defib.adapters.rulefiles import LoadedRules
from defib.engine.core import Append, State
from defib.engine.drive import Drive
from defib.engine.identity import Known
from defib.engine.observe import Observer
from defib.engine.words import JobKey, StreamId

HERE = Path(__file__).resolve().parent
TOGETHER = 64  # as many as the store writes in one transaction
YEAR_US = 365 * 86_400_000_000
TIMES = ("time_us", "first_us", "last_us", "onset_us", "declared_us", "ended_us")
QUESTIONS = {
    "jobs by verdict": "SELECT verdict, count(*) FROM jobs GROUP BY verdict",
    "time by class": "FROM time_by_class",
    "twenty nodes most suspected": "FROM suspects LIMIT 20",
    "node evidence, weighed": "FROM node_evidence",
    "restarts that passed": "SELECT class, count(*), avg(passed_the_failure::INT) FROM restarts GROUP BY class",
    "goodput of every job": "SELECT count(*), avg(ettr) FROM goodput",
    "crashes a month": "SELECT date_trunc('month', time) AS month, class, count(*) FROM incidents GROUP BY ALL ORDER BY ALL",
    "median step time a day": "SELECT date_trunc('day', time) AS day, median(step_time_s) FROM progress GROUP BY day ORDER BY day",
    "the story of one job": "SELECT * FROM why WHERE job = '7000031'",
}


class Tape:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.effects: list[Any] = []

    def apply(self, effects: Iterable[object]) -> None:
        self.effects += effects


class Copy:
    """What was told of the sixty-four jobs, as if it were others: every value made anew with other numbers, paths and times."""

    def __init__(self, number: int, shift_us: int) -> None:
        self._number, self._shift = number, shift_us

    def of(self, value: Any, name: str = "") -> Any:
        if isinstance(value, JobKey):
            return dataclasses.replace(value, job_id=self._job(value.job_id))
        if isinstance(value, StreamId):
            return StreamId(f"/{self._number}{value.path}", value.generation)
        if isinstance(value, Append):
            return Append(value.table, self._later(value.rows))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.replace(
                value, **{f.name: self.of(getattr(value, f.name), f.name) for f in dataclasses.fields(value)}
            )
        if isinstance(value, tuple | list):
            return type(value)(self.of(v, name) for v in value)
        if isinstance(value, dict):
            return {k: self.of(v, str(k)) for k, v in value.items()}
        if name == "attempt_id":
            job, index = value.split("#")
            return f"{self._job(job)}#{index}"
        if name in TIMES and isinstance(value, int):
            return value + self._shift
        return value

    def _job(self, job: str | None) -> str:
        return str(7_000_000 + self._number * TOGETHER + int(job or 0) % TOGETHER)

    def _later(self, rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index("time_us")
        return rows.set_column(at, rows.schema.field(at), pc.add(rows.column(at), self._shift))


def recorded(loaded: LoadedRules, seed: int, folder: Path) -> tuple[list[Any], int]:
    """(effects of sixty-four jobs, bytes of their logs)."""
    made = [
        sys.executable,
        str(HERE / "loggen"),
        str(folder),
        "--preset",
        "detectors",
        "--jobs",
        str(TOGETHER),
        "--seed",
        str(seed),
    ]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    source = Archive([str(folder)], loaded.book.paths, Known(None), 1 << 20)
    source.open()
    tape = Tape()
    Drive(Observer(loaded.book, loaded.databases), State(loaded.book), tape).run(source)
    return tape.effects, source.total_bytes


def asked(db: Path, question: str, rounds: int) -> tuple[float, int]:
    """(median wall seconds of `defib sql`, its start and the opening of the file with it; rows)."""
    took, lines = [], 0
    for _ in range(rounds):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "defib", "sql", "--db", str(db), "--csv", question], check=True, capture_output=True
        )
        took.append(time.perf_counter() - began)
        lines = done.stdout.count(b"\n") - 1
    return statistics.median(took), lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    loaded = rulefiles.load([])
    with tempfile.TemporaryDirectory(dir=args.keep) as name:
        folder = Path(name)
        effects, size = recorded(loaded, args.seed, folder / "logs")
        copies = -(-args.jobs // TOGETHER)
        db = folder / "year.duckdb"
        store = DuckStore(str(db), loaded.book)
        spent: list[float] = []
        wall = time.perf_counter()
        for n in range(copies):
            copy = Copy(n, n * YEAR_US // copies)
            told = [copy.of(e) for e in effects]
            began = time.process_time()
            store.apply(told)
            spent.append(time.process_time() - began)
        store.close()
        wall = time.perf_counter() - wall
        tell(db, copies, size, spent, wall)
        for title, question in QUESTIONS.items():
            took, lines = asked(db, question, args.rounds)
            print(f"| {title} | {took:.2f} s | {lines:,} rows |")
    return 0


def tell(db: Path, copies: int, size: int, spent: list[float], wall: float) -> None:
    """What went in, and at what cost."""
    import duckdb

    with duckdb.connect(str(db), read_only=True) as con:
        counts = {
            t: con.execute(f"SELECT count(*) FROM {t}").fetchall()[0][0]
            for t in ("attempts", "incidents", "signals", "progress", "windows", "evidence")
        }
    rows = sum(counts.values())
    tenth = max(1, len(spent) // 10)
    first, last = (statistics.median(part) for part in (spent[:tenth], spent[-tenth:]))
    print(
        f"{copies * TOGETHER:,} jobs, {size * copies / 1e9:.1f} GB of logs: "
        + ", ".join(f"{n:,} {t}" for t, n in counts.items())
    )
    print(
        f"stored in {sum(spent):.0f} s of CPU ({rows / sum(spent):,.0f} rows a second), {wall:.0f} s in all; the last tenth cost {last / first:.2f} of "
        f"the first; file {os.path.getsize(db) / 1e6:,.0f} MB"
    )
    print("| question | median | |\n|---|--:|--:|")


if __name__ == "__main__":
    sys.exit(main())
