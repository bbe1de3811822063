"""One followed path of a source: what its follower tells becomes items of the port.

In: what a poll of the follower gave. Out: items. Always holds: a generation's stream number is used once; what was odd is said when it closes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from defib.adapters.show import printable
from defib.adapters.tail.body import Begin, End, Told, Trouble
from defib.adapters.tail.follower import Follower
from defib.adapters.tail.reading import Bytes, Gap, Hole
from defib.engine.ports import Closed, Data, Looked, Opened, Skipped, SourceItem
from defib.engine.words import StreamFacts, StreamId

NOTES_MAX = 20


@dataclass(slots=True)
class Track:
    """numbers: its generations' streams; notes: what is to be said when they close; named: the scheduler says whose it is, its path would not;
    over_us: since when a limit keeps it from being read to its end; limit: what was told of that."""

    path: bytes
    facts: StreamFacts
    follower: Follower
    due_us: int
    owner: int | None = None
    look_us: int = 0
    polled_us: int = 0
    grown_us: int = 0
    end: bool = False
    over_us: int | None = None
    named: bool = False
    limit: str = ""
    numbers: dict[int, int] = field(default_factory=dict)
    notes: dict[int, list[str]] = field(default_factory=dict)

    def take(self, told: Told, items: list[SourceItem], new: Callable[[], int]) -> None:
        """One thing the follower told. new: gives a stream number."""
        number = self.numbers.get(told.generation, -1)
        match told:
            case Begin(generation, offset, line, size):
                number = self.numbers[generation] = new()
                name = StreamId(printable(os.fsdecode(self.path)), generation)
                items.append(Opened(number, name, self.facts, size, offset, line))
            case Bytes(_, data):
                items.append(Data(number, data, len(data)))
            case Hole(_, offset, length):
                items.append(Skipped(number, length))
                self._note(told.generation, f"{length} NUL bytes at byte {offset}: a hole")
            case Gap(_, offset, note):
                self._note(told.generation, f"{note} (byte {offset})")
            case Trouble(_, text):
                items.append(Looked(number, text))
                self.limit = ""
            case End(generation, note, _):
                notes = self.notes.pop(generation, [])
                text = "; ".join(
                    [*notes[:NOTES_MAX], *(["and more"] if len(notes) > NOTES_MAX else []), *([note] if note else [])]
                )
                items.append(Closed(number, text or None))
                del self.numbers[generation]

    def withhold(self, why: str, items: list[SourceItem]) -> None:
        """A limit keeps it from being read: told of its newest stream, once."""
        if self.limit != why and self.numbers:
            self.limit = why
            items.append(Looked(self.numbers[max(self.numbers)], why))

    def _note(self, generation: int, note: str) -> None:
        notes = self.notes.setdefault(generation, [])
        if len(notes) <= NOTES_MAX:
            notes.append(note)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The beginning of a last line without its end, quiet for a while: to be shown as provisional. It is not counted anywhere; the engine sees
    the line when it ends or its stream closes."""

    stream: int
    offset: int
    line: int
    text: bytes


def unfinished(track: Track, now_us: int, quiet_us: int) -> list[Unfinished]:
    """The last lines of a path that have been waiting for their end."""
    return [
        Unfinished(track.numbers[s.generation], s.record_at, s.line, s.partial)
        for body in track.follower.bodies
        if (s := body.state).partial and now_us - body.quiet_since_us >= quiet_us and s.generation in track.numbers
    ]
