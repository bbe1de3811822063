"""A watch that also recovers: the logs' source and the scheduler joined into one, the engine's effects turned into events of recovery.

In: a source of logs, a scheduler, a controller. Out: the same source with what the scheduler says of the jobs; a sink. Always: the scheduler is read
without waiting; a read reaches the engine before the tick that follows it; the controller steps once per poll, in the watch's own thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from defib.adapters.act.ports import Watching
from defib.adapters.act.verdicts import Verdicts
from defib.adapters.control import Controller
from defib.adapters.slurm.reader import Scheduler
from defib.engine.core import State
from defib.engine.jobs import ClusterRead
from defib.engine.ports import JobTold, SourceItem, Ticked
from defib.engine.roster import Over, Roster
from defib.engine.words import JobKey

ROOM_MIN = 16 * 1024 * 1024  # free bytes below which the state folder counts as full
AWAKE = ("RUNNING", "COMPLETING")


class Logs(Protocol):
    """A live source that the scheduler can tell about jobs."""

    behind: bool

    def poll(self) -> list[SourceItem] | None: ...

    def running(self, job: JobKey, yes: bool = True) -> None: ...

    def over(self, job: JobKey) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Recovering:
    """The source and the sink of a watch that recovers. asked: whether the watch is to end."""

    logs: Logs
    scheduler: Scheduler
    roster: Roster
    verdicts: Verdicts
    controller: Controller
    now_us: Callable[[], int]
    behind: bool = False

    def poll(self) -> list[SourceItem] | None:
        """Items of the logs, with the scheduler's word before the tick."""
        items = self.logs.poll()
        self.behind = self.logs.behind
        if items is None:
            return None
        read = self.scheduler.poll(self.now_us())
        if read is not None:
            told = self._told(read)
            at = len(items) - 1 if items and isinstance(items[-1], Ticked) else len(items)
            items = [*items[:at], *told, *items[at:]]
        self.controller.step()
        return items

    def stop(self) -> None:
        self.logs.stop()

    def close(self) -> None:
        self.logs.close()
        self.scheduler.close()

    def apply(self, effects: list[object]) -> None:
        """As a sink: what follows for recovery."""
        for event in self.verdicts.take(effects):
            self.controller.feed(event)

    def _told(self, read: ClusterRead) -> list[SourceItem]:
        told: list[SourceItem] = []
        for item in self.roster.take(read):
            if isinstance(item, JobTold):
                told.append(item)
                self.logs.running(item.job, item.state.state in AWAKE)
            elif isinstance(item, Over):
                self.logs.over(item.job)
        self.controller.scheduled(read)
        for event in self.verdicts.read(read):
            self.controller.feed(event)
        return told


def watching(folder: str, state: State, now_us: Callable[[], int], behind: Callable[[], bool]) -> Watching:
    """What the watch knows of itself. The self-test: a tick has gone through the whole engine."""
    ticked = state.live.now_us
    room = os.statvfs(folder)
    healths = [w.health for w in state.live.watches.values()]
    lag = None if ticked is None else max(0, now_us() - ticked) / 1e6
    return Watching(
        ticked, lag, len(healths), healths.count("blind"), (), room.f_bavail * room.f_frsize < ROOM_MIN,
        ticked is not None and not behind(),
    )  # fmt: skip
