"""`defib policy check`, `consent`, `decide` and `whatif`: what an operator and a job's owner ask of the recovery's rules. Nothing here acts."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from defib.adapters.show import printable, safe

if TYPE_CHECKING:
    from defib.engine.policies import RecoveryPolicy
    from defib.engine.recover.desk import Rules
    from defib.engine.recover.whatif import Compared, Past

DECISION_ID = re.compile(r"[0-9a-f]{16}-[0-9]+", re.ASCII)
PAST = """
WITH gpus AS (
    SELECT attempt_id, max(rank) + 1 AS n FROM (
        SELECT attempt_id, rank FROM attempt_progress UNION ALL SELECT attempt_id, rank FROM attempt_signals
        UNION ALL SELECT a.attempt_id, s.rank FROM attempt_streams a JOIN streams s USING (stream_id))
    GROUP BY attempt_id
)
SELECT a.attempt_id, a.job, a.attempt_index, a.verdict, coalesce(a.class, ''), coalesce(i.fingerprint, ''), a.last_step,
    epoch_us(a.first_seen), epoch_us(a.last_seen), epoch_us(lead(a.first_seen) OVER w), epoch_us(lead(a.last_seen) OVER w), lead(a.last_step) OVER w,
    greatest(1, coalesce(g.n, 1))::BIGINT
