"""`defib act`, `defib evidence add`, `defib audit`: what people say to a watch that recovers, and what it has written down.

In: a state folder and words. Out: letters in its spools, pages. Always holds: a letter is checked by the rules the watch
checks it by; who said it is the file's owner; nothing here calls a scheduler.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import orjson

from defib.adapters import rulefiles, status
from defib.adapters.act import audit as audits
from defib.adapters.act import people
from defib.adapters.act.spool import Letter, post
from defib.adapters.cli.tables import as_json, table, write_json
from defib.adapters.journal import segments
from defib.adapters.show import printable, safe, when
from defib.engine.words import SourceError, StoreError

STATE = "/var/lib/defib"
ASKED_MAX = 4 * 1024 * 1024


def folder_of(args: Any) -> str:
    """The state folder meant."""
    return str(args.state or os.environ.get("DEFIB_STATE") or STATE)


def asked(folder: str) -> dict[str, Any]:
    """What waits for a person. Raises SourceError."""
    path = os.path.join(folder, "asked.json")
    try:
        with open(path, "rb") as file:
            found: dict[str, Any] = orjson.loads(file.read(ASKED_MAX))
    except FileNotFoundError as e:
        raise SourceError(_nobody(folder)) from e
    except OSError as e:
        raise SourceError(
            f"{printable(path)}: {e.strerror}\n    mend: ask as root, or as the user the watch runs as"
        ) from e
    except ValueError as e:
        mend = "a watch of this version writes it anew at its start"
        raise SourceError(f"{printable(path)}: not what a watch writes: {e}\n    mend: {mend}") from e
    return found


def _nobody(folder: str) -> str:
    """Why nothing in a folder can wait for a person."""
    named = printable(folder)
    if not os.path.isdir(folder):
        return f"{named}: no such folder\n    mend: name the folder given to 'defib watch --state'"
    try:
        alone = not status.ask(folder).get("scheduler")
    except StoreError:
        alone = False
    if alone:
        return f"{named}: the watch there does not ask Slurm, so it restarts nothing\n    mend: start it with --slurm and --root"
    return f"{named}: no watch that asks Slurm has run here\n    mend: start one with 'defib watch --slurm --root DIR --state {named}'"


def _doubts(folder: str) -> list[str]:
    """What makes the list less than it looks: nobody keeps it, or Slurm cannot be read."""
    try:
        said = status.ask(folder)
    except StoreError:
        return ["no watch answers there: this is what the last one left"]
    return [a for a in map(str, said.get("alarms") or ()) if "scheduler" in a]


def list_asked(args: Any) -> int:
    """`defib act list`: what waits for a person, what is under way, which breakers are open."""
    folder = folder_of(args)
    document = asked(folder)
    if args.json:
        write_json(as_json(document))
        return 0
    print(
        f"mode {safe(str(document['mode']))}"
        + (f"; RECOVERY IS OFF: {safe(document['broken'])}" if document["broken"] else "")
    )
    waiting = {a["case"]: a for a in document["asked"]}
    for a in waiting.values():
        print(
            f"\nWAITS FOR A PERSON  {safe(a['job'])}, until {when(a['until_us'])}\n  {safe(a['sentence'])}\n  defib act approve {safe(a['case'])}"
        )
    for doubt in _doubts(folder):
        print(f"note: {safe(doubt)}", file=sys.stderr)
    rows = [
        (safe(c["case"]), safe(c["job"]), safe(c["state"]), safe(c["gate"]), safe(c["because"]))
        for c in document["open"]
    ]
    if rows:
        print()
        table(("CASE", "JOB", "STATE", "GATE", "WHY"), rows)
    for b in document["breakers"]:
        print(f"\nBREAKER {safe(b['name'])} is {safe(b['state'])} since {when(b['since_us'])}: {safe(b['because'])}")
    if not (rows or document["breakers"] or waiting):
        print("nothing is under way")
    return 0


def say(args: Any) -> int:
    """`defib act approve|refuse|regret|settle CASE`, `close BREAKER`."""
    folder = folder_of(args)
    what = {"close": "close-breaker"}.get(args.word, args.word)
    letter = {"what": what, "target": args.target}
    if what == "approve":
        found = next((a for a in asked(folder)["asked"] if a["case"] == args.target), None)
        if found is None:
            raise SourceError(
                f"{printable(args.target)}: no plan of that case waits for approval\n    mend: see 'defib act list'"
            )
        letter["digest"] = found["digest"]
        print(safe(found["sentence"]))
    if getattr(args, "why", None):
        letter["why"] = args.why
    _send(folder, "said", letter, lambda x: people.said(x, 0))
    print("told; the watch takes it within seconds: see 'defib act list'")
    return 0


def evidence(args: Any) -> int:
    """`defib evidence add`: what another diagnoser, or a person, knows of a node or of a job that does not move."""
    if (args.node is None) == (args.job is None):
        raise SourceError("say --node NODE or --job JOB\n    mend: one of the two")
    if args.job is not None:
        letter: dict[str, Any] = {"kind": "sign", "job": args.job, "source": args.source}
    else:
        letter = {
            "kind": "node", "node": args.node, "class": args.klass, "source": args.source, "confidence": args.confidence,
            "expires_s": args.expires // 1_000_000,
        }  # fmt: skip
        if args.gpu is not None:
            letter["gpu"] = args.gpu
    if args.because:
        letter["because"] = args.because
    classes = rulefiles.load().book.class_by_id
    _send(folder_of(args), "inbox", letter, lambda x: people.evidence(x, 0, classes))
    print("handed in; it is weighed like the watch's own evidence and named in decisions")
    return 0


def _send(folder: str, spool: str, letter: dict[str, Any], check: Any) -> None:
    """Raises SourceError where the watch would not take it, or it cannot be put there."""
    try:
        check(Letter("", os.geteuid(), "", letter))
    except ValueError as e:
        raise SourceError(f"{safe(str(e))}") from e
    path = os.path.join(folder, spool)
    try:
        post(path, letter, os.stat(path).st_gid if os.stat(path).st_mode & 0o020 else None)
    except OSError as e:
        raise SourceError(
            f"{printable(path)}: {e.strerror}\n    mend: does a watch with Slurm run there, and may you write there?"
        ) from e


def verify(args: Any) -> int:
    """`defib audit verify`: checksums, hash chain, no row missing. Raises StoreError naming the place."""
    found = audits.verify(os.path.join(folder_of(args), "actions"))
    if args.json:
        write_json(
            as_json(
                {"schema": "defib/audit-verify/1", "rows": found.rows, "records": found.records, "chain": found.chain}
            )
        )
    else:
        print(
            f"{found.rows} rows, {found.evidence} pieces of evidence, no gap, the chain holds; last hash {found.chain}"
        )
    return 0


def show(args: Any) -> int:
    """`defib audit show [JOB]`: what was decided and done, and why not more, oldest first."""
    folder = folder_of(args)
    if not os.path.isdir(folder):
        raise StoreError(
            f"{safe(printable(folder))}: no such folder\n    mend: name the folder given to 'defib watch --state'"
        )
    rows = [
        audits.understood(r.payload) for r in segments.read(os.path.join(folder, "actions")) if r.kind == audits.ROW
    ]
    if args.job is not None:
        number, _, task = args.job.partition("_")
        rows = [
            r for r in rows
            if r.case is not None and str(r.case.attempt.job_id) == number and (not task or str(r.case.attempt.array_task) == task)
        ]  # fmt: skip
    if args.json:
        write_json(as_json({"schema": "defib/audit/1", "rows": [_plain(r) for r in rows]}))
        return 0
    for r in rows:
        what = f"job {r.case.attempt.job_id} run {r.case.attempt.restarts}" if r.case is not None else r.what
        change = f"{r.before or '-'} -> {r.after}" if r.after != r.before else r.after
        gate = f"  [gate {safe(r.case.gate)}]" if r.case is not None and r.case.gate else ""
        print(
            f"{when(r.at_us)}  {safe(what):<20}  {safe(change):<26}  {safe(r.because)}{gate}"
            + (f"  by {safe(r.who)}" if r.who else "")
        )
    if not rows:
        print("nothing is written of it" if args.job else "nothing has been written yet")
    return 0


def _plain(r: Any) -> dict[str, Any]:
    case = r.case
    return {
        "seq": r.seq, "at_us": r.at_us, "epoch": r.epoch, "what": r.what, "before": r.before, "after": r.after, "because": r.because, "who": r.who,
        "case": None if case is None else case.id, "job_id": None if case is None else case.attempt.job_id,
        "array_task": None if case is None else case.attempt.array_task, "restarts": None if case is None else case.attempt.restarts,
        "gate": None if case is None else case.gate or None, "inputs": r.inputs or None,
    }  # fmt: skip
