"""What one stream says, folded record by record into traces: one `Trace` per attempt the stream shows.

In: a stream's signals and progress rows in offset order, in any grouping. Out: traces of bounded size, the same
however the rows were grouped. Of every rule a trace keeps the first `KEEP` signals, the first `KEEP_LIVE` since progress was last
made, and a count; progress is kept as counters (one per format and total).

Where an attempt begins inside a stream: at a `restart` mark; at a `start` mark once the attempt before has ended; where a
framework's own step counter goes back (a mere bar only after an end or a launch was seen); where the scheduler speaks of another job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from defib.engine.counters import Counter
from defib.engine.pace import Pace, first_setback
from defib.engine.phases import Phases
from defib.engine.points import I64, NONE, Between, Point, ProgressRows
from defib.engine.policies import Detect
from defib.engine.rhythm import Habits
from defib.engine.rulebook import Format
from defib.engine.voices import Voices
from defib.engine.words import LIFECYCLE_MARKS, Signal

KEEP = 32
KEEP_LIVE = 8
TRAIL_MAX = 16  # steps that may still come after the scheduler ended a run: buffered output, a grace time
COUNTERS_MAX = 64  # later ones are not counted
TRACES_MAX = 2048  # attempts of one log: what a log says must not fill the memory
STRETCH_MAX, STRETCH_MIN = 4096, 32  # rows of progress folded at once
GLOBAL_PRIORITY = 50  # counters from here up count the run's own steps
ENDING_MARKS = frozenset((*LIFECYCLE_MARKS, "exit", "completed"))
BEGINNINGS = frozenset(("start", "restart"))
Key = tuple[str, int | None]


@dataclass(slots=True)
class Trace:
    """One attempt as one stream tells it. end_* are set when the next trace begins or the stream ends."""

    stream: int
    begin_offset: int
    begin_line: int
    end_offset: int = 0
    end_line: int = 0
    counters: dict[Key, Counter] = field(default_factory=dict)
    early: list[Signal] = field(default_factory=list)  # the first of every rule
    live: list[Signal] = field(default_factory=list)  # the first of every rule since progress was last made
    counts: dict[str, int] = field(default_factory=dict)
    live_counts: dict[str, int] = field(default_factory=dict)
    last_by_rule: dict[str, Signal] = field(default_factory=dict)
    progress: Point | None = None  # last time a training or evaluation counter advanced
    training: Point | None = None  # last time a training counter advanced
    ended: Signal | None = None  # a sign of the end not followed by progress
    forward: int = 0  # steps forward so far
    forward_at: dict[tuple[int, str], int] = field(
        default_factory=dict
    )  # the same, when an act of the scheduler was told
    pending: Signal | None = None  # a launch announced since the last progress
    trouble_line: int = 0  # last line of anything that is not a locator
    first_us: int | None = None
    last_us: int | None = None
    phases: Phases = field(default_factory=Phases)
    spoke: bool = False  # holds any signal or progress
    begun: bool = False  # launched, moved, or failed: more than the noise of a batch script
    lived: bool = False  # moved or failed: more than a launch
    crowded: bool = False  # the last one a log may have: later starts were not told apart
    voices: Voices = field(default_factory=Voices)  # which ranks and nodes spoke, beyond the signals kept
    rank: int | None = None  # whose log it is, where its path tells; set when the job is judged
    node: str | None = None

    @property
    def kept(self) -> list[Signal]:
        """Every signal kept, in order."""
        if not self.live:
            return self.early
        seen = {(s.offset, s.rule) for s in self.early}
        late = [s for s in self.live if (s.offset, s.rule) not in seen]
        return sorted([*self.early, *late], key=lambda s: s.offset) if late else self.early

    @property
    def setbacks(self) -> int:
        return sum(c.setbacks for c in self.counters.values() if counts_steps(c.format))

    def see_time(self, time_us: int | None) -> None:
        if time_us is not None:
            self.first_us = time_us if self.first_us is None else min(self.first_us, time_us)
            self.last_us = time_us if self.last_us is None else max(self.last_us, time_us)

    def keep(self, s: Signal) -> None:
        self.spoke = True
        self.see_time(s.time_us)
        n, live = self.counts.get(s.rule, 0), self.live_counts.get(s.rule, 0)
        self.counts[s.rule], self.live_counts[s.rule] = n + 1, live + 1
        if n < KEEP:
            self.early.append(s)
        if live < KEEP_LIVE:
            self.live.append(s)
        self.last_by_rule[s.rule] = s
        self.voices.hear(s)
        self.phases.told(s)
        self.lived |= s.role in ("root", "candidate") or s.mark in LIFECYCLE_MARKS
        self.begun |= self.lived or s.mark in BEGINNINGS
        if s.role != "locator":
            self.trouble_line = s.line
        if s.mark in LIFECYCLE_MARKS and s.role == "lifecycle":
            self.forward_at.setdefault((s.offset, s.rule), self.forward)
        if s.mark in ENDING_MARKS:
            self.ended = self.ended or s

    def survived(self, s: Signal) -> bool:
        """Training went on after this line. An act of the scheduler is survived only by more than its last words."""
        told = self.forward_at.get((s.offset, s.rule))
        if told is not None:
            return self.forward - told > TRAIL_MAX
        return self.progress is not None and self.progress.offset > s.offset

    def moved_on(self, point: Point, kind: str, steps: int) -> None:
        """A training or evaluation counter advanced: what came before is background, announcements are used up."""
        self.forward += steps
        if self.progress is None or point.offset > self.progress.offset:
            self.progress = point
        if kind == "train":
            if self.training is None or point.offset > self.training.offset:
                self.training = point
            self.phases.moved()
        if self.ended is not None and self.survived(self.ended):
            self.ended = None
        if self.pending is not None and self.pending.offset < point.offset:
            self.pending = None
        if self.live and self.live[-1].offset < point.offset:
            self.live, self.live_counts = [], {}
            self.voices.forget_trouble()

    def give_up_from(self, offset: int) -> list[Signal]:
        """Take out the signals from a place on (they belong to the next attempt) and set right what was told from them."""
        moved = [s for s in self.kept if s.offset >= offset]
        self.early = [s for s in self.early if s.offset < offset]
        self.live = [s for s in self.live if s.offset < offset]
        for s in moved:
            self.counts[s.rule] -= 1
            if self.counts[s.rule] <= 0:
                del self.counts[s.rule]
        left = self.kept
        self.last_by_rule = {s.rule: s for s in [*left, *(s for s in self.last_by_rule.values() if s.offset < offset)]}
        self.trouble_line = max((s.line for s in left if s.role != "locator"), default=0)
        times = [s.time_us for s in left if s.time_us is not None]
        times += [c.stamp[1] for c in self.counters.values() if c.stamp is not None]
        self.last_us = max(times, default=None)
        return moved


class StreamFold:
    """Folds one stream. `fold` in offset order, then `finish` once."""

    def __init__(self, stream: int, formats: dict[str, Format], detect: Detect, elder: Habits | None = None) -> None:
        self.stream = stream
        self.elder = elder or Habits()  # what the attempts before this one showed
        self._formats = formats
        self._detect = detect
        self._heads = {f.of for f in formats.values() if f.of is not None}
        self.frameworks: set[str] = set()
        self.traces = [Trace(stream, 0, 1)]

    @property
    def now(self) -> Trace:
        return self.traces[-1]

    def use(self, formats: dict[str, Format], detect: Detect) -> None:
        """Other rules from now on. What was counted by formats they no longer have stays counted."""
        kept = formats if self._formats.keys() <= formats.keys() else {**self._formats, **formats}
        self._formats, self._detect = kept, detect
        self._heads = {f.of for f in kept.values() if f.of is not None}

    def fold(self, signals: Sequence[Signal], progress: ProgressRows) -> None:
        """Signals and progress of the next stretch of the stream, each in offset order."""
        at = 0
        untils = np.searchsorted(
            progress.offset, np.array([s.offset for s in signals], np.int64), side="right"
        ).tolist()
        for s, until in zip(signals, untils, strict=True):
            self._progress(progress, at, until)
            at = max(at, until)
            self._signal(s)
        self._progress(progress, at, len(progress))

    def reached(self, offset: int, line: int) -> None:
        """How far the stream's whole records have been read, while it is live."""
        self.now.end_offset, self.now.end_line = max(self.now.end_offset, offset), max(self.now.end_line, line)

    def cut(self, offset: int, line: int) -> None:
        """The scheduler has started the job again: what stands from this place on is another attempt's, unless the log has said so itself."""
        t = self.now
        if t.spoke and t.begin_offset < offset and not self._full():
            reached = t.end_offset, t.end_line
            self._open(offset, line + 1)
            self.now.end_offset, self.now.end_line = reached

    def finish(self, end_offset: int, end_line: int) -> None:
        self.now.end_offset, self.now.end_line = end_offset, end_line

    def _signal(self, s: Signal) -> None:
        t = self.now
        if self._full():
            t.keep(s)
            return
        if (s.mark == "restart" and t.lived) or (s.mark == "start" and t.ended is not None and t.begun):
            t = self._open(s.offset, s.line)
        elif s.mark == "start" and t.progress is not None and t.pending is None:
            t.pending = s
        elif _other_job(t.ended, s):
            t = self._open_after(t.ended, s)
        t.keep(s)

    def _full(self) -> bool:
        self.now.crowded = len(self.traces) >= TRACES_MAX
        return self.now.crowded

    def _open_after(self, ended: Signal | None, s: Signal) -> Trace:
        """A scheduler line about another job: the attempt in between began with the first thing said after the old job's end."""
        later = [k for k in self.now.kept if ended is not None and k.offset > ended.offset]
        first = later[0] if later else s
        return self._open(first.offset, first.line)

    def _open(self, offset: int, line: int) -> Trace:
        """Begin the next attempt at a place; signals already kept from there on move over."""
        old = self.now
        old.end_offset, old.end_line = offset, line - 1
        new = Trace(self.stream, offset, line)
        for s in old.give_up_from(offset):
            new.keep(s)
        self.traces.append(new)
        self.elder = self.elder.with_(habits(old))
        return new

    def _progress(self, rows: ProgressRows, start: int, end: int) -> None:
        """In stretches that shrink where runs start over, since a stretch with a new start is read again from there."""
        width = STRETCH_MAX
        while start < end:
            runs = len(self.traces)
            start = self._stretch(rows, start, min(end, start + width))
            width = STRETCH_MIN if len(self.traces) > runs else min(2 * width, STRETCH_MAX)

    def _stretch(self, rows: ProgressRows, start: int, end: int) -> int:
        """Fold rows up to the first one that begins a new attempt; returns where to go on."""
        t = self.now
        groups = self._groups(rows, start, end)
        backs = (self._setback(t, key, rows, at) for key, at in groups.items())
        row = min((r for r in backs if r is not None), default=end)
        if start < row < end:
            return self._stretch(rows, start, row)
        if row == start:
            sign = t.pending
            self._open(sign.offset if sign else int(rows.offset[row]), sign.line if sign else int(rows.line[row]))
            return start
        self._values(t, groups, rows, self._count(t, groups, rows))
        return end

    def _groups(self, rows: ProgressRows, start: int, end: int) -> dict[Key, I64]:
        """Row numbers per counter, counters in order of first appearance. Only training counters are told apart by their total."""
        formats, totals = rows.format[start:end], rows.total[start:end].tolist()
        if formats.count(formats[0]) == len(formats) and totals.count(totals[0]) == len(totals):
            return {self._key(formats[0], totals[0]): np.arange(start, end)}
        groups: dict[Key, list[int]] = {}
        for i, (name, total) in enumerate(zip(formats, totals, strict=True), start):
            groups.setdefault(self._key(name, total), []).append(i)
        return {key: np.array(numbers, np.int64) for key, numbers in groups.items()}

    def _key(self, name: str, total: int) -> Key:
        return name, None if total == NONE or self._formats[name].kind != "train" else total

    def _setback(self, t: Trace, key: Key, rows: ProgressRows, at: I64) -> int | None:
        """The row with which a run starts over, by a counter of the run's own steps."""
        if self._full():
            return None
        fmt = self._formats[key[0]]
        if fmt.counts == "epoch" or fmt.kind != "train" or fmt.of is not None:
            return None
        announced = t.pending is not None or t.ended is not None
        if fmt.priority < GLOBAL_PRIORITY and not announced:
            return None  # a bar that starts over is the next bar, unless something said that the run did
        known = t.counters.get(key)
        if known is None and t.ended is not None and fmt.priority >= GLOBAL_PRIORITY:
            # The same format with another total: a run with another plan, if it begins below where the last one was.
            known = next((c for (name, _), c in reversed(t.counters.items()) if name == key[0]), None)
        counted = at[rows.step[at] != NONE]
        pace = known.pace if known is not None else Pace()
        index = first_setback(pace, rows.step[counted], rows.rank[counted], announced=announced)
        return int(counted[index]) if index is not None else None

    def _count(self, t: Trace, groups: dict[Key, I64], rows: ProgressRows) -> dict[str, list[tuple[int, Counter]]]:
        """Fold the rows that carry steps; returns, per format others hang values on, (offset, counter) of its rows in order."""
        heads: dict[str, list[tuple[int, Counter]]] = {}
        asked = {self._formats[name].of for name, _ in groups}
        for fmt_id in self._heads & asked:
            mine = [c for (name, _), c in t.counters.items() if name == fmt_id]
            if mine:
                heads[fmt_id] = [(-1, max(mine, key=lambda c: c.last_at))]
        evals = [at for (name, _), at in groups.items() if self._formats[name].kind == "eval"]
        evaluation = np.sort(rows.offset[np.concatenate(evals)]) if evals else np.empty(0, np.int64)
        between = Between(dict(t.phases.spoken), evaluation)
        for key, rows_of in groups.items():
            fmt = self._formats[key[0]]
            at = rows_of[rows.step[rows_of] != NONE]
            if fmt.of is not None or not len(at) or (key not in t.counters and len(t.counters) >= COUNTERS_MAX):
                continue
            counter = t.counters.get(key)
            if counter is None:
                counter = t.counters[key] = Counter(fmt, key[1], self._detect, self.elder)
            if fmt.kind != "train":
                total = int(rows.total[at[-1]])
                counter.total = None if total == NONE else total
            counter.values(rows, rows_of)
            before = counter.forward
            forward = counter.advance(rows, at, between)
            self._spoke(t, fmt, rows, at)
            if forward is not None and fmt.kind != "other":
                time = int(rows.time_us[forward])
                point = Point(int(rows.offset[forward]), int(rows.line[forward]), None if time == NONE else time)
                t.moved_on(point, fmt.kind, counter.forward - before)
            if fmt.id in asked:
                heads.setdefault(fmt.id, []).extend((int(rows.offset[i]), counter) for i in at)
        if len(evaluation):
            told = t.phases.touch if t.training is None or evaluation[-1] > t.training.offset else t.phases.speak
            told(int(evaluation[-1]), "evaluation")
        return heads

    def _values(
        self, t: Trace, groups: dict[Key, I64], rows: ProgressRows, heads: dict[str, list[tuple[int, Counter]]]
    ) -> None:
        """Value lines of multi-line blocks belong to the last step printed before them."""
        for key, at in groups.items():
            owner = self._formats[key[0]].of
            if owner is None or not heads.get(owner):
                continue
            told = sorted(heads[owner], key=lambda h: h[0])
            which = np.searchsorted([h[0] for h in told], rows.offset[at], side="right") - 1
            for k in np.unique(which[which >= 0]):
                mine = at[which == k]
                told[k][1].values(rows, mine)
                told[k][1].printed.add(rows.step_time_s[mine])
            t.spoke = True

    @staticmethod
    def _spoke(t: Trace, fmt: Format, rows: ProgressRows, at: I64) -> None:
        t.spoke = True
        t.lived |= fmt.kind != "other"
        t.begun |= t.lived
        known = rows.time_us[at][rows.time_us[at] != NONE]
        if len(known):
            t.see_time(int(known.min()))
            t.see_time(int(known.max()))


