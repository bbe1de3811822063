"""What a scheduler's reads mean for those who follow logs: who runs, where it writes, who ended, who is gone.

In: `ClusterRead`s in order. Out: items, a few per change: `JobTold` for the fold, `Follow` and `Over` for the source of logs, `Vanished` and
`Odd` for people. Always: a read that failed changes nothing; absence counts only in good reads, several of them over more than a minute;
a job is told once as vanished; the same reads give the same items; memory is bounded by the jobs the scheduler knows.

A job here is what has one batch script: a job, one task of an array (tasks not split off yet are nobody), or a heterogeneous job with all its
components. Ids are used again (they wrap, or start anew with an emptied controller): a life under a known id that cannot be the one we knew gets
its submit time into its key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from defib.engine.jobs import TERMINAL_STATES, ClusterRead, JobFacts, LogPath
from defib.engine.ports import JobTold
from defib.engine.words import JobKey, JobState, StreamFacts

ABSENT_READS = 3
ABSENT_US = 60_000_000
SETTLE_US = 30_000_000  # an end that stands so long is one: whoever requeues at once has done so by then
PAST_MAX = 100_000  # ids remembered after their jobs are gone

Ident = tuple[int, int | None]  # of the array, the heterogeneous job or the job; task


@dataclass(frozen=True, slots=True)
class Follow:
    """This job's logs, as of now; told again when they change. Without streams nobody can see it: because says why.

    streams: each place with what is known of it; uid: who the files must belong to.
    """

    job: JobKey
    streams: tuple[tuple[LogPath, StreamFacts], ...]
    uid: int | None
    because: str = ""


@dataclass(frozen=True, slots=True)
class Over:
    """It has ended, and the end stands: no more is written than what its logs hold once they are quiet."""

    job: JobKey
    because: str


@dataclass(frozen=True, slots=True)
class Vanished:
    """The scheduler no longer knows it, and never told how it ended."""

    job: JobKey
    because: str


@dataclass(frozen=True, slots=True)
class Odd:
    """Something a person should know. Told once while it lasts."""

    text: str


Item = JobTold | Follow | Over | Vanished | Odd
Places = Callable[[JobFacts], tuple[tuple[LogPath, ...], tuple[str, ...]]]  # (logs, troubles) of a job


@dataclass(slots=True)
class Life:
    """One job as long as the scheduler knows it. members: its records, the leading one first."""

    job: JobKey
    members: tuple[JobFacts, ...]
    state: JobState | None = None
    streams: tuple[tuple[LogPath, StreamFacts], ...] | None = None
    troubles: tuple[str, ...] = ()
    ended_us: int | None = None
    over: bool = False
    missing: int = 0
    missing_us: int = 0

    @property
    def facts(self) -> JobFacts:
        return self.members[0]


@dataclass(slots=True)
class Roster:
    """Folds reads. places: where a job writes (pure)."""

    places: Places
    absent_reads: int = ABSENT_READS
    absent_us: int = ABSENT_US
    settle_us: int = SETTLE_US
    _lives: dict[Ident, Life] = field(default_factory=dict)
    _idents: dict[JobKey, Ident] = field(default_factory=dict)
    _past: OrderedDict[Ident, Life] = field(default_factory=OrderedDict)
    _said: frozenset[str] = frozenset()
    _at_us: int = -1

    def take(self, read: ClusterRead) -> list[Item]:
        """One read, in the order they were begun; a late one is ignored."""
        if read.at_us < self._at_us:
            return []
        self._at_us = read.at_us
        items: list[Item] = [Odd(t) for t in read.troubles if t not in self._said]
        self._said = frozenset(read.troubles)
        seen = _grouped(read.jobs)
        for ident, members in seen.items():
            self._see(ident, members, read.at_us, items)
        if read.ok:
            for ident in [i for i in self._lives if i not in seen]:
                self._miss(ident, read, items)
        return items

    # what others may ask

    def members(self, job: JobKey) -> tuple[JobFacts, ...]:
        """The records behind a job as last read, the leading one first; () for one that is gone."""
        ident = self._idents.get(job)
        return self._lives[ident].members if ident is not None else ()

    def owner(self, job: JobKey) -> int | None:
        """The user id its logs must belong to."""
        found = self.members(job)
        return found[0].uid if found else None

    def related(self, job: JobKey) -> tuple[JobKey, ...]:
        """The tasks of the same array, this one among them."""
        ident = self._idents.get(job)
        return tuple(life.job for i, life in self._lives.items() if ident is not None and i[0] == ident[0])

    def jobs(self) -> tuple[JobKey, ...]:
        """Every job the scheduler knows, or did a moment ago."""
        return tuple(self._idents)

    # seen

    def _see(self, ident: Ident, members: tuple[JobFacts, ...], at_us: int, items: list[Item]) -> None:
        life = self._life(ident, members, items)
        facts, before = life.facts, life.state
        life.missing = 0
        state = _state(members)
        if state != before:
            items.append(JobTold(life.job, state, facts.name or None))
            life.state = state
        if life.over and not _same_end(before, state):
            life.over, life.ended_us, life.streams = False, None, None  # it runs again, or has: follow it anew
        self._places(life, items)
        if state.state not in TERMINAL_STATES:
            life.ended_us = None
            return
        life.ended_us = at_us if life.ended_us is None or not _same_end(before, state) else life.ended_us
        if not life.over and at_us - life.ended_us >= self.settle_us:
            self._end(life, items)

    def _life(self, ident: Ident, members: tuple[JobFacts, ...], items: list[Item]) -> Life:
        """The life these records belong to; another one if they cannot be of the one we knew."""
        facts = members[0]
        known = self._lives.get(ident)
        before = known or self._past.pop(ident, None)
        if before is not None and not _another(before.facts, facts):
            before.members = members
            life = before
        else:
            if known is not None:
                if not known.over:
                    items.append(Over(known.job, "its id was given to another job"))
                del self._idents[known.job]
            task = None if ident[1] is None else str(ident[1])
            submit = None if before is None else facts.submit_us
            life = Life(JobKey(facts.cluster or None, str(ident[0]), task, submit), members)
        self._lives[ident] = life
        self._idents[life.job] = ident
        return life

    def _places(self, life: Life, items: list[Item]) -> None:
        facts = life.facts
        if not _started(facts):
            return
        logs, troubles = self.places(facts)
        items += [Odd(t) for t in troubles if t not in life.troubles]
        life.troubles = troubles
        streams = tuple(
            (
                log,
                StreamFacts(
                    life.job, facts.name or None, channel=log.channel if log.channel != "step" else None, user=facts.uid
                ),
            )
            for log in logs
        )
        if streams != life.streams:
            life.streams = streams
            because = "" if streams else troubles[0] if troubles else "the scheduler knows no log of it"
            items.append(Follow(life.job, streams, facts.uid, because))

    def _end(self, life: Life, items: list[Item]) -> None:
        life.over = True
        items.append(Over(life.job, f"the scheduler says {life.facts.state}"))

    # not seen

    def _miss(self, ident: Ident, read: ClusterRead, items: list[Item]) -> None:
        life = self._lives[ident]
        if any(m.job_id in read.unread for m in life.members):
            life.missing = 0
            return
        life.missing_us = read.at_us if life.missing == 0 else life.missing_us
        life.missing += 1
        if life.missing < self.absent_reads or read.at_us - life.missing_us <= self.absent_us:
            return
        if life.ended_us is not None:
            if not life.over:
                self._end(life, items)
        else:
            self._vanish(life, items)
        del self._lives[ident], self._idents[life.job]
        self._past[ident] = life
        while len(self._past) > PAST_MAX:
            self._past.popitem(last=False)

    def _vanish(self, life: Life, items: list[Item]) -> None:
        was = life.state.state if life.state is not None else ""
        because = (
            f"the scheduler has not known it in {life.missing} reads over more than {self.absent_us // 1_000_000} s; "
            f"it was {was or 'in an unknown state'} when it was last seen"
        )
        life.state = replace(life.state or JobState(""), state="", held=False, reason=because)
        life.over, life.streams = True, None
        items += [JobTold(life.job, life.state, life.facts.name or None), Vanished(life.job, because)]


def _grouped(jobs: Iterable[JobFacts]) -> dict[Ident, tuple[JobFacts, ...]]:
    """Records by the job they are of: components of a heterogeneous job together, tasks not split off left out."""
    found: dict[Ident, list[JobFacts]] = {}
    for j in jobs:
        if j.array_pending:
            continue
        ident = (j.het_job_id or j.array_job_id or j.job_id, j.array_task)
        found.setdefault(ident, []).append(j)
    return {i: tuple(sorted(m, key=lambda j: (j.het_offset or 0, j.job_id))) for i, m in found.items()}


def _state(members: tuple[JobFacts, ...]) -> JobState:
    """What the leading record says, with the nodes of all."""
    nodes = dict.fromkeys(n for m in members for n in m.nodes)
    return replace(members[0].told, nodes=tuple(nodes))


def _another(known: JobFacts, now: JobFacts) -> bool:
    """These facts cannot be of the job we knew under this id. A requeue sets the submit time anew, but counts up first; a controller that lost
    its last seconds counts back, but to an earlier submit time."""
    if known.uid is not None and now.uid is not None and known.uid != now.uid:
        return True
    if now.submit_us <= known.submit_us:
        return False
    return now.restarts < known.restarts or now.restarts == known.restarts == 0


def _started(facts: JobFacts) -> bool:
    """It runs, or has run: there may be a log."""
    return facts.restarts > 0 or facts.state not in ("PENDING", "") or "COMPLETING" in facts.flags


def _same_end(before: JobState | None, now: JobState) -> bool:
    """Still the end that was told before."""
    return before is not None and (before.state, before.restart_count) == (now.state, now.restart_count)
