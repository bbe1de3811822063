"""What a watch finds, as events of recovery: verdicts about the very run the scheduler shows, steps it printed, verdicts taken back.

In: effects of the engine, reads of the scheduler. Out: `Judged`, `TakenBack`, `Progressed`. Always: a job is named by the scheduler's own numbers,
never by text of a log; a verdict that may be about an earlier run is not told; a step counts for a run only where it was printed in that run:
into a log that appeared after its start, or with a stamp after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from defib.adapters.show import cut, safe
from defib.engine import provisional
from defib.engine.core import Append, HealthChanged, JobJudged, State, StreamSeen
from defib.engine.incidents import fingerprint
from defib.engine.jobs import AttemptKey, ClusterRead, JobFacts
from defib.engine.recover.events import Event, Judged, Progressed, SuspectPlace, TakenBack
from defib.engine.words import AttemptVerdict, JobKey

UNWELL: dict[str, Literal["dead", "hung", "slow"]] = {"dead": "dead", "hung": "hung", "slow": "slow"}
WELL = ("healthy", "ended")
DEAD = ("crashed", "stalled")  # verdicts of an attempt that ended badly
LINES_MAX, TEXT_MAX = 200, 1024
Ident = tuple[int, int | None]


@dataclass(slots=True)
class Verdicts:
    """Folds effects and reads. state: the engine's, read only; now_us: the observer's clock; kept: the lines a run's newest verdict rests on."""

    state: State
    now_us: Callable[[], int]
    kept: dict[AttemptKey, dict[str, Any]] = field(default_factory=dict)
    _facts: dict[Ident, JobFacts] = field(default_factory=dict)
    _opened: dict[int, tuple[JobKey, int, str]] = field(default_factory=dict)
    _waiting: dict[Ident, HealthChanged] = field(default_factory=dict)
    _steps: dict[AttemptKey, int] = field(default_factory=dict)

    def read(self, read: ClusterRead) -> list[Event]:
        """The scheduler was read; verdicts that waited for it."""
        if not read.ok:
            return []
        # of a heterogeneous job the leader stands for all its parts: it alone can be requeued
        self._facts = {_ident(j): j for j in read.jobs if not j.array_pending and not j.het_offset}
        alive = {j.key for j in self._facts.values()}
        for key in [k for k in self.kept if k not in alive]:
            del self.kept[key]
        for key in [k for k in self._steps if k not in alive]:
            del self._steps[key]
        waiting, self._waiting = self._waiting, {}
        return [e for change in waiting.values() for e in self._changed(change)]

    def resumed(self, state: State) -> None:
        """Logs that were open when an earlier watch ended: since when is not known, so only stamps tell which run printed a step."""
        for n, s in state.streams.items():
            if s.end is None:
                self._opened[n] = (s.facts.job, 0, s.id.path)

    def take(self, effects: Iterable[object]) -> list[Event]:
        """What follows from effects of the engine, in their order."""
        out: list[Event] = []
        for e in effects:
            if isinstance(e, StreamSeen):
                self._opened[e.stream] = (e.facts.job, self.now_us(), e.id.path)
            elif isinstance(e, Append) and e.table == "progress":
                out += self._progress(e)
            elif isinstance(e, HealthChanged):
                out += self._changed(e)
            elif isinstance(e, JobJudged):
                out += self._ended(e)
        return out

    def evidence(self, attempt: AttemptKey) -> dict[str, Any]:
        """The lines the newest verdict of a run rests on, for keeping apart. Raises ValueError where there is no verdict."""
        if attempt not in self.kept:
            raise ValueError("there is no verdict about this run to keep")
        return self.kept[attempt]

    # one effect

    def _changed(self, e: HealthChanged) -> list[Event]:
        ident = _named(e.job)
        if ident is None:
            return []
        facts = self._facts.get(ident)
        if facts is None:
            self._waiting[ident] = e
            return []
        if e.health in WELL:
            return [TakenBack(e.at_us, facts.key, cut(safe(e.because), 200))]
        if e.health not in UNWELL:
            return []
        onset = e.episode.onset_us if e.episode is not None and e.episode.clock == "arrival" else None
        if facts.start_us is not None and onset is not None and onset < facts.start_us and e.health != "dead":
            return []  # that silence began before this run did
        verdict = provisional.judge(self.state, e.job, self._streams(e.job, facts))
        if verdict is None:
            return []
        # the end is told as soon as the scheduler shows it; how it came is known when the logs have been read to theirs (`_ended`)
        return [self._judged(UNWELL[e.health], facts, verdict, e.because, e.at_us, drained=e.health != "dead")]

    def _ended(self, e: JobJudged) -> list[Event]:
        ident = _named(e.job)
        facts = self._facts.get(ident) if ident is not None else None
        out: list[Event] = []
        if facts is not None and e.attempts:
            last = e.attempts[-1]
            if last.verdict in DEAD:
                because = last.cause.because if last.cause is not None else f"its logs say {last.verdict}"
                out = [self._judged("dead", facts, last, because, self.now_us(), drained=True)]
            else:
                out = [TakenBack(self.now_us(), facts.key, f"its logs say {last.verdict}")]
        for n in [n for n, (job, _, _) in self._opened.items() if job == e.job]:
            del self._opened[n]
        return out

    def _lines(self, v: AttemptVerdict) -> dict[str, Any]:
        lines = [
            {"line": x.signal.line, "offset": x.signal.offset, "rule": str(x.signal.rule), "text": x.signal.text[:TEXT_MAX],
             "path": self._opened[x.signal.stream][2] if x.signal.stream in self._opened else ""}
            for x in v.evidence[:LINES_MAX]
        ]  # fmt: skip
        return {"verdict": v.verdict, "class": v.klass, "lines": lines, "step": _step(v)}

    def _judged(
        self,
        kind: Literal["dead", "hung", "slow"],
        facts: JobFacts,
        v: AttemptVerdict,
        because: str,
        at_us: int,
        *,
        drained: bool,
    ) -> Judged:
        self.kept[facts.key] = self._lines(v)
        klass = v.klass or ("unknown" if kind == "dead" else "hang" if kind == "hung" else "slowdown")
        cause, suspect = v.cause, v.suspect
        places: tuple[SuspectPlace, ...] = ()
        if suspect is not None and suspect.node is not None:
            places = (SuspectPlace(suspect.node, suspect.gpu, suspect.confidence, suspect.how, suspect.breadth),)
        return Judged(
            at_us, facts.key, kind, v.attempt_id, klass, cause.confidence if cause else "unknown", str(cause.signal.rule) if cause else "",
            fingerprint(cause.signal) if cause else klass, _step(v), places, True, drained, "", None, cut(safe(because), 300),
        )  # fmt: skip

    def _progress(self, e: Append) -> list[Event]:
        rows = e.rows.select(["stream", "time_us", "step"]).to_pydict()
        best: dict[AttemptKey, int] = {}
        for stream, time_us, step in zip(rows["stream"], rows["time_us"], rows["step"], strict=True):
            facts = self._running(stream)
            if step is None or facts is None or not self._printed_by(stream, time_us, facts):
                continue
            best[facts.key] = max(step, best.get(facts.key, -1))
        out: list[Event] = []
        for key, step in best.items():
            if step > self._steps.get(key, -1):
                self._steps[key] = step
                out.append(Progressed(self.now_us(), key, step))
        return out

    def _running(self, stream: int) -> JobFacts | None:
        opened = self._opened.get(stream)
        ident = _named(opened[0]) if opened is not None else None
        facts = self._facts.get(ident) if ident is not None else None
        return facts if facts is not None and facts.state in ("RUNNING", "COMPLETED") and not facts.flags else None

    def _printed_by(self, stream: int, time_us: int | None, facts: JobFacts) -> bool:
        if facts.restarts == 0:
            return True
        if facts.start_us is None:
            return False
        opened = self._opened[stream][1]
        return opened >= facts.start_us or (time_us is not None and facts.start_us <= time_us <= self.now_us())

    def _streams(self, job: JobKey, facts: JobFacts) -> list[int] | None:
        """The logs of the present run, where they can be told from those before."""
        if facts.restarts == 0 or facts.start_us is None:
            return None
        mine = [n for n, (of, at, _) in self._opened.items() if of == job and at >= facts.start_us]
        return mine or None


def _step(v: AttemptVerdict) -> int | None:
    return v.progress.last_step if v.progress is not None and v.progress.kind == "train" else None


def _ident(j: JobFacts) -> Ident:
    return j.het_job_id or j.array_job_id or j.job_id, j.array_task


def _named(job: JobKey) -> Ident | None:
    """The scheduler's numbers of a job; None for one that is known by its place only."""
    number, task = job.job_id, job.array_task
    if number is None or not (number.isascii() and number.isdigit()) or len(number) > 10:
        return None
    if task is not None and not (task.isascii() and task.isdigit() and len(task) <= 10):
        return None
    return int(number), int(task) if task is not None else None
