"""Verdicts as rows: what `duck` stores and `replay --jsonl` prints. Pure; the history's columns are in `schema`."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from defib.engine.core import HealthChanged, LogTold, StreamRead
from defib.engine.identity import PACKED
from defib.engine.incidents import fingerprint
from defib.engine.rulebook import FailureClass, Rulebook
from defib.engine.words import AttemptVerdict, Episode, JobKey, Signal, StreamId

EPISODE_PLAIN = (
    "kind", "phase", "clock", "onset_step", "end_step", "onset_offset", "onset_line", "limit_s", "baseline_s", "pace_s", "depth",
    "scope", "because",
)  # fmt: skip
HEALTHY = ("completed", "running-at-end", "unknown")


def stream_key(stream: StreamId) -> str:
    """Stable text key of a stream. A log that was packed since is still the same log."""
    return hashlib.sha256(
        f"{PACKED.sub('', stream.path)}\0{stream.generation}".encode("utf-8", "surrogatepass")
    ).hexdigest()[:16]


def job_name(job: JobKey) -> str:
    """The job as people name it: cluster/id[_task], or the place of its logs."""
    task = f"_{job.array_task}" if job.array_task is not None else ""
    return f"{job.cluster + '/' if job.cluster else ''}{job.job_id or job.place}{task}"


def stream_row(r: StreamRead, key: str) -> dict[str, Any]:
    """Row of `streams`."""
    f = r.facts
    return {
        "stream_id": key, "path": r.id.path, "generation": r.id.generation, "job": job_name(f.job),
        "channel": f.channel, "node": f.node, "rank": f.rank, "local_rank": f.local_rank, "bytes": r.size, "lines": r.lines,
        "frameworks": list(r.frameworks), "tail": list(r.tail), "notes": list(r.notes),
    }  # fmt: skip


def attempt_row(job: str, a: AttemptVerdict, keys: Mapping[int, str], book: Rulebook) -> dict[str, Any]:
    """Row of `attempts`."""
    c, p, who = a.cause, a.progress, a.suspect
    s = c.signal if c else None
    return {
        "attempt_id": a.attempt_id, "job": job, "cluster": a.job.cluster, "job_id": a.job.job_id, "array_task": a.job.array_task,
        "submit_time": moment(a.job.submit_time_us), "restart_count": a.restart_count, "attempt_index": a.index,
        "job_name": a.job_name, "framework": a.framework, "verdict": a.verdict, "class": a.klass,
        "domain": c.domain if c else None, "confidence": c.confidence if c else None, "because": c.because if c else None,
        "cause_rule": s.rule if s else None, "cause_title": s.title if s else None,
        "cause_stream": keys[s.stream] if s else None, "cause_line": s.line if s else None,
        "cause_offset": s.offset if s else None, "cause_rank": s.rank if s else None, "cause_node": s.node if s else None,
        "cause_text": s.text if s else None, "cascades": a.cascades, "clock": a.clock,
        "progress_format": p.format if p else None, "progress_kind": p.kind if p else None,
        "first_step": p.first_step if p else None, "last_step": p.last_step if p else None,
        "total_steps": p.total_steps if p else None, "points": p.points if p else None,
        "median_step_s": p.median_step_s if p else None, "p90_step_s": p.p90_step_s if p else None,
        "throughput": p.throughput if p else None, "throughput_unit": p.throughput_unit if p else None,
        "first_seen": moment(a.first_us), "last_seen": moment(a.last_us), "notes": list(a.notes),
        "suspect_rank": who.rank if who else None, "suspect_node": who.node if who else None,
        "suspect_gpu": who.gpu if who else None, "suspect_how": who.how if who else None,
        "suspect_confidence": who.confidence if who else None, "suspect_because": who.because if who else None,
        "progress_counts": book.format_by_id[p.format].counts if p and p.format in book.format_by_id else None,
    }  # fmt: skip


def episode_rows(a: AttemptVerdict, keys: Mapping[int, str]) -> list[dict[str, Any]]:
    """Rows of `episodes`, in order."""
    return [
        {
            "attempt_id": a.attempt_id, "position": i, **{name: getattr(e, name) for name in EPISODE_PLAIN},
            **_moments(e), **_seconds(e), "ranks": list(e.ranks),
            "stream_id": None if e.stream is None else keys[e.stream],
        }
        for i, e in enumerate(a.episodes)
    ]  # fmt: skip


def _moments(e: Episode) -> dict[str, datetime | None]:
    """When, where the clock tells a date: a step clock only counts from the first step."""
    dated = e.clock in ("event", "arrival")
    times = {"onset": e.onset_us, "declared": e.declared_us, "ended": e.ended_us}
    return {name: moment(us) if dated else None for name, us in times.items()}


def _seconds(e: Episode) -> dict[str, float | None]:
    """The same on the episode's own clock."""
    times = {"onset_s": e.onset_us, "declared_s": e.declared_us, "ended_s": e.ended_us}
    return {name: None if us is None else us / 1e6 for name, us in times.items()}


