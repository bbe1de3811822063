"""Answers against the truth: questions, counts, delays, and every miss by the name of its run.

In: rows. Out: a `Board`. Always: what cannot be known from the logs is not asked, and "unknown" is right where the truth is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from accuracy import wilson
from detecting.ask import Change, Row, Said, Stretch
from loggen.model import Truth

BANDS = ((0.03, 0.05), (0.05, 0.10), (0.10, 0.20), (0.20, 0.35), (0.35, 0.61))
STAMPED = frozenset({"megatron-lm", "torchtitan", "fairseq"})
"""Frameworks whose progress lines carry a stamp: a replay sees how long a silence was."""
LATE_S = 1800.0
"""A slowdown that has passed may be told of so much later."""
IDLE_S = 60.0
ENDED = frozenset({"crashed", "stalled", "dead", "cancelled", "preempted", "time-limit"})


@dataclass(slots=True)
class Tally:
    """right of asked, and what went wrong by name."""

    right: int = 0
    asked: int = 0
    misses: list[str] = field(default_factory=list)

    def add(self, ok: bool, name: str, why: object) -> None:
        self.asked += 1
        self.right += ok
        if not ok:
            self.misses.append(f"{name}: {why}")

    def as_json(self) -> dict[str, Any]:
        low, high = wilson(self.right, self.asked)
        return {"right": self.right, "asked": self.asked, "low": low, "high": high, "misses": self.misses}


@dataclass(slots=True)
class Board:
    """Questions by name in the order they were first asked; measured values by name."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    hours: dict[str, float] = field(default_factory=dict)
    alarms: dict[str, list[str]] = field(default_factory=dict)
    """False alarms by who raised them, on what kind of run."""

    def ask(self, question: str, ok: bool, name: str, why: object) -> None:
        self.tallies.setdefault(question, Tally()).add(ok, name, why)

    def measure(self, what: str, value: float) -> None:
        self.values.setdefault(what, []).append(value)

    def alarm(self, who: str, name: str, why: str) -> None:
        self.alarms.setdefault(who, []).append(f"{name}: {why}")


def score(rows: Iterable[Row]) -> Board:
    board = Board()
    for row in rows:
        kind = "healthy" if row.group.startswith("healthy") else "troubled"
        board.hours[kind] = board.hours.get(kind, 0.0) + row.hours
        for mode, answers in (("live", row.live), ("replay", row.replay)):
            if answers is not None:
                asked = Asked(board, row, mode, answers)
                asked.attempts()
                asked.slow()
                asked.false_alarms()
        if row.live is not None:
            for t in row.truth:
                hang_live(board, row, t)
            crash_live(board, row, row.truth[-1])
        rivals(board, row)
        if row.same is not None:
            board.ask("live = replay", not row.same, row.name, row.same)
        if row.cut is not None:
            board.ask("any cut = whole", not row.cut, row.name, row.cut)
    return board


