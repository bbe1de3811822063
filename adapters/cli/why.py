"""`defib why`: the story of an attempt, from the history or straight from log files."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from typing import Any

from defib.adapters.cli import deeds
from defib.adapters.cli.query import MATCH, ask, meant
from defib.adapters.show import cut, duration, number, printable, safe

STORIES = f"SELECT * FROM attempts WHERE {MATCH} ORDER BY job, attempt_index"  # noqa: S608 - constant text
EVIDENCE_SHOWN = 12
EPISODES_SHOWN = 6
SUSPECT_LINES_SHOWN = 3
WIDTH = 100
THEN, UNSAID = "then: ", "no suspect: "
TEXT_SHOWN = 220
MEANING = {
    "completed": "training reached its planned end",
    "crashed": "the run died",
    "cancelled": "somebody ended it",
    "preempted": "the scheduler took the nodes away",
    "time-limit": "the job's time was up",
    "stalled": "nothing moved any more",
    "running-at-end": "no end was seen: it was still running when the log stops",
    "unknown": "the log does not say how it ended",
}


def why(args: Any) -> int:
    """`defib why`: tell the story of files given, or of jobs in the history."""
    from defib.adapters.cli.tables import as_json, write_json

    files = [w for w in args.what if os.path.exists(w)]
    stories = [s for what in args.what if what not in files for s in from_history(what, args.db)]
    refused = False
    if files:
        told, refused = from_files(files, args)
        stories = told + stories
    if args.json:
        write_json({"schema": "defib/why/1", "rows": [as_json(s) for s in stories]})
        return 3 if refused else 0
    for i, story in enumerate(stories):
        print(("\n" if i else "") + "\n".join(tell(story)))
    return 3 if refused else 0


def from_files(files: list[str], args: Any) -> tuple[list[dict[str, Any]], bool]:
    """Replay aside, then the last attempt of every job in the files; and whether some of the files could not be read."""
    import tempfile

    from defib.adapters import wire

    with tempfile.TemporaryDirectory() as folder:
        db = os.path.join(folder, "why.duckdb")
        outcome = wire.replay(wire.ReplayOptions(files, db, args.rules), lambda *_: None)
        for u in outcome.unread:
            print(f"not read: {safe(u.path)}: {safe(u.why)}", file=sys.stderr)
        for path in outcome.empty:
            print(f"nothing in it: {safe(path)}", file=sys.stderr)
        return _stories(db, None), any(u.refused for u in outcome.unread)


def from_history(what: str, db: str) -> list[dict[str, Any]]:
    """Stories of the jobs or attempts a name stands for. Raises StoreError if there is none."""
    from defib.engine.words import StoreError

    try:
        stories = _stories(db, what)
    except StoreError as e:
        raise StoreError(f"no file '{safe(printable(what))}'; and as a job: {e}") from e
    if not stories:
        raise StoreError(
            f"no job, attempt or file '{safe(printable(what))}' ('defib jobs --db {safe(db)}' lists what is there)"
        )
    return stories


def _stories(db: str, what: str | None) -> list[dict[str, Any]]:
    from defib.adapters.history import open_history

    with contextlib.closing(open_history(db)) as con:
        return _stories_of(con, db, what)


def _stories_of(con: Any, db: str, what: str | None) -> list[dict[str, Any]]:
    what = meant(con, db, what)
    attempts = _dicts(ask(con, db, STORIES, [what] * 6))
    last: dict[str, dict[str, Any]] = {}
    for a in attempts:
        tries = last[a["job"]]["earlier"] if a["job"] in last else []
        if a["job"] in last:
            tries = [
                *tries,
                {k: last[a["job"]][k] for k in ("attempt_index", "verdict", "class", "cause_rule", "last_step")},
            ]
        last[a["job"]] = {**a, "earlier": tries}
    if not last and what is not None:
        done = deeds.of(con, what)
        running = "SELECT job FROM live_jobs WHERE job = ? OR job_id = ? OR ends_with(job, '/' || ?) ORDER BY job"
        jobs = [done[0]["job"]] if done else [r["job"] for r in _dicts(ask(con, db, running, [what] * 3))]
        return [{"job": j, "attempt_id": None, "recovery": done, "live": _live(con, j)} for j in jobs]
    for a in last.values():
        key = [a["attempt_id"]]
        a["recovery"] = deeds.of(con, a["job"])
        a["evidence"] = _dicts(
            ask(
                con,
                db,
                "SELECT e.*, s.path FROM evidence e LEFT JOIN streams s USING (stream_id) WHERE e.attempt_id = ? ORDER BY position",
                key,
            )
        )
        a["files"] = [
            r["path"]
            for r in _dicts(
                ask(
                    con,
                    db,
                    "SELECT path FROM attempt_streams JOIN streams USING (stream_id) WHERE attempt_id = ? ORDER BY path",
                    key,
                )
            )
        ]
        a["tails"] = _dicts(
            ask(
                con,
                db,
                "SELECT path, lines, tail FROM attempt_streams JOIN streams USING (stream_id) WHERE attempt_id = ? ORDER BY path LIMIT 3",
                key,
            )
        )
        incident = _dicts(ask(con, db, "SELECT * FROM incidents WHERE attempt_id = ?", key))
        a["incident"] = incident[0] if incident else None
        a["episodes"] = _dicts(
            ask(
                con,
                db,
                "SELECT e.*, s.path FROM episodes e LEFT JOIN streams s USING (stream_id) WHERE e.attempt_id = ? ORDER BY position",
                key,
            )
        )
    return list(last.values())


def _live(con: Any, job: str) -> dict[str, Any] | None:
    """How a job is that has not been judged yet. as_of: the watch's last word, which is old where that watch is gone."""
    query = (
        "SELECT health, since, because, state, step, make_timestamp(m.value::BIGINT) AS as_of FROM live_jobs "
        "LEFT JOIN meta m ON m.key = 'now_us' WHERE job = ?"
    )
    found = _dicts(con.execute(query, [job]))
    return found[0] if found else None


