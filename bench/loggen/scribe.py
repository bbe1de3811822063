"""The pen all writers share: turns "rank 3 prints this now" into events.

In: a job, a random source, the simulated time. Out: a growing list of `Event`.
Always: printed times are the writing node's clock (skew included); the order of events is true time, and
what one process writes stays in the order it was written in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random

from loggen.model import Event, Job, Stream

TORCH = "/opt/env/lib/python3.11/site-packages/torch"
Frame = tuple[str, int, str, str]


@dataclass(slots=True)
class Scribe:
    """Writes for every rank, node agent and the scheduler of one attempt."""

    job: Job
    rng: Random
    hosts: tuple[str, ...]
    now: float = 0.0
    attempt: int = 0
    events: list[Event] = field(default_factory=list)
    last: dict[str, float] = field(default_factory=dict)

    def clock(self, node: int = 0, after: float = 0.0) -> datetime:
        """The time node `node` would print `after` seconds from now."""
        at = self.now + after
        shown = at + self.job.skew[node] if self.job.skew else at
        for since, jump in self.job.habits.clock_steps:
            if at >= since:
                shown += jump
        return self.job.start + timedelta(seconds=shown)

    def stamp(self, node: int = 0, after: float = 0.0) -> str:
        """As Slurm prints it: 2026-11-30T21:04:05."""
        return self.clock(node, after).isoformat(timespec="seconds")

    def pid(self, rank: int) -> int:
        return 214_000 + 977 * self.attempt + 131 * self.job.node_of(rank) + self.job.local(rank)

    def agent_pid(self, node: int) -> int:
        return self.pid(node * self.job.gpus_per_node) - 40

    def put(
        self,
        stream: Stream,
        text: str,
        *,
        rank: int | None = None,
        node: int = 0,
        after: float = 0.0,
        end: str = "\n",
        step: int | None = None,
        cause: bool = False,
    ) -> None:
        """One write; a rank's node follows from the rank."""
        node = self.job.node_of(rank) if rank is not None else node
        event = Event(self.now + after, text, self.hosts[node], node, rank, stream, end, step, cause)
        if event.at < (before := self.last.get(event.writer, 0.0)):
            event = replace(event, at=before)
        self.last[event.writer] = event.at
        self.events.append(event)

    def flush(self, rank: int | None = None) -> None:
        """Processes that end well (or this one) write out what their stdout still holds."""
        if self.job.habits.buffer:
            self.put("flush", "", rank=rank, end="")

    def break_off(self, since: int, at: float) -> None:
        """Go back to `at`: of the events from index `since` on, those after it never happened."""
        self.events[since:] = [event for event in self.events[since:] if event.at <= at]
        self.last = {writer: min(last, at) for writer, last in self.last.items()}
        self.now = at

    def out(self, rank: int, text: str, *, after: float = 0.0, step: int | None = None, cause: bool = False) -> None:
        self.put("out", text, rank=rank, after=after, step=step, cause=cause)

    def err(self, rank: int, text: str, *, after: float = 0.0, cause: bool = False) -> None:
        self.put("err", text, rank=rank, after=after, cause=cause)

    def glog(self, rank: int, level: str, source: str, text: str, *, after: float = 0.0, cause: bool = False) -> None:
        """A C++ log line of torch: [E1130 21:04:05.123456789 ProcessGroupNCCL.cpp:632] …"""
        when = self.clock(self.job.node_of(rank), after)
        nanos = self.rng.randrange(1000)
        head = f"[{level}{when:%m%d %H:%M:%S}.{when.microsecond:06d}{nanos:03d} {source}]"
        self.put("glog", f"{head} {text}", rank=rank, after=after, cause=cause)

    def agent(self, node: int, level: str, source: str, text: str, *, after: float = 0.0) -> None:
        """A log line of a node's torchrun: W1130 21:04:05.123000 4711 torch/distributed/….py:900] …"""
        when = self.clock(node, after)
        head = f"{level}{when:%m%d %H:%M:%S}.{when.microsecond // 1000:03d}000 {self.agent_pid(node)}"
        self.put("agent", f"{head} torch/distributed/{source}] {text}", node=node, after=after)

    def batch(self, text: str, *, node: int = 0, after: float = 0.0, cause: bool = False) -> None:
        self.put("batch", text, node=node, after=after, cause=cause)

    def kernel(self, node: int, text: str, *, after: float = 0.0, cause: bool = False) -> None:
        """A kernel line as rsyslog forwards it, with the host's name."""
        when = self.clock(node, after).isoformat(timespec="microseconds")
        self.put("host", f"{when}+00:00 {self.hosts[node]} kernel: {text}", node=node, after=after, cause=cause)

    def block(
        self,
        rank: int,
        lines: Sequence[str],
        *,
        stream: Stream = "trace",
        after: float = 0.0,
        cause: int = -1,
    ) -> None:
        """Several lines of one writer; with `interleave` they spread so that others come between."""
        gap = 0.02 * self.job.interleave
        for i, text in enumerate(lines):
            self.put(stream, text, rank=rank, after=after, cause=i == cause)
            after += gap * self.rng.random()

    def traceback(
        self,
        rank: int,
        frames: Sequence[Frame],
        error: str,
        *,
        tail: Sequence[str] = (),
        after: float = 0.0,
        cause: bool = False,
    ) -> None:
        """A Python traceback; `error` is the line that names the exception, `tail` what it prints below."""
        lines = ["Traceback (most recent call last):"]
        for path, number, function, code in frames:
            lines += [f'  File "{path}", line {number}, in {function}', f"    {code}"]
        self.block(rank, [*lines, error, *tail], after=after, cause=len(lines) if cause else -1)
