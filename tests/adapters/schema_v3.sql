-- The history as schema version 3 wrote it (tables, views); the upgrade test opens such a store.
CREATE TABLE IF NOT EXISTS meta (key VARCHAR PRIMARY KEY, value VARCHAR);
CREATE TABLE IF NOT EXISTS unfinished (stream_id VARCHAR PRIMARY KEY);
CREATE TABLE IF NOT EXISTS streams (stream_id VARCHAR PRIMARY KEY, path VARCHAR, generation INTEGER, job VARCHAR, channel VARCHAR, node VARCHAR, rank INTEGER, local_rank INTEGER, bytes BIGINT, lines BIGINT, frameworks VARCHAR[], tail VARCHAR[], notes VARCHAR[]);
CREATE TABLE IF NOT EXISTS attempts (attempt_id VARCHAR PRIMARY KEY, job VARCHAR, cluster VARCHAR, job_id VARCHAR, array_task VARCHAR, submit_time TIMESTAMP, restart_count INTEGER, attempt_index INTEGER, job_name VARCHAR, framework VARCHAR, verdict VARCHAR, class VARCHAR, domain VARCHAR, confidence VARCHAR, cause_rule VARCHAR, cause_title VARCHAR, cause_stream VARCHAR, cause_line BIGINT, cause_offset BIGINT, cause_rank INTEGER, cause_node VARCHAR, cause_text VARCHAR, because VARCHAR, cascades BIGINT, progress_format VARCHAR, progress_kind VARCHAR, first_step BIGINT, last_step BIGINT, total_steps BIGINT, points BIGINT, median_step_s DOUBLE, p90_step_s DOUBLE, throughput DOUBLE, throughput_unit VARCHAR, clock VARCHAR, first_seen TIMESTAMP, last_seen TIMESTAMP, notes VARCHAR[], suspect_rank INTEGER, suspect_node VARCHAR, suspect_gpu VARCHAR, suspect_how VARCHAR, suspect_confidence VARCHAR, suspect_because VARCHAR, progress_counts VARCHAR);
CREATE TABLE IF NOT EXISTS attempt_streams (attempt_id VARCHAR, stream_id VARCHAR, first_line BIGINT, last_line BIGINT);
CREATE TABLE IF NOT EXISTS signals (stream_id VARCHAR, "offset" BIGINT, line BIGINT, rule VARCHAR, time TIMESTAMP, rank INTEGER, local_rank INTEGER, node VARCHAR, fields JSON, text VARCHAR);
CREATE TABLE IF NOT EXISTS progress (stream_id VARCHAR, "offset" BIGINT, line BIGINT, format VARCHAR, time TIMESTAMP, rank INTEGER, step BIGINT, total BIGINT, step_time_s DOUBLE, elapsed_s DOUBLE, throughput DOUBLE, throughput_unit VARCHAR, tflops DOUBLE, loss DOUBLE, grad_norm DOUBLE, epoch DOUBLE, samples DOUBLE, tokens DOUBLE);
CREATE TABLE IF NOT EXISTS windows (attempt_id VARCHAR, stream_id VARCHAR, format VARCHAR, clock VARCHAR, start_s DOUBLE, width_s DOUBLE, points BIGINT, first_step BIGINT, last_step BIGINT, median_step_s DOUBLE, p90_step_s DOUBLE, longest_gap_s DOUBLE);
CREATE TABLE IF NOT EXISTS episodes (attempt_id VARCHAR, position INTEGER, kind VARCHAR, phase VARCHAR, clock VARCHAR, onset TIMESTAMP, declared TIMESTAMP, ended TIMESTAMP, onset_s DOUBLE, declared_s DOUBLE, ended_s DOUBLE, onset_step BIGINT, end_step BIGINT, stream_id VARCHAR, onset_offset BIGINT, onset_line BIGINT, limit_s DOUBLE, baseline_s DOUBLE, pace_s DOUBLE, depth DOUBLE, scope VARCHAR, ranks INTEGER[], because VARCHAR);
CREATE TABLE IF NOT EXISTS incidents (incident_id VARCHAR PRIMARY KEY, attempt_id VARCHAR, verdict VARCHAR, class VARCHAR, domain VARCHAR, rule VARCHAR, confidence VARCHAR, fingerprint VARCHAR, rank INTEGER, node VARCHAR, time TIMESTAMP, step BIGINT, cascades BIGINT, title VARCHAR, because VARCHAR, retry VARCHAR, exclude VARCHAR, budget VARCHAR);
CREATE TABLE IF NOT EXISTS evidence (incident_id VARCHAR, attempt_id VARCHAR, position INTEGER, why VARCHAR, rule VARCHAR, title VARCHAR, stream_id VARCHAR, line BIGINT, "offset" BIGINT, time TIMESTAMP, rank INTEGER, node VARCHAR, count BIGINT, text VARCHAR);
CREATE TABLE IF NOT EXISTS nodes (node VARCHAR, attempt_id VARCHAR, incident_id VARCHAR, "role" VARCHAR, class VARCHAR, confidence VARCHAR, rule VARCHAR, stream_id VARCHAR, line BIGINT, time TIMESTAMP, gpu VARCHAR, source VARCHAR, breadth INTEGER);
CREATE TABLE IF NOT EXISTS health (job VARCHAR, attempt INTEGER, time TIMESTAMP, was VARCHAR, health VARCHAR, because VARCHAR, phase VARCHAR, onset TIMESTAMP, onset_step BIGINT);
CREATE TABLE IF NOT EXISTS live_jobs (job VARCHAR, cluster VARCHAR, job_id VARCHAR, array_task VARCHAR, job_name VARCHAR, attempt INTEGER, health VARCHAR, since TIMESTAMP, because VARCHAR, state VARCHAR, step BIGINT, first_seen TIMESTAMP, last_line TIMESTAMP, streams INTEGER);
CREATE TABLE IF NOT EXISTS live_streams (stream_id VARCHAR, path VARCHAR, generation INTEGER, job VARCHAR, bytes BIGINT, lines BIGINT, last_line TIMESTAMP, last_look TIMESTAMP, trouble VARCHAR, trouble_since TIMESTAMP, ended BOOLEAN);
CREATE TABLE IF NOT EXISTS classes (class VARCHAR PRIMARY KEY, title VARCHAR, verdict VARCHAR, fault VARCHAR, retry VARCHAR, exclude VARCHAR, budget VARCHAR, why VARCHAR);
CREATE TABLE IF NOT EXISTS policy (name VARCHAR, key VARCHAR, value DOUBLE);
CREATE TABLE IF NOT EXISTS decisions (decision_id VARCHAR PRIMARY KEY, attempt_id VARCHAR, incident_id VARCHAR, decided_at TIMESTAMP, verdict VARCHAR, gate VARCHAR, inputs JSON);
CREATE TABLE IF NOT EXISTS actions (action_id VARCHAR PRIMARY KEY, decision_id VARCHAR, attempt_id VARCHAR, kind VARCHAR, state VARCHAR, issued_at TIMESTAMP, outcome VARCHAR, detail JSON);
CREATE TABLE IF NOT EXISTS audit (seq BIGINT PRIMARY KEY, recorded_at TIMESTAMP, who VARCHAR, what VARCHAR, detail JSON, chain VARCHAR);
CREATE OR REPLACE VIEW live AS SELECT l.*, epoch(make_timestamp(m.value::BIGINT) - since) AS since_s, epoch(make_timestamp(m.value::BIGINT) - last_line) AS line_age_s FROM live_jobs l LEFT JOIN meta m ON m.key = 'now_us';
CREATE OR REPLACE VIEW live_lag AS SELECT l.*, epoch(make_timestamp(m.value::BIGINT) - last_look) AS lag_s, epoch(make_timestamp(m.value::BIGINT) - trouble_since) AS trouble_s FROM live_streams l LEFT JOIN meta m ON m.key = 'now_us';
CREATE OR REPLACE VIEW attempt_progress AS SELECT a.attempt_id, p.* FROM progress p JOIN attempt_streams a ON a.stream_id = p.stream_id AND p.line BETWEEN a.first_line AND a.last_line;
CREATE OR REPLACE VIEW attempt_signals AS SELECT a.attempt_id, s.* FROM signals s JOIN attempt_streams a ON a.stream_id = s.stream_id AND s.line BETWEEN a.first_line AND a.last_line;
CREATE OR REPLACE VIEW jobs AS SELECT job, any_value(job_name) AS job_name, last(framework ORDER BY attempt_index) AS framework, count(*) AS attempts, last(verdict ORDER BY attempt_index) AS verdict, last(class ORDER BY attempt_index) AS class, min(first_step) AS first_step, max(last_step) AS last_step, max(total_steps) AS total_steps, min(first_seen) AS first_seen, max(last_seen) AS last_seen FROM attempts GROUP BY job;
CREATE OR REPLACE VIEW why AS SELECT a.job, a.attempt_index, e.position, e.why, e.title, e.count, s.path, e.line, e.rank, e.node, e.text FROM evidence e JOIN attempts a USING (attempt_id) LEFT JOIN streams s USING (stream_id) ORDER BY a.job, a.attempt_index, e.position;
CREATE OR REPLACE VIEW suspects AS SELECT node, count(*) AS incidents, count(DISTINCT class) AS classes, list(DISTINCT class) AS what, max(time) AS last_time FROM nodes WHERE "role" = 'suspect' GROUP BY node ORDER BY incidents DESC, node;
CREATE OR REPLACE VIEW time_by_class AS SELECT class, count(*) AS attempts, sum(epoch(last_seen) - epoch(first_seen)) AS seconds_run, sum(coalesce(last_step - first_step, 0)) AS steps FROM attempts WHERE class IS NOT NULL GROUP BY class ORDER BY attempts DESC;
CREATE OR REPLACE VIEW restarts AS SELECT b.job, a.attempt_index AS from_attempt, a.class, a.last_step AS failed_at, b.first_step AS resumed_at, b.last_step AS reached, b.last_step > a.last_step AS passed_the_failure FROM attempts a JOIN attempts b ON a.job = b.job AND b.attempt_index = a.attempt_index + 1;
CREATE OR REPLACE VIEW node_facts AS SELECT n.node, n.gpu, coalesce(n.time, a.last_seen) AS time, n.class, coalesce(c.exclude, 'never') AS exclude, coalesce(c.fault, 'unknown') AS fault, n.confidence, a.job AS lineage, n.attempt_id, n.incident_id, n.breadth, coalesce(n.source, 'printer') AS source FROM nodes n JOIN attempts a USING (attempt_id) LEFT JOIN classes c ON c.class = n.class WHERE n."role" = 'suspect';
CREATE OR REPLACE VIEW node_evidence AS 
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
;
CREATE OR REPLACE VIEW attempt_time AS 
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
;
CREATE OR REPLACE VIEW goodput AS 
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
;
CREATE OR REPLACE VIEW fleet_goodput AS 
SELECT count(*) AS jobs, count(ettr) AS jobs_known, sum(attempts)::BIGINT AS attempts, sum(wall_s) AS wall_s, sum(counted_s) AS counted_s,
    sum(startup_s) AS startup_s, sum(stall_s) AS stall_s, sum(repeated_s) AS repeated_s, sum(gap_s) AS gap_s, sum(ending_s) AS ending_s,
    sum(slow_lost_s) AS slow_lost_s, round(sum(counted_s) / nullif(sum(wall_s), 0), 4) AS ettr
