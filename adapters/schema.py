"""The history's tables and views: DDL and what each is for. All SQL text of defib's own is constant; values go in as columns.

Every table and view is documented here once; `defib sql` users read it with `DESCRIBE` and `duckdb_tables().comment`.
Keys: `attempt_id` (cluster/job#index), `stream_id` (hash of path and generation), (`stream_id`, `offset`) for lines.
"""

from __future__ import annotations

VERSION = 1

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
        "notes VARCHAR[]",
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
        "stream_id VARCHAR, line BIGINT, time TIMESTAMP",
        "Which node an incident names: as suspect (printed the cause) or as named (in the lines around it).",
    ),
    "decisions": (
        "decision_id VARCHAR PRIMARY KEY, attempt_id VARCHAR, incident_id VARCHAR, decided_at TIMESTAMP, verdict VARCHAR, gate VARCHAR, "
        "inputs JSON",
        "What policy decided about an incident. Written by the recovery part; replay never decides.",
    ),
    "actions": (
        "action_id VARCHAR PRIMARY KEY, decision_id VARCHAR, attempt_id VARCHAR, kind VARCHAR, state VARCHAR, issued_at TIMESTAMP, "
        "outcome VARCHAR, detail JSON",
        "What was done through the scheduler. Written by the recovery part; replay never acts.",
    ),
    "audit": (
        "seq BIGINT PRIMARY KEY, recorded_at TIMESTAMP, who VARCHAR, what VARCHAR, detail JSON, chain VARCHAR",
        "Hash-chained record of every decision and act. Written by the recovery part.",
    ),
}  # fmt: skip

VIEWS = {
    "attempt_progress": (
        "SELECT a.attempt_id, p.* FROM progress p JOIN attempt_streams a ON a.stream_id = p.stream_id "
        "AND p.line BETWEEN a.first_line AND a.last_line",
        "Progress lines with the attempt they belong to.",
    ),
    "attempt_signals": (
        "SELECT a.attempt_id, s.* FROM signals s JOIN attempt_streams a ON a.stream_id = s.stream_id AND s.line BETWEEN a.first_line AND a.last_line",
        "Signals with the attempt they belong to.",
    ),
    "jobs": (
        "SELECT job, any_value(job_name) AS job_name, last(framework ORDER BY attempt_index) AS framework, count(*) AS attempts, "
        "last(verdict ORDER BY attempt_index) AS verdict, last(class ORDER BY attempt_index) AS class, min(first_step) AS first_step, "
        "max(last_step) AS last_step, max(total_steps) AS total_steps, min(first_seen) AS first_seen, max(last_seen) AS last_seen "
        "FROM attempts GROUP BY job",
        "One row per job; verdict and class are those of its last attempt.",
    ),
    "why": (
        "SELECT a.job, a.attempt_index, e.position, e.why, e.title, e.count, s.path, e.line, e.rank, e.node, e.text "
        "FROM evidence e JOIN attempts a USING (attempt_id) LEFT JOIN streams s USING (stream_id) ORDER BY a.job, a.attempt_index, e.position",
        "Why did a job end: the lines its story rests on.",
    ),
    "suspects": (
        "SELECT node, count(*) AS incidents, count(DISTINCT class) AS classes, list(DISTINCT class) AS what, max(time) AS last_time "
        "FROM nodes WHERE \"role\" = 'suspect' GROUP BY node ORDER BY incidents DESC, node",
        "Nodes by how many incidents name them as where the cause was printed.",
    ),
    "time_by_class": (
        "SELECT class, count(*) AS attempts, sum(epoch(last_seen) - epoch(first_seen)) AS seconds_run, "
        "sum(coalesce(last_step - first_step, 0)) AS steps FROM attempts WHERE class IS NOT NULL GROUP BY class ORDER BY attempts DESC",
        "Attempts, run time and steps by the class that ended them (time where logs carry stamps).",
    ),
    "goodput": (
        "SELECT job, count(*) AS attempts, sum(last_step - first_step + 1) AS steps_run, max(last_step) - min(first_step) + 1 AS steps_kept, "
        "round((max(last_step) - min(first_step) + 1) / nullif(sum(last_step - first_step + 1), 0), 4) AS kept_ratio "
        "FROM attempts WHERE last_step IS NOT NULL GROUP BY job",
        "Steps that were run against steps that counted: what restarts repeated.",
    ),
    "restarts": (
        "SELECT b.job, a.attempt_index AS from_attempt, a.class, a.last_step AS failed_at, b.first_step AS resumed_at, b.last_step AS reached, "
        "b.last_step > a.last_step AS passed_the_failure FROM attempts a JOIN attempts b ON a.job = b.job AND b.attempt_index = a.attempt_index + 1",
        "Every restart seen in the logs and whether training passed the step where it had failed.",
    ),
}  # fmt: skip


def statements() -> list[str]:
    """DDL in order; safe to run on a store that has it already."""
    out = [f"CREATE TABLE IF NOT EXISTS {name} ({columns})" for name, (columns, _) in TABLES.items()]
    out += [f"CREATE OR REPLACE VIEW {name} AS {query}" for name, (query, _) in VIEWS.items()]
    out += [
        f"COMMENT ON TABLE {name} IS '{about.replace(chr(39), chr(39) * 2)}'" for name, (_, about) in TABLES.items()
    ]
    out += [f"COMMENT ON VIEW {name} IS '{about.replace(chr(39), chr(39) * 2)}'" for name, (_, about) in VIEWS.items()]
    return out
