"""How often what is looked at: a pure schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace

SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """Times in microseconds, sizes in bytes. A log is hot while it grows, warm when it has been quiet for a minute, cold after ten.

    looks_per_s bounds what file servers are asked by path: with many logs the looks by path become rarer than `look_us`.
    """

    hot_us: int = 1 * SECOND
    warm_us: int = 5 * SECOND
    cold_us: int = 30 * SECOND
    warm_after_us: int = 60 * SECOND
    cold_after_us: int = 600 * SECOND
    look_us: int = 10 * SECOND
    looks_per_s: int = 1000
    list_us: int = 10 * SECOND
    hint_us: int = 1 * SECOND  # between two polls of a log that are due to hints only
    poll_us: int = SECOND // 10  # between two polls, unless there is more to read at once
    tick_us: int = 1 * SECOND  # at most
    poll_max_us: int = SECOND // 2
    quantum: int = 256 * 1024  # of one file and poll
    poll_bytes: int = 8 * 1024 * 1024  # of all files and one poll
    handles: int = 512
    settle_us: int = 5 * SECOND  # a job that is over is closed after so long without new bytes
    give_up_us: int = 120 * SECOND  # a job that is over but whose logs cannot be read is closed all the same
    partial_us: int = 10 * SECOND  # an unfinished line is shown after so long

    def interval(self, quiet_us: int, live: bool) -> int:
        """Until the next poll of a log that has been quiet so long. live: its job is not known to have ended."""
        if not live or quiet_us >= self.cold_after_us:
            return self.cold_us
        return self.warm_us if quiet_us >= self.warm_after_us else self.hot_us

    def look_after(self, files: int) -> int:
        """Until the next look by path, with so many files followed."""
        return max(self.look_us, files * SECOND // self.looks_per_s)


def looking(every_us: int) -> Pace:
    """A log that grows is looked at so often, by its path too; quiet ones more rarely. A tick comes every second or sooner."""
    usual = Pace()
    return replace(
        usual,
        hot_us=every_us,
        warm_us=max(every_us, usual.warm_us),
        cold_us=max(every_us, usual.cold_us),
        look_us=every_us,
        list_us=every_us,
        poll_us=min(every_us, usual.poll_us),
        tick_us=min(every_us, usual.tick_us),
    )
