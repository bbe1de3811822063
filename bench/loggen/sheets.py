"""From events to files: which file, which prefix, which byte, and when it arrived.

In: events in true order. Out: the bytes of each file, the places of the cause lines, the time of every write.
Always: places are taken while writing, so they are right whatever was glued to what. What a killed process
still held in its buffer never gets here.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from loggen.model import Cause, Event, Job


class Placed(NamedTuple):
    """An event that reached its file."""

    event: Event
    path: str
    cause: Cause | None


class Sheet:
    """One file being written; knows how many line feeds it holds."""

    __slots__ = ("arrivals", "data", "held", "lines", "start", "writer")

    def __init__(self) -> None:
        self.data = bytearray()
        self.lines = 0
        self.start = 0
        self.held = False
        self.writer = ""
        self.arrivals: list[tuple[float, int]] = []

    def feed(self, count: int = 1) -> None:
        self.data += b"\n" * count
        self.lines += count
        self.start = len(self.data)

    def flush(self) -> None:
        if self.held:
            self.held = False
            self.feed()

    def put(self, text: str, end: str, hold: bool) -> tuple[int, int, int]:
        """Append; with `hold` the line feed comes after the next writer's line. Returns line, offset, at."""
        place = (self.lines + 1, self.start, len(self.data) + text.startswith("\r"))
        self.data += text.encode()
        if end and self.held:
            self.held = False
            self.feed(2)
        elif end and hold:
            self.held = True
        elif end:
            self.feed()
        return place

    def raw(self, data: bytes) -> None:
        """Append a block as it is, wherever its lines begin and end."""
        self.flush()
        self.data += data
        feeds = data.count(b"\n")
        if feeds:
            self.lines += feeds
            self.start = len(self.data) - (len(data) - data.rindex(b"\n") - 1)

    def arrived(self, at: float) -> None:
        """Everything so far was there at `at`."""
        if self.arrivals and self.arrivals[-1][0] >= at:
            self.arrivals[-1] = (self.arrivals[-1][0], len(self.data))
        else:
            self.arrivals.append((at, len(self.data)))


@dataclass(slots=True)
class Buffer:
    """The stdout of a process that does not write to a terminal: it goes out in whole blocks."""

    path: str
    data: bytearray = field(default_factory=bytearray)
    waiting: list[tuple[Event, int, int]] = field(default_factory=list)
    """Events with their first byte and the byte behind them; negative: gone out before."""

    def add(self, event: Event, text: str) -> None:
        first = len(self.data)
        self.data += (text + event.end).encode()
        self.waiting.append((event, first, len(self.data)))

    def drain(self, sheet: Sheet, size: int) -> list[Placed]:
        """Move `size` bytes to the file; the events that are now in it to their last byte."""
        lines, offset, base = sheet.lines, sheet.start, len(sheet.data) + sheet.held
        if sheet.held:
            lines, offset = lines + 1, base
        block = bytes(self.data[:size])
        del self.data[:size]
        sheet.raw(block)
        done = [entry for entry in self.waiting if entry[2] <= size]
        self.waiting = [(event, first - size, end - size) for event, first, end in self.waiting[len(done) :]]
        out = []
        for event, first, _ in done:
            cause = None
            if event.cause and first >= 0:  # a torn line is not one that can be named
                feed = block.rfind(b"\n", 0, first)
                line = lines + block.count(b"\n", 0, first) + 1
                cause = Cause(self.path, line, base + feed + 1 if feed >= 0 else offset, base + first, event.text)
            out.append(Placed(event, self.path, cause))
        return out


class Sheets:
    """All files of one job."""

    def __init__(self, job: Job, rng: Random) -> None:
        self.job, self.rng = job, rng
        self.sheets: defaultdict[str, Sheet] = defaultdict(Sheet)
        self.buffers: dict[str, Buffer] = {}
        self.width = len(str(job.tasks - 1))
        self.torn = 0.0 if job.labels else 0.04 * job.interleave  # srun -l puts lines together itself

    def path_of(self, event: Event) -> str:
        job = self.job
        main = f"{job.name}-{job.job_id}.out"
        if job.layout == "per-rank" and event.rank is not None:
            return f"{job.job_id}/rank_{event.rank}.log"
        if job.layout == "per-node" and event.stream != "batch":
            return f"{job.job_id}/node_{event.host}.log"
        if job.layout == "out-err" and event.stream not in ("out", "nccl", "host"):
            return f"{job.name}-{job.job_id}.err"
        return main

    def dressed(self, event: Event, fresh: bool) -> str:
        """The text with the prefixes its way to the file puts before it."""
        job, text = self.job, event.text
        if job.rank_tags and event.rank is not None and event.stream in ("trace", "glog"):
            text = f"[rank{event.rank}]:{' ' if event.stream == 'trace' else ''}{text}"
        if not job.labels or event.stream in ("batch", "host") or job.layout == "per-rank":
            return text
        if text.startswith("\r") and not fresh:
            return text
        task = event.node if event.rank is None else job.task_of(event.rank)
        return f"{task:>{self.width}}: {text}"

    def write(self, event: Event) -> list[Placed]:
        """Put one event where it belongs; what reached its file by that, in order."""
        if event.stream == "flush":
            return self.flush(event)
        path = self.path_of(event)
        if self.job.habits.buffer and event.stream == "out":
            return self.buffered(event, path)
        sheet = self.sheets[path]
        plain = event.step is None and not event.cause and event.end == "\n"
        if not plain or sheet.writer == event.writer:
            sheet.flush()
        sheet.writer = event.writer
        hold = plain and self.torn > 0 and self.rng.random() < self.torn
        text = self.dressed(event, sheet.start == len(sheet.data))
        line, offset, at = sheet.put(text, event.end, hold)
        sheet.arrived(event.at)
        cause = Cause(path, line, offset, at, event.text.strip("\r")) if event.cause else None
        return [Placed(event, path, cause)]

    def buffered(self, event: Event, path: str) -> list[Placed]:
        """Into the process's buffer; whole blocks go on to the file."""
        buffer = self.buffers.setdefault(event.writer, Buffer(path))
        buffer.add(event, self.dressed(event, True))
        block = self.job.habits.buffer
        return self.drain(event.writer, len(buffer.data) // block * block, event.at)

    def drain(self, writer: str, size: int, at: float) -> list[Placed]:
        if not size:
            return []
        buffer = self.buffers[writer]
        sheet = self.sheets[buffer.path]
        sheet.writer = writer
        placed = buffer.drain(sheet, size)
        sheet.arrived(at)
        return placed

    def flush(self, event: Event) -> list[Placed]:
        """Processes that end well write out the rest."""
        writers = list(self.buffers) if event.rank is None else [event.writer]
        return [
            placed
            for writer in writers
            if writer in self.buffers
            for placed in self.drain(writer, len(self.buffers[writer].data), event.at)
        ]

    def lose(self) -> None:
        """The processes are gone, and what they held with them."""
        self.buffers.clear()

    def files(self) -> dict[str, bytes]:
        for sheet in self.sheets.values():
            sheet.flush()
            if sheet.arrivals:
                sheet.arrived(sheet.arrivals[-1][0])
        return {path: bytes(sheet.data) for path, sheet in sorted(self.sheets.items())}

    def arrivals(self) -> dict[str, list[tuple[float, int]]]:
        """Per path (seconds, size from then on); ask after `files`."""
        return {path: sheet.arrivals for path, sheet in sorted(self.sheets.items())}
