"""What one job and one user may cost the reader: files followed, bytes read per second. Pure: a budget that fills as the clock goes on.

In: who reads how much, and when. Out: how long they wait. Always holds: nothing is dropped for a limit. What is not read yet stays in its
file and is told as trouble; what is not followed is told with the limit that it met, and followed when there is room.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from defib.engine.words import JobKey

SECOND = 1_000_000
BURST_S = 4  # of reading that a budget saves up
WHO_MAX = 100_000
TOLD_AFTER_US = 10 * SECOND
UNREAD_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Limits:
    """0 means no limit. Bytes are read per second, averaged over a few; files are followed at once. files: of one reader in all."""

    files: int = 200_000
    job_files: int = 0
    user_files: int = 0
    job_bytes_s: int = 0
    user_bytes_s: int = 0


class Unread(dict[bytes, str]):
    """Paths that are not followed, and why. Bounded: what does not fit is only counted. changed: paths of which something else is said."""

    def __init__(self) -> None:
        super().__init__()
        self.more = 0
        self.changed: set[bytes] = set()

    def __setitem__(self, path: bytes, why: str) -> None:
        if len(self) >= UNREAD_MAX and path not in self:
            self.more += 1
        elif self.get(path) != why:
            super().__setitem__(path, why)
            self.changed.add(path)

    def discard(self, path: bytes) -> None:
        """The path is followed, or is to be decided anew."""
        if super().pop(path, None) is not None:
            self.changed.add(path)


@dataclass(slots=True)
class Meter:
    """The budgets of one reader."""

    limits: Limits
    files: int = 0
    _jobs: Counter[JobKey] = field(default_factory=Counter)
    _users: Counter[int] = field(default_factory=Counter)
    _left: OrderedDict[JobKey | int, tuple[float, int]] = field(default_factory=OrderedDict)  # (bytes, when)

    def full(self, job: JobKey, uid: int | None) -> str | None:
        """Which limit of files keeps one more from being followed."""
        lim = self.limits
        if lim.files and self.files >= lim.files:
            return f"over the limit of {lim.files} logs of one reader"
        if lim.job_files and self._jobs[job] >= lim.job_files:
            return f"over the limit of {lim.job_files} logs of one job"
        if lim.user_files and uid is not None and self._users[uid] >= lim.user_files:
            return f"over the limit of {lim.user_files} logs of one user"
        return None

    def follows(self, job: JobKey, uid: int | None, by: int) -> None:
        """One log more (1) or less (-1)."""
        self.files += by
        keys: list[tuple[Counter[JobKey] | Counter[int], object]] = [(self._jobs, job)]
        if uid is not None:
            keys.append((self._users, uid))
        for counter, who in keys:
            counter[who] += by  # type: ignore[index]  # each counter with its own key
            if counter[who] <= 0:  # type: ignore[index]
                del counter[who]

    def wait_us(self, job: JobKey, uid: int | None, now_us: int) -> tuple[int, str]:
        """(how long to wait before reading on, which limit says so); (0, "") to go on."""
        waits = [
            (self._wait(who, rate, now_us), f"over the limit of {rate} bytes per second of one {kind}")
            for who, rate, kind in self._rates(job, uid)
        ]
        return max(waits, default=(0, "")) if any(w for w, _ in waits) else (0, "")

    def took(self, job: JobKey, uid: int | None, read: int, now_us: int) -> None:
        """So many bytes were read."""
        for who, rate, _ in self._rates(job, uid):
            left, _ = self._now(who, rate, now_us)
            self._left[who] = (left - read, now_us)
            self._left.move_to_end(who)
        while len(self._left) > WHO_MAX:
            self._left.popitem(last=False)

    def _rates(self, job: JobKey, uid: int | None) -> list[tuple[JobKey | int, int, str]]:
        out: list[tuple[JobKey | int, int, str]] = []
        if self.limits.job_bytes_s:
            out.append((job, self.limits.job_bytes_s, "job"))
        if self.limits.user_bytes_s and uid is not None:
            out.append((uid, self.limits.user_bytes_s, "user"))
        return out

    def _now(self, who: JobKey | int, rate: int, now_us: int) -> tuple[float, int]:
        left, at = self._left.get(who, (float(rate * BURST_S), now_us))
        return min(float(rate * BURST_S), left + rate * (now_us - at) / SECOND), now_us

    def _wait(self, who: JobKey | int, rate: int, now_us: int) -> int:
        left, _ = self._now(who, rate, now_us)
        return 0 if left > 0 else max(1, round((1 - left) / rate * SECOND))
