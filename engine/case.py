"""The traces of one attempt, with the questions the ordering of causes asks of them.

In: traces, settled (every kept signal has its place in time, rank and node as far as line and path tell). Out: answers; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from defib.engine.layout import Layout, layout_of
from defib.engine.rulebook import Rulebook
from defib.engine.trace import Trace, main_counter
from defib.engine.voices import BREADTH_US, CLAIMS, RANKS_MAX, Spread, Voices, host
from defib.engine.words import Signal

SKEW_US = 2_000_000  # clocks of nodes within this are taken as equal
BAND_LINES = 40  # interleaved writers: order within so many lines means nothing
NEAR_END_LINES = 120  # a log that stops so soon after trouble stopped because of it
LOOK_BACK_MARGIN_US = (
    300_000_000  # what stopped a collective may have happened so long before it began: buffers, a prefetcher that dies
)
LAST_WORDS_LINES = 3
CHANNELS = 2  # a job with more streams than .out and .err has one per rank or node
HARD = ("gpu", "node", "network", "storage")


@dataclass
class Case:
    """The traces of one attempt and what can be asked of them. errors: streams that hold standard error alone; outlived: up to where in each
    stream its lines are known to have arrived well before progress did (seen live)."""

    traces: Sequence[Trace]
    book: Rulebook
    errors: frozenset[int] = frozenset()
    notes: list[str] = field(default_factory=list)
    outlived: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def kept(self) -> list[Signal]:
        """Every signal the traces keep, stream by stream in order."""
        return [s for t in self.traces for s in t.kept]

    @cached_property
    def live(self) -> list[Signal]:
        """Those that no progress followed."""
        return [s for s in self.kept if not self.progressed_after(s)]

    @cached_property
    def demoted(self) -> list[Signal]:
        """Claims that progress followed: background."""
        return [s for s in self.kept if s.role in CLAIMS and self.progressed_after(s)]

    @cached_property
    def ends(self) -> list[Signal]:
        """Live signs that somebody ended badly, is being stopped, or waited in vain."""
        return [s for s in self.live if s.mark in ("exit", "teardown") or s.klass == "collective-timeout"]

    @cached_property
    def deaths(self) -> list[Signal]:
        """Of these, the ones that tell of a death or a wait, not of somebody's tidying up."""
        return [s for s in self.ends if s.mark == "exit" or s.klass == "collective-timeout"]

    @cached_property
    def survived_rules(self) -> frozenset[str]:
        return frozenset(s.rule for s in self.demoted)

    @cached_property
    def _by_stream(self) -> dict[int, list[Trace]]:
        out: dict[int, list[Trace]] = {}
        for t in self.traces:
            out.setdefault(t.stream, []).append(t)
        return out

    @cached_property
    def _latest(self) -> list[tuple[int, int]]:
        """(time of the last progress, stream), latest first: enough to ask whether any other stream moved on after a moment."""
        last = [(t.progress.time_us, t.stream) for t in self.traces if t.progress and t.progress.time_us is not None]
        return sorted(last, reverse=True)

    def trace_of(self, s: Signal) -> Trace:
        mine = self._by_stream[s.stream]
        return next((t for t in mine if t.begin_offset <= s.offset <= max(t.end_offset, s.offset)), mine[-1])

    def progressed_after(self, s: Signal) -> bool:
        """Training moved on after this line: in the same stream by place, in another one by time."""
        if any(t.survived(s) for t in self._by_stream.get(s.stream, ()) if t.progress is not None):
            return True
        if s.offset < self.outlived.get(s.stream, 0) and s.role != "lifecycle":
            return True
        # The scheduler's clock may be another zone's, and its word does not depend on another log's.
        if s.role == "lifecycle" or s.order_us is None:
            return False
        other = next((time for time, stream in self._latest if stream != s.stream), None)
        return other is not None and other > s.order_us + SKEW_US

    def precedes(self, a: Signal, b: Signal) -> bool | None:
        """a before b; None where nothing tells."""
        if a.stream == b.stream:
            return a.offset < b.offset
        if a.order_us is not None and b.order_us is not None:
            return a.order_us < b.order_us
        return None

    def count(self, rule: str) -> int:
        """How often a rule spoke in the attempt, kept or not."""
        return sum(t.counts.get(rule, 0) for t in self.traces)

    @cached_property
    def through(self) -> bool:
        """Training made the last step it had planned."""
        main = main_counter(list(self.traces))
        if main is None or main.format.kind != "train" or main.format.counts != "step" or main.total is None:
            return False
        return main.last_step >= main.total

    @cached_property
    def voices(self) -> Voices:
        """Who spoke, over all streams, with the ranks and nodes that the paths of the logs tell."""
        return chorus(self.traces)

    @cached_property
    def layout(self) -> Layout:
        """Which rank lives where."""
        return layout_of(self.voices)

    def rank_of(self, s: Signal) -> int | None:
        """Who printed a line: by its own words, or srun's number where that is the rank."""
        if s.rank is not None or not self.layout.task_is_rank:
            return s.rank
        task = s.fields.get("task", "")
        return int(task) if task.isdigit() else None


