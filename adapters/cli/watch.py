"""`defib watch`: what changes while jobs run, one line each."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from defib.adapters import wire
from defib.adapters.cli.tables import as_json, write_jsonl
from defib.adapters.rows import attempt_object, health_object
from defib.adapters.show import printable, safe
from defib.engine.errors import ConfigError, Problem
from defib.engine.words import HEALTH

if TYPE_CHECKING:
    from defib.engine.core import HealthChanged
    from defib.engine.words import AttemptVerdict, JobKey

SCHEMA = "defib/watch/1"
UNREAD_MAX = 5


def watch(args: Any) -> int:
    """`defib watch`: follow logs until told to stop."""
    from defib.adapters.cli import serve

    told = Teller(jsonl=args.jsonl)
    ears = wire.Ears(told.changed, told.judged, told.polled)
    if args.state is None and args.config is None and not args.slurm:
        every = 10_000_000 if args.every is None else args.every
        options = wire.WatchOptions(args.paths, args.rules, args.cluster, every, args.once_idle)
        if not args.paths:
            raise ConfigError([Problem("watch", 1, 1, "nothing to follow", "name files, folders or globs")])
        outcome = wire.watch(options, ears)
    else:
        outcome = serve.watch(args, ears, alarm)
    print(summary(outcome), file=sys.stderr)
    return 130 if outcome.signal == signal.SIGINT else 0


def alarm(text: str) -> None:
    """Something a person must know now."""
    print("defib: " + "\n".join(safe(part) for part in text.splitlines()), file=sys.stderr, flush=True)


@dataclass(slots=True)
class Teller:
    """Prints what is told at once, and notices when nobody reads any more."""

    jsonl: bool
    polls: int = 0

    def changed(self, e: HealthChanged, paths: dict[int, str]) -> None:
        if self.jsonl:
            write_jsonl([as_json({"schema": SCHEMA, "kind": "health", **health_object(e, paths)})])
        else:
            print(line(e))
        sys.stdout.flush()

    def judged(self, a: AttemptVerdict, paths: dict[int, str]) -> None:
        if self.jsonl:
            write_jsonl([as_json({"schema": SCHEMA, "kind": "attempt", "judged": attempt_object(a, paths)})])

    def polled(self, unread: dict[bytes, str]) -> None:
        """Raises BrokenPipeError when whoever read standard output is gone: the next change may be hours away."""
        if self.polls == 0:
            for path, why in list(unread.items())[:UNREAD_MAX]:
                print(f"not followed: {safe(printable(os.fsdecode(path)))}: {safe(why)}", file=sys.stderr)
            if len(unread) > UNREAD_MAX:
                print(f"not followed: {len(unread) - UNREAD_MAX} more", file=sys.stderr)
        self.polls += 1
        if unheard():
            raise BrokenPipeError


def line(e: HealthChanged) -> str:
    """A change for people; its first column is the local time."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e.at_us / 1e6))
    was = f"was {e.was}" if e.was else "first seen"
    return f"{at}  {safe(name(e.job)):<20}  {e.attempt + 1:>3}  {e.health:<8}  {was:<12}  {safe(e.because)}"


def name(job: JobKey) -> str:
    """A job's id, or the end of the path its logs share."""
    text = job.job_id or "/".join(job.place.rstrip("/").split("/")[-2:])
    return f"{text}_{job.array_task}" if job.array_task else text


def summary(outcome: wire.Watched) -> str:
    """How many jobs were watched and how they were at the end."""
    jobs = Counter(outcome.healths.values())
    now = ", ".join(f"{jobs[h]} {h}" for h in HEALTH if jobs[h])
    left = f"; {len(outcome.unread)} not followed" if outcome.unread else ""
    return f"{jobs.total()} job{'s' if jobs.total() != 1 else ''} watched; now {now or 'none'}{left}"


def unheard() -> bool:
    """Whether the other end of standard output is closed."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    ask = select.poll()
    ask.register(number, 0)
    return any(found & (select.POLLERR | select.POLLHUP) for _, found in ask.poll(0))
