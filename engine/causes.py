"""One attempt's traces -> its verdict, its first cause, and how sure we are.

The ordering follows the rules collected from published practice (Meta's RSC study arXiv 2410.21680, NVIDIA's restart agent, Aegis, LogSage,
"Story of Two GPUs" arXiv 2503.11901). Where each of them lives:

    1 time first, rank of evidence inside a skew band     `_first`, `case.strength`
    2 the wait before a timeout belongs to it             `claims.looked_back`, `_hung_before`
    3 roles outrank order inside the band                 `case.strength`, `_head`
    4 only the first sticky CUDA error of a rank counts   `claims.without_echoes` (rules with the trait `sticky`)
    5 a wrapper is not a cause                            role `wrapper`: only `_first_symptom`, last; what it wraps has rules of its own
    6 socket errors point away from their printer         role `cascade`; `witnesses.by_peers`
    7 RDMA status decides direction                       nccl.ib-*; `witnesses.by_peers` (two reporters)
    8 lowest sequence number, the rank that is silent     `witnesses.by_position`, `witnesses.by_silence`
    9 signals after the first exit are teardown           mark `teardown`, `_own_kill`
    10 an act explains what follows, hardware stays       `_before_the_act`, `_hardware`
    11 a fault followed by progress is background         `Case.progressed_after`
    12 advice is never an anchor                          role `benign`
    13 breadth: what many nodes show is nobody's fault    `suspects.shared`
    14 sympathetic Xids                                   tables/xid.yaml, `claims.without_echoes`
    15 noise at the exit                                  `_completed`, `_teardown_noise`
    16 no candidate: say so                               `_symptom`, `_exited`, `unknown`
    17 dumps are not matched                              role `benign`, near-misses
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from defib.engine.case import (
    BAND_LINES,
    CHANNELS,
    HARD,
    LAST_WORDS_LINES,
    NEAR_END_LINES,
    SKEW_US,
    Case,
    began_us,
    earliest,
    in_band,
    key,
    stands_alone,
    strength,
)
from defib.engine.claims import countable, ignored, lived_on, looks_back
from defib.engine.rulebook import Rulebook
from defib.engine.trace import Trace
from defib.engine.voices import CLAIMS
from defib.engine.words import LIFECYCLE_MARKS, Cause, Evidence, Signal

HANG_US = 60_000_000  # a collective that had waited so long when somebody stopped the run was hung before
EVIDENCE_MAX = 40
LIFECYCLE_RANK = ("node-failure", "preempted", "time-limit", "requeued", "cancelled")
LIFECYCLE_CLASS = {
    "node-failure": "node-lost", "preempted": "preempted", "time-limit": "time-limit",
    "requeued": "requeued", "cancelled": "cancelled",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Judgement:
    """What `judge` says of an attempt."""

    verdict: str
    klass: str | None
    cause: Cause | None
    cascades: int
    evidence: tuple[Evidence, ...]
    notes: tuple[str, ...] = ()


def judge(
    traces: Sequence[Trace],
    book: Rulebook,
    errors: frozenset[int] = frozenset(),
    outlived: Mapping[int, int] | None = None,
) -> Judgement:
    """The verdict on one attempt. Deterministic; depends on the traces only (errors, outlived: see `Case`)."""
    return decide(Case(traces, book, errors, outlived=outlived or {}))


def decide(case: Case) -> Judgement:
    """The verdict on a case."""
    if case.demoted:
        shown = ", ".join(dict.fromkeys(f"{s.rule} at line {s.line}" for s in case.demoted[-3:]))
        n = len(case.demoted)
        case.notes.append(f"{n} error line{'s' if n > 1 else ''} followed by progress, taken as background: {shown}")
    end = _lifecycle(case)
    done = _completed(case)
    claims = countable(case, [s for s in case.live if s.role in CLAIMS and not _teardown_noise(case, s, done)])
    # Where somebody acted, the act itself shows that the run did not get over its errors.
    fatal = _before_the_act(case, claims, end) if end else [s for s in claims if _fatal(case, s, done)]
    if done is not None and not _undone(case, fatal, done):
        return _result(case, "completed", None, None, done)
    first = _first(case, fatal)
    if first is not None:
        return _crashed(case, first, fatal)
    if end is not None:
        waits = [s for s in case.live if case.precedes(s, end) is True or _hung_before(case, s, end)]
        symptom = _first_symptom(case, waits, timeouts_only=True)
        _hardware(case, end)
        return _ended(case, end) if symptom is None else _symptom(case, symptom)
    symptom = _first_symptom(case, case.live, timeouts_only=False)
    if symptom is not None:
        return _symptom(case, symptom)
    exits = [s for s in case.live if s.mark == "exit"]
    late = [s for s in case.demoted if stands_alone(s) and not ignored(case, s)]
    if exits:
        return _buffered(case, late[-1]) if late else _exited(case, earliest(exits))
    progressing = any(t.progress for t in case.traces)
    return _result(case, "running-at-end" if progressing else "unknown", None, None, None)


# ---- acts and planned ends ------------------------------------------------------------------------------------------


def _lifecycle(case: Case) -> Signal | None:
    """The act that ended the attempt: the first one, told by the most telling of the lines about it."""
    acts = [s for s in case.live if s.mark in LIFECYCLE_MARKS and s.role == "lifecycle" and not _own_kill(case, s)]
    if not acts:
        return None
    first = earliest(acts)
    said = [s for s in acts if case.precedes(s, first) is not True]
    return min(said, key=lambda s: (LIFECYCLE_RANK.index(s.mark or "cancelled"), s.stream, s.offset))


def _own_kill(case: Case, act: Signal) -> bool:
    """A bare CANCELLED after a task had ended badly is srun stopping what is left, not a person's act."""
    return act.mark == "cancelled" and any(
        x.mark == "exit" and case.precedes(x, act) is True for x in case.deaths if x is not act
    )