FROM attempts a LEFT JOIN incidents i USING (attempt_id) LEFT JOIN gpus g USING (attempt_id)
WINDOW w AS (PARTITION BY a.job ORDER BY a.attempt_index)
ORDER BY a.last_seen, a.attempt_id
"""
HEALED = """
SELECT attempt_id, position, epoch_us(declared), onset_step FROM episodes
WHERE kind = 'hung' AND clock = 'event' AND declared IS NOT NULL AND ended IS NOT NULL ORDER BY declared
"""
WELL = ("completed", "running-at-end", "unknown")
SHOWN = 40


def check(args: Any) -> int:
    """`defib policy check FILE…`: every fault at its line, or what the files change."""
    from defib.adapters.cli.tables import write_json
    from defib.engine.policies import RecoveryPolicy, restore
    from defib.engine.words import RuleError

    shipped, laid, problems = policies(args.files)
    if problems:
        raise RuleError(problems)
    changes = [(n, k, was, now) for n in sorted(laid) for k, was, now in _differences(shipped.get(n, {}), laid[n], "")]
    notes = doubts(restore(RecoveryPolicy, laid["recovery"]))
    if args.json:
        rows = [{"policy": n, "key": k, "shipped": was, "now": now} for n, k, was, now in changes]
        write_json({"schema": "defib/policy-check/1", "rows": rows, "notes": notes})
        return 0
    for name, key, was, now in changes:
        print(safe(f"{name}: {key}: {_shown(was)} -> {_shown(now)}"))
    print(
        f"{len(args.files)} file{'' if len(args.files) == 1 else 's'} sound, {len(changes)} value{'' if len(changes) == 1 else 's'} changed"
    )
    for note in notes:
        print(f"note: {note}")
    return 0


def doubts(policy: RecoveryPolicy) -> list[str]:
    """What a person may not have meant."""
    out = []
    acts = policy.mode != "observe"
    if acts and not policy.allow.partitions:
        out.append(f"mode is {policy.mode}, but allow.partitions is empty: nobody's jobs are touched")
    if acts and not policy.allow.accounts:
        out.append(f"mode is {policy.mode}, but allow.accounts is empty: nobody's jobs are touched")
    if policy.mode == "act" and policy.act_on_running:
        out.append("runs that still hold their nodes may be ended by defib alone; 'approve' lets a person confirm each")
    if policy.act_on_slow:
        out.append("slow runs may be restarted; most slowdowns cost less than a restart")
    if acts and policy.budgets.lineage.per_day == 0:
        out.append("budgets.lineage.per_day is 0: no call is ever made")
    if not acts:
        out.append("mode is observe: decisions are written down, nothing is called")
    return out


def policies(files: list[Path]) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]], list[Any]]:
    """(the shipped policies, the same with the files laid over them, faults)."""
    from defib.adapters import rulefiles
    from defib.engine import policyfiles, yamlpos
    from defib.engine.words import Problem

    ours = [
        yamlpos.read(f"rules/policy/{p.name}", p.read_text(encoding="utf-8"))
        for p in sorted((rulefiles.built_in() / "policy").glob("*.yaml"))
    ]
    problems: list[Any] = []
    theirs = []
    for path, text in rulefiles.read_folders(list(files)):
        source = yamlpos.read(path, text)
        problems += source.problems
        if source.problems:
            continue
        if isinstance(source.data, dict) and "policy" in source.data:
            theirs.append(source)
        else:
            problems.append(
                Problem(path, 1, 1, "this is no policy file", "begin with 'policy: recovery' (or nodes, detect)")
            )
    shipped = policyfiles.assemble(ours, [])
    return shipped, policyfiles.assemble([*ours, *theirs], problems), problems


def _differences(was: Any, now: Any, key: str) -> list[tuple[str, Any, Any]]:
    if isinstance(was, dict) and isinstance(now, dict):
        return [d for k in now for d in _differences(was.get(k), now[k], f"{key}.{k}" if key else k)]
    return [] if was == now else [(key, was, now)]


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) or "nobody" if isinstance(value, list | tuple) else str(value)


def consent(args: Any) -> int:
    """`defib consent`: print a valid comment, or explain one."""
    from defib.engine.recover import consent as words

    if args.check is not None:
        valid, sentences = words.explain(args.check)
        print("\n".join(safe(s) for s in sentences))
        return 0 if valid else 1
    if args.revoke:
        text = '{"defib": {"restart": []}}'
    elif not args.restart:
        print("defib: say what for: --restart crash,hang (or --check TEXT, --revoke)", file=sys.stderr)
        return 2
    else:
        kinds = [k.strip() for k in args.restart.split(",")]
        strange = [k for k in kinds if k not in words.KINDS]
        if strange:
            print(f"defib: '{printable(strange[0])}' is no kind; known are {', '.join(words.KINDS)}", file=sys.stderr)
            return 2
        running = args.act_on_running
        text = words.Consent(frozenset(kinds), args.max_restarts, running, not args.no_exclude).comment()
        words.parse(text)
    print(text)
    if sys.stdout.isatty() or args.how:
        print(f"\nin the script:    #SBATCH --comment={shlex.quote(text)}")
        print(f"on submission:    sbatch --requeue --comment={shlex.quote(text)} …")
        print(f"while it runs:    scontrol update JobId=ID Comment={shlex.quote(text)}")
        print()
        print("\n".join(words.explain(text)[1]))
    return 0


def decide(args: Any) -> int:
    """`defib decide --replay ID|FILE.json`: the decision of stored inputs, once more."""
    from defib.adapters.cli.tables import table, write_json
    from defib.engine.recover import codec
    from defib.engine.recover.planner import replay
    from defib.engine.words import SourceError

    try:
        decision = replay(_stored(args.replay, args.db))
    except OSError as e:
        raise SourceError(f"{printable(args.replay)}: {e.strerror}") from e
    except ValueError as e:
        raise SourceError(f"{printable(args.replay)}: these are no inputs of a decision: {printable(str(e))}") from e
    if args.json:
        write_json({"schema": "defib/decision/1", **codec.plain(decision)})
        return 0
    r, plan = decision.refusal, decision.plan
    print(safe(plan.sentence if plan is not None else "no plan can be made of this"))
    for note in decision.notes:
        print(safe(f"note: {note}"))
    print(
        "every gate is open: it would be called" if r is None else safe(f"not done: gate {r.gate} {r.name}: {r.value}")
    )
    if r is not None and decision.would:
        print("only the mode keeps it back")
    print()
    table(
        ("GATE", "NAME", "", "VALUE"),
        [(g.gate, g.name, "open" if g.open else "CLOSED", safe(g.value)) for g in decision.readings],
    )
    return 0


def _stored(what: str, db: str) -> str | bytes:
    """Inputs of a decision: of a file, or of the history by the decision's id. Raises OSError, ValueError, StoreError."""
    import orjson

    from defib.adapters.cli.query import ask
    from defib.adapters.history import open_history
    from defib.engine.words import StoreError

    if not DECISION_ID.fullmatch(what):
        text = Path(what).read_bytes()
        raw = orjson.loads(text)
        return (
            raw["inputs"] if isinstance(raw, dict) and isinstance(raw.get("inputs"), str) else text
        )  # a whole row of the audit
    con = open_history(db)
    found = ask(con, db, "SELECT inputs FROM decisions WHERE decision_id = ?", [what]).fetchall()
    con.close()
    if not found:
        raise StoreError(
            f"no decision {what} in {safe(printable(db))} ('defib why JOB' and the table decisions name them)"
        )
    return str(found[0][0])