def unwell(a: AttemptVerdict) -> bool:
    """Whether the attempt is an incident: it did not end well, and a line, its silence or the scheduler says what it was."""
    return a.verdict not in HEALTHY and a.klass is not None


def incident_row(a: AttemptVerdict, book: Rulebook) -> dict[str, Any] | None:
    """Row of `incidents`; None for attempts that need no explaining."""
    if not unwell(a):
        return None
    known = book.class_by_id.get(a.klass or "")
    return {
        "incident_id": incident_id(a), "attempt_id": a.attempt_id, "verdict": a.verdict, **_what(a, known),
        "step": a.progress.last_step if a.progress else None, "cascades": a.cascades, "retry": known.retry if known else None,
        "exclude": known.exclude if known else None, "budget": known.budget if known else None,
    }  # fmt: skip


def _what(a: AttemptVerdict, known: FailureClass | None) -> dict[str, Any]:
    """The cause as its line tells it; without one (a hang, the scheduler's bare word) what the class and the last silence tell."""
    if a.cause is not None:
        c, s = a.cause, a.cause.signal
        return {
            "class": c.klass, "domain": c.domain, "rule": s.rule, "confidence": c.confidence, "fingerprint": fingerprint(s),
            "rank": s.rank, "node": s.node, "time": moment(s.time_us), "title": s.title, "because": c.because,
        }  # fmt: skip
    who, silence = a.suspect, next((e for e in reversed(a.episodes) if e.kind == "hung" and e.ended_us is None), None)
    return {
        "class": a.klass, "domain": known.fault if known else "unknown", "rule": None, "confidence": "unknown", "fingerprint": None,
        "rank": who.rank if who else None, "node": who.node if who else None, "time": _when(a, silence),
        "title": known.title if known else None, "because": silence.because if silence else "no line of its logs tells why",
    }  # fmt: skip


def _when(a: AttemptVerdict, silence: Episode | None) -> datetime | None:
    """When a silence was called a hang, where its clock tells a date; else the attempt's last line."""
    told = _moments(silence) if silence is not None else {}
    return told.get("declared") or told.get("onset") or moment(a.last_us)


def evidence_rows(a: AttemptVerdict, keys: Mapping[int, str]) -> list[dict[str, Any]]:
    """Rows of `evidence`, in the order of the story."""
    incident = incident_id(a) if unwell(a) else None
    return [
        {
            "incident_id": incident, "attempt_id": a.attempt_id, "position": i, "why": e.why, "rule": e.signal.rule,
            "title": e.signal.title, "stream_id": keys[e.signal.stream], "line": e.signal.line, "offset": e.signal.offset,
            "time": moment(e.signal.time_us), "rank": e.signal.rank, "node": e.signal.node, "count": e.count, "text": e.signal.text,
        }
        for i, e in enumerate(a.evidence)
    ]  # fmt: skip


def node_rows(a: AttemptVerdict, keys: Mapping[int, str]) -> list[dict[str, Any]]:
    """Rows of `nodes`: the suspect's node, and every other node the story names with the first line that does.

    Without a suspect nobody is accused: whoever printed the cause may be one of many who did. (Histories of schema 1 took the printer;
    such rows have no source and count as `printer`.)
    """
    if not unwell(a):
        return []
    who = a.suspect
    out: dict[str, dict[str, Any]] = {}
    if who is not None and who.node is not None:
        shown = next(iter(who.evidence), a.cause.signal if a.cause is not None else None)
        out[who.node] = {
            **_named(a, shown, keys), "node": who.node, "role": "suspect", "class": a.klass, "confidence": who.confidence,
            "gpu": who.gpu, "source": who.how, "breadth": who.breadth,
        }  # fmt: skip
    for e in a.evidence:
        s = e.signal
        if s.node is not None and s.node not in out:
            out[s.node] = _named(a, s, keys)
    return list(out.values())


def _named(a: AttemptVerdict, s: Signal | None, keys: Mapping[int, str]) -> dict[str, Any]:
    """A node and the line that names it, if one does."""
    return {
        "node": s.node if s else None, "attempt_id": a.attempt_id, "incident_id": incident_id(a), "role": "named",
        "class": s.klass if s else None, "confidence": "unknown", "rule": s.rule if s else None,
        "stream_id": keys[s.stream] if s else None, "line": s.line if s else None, "time": moment(s.time_us) if s else None,
        "gpu": None, "source": None, "breadth": None,
    }  # fmt: skip


def class_rows(book: Rulebook) -> list[dict[str, Any]]:
    """Rows of `classes`."""
    return [{"class": c.id, **{k: v for k, v in dataclasses.asdict(c).items() if k != "id"}} for c in book.classes]


