"""One attempt's traces -> its verdict, its first cause, and how sure we are.

The ordering follows the rules collected from published practice (Meta's RSC study arXiv 2410.21680, NVIDIA's restart agent, Aegis,
LogSage; see README "How a cause is chosen"):

1. An error followed by progress is background. 2. A planned end makes what follows teardown. 3. The scheduler's or a
person's act explains every later error. 4. Among what is left the earliest counts; within a band where order means nothing
(clock skew, interleaved writers) the stronger kind of evidence wins. 5. Timeouts and socket errors are symptoms, used only
when nothing better is there. 6. Nothing is said that no line supports: `unknown` and null are answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from defib.engine.rulebook import Rulebook
from defib.engine.trace import Trace
from defib.engine.words import LIFECYCLE_MARKS, Cause, Evidence, Signal

SKEW_US = 2_000_000  # clocks of nodes within this are taken as equal
BAND_LINES = 40  # interleaved writers: order within so many lines means nothing
NEAR_END_LINES = 120  # a log that stops so soon after trouble stopped because of it
EVIDENCE_MAX = 40
LAST_WORDS_LINES = 3
CHANNELS = 2  # a job with more streams than .out and .err has one per rank or node
CLAIMS = ("root", "candidate")
LIFECYCLE_RANK = ("node-failure", "preempted", "time-limit", "requeued", "cancelled")
LIFECYCLE_CLASS = {
    "node-failure": "node-lost", "preempted": "preempted", "time-limit": "time-limit",
    "requeued": "requeued", "cancelled": "cancelled",
}  # fmt: skip
HARD = ("gpu", "node", "network", "storage")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What `judge` says of an attempt."""

    verdict: str
    klass: str | None
    cause: Cause | None
    cascades: int
    evidence: tuple[Evidence, ...]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Case:
    """The traces of one attempt with the questions the ordering asks of them."""

    traces: Sequence[Trace]
    book: Rulebook
    errors: frozenset[int] = frozenset()  # streams that are an error channel by their paths
    notes: list[str] = field(default_factory=list)

    def trace_of(self, s: Signal) -> Trace:
        return next(
            t for t in self.traces if t.stream == s.stream and t.begin_offset <= s.offset <= max(t.end_offset, s.offset)
        )

    def signals(self) -> list[Signal]:
        return [s for t in self.traces for s in t.kept]

    def progressed_after(self, s: Signal) -> bool:
        """Training moved on after this line: in the same stream by place, in another one by time."""
        for t in self.traces:
            if t.progress is None:
                continue
            if t.stream == s.stream:
                if t.survived(s):
                    return True
            elif s.role == "lifecycle":
                continue  # the scheduler's clock may be another zone's, and its word does not depend on another log's
            elif (
                s.order_us is not None and t.progress.time_us is not None and t.progress.time_us > s.order_us + SKEW_US
            ):
                return True
        return False

    def precedes(self, a: Signal, b: Signal) -> bool | None:
        """a before b; None where nothing tells."""
        if a.stream == b.stream:
            return a.offset < b.offset
        if a.order_us is not None and b.order_us is not None:
            return a.order_us < b.order_us
        return None

    def last_of(self, marks: Iterable[str]) -> list[Signal]:
        wanted = set(marks)
        return [s for t in self.traces for s in t.last_by_rule.values() if s.mark in wanted]


def judge(traces: Sequence[Trace], book: Rulebook, errors: frozenset[int] = frozenset()) -> Judgement:
    """The verdict on one attempt. Deterministic; depends on the traces only. errors: streams that hold standard error alone."""
    case = Case(traces, book, errors)
    live = [s for s in case.signals() if not case.progressed_after(s)]
    demoted = [s for s in case.signals() if s.role in CLAIMS and case.progressed_after(s)]
    if demoted:
        shown = ", ".join(dict.fromkeys(f"{s.rule} at line {s.line}" for s in demoted[-3:]))
        n = len(demoted)
        case.notes.append(f"{n} error line{'s' if n > 1 else ''} followed by progress, taken as background: {shown}")
    end = _lifecycle(case, live)
    done = _completed(case)
    claims = [s for s in live if s.role in CLAIMS and not _teardown_noise(case, s, done) and not _ignored(case, s)]
    if end is not None:
        claims = [
            s
            for s in claims
            if case.precedes(s, end) is not False and (_stands_alone(s) or _died_before(case, live, s, end))
        ]
        fatal = claims  # the act itself shows that the run did not get over them
    else:
        fatal = [s for s in claims if _fatal(case, live, s, done)]
    if done is not None and not _undone(case, live, fatal, done):
        return _result(case, "completed", None, None, live, done)
    first = _first(case, fatal)
    if first is not None:
        return _crashed(case, first, live)
    if end is not None:
        symptom = _first_symptom(case, [s for s in live if case.precedes(s, end) is True], timeouts_only=True)
        if symptom is not None:
            return _symptom(case, symptom, live)
        return _ended(case, end, live)
    symptom = _first_symptom(case, live, timeouts_only=False)
    if symptom is not None:
        return _symptom(case, symptom, live)
    exits = [s for s in live if s.mark == "exit"]
    late = [s for s in demoted if _stands_alone(s) and not _ignored(case, s)]
    if exits and late:
        return _buffered(case, late[-1], live)
    if exits:
        return _exited(case, _earliest(case, exits), live)
    progressing = any(t.progress for t in case.traces)
    return _result(case, "running-at-end" if progressing else "unknown", None, None, live, None)


