"""Traces of a job's streams -> its attempts, each with a verdict.

In: every stream of one job, folded. Out: `AttemptVerdict`s in order. Streams are matched to attempts by what their paths say
(`attempt_1/`, a restart count), else by time, else from the last attempt backwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from defib.engine import causes, episodes, schedule, stamps, suspects
from defib.engine.case import Case
from defib.engine.rulebook import Rulebook
from defib.engine.trace import TRACES_MAX, StreamFold, Trace, main_counter
from defib.engine.words import (
    AttemptVerdict,
    JobKey,
    JobState,
    ProgressSummary,
    Signal,
    StreamFacts,
    StreamId,
    StreamNo,
)

SLOT = 1 << 20  # attempts one stream may show per restart count
VOLATILE = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{12,}|\d+|/[^\s'\":,;)\]]+")


@dataclass(frozen=True, slots=True)
class JobStory:
    """(stream, facts, fold, (tail lines, notes)) of every stream of one job, the last the scheduler said of it, how far the lines of each
    stream are known to have been outlived (see `Case`), and each stream's name: a log that was cut or replaced goes on under another."""

    job: JobKey
    streams: list[tuple[int, StreamFacts, StreamFold, tuple[tuple[str, ...], tuple[str, ...]]]]
    state: JobState | None = None
    outlived: dict[int, int] = field(default_factory=dict)
    names: dict[int, StreamId] = field(default_factory=dict)