def _dicts(result: Any) -> list[dict[str, Any]]:
    names = [d[0] for d in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def tell(a: dict[str, Any]) -> list[str]:
    """The page that has to win trust: cause, evidence, reach, and what comes next."""
    if a["attempt_id"] is None:
        return _unjudged(a)
    name = a["job_id"] or a["job_name"] or a["job"]
    tries = f", attempt {a['attempt_index'] + 1}" if a["earlier"] or a["attempt_index"] else ""
    out = [f"{safe(name)}{tries}: {a['verdict'].upper()} - {MEANING[a['verdict']]}"]
    out += (
        [
            f"  framework {a['framework'] or 'not recognised'}; {len(a['files'])} log{'s' if len(a['files']) != 1 else ''}: "
            f"{cut(safe(_near(a['files'][0])), 120)}" + (" …" if len(a["files"]) > 1 else "")
        ]
        if a["files"]
        else []
    )
    for e in a["earlier"]:
        reached = f" at step {e['last_step']:,}" if e["last_step"] is not None else ""
        out.append(
            f"  earlier: attempt {e['attempt_index'] + 1} {e['verdict']}{reached}"
            + (f" ({e['class']}: {e['cause_rule']})" if e["cause_rule"] else "")
        )
    out += [
        "",
        *_paragraph(a),
        "",
        *_cause(a),
        *_suspect(a),
        *_followed(a),
        "",
        *_reach(a),
        *_unwell(a),
        *_next(a),
        *deeds.page(a["recovery"]),
    ]
    notes = [n for n in a["notes"] if not n.startswith((THEN, UNSAID))]
    if notes:
        out += ["", "Notes", *(f"  {safe(n)}" for n in notes)]
    return out


def _unjudged(a: dict[str, Any]) -> list[str]:
    """A job that is not over: how it is, and what was decided about it."""
    live = a["live"]
    if live is None:
        return [f"{safe(a['job'])}: NOT JUDGED - its logs have told no end yet", *deeds.page(a["recovery"])]
    step = f", at step {live['step']:,}" if live["step"] is not None else ""
    told = f", as of {live['as_of']:%Y-%m-%d %H:%M:%S} UTC" if live["as_of"] is not None else ""
    head = f"{safe(a['job'])}: {live['health'].upper()} - it is being watched{step}{told}"
    return [head, *([f"  {safe(live['because'])}"] if live["because"] else []), *deeds.page(a["recovery"])]


def _paragraph(a: dict[str, Any]) -> list[str]:
    """What happened, for somebody who was woken by it."""
    then = [n.removeprefix(THEN) for n in a["notes"] if n.startswith(THEN)]
    text = " ".join([_opening(a), *([f"Then {' and '.join(then)}."] if then else []), _blamed(a)]).strip()
    return ["What happened", *textwrap.wrap(safe(text), WIDTH, initial_indent="  ", subsequent_indent="  ")]


def _opening(a: dict[str, Any]) -> str:
    """Where the run was, and what ended it."""
    trained = a["last_step"] is not None and a["progress_kind"] == "train"
    total = f" of {a['total_steps']:,}" if a["total_steps"] is not None else ""
    where = f"at step {a['last_step']:,}{total}" if trained else "before its first step"
    title = str(a["cause_title"] or "")
    what = title[:1].lower() + title[1:] if title[1:2].islower() or title[1:2] == " " else title
    if a["verdict"] == "completed":
        return f"Training reached its planned end {where}." if trained else "The program reached its planned end."
    if a["cause_rule"] is None:
        return f"The log stops {where}; no line says why." if trained else "The log tells neither a step nor an error."
    if a["verdict"] == "crashed":
        return f"The run died {where}: {what}."
    if a["verdict"] == "stalled":
        return f"The run stopped moving {where}. The first sign of it: {what}."
    return f"The run was ended {where}: {what}."


def _blamed(a: dict[str, Any]) -> str:
    """Who is behind it, in one sentence; nothing where nobody was to be expected."""
    if a["suspect_how"] is not None:
        sure = {"certain": "Behind it is", "likely": "Most likely behind it is"}.get(
            a["suspect_confidence"], "Perhaps behind it is"
        )
        return f"{sure} {_who(a)}."
    unsaid = next((n.removeprefix(UNSAID) for n in a["notes"] if n.startswith(UNSAID)), None)
    return f"Nobody is named as the one behind it: {unsaid}." if unsaid else ""


def _who(a: dict[str, Any]) -> str:
    rank = f"rank {a['suspect_rank']}" if a["suspect_rank"] is not None else ""
    node = str(a["suspect_node"] or "")
    gpu = f" (GPU {a['suspect_gpu']})" if a["suspect_gpu"] else ""
    return (f"{rank} on {node}" if rank and node else rank or f"node {node}") + gpu


def _suspect(a: dict[str, Any]) -> list[str]:
    """Who, by which kind of evidence, and the first lines that say so."""
    if a["suspect_how"] is None:
        return []
    out = [
        "",
        "Suspect",
        f"  {safe(_who(a))}; {a['suspect_confidence']} ({a['suspect_how']}): {safe(a['suspect_because'])}",
    ]
    lines = [e for e in a["evidence"] if e["why"] == "suspect"]
    for e in lines[:SUSPECT_LINES_SHOWN]:
        out.append(
            f"    {safe(os.path.basename(e['path'] or ''))}:{e['line']}: {cut(safe(e['text'].strip()), TEXT_SHOWN // 2)}"
        )
    if len(lines) > SUSPECT_LINES_SHOWN:
        out.append(f"    … and {len(lines) - SUSPECT_LINES_SHOWN} more such lines")
    return out


def _near(path: str) -> str:
    """Relative to here where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) else path


def _cause(a: dict[str, Any]) -> list[str]:
    if a["cause_rule"] is None:
        tail = [f"    {cut(safe(line), TEXT_SHOWN)}" for t in a["tails"][:1] for line in t["tail"][-3:]]
        return [
            "Cause",
            "  no line of the log names one" if a["verdict"] != "completed" else "  none: it ended as planned",
            *(["  the last lines read:", *tail] if tail and a["verdict"] != "completed" else []),
        ]
    first = next((e for e in a["evidence"] if e["why"] == "cause"), None)
    who = ", ".join(
        x
        for x in (
            f"rank {a['cause_rank']}" if a["cause_rank"] is not None else "",
            f"node {safe(a['cause_node'])}" if a["cause_node"] else "",
        )
        if x
    )
    out = [
        "Cause",
        f"  {safe(a['cause_title'])}" + (f" ({who})" if who else ""),
        f"  class {a['class']}, at fault: {a['domain']}; {a['confidence']}: {safe(a['because'])}",
    ]
    if first is not None:
        out.append(
            f"  rule {a['cause_rule']}, {safe(_near(first['path'] or ''))}:{first['line']}"
            + (f", {first['time']} UTC" if first["time"] else "")
        )
    return [*out, f"    {cut(safe(a['cause_text'].strip()), TEXT_SHOWN)}"]


def _followed(a: dict[str, Any]) -> list[str]:
    rest = [e for e in a["evidence"] if e["why"] not in ("cause", "start", "background", "suspect")]
    if not rest:
        return []
    out = [
        "",
        f"What followed ({a['cascades']:,} line{'s' if a['cascades'] != 1 else ''} of consequence)"
        if a["cascades"]
        else "Lines around it",
    ]
    for e in rest[:EVIDENCE_SHOWN]:
        out.append(f"  {e['count']:>6,} x  {safe(e['title'])}  ({e['rule']}, first at line {e['line']})")
    if len(rest) > EVIDENCE_SHOWN:
        out.append(f"           … and {len(rest) - EVIDENCE_SHOWN} more kinds of line")
    return out


def _reach(a: dict[str, Any]) -> list[str]:
    if a["last_step"] is None:
        return ["How far it came", "  no training step was printed"]
    total = f" of {a['total_steps']:,}" if a["total_steps"] is not None else ""
    rate = f", {number(a['throughput'])} {a['throughput_unit']}" if a["throughput"] is not None else ""
    pace = f", {duration(a['median_step_s'])} a step (median)" if a["median_step_s"] is not None else ""
    if a["progress_kind"] != "train":
        return [
            "How far it came",
            f"  no training step was printed; a bar of {'evaluation' if a['progress_kind'] == 'eval' else 'preparation'} "
            f"reached {a['last_step']:,}{total}",
        ]
    return ["How far it came", f"  steps {a['first_step']:,} to {a['last_step']:,}{total}{pace}{rate}"]


def _unwell(a: dict[str, Any]) -> list[str]:
    """Stretches in which it hung or was slow, whatever ended it."""
    shown = a["episodes"][:EPISODES_SHOWN]
    if not shown:
        return []
    out = ["", "When it was not well"]
    for e in shown:
        began = f"step {e['onset_step']:,}" if e["onset_step"] is not None else "its start"
        until = (
            "to the end"
            if e["ended_s"] is None
            else f"to step {e['end_step']:,}"
            if e["end_step"] is not None
            else "for a while"
        )
        lasted = f", {duration(e['ended_s'] - e['onset_s'])}" if e["ended_s"] is not None else ""
        depth = f", {100 * e['depth']:.0f} % of the throughput lost" if e["depth"] is not None else ""
        where = f" ({safe(_near(e['path']))}:{e['onset_line']})" if e["path"] and e["onset_line"] is not None else ""
        out += [f"  {e['kind']} from {began} {until}{lasted}{depth}{where}", f"    {safe(e['because'])}"]
    if len(a["episodes"]) > EPISODES_SHOWN:
        out.append(f"  … and {len(a['episodes']) - EPISODES_SHOWN} more")
    return out


def _next(a: dict[str, Any]) -> list[str]:
    i = a["incident"]
    if i is None or i["retry"] is None:
        return []
    retry = {
        "yes": f"a restart is worth trying (budget '{i['budget']}')",
        "once": f"one restart is worth trying (budget '{i['budget']}')",
        "no": "a restart would end the same way; something has to change first",
    }[i["retry"]]
    exclude = {
        "at-once": f"keep {safe(a['suspect_node'] or 'the node')} out",
        "on-repeat": "keep a node out only if it happens there again",
        "if-one-node": "keep a node out only if it alone shows this",
        "peer-on-repeat": "keep the peer out on repeat",
        "never": "keep no node out",
    }[i["exclude"]]
    return [
        "",
        "What the default policy of this class says",
        f"  {retry}; {exclude}",
        *([] if a["recovery"] else ["  defib only observed: nothing was restarted"]),
    ]
