"""A share of a back-fill, read and judged in a process of its own.

In: jobs of an archive, numbered in the whole of it. Out: a part file. Always holds: the parts of all shares, applied in order, are what one
process would have come to; a share that is read again gives the same part.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from defib.adapters import rulefiles
from defib.adapters.archive import Archive, JobLogs
from defib.adapters.parts import Done, PartWriter, Share
from defib.engine.core import State
from defib.engine.drive import Drive
from defib.engine.observe import Observer

TASK_MIN, TASK_MAX = 16 << 20, 256 << 20  # bytes of logs in one task, where jobs allow
TASKS_EACH = 8  # tasks per process: the last ones to end should not wait long for each other


@dataclass(frozen=True, slots=True)
class Task:
    """Jobs in a row, to be read by whoever is free. out: the part to write."""

    index: int
    jobs: tuple[JobLogs, ...]
    share: Share
    out: str
    rules: tuple[Path, ...] = ()
    block_bytes: int = 1 << 20
    batch_bytes: int = 4 << 20
    size: int = field(default=0, compare=False)


def digest(archive: Archive) -> str:
    """Of the list of all logs and their sizes: parts of one replay must agree on it."""
    text = "\0".join(f"{f.shown}\0{f.size}" for f in archive.files)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def split(jobs: list[JobLogs], shares: int) -> list[tuple[JobLogs, ...]]:
    """Jobs in a row, in so many shares of about equal bytes; some may be empty. A job is never cut."""
    total = sum(j.size for j in jobs) or 1
    out: list[list[JobLogs]] = [[] for _ in range(shares)]
    before = 0
    for j in jobs:
        middle = before + j.size / 2
        out[min(shares - 1, int(middle * shares / total))].append(j)
        before += j.size
    return [tuple(share) for share in out]


def tasks(jobs: list[JobLogs], processes: int) -> list[tuple[JobLogs, ...]]:
    """Jobs in a row, in enough shares to keep the processes busy to the end."""
    total = sum(j.size for j in jobs)
    size = min(TASK_MAX, max(TASK_MIN, total // (TASKS_EACH * processes)))
    return [share for share in split(jobs, max(1, -(-total // size))) if share]


_ready: dict[tuple[Path, ...], tuple[Any, Observer]] = {}  # of this process: rules are loaded once, not once a task


def run(task: Task) -> Done:
    """Read the task's jobs and write its part. A pure function of the logs and the rules."""
    if task.rules not in _ready:
        loaded = rulefiles.load(list(task.rules))
        _ready[task.rules] = loaded.book, Observer(loaded.book, loaded.databases, rulefiles.kernel())
    book, observer = _ready[task.rules]
    source = Archive([], book.paths, block_bytes=task.block_bytes, chosen=task.jobs)
    read = 0

    def count(_stream: int, n: int) -> None:
        nonlocal read
        read += n

    with open(task.out, "wb") as f:
        sink = PartWriter(f, task.share)
        Drive(observer, State(book), sink, task.batch_bytes, count).run(source)
        done = Done(sum(len(j.members) for j in task.jobs), read, tuple(source.unread))
        sink.end(done)
    return done