@dataclass(slots=True)
class Asked:
    """The questions about one run in one mode."""

    board: Board
    row: Row
    mode: str
    answers: list[Said]

    def pairs(self) -> Iterator[tuple[Truth, Said]]:
        return zip(self.row.truth, self.answers, strict=False)

    def attempts(self) -> None:
        row, board, mode = self.row, self.board, self.mode
        n, told = len(row.truth), len(self.answers)
        board.ask(f"{mode} attempts counted", n == told, row.name, f"{told} said, {n} true")
        for t, a in self.pairs():
            wanted = self.verdicts(t)
            family = "healthy" if t.trouble is None else t.trouble
            name = f"{row.name} #{t.attempt}"
            board.ask(
                f"{mode} verdict, {family}",
                a.verdict in wanted,
                name,
                f"{a.verdict} by {a.rule}, not {'|'.join(sorted(wanted))}",
            )
            asked = t.trouble == "crash" or (t.trouble == "hung" and t.phase != "ending")
            if asked and (mode == "live" or t.klass != "hang"):
                board.ask(
                    f"{mode} class, {family}",
                    a.klass == t.klass or (t.trouble == "hung" and a.klass == "hang"),
                    name,
                    f"{a.klass} by {a.rule}, not {t.klass}",
                )
            if t.trouble is not None:
                self.culprit(t, a, name)
            if mode == "replay":
                hang_replayed(board, row, t, a)

    def verdicts(self, t: Truth) -> set[str]:
        """What is right: of a hang that somebody ended, either half; of one that is still silent, what the observer could see.

        A run that hangs after its last step has completed its work; nanoGPT says nothing when it ends well.
        """
        if t.trouble != "hung":
            return (
                {t.verdict, "running-at-end"} if t.verdict == "completed" and t.framework == "nanogpt" else {t.verdict}
            )
        right = {t.verdict, "stalled"} | ({"completed"} if t.phase == "ending" else set())
        silent = t.fault == "hang-silent" and t.verdict == "stalled" and self.mode == "replay"
        return right | ({"running-at-end"} if silent else set())

    def culprit(self, t: Truth, a: Said, name: str) -> None:
        """The rank or node behind it; a straggler shows in the ranks of its episode."""
        slow = [e for e in a.stretches if e.kind == "slow" and e.called]
        rank, node = a.rank, a.node
        if t.trouble == "slow":
            some = next((e.ranks for e in slow if e.scope == "some"), ())
            rank, node = (some[0] if len(some) == 1 else None), None
            if t.culprit_rank is not None and not slow:
                return  # not seen at all: that is another question
        said = f"rank {rank} node {node}, not rank {t.culprit_rank} node {t.culprit_node}"
        family = "straggler" if t.trouble == "slow" else t.trouble
        if t.culprit_node is None:
            self.board.ask(f"{self.mode} unknown kept, {family}", rank is None and node is None, name, said)
            return
        right = (rank == t.culprit_rank and rank is not None) or (rank is None and node == t.culprit_node)
        wrong = not right and (rank is not None or node is not None)
        self.board.ask(f"{self.mode} culprit named, {family}", right, name, said)
        self.board.ask(f"{self.mode} culprit never another, {family}", not wrong, name, said)

    def slow(self) -> None:
        for t in self.row.truth:
            if t.trouble != "slow":
                continue
            found, delay, depth = self.found(t)
            band = next(f"{100 * low:.0f}-{100 * high:.0f} %" for low, high in BANDS if low <= (t.depth or 0.0) < high)
            self.board.ask(f"{self.mode} slow seen, {band}", found, self.row.name, "not seen")
            if t.passed_s is not None:
                self.board.ask(f"{self.mode} slow seen, passing", found, self.row.name, "not seen")
            if delay is not None:
                self.board.measure(f"{self.mode} slow delay s, {band}", delay)
            if depth is not None and t.depth is not None:
                self.board.measure(f"{self.mode} slow depth off by, {band}", abs(depth - t.depth))

    def found(self, t: Truth) -> tuple[bool, float | None, float | None]:
        """Whether the slowdown was called, how late (live), and with what depth."""
        said = self.answers[t.attempt].stretches if t.attempt < len(self.answers) else ()
        match = next(
            (e for e in said if e.kind == "slow" and e.called and spans(e.step, e.until, t, self.row.log_every)), None
        )
        if self.mode == "replay":
            return match is not None, None, match.depth if match else None
        until = (t.passed_s if t.passed_s is not None else 1e12) + LATE_S
        called = [
            c.at_s
            for c in self.row.changes
            if c.health == "slow" and c.attempt == t.attempt and (t.onset_s or 0.0) <= c.at_s <= until
        ]
        return bool(called), min(called) - (t.onset_s or 0.0) if called else None, match.depth if match else None

    def false_alarms(self) -> None:
        row, board, mode = self.row, self.board, self.mode
        healthy = row.group.startswith("healthy")
        if mode == "live":
            wrong = [c for c in row.changes if wrongly(c, row)]
            false = {
                kind: [f"{c.health} after {c.at_s:.0f} s: {c.because}" for c in wrong if c.health == kind]
                for kind in ("slow", "hung", "dead")
            }
        else:
            false = {kind: self.false_stretches(kind) for kind in ("slow", "hung")}
            false["dead"] = [f"verdict {a.verdict} by {a.rule}" for a in self.answers if healthy and a.verdict in ENDED]
        for why in false["slow"]:
            board.alarm(f"{mode} slow, {'healthy' if healthy else 'troubled'}", row.name, why)
        if healthy:
            bad = [*false["hung"], *false["dead"]]
            board.ask(f"{mode} healthy never hung or dead", not bad, row.name, "; ".join(bad))
        else:
            bad = false["hung"]
            board.ask(f"{mode} never hung too early", not bad, row.name, "; ".join(bad))

    def false_stretches(self, kind: str) -> list[str]:
        """Called in the replay and not true. Of a suspension a log says nothing: only the scheduler could tell it from a hang."""
        if kind == "hung" and self.row.group == "healthy-suspended":
            return []
        return [
            f"{kind} from step {e.step}"
            for t, a in self.pairs()
            for e in a.stretches
            if false_stretch(e, kind, t, self.row)
        ]


def spans(step: int | None, until: int | None, t: Truth, log_every: int) -> bool:
    """Whether a stretch of steps touches the slowdown."""
    slack = 20 + 3 * log_every
    if step is None or t.onset_step is None:
        return False
    last = t.passed_step if t.passed_step is not None else t.planned_steps
    return (
        step <= last + slack and (until is None or until >= t.onset_step - slack) and step >= t.onset_step - slack - 40
    )


