"""`defib watch`: what changes while jobs run, one line each."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from defib.adapters import wire
from defib.adapters.cli.tables import as_json, write_jsonl
from defib.adapters.rows import attempt_object, health_object, log_object
from defib.adapters.show import printable, safe
from defib.engine.words import HEALTH, VERDICTS

if TYPE_CHECKING:
    from defib.engine.core import HealthChanged, LogTold
    from defib.engine.words import AttemptVerdict, JobKey

SCHEMA = "defib/watch/1"
NAME_WIDTH, NAME_WIDTH_MAX = 20, 48
UNREAD_MAX = 5  # told at once; the others are counted
LOGS_MAX = 10
CALM = ("starting", "healthy", "slow", "waiting")  # healths that hide how a log ended
SILENT = ("hung", "blind")  # these too, unless it merely fell silent
OPEN = ("running-at-end", "unknown")  # verdicts on a log that tells no end


def watch(args: Any) -> int:
    """`defib watch`: follow logs until told to stop."""
    from defib.adapters.cli import serve

    told = Teller(jsonl=args.jsonl, until_idle=args.once_idle is not None)
    ears = wire.Ears(told.changed, told.judged, told.polled, told.logged, resumed)
    if args.state is None and args.config is None and not args.slurm:
        every = 10_000_000 if args.every is None else args.every
        options = wire.WatchOptions(args.paths, args.rules, args.cluster, every, args.once_idle)
        if not args.paths:
            print(
                "defib watch: nothing to follow: name files, folders or globs; or --slurm, which asks Slurm for them",
                file=sys.stderr,
            )
            return 2
        outcome = wire.watch(options, ears)
    else:
        outcome = serve.watch(args, ears, alarm)
    print(summary(outcome, told.ended(idle=outcome.signal is None), len(told.lost)), file=sys.stderr)
    return 130 if outcome.signal == signal.SIGINT else 0


def alarm(text: str) -> None:
    """Something a person must know now."""
    print("defib: " + "\n".join(safe(part) for part in text.splitlines()), file=sys.stderr, flush=True)


def resumed(healths: Mapping[JobKey, str]) -> None:
    """A start that goes on where another left off would else look like one that found nothing."""
    if healths:
        n = len(healths)
        told = ", ".join(f"{k} {h}" for h in HEALTH if (k := sum(x == h for x in healths.values())))
        print(f"going on with {n} job{'s' if n != 1 else ''} of before: {told}", file=sys.stderr, flush=True)


@dataclass(slots=True)
class Teller:
    """Prints what is told at once, and notices when nobody reads any more. until_idle: the watch ends by itself, so how logs ended belongs to
    its summary; one that is stopped says how jobs were at that moment, and how logs ended of which nothing else tells."""

    jsonl: bool
    until_idle: bool = False
    told: dict[bytes, str] = field(default_factory=dict)  # paths that are not followed, and what was said of them
    logs: Counter[str] = field(default_factory=Counter)  # what befell logs since the last poll
    verdicts: dict[JobKey, str] = field(default_factory=dict)  # on the last attempt of a job that ended
    healths: dict[JobKey, str] = field(default_factory=dict)  # as they were told last
    lost: set[str] = field(default_factory=set)  # paths of logs that cannot be read now
    width: int = NAME_WIDTH  # of the column of jobs; it grows with the names that come

    def changed(self, e: HealthChanged, paths: dict[int, str]) -> None:
        self.healths[e.job] = e.health
        if self.jsonl:
            write_jsonl([as_json({"schema": SCHEMA, "kind": "health", **health_object(e, paths)})])
        else:
            print(line(e, self._wide(e.job)))
        sys.stdout.flush()

    def judged(self, a: AttemptVerdict, paths: dict[int, str]) -> None:
        if self.jsonl:
            write_jsonl([as_json({"schema": SCHEMA, "kind": "attempt", "judged": attempt_object(a, paths)})])
        elif a.verdict not in OPEN and (self.until_idle or self._hides(a.job, a.verdict)):
            print(verdict_line(a, paths, self._wide(a.job)))
        self.verdicts.pop(a.job, None)
        if a.verdict not in OPEN:
            self.verdicts[a.job] = a.verdict

    def ended(self, *, idle: bool) -> dict[JobKey, str]:
        """Verdicts for the summary. idle: the watch ended because nothing was written any more."""
        return {job: v for job, v in self.verdicts.items() if idle or self._hides(job, v)}

    def _hides(self, job: JobKey, verdict: str) -> bool:
        health = self.healths.get(job, CALM[0])
        return health in CALM or (health in SILENT and verdict != "stalled")

    def logged(self, e: LogTold) -> None:
        self.logs[e.what] += 1
        if e.what == "unreadable":
            self.lost.add(e.path)
        elif e.what in ("readable", "replaced"):
            self.lost.discard(e.path)
        if self.jsonl:
            write_jsonl([as_json({"schema": SCHEMA, "kind": "log", **log_object(e)})])
        elif self.logs.total() <= LOGS_MAX:
            print(log_line(e, self._wide(e.job)))
        sys.stdout.flush()

    def polled(self, unread: dict[bytes, str]) -> None:
        """Raises BrokenPipeError when whoever read standard output is gone: the next change may be hours away."""
        if not self.jsonl and (more := self.logs.total() - LOGS_MAX) > 0:
            told = ", ".join(f"{n} {what}" for what, n in sorted(self.logs.items()))
            print(f"… and {more} more such lines about logs: {told} in all", flush=True)
        self.logs.clear()
        self._unfollowed(unread)
        if unheard():
            raise BrokenPipeError

    def _wide(self, job: JobKey) -> int:
        self.width = max(self.width, min(len(safe(name(job))), NAME_WIDTH_MAX))
        return self.width

    def _unfollowed(self, unread: dict[bytes, str]) -> None:
        """What is not followed, once for each reason."""
        if unread == self.told:
            return
        fresh = {path: why for path, why in unread.items() if self.told.get(path) != why}
        shown = UNREAD_MAX if len(fresh) > UNREAD_MAX + 1 else len(fresh)
        for path, why in list(fresh.items())[:shown]:
            print(f"not followed: {safe(printable(os.fsdecode(path)))}: {safe(why)}", file=sys.stderr)
        if len(fresh) > shown:
            print(f"not followed: {len(fresh) - shown} more", file=sys.stderr)
        self.told = dict(unread)


def line(e: HealthChanged, wide: int) -> str:
    """A change for people; its first column is the local time."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e.at_us / 1e6))
    was = f"was {e.was}" if e.was else "first seen"
    return f"{at}  {safe(name(e.job)):<{wide}}  {e.attempt + 1:>3}  {e.health:<8}  {was:<12}  {safe(e.because)}"


