"""One line of a log, explained: what the patterns see in it, which rules speak, which keep silent and why, and what the line is to its attempt.

In: a rulebook, its databases and a `Source` of one log, which is replayed whole through the engine's own loop. Out: plain
dataclasses, nothing printed. Always holds: what is said here is what `replay` of the same single log does with the line; a rule's
outcome is one of `OUTCOMES`, a line's part one of `PARTS`.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import polars as pl

from defib.engine.blocks import Batch, Piece
from defib.engine.case import Case
from defib.engine.core import Append, JobJudged, State, StreamRead, signal
from defib.engine.drive import Drive
from defib.engine.observe import Observation, Observer
from defib.engine.ports import Source
from defib.engine.progress import GENERIC_BELOW, ProgressReader, captures, kept
from defib.engine.rulebook import Databases, Format, Rule, Rulebook
from defib.engine.rulelint import matches
from defib.engine.scan import Scanner
from defib.engine.signals import SignalReader
from defib.engine.stamps import stamps
from defib.engine.trace import StreamFold, Trace
from defib.engine.voices import CLAIMS
from defib.engine.who import COLUMNS, ROUNDS, Who
from defib.engine.words import LIFECYCLE_MARKS, AttemptVerdict, Signal

HELD = 250  # records of one line kept from its beginning, and as many from its end (a bar may be redrawn for days)
PLACE = frozenset(("stream", "offset", "line", "format", "time_us", "year_us"))  # columns that tell where, not what
OUTCOMES = ("fires", "vetoed", "muted", "gave-way", "mutes", "would-mute", "banner")
# Strongest first: the part of a line is the strongest part any of its rules gives it.
PARTS = (
    "cause", "end", "teardown", "cascade", "passed-over", "launch", "background", "undecided", "locator", "muted", "progress", "silent",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RuleSaid:
    """A rule whose pattern matches the record. by: the `unless` patterns, benign or particular rules that kept it silent."""

    rule: str
    title: str
    kind: str
    role: str
    klass: str | None
    patterns: tuple[str, ...]
    outcome: str
    by: tuple[str, ...] = ()
    captures: dict[str, str] = field(default_factory=dict)
    part: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class FormatSaid:
    """A progress format whose anchor is in the record. outcome: read | vetoed | gave-way | anchor-only."""

    format: str
    kind: str
    outcome: str
    captures: dict[str, str]
    numbers: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RecordSaid:
    """What the rules make of one record."""

    offset: int
    text: str
    prefixes: tuple[str, ...]
    who: dict[str, Any]
    time_us: int | None
    rules: tuple[RuleSaid, ...]
    formats: tuple[FormatSaid, ...]
    part: str
    reason: str


@dataclass(frozen=True, slots=True)
class Explained:
    """lines: of the whole log. skipped: records of the line not held. attempt: None where the line lies in none."""

    lines: int
    records: tuple[RecordSaid, ...]
    skipped: int
    attempt: AttemptVerdict | None
    attempts: int
    notes: tuple[str, ...]


class Lookout(Observer):
    """Observes, and keeps the records of one line on the way."""

    def __init__(self, book: Rulebook, databases: Databases, line: int) -> None:
        super().__init__(book, databases)
        self.line = line
        self.first: list[tuple[int, bytes]] = []
        self.last: deque[tuple[int, bytes]] = deque(maxlen=HELD)
        self.met = 0
        self.lines = 0

    def observe(self, batch: Batch) -> Observation:
        for i, piece in enumerate(batch.pieces):
            feeds = piece.payload.count(b"\n")
            self.lines = piece.line + feeds - piece.payload.endswith(b"\n")
            if piece.line <= self.line <= piece.line + feeds:
                begin, end = np.searchsorted(batch.starts, batch.bounds[i : i + 2])
                records = np.arange(begin, end)
                _, offset, line = batch.place(records)
                for n in np.flatnonzero(line == self.line):
                    self._hold(int(offset[n]), batch.text(int(records[n])))
        return super().observe(batch)

    def _hold(self, offset: int, text: bytes) -> None:
        self.met += 1
        if len(self.first) < HELD:
            self.first.append((offset, text))
        else:
            self.last.append((offset, text))

    @property
    def held(self) -> list[tuple[int, bytes]]:
        """Without the empty record between the CR and the LF of a line end."""
        all_ = [*self.first, *self.last]
        return all_[:-1] if len(all_) > 1 and not all_[-1][1] else all_


@dataclass(slots=True)
class Listener:
    """A `Sink` that remembers what was said of one line, and the folds and verdicts a job leaves behind."""

    state: State
    line: int
    signals: list[Signal] = field(default_factory=list)
    fold: StreamFold | None = None
    notes: tuple[str, ...] = ()
    attempts: tuple[AttemptVerdict, ...] = ()

    def apply(self, effects: list[object]) -> None:
        for e in effects:
            if isinstance(e, Append) and e.table == "signals":
                lines = e.rows["line"].to_numpy()
                for i in np.flatnonzero(lines == self.line):
                    self.signals.append(signal(self.state.book, e.rows.slice(int(i), 1).to_pylist()[0]))
            elif isinstance(e, StreamRead):
                self.fold = self.state.streams[e.stream].fold  # the state forgets it once the job is judged
                self.notes = e.notes
            elif isinstance(e, JobJudged):
                self.attempts = e.attempts


def explain(book: Rulebook, databases: Databases, source: Source, line: int) -> Explained:
    """Replay the source's one log and explain the records of its line. No records: the log has no such line."""
    lookout, state = Lookout(book, databases, line), State(book)
    listener = Listener(state, line)
    Drive(lookout, state, listener).run(source)
    held = lookout.held
    signals = {(s.offset, str(s.rule)): s for s in listener.signals}
    trace, attempt = _attempt_of(listener, held[0][0]) if held else (None, None)
    case = Case([trace], book) if trace is not None else None
    records = _records(book, databases, held)
    judged = tuple(_judged(r, signals, case, attempt) for r in records)
    skipped = lookout.met - len(lookout.first) - len(lookout.last)
    return Explained(lookout.lines, judged, skipped, attempt, len(listener.attempts), listener.notes)


