"""A generated run as the engine's source: whole as in a replay, or byte by byte as it came about.

In: a `Rendered` run. Out: what the engine said of it.
Always: time is simulated; the observer's clock has nothing to do with the clock the logs print.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from defib.engine import core, identity, ports
from defib.engine.blocks import Batch
from defib.engine.drive import Drive
from defib.engine.observe import NOTHING, Observation, Observer
from defib.engine.words import JobKey, JobState, StreamFacts, StreamId
from loggen.model import Rendered

EPOCH_US = 1_900_000_000_000_000
"""The observer's clock at the start of a job: years away from the logs' own."""
POLL_S = 10.0
IDLE_S = 60.0
"""No stretch without news is longer between two ticks."""
LINGER_S = 1200.0
"""Who does not hear the scheduler watches so long after the last byte before giving a job up."""
WHOLE = 1 << 20


def seconds(us: int) -> float:
    """A time of the observer's clock as seconds since the job's start."""
    return (us - EPOCH_US) / 1e6


@dataclass(slots=True)
class Ear:
    """A sink that keeps what the engine says of one job; its progress rows where asked for."""

    keep_rows: bool = False
    changes: list[core.HealthChanged] = field(default_factory=list)
    judged: core.JobJudged | None = None
    rows: list[pa.Table] = field(default_factory=list)

    def apply(self, effects: list[object]) -> None:
        for e in effects:
            if isinstance(e, core.JobJudged):
                self.judged = e
            elif isinstance(e, core.Append) and self.keep_rows and e.table == "progress":
                self.rows.append(e.rows)
            elif isinstance(e, core.HealthChanged):
                self.changes.append(e)


def facts_of(paths: list[str], templates: tuple[Any, ...], job_id: str) -> list[StreamFacts]:
    """What the paths say; the job is known to the caller, as it is to one who asked the scheduler for its logs."""
    told = identity.facts([f"/logs/{path}" for path in paths], templates, identity.Known())
    return [replace(fact, job=JobKey(job_id=job_id)) for fact in told]


class Finished:
    """The files as one finds them afterwards, one after the other in blocks."""

    def __init__(self, files: dict[str, bytes], facts: list[StreamFacts], block: int = WHOLE) -> None:
        self.items = self._all(files, facts, block)

    def _all(self, files: dict[str, bytes], facts: list[StreamFacts], block: int) -> Iterator[ports.SourceItem]:
        for n, (path, data) in enumerate(files.items()):
            yield ports.Opened(n, StreamId(f"/logs/{path}"), facts[n], len(data))
            for at in range(0, len(data), block):
                piece = data[at : at + block]
                yield ports.Data(n, piece, len(piece))
            yield ports.Closed(n)
        yield ports.JobClosed(facts[0].job)

    def poll(self) -> list[ports.SourceItem] | None:
        item = next(self.items, None)
        return None if item is None else [item]

    def close(self) -> None:
        self.items = iter(())


@dataclass(slots=True)
class Growing:
    """One file as it grows."""

    number: int
    path: str
    data: bytes
    times: list[float]
    ends: list[int]
    sent: int = 0
    opened: bool = False

    def size(self, now: float) -> int:
        at = bisect.bisect_right(self.times, now)
        return self.ends[at - 1] if at else 0

    def news(self, now: float) -> float:
        """When it grows next, after `now`."""
        at = bisect.bisect_right(self.times, now)
        return self.times[at] if at < len(self.times) else math.inf


class Watched:
    """The files as they grew, looked at every `POLL_S`; what the scheduler told is told too where `tell`."""

    def __init__(self, run: Rendered, facts: list[StreamFacts], *, tell: bool) -> None:
        self.facts, self.until = facts, run.ended_s + (POLL_S if tell else LINGER_S)
        self.files = [
            Growing(n, path, data, [t for t, _ in run.arrivals[path]], [end for _, end in run.arrivals[path]])
            for n, (path, data) in enumerate(run.files.items())
        ]
        self.told = list(run.told) if tell else []
        self.now = 0.0
        self.over = False

    def poll(self) -> list[Any] | None:
        if self.over:
            return None
        if self.now > self.until:
            self.over = True
            opened = [ports.Closed(f.number) for f in self.files if f.opened]
            return [*opened, ports.JobClosed(self.facts[0].job)]
        items = self.look()
        items.append(ports.Ticked(EPOCH_US + round(self.now * 1e6)))
        news = min([f.news(self.now) for f in self.files], default=math.inf)
        news = min(news, self.told[0].at if self.told else math.inf)
        due = math.ceil(min(news, self.now + IDLE_S) / POLL_S) * POLL_S
        self.now = max(due, self.now + POLL_S)
        return items

    def look(self) -> list[Any]:
        items: list[Any] = []
        while self.told and self.told[0].at <= self.now:
            told = self.told.pop(0)
            state = JobState(told.state, restart_count=told.restarts)
            items.append(ports.JobTold(self.facts[0].job, state))
        for f in self.files:
            size = f.size(self.now)
            if size and not f.opened:
                f.opened = True
                items.append(ports.Opened(f.number, StreamId(f"/logs/{f.path}"), self.facts[f.number], len(f.data)))
            if size > f.sent:
                items.append(ports.Data(f.number, f.data[f.sent : size], size - f.sent))
                f.sent = size
            if f.opened:
                items.append(ports.Looked(f.number, None))
        return items

    def close(self) -> None:
        self.over = True


class Recorder:
    """An observer that keeps what it sees."""

    def __init__(self, observer: Observer) -> None:
        self.inner, self.book = observer, observer.book
        self.seen: list[Observation] = []

    def observe(self, batch: Batch) -> Observation:
        seen = self.inner.observe(batch)
        self.seen.append(seen)
        return seen

    def forget(self, stream: int) -> None:
        self.inner.forget(stream)


class Recalled:
    """Says of the same bytes, however they are cut, what a recorder saw.

    What a record says depends on the record alone, so a run watched in a thousand batches need not be scanned a
    thousand times. The bench holds a sample of runs against an observer that does.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.book = recorder.book
        self.signals = By("signals", recorder.seen)
        self.progress = By("progress", recorder.seen)
        self.frameworks: dict[int, frozenset[str]] = {}
        for seen in recorder.seen:
            for stream, names in seen.frameworks.items():
                self.frameworks[stream] = self.frameworks.get(stream, frozenset()) | names

    def observe(self, batch: Batch) -> Observation:
        spans = [(p.stream, p.offset, p.offset + (1 if p.giant else len(p.payload))) for p in batch.pieces]
        names = {p.stream: self.frameworks.pop(p.stream) for p in batch.pieces if p.stream in self.frameworks}
        return Observation(self.signals.within(spans), self.progress.within(spans), names)

    def forget(self, stream: int) -> None: ...