def policy_rows(book: Rulebook) -> list[dict[str, Any]]:
    """Rows of `policy`: every number of every policy under its dotted key."""

    def leaves(value: Any, key: str) -> list[tuple[str, float]]:
        if isinstance(value, dict):
            return [x for k, v in value.items() for x in leaves(v, f"{key}.{k}" if key else k)]
        return [(key, float(value))] if isinstance(value, int | float) else []

    return [
        {"name": name, "key": key, "value": value}
        for name, values in sorted(book.policies.items())
        for key, value in leaves(values, "")
    ]


def incident_id(a: AttemptVerdict) -> str:
    """Stable key of an attempt's incident."""
    return hashlib.sha256(f"incident|{a.attempt_id}".encode("utf-8", "surrogatepass")).hexdigest()[:12]


def moment(us: int | None) -> datetime | None:
    """Microseconds UTC -> naive UTC datetime (DuckDB TIMESTAMP); out of range is None."""
    if us is None or not 0 <= us < 253402300800_000000:
        return None
    return datetime.fromtimestamp(us / 1e6, UTC).replace(tzinfo=None)


def attempt_object(a: AttemptVerdict, paths: dict[int, str]) -> dict[str, Any]:
    """The object of `replay --jsonl`; keys are a promise."""
    c, p = a.cause, a.progress
    cause = None
    if c is not None:
        s = c.signal
        cause = {
            "rule": s.rule, "class": c.klass, "domain": c.domain, "stream": paths[s.stream], "line": s.line, "offset": s.offset,
            "rank": s.rank, "node": s.node, "text": s.text, "confidence": c.confidence, "because": c.because,
        }  # fmt: skip
    progress = None
    if p is not None:
        progress = {
            "format": p.format, "kind": p.kind, "first_step": p.first_step, "last_step": p.last_step,
            "total_steps": p.total_steps, "points": p.points,
            "median_step_s": p.median_step_s, "p90_step_s": p.p90_step_s, "throughput": p.throughput, "throughput_unit": p.throughput_unit,
        }  # fmt: skip
    submit = moment(a.job.submit_time_us)
    return {
        "attempt": {
            "id": a.attempt_id, "cluster": a.job.cluster, "job_id": a.job.job_id, "array_task": a.job.array_task,
            "submit_time": submit.isoformat() + "Z" if submit else None, "restart_count": a.restart_count, "index": a.index,
            "job_name": a.job_name,
        },
        "streams": [paths[n] for n in a.streams], "framework": a.framework, "verdict": a.verdict, "class": a.klass, "cause": cause,
        "cascades": a.cascades, "progress": progress, "clock": a.clock, "notes": list(a.notes),
        "suspect": _suspect_object(a, paths), "episodes": [episode_object(e, paths) for e in a.episodes],
    }  # fmt: skip


def _suspect_object(a: AttemptVerdict, paths: dict[int, str]) -> dict[str, Any] | None:
    who = a.suspect
    if who is None:
        return None
    lines = [{"rule": s.rule, "stream": paths[s.stream], "line": s.line, "offset": s.offset} for s in who.evidence]
    return {
        "rank": who.rank, "node": who.node, "gpu": who.gpu, "how": who.how, "confidence": who.confidence, "because": who.because,
        "breadth": who.breadth, "evidence": lines,
    }  # fmt: skip


def health_object(e: HealthChanged, paths: dict[int, str]) -> dict[str, Any]:
    """A change of health for machines; keys are a promise. attempt counts from 1, the one that ran when the job was first seen; was is null
    when it was."""
    at = moment(e.at_us)
    return {
        "time": at.isoformat() + "Z" if at else None,
        "job": {"cluster": e.job.cluster, "job_id": e.job.job_id, "array_task": e.job.array_task, "place": e.job.place or None},
        "attempt": e.attempt + 1, "health": e.health, "was": e.was or None, "because": e.because,
        "episode": episode_object(e.episode, paths) if e.episode else None,
    }  # fmt: skip


def log_object(e: LogTold) -> dict[str, Any]:
    """What befell a log, for machines; keys are a promise."""
    at = moment(e.at_us)
    return {
        "time": at.isoformat() + "Z" if at else None,
        "job": {"cluster": e.job.cluster, "job_id": e.job.job_id, "array_task": e.job.array_task, "place": e.job.place or None},
        "attempt": None if e.attempt is None else e.attempt + 1, "path": e.path, "what": e.what, "note": e.note or None,
    }  # fmt: skip


def episode_object(e: Episode, paths: dict[int, str]) -> dict[str, Any]:
    """A stretch in which a run was not well."""
    times = {name: when.isoformat() + "Z" if when else None for name, when in _moments(e).items()}
    return {
        **{name: getattr(e, name) for name in EPISODE_PLAIN}, **times, **_seconds(e), "ranks": list(e.ranks),
        "stream": None if e.stream is None else paths[e.stream],
    }  # fmt: skip