def key(s: Signal) -> tuple[int, int, int]:
    """A total order: time where known, then stream and place."""
    return (s.order_us if s.order_us is not None else 2**62, s.stream, s.offset)


def earliest(signals: Sequence[Signal]) -> Signal:
    """First in time; inside one stream place outranks stamps (late writers carry old ones)."""
    best = min(signals, key=key)
    return min((s for s in signals if s.stream == best.stream), key=lambda s: s.offset)


def stands_alone(s: Signal) -> bool:
    """An error that needs no bad exit beside it to be believed."""
    return s.role == "root" and not s.generic


def strength(s: Signal) -> int:
    """Kinds of evidence, strongest first; used only where order means nothing."""
    if s.role == "root" and s.domain in HARD:
        return 0
    if s.role == "root" and s.klass == "host-oom":
        return 1
    if not s.generic:
        return 2 if s.role == "root" else 3
    return 4


def in_band(first: Signal, s: Signal) -> bool:
    """So near to each other in one stream that order means nothing."""
    if abs(s.line - first.line) > BAND_LINES:
        return False
    return s.order_us is None or first.order_us is None or abs(s.order_us - first.order_us) <= SKEW_US


def began_us(s: Signal, looks_back: str | None) -> int | None:
    """When the collective of a timeout line began: its stamp less the printed time. None without a stamp or a number."""
    said = s.fields.get(looks_back or "", "")
    if s.order_us is None or not said.isdigit() or len(said) > 12:
        return None
    return s.order_us - int(said) * 1000


def chorus(traces: Sequence[Trace]) -> Voices:
    """The voices of several streams as one. Where a log belongs to a rank or node, whoever spoke without a name is that one."""
    out = Voices()
    for t in traces:
        _join_layout(out, t)
        _join_trouble(out, t)
    for t in traces:  # ranks of the largest communicator are the world's; of smaller ones they mean nothing
        if t.voices.world == out.world:
            for rank, node in t.voices.comm_homes.items():
                out.homes.setdefault(rank, node)
    return out


def _join_layout(out: Voices, t: Trace) -> None:
    v = t.voices
    out.known |= v.known | _bit(t)
    out.large |= v.large or (t.rank is not None and t.rank >= RANKS_MAX)
    out.world = max((w for w in (out.world, v.world) if w is not None), default=None)
    for rank, node in v.homes.items():
        out.homes.setdefault(rank, node)
    if t.rank is not None and t.node is not None:
        out.homes.setdefault(t.rank, host(t.node))
    for rank, task in v.task_of.items():
        out.task_of.setdefault(rank, task)
    for n, home in v.task_homes.items():
        out.task_homes[n] = home if out.task_homes.get(n, home) == home else None
    for address, node in v.addresses.items():
        out.addresses.setdefault(address, node)


def _join_trouble(out: Voices, t: Trace) -> None:
    v = t.voices
    for rank, code in v.exits.items():
        out.exits.setdefault(rank, code)
    for name, witnesses in v.accused.items():
        out.accused.setdefault(name, set()).update(witnesses)
    for rank, s in v.missing.items():
        out.missing.setdefault(rank, s)
    for group, told in v.far.items():
        out.far.setdefault(group, {}).update(told)
    for mine, theirs in ((out.waited, v.waited), (out.noticed, v.noticed)):
        mine.ranks |= theirs.ranks | (_bit(t) if theirs.nameless else 0)
        mine.nameless |= theirs.nameless and t.rank is None
    for name, spread in v.spreads.items():
        _join(out.spreads.setdefault(name, Spread()), spread, t)


def _join(into: Spread, more: Spread, t: Trace) -> None:
    if not (more.ranks or more.nameless):
        return
    if into.first_us is None:
        into.first_us = more.first_us
    elif more.first_us is not None and abs(more.first_us - into.first_us) > BREADTH_US:
        if more.first_us > into.first_us:
            return
        into.ranks, into.nodes, into.nameless, into.first_us = 0, set(), False, more.first_us
        into.tasks = set()
    into.ranks |= more.ranks | (_bit(t) if more.nameless else 0)
    into.nameless |= more.nameless and t.rank is None
    into.nodes |= more.nodes
    into.tasks |= more.tasks
    if t.node is not None:
        into.nodes.add(host(t.node))


def _bit(t: Trace) -> int:
    return 1 << t.rank if t.rank is not None and t.rank < RANKS_MAX else 0
