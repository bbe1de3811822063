"""The observer's clock: Unix time at the start plus what has passed since on a clock that neither jumps nor stops while the host sleeps."""

from __future__ import annotations

import time
from typing import Protocol

SOURCE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Never goes back."""

    def now_us(self) -> int: ...

    def sleep_us(self, us: int) -> None: ...


class SystemClock:
    """The machine's. not_before: what an earlier one said last; a machine whose date was set back since goes on from there."""

    def __init__(self, not_before: int = 0) -> None:
        now = time.clock_gettime_ns(SOURCE)
        self._ahead = max(time.time_ns(), not_before * 1000) - now

    def now_us(self) -> int:
        return (time.clock_gettime_ns(SOURCE) + self._ahead) // 1000

    def sleep_us(self, us: int) -> None:
        time.sleep(max(0, us) / 1e6)
