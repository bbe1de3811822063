"""How many records of one job and one user are kept: a log that matches in every line must not fill the journal and the history.

In: observations, in order. Out: the same, or with fewer rows once a job (or the running jobs of its user) is over its limit: then the first
few of every rule still pass, since a cause must not hide behind a flood, and of progress the last line of each log in a batch, since a run that
moves must not look hung. Always holds: every row that is left out is counted by rule and told in a note of its log, and so of the attempt;
below the limit nothing changes.

What a start must know is kept as marks: what was left out, exactly, and how much was kept, in steps of a sixteenth of the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import orjson
import pyarrow as pa

from defib.engine.core import State
from defib.engine.observe import Observation
from defib.engine.ports import Marked
from defib.engine.words import JobKey

SOURCE = "quota"
FIRST = 10  # of each rule of a job that is over its limit
STEPS = 16
TOLD_RULES = 5
PROGRESS_NAME = "progress"


@dataclass(slots=True)
class Quota:
    """The limits of one drive, 0: none. most: records kept of one job; of_user: of all running jobs of one user, where a scheduler names him;
    over: rows left out so far, of jobs that still run."""

    state: State
    most: int
    of_user: int = 0
    over: int = 0
    _kept: Counter[JobKey] = field(default_factory=Counter)
    _user: dict[JobKey, int] = field(default_factory=dict)
    _users: Counter[int] = field(default_factory=Counter)  # what is kept of a user's running jobs
    _first: Counter[tuple[JobKey, str]] = field(default_factory=Counter)
    _left: dict[int, Counter[str]] = field(default_factory=dict)  # stream -> rule -> rows left out
    _step: dict[JobKey, int] = field(default_factory=dict)
    _changed: set[int] = field(default_factory=set)

    def restore(self, marks: Mapping[bytes, bytes]) -> None:
        """Go on from the marks of an earlier life."""
        for key, mark in marks.items():
            stream, said = int(key), orjson.loads(mark)
            if stream not in self.state.streams:
                continue
            job = self.state.streams[stream].facts.job
            self._keep(job, stream, max(0, said["kept"] - self._kept[job]))
            self._first.update({(job, rule): n for rule, n in said["first"].items()})
            if said["left"]:
                self._left[stream] = Counter(said["left"])
                self.over += sum(said["left"].values())

    def jobs_over(self) -> int:
        """How many running jobs are over their limit."""
        return len({self.state.streams[n].facts.job for n in self._left if n in self.state.streams})

    def trim(self, seen: Observation) -> Observation:
        """The rows that are kept."""
        rows: Counter[int] = Counter()
        for table in (seen.signals, seen.progress):
            if table.num_rows:
                counted = table.column("stream").value_counts()
                rows.update({v["values"]: v["counts"] for v in counted.to_pylist()})
        jobs: Counter[JobKey] = Counter()
        users: Counter[int] = Counter()
        for n, count in rows.items():
            facts = self.state.streams[n].facts
            jobs[facts.job] += count
            if facts.user is not None:
                users[facts.user] += count
        full = {u for u, count in users.items() if self.of_user and self._users[u] + count > self.of_user}
        tight = {job for job, count in jobs.items() if self.most and self._kept[job] + count > self.most}
        tight |= {f.job for n in rows if (f := self.state.streams[n].facts).user in full}
        for n, count in rows.items():
            job = self.state.streams[n].facts.job
            self._keep(job, n, count if job not in tight else 0)
        for n in rows:
            job = self.state.streams[n].facts.job
            step = self._kept[job] * STEPS // min(m for m in (self.most, self.of_user) if m)
            if step > self._step.get(job, 0):
                self._step[job] = step
                self._changed.add(n)
        if not tight:
            return seen
        return replace(seen, signals=self._signals(seen.signals, tight), progress=self._progress(seen.progress, tight))

    def notes(self, stream: int) -> tuple[str, ...]:
        """What a log that ends says of rows left out."""
        left = self._left.get(stream)
        if not left:
            return ()
        most = ", ".join(f"{name} x{n}" for name, n in sorted(left.items(), key=lambda x: (-x[1], x[0]))[:TOLD_RULES])
        more = f" and {len(left) - TOLD_RULES} more rules" if len(left) > TOLD_RULES else ""
        limits = [f"{self.most} of one job"] if self.most else []
        if self.of_user and self.state.streams[stream].facts.user is not None:
            limits.append(f"{self.of_user} of one user")
        return (
            f"{left.total()} records over the limit of {' or '.join(limits)} were counted and not kept: {most}{more}",
        )

    def forget(self, job: JobKey) -> None:
        """A job is over."""
        for n in self.state.jobs.get(job, ()):
            self.over -= self._left.pop(n, Counter()).total()
            self._changed.add(n)
        kept = self._kept.pop(job, 0)
        user = self._user.pop(job, None)
        if user is not None:
            self._users[user] -= kept
            if not self._users[user]:
                del self._users[user]
        self._step.pop(job, None)
        for key in [k for k in self._first if k[0] == job]:
            del self._first[key]

    def marks(self) -> list[Marked]:
        """What has changed since the last time."""
        out = []
        for n in sorted(self._changed):
            s = self.state.streams.get(n)
            job = s.facts.job if s is not None else None
            if job is None or job not in self._kept:
                out.append(Marked(SOURCE, b"%d" % n, b""))
                continue
            first = {rule: count for (j, rule), count in self._first.items() if j == job}
            said = {"kept": self._kept[job], "left": dict(self._left.get(n, {})), "first": first}
            out.append(Marked(SOURCE, b"%d" % n, orjson.dumps(said)))
        self._changed.clear()
        return out

    def _signals(self, table: pa.Table, tight: set[JobKey]) -> pa.Table:
        keep = []
        streams, rules = table.column("stream").to_pylist(), table.column("rule").to_pylist()
        for n, rule in zip(streams, rules, strict=True):
            job = self.state.streams[n].facts.job
            free = job not in tight or self._room(job)
            first = not free and self._first[job, rule] < FIRST
            if free and job in tight:
                self._keep(job, n, 1)
            elif first:
                self._first[job, rule] += 1
            elif not free:
                self._leave(n, rule)
            keep.append(free or first)
        return table.filter(pa.array(keep, pa.bool_()))

    def _progress(self, table: pa.Table, tight: set[JobKey]) -> pa.Table:
        streams = table.column("stream").to_pylist()
        last = {n: at for at, n in enumerate(streams)}
        keep = []
        for at, n in enumerate(streams):
            job = self.state.streams[n].facts.job
            free = job not in tight or self._room(job)
            if free and job in tight:
                self._keep(job, n, 1)
            elif not free and last[n] != at:
                self._leave(n, PROGRESS_NAME)
            keep.append(free or last[n] == at)
        return table.filter(pa.array(keep, pa.bool_()))

    def _keep(self, job: JobKey, stream: int, count: int) -> None:
        """So many records more are kept."""
        self._kept[job] += count
        user = self._user.get(job, self.state.streams[stream].facts.user)
        if user is not None:
            self._user[job] = user
            self._users[user] += count

    def _room(self, job: JobKey) -> bool:
        """Whether one more fits both limits."""
        user = self._user.get(job)
        over = bool(self.of_user) and user is not None and self._users[user] >= self.of_user
        return not over and (not self.most or self._kept[job] < self.most)

    def _leave(self, stream: int, name: str) -> None:
        self._left.setdefault(stream, Counter())[name] += 1
        self._changed.add(stream)
        self.over += 1