def _completed(case: Case) -> Signal | None:
    """The planned end: of the program, else of the training loop, else of every process; void if training went on after it."""

    def stands(s: Signal) -> bool:
        return not any(t.training and t.stream == s.stream and t.training.offset > s.offset for t in case.traces)

    for mark in ("completed", "trained", "ok-exit"):
        marks = [s for s in case.kept if s.mark == mark and stands(s)]
        if mark == "ok-exit" and any(s.mark == "exit" for s in case.live):
            continue
        if marks:
            return earliest(marks)
    return None


def _teardown_noise(case: Case, s: Signal, done: Signal | None) -> bool:
    """After the program's planned end nothing counts; after the loop's end a failing save or evaluation still does."""
    return done is not None and done.mark != "trained" and case.precedes(s, done) is False


def _undone(case: Case, fatal: list[Signal], done: Signal) -> bool:
    """The planned end was not the end: something died before it, or, once the loop was through, after it."""
    if done.mark == "trained" and any(case.precedes(done, s) for s in fatal):
        return True
    return any(_died_before(case, s, done) and case.precedes(s, done) for s in fatal)


def _before_the_act(case: Case, claims: list[Signal], end: Signal) -> list[Signal]:
    """The act explains every later error, and earlier ones that nobody is known to have died of."""
    return [s for s in claims if case.precedes(s, end) is not False and (stands_alone(s) or _died_before(case, s, end))]


def _died_before(case: Case, s: Signal, end: Signal) -> bool:
    """Some process is known to have ended badly between the claim and the end."""
    return any(case.precedes(s, x) is not False and case.precedes(x, end) is True for x in case.deaths if x is not s)


def _hung_before(case: Case, s: Signal, end: Signal) -> bool:
    """A timeout printed after the act whose collective had begun long before it: the run hung, then somebody stopped it."""
    began = began_us(s, looks_back(case, s))
    return began is not None and end.order_us is not None and began < end.order_us - HANG_US


def _hardware(case: Case, end: Signal) -> None:
    """A node is no better for its job having been stopped: its lines stay on record."""
    bad = [
        s for s in case.kept if s.role in CLAIMS and s.domain in ("gpu", "node") and case.precedes(s, end) is not False
    ]
    if bad:
        where = f" on {bad[0].node}" if bad[0].node else ""
        case.notes.append(
            f"hardware trouble before the end, on record all the same: {bad[0].rule}{where} at line {bad[0].line}"
        )


def _fatal(case: Case, s: Signal, done: Signal | None) -> bool:
    """Evidence that the run really ended on this claim: a bad exit or teardown after it, a timeout of those who waited, or the log's own end."""
    if any(x is not s and case.precedes(s, x) is not False for x in case.ends):
        return True
    trace = case.trace_of(s)
    if s.role == "candidate" and trace.progress is None and case.through:
        return False  # told in a log without steps, while another one shows that training made its last step
    if len(case.traces) > CHANNELS and trace.progress is None and any(t.progress for t in case.traces):
        # One rank's own log falls silent for many reasons: only an error that stands alone, or the last words on an error channel, count.
        last_words = s.stream in case.errors and trace.end_line - s.line <= LAST_WORDS_LINES
        if not (stands_alone(s) or last_words):
            return False
    if s.role == "candidate" and s.rule in case.survived_rules:
        return False  # the run has survived this kind of line before
    return (done is None or done.mark == "trained") and trace.end_line - trace.trouble_line <= NEAR_END_LINES


