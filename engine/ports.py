"""What the engine asks of the world. Adapters implement these; tests pass lists and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from defib.engine.words import JobKey, JobState, StreamFacts, StreamId


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream appears. size: bytes on disk (compressed size for packed files); for showing progress only.

    offset, line: where in the file its first bytes stand, where reading was taken up again or only the end of a file has changed.
    """

    stream: int
    id: StreamId
    facts: StreamFacts
    size: int
    offset: int = 0
    line: int = 1


@dataclass(frozen=True, slots=True)
class Data:
    """The next bytes of a stream. read: bytes of the file behind them (fewer than len(data) for packed files)."""

    stream: int
    data: bytes
    read: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """The next `length` bytes of a stream are NULs nobody wrote (a hole); they count in offsets but are not handed over."""

    stream: int
    length: int


@dataclass(frozen=True, slots=True)
class Closed:
    """A stream ends. note: why it ended early (truncated archive, unreadable, binary), else None."""

    stream: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class JobClosed:
    """No further stream of this job will come."""

    job: JobKey


@dataclass(frozen=True, slots=True)
class Looked:
    """A live stream was looked at. trouble: why nobody can vouch for what it holds now (unreadable, vanished, stale), else None."""

    stream: int
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class JobTold:
    """What a scheduler says of a job now."""

    job: JobKey
    state: JobState
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Ticked:
    """A live source's clock, microseconds, never going back: everything handed over since the tick before has arrived by now."""

    at_us: int


@dataclass(frozen=True, slots=True)
class Marked:
    """How far a source has read one thing, in words of its own: kept together with what was derived from the items before it, and handed
    back when the source is made again. source: which reader; key: of what; mark: b"" forgets it."""

    source: str
    key: bytes
    mark: bytes


@dataclass(frozen=True, slots=True)
class Reached:
    """How far one open stream has been taken in, so that reading can be taken up again there.

    read: bytes read; offset, line: where the unfinished record begins; giants: records so far that were shortened; tail: the last whole
    records as raw bytes (they end at offset).
    """

    stream: int
    read: int
    offset: int
    line: int
    giants: int = 0
    tail: bytes = b""


SourceItem = Opened | Data | Skipped | Closed | JobClosed | Looked | JobTold | Marked | Ticked


class Source(Protocol):
    """Where bytes come from. `poll` never blocks for long: [] means nothing yet, None means nothing ever again.

    A live source ends every poll with a tick; a source of finished logs never ticks.
    """

    def poll(self) -> list[SourceItem] | None: ...

    def close(self) -> None: ...


class Log(Protocol):
    """What makes events last. Called once per poll, after its events were taken in and before any of their effects is carried out: when it
    returns, events, marks and how far streams were taken in are on disk together. May wait long (a full disk): nothing is read meanwhile.
    """

    def commit(self, events: Sequence[object], marks: Sequence[Marked], reached: Sequence[Reached]) -> None: ...


class Sink(Protocol):
    """Where effects go, in order. Rows of a job become durable together when its last effect has been carried out."""

    def apply(self, effects: list[object]) -> None: ...
