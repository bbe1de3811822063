"""`defib replay`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from defib.adapters import wire
from defib.adapters.show import duration, safe, size

if TYPE_CHECKING:
    from defib.engine.words import AttemptVerdict

COLUMNS = ("JOB", "TRY", "VERDICT", "FRAMEWORK", "STEPS", "STEP TIME", "CLASS", "WHERE", "CAUSE")
EMPTY_SHOWN = 3  # many jobs write nothing to their .err


Tell = Callable[["AttemptVerdict", dict[int, str]], None]


def replay(args: Any) -> int:
    """`defib replay`: read logs, tell every attempt, keep the history; or write one part of it."""
    scheduler = args.scheduler or (f"local:{args.jobs}" if args.jobs > 1 else None)
    options = wire.ReplayOptions(args.paths, args.db, args.rules, args.cluster, args.block_bytes, scheduler=scheduler)
    if args.output is not None and args.part is None:
        print("defib: -o goes with --part i/N; the table goes to standard output, the history to --db", file=sys.stderr)
        return 2
    if args.part is not None:
        return _part(args, options)

    def run(tell: Tell) -> wire.Outcome:
        with Progress(quiet=args.quiet) as progress:
            return wire.replay(options, tell, progress.update)

    return _told(args, run)


def merge(args: Any) -> int:
    """`defib merge`: the parts of one replay into a history, every attempt told as `replay` tells it."""
    return _told(args, lambda tell: wire.merge(args.parts, args.db, args.rules, tell))


def _part(args: Any, options: wire.ReplayOptions) -> int:
    if args.output is None:
        print("defib: --part needs -o FILE to write to", file=sys.stderr)
        return 2
    index, of = args.part
    done = wire.write_part(options, index - 1, of, args.output)
    if not args.quiet:
        print(
            f"part {index} of {of}: {done.files} files ({size(done.size)}) in {safe(str(args.output))}", file=sys.stderr
        )
    return 3 if any(u.refused for u in done.unread) else 0


def _told(args: Any, run: Callable[[Tell], wire.Outcome]) -> int:
    """Run it, with its attempts as a table, JSON or JSON lines, its summary and its exit code."""
    from defib.adapters.cli.tables import as_json, table, write_json, write_jsonl
    from defib.adapters.rows import attempt_object
    from defib.engine.words import VERDICTS

    wanted = {v for v in args.fail_on.split(",") if v}
    if wanted - set(VERDICTS):
        print(
            f"defib: --fail-on knows {', '.join(VERDICTS)}; not {safe(', '.join(sorted(wanted - set(VERDICTS))))}",
            file=sys.stderr,
        )
        return 2
    rows: list[tuple[Any, ...]] = []
    objects: list[dict[str, Any]] = []
    failed = False

    def tell(a: AttemptVerdict, paths: dict[int, str]) -> None:
        nonlocal failed
        failed |= a.verdict in wanted
        if args.jsonl:
            write_jsonl([attempt_object(a, paths)])
        elif args.json:
            objects.append(as_json(attempt_object(a, paths)))
        else:
            rows.append(row(a, paths))

    outcome = run(tell)
    if args.json:
        write_json({"schema": "defib/attempts/1", "rows": objects})
    elif not args.jsonl and (rows or not outcome.unread):
        table(COLUMNS, rows, drop=("STEP TIME", "FRAMEWORK", "CLASS", "STEPS", "WHERE"))
    if not args.quiet:
        summary(outcome, args.db)
    if outcome.interrupted:
        return 130
    if any(u.refused for u in outcome.unread):
        return 3
    return 1 if failed else 0


def row(a: AttemptVerdict, paths: dict[int, str]) -> tuple[Any, ...]:
    """An attempt as a line of the table."""
    p, c = a.progress, a.cause
    steps = None
    if p is not None and p.kind == "train":
        total = f"/{p.total_steps:,}" if p.total_steps is not None else ""
        steps = f"{p.first_step:,}-{p.last_step:,}{total}"
    where = cause = None
    if c is not None:
        known = c.confidence != "unknown" and c.signal.role != "lifecycle"  # else it only tells who printed the line
        rank = f"rank {c.signal.rank}" if c.signal.rank is not None else None
        where = (" ".join(x for x in (c.signal.node, rank) if x) or None) if known else None
        cause = f"{c.signal.rule} at {os.path.basename(paths[c.signal.stream])}:{c.signal.line}"
    job = a.job.job_id or a.job_name or os.path.basename(a.job.place)
    task = f"_{a.job.array_task}" if a.job.array_task else ""
    return (
        f"{job}{task}",
        a.index + 1,
        a.verdict,
        a.framework,
        steps,
        duration(p.median_step_s) if p and p.kind == "train" else None,
        a.klass,
        where,
        cause,
    )


def summary(outcome: wire.Outcome, db: str) -> None:
    """One line of what was read, and every input that was not, on stderr."""
    told = ", ".join(f"{n} {v}" for v, n in sorted(outcome.verdicts.items(), key=lambda x: (-x[1], x[0])))
    kept = "nothing kept" if db == ":memory:" else f"history in {safe(db)}"
    print(
        f"{outcome.attempts} attempt{'s' if outcome.attempts != 1 else ''} in {outcome.files} "
        f"file{'s' if outcome.files != 1 else ''} ({size(outcome.bytes_read)}): {told or 'nothing'}; {kept}",
        file=sys.stderr,
    )
    if outcome.empty:
        more = f" and {len(outcome.empty) - EMPTY_SHOWN} more" if len(outcome.empty) > EMPTY_SHOWN else ""
        print(f"  nothing in it: {', '.join(map(safe, outcome.empty[:EMPTY_SHOWN]))}{more}", file=sys.stderr)
    if outcome.interrupted:
        print("interrupted: jobs judged so far are kept, the rest is not", file=sys.stderr)
    for u in outcome.unread:
        print(f"  not read: {safe(u.path)}: {safe(u.why)}", file=sys.stderr)


class Progress:
    """A bar with bytes/s and time left on a terminal, after a second; in a pipe one line each half minute."""

    def __init__(self, *, quiet: bool) -> None:
        import time

        self._now = time.monotonic
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None
        self._began = self._said = self._now()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int) -> None:
        now = self._now()
        if self._quiet or now - self._began < 1:
            return
        if not sys.stderr.isatty():
            if now - self._said >= 30:
                self._said = now
                rate = done / (now - self._began)
                left = (total - done) / rate if rate else 0
                print(f"{size(done)} of {size(total)}, {size(rate)}/s, {left:.0f} s left", file=sys.stderr)
            return
        if self._bar is None:
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task("reading", total=total)
        self._bar.update(self._task, completed=done)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
