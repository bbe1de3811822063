"""The one door: `advance(state, event) -> effects`.

Events tell what was seen; effects say what is to be written. No I/O, no clock: the same events give the same effects. `check`
states the invariants; tests run it after every event.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from defib.engine.incidents import JobStory, assemble
from defib.engine.live import Live
from defib.engine.observe import Observation
from defib.engine.points import NONE, ProgressRows
from defib.engine.rulebook import Rule, Rulebook
from defib.engine.trace import KEEP, KEEP_LIVE, StreamFold
from defib.engine.words import (
    AttemptVerdict,
    Episode,
    JobKey,
    JobState,
    RuleId,
    Signal,
    StreamFacts,
    StreamId,
    StreamNo,
)

REPLACED = "another file stands at its path, or it was cut; that is read from now on"


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """A stream begins; its number is used once."""

    stream: int
    id: StreamId
    facts: StreamFacts


@dataclass(frozen=True, slots=True)
class Observed:
    """What a batch said, rows of many streams together. grown: of every stream with new bytes, the bytes read so far, those of
    whole records, and the lines: a record that has only begun may yet say something else."""

    observation: Observation
    grown: dict[int, tuple[int, int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """end_offset: bytes read; end_line: lines read; tail: the last records as text; notes: oddities of the bytes."""

    stream: int
    end_offset: int
    end_line: int
    tail: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Every stream of the job has ended: judge its attempts."""

    job: JobKey


@dataclass(frozen=True, slots=True)
class StreamLooked:
    """A look at a live stream. trouble: why nobody can vouch for what it holds, else None."""

    stream: int
    trouble: str | None


@dataclass(frozen=True, slots=True)
class JobSeen:
    """What the scheduler says of a job."""

    job: JobKey
    state: JobState
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """The observer's clock, microseconds, never going back. What was observed since the tick before arrived now."""

    at_us: int


Event = StreamOpened | Observed | StreamEnded | JobEnded | StreamLooked | JobSeen | Tick


@dataclass(frozen=True, slots=True)
class StreamSeen:
    """A stream number now stands for this log; comes before any of its rows."""

    stream: int
    id: StreamId
    facts: StreamFacts


@dataclass(frozen=True, slots=True)
class Append:
    """Rows for a table: signals or progress, with stream numbers."""

    table: str
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class StreamRead:
    """A stream as it was read: the row of `streams`."""

    stream: int
    id: StreamId
    facts: StreamFacts
    size: int
    lines: int
    frameworks: tuple[str, ...]
    tail: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobJudged:
    """The last effect of a job: its attempts in order, and their windows (WINDOWS rows without stream ids resolved)."""

    job: JobKey
    attempts: tuple[AttemptVerdict, ...]
    windows: tuple[tuple[int, list[dict[str, object]]], ...]


@dataclass(frozen=True, slots=True)
class HealthChanged:
    """A running job's health is another now. episode: the stretch that begins, where one does."""

    job: JobKey
    attempt: int
    was: str
    health: str
    at_us: int
    because: str
    episode: Episode | None = None


@dataclass(frozen=True, slots=True)
class LogTold:
    """Something befell a log of a running job that no line in it tells. what: `unreadable` (nobody can vouch for what it holds), `readable`
    (again), `replaced` (another file stands at its path, or it was cut), `closed` (with oddities); note: more of it. attempt: None of a file that no
    longer stands at its path, whose attempt is known when its job is judged."""

    job: JobKey
    attempt: int | None
    path: str
    at_us: int
    what: str
    note: str


Effect = StreamSeen | Append | StreamRead | JobJudged | HealthChanged | LogTold


@dataclass(slots=True)
class OpenStream:
    """A stream of a job that is not judged yet."""

    id: StreamId
    facts: StreamFacts
    fold: StreamFold
    end: StreamEnded | None = None


@dataclass(slots=True)
class State:
    """Everything the engine remembers. Dies with its jobs: a judged job leaves nothing behind."""

    book: Rulebook
    streams: dict[int, OpenStream] = field(default_factory=dict)
    jobs: dict[JobKey, list[int]] = field(default_factory=dict)
    live: Live = field(default_factory=Live)


def advance(state: State, event: Event) -> list[Effect]:
    """Take one event in; give back what is to be done, in order."""
    match event:
        case StreamOpened():
            return _opened(state, event)
        case Observed():
            return _observed(state, event)
        case StreamEnded():
            return _ended(state, event)
        case JobEnded():
            return _judged(state, event.job)
        case StreamLooked():
            return _looked(state, event)
        case JobSeen():
            state.live.told(event.job, event.state, event.name)
            return []
        case Tick():
            return [
                HealthChanged(*found) for found in state.live.tick(event.at_us, state.book, state.jobs, state.streams)
            ]