FROM goodput
;
COMMENT ON TABLE meta IS 'Schema version and rule hash of the last writer.';
COMMENT ON TABLE unfinished IS 'Streams of jobs not yet judged; empty between runs.';
COMMENT ON TABLE streams IS 'One row per log as it was read.';
COMMENT ON TABLE attempts IS 'One row per attempt of a job: how it ended, why, and how far it came.';
COMMENT ON TABLE attempt_streams IS 'Which lines of which logs belong to an attempt.';
COMMENT ON TABLE signals IS 'Every line a rule spoke for.';
COMMENT ON TABLE progress IS 'Every progress line, as numbers.';
COMMENT ON TABLE windows IS 'Throughput of an attempt in windows of its own clock.';
COMMENT ON TABLE episodes IS 'Stretches in which an attempt was hung, slow or unseen; _s are seconds on the clock named, null ended: to the end.';
COMMENT ON TABLE incidents IS 'One row per attempt that did not end well: what it was and what the class''s default policy says.';
COMMENT ON TABLE evidence IS 'The lines an attempt''s story rests on, in order.';
COMMENT ON TABLE nodes IS 'Which node an incident names: as suspect (source says how it was found) or as named in the lines around it.';
COMMENT ON TABLE health IS 'Every change of a run''s health that a watch saw; attempt counts from 1, the one that ran when the job was first seen.';
COMMENT ON TABLE live_jobs IS 'Jobs a watch follows now, on the observer''s clock; a job leaves when it is judged. state: what the scheduler says.';
COMMENT ON TABLE live_streams IS 'Logs of those jobs: how far they are read, when they were last read to their end, and why they cannot be.';
COMMENT ON TABLE classes IS 'The failure classes of the last writer''s rules.';
COMMENT ON TABLE policy IS 'The numbers of the last writer''s policy files; views weigh with them.';
COMMENT ON TABLE decisions IS 'What policy decided about an incident. Written by the recovery part; replay never decides.';
COMMENT ON TABLE actions IS 'What was done through the scheduler. Written by the recovery part; replay never acts.';
COMMENT ON TABLE audit IS 'Hash-chained record of every decision and act. Written by the recovery part.';
COMMENT ON VIEW live IS 'Running jobs with ages in seconds as of the watch''s last word.';
COMMENT ON VIEW live_lag IS 'Their logs with lag_s, the seconds since each was last read to its end, and trouble_s, since when it cannot be.';
COMMENT ON VIEW attempt_progress IS 'Progress lines with the attempt they belong to.';
COMMENT ON VIEW attempt_signals IS 'Signals with the attempt they belong to.';
COMMENT ON VIEW jobs IS 'One row per job; verdict and class are those of its last attempt.';
COMMENT ON VIEW why IS 'Why did a job end: the lines its story rests on.';
COMMENT ON VIEW suspects IS 'Nodes by how many incidents suspect them.';
COMMENT ON VIEW time_by_class IS 'Attempts, run time and steps by the class that ended them (time where logs carry stamps).';
COMMENT ON VIEW restarts IS 'Every restart seen in the logs and whether training passed the step where it had failed.';
COMMENT ON VIEW node_facts IS 'Every incident that suspects a node, with what the evidence weighs it by.';
COMMENT ON VIEW node_evidence IS 'What speaks against each node and GPU, weighed as of the newest incident of the history; defib nodes says what follows from it.';
COMMENT ON VIEW attempt_time IS 'Where an attempt''s time went, in seconds between its first and last stamped line; null where its log has no event time.';
COMMENT ON VIEW goodput IS 'Per job: steps run and kept, where the wall time went, and ettr, the share of it spent on steps that counted.';
COMMENT ON VIEW fleet_goodput IS 'The same over all jobs whose time is known. Jobs weigh by their wall time, not by GPUs: logs rarely tell how many there were.';