def _lifecycle(case: Case, live: list[Signal]) -> Signal | None:
    """The act that ended the attempt: the first one, told by the most telling of the lines about it."""
    acts = [s for s in live if s.mark in LIFECYCLE_MARKS and s.role == "lifecycle" and not _own_kill(case, live, s)]
    if not acts:
        return None
    first = _earliest(case, acts)
    said = [s for s in acts if case.precedes(s, first) is not True]
    return min(said, key=lambda s: (LIFECYCLE_RANK.index(s.mark or "cancelled"), s.stream, s.offset))


def _own_kill(case: Case, live: list[Signal], act: Signal) -> bool:
    """A bare CANCELLED after a task had ended badly is srun stopping what is left, not a person's act."""
    return act.mark == "cancelled" and any(
        x.mark == "exit" and case.precedes(x, act) is True for x in live if x is not act
    )


def _completed(case: Case) -> Signal | None:
    """The planned end: of the program, else of the training loop, else of every process; void if training went on after it."""

    def stands(s: Signal) -> bool:
        return not any(t.training and t.stream == s.stream and t.training.offset > s.offset for t in case.traces)

    for mark in ("completed", "trained", "ok-exit"):
        marks = [s for s in case.signals() if s.mark == mark and stands(s)]
        if mark == "ok-exit" and any(s.mark == "exit" and not case.progressed_after(s) for s in case.signals()):
            continue
        if marks:
            return _earliest(case, marks)
    return None


def _stands_alone(s: Signal) -> bool:
    """An error that needs no bad exit beside it to be believed."""
    return s.role == "root" and not s.generic


def _ignored(case: Case, s: Signal) -> bool:
    """The interpreter caught this one on its way out: a line saying so stands before it, in the same traceback."""
    if s.role != "candidate":
        return False
    near = [
        x
        for x in case.signals()
        if x.stream == s.stream and 0 <= s.line - x.line <= BAND_LINES and x.offset <= s.offset
    ]
    marks = [x for x in near if x.mark == "ignored"]
    if not marks:
        return False
    since = marks[-1].offset
    return sum(x.role == "wrapper" and x.offset > since for x in near) <= 1


def _teardown_noise(case: Case, s: Signal, done: Signal | None) -> bool:
    """After the program's planned end nothing counts; after the loop's end a failing save or evaluation still does."""
    return done is not None and done.mark != "trained" and case.precedes(s, done) is False


def _undone(case: Case, live: list[Signal], fatal: list[Signal], done: Signal) -> bool:
    """The planned end was not the end: something died before it, or, once the loop was through, after it."""
    if done.mark == "trained" and any(case.precedes(done, s) for s in fatal):
        return True
    return any(_died_before(case, live, s, done) and case.precedes(s, done) for s in fatal)


def _died_before(case: Case, live: list[Signal], s: Signal, end: Signal) -> bool:
    """Some process is known to have ended badly between the claim and the end."""
    return any(
        (x.mark == "exit" or x.klass == "collective-timeout")
        and case.precedes(s, x) is not False
        and case.precedes(x, end) is True
        for x in live
        if x is not s
    )