# ---- which of them was first ----------------------------------------------------------------------------------------


def _first(case: Case, claims: list[Signal]) -> Signal | None:
    """The first claim; where two streams cannot be compared in time, one whose process did not go on to complain of others, then the
    stronger kind of evidence."""
    if not claims:
        return None
    by_stream: dict[int, list[Signal]] = {}
    for s in _labelled_or_all(claims):
        by_stream.setdefault(s.stream, []).append(s)
    heads = [_head(by_stream[stream]) for stream in sorted(by_stream)]
    if all(s.order_us is not None for s in heads):
        first = min(heads, key=key)
        near = [s for s in heads if (s.order_us or 0) - (first.order_us or 0) <= SKEW_US]
        return min(near, key=lambda s: (strength(s), key(s)))
    return min(heads, key=lambda s: (strength(s) > 0 and lived_on(case, s), strength(s), key(s)))


def _head(claims: list[Signal]) -> Signal:
    """The first claim of one stream, or a stronger one so near that order means nothing."""
    first = min(claims, key=lambda s: s.offset)
    return min((s for s in claims if in_band(first, s)), key=lambda s: (strength(s), s.offset))


def _labelled_or_all(claims: list[Signal]) -> list[Signal]:
    """Where a launcher labels its ranks' lines, a mere candidate without a label far before them is the batch script's own trouble."""
    labelled = [s for s in claims if s.rank is not None or s.local_rank is not None or "task" in s.fields]
    at = {s.stream: s.line for s in reversed(labelled)}
    named = {id(s) for s in labelled}

    def early(s: Signal) -> bool:
        return s.role == "candidate" and id(s) not in named and s.line < at.get(s.stream, 0) - BAND_LINES

    return [s for s in claims if not early(s)]


def _first_symptom(case: Case, live: list[Signal], *, timeouts_only: bool) -> Signal | None:
    """When no cause is printed: timeouts before socket errors before wrappers."""
    told = [s for s in live if s.role in ("cascade", "wrapper") and s.klass is not None]
    timeouts = [s for s in told if case.book.class_by_id[s.klass or ""].verdict == "stalled"]
    if timeouts:
        return earliest(timeouts)
    if timeouts_only:
        return None
    told = [s for s in told if _fatal(case, s, None)]
    cascades = [s for s in told if s.role == "cascade"]
    pick = cascades or told
    return earliest(pick) if pick else None


# ---- what is said ---------------------------------------------------------------------------------------------------


def _crashed(case: Case, s: Signal, fatal: list[Signal]) -> Judgement:
    klass = s.klass or "unknown"
    confidence, because = _sure(case, s, fatal)
    verdict = case.book.class_by_id[klass].verdict if klass in case.book.class_by_id else "crashed"
    if verdict == "running-at-end":
        verdict = "crashed"
    return _result(case, verdict, klass, Cause(s, klass, _domain(case, s, klass), confidence, because), s)


def _sure(case: Case, s: Signal, fatal: list[Signal]) -> tuple[str, str]:
    """certain: the kernel, driver or scheduler itself says so; likely: others bear it out and nothing competes; possible: it stands alone."""
    rule = case.book.by_id.get(s.rule)
    hardware = s.domain in HARD and s.klass in ("gpu-hardware", "node-lost", "nvlink")
    if s.role == "root" and (hardware or (rule is not None and "certain" in rule.traits)):
        return "certain", "the kernel, driver or scheduler itself reports it"
    ended = any(x is not s and x.mark == "exit" for x in case.live)
    noticed = any(x is not s and x.role in ("cascade", "confirm") for x in case.live)
    rivals = [x for x in fatal if x.klass != s.klass and strength(x) <= strength(s) and _as_early(s, x)]
    if (ended or noticed) and not (rivals and s.role == "candidate"):
        return "likely", "it is the first error not followed by progress, and processes ended after it" if ended else (
            "it is the first error not followed by progress, and others noticed"
        )
    if rivals and s.role == "candidate":
        return "possible", f"it is the first error not followed by progress, but {rivals[0].rule} came at the same time"
    return "possible", "it is the first error not followed by progress"


