"""What a watch knows of running jobs right now, as rows: a fold over commits, so that the journal alone makes them again.

In: the events and effects of one commit after another, and the engine's state after each. Out: rows of `live_jobs`, `live_streams` and
`health`. Always holds: the rows depend on the commits alone, never on when somebody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from defib.adapters import rows
from defib.engine.core import (
    Event,
    HealthChanged,
    JobEnded,
    JobSeen,
    Observed,
    State,
    StreamEnded,
    StreamLooked,
    StreamOpened,
    Tick,
)
from defib.engine.words import JobKey


@dataclass(slots=True)
class Board:
    """Rows by job and by stream. Changed and gone are what has changed since `clean`."""

    now_us: int | None = None
    jobs: dict[JobKey, dict[str, Any]] = field(default_factory=dict)
    streams: dict[int, dict[str, Any]] = field(default_factory=dict)
    members: dict[JobKey, list[int]] = field(default_factory=dict)
    unseen: set[JobKey] = field(default_factory=set)  # jobs no tick has come for yet
    changed_jobs: set[JobKey] = field(default_factory=set)
    changed_streams: set[int] = field(default_factory=set)
    gone_jobs: set[str] = field(default_factory=set)
    gone_streams: set[str] = field(default_factory=set)

    def take(self, events: Sequence[Event], effects: Sequence[object], state: State) -> None:
        """One commit."""
        ticked = next((e.at_us for e in reversed(events) if isinstance(e, Tick)), None)
        self.now_us = ticked if ticked is not None else self.now_us
        touched: set[JobKey] = set()
        for e in events:
            self._event(e, touched)
        if ticked is not None:
            touched |= self.unseen
            self.unseen = set()
        for effect in effects:
            if isinstance(effect, HealthChanged) and effect.job in self.jobs:
                self.jobs[effect.job]["since"] = effect.at_us
                touched.add(effect.job)
        for job in touched & self.jobs.keys():
            row, watch = self.jobs[job], state.live.watches.get(job)
            if watch is not None:
                row.update(attempt=watch.attempt + 1, health=watch.health, because=watch.because, step=watch.step)
                row["since"] = self.now_us if row["since"] is None else row["since"]
        self.changed_jobs |= touched & self.jobs.keys()

    def _event(self, e: Event, touched: set[JobKey]) -> None:
        match e:
            case StreamOpened(stream, name, facts):
                self.streams[stream] = {
                    "stream_id": rows.stream_key(name), "path": name.path, "generation": name.generation, "job": facts.job, "bytes": 0,
                    "lines": 0, "last_line": None, "last_look": None, "trouble": None, "trouble_since": None, "ended": False,
                }  # fmt: skip
                row = self._job(facts.job)
                row["streams"] += 1
                self.members.setdefault(facts.job, []).append(stream)
                row["job_name"] = row["job_name"] or facts.job_name
                self._touch(stream, touched)
            case Observed(_, grown):
                for stream, (read, _, lines) in grown.items():
                    self.streams[stream].update(bytes=read, lines=lines, last_line=self.now_us)
                    self.jobs[self.streams[stream]["job"]]["last_line"] = self.now_us
                    self._touch(stream, touched)
            case StreamLooked(stream, trouble):
                s = self.streams[stream]
                since = None if trouble is None else s["trouble_since"] if s["trouble"] else self.now_us
                s.update(trouble=trouble, trouble_since=since)
                s["last_look"] = self.now_us if trouble is None else s["last_look"]
                self.changed_streams.add(stream)
            case StreamEnded(stream):
                self.streams[stream]["ended"] = True
                self._touch(stream, touched)
            case JobSeen(job, said, name):
                row = self._job(job)
                row.update(state=said.state, job_name=name or row["job_name"])
                touched.add(job)
            case JobEnded(job):
                self._end(job)

    def _job(self, job: JobKey) -> dict[str, Any]:
        if job not in self.jobs:
            self.unseen.add(job)
            self.jobs[job] = {
                "job": rows.job_name(job), "cluster": job.cluster, "job_id": job.job_id, "array_task": job.array_task, "job_name": None,
                "attempt": 1, "health": "starting", "since": None, "because": None, "state": None, "step": None,
                "first_seen": self.now_us, "last_line": None, "streams": 0,
            }  # fmt: skip
        return self.jobs[job]

    def _touch(self, stream: int, touched: set[JobKey]) -> None:
        self.changed_streams.add(stream)
        touched.add(self.streams[stream]["job"])

    def _end(self, job: JobKey) -> None:
        row = self.jobs.pop(job, None)
        if row is not None:
            self.gone_jobs.add(row["job"])
            self.changed_jobs.discard(job)
        for n in self.members.pop(job, []):
            self.gone_streams.add(self.streams.pop(n)["stream_id"])
            self.changed_streams.discard(n)

    def whole(self) -> None:
        """Everything counts as changed."""
        self.changed_jobs, self.changed_streams = set(self.jobs), set(self.streams)

    def clean(self) -> None:
        """What has changed so far is written down."""
        self.changed_jobs.clear()
        self.changed_streams.clear()
        self.gone_jobs.clear()
        self.gone_streams.clear()

    def job_rows(self) -> list[dict[str, Any]]:
        """Changed rows of `live_jobs`."""
        return [_moments(self.jobs[j], "since", "first_seen", "last_line") for j in self.changed_jobs]

    def stream_rows(self) -> list[dict[str, Any]]:
        """Changed rows of `live_streams`."""
        told = [_moments(self.streams[n], "last_line", "last_look", "trouble_since") for n in self.changed_streams]
        return [{**r, "job": rows.job_name(r["job"])} for r in told]


def health_row(e: HealthChanged) -> dict[str, Any]:
    """Row of `health`."""
    seen = e.episode
    return {
        "job": rows.job_name(e.job), "attempt": e.attempt + 1, "time": rows.moment(e.at_us), "was": e.was, "health": e.health,
        "because": e.because, "phase": seen.phase if seen else None,
        "onset": rows.moment(seen.onset_us) if seen and seen.clock in ("event", "arrival") else None,
        "onset_step": seen.onset_step if seen else None,
    }  # fmt: skip


def _moments(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**row, **{name: rows.moment(row[name]) for name in names}}