def _attempt_of(listener: Listener, offset: int) -> tuple[Trace | None, AttemptVerdict | None]:
    """Attempts of a single log stand in the order of its traces; traces that said nothing became none."""
    if listener.fold is None:
        return None, None
    spoke = [t for t in listener.fold.traces if t.spoke] or listener.fold.traces[-1:]
    for trace, attempt in zip(spoke, listener.attempts, strict=True):
        if trace.begin_offset <= offset and (offset < trace.end_offset or trace is spoke[-1]):
            return trace, attempt
    return None, None


def _records(book: Rulebook, databases: Databases, held: Sequence[tuple[int, bytes]]) -> list[RecordSaid]:
    if not held:
        return []
    batch = Batch()
    batch.add(Piece(0, 0, 1, b"".join(t + b"\n" for _, t in held)))
    text = pl.Series([t.decode("utf-8", "replace") for _, t in held])
    who = Who(book.prefixes).of(text).rows(named=True)
    times = stamps(text).to_list()
    rules = _rules(book, databases, batch, len(held))
    formats = _formats(book, databases, batch, text)
    return [
        RecordSaid(
            offset, text[n], _prefixes(book, text[n]), {c: who[n][c] for c in COLUMNS if who[n][c] is not None}, times[n],
            tuple(rules[n]), tuple(formats[n]), "silent", "",
        )
        for n, (offset, _) in enumerate(held)
    ]  # fmt: skip


def _prefixes(book: Rulebook, text: str) -> tuple[str, ...]:
    """Ids of the prefix forms peeled off, outermost first."""
    out: list[str] = []
    left = pl.Series([text[:200]])
    for _ in range(ROUNDS):
        form = next((p for p in book.prefixes if left.str.contains(p.pattern)[0]), None)
        if form is None:
            break
        out.append(form.id)
        left = left.str.replace(form.pattern, "")
    return tuple(out)


