"""The loop: a source's items -> batches -> observations -> `core.advance` -> a sink.

Replay, live watch and tests all run this; they differ in the source and the sink they pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from defib.engine.blocks import Batch, LineCutter, clean
from defib.engine.core import (
    Event,
    JobEnded,
    JobSeen,
    Observed,
    State,
    StreamEnded,
    StreamLooked,
    StreamOpened,
    Tick,
    advance,
    check,
)  # fmt: skip
from defib.engine.observe import NOTHING, Observer
from defib.engine.ports import (
    Closed,
    Data,
    JobClosed,
    JobTold,
    Looked,
    Marked,
    Opened,
    Sink,
    Skipped,
    Source,
    SourceItem,
    Ticked,
)

BATCH_BYTES = 4 * 1024 * 1024
TAIL_BYTES = 4096
TAIL_LINES = 5


@dataclass(slots=True)
class Reader:
    """A stream being cut: its cutter and the last bytes seen."""

    cutter: LineCutter
    tail: bytes = b""
    read: int = 0

    def end(self, stream: int, note: str | None) -> StreamEnded:
        lines = [t for raw in clean(self.tail).split(b"\n") if (t := raw.decode("utf-8", "replace").strip())]
        notes = [note] if note else []
        if self.cutter.giants:
            notes.append(f"{self.cutter.giants} line(s) over 128 KiB seen as head and tail only")
        return StreamEnded(
            stream,
            self.read,
            self.cutter.lines,
            tuple(lines[-TAIL_LINES:]),
            tuple(notes),
        )


@dataclass(slots=True)
class Drive:
    """Holds the loop's own state; `run` until the source is done."""

    observer: Observer
    state: State
    sink: Sink
    batch_bytes: int = BATCH_BYTES
    on_read: Callable[[int, int], None] = lambda stream, read: None
    verify: bool = False  # check invariants after every event (tests)
    _readers: dict[int, Reader] = field(default_factory=dict)
    _batch: Batch = field(default_factory=Batch)
    _grown: set[int] = field(default_factory=set)  # streams with new bytes since the last batch
    _after: list[Event] = field(default_factory=list)  # events that wait for the batch before them

    def run(self, source: Source) -> None:
        while (items := source.poll()) is not None:
            for item in items:
                self._take(item)
        self._flush()

    def _take(self, item: SourceItem) -> None:
        match item:
            case Opened():
                self._readers[item.stream] = Reader(LineCutter(item.stream, item.offset, item.line), read=item.offset)
                self._advance(StreamOpened(item.stream, item.id, item.facts))
            case Data():
                reader = self._readers[item.stream]
                reader.read += len(item.data)
                self._grown.add(item.stream)
                reader.tail = (reader.tail + item.data[-TAIL_BYTES:])[-TAIL_BYTES:]
                for piece in reader.cutter.feed(item.data):
                    self._batch.add(piece)
                self.on_read(item.stream, item.read)
            case Skipped():
                reader = self._readers[item.stream]
                reader.read += item.length
                self._grown.add(item.stream)
                reader.cutter.skip(item.length)
            case Closed():
                reader = self._readers.pop(item.stream)
                for piece in reader.cutter.finish():
                    self._batch.add(piece)
                self._after.append(reader.end(item.stream, item.note))
            case JobClosed():
                self._after.append(JobEnded(item.job))
            case Looked():
                self._after.append(StreamLooked(item.stream, item.trouble))
            case JobTold():
                self._after.append(JobSeen(item.job, item.state, item.name))
            case Marked():
                pass  # nothing is kept here that could be taken up again
            case Ticked():
                self._after.append(Tick(item.at_us))
                self._flush()
        if self._batch.size >= self.batch_bytes or len(self._after) > 1000:
            self._flush()

    def _flush(self) -> None:
        batch, self._batch = self._batch, Batch()
        grown = {
            n: (r.read, r.cutter.offset, r.cutter.lines)
            for n in sorted(self._grown)
            if (r := self._readers.get(n)) is not None
        }
        self._grown.clear()
        if batch.size or grown:
            self._advance(Observed(self.observer.observe(batch) if batch.size else NOTHING, grown))
        after, self._after = self._after, []
        for event in after:
            if isinstance(event, StreamEnded):
                self.observer.forget(event.stream)
            self._advance(event)

    def _advance(self, event: Event) -> None:
        effects = advance(self.state, event)
        if self.verify:
            check(self.state)
        if effects:
            self.sink.apply(list(effects))
