"""Processes that work off tasks, and what happens when one of them dies.

In: a function, tasks in order, a number of processes. Out: results by task number, as they come. Always holds: a task whose process died is
given to another one, `RETRIES` times at most; a task that raises ends the whole with its error; no process outlives the pool.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from defib.engine.errors import DefibError

RETRIES = 2
POLL_S = 0.2


class WorkerLostError(DefibError):
    """A task killed every process it was given to."""


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    task: int | None = None


class Pool:
    """`results` once; `close` always. at_ease: called while waiting, so that an interrupt is noticed."""

    def __init__(self, function: Callable[[Any], Any], processes: int, at_ease: Callable[[], None]) -> None:
        self._function = function
        self._at_ease = at_ease
        self._context = multiprocessing.get_context("spawn")  # a fork would copy the locks of running threads
        self._workers: list[_Worker] = []
        self._processes = processes
        self.lost = 0  # processes that died

    def results(self, tasks: Sequence[Any], ahead: Callable[[], int]) -> Iterator[tuple[int, Any]]:
        """(task number, result) in the order in which they end. ahead: tasks from this number on are not begun yet."""
        todo, left = deque(range(len(tasks))), len(tasks)
        tries = [0] * len(tasks)
        while left:
            self._hand_out(tasks, todo, ahead())
            ready = wait([w.pipe for w in self._workers], POLL_S)
            self._at_ease()
            for w in [w for w in self._workers if w.pipe in ready]:
                task = w.task
                try:
                    failed, value = w.pipe.recv()
                except (EOFError, OSError):
                    self._bury(w)
                    if task is None:
                        continue
                    tries[task] += 1
                    if tries[task] > RETRIES:
                        raise WorkerLostError(
                            f"a worker process died {tries[task]} times on the same logs (out of memory?); run with fewer --jobs"
                        ) from None
                    todo.appendleft(task)
                    continue
                assert task is not None, "a process speaks only of its task"
                if failed:
                    raise value
                w.task = None
                left -= 1
                yield task, value

    def _hand_out(self, tasks: Sequence[Any], todo: deque[int], ahead: int) -> None:
        while todo and todo[0] < ahead:
            idle = next((w for w in self._workers if w.task is None), None)
            if idle is None:
                if len(self._workers) >= self._processes:
                    return
                idle = self._hire()
            idle.task = todo.popleft()
            with contextlib.suppress(OSError):  # it died before it had anything to do: the pipe's end tells
                idle.pipe.send(tasks[idle.task])

    def _hire(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(self._function, theirs), daemon=True)
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def _bury(self, w: _Worker) -> None:
        self.lost += 1
        self._workers.remove(w)
        w.pipe.close()
        w.process.join(5)

    @property
    def pids(self) -> list[int]:
        """Of the processes that live."""
        return [w.process.pid for w in self._workers if w.process.pid is not None]

    def close(self) -> None:
        """End every process, busy or not."""
        for w in self._workers:
            w.pipe.close()
            w.process.terminate()
        for w in self._workers:
            w.process.join(5)
        self._workers = []


def _serve(function: Callable[[Any], Any], pipe: Connection) -> None:
    """Work off tasks until the pipe closes. Ctrl-C reaches the whole group; the parent decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (False, function(task))
        except Exception as e:
            answer = (True, e)
        pipe.send(answer)
