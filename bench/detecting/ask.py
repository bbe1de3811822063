"""One planned run, from its making to what was said of it.

In: a planned case. Out: a `Row` of plain values that can cross processes.
Always: everything is computed from the plan's seed, so a row can be had again by its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from defib.adapters import rulefiles
from defib.engine.observe import Observer
from detecting.feed import Ear, Finished, Recalled, Recorder, Watched, facts_of, hear, seconds
from detecting.rivals import RIVALS, Alarm, series
from loggen.model import Rendered, Truth
from loggen.plan import Planned
from loggen.render import render
from loggen.styles.lines import LAST_WORDS

CUTS = ((977, 4 << 20), (4096, 1500))
"""Other ways to cut the same bytes: (block, batch)."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """An episode as the engine tells it. Times are seconds since the job's start on the observer's clock; None in a replay."""

    kind: str
    phase: str
    step: int | None
    until: int | None
    called: bool
    onset_s: float | None = None
    called_s: float | None = None
    limit_s: float | None = None
    depth: float | None = None
    scope: str = "unknown"
    ranks: tuple[int, ...] = ()
    lasts: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """What is said of one attempt."""

    verdict: str
    klass: str | None
    rule: str | None
    rank: int | None
    node: str | None
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A run's health changed."""

    at_s: float
    attempt: int
    was: str
    health: str
    because: str
    stretch: Stretch | None


@dataclass(slots=True)
class Row:
    """A run, its truth, and the answers."""

    name: str
    group: str
    framework: str
    log_every: int
    truth: tuple[Truth, ...]
    hours: float
    """Watched, up to where it hung."""
    size: int
    live: list[Said] | None = None
    changes: list[Change] = field(default_factory=list)
    replay: list[Said] = field(default_factory=list)
    rivals: dict[str, list[Alarm]] = field(default_factory=dict)
    points: int = 0
    """Of the series the rivals saw."""
    same: str | None = None
    """Why the live answers differ from the replayed ones; "" where they do not; None where it was not asked."""
    cut: str | None = None
    """The same for other cuts of the same bytes."""
    mute: bool = False
    """The program printed nothing before it hung: only the batch script's own line is there."""
    parted: bool = False
    """The log says that the work is done, and nobody asks the scheduler whether the process has ended."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to do with each run."""

    live: bool = True
    sample: int = 20
    """One run in so many is also read in other cuts of its bytes, and watched without recalling what was scanned."""


class Asker:
    """Holds the rules; one per process."""

    def __init__(self, wanted: Wanted) -> None:
        loaded = rulefiles.load()
        self.observer = Observer(loaded.book, loaded.databases)
        self.wanted = wanted

    def ask(self, index: int, planned: Planned) -> Row:
        run = render(planned.job, planned.fault, planned.seed)
        facts = facts_of(list(run.files), self.observer.book.paths, planned.job.job_id)
        recorder = Recorder(self.observer)
        heard = hear(recorder, Finished(run.files, facts), keep_rows=True)
        row = Row(
            planned.name,
            planned.group,
            planned.job.framework,
            planned.job.log_every,
            tuple(replace(t, causes=()) for t in run.truth),
            hours_of(run),
            sum(map(len, run.files.values())),
            replay=said(heard, live=False),
        )
        points = series(heard.rows, [run.arrivals[path] for path in run.files])
        row.points = len(points.steps)
        row.rivals = {name: rival(points) for name, rival in RIVALS.items()}
        sampled = index % self.wanted.sample == 0
        if self.wanted.live:
            # Half of the observers may ask the scheduler; a suspension nobody tells of cannot be told from a hang.
            tell = index % 2 == 0 or planned.group == "healthy-suspended"
            watched = hear(Recalled(recorder), Watched(run, facts, tell=tell))
            row.live = said(watched, live=True)
            row.changes = [change(e) for e in watched.changes]
            row.mute = mute(run)
            row.parted = not tell and any(LAST_WORDS.encode() in data for data in run.files.values())
            row.same = differs(heard, watched, told=tell, files=len(run.files))
            if sampled:
                scanned = hear(self.observer, Watched(run, facts, tell=tell))
                same = (scanned.changes, scanned.judged) == (watched.changes, watched.judged)
                row.cut = "" if same else "scanned anew at every poll: differ; "
        if sampled:
            for block, batch in CUTS:
                again = hear(self.observer, Finished(run.files, facts, block), batch=batch)
                row.cut = (row.cut or "") + ("" if again.judged == heard.judged else f"blocks of {block}: differ; ")
        return row


def hours_of(run: Rendered) -> float:
    """Hours in which the run trained."""
    last = run.truth[-1]
    until = last.onset_s if last.trouble == "hung" and last.onset_s is not None else run.ended_s
    return until / 3600.0


def said(ear: Ear, *, live: bool) -> list[Said]:
    """The judged attempts in short."""
    assert ear.judged is not None, "a job that ended is judged"
    out = []
    for a in ear.judged.attempts:
        rank, node = (a.suspect.rank, a.suspect.node) if a.suspect else (None, None)
        stretches = tuple(stretch(e, live=live) for e in a.episodes)
        out.append(Said(a.verdict, a.klass, a.cause.signal.rule if a.cause else None, rank, node, stretches))
    return out


def stretch(e: Any, *, live: bool) -> Stretch:
    arrival = live and e.clock == "arrival"
    return Stretch(
        e.kind,
        e.phase,
        e.onset_step,
        e.end_step,
        e.declared_us is not None,
        seconds(e.onset_us) if arrival else None,
        seconds(e.declared_us) if arrival and e.declared_us is not None else None,
        e.limit_s,
        e.depth,
        e.scope,
        tuple(e.ranks),
        e.ended_us is None,
    )


def change(e: Any) -> Change:
    shown = stretch(e.episode, live=True) if e.episode is not None else None
    return Change(seconds(e.at_us), e.attempt, e.was, e.health, e.because, shown)


JUDGED = ("verdict", "klass", "cause", "cascades", "notes", "evidence", "suspect")
"""What a judgment concludes, as against what it counted."""


def mute(run: Rendered) -> bool:
    """Whether a run that hung had printed no line of its own by then."""
    t = run.truth[-1]
    if t.trouble != "hung" or t.onset_s is None:
        return False
    for path, data in run.files.items():
        size = max((n for at, n in run.arrivals[path] if at <= t.onset_s), default=0)
        if any(line and not line.startswith(b"=== job ") for line in data[:size].splitlines()):
            return False
    return True


def differs(batch: Ear, live: Ear, *, told: bool, files: int) -> str:
    """Where the two judgments part. Streams open in another order and episodes are on clocks of their own; conclusions are compared where
    both know the same: only a live observer sees a last silence, hears the scheduler (told) or knows which of two files spoke first."""
    assert batch.judged is not None
    assert live.judged is not None
    if sorted(batch.judged.windows, key=str) != sorted(live.judged.windows, key=str):
        return "windows"
    if len(batch.judged.attempts) != len(live.judged.attempts):
        return f"{len(batch.judged.attempts)} attempts replayed, {len(live.judged.attempts)} live"
    knows_more = told or files > 1 or any(e.health == "hung" for e in live.changes)
    for a, b in zip(batch.judged.attempts, live.judged.attempts, strict=True):
        a, b = (replace(x, episodes=(), streams=tuple(sorted(x.streams))) for x in (a, b))
        names = [n for n in a.__slots__ if getattr(a, n) != getattr(b, n) and not (knows_more and n in JUDGED)]
        if names:
            return f"attempt {a.index}: {', '.join(names)}"
    return ""
