"""The state of one cluster's recovery, and the few ways in which it changes: a case moves, a row is recorded, an effect goes out.

In: rules, rows of earlier runs. Out: `Desk`, mutated in place by `machine.advance` alone. Always: whatever has to survive a restart is in a row;
views of the scheduler are read anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from defib.engine.jobs import TERMINAL_STATES, AttemptKey, ClusterFacts, JobFacts, NodeFacts
from defib.engine.nodes import NodeFact
from defib.engine.policies import NodesPolicy, RecoveryPolicy
from defib.engine.recover import budgets
from defib.engine.recover.inputs import SECOND, cut, line
from defib.engine.recover.words import (
    FINAL,
    Breaker,
    Call,
    Case,
    Effect,
    Facts,
    Judged,
    Notify,
    OutsideEvidence,
    Record,
    Row,
    State,
    Vitals,
)
from defib.engine.rulebook import FailureClass

DAY = budgets.DAY
CASES_MAX = 20_000
EVIDENCE_MAX = 5_000
SENTENCE_MAX = 512
Line = tuple[str, int, int | None]


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides: the policies and the failure classes by id."""

    policy: RecoveryPolicy
    nodes: NodesPolicy
    classes: Mapping[str, FailureClass]


@dataclass(slots=True)
class Seen:
    """The newest record of a job, or that good reads no longer show it. ended_us: since when, by our clock, this run is seen in a terminal
    state; looks: reads that showed it so; gone: good reads in a row without it, gone_us: the first of them. first_us: when the job was first seen."""

    facts: Facts
    label: str
    at_us: int
    ended_us: int | None = None
    looks: int = 0
    gone: int = 0
    gone_us: int = 0
    first_us: int = 0


@dataclass(slots=True)
class Desk:
    """Everything that is known. See `machine` for who changes what."""

    rules: Rules
    now_us: int = 0
    epoch: int = 0
    seq: int = 0
    number: int = 0
    cluster: ClusterFacts | None = None
    controller_us: int | None = None
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    nodes_us: int = 0
    seen: dict[Line, Seen] = field(default_factory=dict)
    running_jobs: int | None = None
    gpus_running: int | None = None
    vitals: Vitals | None = None
    cases: dict[str, Case] = field(default_factory=dict)
    live: dict[str, None] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    lineages: dict[Line, tuple[str, AttemptKey, str]] = field(default_factory=dict)
    breakers: dict[str, Breaker] = field(default_factory=dict)
    evidence: dict[str, OutsideEvidence] = field(default_factory=dict)
    held_against: dict[tuple[str, str], NodeFact] = field(default_factory=dict)
    complete: bool = True
    # seen lately, for breakers and gates; all bounded, none of it has to survive
    suspected: deque[tuple[int, str, str]] = field(default_factory=lambda: deque(maxlen=1000))
    outcomes: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=200))
    reads: deque[tuple[int, bool, float]] = field(default_factory=lambda: deque(maxlen=1000))
    alerts: dict[str, deque[int]] = field(default_factory=dict)
    foreign: dict[Line, deque[int]] = field(default_factory=dict)
    looking: dict[str, int] = field(default_factory=dict)
    looked: dict[str, int] = field(default_factory=dict)
    copying: dict[str, int] = field(default_factory=dict)
    asked: dict[str, tuple[str, int]] = field(default_factory=dict)
    try_us: dict[str, int] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    crashed_us: int | None = None
    stepped_us: int | None = None
    good_read_us: int = 0
    forgot: str = ""
    read_trouble: str = ""
    effects: list[Effect] = field(default_factory=list)

    # --- rows ---------------------------------------------------------------------------------------------------------------------

    def record(self, what: str, before: str, after: str, because: str, **more: Any) -> None:
        """One row of the audit, before whatever follows from it."""
        self.seq += 1
        self.effects.append(
            Record(Row(self.seq, self.now_us, self.epoch, what, before, after, because[:SENTENCE_MAX], **more))
        )

    def put(self, case: Case) -> None:
        """The case as it is now, and what is counted by it."""
        self.cases[case.id] = case
        if case.state in FINAL:
            self.live.pop(case.id, None)
        else:
            self.live[case.id] = None
        call = budgets.call_of(case, self.rules.policy.budgets.running.loss_h)
        if call is not None:
            self.calls[case.id] = call

    def change(self, case: Case, because: str, inputs: str = "", who: str = "", **changes: Any) -> Case:
        """The case with other values in the same state; recorded."""
        return self._store(case, dataclasses.replace(case, **changes), because, inputs, who)

    def _store(self, case: Case, changed: Case, because: str, inputs: str, who: str) -> Case:
        self.put(changed)
        self.record("case", case.state, changed.state, because, case=changed, inputs=inputs, who=who)
        return changed

    def move(self, case: Case, state: State, because: str, inputs: str = "", who: str = "", **changes: Any) -> Case:
        """The case in another state; recorded, and told to people where they should know."""
        changes |= {"state": state, "since_us": self.now_us, "because": because[:SENTENCE_MAX]}
        moved = self._store(case, dataclasses.replace(case, **changes), because, inputs, who)
        if state in OUTCOMES:
            self.outcomes.append((self.now_us, state))
        if state in TOLD:
            self.notify(TOLD[state], f"{case.id}:{state}", f"{name(case.attempt)}: {state}: {because}", case.id)
        if state in FINAL:
            for memory in (self.looking, self.looked, self.copying, self.asked, self.try_us):
                memory.pop(case.id, None)
        return moved

    def notify(self, kind: str, key: str, sentence: str, case: str = "") -> None:
        """Tell people once per key and sentence."""
        if self.told.get(key) != sentence:
            self.told[key] = sentence
            while len(self.told) > CASES_MAX:
                del self.told[next(iter(self.told))]
            self.effects.append(Notify(kind, key, sentence[:SENTENCE_MAX], case))

    # --- views --------------------------------------------------------------------------------------------------------------------

    def note(self, facts: JobFacts, begun_us: int) -> Seen | None:
        """A record was read: keep the newest. None where an older read comes late."""
        key = line(facts.key)
        old = self.seen.get(key)
        if old is not None and begun_us < old.facts.begun_us:
            return None
        ended = facts.state in TERMINAL_STATES and not facts.flags
        same_run = old is not None and (old.facts.attempt.restarts, old.facts.attempt.submit_us) == (
            facts.restarts,
            facts.submit_us,
        )
        if old is not None and same_run and facts.sluid is None and old.facts.attempt.sluid is not None:
            facts = dataclasses.replace(facts, sluid=old.facts.attempt.sluid)
        new = Seen(
            cut(facts, begun_us), facts.label, self.now_us, first_us=self.now_us if old is None else old.first_us
        )
        if ended:
            new.ended_us = old.ended_us if old is not None and same_run and old.ended_us is not None else self.now_us
            new.looks = (old.looks if old is not None and same_run else 0) + 1
        self.seen[key] = new
        return new

    def lineage(self, facts: Facts) -> str:
        """The job's name over all its attempts. An id that comes back for another user, or starts anew, is another job."""
        key, attempt = line(facts.attempt), facts.attempt
        known = self.lineages.get(key)
        if known is not None:
            name_, last, user = known
            if user == facts.user and (attempt.restarts > last.restarts or attempt.submit_us == last.submit_us):
                self.lineages[key] = (name_, attempt, user)
                return name_
        fresh = hashlib.blake2b(f"{key}|{facts.user}|{attempt.submit_us}".encode(), digest_size=8).hexdigest()
        self.lineages[key] = (fresh, attempt, facts.user)
        return fresh

    def age_s(self, since_us: int) -> float:
        return (self.now_us - since_us) / SECOND


