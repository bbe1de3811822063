"""Verdicts as rows: what `duck` stores and `replay --jsonl` prints. Pure; the history's columns are in `schema`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from defib.engine.core import StreamRead
from defib.engine.identity import PACKED
from defib.engine.incidents import fingerprint
from defib.engine.rulebook import Rulebook
from defib.engine.words import AttemptVerdict, JobKey, StreamId

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


def attempt_row(job: str, a: AttemptVerdict, keys: Mapping[int, str]) -> dict[str, Any]:
    """Row of `attempts`."""
    c, p = a.cause, a.progress
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
    }  # fmt: skip


def incident_row(a: AttemptVerdict, book: Rulebook) -> dict[str, Any] | None:
    """Row of `incidents`; None for attempts that need no explaining."""
    if a.verdict in HEALTHY or a.cause is None:
        return None
    c, s = a.cause, a.cause.signal
    known = book.class_by_id.get(c.klass)
    return {
        "incident_id": incident_id(a), "attempt_id": a.attempt_id, "verdict": a.verdict, "class": c.klass, "domain": c.domain,
        "rule": s.rule, "confidence": c.confidence, "fingerprint": fingerprint(s), "rank": s.rank, "node": s.node,
        "time": moment(s.time_us), "step": a.progress.last_step if a.progress else None, "cascades": a.cascades, "title": s.title,
        "because": c.because, "retry": known.retry if known else None, "exclude": known.exclude if known else None,
        "budget": known.budget if known else None,
    }  # fmt: skip


def evidence_rows(a: AttemptVerdict, keys: Mapping[int, str]) -> list[dict[str, Any]]:
    """Rows of `evidence`, in the order of the story."""
    incident = incident_id(a) if a.verdict not in HEALTHY and a.cause is not None else None
    return [
        {
            "incident_id": incident, "attempt_id": a.attempt_id, "position": i, "why": e.why, "rule": e.signal.rule,
            "title": e.signal.title, "stream_id": keys[e.signal.stream], "line": e.signal.line, "offset": e.signal.offset,
            "time": moment(e.signal.time_us), "rank": e.signal.rank, "node": e.signal.node, "count": e.count, "text": e.signal.text,
        }
        for i, e in enumerate(a.evidence)
    ]  # fmt: skip


def node_rows(a: AttemptVerdict, keys: Mapping[int, str]) -> list[dict[str, Any]]:
    """Rows of `nodes`: every node the story names, the first line that does."""
    if a.verdict in HEALTHY or a.cause is None:
        return []
    out: dict[str, dict[str, Any]] = {}
    for e in a.evidence:
        s = e.signal
        if s.node is not None and s.node not in out:
            role = "suspect" if e.why == "cause" and s.role in ("root", "candidate") else "named"
            out[s.node] = {
                "node": s.node, "attempt_id": a.attempt_id, "incident_id": incident_id(a), "role": role, "class": s.klass,
                "confidence": a.cause.confidence if role == "suspect" else "unknown", "rule": s.rule,
                "stream_id": keys[s.stream], "line": s.line, "time": moment(s.time_us),
            }  # fmt: skip
    return list(out.values())


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
    }  # fmt: skip