def false_stretch(e: Stretch, kind: str, t: Truth, row: Row) -> bool:
    """A stretch that was called and is none."""
    if e.kind != kind or not e.called:
        return False
    if kind == "slow":
        return t.trouble != "slow" or not spans(e.step, e.until, t, row.log_every)
    early = e.step is not None and t.onset_step is not None and e.step < t.onset_step - 2 * row.log_every
    return t.trouble != "hung" or early


def wrongly(c: Change, row: Row) -> bool:
    """A change of health that the truth does not know."""
    if c.health not in ("slow", "hung", "dead") or c.attempt >= len(row.truth):
        return c.health in ("slow", "hung", "dead")
    t = row.truth[c.attempt]
    wanted = {"slow": ("slow",), "hung": ("hung",), "dead": ("hung", "crash")}[c.health]
    until = (t.passed_s if t.passed_s is not None else 1e12) + LATE_S
    return t.trouble not in wanted or not (t.onset_s or 0.0) <= c.at_s <= until


def hang_live(board: Board, row: Row, t: Truth) -> None:
    """How soon a hang was told of while it lasted, and whether within its own limit."""
    if t.trouble != "hung" or t.onset_s is None:
        return
    mine = [c for c in row.changes if c.attempt == t.attempt and c.at_s >= (t.onset_s or 0.0)]
    hung = next((c for c in mine if c.health == "hung"), None)
    if t.fault == "nccl-timeout":
        told = next((c for c in mine if c.health in ("hung", "dead")), None)
        board.ask("live watchdog hang told", told is not None, row.name, "never told")
        if told is not None:
            board.measure("live watchdog delay s", told.at_s - t.onset_s)
        return
    if row.mute:
        # Nothing tells this from a program that logs elsewhere: what can be known is that nothing can be seen.
        blind = any(c.health in ("blind", "hung") for c in mine)
        board.ask(
            "live told blind, nothing printed before the hang", blind, row.name, f"only {[c.health for c in mine]}"
        )
        return
    if row.parted:
        over = any(c.health in ("ended", "hung") for c in mine)
        board.ask(
            "live told ended, its last words said and no scheduler asked",
            over,
            row.name,
            f"only {[c.health for c in mine]}",
        )
        return
    board.ask(f"live hang seen, {t.phase}", hung is not None, row.name, f"only {[c.health for c in mine]}")
    if hung is None:
        return
    board.measure(f"live hang delay s, {t.phase}", hung.at_s - t.onset_s)
    e = hung.stretch
    if e is not None and e.limit_s is not None and e.onset_s is not None:
        late = hung.at_s - e.onset_s - e.limit_s
        board.ask(
            "live hang within limit + one poll",
            late <= IDLE_S,
            row.name,
            f"{late:.0f} s after its limit of {e.limit_s:.0f} s",
        )


def crash_live(board: Board, row: Row, t: Truth) -> None:
    """How soon a death is told of that nothing followed."""
    if t.trouble != "crash" or t.verdict != "crashed" or t.onset_s is None:
        return
    dead = next(
        (c for c in row.changes if c.attempt == t.attempt and c.health == "dead" and c.at_s >= (t.onset_s or 0.0)), None
    )
    board.ask("live crash told", dead is not None, row.name, "never told")
    if dead is not None:
        board.measure("live crash delay s", dead.at_s - t.onset_s)


def hang_replayed(board: Board, row: Row, t: Truth, a: Said) -> None:
    """A silence that something with a stamp ended shows in a replay too."""
    if t.trouble == "hung" and t.fault == "hang-silent" and t.verdict != "stalled" and row.framework in STAMPED:
        found = any(e.kind == "hung" and e.called for e in a.stretches)
        board.ask(f"replay hang seen, {t.phase}", found, row.name, "not seen")


def rivals(board: Board, row: Row) -> None:
    """The other methods on the same series: seen, delay, false alarms."""
    t = row.truth[0]
    for who, alarms in row.rivals.items():
        mine = [a for a in alarms if t.trouble == "slow" and spans(a.step, a.until, t, row.log_every)]
        kind = "healthy" if row.group.startswith("healthy") else "troubled"
        for a in alarms:
            if a not in mine:
                board.alarm(f"{who} slow, {kind}", row.name, f"slow from step {a.step}")
        if t.trouble == "slow":
            band = next(f"{100 * low:.0f}-{100 * high:.0f} %" for low, high in BANDS if low <= (t.depth or 0.0) < high)
            board.ask(f"{who} slow seen, {band}", bool(mine), row.name, "not seen")
            if mine and t.onset_s is not None:
                board.measure(f"{who} slow delay s, {band}", max(0.0, min(a.called_s for a in mine) - t.onset_s))
