"""Who is behind a failure, as far as lines tell: a case and its judgement -> a suspect, or none and why not.

In: the case and what `causes` said of it. Out: `Suspect | None`, and a note where the logs do not tell.
Always: who prints a symptom is a witness; an error that many nodes show at once accuses nobody; nothing is guessed.

The order of the questions: does the scheduler name a node (how = scheduler), does the cause accuse its printer (cause); else, whom does the
library name as absent or who was behind (behind-rank), who of all did not complain (silent-rank), whom do two witnesses accuse (peer)?
"""

from __future__ import annotations

import math

from defib.engine.case import Case, key
from defib.engine.causes import Judgement
from defib.engine.layout import Layout
from defib.engine.voices import CLAIMS, PEER_CLASSES, bits, host, mechanism
from defib.engine.witnesses import Found, by_names, by_peers, by_position, by_silence, lines_of
from defib.engine.words import LIFECYCLE_MARKS, Cause, Evidence, Signal, Suspect

BREADTH_MIN, BREADTH_SHARE = 3, 0.2  # so many nodes (or ranks) with one error: its cause is outside of them
ENDED = ("completed", "cancelled", "preempted", "time-limit", "running-at-end", "unknown")
WITNESS_CLASSES = ("peer-lost", "rendezvous")  # printed by those who waited for the other side
SIGNALS = {"host-oom": (-9, 137), "process-killed": (-9, 137), "native-crash": (-11, 139, -7, 135, -4, 132, -8, 136)}


def suspect(case: Case, judged: Judgement) -> Found:
    """The suspect of an attempt, or None and a note that says why nobody is named ("" where nobody was to be expected)."""
    cause = judged.cause
    if cause is None:
        return None, ""
    found, why = _asked(case, cause, judged.verdict)
    return found, f"no suspect: {why}" if found is None and why else ""


def shown(judged: Judgement, found: Suspect | None) -> tuple[Evidence, ...]:
    """The lines that accuse the suspect, less those the story holds already."""
    held = {(e.signal.stream, e.signal.offset, e.signal.rule) for e in judged.evidence}
    lines = found.evidence if found is not None else ()
    return tuple(Evidence("suspect", s) for s in lines if (s.stream, s.offset, s.rule) not in held)


def tally(case: Case, judged: Judgement) -> list[str]:
    """How many ranks were drawn in, as notes that begin with `then: `."""
    if judged.cause is None or judged.verdict in ENDED:
        return []
    waited, noticed = case.voices.waited.ranks, case.voices.noticed.ranks
    of = f" of {case.layout.world}" if case.layout.world else ""
    told = (
        (waited, "waited in a collective until it timed out"),
        (noticed & ~waited, "complained that others were gone"),
    )
    return [f"then: {n}{of} rank{'s' if n > 1 else ''} {what}" for mask, what in told if (n := mask.bit_count())]


def _asked(case: Case, cause: Cause, verdict: str) -> Found:
    s = cause.signal
    if s.klass == "node-lost" and s.role == "root" and s.mark == "node-failure":
        return _by_scheduler(case, cause)
    if s.mark in LIFECYCLE_MARKS or verdict in ENDED:
        return None, ""
    layout = case.layout
    if s.role in CLAIMS:
        return _by_cause(case, cause, layout)
    waits = s.klass == "collective-timeout" or case.voices.waited.ranks
    for ask in (by_names, by_position, by_silence, by_peers) if waits else (by_names, by_peers, _by_signal):
        found, why = ask(case, cause, layout)
        if found is not None or why:
            return found, why
    return None, "the lines are those of witnesses, and none of them tells for whom they waited"


def _by_scheduler(case: Case, cause: Cause) -> Found:
    lost = [x for x in case.live if x.rule == cause.signal.rule and x.node]
    named = list(dict.fromkeys(host(x.node or "") for x in lost))
    if len(named) != 1 or "[" in named[0] or "," in named[0]:
        return None, f"the scheduler names several nodes ({', '.join(named)[:120]})" if named else ""
    because = f"the scheduler says that {named[0]} failed"
    return Suspect(None, named[0], None, "scheduler", "certain", because, lines_of(lost)), ""


def _by_cause(case: Case, cause: Cause, layout: Layout) -> Found:
    """The printer of a root accuses itself, unless many print it or its line points at somebody else."""
    s = cause.signal
    broad = shared(case, s, layout)
    if broad:
        return None, broad
    if _witness(case, s):
        found, why = by_peers(case, cause, layout)
        return found, why or "the cause points at the far side or the path, and no two witnesses name the same one"
    if "peer_rank" in s.fields and s.rank is not None:
        return None, f"ranks {s.rank} and {s.fields['peer_rank']} differ, and which of them is wrong is not said"
    rank, node = _printer(case, s, layout)
    if rank is None and node is None:
        for ask in (_by_signal, by_peers, _by_first_exit):
            found, _ = ask(case, cause, layout)
            if found is not None:
                return found, ""
        return None, "the line of the cause does not tell who printed it"
    told = "printed the cause" if rank is not None else "is named by the cause"
    rank = rank if rank is not None else _killed(case, s, layout, node)
    who = " on ".join(x for x in (f"rank {rank}" if rank is not None else "", node or "") if x)
    gpu = s.fields.get("pci") or s.fields.get("gpu")
    return Suspect(rank, node, gpu, "cause", cause.confidence, f"{who} {told}", lines_of([s])), ""


