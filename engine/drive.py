"""The loop: a source's items -> batches -> observations -> `core.advance` -> a sink.

Replay, live watch and tests all run this; they differ in the source and the sink they pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

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
from defib.engine.observe import NOTHING, Observes
from defib.engine.ports import (
    Closed,
    Data,
    JobClosed,
    JobTold,
    Log,
    Looked,
    Marked,
    Opened,
    Reached,
    Sink,
    Skipped,
    Source,
    SourceItem,
    Ticked,
)
from defib.engine.quota import Quota
from defib.engine.words import JobKey, StreamId

BATCH_BYTES = 4 * 1024 * 1024
TAIL_BYTES = 4096
TAIL_LINES = 5


@dataclass(slots=True)
class Reader:
    """A stream being cut: its cutter and the last bytes seen."""

    cutter: LineCutter
    tail: bytes = b""
    read: int = 0

    def reached(self, stream: int) -> Reached:
        """To go on from here later: up to the last whole record, with the last lines before it that `end` would tell."""
        cutter = self.cutter
        whole = self.tail[: max(self.tail.rfind(b"\n"), self.tail.rfind(b"\r")) + 1]
        return Reached(stream, self.read, cutter.offset, cutter.line, cutter.giants, _last_lines(whole))

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


def _last_lines(raw: bytes) -> bytes:
    """The end of whole records that holds the last lines with anything in them."""
    at, told = len(raw), 0
    while at > 0 and told < TAIL_LINES:
        start = max(raw.rfind(b"\n", 0, at - 1), raw.rfind(b"\r", 0, at - 1)) + 1
        told += bool(clean(raw[start:at]).decode("utf-8", "replace").strip())
        at = start
    return raw[at:]


@dataclass(slots=True)
class Drive:
    """Holds the loop's own state; `run` until the source is done."""

    observer: Observes
    state: State
    sink: Sink
    batch_bytes: int = BATCH_BYTES
    on_read: Callable[[int, int], None] = lambda stream, read: None
    verify: bool = False  # check invariants after every event (tests)
    log: Log | None = None  # makes what a poll brought last before its effects go out
    resumed: dict[StreamId, Reached] = field(
        default_factory=dict
    )  # streams that were open when the events so far were kept
    quota: Quota | None = None
    next_stream: int = 0  # with a log, streams have numbers of their own: a source counts from 0 each time it is made
    _numbers: dict[int, int] = field(default_factory=dict)  # the source's number -> the engine's
    _events: list[Event] = field(default_factory=list)  # taken in, not yet on disk
    _marks: list[Marked] = field(default_factory=list)
    _effects: list[object] = field(default_factory=list)
    _touched: set[int] = field(default_factory=set)  # streams whose place has changed since the last commit
    _readers: dict[int, Reader] = field(default_factory=dict)
    _batch: Batch = field(default_factory=Batch)
    _grown: set[int] = field(default_factory=set)  # streams with new bytes since the last batch
    _after: list[Event] = field(default_factory=list)  # events that wait for the batch before them

    def run(self, source: Source) -> None:
        while (items := source.poll()) is not None:
            for item in items:
                self._take(item if self.log is None else self._renumbered(item))
            if self.log is not None:
                self._flush()
                self._commit(self.log)
        self._flush()

    def _take(self, item: SourceItem) -> None:
        match item:
            case Opened():
                self._open(item)
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
                self._end_all_left(item.job)
                self._after.append(JobEnded(item.job))
            case Looked():
                self._after.append(StreamLooked(item.stream, item.trouble))
            case JobTold():
                self._after.append(JobSeen(item.job, item.state, item.name))
            case Marked():
                if self.log is not None:
                    self._marks.append(item)
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
        self._touched |= self._grown
        self._grown.clear()
        if batch.size or grown:
            seen = self.observer.observe(batch) if batch.size else NOTHING
            self._advance(Observed(seen if self.quota is None else self.quota.trim(seen), grown))
        after, self._after = self._after, []
        for event in after:
            if isinstance(event, StreamEnded):
                self.observer.forget(event.stream)
                if self.quota is not None:
                    event = replace(event, notes=(*event.notes, *self.quota.notes(event.stream)))
            elif isinstance(event, JobEnded) and self.quota is not None:
                self.quota.forget(event.job)
            self._advance(event)

    def _advance(self, event: Event) -> None:
        effects = advance(self.state, event)
        if self.verify:
            check(self.state)
        if self.log is not None:
            self._events.append(event)
            self._effects += effects
        elif effects:
            self.sink.apply(list(effects))

    # with a log

    def _renumbered(self, item: SourceItem) -> SourceItem:
        """The item with the engine's number of its stream, which no stream has had before but one that is taken up again."""
        if isinstance(item, Opened):
            kept = self.resumed.get(item.id)
            if kept is not None and self.state.streams[kept.stream].facts.job != item.facts.job:
                self._give_up(item.id)
                kept = None
            number = self._numbers[item.stream] = kept.stream if kept is not None else self.next_stream
            self.next_stream = max(self.next_stream, number + 1)
            return replace(item, stream=number)
        if isinstance(item, Closed):
            return replace(item, stream=self._numbers.pop(item.stream))
        if isinstance(item, Data | Skipped | Looked):
            return replace(item, stream=self._numbers[item.stream])
        return item

    def _open(self, item: Opened) -> None:
        kept = self.resumed.pop(item.id, None)
        if kept is not None:
            cutter = LineCutter.taken_up(item.stream, item.offset, item.line, kept.giants, kept.tail)
            self._readers[item.stream] = Reader(cutter, kept.tail, item.offset)
            return
        self._touched.add(item.stream)
        self._readers[item.stream] = Reader(LineCutter(item.stream, item.offset, item.line), read=item.offset)
        self._advance(StreamOpened(item.stream, item.id, item.facts))

    def _give_up(self, name: StreamId) -> None:
        """The path stands for another job now (other rules, another word for the cluster): the stream ends, and its job with its last one."""
        job = self.state.streams[self.resumed[name].stream].facts.job
        self._end_left(name)
        left = {r.stream for r in self.resumed.values()} | self._readers.keys()
        if not left & set(self.state.jobs[job]):
            self._after.append(JobEnded(job))

    def _end_all_left(self, job: JobKey) -> None:
        for name in [n for n, r in self.resumed.items() if self.state.streams[r.stream].facts.job == job]:
            self._end_left(name)

    def _end_left(self, name: StreamId) -> None:
        """A stream that was open before and that no source takes up again ends where it was."""
        r = self.resumed.pop(name)
        lines = LineCutter.taken_up(r.stream, r.offset, r.line, r.giants, r.tail)
        self._after.append(Reader(lines, r.tail, r.offset).end(r.stream, "not found again when reading went on"))

    def _commit(self, log: Log) -> None:
        """What this poll brought goes to disk as one; only then its effects go out."""
        if self.quota is not None:
            self._marks += self.quota.marks()
        reached = [r.reached(n) for n in sorted(self._touched) if (r := self._readers.get(n)) is not None]
        if not self._events and not self._marks:
            return
        log.commit(self._events, self._marks, reached)
        self._events, self._marks = [], []
        self._touched.clear()
        effects, self._effects = self._effects, []
        self.sink.apply(effects)
