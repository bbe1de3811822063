"""The streams of several readers as one: numbers that are used once, and a reader that begins again goes on where its streams were.

In: items of readers with numbers of their own. Out: the same items with numbers of the whole. Always holds: bytes that a reader hands over
again after it was started anew are left out, so every byte comes once; a job is closed when the last reader has closed it; nothing comes
of a stream after its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from defib.engine.ports import Closed, Data, JobClosed, Looked, Marked, Opened, Skipped, SourceItem
from defib.engine.words import JobKey, StreamId

AGAIN = "the reader began again behind what was read of this log"


@dataclass(slots=True)
class Stream:
    """at: where the next byte handed over stands in the file; drop: so many come for the second time; trouble: as the reader told it."""

    number: int
    id: StreamId
    job: JobKey
    at: int
    drop: int = 0
    trouble: str | None = None


@dataclass(slots=True)
class Lane:
    """What is open of one reader. numbers: the reader's own -> streams; buried: jobs that were closed while it could not be asked."""

    numbers: dict[int, Stream] = field(default_factory=dict)
    open: dict[StreamId, Stream] = field(default_factory=dict)
    buried: set[JobKey] = field(default_factory=set)

    @property
    def troubled(self) -> int:
        return sum(s.trouble is not None for s in self.open.values())


@dataclass(slots=True)
class Streams:
    """Of all readers. bytes_read: of their files."""

    bytes_read: int = 0
    _next: int = 0
    _jobs: dict[JobKey, set[int]] = field(default_factory=dict)

    def take(self, lane: Lane, item: SourceItem, out: list[SourceItem]) -> None:
        """One item of a reader."""
        match item:
            case Opened():
                self._opened(lane, item, out)
            case Data() | Skipped() | Looked() | Closed():
                stream = lane.numbers.get(item.stream)
                if stream is not None:
                    self._of(lane, stream, item, out)
            case JobClosed(job):
                lane.buried.discard(job)
                self._job_closed(job, out)
            case Marked():
                out.append(item)

    def reads(self, job: JobKey) -> bool:
        return bool(self._jobs.get(job))

    def restarted(self, lane: Lane) -> None:
        """The reader will begin with numbers of its own again."""
        lane.numbers.clear()

    def trouble(self, lane: Lane, why: str, out: list[SourceItem]) -> None:
        """Nobody can vouch for any stream of this reader. Each of its own looks ends that."""
        out += [Looked(s.number, why) for s in lane.open.values()]

    def end_job(self, lane: Lane, job: JobKey, note: str, out: list[SourceItem]) -> None:
        """The job is over, and what this reader has of it cannot be read."""
        for number, stream in list(lane.numbers.items()):
            if stream.job == job:
                del lane.numbers[number]
        mine = [s for s in lane.open.values() if s.job == job]
        for stream in mine:
            self._end(lane, stream, note, out)
        if mine:
            lane.buried.add(job)
            self._job_closed(job, out)

    def end(self, lane: Lane, note: str, out: list[SourceItem]) -> None:
        """Nothing more will come of this reader."""
        for job in {s.job: None for s in lane.open.values()}:
            self.end_job(lane, job, note, out)

    def _opened(self, lane: Lane, item: Opened, out: list[SourceItem]) -> None:
        if item.facts.job in lane.buried:
            return
        known = lane.open.get(item.id)
        if known is not None and known.job == item.facts.job and item.offset <= known.at:
            known.drop = known.at - item.offset
            lane.numbers[item.stream] = known
            return
        if known is not None:
            self._end(lane, known, AGAIN, out)
        stream = Stream(self._next, item.id, item.facts.job, item.offset)
        self._next += 1
        lane.numbers[item.stream] = lane.open[item.id] = stream
        self._jobs.setdefault(stream.job, set()).add(stream.number)
        out.append(replace(item, stream=stream.number))

    def _of(self, lane: Lane, stream: Stream, item: SourceItem, out: list[SourceItem]) -> None:
        match item:
            case Data(_, data, read):
                again = min(stream.drop, len(data))
                stream.drop -= again
                stream.at += len(data) - again
                self.bytes_read += read - again
                if len(data) > again:
                    out.append(Data(stream.number, data[again:], read - again))
            case Skipped(_, length):
                again = min(stream.drop, length)
                stream.drop -= again
                stream.at += length - again
                if length > again:
                    out.append(Skipped(stream.number, length - again))
            case Looked(_, trouble):
                stream.trouble = trouble
                out.append(Looked(stream.number, trouble))
            case Closed(number, note):
                del lane.numbers[number]
                self._end(lane, stream, note, out)

    def _end(self, lane: Lane, stream: Stream, note: str | None, out: list[SourceItem]) -> None:
        if lane.open.get(stream.id) is stream:
            del lane.open[stream.id]
        self._jobs[stream.job].discard(stream.number)
        out.append(Closed(stream.number, note))

    def _job_closed(self, job: JobKey, out: list[SourceItem]) -> None:
        """Held back while another reader still has logs of it open."""
        if job in self._jobs and not self._jobs[job]:
            del self._jobs[job]
            out.append(JobClosed(job))