def log_line(e: LogTold, wide: int) -> str:
    """What befell a log, in the columns of a change of health."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e.at_us / 1e6))
    note = f": {e.note}" if e.note else ""
    attempt = "" if e.attempt is None else e.attempt + 1
    return f"{at}  {safe(name(e.job)):<{wide}}  {attempt:>3}  {'log':<8}  {e.what:<12}  {safe(e.path + note)}"


def verdict_line(a: AttemptVerdict, paths: dict[int, str], wide: int) -> str:
    """How an attempt ended, in the columns of a change of health; its last column is the cause, else how far it came."""
    from defib.adapters.cli.replay import COLUMNS, row

    told = dict(zip(COLUMNS, row(a, paths), strict=True))
    steps = f"steps {told['STEPS']}" if told["STEPS"] else ""
    because = ", ".join(str(x) for x in (told["CAUSE"], told["WHERE"], steps) if x) or "the log does not say why"
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime())
    return f"{at}  {safe(name(a.job)):<{wide}}  {a.index + 1:>3}  {a.verdict:<8}  {'its verdict':<12}  {safe(because)}"


def name(job: JobKey) -> str:
    """A job's id, or the end of the path its logs share."""
    text = job.job_id or "/".join(job.place.rstrip("/").split("/")[-2:])
    return f"{text}_{job.array_task}" if job.array_task else text


def summary(outcome: wire.Watched, ended: Mapping[JobKey, str], lost: int) -> str:
    """How many jobs were watched; how those with a verdict ended, and how the others were last; how many logs cannot be read."""
    jobs = Counter(h for job, h in outcome.healths.items() if job not in ended)
    verdicts = Counter(ended.values())
    now = ", ".join(f"{jobs[h]} {h}" for h in HEALTH if jobs[h])
    ends = ", ".join(f"{verdicts[v]} {v}" for v in VERDICTS if verdicts[v])
    left = f"; {lost} log{'s' if lost != 1 else ''} unreadable" if lost else ""
    left += f"; {len(outcome.unread)} not followed" if outcome.unread else ""
    n = len(outcome.healths.keys() | ended.keys())  # what was seen at the last look only has a verdict, but no health
    how = "; ".join(x for x in (f"by their logs {ends}" if ends else "", f"now {now}" if now else "") if x)
    return f"{n} job{'s' if n != 1 else ''} watched; {how or 'now none'}{left}"


def unheard() -> bool:
    """Whether the other end of standard output is closed."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    ask = select.poll()
    ask.register(number, 0)
    return any(found & (select.POLLERR | select.POLLHUP) for _, found in ask.poll(0))
