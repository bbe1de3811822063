"""A tail source as a watch uses it: from the first look at what is there to the word that it is enough.

In: a source, and whether to stop. Out: the source's items. Always holds: the first tick comes when what was there at the start has been read
(or after a minute of reading), so no run is judged by half of its log; between two polls, when the engine has taken in everything up to the
last tick, `between` is called; once told to stop the source closes every job and is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from defib.engine.ports import Data, SourceItem, Ticked

CATCH_UP_US = 60_000_000


class Stoppable(Protocol):
    """A live source that knows whether there is more to read at once, and can be told to end."""

    @property
    def behind(self) -> bool: ...

    def poll(self) -> list[SourceItem] | None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Session:
    """The source the engine gets. enough: asked before every poll. idle_us: also end when nothing new was read for so long."""

    source: Stoppable
    enough: Callable[[], bool]
    between: Callable[[], None]
    idle_us: int | None = None
    _began_us: int | None = None
    _grew_us: int = 0
    _now_us: int = 0
    _caught_up: bool = False
    _stopping: bool = False

    def poll(self) -> list[SourceItem] | None:
        if self._caught_up and not self._stopping:
            self.between()
        if not self._stopping and (self.enough() or self._idle()):
            self._stopping = True
            self.source.stop()
        items = self.source.poll()
        if not items or not isinstance(items[-1], Ticked):
            return items
        self._now_us = items[-1].at_us
        if self._began_us is None or any(isinstance(i, Data) for i in items):
            self._grew_us = self._now_us
        self._began_us = self._now_us if self._began_us is None else self._began_us
        if not self._caught_up and not self._stopping:
            self._caught_up = not self.source.behind or self._now_us - self._began_us >= CATCH_UP_US
            return items if self._caught_up else items[:-1]
        return items

    def close(self) -> None:
        self.source.close()

    def _idle(self) -> bool:
        quiet = self._caught_up and not self.source.behind
        return self.idle_us is not None and quiet and self._now_us - self._grew_us >= self.idle_us
