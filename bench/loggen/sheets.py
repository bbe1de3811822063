"""From events to files: which file, which prefix, which byte.

In: events in true order. Out: the bytes of each file, the places of the cause lines.
Always: places are taken while writing, so they are right whatever was glued to what.
"""

from collections import defaultdict
from random import Random

from loggen.model import Cause, Event, Job


class Sheet:
    """One file being written; knows how many line feeds it holds."""

    __slots__ = ("data", "held", "lines", "start", "writer")

    def __init__(self) -> None:
        self.data = bytearray()
        self.lines = 0
        self.start = 0
        self.held = False
        self.writer = ""

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


class Sheets:
    """All files of one job."""

    def __init__(self, job: Job, rng: Random) -> None:
        self.job, self.rng = job, rng
        self.sheets: defaultdict[str, Sheet] = defaultdict(Sheet)
        self.width = len(str(job.tasks - 1))
        self.torn = 0.0 if job.labels else 0.04 * job.interleave  # srun -l puts lines together itself

    def path_of(self, event: Event) -> str:
        job = self.job
        main = f"{job.name}-{job.job_id}.out"
        if job.layout == "per-rank" and event.rank is not None:
            return f"{job.job_id}/rank_{event.rank}.log"
        if job.layout == "per-node" and event.stream != "batch":
            return f"{job.job_id}/node_{event.host}.log"
        if job.layout == "out-err" and event.stream not in ("out", "host"):
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

    def write(self, event: Event) -> tuple[str, Cause | None]:
        """Put one event where it belongs; the cause line's place if it is one."""
        path = self.path_of(event)
        sheet = self.sheets[path]
        plain = event.step is None and not event.cause and event.end == "\n"
        if not plain or sheet.writer == event.writer:
            sheet.flush()
        sheet.writer = event.writer
        hold = plain and self.torn > 0 and self.rng.random() < self.torn
        text = self.dressed(event, sheet.start == len(sheet.data))
        line, offset, at = sheet.put(text, event.end, hold)
        return path, Cause(path, line, offset, at, event.text.strip("\r")) if event.cause else None

    def files(self) -> dict[str, bytes]:
        for sheet in self.sheets.values():
            sheet.flush()
        return {path: bytes(sheet.data) for path, sheet in sorted(self.sheets.items())}