def _rules(book: Rulebook, databases: Databases, batch: Batch, count: int) -> list[list[RuleSaid]]:
    """Per record every rule that matches, with what became of it."""
    # The same expressions without vetoes and without giving way: what matches before anything keeps it silent.
    plain = dataclasses.replace(book, rules=tuple(dataclasses.replace(r, generic=False) for r in book.rules))
    raw = Scanner(plain, databases._replace(vetoes=b"")).scan(batch)
    scanner = Scanner(book, databases)
    real = scanner.scan(batch)
    fired = set(zip(real.record.tolist(), real.rule.tolist(), strict=True))
    veto_rule, veto_record, benign = scanner.vetoes(batch, np.arange(count))
    vetoes = list(zip(veto_record.tolist(), veto_rule.tolist(), benign.tolist(), strict=True))
    muters: dict[int, list[int]] = {n: sorted({r for m, r, b in vetoes if b and m == n}) for n in range(count)}
    vetoed = {(n, r) for n, r, b in vetoes if not b}
    rows = SignalReader(book).read(batch, raw).to_pylist()
    out: list[list[RuleSaid]] = [[] for _ in range(count)]
    for n, i, row in zip(raw.record.tolist(), raw.rule.tolist(), rows, strict=True):
        r, line = book.rules[i], batch.text(n)
        by: tuple[str, ...] = ()
        if (n, i) in fired:
            outcome = "fires"
        elif muters[n]:
            outcome, by = "muted", tuple(book.rules[k].id for k in muters[n])
        elif (n, i) in vetoed:
            outcome, by = "vetoed", _which(r.unless, line)
        else:
            outcome, by = "gave-way", tuple(sorted(book.rules[k].id for m, k in fired if m == n))
        taken = {k: str(row[k]) for k in ("rank", "local_rank", "node") if row[k] is not None}
        out[n].append(_said(r, line, outcome, by, {**taken, **orjson.loads(row["fields"])}))
    for n in range(count):
        outcome = "mutes" if out[n] else "would-mute"
        out[n] += [_said(book.rules[i], batch.text(n), outcome) for i in muters[n]]
        banners = scanner.banners_in(batch.text(n) + b"\n") if raw.banners else ()
        out[n] += [_said(book.rules[i], batch.text(n), "banner") for i in sorted(banners)]
    return out


def _said(
    r: Rule, line: bytes, outcome: str, by: tuple[str, ...] = (), taken: dict[str, str] | None = None
) -> RuleSaid:
    return RuleSaid(r.id, r.title, r.kind, r.role, r.klass, _which(r.patterns, line), outcome, by, taken or {})


def _which(patterns: Sequence[str], line: bytes) -> tuple[str, ...]:
    found = {p for p, _ in matches(patterns, [line])}
    return tuple(p for i, p in enumerate(patterns) if i in found)


def _formats(book: Rulebook, databases: Databases, batch: Batch, text: pl.Series) -> list[list[FormatSaid]]:
    scanner = Scanner(book, databases)
    read = ProgressReader(book, scanner.plan.anchors).read(batch, scanner.scan(batch).anchors)
    # Each record of this batch is a line of its own, so the line tells the record.
    numbers = {(row["line"] - 1, row["format"]): row for row in read.to_pylist()}
    out: list[list[FormatSaid]] = [[] for _ in range(len(text))]
    for f in book.formats:
        at = [n for n in range(len(text)) if any(a in text[n] for a in f.anchors)]
        if not at:
            continue
        part = text.gather(at)
        got = captures(f, part)
        open_, keep = kept(dataclasses.replace(f, unless=()), part, got), kept(f, part, got)
        for k, (n, row) in enumerate(zip(at, got.rows(named=True), strict=True)):
            said = _format_outcome(f, bool(open_[k]), bool(keep[k]), (n, f.id) in numbers)
            typed = {a: v for a, v in numbers.get((n, f.id), {}).items() if v is not None and a not in PLACE}
            taken = {c: v for c, v in row.items() if v is not None} if said != "anchor-only" else {}
            out[n].append(FormatSaid(f.id, f.kind, said, taken, typed))
    return out


def _format_outcome(f: Format, matched: bool, keeps: bool, is_read: bool) -> str:
    if is_read:
        return "read"
    if not matched:
        return "anchor-only"
    return "gave-way" if keeps and f.priority < GENERIC_BELOW else "vetoed"