def assemble(
    story: JobStory, book: Rulebook
) -> tuple[tuple[AttemptVerdict, ...], tuple[tuple[int, list[dict[str, object]]], ...]]:
    """The job's attempts in order, and (stream, window rows) of their main counters."""
    reference = _reference(story)
    for _, facts, fold, _ in story.streams:
        for t in fold.traces:
            _settle(t, reference, facts)
    slots = _slots(story)
    attempts: list[AttemptVerdict] = []
    windows: list[tuple[int, list[dict[str, object]]]] = []
    index = -1
    for slot in sorted(slots):
        traces = slots[slot]
        # A restart count in the paths numbers the attempts; without one they count from 0.
        index = max(index + 1, slot // SLOT)
        verdict = _verdict(story, traces, index, book, final=slot == max(slots))
        attempts.append(verdict)
        for t in traces:
            main = main_counter([t])
            if main is not None:
                windows.append((t.stream, main.windows.rows(verdict.attempt_id, "", main.format.id, main.clock)))
    return tuple(attempts), tuple(windows)


def _reference(story: JobStory) -> int | None:
    """A full stamp of the job, to tell the year of stamps that carry none."""
    known = [t.first_us for _, _, fold, _ in story.streams for t in fold.traces if t.first_us is not None]
    return min(known, default=None)


def _settle(t: Trace, reference: int | None, facts: StreamFacts) -> None:
    """Give every kept signal its place in time (its own stamp, or one without a year set beside the job's full stamps) and, where the line
    does not say who printed it, the rank and node its log's path tells."""

    def settled(s: Signal) -> Signal:
        time, order = s.time_us, s.time_us
        if time is None and s.year_us is not None:
            time = None if reference is None else with_year(s.year_us, reference)
            order = s.year_us if time is None else time
        rank = facts.rank if s.rank is None and s.role != "lifecycle" else s.rank
        local = facts.local_rank if s.local_rank is None and s.role != "lifecycle" else s.local_rank
        return dataclasses.replace(
            s, time_us=time, order_us=order, rank=rank, local_rank=local, node=s.node or facts.node
        )

    t.rank, t.node = facts.rank, facts.node
    t.early = [settled(s) for s in t.early]
    t.live = [settled(s) for s in t.live]
    t.last_by_rule = {rule: settled(s) for rule, s in t.last_by_rule.items()}
    for s in t.kept:
        t.see_time(s.time_us)


def with_year(year_us: int, reference: int) -> int:
    """The moment of a stamp without a year that lies nearest to a full one (so a log that runs over New Year stays in order)."""
    moment = datetime(stamps.LEAP_YEAR, 1, 1, tzinfo=UTC) + timedelta(microseconds=year_us)
    around = datetime.fromtimestamp(reference / 1e6, UTC).year
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    near: list[int] = []
    for year in (around - 1, around, around + 1):
        with contextlib.suppress(ValueError):  # 29 February of a year without one
            near.append((moment.replace(year=year) - epoch) // timedelta(microseconds=1))
    return min(near, key=lambda us: abs(us - reference), default=reference)


def fingerprint(s: Signal) -> str:
    """Same mechanism, same mark: rule and text with numbers, addresses and paths taken out."""
    mark = VOLATILE.sub("#", s.text[-400:])
    return hashlib.sha256(f"{s.rule}|{mark}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _slots(story: JobStory) -> dict[int, list[Trace]]:
    """Attempt slot -> traces of all streams in it."""
    named: dict[int, list[Trace]] = {}
    free: list[list[Trace]] = []
    for number, traces in _logs(story):
        if number is not None:
            for k, t in enumerate(traces):
                named.setdefault(number * SLOT + k, []).append(t)
        else:
            free.append(traces)
    if named:
        last = max(named)
        for traces in free:
            named[last].extend(traces)
        return named
    lead = max(free, key=len)
    slots: dict[int, list[Trace]] = {i: [] for i in range(len(lead))}  # fewer than SLOT, so they count from 0
    for traces in free:
        for k, t in enumerate(traces):
            slots[_slot_of(t, k, traces, lead)].append(t)
    return slots


def _logs(story: JobStory) -> list[tuple[int | None, list[Trace]]]:
    """Of every log the number of the attempt in its path, if any, and its traces: what it held before it was cut or replaced comes first."""
    lives: dict[tuple[object, int | None], list[tuple[int, StreamFold]]] = {}
    for n, facts, fold, _ in story.streams:
        number = facts.restart_count if facts.restart_count is not None else facts.attempt
        name = story.names.get(n)
        lives.setdefault((n if name is None else name.path, number), []).append((name.generation if name else 0, fold))
    out: list[tuple[int | None, list[Trace]]] = []
    for (_, number), folds in lives.items():
        traces = [t for _, fold in sorted(folds, key=lambda life: life[0]) for t in fold.traces]
        out.append((number, [t for t in traces if t.spoke] or traces[-1:]))
    return out


def _slot_of(t: Trace, k: int, traces: list[Trace], lead: list[Trace]) -> int:
    if len(traces) == len(lead):
        return k
    if t.first_us is not None:
        begun = [
            i
            for i, other in enumerate(lead)
            if other.first_us is not None and other.first_us <= (t.last_us or t.first_us)
        ]
        if begun:
            return begun[-1]
    return len(lead) - len(traces) + k


def _summary(traces: list[Trace]) -> ProgressSummary | None:
    main = main_counter(traces)
    if main is None:
        return None
    same = [c for t in traces for c in t.counters.values() if c.format.id == main.format.id]
    times = main.printed if main.printed.count else main.stamped
    countable = main.format.counts in ("step", "epoch")
    rate, unit = main.throughput.quantile(0.5), main.format.throughput_unit
    if rate is None and main.tflops.count:
        rate, unit = main.tflops.quantile(0.5), "TFLOP/s/gpu"
    if rate is None and not countable and main.stamped.count:
        per = main.stamped.quantile(0.5)
        rate, unit = (round(1 / per, 6) if per else None), f"{main.format.counts}/s"
    return ProgressSummary(
        main.format.id, main.format.framework, main.format.kind,
        min(c.first_step for c in same if c.total == main.total), main.last_step, main.total, main.points,
        times.quantile(0.5) if countable else None, times.quantile(0.9) if countable else None,
        rate, unit if rate is not None else None, main.clock,
    )  # fmt: skip


def framework_of(traces: list[Trace], banners: set[str], book: Rulebook) -> str | None:
    """The framework whose step lines were read, or a more particular one whose banner was seen on top of it."""
    main = main_counter(traces)
    have = set(banners)
    if main is not None and (main.format.kind != "other" or not have):
        base = main.format.framework
        finer = {b for b in have if base in _refined(b, book)}
        have = finer or {base}
    have -= {"generic"} if len(have) > 1 else set()
    top = sorted(f for f in have if not any(f in _refined(other, book) for other in have if other != f))
    return top[0] if top else None


def _refined(framework: str, book: Rulebook) -> set[str]:
    """Every framework this one is a more particular name for."""
    out: set[str] = set()
    todo = [framework]
    while todo:
        for name in book.refines.get(todo.pop(), ()):
            if name not in out:
                out.add(name)
                todo.append(name)
    return out


def _verdict(story: JobStory, traces: list[Trace], index: int, book: Rulebook, *, final: bool) -> AttemptVerdict:
    errors = frozenset(n for n, facts, _, _ in story.streams if facts.channel == "err")
    case = Case(traces, book, errors, outlived=story.outlived if final else {})
    judged = causes.decide(case)
    if final and story.state is not None:
        judged = schedule.told(judged, story.state)
    suspect, unsaid = suspects.suspect(case, judged)
    ranks = {n: facts.rank for n, facts, _, _ in story.streams}
    stalled = judged.cause.signal.time_us if judged.verdict == "stalled" and judged.cause is not None else None
    unwell = episodes.told(traces, ranks, book.detect.slow, stalled, finished=judged.verdict == "completed")
    if judged.verdict in ("running-at-end", "unknown") and any(e.kind == "hung" and e.ended_us is None for e in unwell):
        judged = dataclasses.replace(judged, verdict="stalled", klass="hang")
    streams = tuple(StreamNo(t.stream) for t in traces)
    mine = {n: (facts, fold, tail) for n, facts, fold, tail in story.streams if n in streams}
    banners: set[str] = set().union(*(fold.frameworks for _, fold, _ in mine.values()))
    progress = _summary(traces)
    job, said = _job(story.job, traces)
    notes = [*judged.notes, *([unsaid] if unsaid else []), *suspects.tally(case, judged), *said, *_oddities(traces)]
    for _, (_, _, (_, stream_notes)) in sorted(mine.items()):
        notes += [n for n in stream_notes if n not in notes]
    counts = [facts.restart_count for facts, _, _ in mine.values() if facts.restart_count is not None]
    first = [t.first_us for t in traces if t.first_us is not None]
    last = [t.last_us for t in traces if t.last_us is not None]
    names = [facts.job_name for facts, _, _ in mine.values() if facts.job_name]
    return AttemptVerdict(
        attempt_id=attempt_id(story.job, index), job=job, job_name=names[0] if names else None,
        restart_count=counts[0] if counts else None, index=index, streams=streams,
        framework=framework_of(traces, banners, book), verdict=judged.verdict, klass=judged.klass, cause=judged.cause,
        cascades=judged.cascades, progress=progress, clock=progress.clock if progress else ("event" if first else "none"),
        notes=tuple(notes), evidence=(*judged.evidence, *suspects.shown(judged, suspect)),
        first_us=min(first, default=None), last_us=max(last, default=None),
        first_line={StreamNo(t.stream): t.begin_line for t in traces}, last_line={StreamNo(t.stream): t.end_line for t in traces},
        episodes=unwell, suspect=suspect,
    )  # fmt: skip


def attempt_id(job: JobKey, index: int) -> str:
    """Readable and stable: cluster/job[_task]#index, or the place of the logs."""
    name = job.job_id if job.job_id is not None else job.place
    task = f"_{job.array_task}" if job.array_task is not None else ""
    cluster = f"{job.cluster}/" if job.cluster else ""
    return f"{cluster}{name}{task}#{index}"


def _job(key: JobKey, traces: list[Trace]) -> tuple[JobKey, list[str]]:
    """Where no path tells the job id, Slurm's own lines in the log may; it is a label, never a target."""
    if key.job_id is not None:
        return key, []
    ids = {
        s.fields["job_id"]
        for t in traces
        for s in t.kept
        if s.role == "lifecycle" and s.fields.get("job_id", "").isdigit()
    }
    if len(ids) != 1:
        return key, []
    return JobKey(key.cluster, ids.pop(), key.array_task, key.submit_time_us, key.place), [
        "job id read from the log's own lines"
    ]


def _oddities(traces: list[Trace]) -> list[str]:
    out = []
    bad = sum(c.nan_losses for t in traces for c in t.counters.values())
    if bad:
        out.append(f"{bad} printed loss{'es were' if bad > 1 else ' was'} not a finite number")
    back = sum(t.setbacks for t in traces)
    if back:
        out.append(f"a step counter went back {back} time{'s' if back > 1 else ''} without a new launch")
    more = sum(c.rhythm.missed + c.slowdown.missed for t in traces for c in t.counters.values())
    if more:
        out.append(f"{more} more hung or slow stretches were seen than are kept: times told of them are too short")
    if any(t.crowded for t in traces):
        out.append(f"one log may hold {TRACES_MAX:,} attempts: whatever came after its last one began is counted here")
    return out
