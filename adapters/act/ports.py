"""What the control loop asks of the world, so that tests can stand in for it.

In, out: plain values. Always: nothing here waits; questions are answered later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from defib.adapters.act.asking import Survey
from defib.engine.jobs import AttemptKey
from defib.engine.recover.words import Copy, Fresh, Notify, Order, Returned


@dataclass(frozen=True, slots=True)
class Watching:
    """What the host of the loop knows of itself: see `Vitals` for each."""

    canary_us: int | None = None
    lag_s: float | None = None
    streams: int | None = None
    blind: int | None = None
    mounts_hung: tuple[str, ...] = ()
    full: bool | None = None
    caught_up: bool | None = None
    stepped_us: int | None = None


class SchedulerPort(Protocol):
    """Questions that may take long; answers come with `poll`. See `act.asking`."""

    def look(self, attempt: AttemptKey, label: str) -> None: ...

    def survey(self) -> None: ...

    def poll(self) -> list[Fresh | Survey]: ...

    def close(self) -> None: ...


class ExecutorPort(Protocol):
    """Takes orders, answers later. ponged_us, epoch: of its last sign of life. See `act.client`."""

    ponged_us: int | None
    epoch: int | None

    def order(self, order: Order, now_us: int) -> None: ...

    def poll(self, now_us: int) -> list[Returned]: ...

    def ping(self, now_us: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything outside. executor: None in mode observe. copy: the evidence of a case, as plain values; tell: news for people; watching: what the
    host knows of itself; now_us: the observer's clock."""

    scheduler: SchedulerPort
    executor: ExecutorPort | None
    copy: Callable[[Copy], dict[str, Any]]
    tell: Callable[[Notify], None]
    watching: Callable[[], Watching]
    now_us: Callable[[], int]


@dataclass(slots=True)
class Told:
    """A place for news in tests and in hosts without people: keeps the last ones."""

    news: deque[Notify] = field(default_factory=lambda: deque(maxlen=1000))

    def __call__(self, notify: Notify) -> None:
        self.news.append(notify)
