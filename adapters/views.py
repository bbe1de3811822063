"""The history's views: one short query for each question. Constant SQL; `schema` puts them beside the tables.

Every view has a sentence of its own (`duckdb_views().comment`). Times are seconds unless a name says otherwise; null where the
logs do not tell, never a guess.
"""

from __future__ import annotations

# The same weighing as engine/nodes.py, so that anyone can check a candidate by hand; numbers come from the table `policy`.
NODE_EVIDENCE = """
WITH p AS (SELECT key, value FROM policy WHERE name = 'nodes'),
latest AS (SELECT max(time) AS at FROM (SELECT time FROM incidents UNION ALL SELECT time FROM node_facts)),
near AS (  -- the same class on many nodes at once is a shared cause
    SELECT f.*, (SELECT count(DISTINCT o.node) FROM node_facts o WHERE o.class = f.class AND abs(epoch_us(o.time) - epoch_us(f.time))
        <= 1e6 * (SELECT value FROM p WHERE key = 'breadth.window_s')) AS together FROM node_facts f
),
aged AS (
    SELECT near.*, greatest(coalesce(breadth, 1), together) AS shown, (epoch_us(latest.at) - epoch_us(time)) / 3.6e9 AS age_h
    FROM near, latest
),
weighed AS (
    SELECT aged.*, coalesce(CASE
        WHEN shown >= (SELECT value FROM p WHERE key = 'breadth.nodes') THEN 0
        WHEN exclude = 'if-one-node' AND (breadth IS NULL OR shown > 1) THEN 0
        WHEN age_h > (SELECT value FROM p WHERE key = 'expiry_hours') THEN 0
        ELSE sure.value * stance.value * pow(0.5, age_h / (SELECT value FROM p WHERE key = 'half_life_hours'))
    END, 0) AS weight
    FROM aged LEFT JOIN p sure ON sure.key = 'weights.' || confidence LEFT JOIN p stance ON stance.key = 'stances.' || exclude
),
voices AS (  -- all attempts of a job are one voice: the heaviest counts
    SELECT node, gpu, lineage, max(weight) AS weight, count(DISTINCT incident_id) AS incidents, max(time) AS last_time,
        list(DISTINCT class) AS classes
    FROM weighed GROUP BY ALL
)
SELECT node, gpu, sum(incidents)::BIGINT AS incidents, count(*) AS jobs, round(sum(weight), 6) AS weight, max(last_time) AS last_time,
    list_sort(list_distinct(flatten(list(classes)))) AS classes
FROM voices GROUP BY node, gpu ORDER BY weight DESC, node, gpu
"""

