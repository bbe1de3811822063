"""The part of `defib why` that answers "what was done about it, and why not more": decisions, the first closed gate, the action's course.

In: a history. Out: one plain mapping per run (`--json`), and the page's lines. Always: text of users, schedulers and people reaches a page
only escaped; a history of before recovery was kept has no such part, and that is no fault.
"""

from __future__ import annotations

import textwrap
from typing import Any

import duckdb
import orjson

from defib.adapters.show import cut, safe

WIDTH, SAID, RUNS_SHOWN, STEPS_SHOWN = 100, 300, 5, 30
RUNS = """
SELECT DISTINCT action_id, job, restarts, first(seq ORDER BY seq) AS seq FROM audit
WHERE action_id IS NOT NULL AND (job = ? OR ends_with(job, '/' || ?)) GROUP BY ALL ORDER BY seq
"""
STEPS = "SELECT recorded_at AS at, was, state, because, who FROM action_steps WHERE action_id = ? ORDER BY seq"
DECISION = """
SELECT decision_id AS id, decided_at, verdict, gate, value, read_at, for_good, plan, because FROM decisions WHERE action_id = ? ORDER BY seq DESC
LIMIT 1
"""
CALLED = "SELECT kind, state, detail, excluded, failed_step, reached_step, class FROM actions WHERE action_id = ?"

STATES = {
    "suspect": "something looks wrong; it is being made sure",
    "confirmed": "it is certain; what to do is being decided",
    "planned": "a restart is planned and has not been called for",
    "authorised": "a restart is about to be called for",
    "issued": "a restart was called for; Slurm has not answered yet",
    "accepted": "Slurm has taken the restart; the job has not started again yet",
    "started": "the job runs again; it has not passed the step where it failed yet",
    "recovered": "it was restarted and went past the step where it had failed",
    "cleared": "the suspicion went away by itself; nothing was done",
    "refused": "it was left alone",
    "expired": "a restart was planned, and did not become possible in time",
    "rejected": "Slurm refused the restart; nothing was changed",
    "unknown": "a restart was called for, and it is not known whether it happened",
    "satisfied-by-other": "somebody else restarted it first",
    "not-done": "a restart was called for, and did not happen",
    "stranded": "it was restarted, and does not start again",
    "not-recovered": "it was restarted, and did not get past the step where it had failed",
    "human": "it is left to a person",
}
NEXT = {
    "suspect": "Two or three more observations, then it is decided.",
    "confirmed": "The evidence is copied, then it is decided.",
    "authorised": "The call.",
    "issued": "Slurm's answer; then fresh reads show what became of the job.",
    "accepted": "Slurm starts it again when it can; then its log has to pass the failing step.",
    "started": "Its log has to pass the failing step; until then it does not count as recovered.",
    "unknown": "Fresh reads show what became of the job. Nothing is called a second time meanwhile.",
    "not-done": "It is shown by fresh reads; then the call may be made once more.",
    "stranded": "A person has to look: defib does nothing more about this run.",
    "not-recovered": "The new run is judged like any other. The same failure at the same step is not restarted again.",
    "human": "A person has to look: defib does nothing more about this run.",
    "rejected": "defib does nothing more about this run.",
    "expired": "defib does nothing more about this run.",
    "refused": "defib does nothing more about this run; a later run of the job is judged anew.",
}
# What each gate asks for, and who can open it.
GATES = {
    "mode": ("defib may only watch here, or a person has to approve first", "The site sets the mode; 'defib act list' shows what waits."),
    "kill-switch": ("an operator has stopped all restarts", "Opens when the file STOP in the state folder is removed."),
    "dead-man": ("defib was not sure of its own health", "Opens by itself when its self-tests pass again."),
    "lock": ("another defib has taken over this cluster", "Only the newest one acts."),
    "controller": ("Slurm's controller was busy, unreachable or had just started", "Opens by itself when it is calm for a while."),
    "allow-list": ("the site does not let defib do this for this partition, account or kind of trouble", "Only the site can change that."),
    "consent": ("the job's owner has not asked for this", "Its owner can: see 'defib consent --how'."),
    "identity": ("the job in the queue is not surely the run this is about, or it cannot be requeued", "Jobs need sbatch --requeue."),
    "end": ("it did not end in a way that a restart helps", "Completed, cancelled and preempted jobs are left alone."),
    "other-requeuer": ("somebody or something else restarts this job", "Two of them would kill each other's runs."),
    "evidence": ("the proof is too weak, or was not kept safe yet", "Opens when enough is seen and copied."),
    "independent-sign": (
        "only the log says that it hangs", "A sign from outside is needed: 'defib evidence add --job JOB --source NAME'.",
    ),
    "budget": ("the restarts for this job, user or kind of failure are used up", "Progress past the failing step gives new ones."),
    "rate": ("too many restarts in too short a time", "Opens by itself later."),
    "breakers": ("a breaker is open: something larger is wrong", "See 'defib act list'; a person closes it with 'defib act close'."),
    "maintenance": ("maintenance is near", "Opens when it is over."),
    "caught-up": ("not all of its log has been read yet", "Opens by itself."),
}  # fmt: skip


