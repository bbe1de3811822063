"""Every job that runs, as the observer's clock goes on: which ones deserve a look at this tick, and what the look changes.

Only replay's events leave this untouched: without ticks nothing here happens. Jobs are looked at when something new was said of them or
when their silence alone may have become too long, so a tick costs little however many jobs are quiet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from defib.engine import episodes, schedule, trace
from defib.engine.rhythm import Habits
from defib.engine.rulebook import Rulebook
from defib.engine.standing import Member, current
from defib.engine.trace import StreamFold
from defib.engine.watch import JobWatch
from defib.engine.words import AttemptVerdict, Episode, JobKey, JobState, StreamFacts, StreamId

NAMES_MAX = 10_000  # job names whose habits are remembered, the least recently used go first

Change = tuple[JobKey, int, str, str, int, str, Episode | None]


class Open(Protocol):
    """A stream as the core holds it."""

    id: StreamId
    facts: StreamFacts
    fold: StreamFold


@dataclass(slots=True)
class Live:
    """The watches of running jobs and the clock."""

    now_us: int | None = None
    watches: dict[JobKey, JobWatch] = field(default_factory=dict)
    habits: dict[str, Habits] = field(default_factory=dict)
    _dirty: dict[JobKey, None] = field(default_factory=dict)
    _states: dict[JobKey, JobState] = field(default_factory=dict)
    _names: dict[JobKey, str] = field(default_factory=dict)
    _reads: dict[int, tuple[JobKey, int, int]] = field(default_factory=dict)
    _troubles: dict[int, tuple[JobKey, str | None]] = field(default_factory=dict)

    def told(self, job: JobKey, state: JobState, name: str | None) -> None:
        if self._states.get(job) != state:
            self._dirty[job] = None
        self._states[job] = state
        if name:
            self._names[job] = name

    def looked(self, job: JobKey, stream: int, trouble: str | None) -> None:
        self._troubles[stream] = (job, trouble)

    def trouble_of(self, job: JobKey, stream: int) -> str | None:
        """What was last said of a stream's trouble."""
        if stream in self._troubles:
            return self._troubles[stream][1]
        watch = self.watches.get(job)
        return watch.troubles[stream][1] if watch is not None and stream in watch.troubles else None

    def attempt_of(self, job: JobKey) -> int:
        """The attempt that runs now, as the watch counts them."""
        return self.watches[job].attempt if job in self.watches else 0

    def grew(self, reads: Mapping[int, tuple[JobKey, int, int]]) -> None:
        self._reads.update(reads)

    def state_of(self, job: JobKey) -> JobState | None:
        return self._states.get(job)

    def told_of(self) -> dict[JobKey, JobState]:
        """Jobs the scheduler has spoken of and that are not over, with its last word."""
        return dict(self._states)

    def outlived(self, job: JobKey) -> dict[int, int]:
        """How far each stream's lines arrived well before progress did."""
        return dict(self.watches[job].outlived) if job in self.watches else {}

    def habits_of(self, name: str | None) -> Habits:
        """What earlier jobs of this name showed."""
        return self.habits.get(name or "", Habits())

    def tick(
        self, at_us: int, book: Rulebook, jobs: Mapping[JobKey, Sequence[int]], streams: Mapping[int, Open]
    ) -> list[Change]:
        """The clock goes on: look at what is new or due."""
        assert self.now_us is None or at_us >= self.now_us, "the observer's clock never goes back"
        slept = at_us - self.now_us if self.now_us is not None else 0
        if slept > book.detect.blind.stale_tick_s * 1e6:
            # The observer slept (a suspended host, a stopped process): that silence was its own.
            for w in self.watches.values():
                w.restart_clocks(slept)
                w.due_us = at_us
        self.now_us = at_us
        for job in {**jobs, **self._states}:
            if job not in self.watches:
                self.watches[job] = JobWatch(job, self._elder(job, jobs, streams), at_us, book.detect, looked_us=at_us)
                self._dirty[job] = None
        self._take_in(at_us)
        changes: list[Change] = []
        for job, w in self.watches.items():
            if job in self._dirty or w.due_us <= at_us:
                changes += self._look(w, book, jobs.get(job, ()), streams, at_us)
        self._dirty.clear()
        return changes

    def _take_in(self, at_us: int) -> None:
        """Bytes and troubles since the last tick."""
        for stream, (job, read, lines) in self._reads.items():
            self._dirty[job] = None
            self.watches[job].grew(stream, read, lines, at_us)
        self._reads.clear()
        for stream, (job, trouble) in self._troubles.items():
            w = self.watches[job]
            had = w.troubles.get(stream)
            if trouble is not None and had is None:
                w.troubles[stream] = (at_us, trouble)
                w.due_us = min(w.due_us, at_us + round(w.policy.blind.after_s * 1e6))
            elif trouble is not None and had is not None:
                w.troubles[stream] = (had[0], trouble)
            elif trouble is None and had is not None:
                del w.troubles[stream]
                w.restart_clocks(at_us - had[0])  # what it did meanwhile nobody saw
                self._dirty[job] = None
        self._troubles.clear()

    def _look(
        self, w: JobWatch, book: Rulebook, members: Sequence[int], streams: Mapping[int, Open], at_us: int
    ) -> list[Change]:
        state = self._states.get(w.job)
        if schedule.waiting(state):
            w.restart_clocks(at_us - w.looked_us)  # it was not meant to move
        w.looked_us = at_us
        again = w.restarted(state)
        for n in members if again else ():
            streams[n].fold.cut(*w.extents.get(n, (0, 0)))  # what came since the last look is the new attempt's
        place, traces = current([_member(streams[n]) for n in members])
        if w.follow(place, again=again):
            w.begin(at_us, w.rhythm.habits().with_(self._elder(w.job, {w.job: members}, streams)), traces)
        speaking = episodes.voices(traces)
        if w.job in self._dirty:
            w.note(traces, speaking, at_us)
        w.extents = {n: (t.end_offset, t.end_line) for n in members for t in streams[n].fold.traces[-1:]}
        was = w.health
        known = any(streams[n].fold.frameworks for n in members)
        found = w.look(traces, speaking, book, _errors(members, streams), at_us, known=known)
        if not w.settle(found, at_us):
            return []
        return [(w.job, w.attempt, was, found.health, at_us, found.because, found.episode or w.unwell)]

    def _elder(self, job: JobKey, jobs: Mapping[JobKey, Sequence[int]], streams: Mapping[int, Open]) -> Habits:
        return self.habits_of(self._name(job, jobs.get(job, ()), streams))

    def _name(self, job: JobKey, members: Iterable[int], streams: Mapping[int, Open]) -> str | None:
        return self._names.get(job) or next((n for s in members if (n := streams[s].facts.job_name)), None)

    def end(
        self, job: JobKey, attempts: tuple[AttemptVerdict, ...], folds: Sequence[StreamFold]
    ) -> tuple[AttemptVerdict, ...]:
        """The job is over: its attempts with the stretches that were seen live, surer than what stamps tell. Its habits stay with its name."""
        w = self.watches.pop(job, None)
        self._states.pop(job, None)
        self._dirty.pop(job, None)
        # What was read or looked at since the last tick has nobody left to speak to.
        self._reads = {n: read for n, read in self._reads.items() if read[0] != job}
        self._troubles = {n: look for n, look in self._troubles.items() if look[0] != job}
        name = self._names.pop(job, None) or next((a.job_name for a in attempts if a.job_name), None)
        if w is None:
            return attempts
        if name:
            had = self.habits.pop(name, Habits())
            for fold in folds:
                had = had.with_(fold.elder).with_(trace.habits(fold.now))
            self.habits[name] = had.with_(w.rhythm.habits())
            while len(self.habits) > NAMES_MAX:
                del self.habits[next(iter(self.habits))]
        return tuple(_with_live(a, w, attempts[-1].index - a.index) for a in attempts)


def _with_live(a: AttemptVerdict, w: JobWatch, back: int) -> AttemptVerdict:
    """An attempt with what was seen of it while it ran. back: how many attempts before the last one."""
    seen = [e for attempt, e in w.lasting() if w.attempt - attempt == back]
    logged = [e for e in a.episodes if e.kind == "slow" or not seen]
    a = replace(a, episodes=(*logged, *seen))
    if back == 0 and w.health == "hung" and a.verdict in schedule.SILENT_VERDICTS:
        return replace(a, verdict="stalled", klass="hang")
    return a


def _member(s: Open) -> Member:
    number = s.facts.restart_count if s.facts.restart_count is not None else s.facts.attempt
    return Member(s.id.path, s.id.generation, number, s.fold.traces)


def _errors(members: Sequence[int], streams: Mapping[int, Open]) -> frozenset[int]:
    return frozenset(n for n in members if streams[n].facts.channel == "err")