class By:
    """Rows of one table by stream and offset."""

    def __init__(self, name: str, seen: list[Observation]) -> None:
        tables = [getattr(s, name) for s in seen]
        whole = pa.concat_tables(tables) if tables else getattr(NOTHING, name)
        stream = whole["stream"].to_numpy().astype(np.int64)
        offset = whole["offset"].to_numpy()
        order = np.lexsort((np.arange(len(stream)), offset, stream))
        self.rows = whole.take(pa.array(order)).combine_chunks()
        self.none = whole.slice(0, 0)
        offset, stream = offset[order], stream[order]
        cuts = np.flatnonzero(np.diff(stream)) + 1
        self.of: dict[int, tuple[int, Any]] = {}
        for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(stream)], strict=True):
            if high > low:
                self.of[int(stream[low])] = (low, offset[low:high])

    def within(self, spans: list[tuple[int, int, int]]) -> pa.Table:
        parts = []
        for stream, begin, end in spans:
            first, offsets = self.of.get(stream, (0, self.none["offset"].to_numpy()))
            low, high = np.searchsorted(offsets, (begin, end))
            if high > low:
                parts.append(self.rows.slice(first + int(low), int(high - low)))
        return pa.concat_tables(parts) if parts else self.none


def hear(
    observer: Observer | Recorder | Recalled, source: Any, *, batch: int = 4 << 20, keep_rows: bool = False
) -> Ear:
    """Run the engine over a source."""
    ear = Ear(keep_rows)
    Drive(observer, core.State(observer.book), ear, batch).run(source)  # type: ignore[arg-type]
    return ear