def _fatal(case: Case, live: list[Signal], s: Signal, done: Signal | None) -> bool:
    """Evidence that the run really ended on this claim: a bad exit or teardown after it, a timeout of those who waited, or the log's own end."""
    for x in live:
        if x is s or case.precedes(s, x) is False:
            continue
        if x.mark in ("exit", "teardown") or x.klass == "collective-timeout":
            return True
    trace = case.trace_of(s)
    if len(case.traces) > CHANNELS and trace.progress is None and any(t.progress for t in case.traces):
        # One rank's own log falls silent for many reasons: only an error that stands alone, or the last words on an error channel, count.
        last_words = s.stream in case.errors and trace.end_line - s.line <= LAST_WORDS_LINES
        if not (_stands_alone(s) or last_words):
            return False
    if s.role == "candidate" and any(x.rule == s.rule and case.progressed_after(x) for x in case.signals()):
        return False  # the run has survived this kind of line before
    return (done is None or done.mark == "trained") and trace.end_line - trace.trouble_line <= NEAR_END_LINES


def _strength(case: Case, s: Signal) -> int:
    """Kinds of evidence, strongest first; used only inside a band where order means nothing."""
    if s.role == "root" and s.domain in HARD:
        return 0
    if s.role == "root" and s.klass == "host-oom":
        return 1
    if not s.generic:
        return 2 if s.role == "root" else 3
    return 4


def _key(s: Signal) -> tuple[int, int, int]:
    """A total order: time where known, then stream and place."""
    return (s.order_us if s.order_us is not None else 2**62, s.stream, s.offset)


def _earliest(case: Case, signals: Sequence[Signal]) -> Signal:
    """First in time; inside one stream place outranks stamps (late writers carry old ones)."""
    best = min(signals, key=_key)
    same = [s for s in signals if s.stream == best.stream]
    return min(same, key=lambda s: s.offset)


def _first(case: Case, claims: list[Signal]) -> Signal | None:
    """The first claim; where two streams cannot be compared in time, the stronger kind of evidence."""
    if not claims:
        return None
    claims = _labelled_or_all(claims)
    heads = [_head(case, [s for s in claims if s.stream == stream]) for stream in sorted({s.stream for s in claims})]
    if all(s.order_us is not None for s in heads):
        first = min(heads, key=_key)
        near = [s for s in heads if (s.order_us or 0) - (first.order_us or 0) <= SKEW_US]
        return min(near, key=lambda s: (_strength(case, s), _key(s)))
    return min(heads, key=lambda s: (_strength(case, s), _key(s)))


def _head(case: Case, claims: list[Signal]) -> Signal:
    """The first claim of one stream, or a stronger one so near that order means nothing."""
    first = min(claims, key=lambda s: s.offset)
    return min((s for s in claims if _in_band(first, s)), key=lambda s: (_strength(case, s), s.offset))


def _labelled_or_all(claims: list[Signal]) -> list[Signal]:
    """Where a launcher labels its ranks' lines, a mere candidate without a label far before them is the batch script's own trouble."""
    labelled = [s for s in claims if s.rank is not None or s.local_rank is not None or "task" in s.fields]
    if not labelled:
        return claims
    at = {s.stream: s.line for s in reversed(labelled)}
    early = [
        s for s in claims if s.role == "candidate" and s not in labelled and s.line < at.get(s.stream, 0) - BAND_LINES
    ]
    return [s for s in claims if s not in early]


def _in_band(first: Signal, s: Signal) -> bool:
    if s.line - first.line > BAND_LINES:
        return False
    return s.order_us is None or first.order_us is None or abs(s.order_us - first.order_us) <= SKEW_US


def _first_symptom(case: Case, live: list[Signal], *, timeouts_only: bool) -> Signal | None:
    """When no cause is printed: timeouts before socket errors before wrappers."""
    told = [s for s in live if s.role in ("cascade", "wrapper") and s.klass is not None]
    timeouts = [s for s in told if case.book.class_by_id[s.klass or ""].verdict == "stalled"]
    if timeouts:
        return _earliest(case, timeouts)
    if timeouts_only:
        return None
    told = [s for s in told if _fatal(case, live, s, None)]
    cascades = [s for s in told if s.role == "cascade"]
    pick = cascades or told
    return _earliest(case, pick) if pick else None


