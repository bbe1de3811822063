"""A back-fill over many processes, here or on a cluster: tasks out, parts back, applied in order.

In: tasks (`shards`) and where to run them: `local:N` for processes of this machine, `dask://HOST:PORT` for a Dask cluster whose workers see the
same paths and have defib installed. Out: effects, as one process would have given them. Always holds: parts that wait for an earlier one
are bounded in number and lie on disk, not in memory; a lost worker's task is done again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from defib.adapters import shards
from defib.adapters.parts import Done, Part
from defib.adapters.pool import POLL_S, RETRIES, Pool, WorkerLostError
from defib.adapters.shards import Task
from defib.engine.errors import ConfigError, DefibError, Problem

AHEAD = 4  # tasks per process that may be done before their turn
PROCESSES_MAX = 1024


class Sink(Protocol):
    """Where effects go, in order."""

    def apply(self, effects: list[object]) -> None: ...


@dataclass(frozen=True, slots=True)
class Where:
    """processes: of this machine, or tasks at a time on the cluster at `address`."""

    processes: int
    address: str | None = None


def where(text: str) -> Where:
    """`local:4`, `dask://host:8786`. Raises ConfigError."""
    kind, _, rest = text.partition(":")
    if kind == "local" and rest.isascii() and rest.isdigit() and 0 < int(rest) <= PROCESSES_MAX:
        return Where(int(rest))
    if text.startswith("dask://") and ":" in text[7:]:
        return Where(64, "tcp://" + text[7:])
    raise ConfigError([Problem("--scheduler", 1, 1, f"'{text}' names no scheduler", "local:N or dask://HOST:PORT")])


def folded(
    tasks: Sequence[Task], on: Where, sink: Sink, at_ease: Callable[[], None], read: Callable[[Done], None]
) -> None:
    """Run the tasks and apply their parts in order. at_ease: called while waiting; read: after each part."""
    turn = 0

    def ahead() -> int:
        return turn + AHEAD * on.processes

    with tempfile.TemporaryDirectory(prefix="defib-") as folder:
        todo = [replace(t, out=os.path.join(folder, f"{t.index}.part")) for t in tasks]
        done: set[int] = set()
        for index in _results(todo, on, at_ease, ahead):
            done.add(index)
            while turn in done:
                applied(Part(Path(todo[turn].out)), sink, at_ease, read)
                os.unlink(todo[turn].out)
                turn += 1


def applied(part: Part, sink: Sink, at_ease: Callable[[], None], read: Callable[[Done], None]) -> None:
    """One part's effects, in their order."""
    for effect in part.effects():
        sink.apply([effect])
        at_ease()
    read(part.done)


def _results(tasks: Sequence[Task], on: Where, at_ease: Callable[[], None], ahead: Callable[[], int]) -> Iterable[int]:
    if on.address is not None:
        return _cluster(tasks, on.address, at_ease, ahead)
    return _here(tasks, on.processes, at_ease, ahead)


def _here(
    tasks: Sequence[Task], processes: int, at_ease: Callable[[], None], ahead: Callable[[], int]
) -> Iterator[int]:
    pool = Pool(shards.run, processes, at_ease)
    try:
        for index, _ in pool.results(tasks, ahead):
            yield index
    finally:
        pool.close()


def _cluster(
    tasks: Sequence[Task], address: str, at_ease: Callable[[], None], ahead: Callable[[], int]
) -> Iterator[int]:
    """Dask moves the parts themselves, so workers need no folder in common with us for them."""
    try:
        import distributed as library
    except ImportError as e:
        raise DefibError("--scheduler dask:// needs Dask: pip install 'defib[dask]'") from e
    distributed: Any = library  # it has no types
    try:
        client: Any = distributed.Client(address, timeout="10s")
    except (OSError, ValueError) as e:
        raise DefibError(f"no Dask scheduler answers at {address}") from e
    with client:
        running: dict[Any, int] = {}
        begun = 0
        while begun < len(tasks) or running:
            while begun < min(len(tasks), ahead()):
                future = client.submit(remote, tasks[begun], retries=RETRIES, pure=False)
                running[future] = begun
                begun += 1
            for future in _ended(distributed, list(running)):
                index = running.pop(future)
                try:
                    part = future.result()
                except distributed.KilledWorker as e:
                    raise WorkerLostError("the logs of one task killed every worker that read them") from e
                Path(tasks[index].out).write_bytes(part)
                future.release()
                yield index
            at_ease()


def _ended(distributed: Any, futures: list[Any]) -> list[Any]:
    try:
        return list(distributed.wait(futures, timeout=POLL_S, return_when="FIRST_COMPLETED").done)
    except TimeoutError:
        return []


def remote(task: Task) -> bytes:
    """On a worker of a cluster: the part as bytes."""
    with tempfile.TemporaryDirectory(prefix="defib-") as folder:
        out = os.path.join(folder, "part")
        shards.run(replace(task, out=out))
        return Path(out).read_bytes()