def _witness(case: Case, s: Signal) -> bool:
    """The line speaks of the other side: whoever prints it waited there."""
    rule = case.book.by_id.get(s.rule)
    if s.klass in WITNESS_CLASSES or (rule is not None and "witness" in rule.traits):
        return True
    return s.klass in PEER_CLASSES and ("peer" in s.fields or "peer_rank" in s.fields)


def _printer(case: Case, s: Signal, layout: Layout) -> tuple[int | None, str | None]:
    """Rank and node of a line: by its own words, else through srun's task number."""
    task = s.fields.get("task", "")
    rank = case.rank_of(s)
    node = host(s.node) if s.node else layout.node_of(rank)
    return rank, node or (layout.tasks.get(int(task)) if task.isdigit() else None)


def shared(case: Case, s: Signal, layout: Layout) -> str:
    """Breadth test (LogSage, NVSentinel): why the same error on many nodes at once accuses none of them; "" where it does not."""
    spread = case.voices.spreads.get(mechanism(s))
    if spread is None:
        return ""
    ranks = bits(spread.ranks)
    nodes = spread.nodes | {n for r in ranks if (n := layout.node_of(r)) is not None}
    if len(nodes) >= max(BREADTH_MIN, math.ceil(BREADTH_SHARE * layout.nodes)):
        return f"{len(nodes)} nodes show the same error at once, so its cause is not one of them"
    logs = {host(t.node) for t in case.traces if t.node is not None}
    if len(logs) > 1 and logs <= nodes:
        return f"all {len(logs)} nodes show the same error at once, so its cause is not one of them"
    if s.domain in ("gpu", "node", "network") and len(nodes) <= 1:
        return ""  # several ranks of one node bear witness against that node
    many = max(len(ranks), len(spread.tasks))
    if many >= max(BREADTH_MIN, math.ceil(BREADTH_SHARE * max(layout.world or 0, len(layout.known)))):
        return f"{many} processes show the same error at once, so none of them is the one to blame"
    return ""


# ---- by how processes ended -----------------------------------------------------------------------------------------


def _by_signal(case: Case, cause: Cause, layout: Layout) -> Found:
    """The one process that died of the signal the class speaks of, while others were only stopped."""
    rank = _killed(case, cause.signal, layout, None)
    if rank is None:
        return None, ""
    code = case.voices.exits[rank]
    told = [x for x in case.live if x.fields.get("exit_code") == str(code)]
    sure = "likely" if cause.confidence in ("certain", "likely") else "possible"
    because = f"rank {rank} is the only one that ended with exit code {code}"
    return Suspect(rank, layout.node_of(rank), None, "cause", sure, because, lines_of(told)), ""


def _killed(case: Case, s: Signal, layout: Layout, node: str | None) -> int | None:
    """The only rank (of a node, where one is named) whose exit code says what the class says."""
    codes = SIGNALS.get(s.klass or "", ())
    ranks = [r for r, code in case.voices.exits.items() if code in codes]
    if node is not None:
        ranks = [r for r in ranks if layout.node_of(r) in (node, None)]
    return ranks[0] if len(ranks) == 1 else None


def _by_first_exit(case: Case, cause: Cause, layout: Layout) -> Found:
    """An error without a name, and one process that ended before anybody was being stopped: most likely the same."""
    if sum(mechanism(x) == mechanism(cause.signal) for x in case.live) >= BREADTH_MIN:
        return None, ""  # several processes may have printed it
    ended = sorted((x for x in case.live if x.mark in ("exit", "teardown")), key=key)
    first = next((x for x in ended if x.mark == "exit" and (x.node or x.rank is not None)), None)
    if first is not None and not any(x.mark == "teardown" and case.precedes(x, first) is not False for x in ended):
        rank, node = _printer(case, first, layout)
        who = f"rank {rank}" if rank is not None else node
        because = f"{who} ended first, before anybody was stopped"
        return Suspect(rank, node, None, "cause", "possible", because, lines_of([cause.signal, first])), ""
    if len(case.voices.exits) != 1:
        return None, ""
    ((rank, code),) = case.voices.exits.items()
    told = [x for x in case.live if x.rank == rank or x.fields.get("exit_code") == str(code)]
    because = f"rank {rank} is the only one that is told to have failed"
    return Suspect(rank, layout.node_of(rank), None, "cause", "possible", because, lines_of(told)), ""
