"""`defib policy check`, `defib consent`, `defib decide`: what may be done to jobs, said and checked before anything is done.

In: files and words of a person. Out: plain sentences or JSON. Always holds: nothing here acts or asks a scheduler.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from defib.adapters import rulefiles
from defib.adapters.cli.tables import as_json, write_json
from defib.adapters.show import printable, safe, when
from defib.engine import policyfiles, yamlpos
from defib.engine.policies import RecoveryPolicy, restore
from defib.engine.recover import consent as words
from defib.engine.recover.planner import Decision, replay
from defib.engine.recover.words import COMMENT_MAX
from defib.engine.words import Problem, RuleError, SourceError

INPUT_MAX = 16 * 1024 * 1024
KIND = re.compile(r"[a-z]+", re.ASCII)


def check(args: Any) -> int:
    """`defib policy check FILE…`: each file laid over what is shipped, in the order given. Raises RuleError with every fault at its line."""
    problems: list[Problem] = []
    shipped = [yamlpos.read(name, text) for name, text in _shipped()]
    theirs = [yamlpos.read(printable(str(path)), _text(path)) for path in args.files]
    for f in theirs:
        problems += f.problems
        if not f.problems and not (isinstance(f.data, dict) and f.data.get("policy")):
            problems.append(f.problem((), "a policy file begins with its name", "begin with 'policy: recovery'"))
    if problems:
        raise RuleError(problems)
    before = policyfiles.assemble(shipped, problems)
    after = policyfiles.assemble([*shipped, *theirs], problems)
    if problems:
        raise RuleError(sorted(problems, key=lambda p: (p.path, p.line, p.column)))
    changed = [(name, *change) for name in sorted(after) for change in _changes(before.get(name, {}), after[name])]
    notes = doubts(restore(RecoveryPolicy, after["recovery"]))
    if args.json:
        rows = [{"policy": n, "key": k, "shipped": a, "now": b} for n, k, a, b in changed]
        write_json(as_json({"schema": "defib/policy-check/1", "changed": rows, "notes": notes}))
        return 0
    for name, key, old, new in changed:
        print(f"{name}  {key}: {safe(str(old))} -> {safe(str(new))}")
    if not changed:
        print("as shipped: nothing is changed")
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


def consent(args: Any) -> int:
    """`defib consent`: print a comment by which the owner of a job allows restarts, or explain one. 1 for a comment that is no consent."""
    if args.check is not None:
        text = sys.stdin.read(COMMENT_MAX + 1) if args.check == "-" else args.check
        valid, sentences = words.explain(text)
        if args.json:
            write_json(as_json({"schema": "defib/consent/1", "valid": valid, "says": sentences}))
        else:
            print("\n".join(safe(s) for s in sentences))
        return 0 if valid else 1
    kinds = frozenset(KIND.findall(args.restart))
    unknown = sorted(kinds - set(words.KINDS))
    if unknown:
        raise SourceError(f"--restart: '{unknown[0]}' is not known\n    mend: of {', '.join(words.KINDS)}")
    made = words.Consent(kinds, args.max_restarts, args.act_on_running, not args.keep_nodes)
    text = made.comment()
    words.parse(text)  # what is printed is valid
    if args.json:
        write_json(
            as_json({"schema": "defib/consent/1", "valid": True, "comment": text, "says": words.explain(text)[1]})
        )
        return 0
    print(f"sbatch --comment={shlex.quote(text)} …")
    print(f"scontrol update JobId=ID Comment={shlex.quote(text)}      # a job that is in the queue already")
    for sentence in words.explain(text)[1]:
        print(f"  {safe(sentence)}")
    return 0


def decide(args: Any) -> int:
    """`defib decide --replay FILE`: make a stored decision again from its inputs. 1 where it would not be carried out. Raises SourceError."""
    raw = _text(args.replay)
    try:
        decision = replay(raw)
    except ValueError as e:
        raise SourceError(
            f"{printable(str(args.replay))}: no inputs of a decision: {e}\n    mend: the inputs column of audit holds them"
        ) from e
    if args.json:
        write_json(as_json({"schema": "defib/decision/1", **_plain(decision)}))
    else:
        print("\n".join(sentences(decision)))
    return 0 if decision.refusal is None else 1


def sentences(d: Decision) -> list[str]:
    """A decision for people: the plan, every gate, the first closed one."""
    out = [f"plan     {safe(d.plan.sentence)}" if d.plan else "plan     none can be made"]
    for r in d.readings:
        at = when(r.read_us) if r.read_us is not None else "not read"
        out.append(f"gate {r.gate:>2}  {'open  ' if r.open else 'CLOSED'}  {r.name:<14}  {safe(r.value)}  ({at})")
    if d.refusal is None:
        out.append("all gates are open")
    else:
        out.append(f"refused  by gate {d.refusal.gate}, {d.refusal.name}: {safe(d.refusal.value)}")
        out.append(
            "would    have been done, were the mode not what it is" if d.would else "would    not be done in any mode"
        )
    return out + [f"note     {safe(n)}" for n in d.notes]


def _plain(d: Decision) -> dict[str, Any]:
    refusal = None if d.refusal is None else {"gate": d.refusal.gate, "name": d.refusal.name, "value": d.refusal.value}
    gates = [
        {"gate": r.gate, "name": r.name, "open": r.open, "value": r.value, "read_us": r.read_us} for r in d.readings
    ]
    plan = (
        None
        if d.plan is None
        else {"verb": d.plan.verb, "target": d.plan.target, "exclude": d.plan.exclude, "sentence": d.plan.sentence}
    )
    return {"plan": plan, "gates": gates, "refusal": refusal, "would": d.would, "lasting": d.lasting, "notes": d.notes}


def _shipped() -> Iterator[tuple[str, str]]:
    for path in sorted((rulefiles.built_in() / "policy").glob("*.yaml")):
        yield str(path), path.read_text(encoding="utf-8")


def _text(path: Path) -> str:
    """Raises SourceError."""
    try:
        with open(path, "rb") as file:
            raw = file.read(INPUT_MAX + 1)
    except OSError as e:
        raise SourceError(f"{printable(str(path))}: {e.strerror or e}") from e
    if len(raw) > INPUT_MAX:
        raise SourceError(f"{printable(str(path))}: larger than {INPUT_MAX} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise SourceError(f"{printable(str(path))}: not UTF-8: {e.reason} at byte {e.start}") from e


def _changes(before: Any, after: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in after:
            yield from _changes(before.get(key), after[key], f"{at}.{key}" if at else str(key))
    elif before != after:
        yield at, before, after