# (DuckDB's greatest() passes nulls over, so it stands only where there are none.)
# Where an attempt's time went. Everything is between stamped lines that a rule or a progress format read, so it is right to one log
# interval: the steps before the first progress line count as start-up.
#   startup_s    first line -> first step, less the hung part; to the last line where no step was printed
#   training_s   first step -> last step, less the hung part; checkpoints and evaluations in between belong to it
#   stall_s      hung episodes, and the silent tail after the last step of an attempt that did not end well
#   ending_s     after the last step of a completed (or still running) attempt
#   startup_s + training_s + stall_s + ending_s = wall_s
#   slow_s       seconds of slow episodes; slow_lost_s = seconds x depth, what the same steps would have taken less at the old pace
#   repeated_*   steps, and their seconds without hung parts, that a later attempt of the job did again: all after the last step printed here that
#                comes before the first one printed there
#   counted_s    training_s - repeated_s: time of the steps that counted as far as the history sees (the last attempt's steps all do)
#   gap_s        last line -> first line of the next attempt
# A counter that restarts every epoch tells no place in the run, so nothing is said of repeats there. On the step clock (printed step times,
# no stamps) only training_s is known: the sum of the printed times.
ATTEMPT_TIME = """
WITH a AS (
    SELECT *, last_step IS NOT NULL AND progress_kind = 'train' AS trained, epoch(last_seen) - epoch(first_seen) AS span_s,
        coalesce(progress_counts, 'step') <> 'epoch' AS placed, lead(first_seen) OVER job AS next_seen,
        min(CASE WHEN progress_kind = 'train' THEN first_step END)
            OVER (PARTITION BY job ORDER BY attempt_index ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS redone_from
    FROM attempts WINDOW job AS (PARTITION BY job ORDER BY attempt_index)
),
steps AS (  -- of all streams: where the first, the last and the last kept step were printed
    SELECT a.attempt_id, min(p.time) AS first_at, max(p.time) AS last_at, max(p.step) FILTER (p.step < a.redone_from) AS kept_step,
        max(p.time) FILTER (p.step < a.redone_from) AS kept_at
    FROM a JOIN attempt_progress p ON p.attempt_id = a.attempt_id AND p.format = a.progress_format
    WHERE a.trained AND p.step IS NOT NULL GROUP BY a.attempt_id
),
ticks AS (  -- the step clock, stream by stream: several ranks may print the same steps
    SELECT attempt_id, max(s) AS step_clock_s FROM (
        SELECT attempt_id, stream_id, sum(step_time_s * ahead) AS s FROM (
            SELECT p.attempt_id, p.stream_id, p.step_time_s,
                lag(p.step) OVER (PARTITION BY p.attempt_id, p.stream_id ORDER BY p."offset") AS before,
                CASE WHEN before IS NULL THEN 1 WHEN p.step > before THEN p.step - before ELSE 0 END AS ahead
            FROM attempt_progress p JOIN a ON a.attempt_id = p.attempt_id AND p.format = a.progress_format
            WHERE a.clock = 'step' AND a.trained AND p.step IS NOT NULL)
        GROUP BY ALL) GROUP BY attempt_id
),
spells AS (  -- episodes with their seconds; one that lasts to the end ends with the attempt, if that is known on its clock
    SELECT e.*, coalesce(e.ended_s, CASE
        WHEN e.clock = 'event' AND e.kind = 'slow' THEN epoch(coalesce(k.last_at, a.last_seen))
        WHEN e.clock = 'event' THEN epoch(a.last_seen)
        WHEN e.clock = 'step' AND a.clock = 'step' THEN t.step_clock_s END) AS until_s
    FROM episodes e JOIN a USING (attempt_id) LEFT JOIN ticks t USING (attempt_id) LEFT JOIN steps k USING (attempt_id)
),
apart AS (  -- overlapping stretches of one kind count once
    SELECT *, until_s - greatest(onset_s, coalesce(max(until_s) OVER (PARTITION BY attempt_id, kind, clock ORDER BY onset_s, position
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), onset_s)) AS s FROM spells
),
lost AS (  -- unknown where one part is; hung stretches by where in the run they lie
    SELECT a.attempt_id,
        CASE WHEN bool_or(kind = 'hung' AND s IS NULL) THEN NULL ELSE
            coalesce(sum(greatest(s, 0)) FILTER (kind = 'hung' AND (onset_step IS NULL OR NOT a.trained)), 0) END AS hung_before_s,
        coalesce(sum(greatest(s, 0)) FILTER (kind = 'hung' AND a.trained AND onset_step < a.last_step), 0) AS hung_within_s,
        coalesce(sum(greatest(s, 0)) FILTER (kind = 'hung' AND a.trained AND onset_step < a.last_step
            AND onset_step >= coalesce(k.kept_step, a.first_step)), 0) AS hung_repeated_s,
        coalesce(sum(greatest(s, 0)) FILTER (kind = 'hung' AND a.trained AND onset_step >= a.last_step), 0) AS hung_after_s,
        CASE WHEN bool_or(kind = 'slow' AND s IS NULL) THEN NULL ELSE coalesce(sum(greatest(s, 0)) FILTER (kind = 'slow'), 0) END AS slow_s,
        CASE WHEN bool_or(kind = 'slow' AND (s IS NULL OR depth IS NULL)) THEN NULL
            ELSE coalesce(sum(greatest(s, 0) * depth) FILTER (kind = 'slow'), 0) END AS slow_lost_s
    FROM apart JOIN a USING (attempt_id) LEFT JOIN steps k USING (attempt_id) GROUP BY a.attempt_id
),
parts AS (
    SELECT a.*, l.attempt_id IS NULL AS calm, coalesce(l.hung_before_s, CASE WHEN calm THEN 0 END) AS before_s,
        coalesce(l.hung_within_s, 0) AS within_s, coalesce(l.hung_after_s, 0) AS after_s,
        CASE WHEN a.clock = 'event' THEN a.span_s END AS wall_s,
        CASE WHEN a.clock = 'event' THEN CASE WHEN a.trained THEN epoch(k.first_at) - epoch(a.first_seen) ELSE a.span_s END END AS lead_s,
        CASE WHEN a.clock = 'event' THEN CASE WHEN a.trained THEN epoch(k.last_at) - epoch(k.first_at) ELSE 0 END
            WHEN a.clock = 'step' THEN t.step_clock_s END AS steps_s,
        CASE WHEN a.clock = 'event' THEN CASE WHEN a.trained THEN epoch(a.last_seen) - epoch(k.last_at) ELSE 0 END END AS tail_s,
        a.verdict IN ('completed', 'running-at-end') AS well,
        CASE WHEN a.trained AND a.redone_from <= a.last_step AND a.placed
            THEN a.last_step - coalesce(k.kept_step, a.first_step - 1)
            WHEN a.placed OR a.redone_from IS NULL THEN 0 END AS repeated_steps,
        CASE WHEN a.clock = 'event' THEN CASE WHEN a.trained AND a.redone_from <= a.last_step AND a.placed
            THEN greatest(0, epoch(k.last_at) - epoch(coalesce(k.kept_at, k.first_at)) - coalesce(l.hung_repeated_s, 0))
            WHEN a.placed OR a.redone_from IS NULL THEN 0 END END AS repeated_s,
        CASE WHEN calm THEN 0 ELSE l.slow_s END AS slow_s, CASE WHEN calm THEN 0 ELSE l.slow_lost_s END AS slow_lost_s,
        k.first_at AS first_step_at, k.last_at AS last_step_at
    FROM a LEFT JOIN steps k USING (attempt_id) LEFT JOIN ticks t USING (attempt_id) LEFT JOIN lost l USING (attempt_id)
)
SELECT attempt_id, job, attempt_index, verdict, class, clock, wall_s, startup_s, training_s,
    wall_s - startup_s - training_s - ending_s AS stall_s, ending_s, slow_s, slow_lost_s, repeated_steps, repeated_s,
    CASE WHEN wall_s IS NOT NULL THEN training_s - repeated_s END AS counted_s,
    CASE WHEN next_seen IS NOT NULL AND clock = 'event' THEN greatest(0, epoch(next_seen) - epoch(last_seen)) END AS gap_s,
    first_step_at, last_step_at
FROM (
    SELECT *, CASE WHEN lead_s < before_s THEN 0 ELSE lead_s - before_s END AS startup_s,
        CASE WHEN steps_s < within_s THEN 0 ELSE steps_s - within_s END AS training_s,
        CASE WHEN NOT well THEN tail_s * 0 WHEN tail_s < after_s THEN 0 ELSE tail_s - after_s END AS ending_s
    FROM parts)
"""