OUTCOMES = frozenset(["unknown", "stranded", "not-recovered", "satisfied-by-other"])
TOLD: dict[str, str] = {
    "issued": "acted", "recovered": "recovered", "refused": "refused", "human": "human", "stranded": "human", "not-recovered": "human",
    "rejected": "human", "unknown": "human", "satisfied-by-other": "human",
}  # fmt: skip


def name(attempt: AttemptKey) -> str:
    """Job and run, for people."""
    task = f"_{attempt.array_task}" if attempt.array_task is not None else ""
    return f"job {attempt.job_id}{task} run {attempt.restarts}"


def case_id(attempt: AttemptKey) -> str:
    """Names an attempt for ever; 16 hex digits."""
    text = f"{line(attempt)}|{attempt.submit_us}|{attempt.restarts}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def opened(desk: Desk, facts: Facts, judged: Judged) -> Case:
    """A case as it begins: nothing is inherited from an earlier attempt."""
    group = desk.rules.classes[judged.klass].budget if judged.klass in desk.rules.classes else "none"
    return Case(
        case_id(judged.attempt), judged.attempt, desk.lineage(facts), "suspect", desk.now_us, desk.now_us, judged, facts.user, facts.uid,
        facts.account, facts.partition, group, facts.gpus, facts.node_count, signed_us=desk.now_us,
    )  # fmt: skip


def remember(desk: Desk) -> None:
    """Forget what nothing asks for any more: closed cases of jobs that are gone, two days after; expired evidence.

    Which jobs are gone only a good read tells: right after a start every job would look so, and its case be opened a second time."""
    if not desk.good_read_us:
        return
    now = desk.now_us
    shown = {d[0] for k, d in desk.lineages.items() if k in desk.seen}
    for id_, case in list(desk.cases.items()):
        if id_ not in desk.live and now - case.since_us > 2 * DAY and case.lineage not in shown:
            del desk.cases[id_]
            desk.calls.pop(id_, None)
    if len(desk.cases) > CASES_MAX:
        desk.complete = False
    for key in [k for k, s in desk.seen.items() if s.gone and now - s.gone_us > DAY]:
        del desk.seen[key]
        desk.foreign.pop(key, None)
    for key in [k for k in desk.lineages if k not in desk.seen]:
        if not any(line(desk.cases[c].attempt) == key for c in desk.live):
            del desk.lineages[key]
    for id_ in [k for k, e in desk.evidence.items() if e.until_us <= now]:
        del desk.evidence[id_]
    expiry = int(desk.rules.nodes.expiry_hours * 3600 * SECOND)
    for pair in [k for k, f in desk.held_against.items() if now - (f.time_us or 0) > expiry]:
        del desk.held_against[pair]
    while len(desk.held_against) > EVIDENCE_MAX:
        del desk.held_against[next(iter(desk.held_against))]
    for user in [u for u, times in desk.alerts.items() if now - times[-1] > budgets.HOUR]:
        del desk.alerts[user]
