"""Hand-made histories: attempts, progress and episodes as a test tells them, written by the real store."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from defib.adapters.duck import DuckStore, connect
from defib.engine.core import Append, JobJudged, StreamRead, StreamSeen
from defib.engine.incidents import attempt_id
from defib.engine.rulebook import Rulebook
from defib.engine.words import (
    PROGRESS,
    AttemptVerdict,
    Cause,
    Episode,
    Evidence,
    JobKey,
    ProgressSummary,
    RuleId,
    Signal,
    StreamFacts,
    StreamId,
    StreamNo,
    Suspect,
)

FORMAT = "megatron-lm.iteration"
START_S = 1_780_000_000  # 2026-05-28 20:26:40 UTC


def us(seconds: float | None) -> int | None:
    """Seconds after the beginning of the story -> microseconds UTC."""
    return None if seconds is None else round((START_S + seconds) * 1e6)


def episode(kind: str, onset: float, ended: float | None, *, clock: str = "event", **more: Any) -> Episode:
    """Times in seconds of the story on the event clock, of the clock itself on others."""
    base = START_S if clock == "event" else 0
    times = [None if t is None else round((base + t) * 1e6) for t in (onset, ended)]
    assert times[0] is not None
    return Episode(kind, more.pop("phase", "steady"), clock, times[0], times[0], times[1], **more)


@dataclass
class Try:
    """One attempt: (step, second) of every progress line, its first and last second, how it ended."""

    steps: list[tuple[int, float | None]] = field(default_factory=list)
    span: tuple[float | None, float | None] = (None, None)
    verdict: str = "completed"
    klass: str | None = None
    node: str | None = None
    at: float | None = None  # the cause's second
    confidence: str = "certain"
    suspect: Suspect | None = None
    episodes: tuple[Episode, ...] = ()
    clock: str = "event"
    step_s: float | None = None
    format: str = FORMAT
    kind: str = "train"
    lined: bool = True  # a line of the log names the class
    streams: int = 1  # logs that print the same steps


class Stories:
    """Writes jobs into one store; every try is a log of its own."""

    def __init__(self, db: str, book: Rulebook) -> None:
        self.db = db
        self._book = book
        self._next = 0

    def write(self, job: str, *tries: Try) -> None:
        """Judge a job with these attempts."""
        key = JobKey(job_id=job)
        store = DuckStore(self.db, self._book)
        attempts = []
        for index, t in enumerate(tries):
            numbers = list(range(self._next, self._next + t.streams))
            self._next += t.streams
            for n in numbers:
                sid, facts = StreamId(f"/logs/{job}-{index}-{n}.out"), StreamFacts(key)
                store.apply([StreamSeen(n, sid, facts), Append("progress", progress(n, t))])
                store.apply([StreamRead(n, sid, facts, 1000, 100, (), (), ())])
            attempts.append(attempt(key, index, t, numbers))
        store.apply([JobJudged(key, tuple(attempts), ())])
        store.close()

    def ask(self, query: str) -> list[dict[str, Any]]:
        con = connect(self.db, read_only=True)
        try:
            result = con.execute(query)
            names = [d[0] for d in result.description]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
        finally:
            con.close()


def progress(stream: int, t: Try) -> pa.Table:
    rows = [
        {
            **dict.fromkeys(PROGRESS.names), "stream": stream, "offset": i * 10, "line": i + 1, "format": t.format,
            "time_us": us(at), "step": step, "step_time_s": t.step_s,
        }
        for i, (step, at) in enumerate(t.steps)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=PROGRESS)


def signal(t: Try, stream: int) -> Signal:
    """The line of a try's cause."""
    return Signal(
        RuleId("gpu.xid"), StreamNo(stream), 500, 50, "the line of the cause", us(t.at), node=t.node, role="root", klass=t.klass,
        domain="gpu", title="A cause",
    )  # fmt: skip


def attempt(key: JobKey, index: int, t: Try, numbers: list[int]) -> AttemptVerdict:
    cause = None
    evidence: tuple[Evidence, ...] = ()
    if t.klass is not None and t.lined:
        s = signal(t, numbers[0])
        cause, evidence = Cause(s, t.klass, "gpu", t.confidence, "so it is told"), (Evidence("cause", s),)
    # A suspect's lines and an episode's onset lie in the attempt's first log, whatever number it has in this store.
    who, first = t.suspect, StreamNo(numbers[0])
    if who is not None:
        who = replace(who, evidence=tuple(replace(s, stream=first) for s in who.evidence))
    episodes = tuple(e if e.stream is None else replace(e, stream=first) for e in t.episodes)
    steps = [s for s, _ in t.steps]
    summary = None
    if steps:
        summary = ProgressSummary(
            t.format,
            "megatron-lm",
            t.kind,
            min(steps),
            steps[-1],
            1000,
            len(steps),
            t.step_s,
            t.step_s,
            None,
            None,
            t.clock,
        )
    return AttemptVerdict(
        attempt_id=attempt_id(key, index), job=key, job_name=None, restart_count=None, index=index, streams=tuple(StreamNo(n) for n in numbers),
        framework="megatron-lm", verdict=t.verdict, klass=t.klass, cause=cause, cascades=0, progress=summary, clock=t.clock, notes=(),
        evidence=evidence, first_us=us(t.span[0]), last_us=us(t.span[1]), first_line={StreamNo(n): 1 for n in numbers},
        last_line={StreamNo(n): 100 for n in numbers}, suspect=who, episodes=episodes,
    )  # fmt: skip


def suspect(node: str | None, **more: Any) -> Suspect:
    """Rank 3 of a node, found by its silence."""
    given: dict[str, Any] = {
        "rank": 3,
        "gpu": "5",
        "how": "silent-rank",
        "confidence": "likely",
        "because": "it alone said nothing",
    }
    return Suspect(node=node, **{**given, **more})


def died(node: str | None = "n1", at: float = 100.0, klass: str = "gpu-hardware", **more: Any) -> Try:
    """An attempt that died at a second, its cause printed by a node."""
    return Try([(1, at - 50), (2, at - 40)], (at - 60, at), "crashed", klass, node=node, at=at, **more)