def _judged(
    record: RecordSaid, signals: dict[tuple[int, str], Signal], case: Case | None, attempt: AttemptVerdict | None
) -> RecordSaid:
    """The record with its rules' parts in the attempt; its own part is the strongest of theirs."""
    rules: list[RuleSaid] = []
    for said in record.rules:
        s = signals.get((record.offset, said.rule))
        if s is not None and said.outcome == "fires" and case is not None and attempt is not None:
            part, reason = part_of(s, case, attempt)
            said = dataclasses.replace(said, role=s.role, klass=s.klass, title=s.title, part=part, reason=reason)
        rules.append(said)
    told = sorted((PARTS.index(r.part), r.reason or "") for r in rules if r.part is not None)
    if told:
        part, reason = PARTS[told[0][0]], told[0][1]
    elif any(r.outcome == "mutes" for r in rules):
        names = ", ".join(r.rule for r in rules if r.outcome == "mutes")
        part, reason = "muted", f"it looks alarming and is known to be harmless ({names})"
    elif any(f.outcome == "read" for f in record.formats):
        part, reason = "progress", "it is a progress line: what failed before it is background"
    elif any(r.outcome in ("vetoed", "gave-way") for r in rules):
        part, reason = "silent", "a pattern matches but its rule keeps silent, so the line decided nothing"
    else:
        part, reason = "silent", "no rule or format speaks of it, so it decided nothing"
    return dataclasses.replace(record, rules=tuple(rules), part=part, reason=reason)


def part_of(s: Signal, case: Case, attempt: AttemptVerdict) -> tuple[str, str]:
    """What a line is to its attempt, and why in a sentence."""
    cause = attempt.cause.signal if attempt.cause is not None else None
    if attempt.cause is not None and cause is not None and s.offset == cause.offset:
        if s.rule == cause.rule:
            return "cause", f"this line is the cause: {attempt.cause.because}"
        return "cause", f"this line is the cause, but by {cause.rule}: of two claims on a line the stronger one speaks"
    if s.mark in ("start", "restart"):
        return "launch", "it announces a launch: an attempt may begin here"
    if s.role == "locator" and s.mark is None:
        return "locator", "it names a place, a rank or a phase and carries no cause"
    trace = case.traces[0]
    if case.progressed_after(s) and trace.progress is not None:
        return "background", f"training moved on after it (last progress at line {trace.progress.line:,})"
    if attempt.verdict == "completed":
        return _beside_end(s, case, attempt)
    if cause is None:
        return "undecided", f"nothing in this attempt tells how it ended ({attempt.verdict}), so no line is its cause"
    if case.precedes(s, cause):
        return "passed-over", _why_not(s, cause)
    if cause.mark in LIFECYCLE_MARKS:
        return "teardown", f"the act at line {cause.line:,} ({cause.rule}) explains whatever came after it"
    torn = [x for x in trace.kept if x.mark == "teardown" and cause.offset < x.offset <= s.offset]
    if torn:
        own = torn[0].offset == s.offset
        where = "this line says so" if own else f"since line {torn[0].line:,}, {torn[0].rule}"
        return (
            "teardown",
            f"after the cause at line {cause.line:,} somebody was already stopping what was left ({where})",
        )
    of = "a later error counts as its consequence" if s.role in CLAIMS else "this is its consequence"
    return "cascade", f"the cause at line {cause.line:,} ({cause.rule}) came first; {of}"


def _beside_end(s: Signal, case: Case, attempt: AttemptVerdict) -> tuple[str, str]:
    end = next((e.signal for e in attempt.evidence if e.why == "end"), None)
    if end is None:
        return "background", "the run reached its planned end all the same"
    if (s.offset, s.rule) == (end.offset, end.rule):
        return "end", "it is the planned end; what follows is teardown"
    if case.precedes(end, s):
        return "teardown", f"it comes after the planned end at line {end.line:,} ({end.rule})"
    return "background", f"the run reached its planned end at line {end.line:,} all the same"


def _why_not(s: Signal, cause: Signal) -> str:
    if s.role not in CLAIMS:
        return f"it comes before the cause at line {cause.line:,}, but a {s.role} line is never named as the cause where there is a better one"
    if cause.mark in LIFECYCLE_MARKS:
        return f"no process is known to have died of it before the act at line {cause.line:,} ({cause.rule})"
    if cause.role not in CLAIMS:
        return f"nothing shows that the run ended on it; the first sign of the end is at line {cause.line:,} ({cause.rule})"
    return f"the cause at line {cause.line:,} ({cause.rule}) is stronger evidence so close by, or nothing shows that a process ended on this one"
