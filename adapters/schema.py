"""The history's tables: DDL and what each is for (the views: `views`). All SQL text of defib's own is constant; values go in as columns.

Every table is documented here once; `defib sql` users read it with `DESCRIBE` and `duckdb_tables().comment`. A store of an
earlier version gains what it lacks (`additions`); columns are only ever added, at a table's end.
Keys: `attempt_id` (cluster/job#index), `stream_id` (hash of path and generation), (`stream_id`, `offset`) for lines.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Set

from defib.adapters.views import VIEWS

VERSION = 4

TABLES = {
    "meta": ("key VARCHAR PRIMARY KEY, value VARCHAR", "Schema version and rule hash of the last writer."),
    "unfinished": ("stream_id VARCHAR PRIMARY KEY", "Streams of jobs not yet judged; empty between runs."),
    "streams": (
        "stream_id VARCHAR PRIMARY KEY, path VARCHAR, generation INTEGER, job VARCHAR, channel VARCHAR, node VARCHAR, rank INTEGER, "
        "local_rank INTEGER, bytes BIGINT, lines BIGINT, frameworks VARCHAR[], tail VARCHAR[], notes VARCHAR[]",
        "One row per log as it was read.",
    ),
    "attempts": (
        "attempt_id VARCHAR PRIMARY KEY, job VARCHAR, cluster VARCHAR, job_id VARCHAR, array_task VARCHAR, submit_time TIMESTAMP, "
        "restart_count INTEGER, attempt_index INTEGER, job_name VARCHAR, framework VARCHAR, verdict VARCHAR, class VARCHAR, "
        "domain VARCHAR, confidence VARCHAR, cause_rule VARCHAR, cause_title VARCHAR, cause_stream VARCHAR, cause_line BIGINT, "
        "cause_offset BIGINT, cause_rank INTEGER, cause_node VARCHAR, cause_text VARCHAR, because VARCHAR, cascades BIGINT, "
        "progress_format VARCHAR, progress_kind VARCHAR, first_step BIGINT, last_step BIGINT, total_steps BIGINT, points BIGINT, "
        "median_step_s DOUBLE, "
        "p90_step_s DOUBLE, throughput DOUBLE, throughput_unit VARCHAR, clock VARCHAR, first_seen TIMESTAMP, last_seen TIMESTAMP, "
        "notes VARCHAR[], suspect_rank INTEGER, suspect_node VARCHAR, suspect_gpu VARCHAR, suspect_how VARCHAR, suspect_confidence VARCHAR, "
        "suspect_because VARCHAR, progress_counts VARCHAR",
        "One row per attempt of a job: how it ended, why, and how far it came.",
    ),
    "attempt_streams": (
        "attempt_id VARCHAR, stream_id VARCHAR, first_line BIGINT, last_line BIGINT",
        "Which lines of which logs belong to an attempt.",
    ),
    "signals": (
        "stream_id VARCHAR, \"offset\" BIGINT, line BIGINT, rule VARCHAR, time TIMESTAMP, rank INTEGER, local_rank INTEGER, node VARCHAR, "
        "fields JSON, text VARCHAR",
        "Every line a rule spoke for.",
    ),
    "progress": (
        "stream_id VARCHAR, \"offset\" BIGINT, line BIGINT, format VARCHAR, time TIMESTAMP, rank INTEGER, step BIGINT, total BIGINT, "
        "step_time_s DOUBLE, elapsed_s DOUBLE, throughput DOUBLE, throughput_unit VARCHAR, tflops DOUBLE, loss DOUBLE, grad_norm DOUBLE, "
        "epoch DOUBLE, samples DOUBLE, tokens DOUBLE",
        "Every progress line, as numbers.",
    ),
    "windows": (
        "attempt_id VARCHAR, stream_id VARCHAR, format VARCHAR, clock VARCHAR, start_s DOUBLE, width_s DOUBLE, points BIGINT, "
        "first_step BIGINT, last_step BIGINT, median_step_s DOUBLE, p90_step_s DOUBLE, longest_gap_s DOUBLE",
        "Throughput of an attempt in windows of its own clock.",
    ),
    "episodes": (
        "attempt_id VARCHAR, position INTEGER, kind VARCHAR, phase VARCHAR, clock VARCHAR, onset TIMESTAMP, declared TIMESTAMP, "
        "ended TIMESTAMP, onset_s DOUBLE, declared_s DOUBLE, ended_s DOUBLE, onset_step BIGINT, end_step BIGINT, stream_id VARCHAR, "
        "onset_offset BIGINT, onset_line BIGINT, limit_s DOUBLE, baseline_s DOUBLE, pace_s DOUBLE, depth DOUBLE, scope VARCHAR, "
        "ranks INTEGER[], because VARCHAR",
        "Stretches in which an attempt was hung, slow or unseen; _s are seconds on the clock named, null ended: to the end.",
    ),
    "incidents": (
        "incident_id VARCHAR PRIMARY KEY, attempt_id VARCHAR, verdict VARCHAR, class VARCHAR, domain VARCHAR, rule VARCHAR, "
        "confidence VARCHAR, fingerprint VARCHAR, rank INTEGER, node VARCHAR, time TIMESTAMP, step BIGINT, cascades BIGINT, title VARCHAR, "
        "because VARCHAR, retry VARCHAR, exclude VARCHAR, budget VARCHAR",
        "One row per attempt that did not end well: what it was and what the class's default policy says.",
    ),
    "evidence": (
        "incident_id VARCHAR, attempt_id VARCHAR, position INTEGER, why VARCHAR, rule VARCHAR, title VARCHAR, stream_id VARCHAR, line BIGINT, "
        "\"offset\" BIGINT, time TIMESTAMP, rank INTEGER, node VARCHAR, count BIGINT, text VARCHAR",
        "The lines an attempt's story rests on, in order.",
    ),
    "nodes": (
        "node VARCHAR, attempt_id VARCHAR, incident_id VARCHAR, \"role\" VARCHAR, class VARCHAR, confidence VARCHAR, rule VARCHAR, "
        "stream_id VARCHAR, line BIGINT, time TIMESTAMP, gpu VARCHAR, source VARCHAR, breadth INTEGER",
        "Which node an incident names: as suspect (source says how it was found) or as named in the lines around it.",
    ),
    "health": (
        "job VARCHAR, attempt INTEGER, time TIMESTAMP, was VARCHAR, health VARCHAR, because VARCHAR, phase VARCHAR, onset TIMESTAMP, "
        "onset_step BIGINT",
        "Every change of a run's health that a watch saw; attempt counts from 1, the one that ran when the job was first seen.",
    ),
    "live_jobs": (
        "job VARCHAR, cluster VARCHAR, job_id VARCHAR, array_task VARCHAR, job_name VARCHAR, attempt INTEGER, health VARCHAR, "
        "since TIMESTAMP, because VARCHAR, state VARCHAR, step BIGINT, first_seen TIMESTAMP, last_line TIMESTAMP, streams INTEGER",
        "Jobs a watch follows now, on the observer's clock; a job leaves when it is judged. state: what the scheduler says.",
    ),
    "live_streams": (
        "stream_id VARCHAR, path VARCHAR, generation INTEGER, job VARCHAR, bytes BIGINT, lines BIGINT, last_line TIMESTAMP, "
        "last_look TIMESTAMP, trouble VARCHAR, trouble_since TIMESTAMP, ended BOOLEAN",
        "Logs of those jobs: how far they are read, when they were last read to their end, and why they cannot be.",
    ),
    "classes": (
        "class VARCHAR PRIMARY KEY, title VARCHAR, verdict VARCHAR, fault VARCHAR, retry VARCHAR, exclude VARCHAR, budget VARCHAR, why VARCHAR",
        "The failure classes of the last writer's rules.",
    ),
    "policy": (
        "name VARCHAR, key VARCHAR, value DOUBLE",
        "The numbers of the last writer's policy files; views weigh with them.",
    ),
    "decisions": (
        "decision_id VARCHAR PRIMARY KEY, attempt_id VARCHAR, incident_id VARCHAR, decided_at TIMESTAMP, verdict VARCHAR, gate VARCHAR, "
        "inputs JSON, action_id VARCHAR, job VARCHAR, restarts INTEGER, value VARCHAR, read_at TIMESTAMP, for_good VARCHAR, plan VARCHAR, "
        "because VARCHAR, seq BIGINT",
        "What was decided about a run that was not well, each time that changed: verdict (refused, wait, would-act, ready, authorised, human), the "
        "first closed gate, the value read and when. restarts: as Slurm counts them for this run. A replay never decides.",
    ),
    "actions": (
        "action_id VARCHAR PRIMARY KEY, decision_id VARCHAR, attempt_id VARCHAR, kind VARCHAR, state VARCHAR, issued_at TIMESTAMP, "
        "outcome VARCHAR, detail JSON, job VARCHAR, restarts INTEGER, user_name VARCHAR, slurm_partition VARCHAR, class VARCHAR, judged VARCHAR, "
        "gate VARCHAR, because VARCHAR, begun_at TIMESTAMP, since TIMESTAMP, excluded VARCHAR[], failed_step BIGINT, reached_step BIGINT, "
        "calls INTEGER, \"would\" BOOLEAN",
        "One row per run that something was planned for or refused, in its present state; detail: every call with its arguments, times and "
        "answer. A replay never acts.",
    ),
    "audit": (
        "seq BIGINT PRIMARY KEY, recorded_at TIMESTAMP, who VARCHAR, what VARCHAR, detail JSON, chain VARCHAR, epoch BIGINT, "
        "action_id VARCHAR, job VARCHAR, restarts INTEGER, was VARCHAR, state VARCHAR, because VARCHAR",
        "Every row of recovery's audit; chain: the hash it stands under there. A copy: what proves is DIR/actions (defib audit verify).",
    ),
}  # fmt: skip


def layout() -> str:
    """Names this very layout of tables, views and comments: a store that has it needs no DDL."""
    return hashlib.sha256("\n".join([*tables(), *views()]).encode()).hexdigest()[:16]


def columns(table: str) -> dict[str, str]:
    """Column -> declaration of a table, in order."""
    declared = re.split(r", (?=[\"\w]+ [A-Z])", TABLES[table][0])
    return {d.split()[0].strip('"'): d for d in declared}


def additions(have: Mapping[str, Set[str]]) -> list[str]:
    """What brings the tables of an earlier version up to this one. have: table -> its columns, for tables that are there."""
    return [
        f"ALTER TABLE {table} ADD COLUMN {declared}"
        for table, old in have.items()
        if table in TABLES
        for name, declared in columns(table).items()
        if name not in old
    ]


def tables() -> list[str]:
    """DDL of the tables; safe to run on a store that has them already."""
    return [f"CREATE TABLE IF NOT EXISTS {name} ({declared})" for name, (declared, _) in TABLES.items()]


def views() -> list[str]:
    """DDL of the views in their order, and every comment; safe to run again."""
    out = [f"CREATE OR REPLACE VIEW {name} AS {query}" for name, (query, _) in VIEWS.items()]
    for kind, things in (("TABLE", TABLES), ("VIEW", VIEWS)):
        out += [
            f"COMMENT ON {kind} {name} IS '{about.replace(chr(39), chr(39) * 2)}'"
            for name, (_, about) in things.items()
        ]
    return out