def _as_early(s: Signal, x: Signal) -> bool:
    """So near that the order of the two means nothing."""
    if x.stream == s.stream:
        return in_band(s, x)
    return s.order_us is None or x.order_us is None or abs(s.order_us - x.order_us) <= SKEW_US


def _symptom(case: Case, s: Signal) -> Judgement:
    """Who prints a symptom waited for the culprit: it is evidence, not a suspect."""
    klass = s.klass or "unknown"
    verdict = case.book.class_by_id[klass].verdict
    because = "no line names a cause; this is the first sign printed by those who noticed"
    inner = s.fields.get("message") if s.role == "wrapper" else None
    if inner:
        because = "no line names a cause; this one wraps an error no rule knows"
    began = began_us(s, looks_back(case, s))
    if began is not None:
        because += f"; the collective had begun {round((s.order_us or began) - began) // 1_000_000} s before"
    elif verdict == "crashed" and s.role == "cascade" and _nobody_ended(case):
        verdict, because = "stalled", f"{because}; no process is known to have ended after it"
    s = dataclasses.replace(s, rank=None, local_rank=None, node=None)
    return _result(case, verdict, klass, Cause(s, klass, s.domain, "unknown", because), s)


def _nobody_ended(case: Case) -> bool:
    """A run that was moving, then a library's warning, then nothing at all: no exception, no exit."""
    moved = any(t.training for t in case.traces)
    return moved and not case.ends and not any(s.role in ("wrapper", *CLAIMS) for s in case.live)


def _ended(case: Case, s: Signal) -> Judgement:
    if s.mark == "node-failure":  # the cancelling line is printed by survivors; another one may name the lost node
        s = next((x for x in case.live if x.klass == "node-lost" and x.role == "root"), s)
    klass = LIFECYCLE_CLASS.get(s.mark or "cancelled", s.klass or "node-lost")
    verdict = case.book.class_by_id[klass].verdict if klass in case.book.class_by_id else "cancelled"
    because = "the scheduler or launcher says so"
    return _result(case, verdict, klass, Cause(s, klass, _domain(case, s, klass), "certain", because), s)


def _buffered(case: Case, s: Signal) -> Judgement:
    """A bad end without a better cause: the error may stand before the last steps only because those waited in a buffer."""
    klass = s.klass or "unknown"
    because = (
        "the run ended badly and nothing later explains it; the steps after this line may have been printed before it"
    )
    return _result(case, "crashed", klass, Cause(s, klass, _domain(case, s, klass), "possible", because), s)


def _exited(case: Case, s: Signal) -> Judgement:
    klass = s.klass or "process-failed"
    cause = Cause(s, klass, s.domain, "unknown", "a process ended badly and no line says why")
    return _result(case, "crashed", klass, cause, s)


def _domain(case: Case, s: Signal, klass: str) -> str:
    if s.domain != "unknown":
        return s.domain
    known = case.book.class_by_id.get(klass)
    return known.fault if known else "unknown"


def _result(case: Case, verdict: str, klass: str | None, cause: Cause | None, anchor: Signal | None) -> Judgement:
    told = cause.signal if cause else None
    cascades = 0
    if told is not None:
        noisy = {
            s.rule for s in case.live if s.role in ("cascade", "wrapper", *CLAIMS) or s.mark in ("exit", "teardown")
        }
        cascades = sum(case.count(r) for r in noisy) - 1
    return Judgement(verdict, klass, cause, max(0, cascades), _evidence(case, told, anchor), tuple(case.notes))


def _as_printed(case: Case, told: Signal) -> Signal:
    """The kept signal itself, which still says who printed the line."""
    mine = (s for s in case.trace_of(told).kept if s.offset == told.offset and s.rule == told.rule)
    return next(mine, told)


def _evidence(case: Case, told: Signal | None, anchor: Signal | None) -> tuple[Evidence, ...]:
    """The lines that tell the story: the cause, then the first of every kind in order, with counts."""
    out: list[Evidence] = []
    seen: set[str] = set()
    if told is not None:
        out.append(Evidence("cause", _as_printed(case, told), case.count(told.rule)))
        seen.add(told.rule)
    elif anchor is not None:
        out.append(Evidence("end", anchor))
        seen.add(anchor.rule)
    alive = {id(s) for s in case.live}
    for s in sorted((s for s in case.kept if s.role != "locator" or s.mark), key=key):
        if s.rule in seen or len(out) >= EVIDENCE_MAX:
            continue
        seen.add(s.rule)
        why = "background" if id(s) not in alive else (s.mark or s.role)
        out.append(Evidence(why, s, case.count(s.rule)))
    return tuple(out)