# steps_run and steps_kept count printed steps. ettr is the effective-training-time ratio: productive time over wall time, restart gaps
# included (Meta's RSC study, arXiv 2410.21680; ByteRobust reports the same ratio, arXiv 2509.16293). Productive are here the steps that no
# later attempt did again; waiting in the queue before the first attempt is not seen and not counted. Null unless the event time of every
# attempt is known and some attempt printed steps.
GOODPUT = """
WITH t AS (
    SELECT a.*, t.* EXCLUDE (attempt_id, job, attempt_index, verdict, class, clock), a.last_step IS NOT NULL AND a.progress_kind = 'train' AS trained
    FROM attempts a JOIN attempt_time t USING (attempt_id)
),
j AS (
    SELECT job, count(*) AS attempts, sum(CASE WHEN trained THEN last_step - first_step + 1 END)::BIGINT AS steps_run,
        max(CASE WHEN trained THEN last_step END) - min(CASE WHEN trained THEN first_step END) + 1 AS steps_kept,
        bool_and(coalesce(clock = 'event' AND counted_s IS NOT NULL, false)) AS known,
        epoch(max(last_seen)) - epoch(min(first_seen)) AS span_s, sum(counted_s) AS counted, sum(startup_s) AS startup, sum(stall_s) AS stall,
        sum(ending_s) AS ending, CASE WHEN count(slow_lost_s) = count(*) THEN sum(slow_lost_s) END AS slow_lost,
        sum(repeated_steps)::BIGINT AS repeated_steps, sum(repeated_s) AS repeated, coalesce(sum(gap_s), 0) AS gap
    FROM t GROUP BY job HAVING bool_or(trained)
)
SELECT job, attempts, steps_run, steps_kept, round(steps_kept / nullif(steps_run, 0), 4) AS kept_ratio,
    CASE WHEN known THEN span_s END AS wall_s, CASE WHEN known THEN counted END AS counted_s, CASE WHEN known THEN startup END AS startup_s,
    CASE WHEN known THEN stall END AS stall_s, CASE WHEN known THEN repeated END AS repeated_s, repeated_steps,
    CASE WHEN known THEN gap END AS gap_s, CASE WHEN known THEN ending END AS ending_s, CASE WHEN known THEN slow_lost END AS slow_lost_s,
    CASE WHEN known THEN round(counted / nullif(span_s, 0), 4) END AS ettr
FROM j ORDER BY job
"""

