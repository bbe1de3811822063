"""The way back: from a journal to what the engine, the drive and the sources knew when it ended.

In: a journal's folder, the rules. Out: the engine's state, how far every open stream was taken in, every source's marks; every commit on the
way is handed on with its effects, so that what is derived from them can be made or made up. Always holds: the fold does what the live
loop did, event by event.

Where the oldest segments were deleted, events of streams that had ended by then are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from defib.adapters.board import Board
from defib.adapters.journal import snapshot
from defib.adapters.journal.codec import EVENTS, decode
from defib.adapters.journal.segments import chain_of, read
from defib.engine.core import (
    Effect,
    Event,
    JobEnded,
    Observed,
    State,
    StreamEnded,
    StreamLooked,
    StreamOpened,
    advance,
)
from defib.engine.observe import Observation
from defib.engine.ports import Marked, Reached
from defib.engine.rulebook import Rulebook
from defib.engine.words import StreamId

# (number, events, effects, the state after them, chain) of a commit
Take = Callable[[int, Sequence[Event], Sequence[Effect], State, bytes], None]


@dataclass(slots=True)
class Resumed:
    """What was known after record `seq`. chain: that record's; opened: the record in which each open job's first stream appeared, by
    stream."""

    state: State
    seq: int = 0
    chain: bytes = b""
    next_stream: int = 0
    reached: dict[int, Reached] = field(default_factory=dict)
    marks: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    opened: dict[int, int] = field(default_factory=dict)

    @property
    def streams(self) -> dict[StreamId, Reached]:
        """Streams that are still open, by their names."""
        return {s.id: self.reached.get(n, Reached(n, 0, 0, 1)) for n, s in self.state.streams.items() if s.end is None}

    def kept(self, source: str) -> dict[bytes, bytes]:
        """The marks of one source."""
        return {key: mark for (name, key), mark in self.marks.items() if name == source}

    def note(
        self, seq: int, chain: bytes, events: Sequence[Event], marks: Sequence[Marked], reached: Sequence[Reached]
    ) -> None:
        """Take over the places a commit tells of; its events have been folded already."""
        self.seq, self.chain = seq, chain
        for e in events:
            if isinstance(e, StreamOpened):
                self.next_stream = max(self.next_stream, e.stream + 1)
                self.opened[e.stream] = seq
            elif isinstance(e, StreamEnded):
                self.reached.pop(e.stream, None)
        if any(isinstance(e, JobEnded) for e in events):
            self.opened = {n: at for n, at in self.opened.items() if n in self.state.streams}
        for r in reached:
            self.reached[r.stream] = r
        for m in marks:
            if m.mark:
                self.marks[m.source, m.key] = m.mark
            else:
                self.marks.pop((m.source, m.key), None)


def resume(
    folder: str, book: Rulebook, journal: str, applied: int, seed: Callable[[Resumed, Board], None], take: Take
) -> Resumed:
    """Everything up to the journal's end. applied: no snapshot of a later record is used, nor one of a record that the journal holds no more
    (the end it stood in was lost, and its number was given again). seed: called first where a snapshot is used; take: every later commit.
    Raises DamageError, StoreError."""
    r = Resumed(State(book))
    while (found := snapshot.load(folder, applied, book, journal)) is not None:
        kept, board = found[1]
        if chain_of(folder, kept.seq) == kept.chain:
            r = kept
            seed(r, board)
            break
        applied = found[0] - 1
    fold(folder, r, take)
    return r


def fold(folder: str, r: Resumed, take: Take) -> None:
    """Go on with what the journal holds after r.seq. Raises DamageError, StoreError; r then stands at the last whole commit."""
    for record in read(folder, r.seq):
        if record.kind != EVENTS:
            continue
        commit = decode(record.payload)
        events: list[Event] = []
        effects: list[Effect] = []
        for e in commit.events:
            if (known := _known(r.state, e)) is not None:
                events.append(known)
                effects += advance(r.state, known)
        r.note(record.seq, record.chain, events, commit.marks, commit.reached)
        take(record.seq, events, effects, r.state, record.chain)


def marks_of(r: Resumed) -> list[Marked]:
    """Every mark, to be written again before the records that hold them are deleted."""
    return [Marked(source, key, mark) for (source, key), mark in r.marks.items()]


def _known(state: State, e: Event) -> Event | None:
    """The event without streams whose beginning is no longer in the journal."""
    match e:
        case StreamEnded(stream) | StreamLooked(stream):
            return e if stream in state.streams else None
        case Observed(seen, grown):
            told = {*grown, *seen.frameworks, *_streams(seen.signals), *_streams(seen.progress)}
            if told <= state.streams.keys():
                return e
            mine = told & state.streams.keys()
            frameworks = {n: f for n, f in seen.frameworks.items() if n in mine}
            signals, progress = _of(seen.signals, mine), _of(seen.progress, mine)
            return replace(
                e,
                observation=Observation(signals, progress, frameworks),
                grown={n: g for n, g in grown.items() if n in mine},
            )
        case _:
            return e


def _streams(table: pa.Table) -> list[int]:
    return pc.unique(table.column("stream")).to_pylist() if table.num_rows else []


def _of(table: pa.Table, streams: set[int]) -> pa.Table:
    return table.filter(pc.is_in(table.column("stream"), pa.array(sorted(streams), pa.uint32())))