def _crashed(case: Case, s: Signal, live: list[Signal]) -> Judgement:
    klass = s.klass or "unknown"
    supported = any(x is not s and x.mark == "exit" for x in live)
    noticed = any(x.role in ("cascade", "confirm") for x in live if x is not s)
    if s.role == "root" and s.domain in HARD and s.klass in ("gpu-hardware", "node-lost", "nvlink"):
        confidence, because = "certain", "the driver or scheduler itself reports it"
    elif s.role == "root" and (supported or noticed):
        confidence, because = "likely", "it is the first error not followed by progress, and processes ended after it"
    else:
        confidence, because = "possible", "it is the first error not followed by progress"
    verdict = case.book.class_by_id[klass].verdict if klass in case.book.class_by_id else "crashed"
    if verdict == "running-at-end":
        verdict = "crashed"
    return _result(case, verdict, klass, Cause(s, klass, _domain(case, s, klass), confidence, because), live, s)


def _symptom(case: Case, s: Signal, live: list[Signal]) -> Judgement:
    klass = s.klass or "unknown"
    verdict = case.book.class_by_id[klass].verdict
    because = "no line names a cause; this is the first sign printed by those who noticed"
    # Who prints a symptom waited for the culprit: it is evidence, not a suspect.
    s = dataclasses.replace(s, rank=None, local_rank=None, node=None)
    return _result(case, verdict, klass, Cause(s, klass, s.domain, "unknown", because), live, s)


def _ended(case: Case, s: Signal, live: list[Signal]) -> Judgement:
    if s.mark == "node-failure":  # the cancelling line is printed by survivors; another one may name the lost node
        s = next((x for x in live if x.klass == "node-lost" and x.role == "root"), s)
    klass = LIFECYCLE_CLASS.get(s.mark or "cancelled", s.klass or "node-lost")
    verdict = case.book.class_by_id[klass].verdict if klass in case.book.class_by_id else "cancelled"
    return _result(
        case,
        verdict,
        klass,
        Cause(s, klass, _domain(case, s, klass), "certain", "the scheduler or launcher says so"),
        live,
        s,
    )


def _buffered(case: Case, s: Signal, live: list[Signal]) -> Judgement:
    """A bad end without a better cause: the error may stand before the last steps only because those waited in a buffer."""
    klass = s.klass or "unknown"
    because = (
        "the run ended badly and nothing later explains it; the steps after this line may have been printed before it"
    )
    return _result(case, "crashed", klass, Cause(s, klass, _domain(case, s, klass), "possible", because), live, s)


def _exited(case: Case, s: Signal, live: list[Signal]) -> Judgement:
    because = "a process ended badly and no line says why"
    return _result(
        case,
        "crashed",
        s.klass or "process-failed",
        Cause(s, s.klass or "process-failed", s.domain, "unknown", because),
        live,
        s,
    )


def _domain(case: Case, s: Signal, klass: str) -> str:
    if s.domain != "unknown":
        return s.domain
    known = case.book.class_by_id.get(klass)
    return known.fault if known else "unknown"


def _result(
    case: Case, verdict: str, klass: str | None, cause: Cause | None, live: list[Signal], anchor: Signal | None
) -> Judgement:
    told = cause.signal if cause else None
    cascades = 0
    if told is not None:
        noisy = {s.rule for s in live if s.role in ("cascade", "wrapper", *CLAIMS) or s.mark in ("exit", "teardown")}
        cascades = sum(t.counts.get(r, 0) for t in case.traces for r in noisy) - 1
    return Judgement(verdict, klass, cause, max(0, cascades), _evidence(case, told, live, anchor), tuple(case.notes))


def _as_printed(case: Case, told: Signal) -> Signal:
    """The kept signal itself, which still says who printed the line."""
    return next(
        (s for s in case.signals() if s.stream == told.stream and s.offset == told.offset and s.rule == told.rule), told
    )


def _evidence(case: Case, told: Signal | None, live: list[Signal], anchor: Signal | None) -> tuple[Evidence, ...]:
    """The lines that tell the story: the cause, then the first of every kind in order, with counts."""
    out: list[Evidence] = []
    seen: set[str] = set()
    if told is not None:
        out.append(Evidence("cause", _as_printed(case, told), sum(t.counts.get(told.rule, 0) for t in case.traces)))
        seen.add(told.rule)
    elif anchor is not None:
        out.append(Evidence("end", anchor))
        seen.add(anchor.rule)
    rest = sorted((s for s in case.signals() if s.role != "locator" or s.mark), key=_key)
    alive = {id(s) for s in live}
    for s in rest:
        if s.rule in seen or len(out) >= EVIDENCE_MAX:
            continue
        seen.add(s.rule)
        why = "background" if id(s) not in alive else (s.mark or s.role)
        out.append(Evidence(why, s, sum(t.counts.get(s.rule, 0) for t in case.traces)))
    return tuple(out)
