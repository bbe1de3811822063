"""Recovery as rows of the history: the audit's rows become decisions, actions and the history's own copy of the audit.

In: rows of the audit with the hash they stand under, in order. Out: rows of `decisions`, `actions`, `audit`, in the transaction of whoever
holds the history. Always holds: the audit in the state folder is the truth and these tables a view of it; a row is in them once, whatever
dies when (`meta`: `audited` is written with the rows); where the audit beside the history is another one, the tables are made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import duckdb
import orjson

from defib.adapters.act import verbs
from defib.adapters.rows import moment
from defib.engine.recover import codec, planner
from defib.engine.recover.planner import Decision
from defib.engine.recover.words import Case, Issued, Row

TABLES = ("decisions", "actions", "audit")
EARLY = frozenset(["observed", "suspect", "confirmed", "cleared"])  # nothing was planned yet: no action
WORDS = {"refused": "refused", "authorised": "authorised", "human": "human"}
Insert = Callable[[str, list[dict[str, Any]]], None]


class Acts:
    """What a history has of an audit, and what waits to be written. meta: of that history."""

    def __init__(self, meta: Mapping[str, str]) -> None:
        self.audit, self.audited = meta.get("audit", ""), int(meta.get("audited", 0))
        self._waiting: list[tuple[Row, str]] = []
        self._anew = False

    def of(self, audit: str) -> bool:
        """From now on rows are of the audit of this name. Returns whether the tables hold another one's, which go at the next write."""
        other = bool(self.audit) and self.audit != audit
        if self.audit != audit:
            self.audit, self.audited, self._waiting, self._anew = audit, 0, [], True
        return other

    def take(self, row: Row, chain: str) -> None:
        """A durable row of the audit, and its hash (hex). One that is in the tables already is passed over."""
        newest = self._waiting[-1][0].seq if self._waiting else self.audited
        if row.seq > newest:
            self._waiting.append((row, chain))

    @property
    def due(self) -> bool:
        """Something waits to be written."""
        return bool(self._waiting) or self._anew

    @property
    def waiting(self) -> int:
        """Rows that wait."""
        return len(self._waiting)

    def write(self, con: duckdb.DuckDBPyConnection, insert: Insert) -> None:
        """Everything that waits, into the open transaction. That may fail yet, so nothing is forgotten before `written`."""
        if not self.due:
            return
        if self._anew:
            for table in TABLES:
                con.execute(f"DELETE FROM {table}")  # noqa: S608 - constant names
        cases = {row.case.id: row.case for row, _ in self._waiting if row.case is not None}
        con.execute("DELETE FROM actions WHERE action_id IN (SELECT unnest(?))", [list(cases)])
        insert("audit", [audit_row(row, chain) for row, chain in self._waiting])
        insert("decisions", [decision_row(r, r.case) for r, _ in self._waiting if r.case is not None and r.inputs])
        insert("actions", [action_row(c) for c in cases.values() if c.plan is not None or c.state not in EARLY])
        newest = self._waiting[-1][0].seq if self._waiting else self.audited
        for key, value in (("audit", self.audit), ("audited", str(newest))):
            con.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [key, value])

    def written(self) -> None:
        """That transaction was committed."""
        if self._waiting:
            self.audited = self._waiting[-1][0].seq
        self._waiting, self._anew = [], False

    def reread(self, con: duckdb.DuckDBPyConnection) -> None:
        """After a failed write, on a new connection: what was written after all is not written again. Raises duckdb.Error."""
        query = "SELECT key, value FROM meta WHERE key IN ('audit', 'audited')"
        meta = dict(con.execute(query).fetchall())
        if meta.get("audit") == self.audit:
            self.audited, self._anew = int(meta.get("audited", 0)), False
            self._waiting = [w for w in self._waiting if w[0].seq > self.audited]


def load(
    acts: Acts, audit: str, rows: Iterable[tuple[Row, str]], flush: Callable[[], None], together: int = 500
) -> None:
    """A whole audit of this name, so many rows at a time."""
    acts.of(audit)
    for row, chain in rows:
        acts.take(row, chain)
        if acts.waiting >= together:
            flush()