def check(state: State) -> None:
    """Invariants that hold between events."""
    for key, members in state.jobs.items():
        assert members, "a job has streams"
        for n in members:
            assert state.streams[n].facts.job == key, "a stream belongs to its job"
    for open_stream in state.streams.values():
        traces = open_stream.fold.traces
        assert all(a.end_offset == b.begin_offset for a, b in pairwise(traces)), "attempts of a stream touch"
        for t in traces:
            held: dict[str, int] = {}
            for s in t.kept:
                held[s.rule] = held.get(s.rule, 0) + 1
            assert all(n <= KEEP + KEEP_LIVE for n in held.values()), "signals kept per rule are bounded"
            assert all(t.counts[r] >= n for r, n in held.items()), "what is kept is counted"


def _opened(state: State, event: StreamOpened) -> list[Effect]:
    assert event.stream not in state.streams, "a stream number is used once"
    elder = state.live.habits_of(event.facts.job_name)
    fold = StreamFold(event.stream, state.book.format_by_id, state.book.detect, elder)
    state.streams[event.stream] = OpenStream(event.id, event.facts, fold)
    state.jobs.setdefault(event.facts.job, []).append(event.stream)
    seen = StreamSeen(event.stream, event.id, event.facts)
    return [seen, *(_told(state, event.stream, "replaced", REPLACED) if event.id.generation else [])]


def _looked(state: State, event: StreamLooked) -> list[Effect]:
    job = state.streams[event.stream].facts.job
    had = state.live.trouble_of(job, event.stream)
    state.live.looked(job, event.stream, event.trouble)
    if event.trouble == had:
        return []
    return list[Effect](
        _told(state, event.stream, *(("readable", "") if event.trouble is None else ("unreadable", event.trouble)))
    )


def _told(state: State, stream: int, what: str, note: str) -> list[LogTold]:
    """Of a log of a running job; nothing where no clock runs, as in a replay."""
    now, s = state.live.now_us, state.streams[stream]
    if now is None:
        return []
    return [LogTold(s.facts.job, state.live.attempt_of(s.facts.job), s.id.path, now, what, note)]


def _observed(state: State, event: Observed) -> list[Effect]:
    seen = event.observation
    state.live.grew({n: (state.streams[n].facts.job, read, lines) for n, (read, _, lines) in event.grown.items()})
    for stream, (_, whole, lines) in event.grown.items():
        state.streams[stream].fold.reached(whole, lines)
    for stream, names in seen.frameworks.items():
        state.streams[stream].fold.frameworks |= names
    signals = _signals_by_stream(state.book, seen.signals)
    progress = _progress_by_stream(_known(state.book, seen.progress))
    for stream in sorted({*signals, *progress}):
        state.streams[stream].fold.fold(signals.get(stream, []), progress.get(stream) or _no_rows())
    effects: list[Effect] = []
    if seen.signals.num_rows:
        effects.append(Append("signals", seen.signals))
    if seen.progress.num_rows:
        effects.append(Append("progress", seen.progress))
    return effects


def _ended(state: State, event: StreamEnded) -> list[Effect]:
    s = state.streams[event.stream]
    assert s.end is None, "a stream ends once"
    s.end = event
    s.fold.finish(event.end_offset, event.end_line)
    return [read_of(event.stream, s), *(_closed(state, event.stream, "; ".join(event.notes)) if event.notes else [])]


def _closed(state: State, stream: int, notes: str) -> list[LogTold]:
    """Oddities of a log that ended. Of one whose place another took, following its path goes on."""
    mine = state.streams[stream].id
    others = (state.streams[n].id for n in state.jobs[state.streams[stream].facts.job])
    if not any(o.path == mine.path and o.generation > mine.generation for o in others):
        return _told(state, stream, "closed", notes)
    return [
        replace(e, attempt=None) for e in _told(state, stream, "closed", f"the file that stood there before: {notes}")
    ]


def read_of(stream: int, s: OpenStream) -> StreamRead:
    """What an ended stream of a job that is not judged yet was told as."""
    assert s.end is not None, "it has ended"
    frameworks = tuple(sorted(s.fold.frameworks))
    return StreamRead(stream, s.id, s.facts, s.end.end_offset, s.end.end_line, frameworks, s.end.tail, s.end.notes)


def _judged(state: State, job: JobKey) -> list[Effect]:
    members = state.jobs.pop(job, [])
    if not members:
        state.live.end(job, (), [])
        return []  # a job that never had a log has no attempt to tell of
    streams = [(n, state.streams[n].facts, state.streams[n].fold, _tail(state.streams[n])) for n in members]
    names = {n: state.streams[n].id for n in members}
    story = JobStory(job, streams, state.live.state_of(job), state.live.outlived(job), names)
    attempts, windows = assemble(story, state.book)
    attempts = state.live.end(job, attempts, [fold for _, _, fold, _ in streams])
    for n in members:
        del state.streams[n]
    return [JobJudged(job, attempts, windows)]