def of(con: Any, job: str) -> list[dict[str, Any]]:
    """What was decided and done about the runs of a job, oldest first; [] where there is nothing, or the history is too old to hold it."""
    try:
        runs = _dicts(con.execute(RUNS, [job, job]))
        return [_run(con, r) for r in runs]
    except duckdb.Error:
        return []


def _run(con: Any, run: dict[str, Any]) -> dict[str, Any]:
    key = [run["action_id"]]
    steps = _dicts(con.execute(STEPS, key))
    decision = next(iter(_dicts(con.execute(DECISION, key))), None)
    action = next(iter(_dicts(con.execute(CALLED, key))), None)
    state = next((s["state"] for s in reversed(steps) if s["state"]), "suspect")
    gate = decision["gate"] if decision is not None and state in ("planned", "refused", "expired") else None
    return {
        "action_id": run["action_id"], "job": run["job"], "restarts": run["restarts"], "state": state, "meaning": STATES.get(state, state),
        "decision": decision, "gate": gate, "gate_means": GATES[gate][0] if gate in GATES else None, "steps": steps,
        "calls": orjson.loads(action["detail"]) if action is not None else [],
        "excluded": action["excluded"] if action is not None else [],
        "failed_step": action["failed_step"] if action is not None else None,
        "reached_step": action["reached_step"] if action is not None else None,
        "people": [s for s in steps if s["who"] != "defib"], "next": _next(state, gate),
    }  # fmt: skip


def _next(state: str, gate: str | None) -> str | None:
    if state == "planned":
        return (
            GATES[gate][1]
            if gate in GATES
            else "The job is read once more; if every gate is still open, the call follows."
        )
    return NEXT.get(state)


def page(runs: list[dict[str, Any]]) -> list[str]:
    """Lines of the section; none where nothing was decided."""
    if not runs:
        return []
    out = ["", "What was done, and why not more"]
    if len(runs) > RUNS_SHOWN:
        out.append(f"  … {len(runs) - RUNS_SHOWN} earlier runs (--json has all)")
    for r in runs[-RUNS_SHOWN:]:
        out += _told(r)
    return out


def _told(r: dict[str, Any]) -> list[str]:
    """One run: how it stands, what kept it back, its course, what comes next."""
    out = _wrapped(f"run {r['restarts']}: {r['state']} - {r['meaning']}", 2)
    d = r["decision"]
    if d is not None and d["plan"]:
        out += _wrapped(f"the plan: {d['plan']}", 4)
    if r["gate"] is not None:
        out += _wrapped(f"why not more: {r['gate_means'] or 'a gate was closed'}", 4)
        read = f" (read {_time(d['read_at'])})" if d["read_at"] is not None else ""
        out += _wrapped(f"gate {r['gate']}: {d['value'] or d['because']}{read}", 6)
        if d["for_good"] and d["for_good"] != r["gate"]:
            means = GATES.get(d["for_good"], ("",))[0]
            out += _wrapped(f"and for good by gate {d['for_good']}: {means}", 6)
        out += _wrapped(f"every gate: defib decide --replay {d['id']}", 6)
    if len(r["steps"]) > STEPS_SHOWN:
        out.append(f"    … {len(r['steps']) - STEPS_SHOWN} earlier steps (--json has all)")
    for s in r["steps"][-STEPS_SHOWN:]:
        who = f", said by {s['who']}" if s["who"] != "defib" else ""
        out += _wrapped(f"{_time(s['at'])}  {s['state'] or '-'}{who}: {s['because']}", 4)
    for c in r["calls"]:
        answer = f"{c['answer'] or 'no answer yet'}{' (' + c['code'] + ')' if c['code'] else ''}"
        out += _wrapped(f"called: {' '.join(c['argv'])} -> {answer}", 4)
    if r["reached_step"] is not None:
        failed = f"; it had failed at {r['failed_step']:,}" if r["failed_step"] is not None else ""
        out += _wrapped(f"the next run reached step {r['reached_step']:,}{failed}", 4)
    if r["next"]:
        out += _wrapped(f"what comes next: {r['next']}", 4)
    return out


def _wrapped(text: str, indent: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(cut(safe(text), SAID), WIDTH, initial_indent=margin, subsequent_indent=margin + "  ")


def _time(at: Any) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _dicts(result: Any) -> list[dict[str, Any]]:
    names = [d[0] for d in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