FLEET_GOODPUT = """
SELECT count(*) AS jobs, count(ettr) AS jobs_known, sum(attempts)::BIGINT AS attempts, sum(wall_s) AS wall_s, sum(counted_s) AS counted_s,
    sum(startup_s) AS startup_s, sum(stall_s) AS stall_s, sum(repeated_s) AS repeated_s, sum(gap_s) AS gap_s, sum(ending_s) AS ending_s,
    sum(slow_lost_s) AS slow_lost_s, round(sum(counted_s) / nullif(sum(wall_s), 0), 4) AS ettr
FROM goodput
"""

VIEWS = {
    "live": (
        "SELECT l.*, epoch(make_timestamp(m.value::BIGINT) - since) AS since_s, epoch(make_timestamp(m.value::BIGINT) - last_line) AS "
        "line_age_s FROM live_jobs l LEFT JOIN meta m ON m.key = 'now_us'",
        "Running jobs with ages in seconds as of the watch's last word.",
    ),
    "live_lag": (
        "SELECT l.*, epoch(make_timestamp(m.value::BIGINT) - last_look) AS lag_s, epoch(make_timestamp(m.value::BIGINT) - trouble_since) AS "
        "trouble_s FROM live_streams l LEFT JOIN meta m ON m.key = 'now_us'",
        "Their logs with lag_s, the seconds since each was last read to its end, and trouble_s, since when it cannot be.",
    ),
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
        "SELECT n.node, count(*) AS incidents, count(DISTINCT n.class) AS classes, list(DISTINCT n.class) AS what, "
        "max(coalesce(n.time, a.last_seen)) AS last_time FROM nodes n JOIN attempts a USING (attempt_id) "
        "WHERE n.\"role\" = 'suspect' GROUP BY n.node ORDER BY incidents DESC, n.node",
        "Nodes by how many incidents suspect them; where an incident's line has no time, its attempt's last line stands for it.",
    ),
    "time_by_class": (
        "SELECT class, count(*) AS attempts, sum(epoch(last_seen) - epoch(first_seen)) AS seconds_run, "
        "sum(coalesce(last_step - first_step, 0)) AS steps FROM attempts WHERE class IS NOT NULL GROUP BY class ORDER BY attempts DESC",
        "Attempts, run time and steps by the class that ended them (time where logs carry stamps).",
    ),
    "restarts": (
        "SELECT b.job, a.attempt_index AS from_attempt, a.class, a.last_step AS failed_at, b.first_step AS resumed_at, b.last_step AS reached, "
        "b.last_step > a.last_step AS passed_the_failure FROM attempts a JOIN attempts b ON a.job = b.job AND b.attempt_index = a.attempt_index + 1",
        "Every restart seen in the logs and whether training passed the step where it had failed.",
    ),
    "action_steps": (
        "SELECT action_id, job, restarts, seq, recorded_at, was, state, because, who FROM audit WHERE action_id IS NOT NULL "
        "AND (was IS DISTINCT FROM state OR who <> 'defib') ORDER BY action_id, seq",
        "Every change of an action's state, and every word of a person about it, with time and reason.",
    ),
    "recoveries": (
        "SELECT job, restarts, class, kind, issued_at, state, failed_step, reached_step, excluded, epoch(since) - epoch(issued_at) AS took_s "
        "FROM actions WHERE calls > 0 ORDER BY issued_at",
        "Every restart that defib called for and whether it helped: took_s is from the call to the present state.",
    ),
    "node_facts": (
        # One voice of the evidence: where the incident's own line has no time, the attempt's last line stands for it.
        "SELECT n.node, n.gpu, coalesce(n.time, a.last_seen) AS time, n.class, coalesce(c.exclude, 'never') AS exclude, "
        "coalesce(c.fault, 'unknown') AS fault, n.confidence, a.job AS lineage, n.attempt_id, n.incident_id, n.breadth, "
        "coalesce(n.source, 'printer') AS source "
        "FROM nodes n JOIN attempts a USING (attempt_id) LEFT JOIN classes c ON c.class = n.class WHERE n.\"role\" = 'suspect'",
        "Every incident that suspects a node, with what the evidence weighs it by.",
    ),
    "node_evidence": (
        NODE_EVIDENCE,
        "What speaks against each node and GPU, weighed as of the newest incident of the history; defib nodes says what follows from it.",
    ),
    "attempt_time": (
        ATTEMPT_TIME,
        "Where an attempt's time went, in seconds between its first and last stamped line; null where its log has no event time.",
    ),
    "goodput": (
        GOODPUT,
        "Per job: steps run and kept, where the wall time went, and ettr, the share of it spent on steps that counted.",
    ),
    "fleet_goodput": (
        FLEET_GOODPUT,
        "The same over all jobs whose time is known. Jobs weigh by their wall time, not by GPUs: logs rarely tell how many there were.",
    ),
}  # fmt: skip
