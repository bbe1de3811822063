"""What tells a lagging printer of one counter from a run that starts over."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from defib.engine.points import I64, NONE

RANKS_MAX = 4096  # of which the last step is remembered
SETTLED = 8  # advances after which a counter that never repeated a step is known to have one printer


@dataclass(slots=True)
class Pace:
    """What tells a lagging printer from a run that starts over; advanced row by row."""

    first: int = NONE
    last: int = NONE
    interval: int = 1  # steps between the last two advances
    advances: int = 0
    repeats: int = 0  # rows that said a step again
    by_rank: dict[int, int] = field(default_factory=dict)  # last step of every rank that names itself
    shared: bool = False  # several printers go by one number: every node has its own 0

    def starts_over(self, step: int, rank: int, *, announced: bool) -> bool:
        """Whether this step begins a new run. announced: an end or a launch was seen since the last progress."""
        last = self.by_rank.get(rank) if rank != NONE else self.last
        if last is None or last == NONE or step >= last:
            return False
        if announced or (rank != NONE and not self.shared):
            return step < last
        if self.repeats or self.advances < SETTLED:
            # Several ranks print this counter, or may: some lag by a line or two; a run that starts over falls further back.
            return step < last - 2 * self.interval and (self.advances >= SETTLED or step <= self.first)
        return True

    def take(self, step: int, rank: int) -> None:
        if self.first == NONE:
            self.first = step
        self.shared |= rank != NONE and self.by_rank.get(rank) == step
        if step == self.last:
            self.repeats += 1
        else:
            self.advances += 1
            if self.last != NONE and step > self.last:
                self.interval = step - self.last
            self.last = step
        if rank != NONE and (rank in self.by_rank or len(self.by_rank) < RANKS_MAX):
            self.by_rank[rank] = step

    def take_all(self, steps: I64, ranks: I64) -> None:
        """The same as `take` row by row; rows of one printer, the usual case, at once."""
        rank = int(ranks[0])
        if len(steps) == 1 or not bool(np.all(ranks == rank)):
            for step, r in zip(steps.tolist(), ranks.tolist(), strict=True):
                self.take(step, r)
            return
        self.take(int(steps[0]), rank)
        apart = np.diff(steps)
        moved = int(np.count_nonzero(apart))
        self.advances += moved
        self.repeats += len(apart) - moved
        # A step before the first one ever is NONE, and no row printed that.
        ahead = ((apart > 0) & (steps[:-1] != NONE)).nonzero()[0]
        if len(ahead):
            self.interval = int(apart[ahead[-1]])
        self.last = int(steps[-1])
        if rank in self.by_rank:
            self.shared |= moved < len(apart)
            self.by_rank[rank] = self.last

    def copy(self) -> Pace:
        return Pace(self.first, self.last, self.interval, self.advances, self.repeats, dict(self.by_rank), self.shared)


def first_setback(pace: Pace, steps: I64, ranks: I64, *, announced: bool) -> int | None:
    """Index of the first step that begins a new run after `pace`. A series that only grows is the usual case and costs two comparisons."""
    if not len(steps):
        return None
    grows = bool(np.all(steps[1:] >= steps[:-1])) and (pace.last == NONE or steps[0] >= pace.last)
    if grows and (not pace.by_rank or bool(np.all(ranks == ranks[0]))):
        named = pace.by_rank.get(int(ranks[0]), NONE) if len(ranks) else NONE
        if named == NONE or steps[0] >= named:
            return None
    walk = pace.copy()
    for i, (step, rank) in enumerate(zip(steps.tolist(), ranks.tolist(), strict=True)):
        if walk.starts_over(step, rank, announced=announced):
            return i
        if step > walk.last:
            announced = False  # progress took the announcement away
        walk.take(step, rank)
    return None