def audit_row(row: Row, chain: str) -> dict[str, Any]:
    """Row of `audit`. detail: all the row says, but for the inputs of a decision, which are in `decisions`."""
    more = {"case": row.case, "breaker": row.breaker, "evidence": row.evidence, "cluster": row.cluster}
    return {
        "seq": row.seq, "recorded_at": moment(row.at_us), "who": row.who or "defib", "what": row.what,
        "detail": _json({k: codec.plain(v) for k, v in more.items() if v is not None}), "chain": chain, "epoch": row.epoch,
        "action_id": row.case.id if row.case is not None else None, "job": _job(row.case) if row.case is not None else None,
        "restarts": row.case.attempt.restarts if row.case is not None else None, "was": row.before or None, "state": row.after or None,
        "because": row.because,
    }  # fmt: skip


def decision_row(row: Row, case: Case) -> dict[str, Any]:
    """Row of `decisions`. value and read_at are of the gate that the row names, worked out again from the stored inputs; null where this
    version of defib would find another gate closed first."""
    made = _replayed(row.inputs)
    refusal = made.refusal if made is not None else None
    same = refusal is not None and refusal.name == case.gate
    good = made.for_good if made is not None and row.after == "refused" else None
    plan = case.plan if case.plan is not None else made.plan if made is not None else None
    return {
        "decision_id": f"{case.id}-{row.seq}", "attempt_id": case.judged.incident, "incident_id": case.judged.incident,
        "decided_at": moment(row.at_us), "verdict": _verdict(row, case, made), "gate": case.gate or None, "inputs": row.inputs,
        "action_id": case.id, "job": _job(case), "restarts": case.attempt.restarts,
        "value": refusal.value if refusal is not None and same else None,
        "read_at": moment(refusal.read_us) if refusal is not None and same else None, "for_good": good.name if good is not None else None,
        "plan": plan.sentence if plan is not None else None, "because": row.because, "seq": row.seq,
    }  # fmt: skip


def _replayed(inputs: str) -> Decision | None:
    """The decision once more; None where inputs of another version cannot be read."""
    try:
        return planner.replay(inputs)
    except ValueError:
        return None


def _verdict(row: Row, case: Case, made: Decision | None) -> str:
    """refused (for good) | authorised | human | ready (every gate was open) | would-act (only the mode kept it back) | wait."""
    if row.after in WORDS:
        return WORDS[row.after]
    if not case.gate:
        return "ready"
    return "would-act" if case.would or (made is not None and made.would) else "wait"


def action_row(case: Case) -> dict[str, Any]:
    """Row of `actions`: a case as it stands. outcome: what the newest call came back with; detail: every call with its arguments and times."""
    plan, last = case.plan, case.orders[-1] if case.orders else None
    return {
        "action_id": case.id, "decision_id": None, "attempt_id": case.judged.incident, "kind": plan.verb if plan is not None else None,
        "state": case.state, "issued_at": moment(case.orders[0].at_us) if case.orders else None,
        "outcome": (last.answer or "unheard") if last is not None else None, "detail": _json([_call(o) for o in case.orders]), "job": _job(case),
        "restarts": case.attempt.restarts, "user_name": case.user, "slurm_partition": case.partition, "class": case.judged.klass,
        "judged": case.judged.kind, "gate": case.gate or None, "because": case.because, "begun_at": moment(case.begun_us),
        "since": moment(case.since_us), "excluded": list(plan.exclude) if plan is not None else [], "failed_step": case.judged.step,
        "reached_step": case.reached, "calls": len(case.orders), "would": case.would,
    }  # fmt: skip


def _call(o: Issued) -> dict[str, Any]:
    """One order: the arguments of scontrol, when it was recorded, begun and answered (microseconds), and what came back."""
    return {
        "number": o.order.number, "argv": ["scontrol", *verbs.words(o.order)], "issued_us": o.at_us, "began_us": o.began_us,
        "answered_us": o.answered_us, "answer": o.answer, "code": o.code or None,
    }  # fmt: skip


def _job(case: Case) -> str:
    """The job as the history names it: what stands before the number of the attempt."""
    return case.judged.incident.rpartition("#")[0] or str(case.attempt.job_id)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