def _tail(s: OpenStream) -> tuple[tuple[str, ...], tuple[str, ...]]:
    assert s.end is not None, "a job ends after its streams"
    return s.end.tail, s.end.notes


def _signals_by_stream(book: Rulebook, table: pa.Table) -> dict[int, list[Signal]]:
    out: dict[int, list[Signal]] = {}
    for row in table.to_pylist():
        out.setdefault(row["stream"], []).append(signal(book, row))
    return out


def signal(book: Rulebook, row: dict[str, object]) -> Signal:
    """A SIGNALS row with what its rule (or the rule's table) says about it."""
    rule = book.by_id.get(str(row["rule"]))
    if rule is None:
        return _foreign(row)
    fields: dict[str, str] = orjson.loads(str(row["fields"]))
    says: object = rule
    if rule.table is not None:
        table = book.table_by_id[rule.table]
        says = table.rows.get(fields.get(table.key, ""), table.default)
    return Signal(
        RuleId(rule.id), StreamNo(row["stream"]), row["offset"], row["line"], str(row["text"]), row["time_us"], row["rank"],  # type: ignore[arg-type]
        row["local_rank"], row["node"], fields, says.role, says.klass, says.domain, _mark(rule), rule.generic, says.title, row["year_us"],  # type: ignore[arg-type, attr-defined]
        None, rule.phase, rule.edge,
    )  # fmt: skip


def _foreign(row: dict[str, object]) -> Signal:
    """A row of a rule this rulebook does not have: events kept from before the rules changed. It stays a line and claims nothing."""
    return Signal(
        RuleId(str(row["rule"])), StreamNo(row["stream"]), row["offset"], row["line"], str(row["text"]), row["time_us"], row["rank"],  # type: ignore[arg-type]
        row["local_rank"], row["node"], role="benign", title="a rule that is no longer in the rulebook", year_us=row["year_us"],  # type: ignore[arg-type]
    )  # fmt: skip


def _mark(rule: Rule) -> str | None:
    """A line that begins a start-up, or takes a checkpoint up again, announces a launch."""
    if (rule.phase == "startup" and rule.edge == "begin") or (rule.phase == "resume" and rule.edge != "end"):
        return "start"
    return rule.mark


def _progress_by_stream(table: pa.Table) -> dict[int, ProgressRows]:
    """PROGRESS rows of every stream, in their order. Plain Arrow and numpy: live batches are small and many."""
    if not table.num_rows:
        return {}
    rows = _rows(table)
    stream = table.column("stream").to_numpy()
    if (stream == stream[0]).all():
        return {int(stream[0]): rows}
    order = np.argsort(stream, kind="stable")
    together = rows.take(order)
    cuts = (np.diff(stream[order]).nonzero()[0] + 1).tolist()
    return {
        int(stream[order[lo]]): together.part(lo, hi) for lo, hi in zip([0, *cuts], [*cuts, len(order)], strict=True)
    }


def _known(book: Rulebook, table: pa.Table) -> pa.Table:
    """Without the rows of formats this rulebook does not have (events kept from before the rules changed): nothing can be counted by them."""
    if not table.num_rows:
        return table
    names = pc.unique(table.column("format")).to_pylist()
    if all(name in book.format_by_id for name in names):
        return table
    return table.filter(
        pc.is_in(table.column("format"), pa.array([n for n in names if n in book.format_by_id], pa.string()))
    )


def _rows(table: pa.Table) -> ProgressRows:
    def whole(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        column = table.column(name)
        filled = pc.fill_null(column.cast(pa.int64()), NONE) if column.null_count else column.cast(pa.int64())
        return np.asarray(filled.to_numpy())

    def real(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.asarray(table.column(name).to_numpy(), np.float64)  # a null is NaN

    loss = table.column("loss")
    bad = ~np.isfinite(real("loss")) & ~np.asarray(loss.is_null().to_numpy(), bool)
    return ProgressRows(
        whole("offset"), whole("line"), whole("time_us"), table.column("format").to_pylist(), whole("step"), whole("total"), whole("rank"),
        real("step_time_s"), real("throughput"), real("tflops"), bad, real("samples"), real("tokens"),
    )  # fmt: skip


def _no_rows() -> ProgressRows:
    i, f = np.empty(0, np.int64), np.empty(0, np.float64)
    return ProgressRows(i, i, i, [], i, i, i, f, f, f, np.empty(0, bool), f, f)