def whatif(args: Any) -> int:
    """`defib whatif --policy NEW.yaml`: what would have been advised instead."""
    from defib.adapters.cli.query import ask
    from defib.adapters.cli.tables import write_json
    from defib.adapters.history import open_history
    from defib.engine.recover import codec
    from defib.engine.recover.whatif import compare
    from defib.engine.words import RuleError

    now, new, problems = policies(args.policy)
    if problems:
        raise RuleError(problems)
    con = open_history(args.db)
    past, left_out = _past(ask(con, args.db, PAST, []).fetchall(), con.execute(HEALED).fetchall())
    con.close()
    told = compare(past, _rules(now), _rules(new))
    if args.json:
        write_json({"schema": "defib/whatif/1", "left_out": left_out, **codec.plain(told)})
        return 0
    print("\n".join(_page(told, left_out)))
    return 0


def _past(rows: list[tuple[Any, ...]], healed: list[tuple[Any, ...]]) -> tuple[list[Past], int]:
    """Attempts that did not end well, and hangs that passed, in order of time; and how many have no time."""
    from defib.engine.recover.whatif import Past

    out, without = [], 0
    by_id = {}
    for row in rows:
        attempt, job, index, verdict, klass, fingerprint, step, begun, ended, *rest = row
        if begun is None or ended is None:
            without += 1
            continue
        p = Past(attempt, job, index, verdict, klass, fingerprint, step, begun, ended, *rest)
        by_id[attempt] = p
        if verdict not in WELL:
            out.append(p)
    for attempt, position, declared, step in healed:
        if attempt in by_id:
            p = by_id[attempt]
            out.append(
                dataclasses.replace(
                    p,
                    attempt=f"{attempt}~{position}",
                    verdict="stalled",
                    klass="hang",
                    fingerprint="",
                    step=step,
                    ended_us=declared,
                    healed=True,
                )
            )
    return sorted(out, key=lambda p: (p.ended_us, p.attempt)), without


def _rules(values: dict[str, dict[str, Any]]) -> Rules:
    from defib.adapters import rulefiles
    from defib.engine.policies import NodesPolicy, RecoveryPolicy, restore
    from defib.engine.recover.desk import Rules

    book = rulefiles.load().book
    return Rules(restore(RecoveryPolicy, values["recovery"]), restore(NodesPolicy, values["nodes"]), book.class_by_id)


def _page(told: Compared, left_out: int) -> list[str]:
    out = [
        f"{told.attempts} attempts that did not end well: {told.restarts_before} restarts advised now, {told.restarts_after} with the new policy",
    ]
    for c in told.changed[:SHOWN]:
        gain = "" if c.gpu_h is None else f"; {c.gpu_h:+.1f} GPU-hours"
        change = f"restart after {c.after.wait_s:.0f} s" if c.after.restart else f"no longer: {c.after.because}"
        was = "restart" if c.before.restart else c.before.because
        out.append(safe(f"  {c.past.attempt} ({c.past.klass or c.past.verdict}): {change} (now: {was}){gain}"))
    if len(told.changed) > SHOWN:
        out.append(f"  … and {len(told.changed) - SHOWN} more (--json has all)")
    out += [
        "",
        f"GPU-hours won {told.won_gpu_h:.1f}, lost {told.lost_gpu_h:.1f}; of {told.unknown} changes nothing can be said",
        f"restarts of runs that went on by themselves: {told.alone_before} now, {told.alone_after} with the new policy",
        "",
        "Estimated from what really followed: where the next attempt passed the failing step, the wait for it is won; where it did not, its",
        "time is lost. GPUs are the ranks seen in the logs. Taken as given: consent, mode act, every partition, each job a user of its own.",
    ]
    if left_out:
        out.append(f"{left_out} attempts have no times and are left out.")
    return out