def main_counter(traces: Sequence[Trace]) -> Counter | None:
    """The counter that speaks for the run: training before the rest, native formats before bars, then the one that moved most.

    Where no training step was printed a bar of preparation or evaluation still tells how far the run came (its kind says so).
    """
    counters = [c for t in traces for c in t.counters.values() if c.format.of is None]
    for kinds in (("train",), ("eval", "other")):
        mine = [c for c in counters if c.format.kind in kinds]
        moving = [c for c in mine if c.advances > 1] or [c for c in mine if c.advances]
        if moving and kinds == ("train",):
            return max(moving, key=lambda c: (c.format.priority, c.advances, c.last_at))
        if moving:
            return max(moving, key=lambda c: c.last_at)
    return None


def habits(t: Trace) -> Habits:
    """What an attempt after this one may take over: its gaps, pauses and phases, and how long it took to the first step."""
    main = main_counter([t])
    if main is None or main.format.kind != "train":
        return Habits()
    own = main.rhythm.habits()
    began = main.rhythm.first_us
    if began is None or t.first_us is None or began <= t.first_us:
        return own
    return own.with_(Habits(phases={"startup": (began - t.first_us) / 1e6}))


def counts_steps(fmt: Format) -> bool:
    """Formats whose numbers are the run's own steps."""
    return fmt.counts != "epoch" and fmt.priority >= GLOBAL_PRIORITY


def _other_job(ended: Signal | None, s: Signal) -> bool:
    """Both lines are the scheduler's and name different jobs."""
    if ended is None or ended.role != "lifecycle" or s.role != "lifecycle":
        return False
    a, b = ended.fields.get("job_id"), s.fields.get("job_id")
    return a is not None and b is not None and a != b
