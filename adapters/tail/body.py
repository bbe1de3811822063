"""What a follower tells, what it keeps of each file, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from defib.adapters.tail.files import Stat
from defib.adapters.tail.reading import Item, State

REWRITTEN = "the file was truncated or rewritten after byte {}; what was written behind it and not read by then is lost"
COPIED = "copied and truncated after byte {}; what was written between the two is lost"
REPLACED = "another file took the place; one that came and went between two looks would not be seen"
UNFOUND = "replaced after byte {} and not found again; what was written behind it is lost"
CROWDED = "too many older files of this path are still growing; let go after byte {}"
SHRUNK = "the file was cut by {} bytes that had not been read"
PASSED = "another file stood at the path for a while and was not read"
REMOVED = "the file was removed and all of it was read; one that came and went between two looks would not be seen"
LEFT = "following ended at byte {}, before the end of the file was read"


@dataclass(frozen=True, slots=True)
class Begin:
    """A generation of the path. offset, line: where its first bytes stand in the file (0 and 1 but for resumed or cut files)."""

    generation: int
    offset: int
    line: int
    size: int


@dataclass(frozen=True, slots=True)
class End:
    """Nothing more of this generation will come. lost: bytes of it may have been written that were not handed over."""

    generation: int
    note: str | None
    lost: bool


@dataclass(frozen=True, slots=True)
class Trouble:
    """A look at the path: why it cannot be vouched for, or None: looked up by its path and read to its end."""

    generation: int
    text: str | None


Told = Begin | End | Trouble | Item


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things are waited for, in microseconds."""

    nul_us: int = 30_000_000
    linger_us: int = 600_000_000  # a renamed file that no longer grows
    search_us: int = 60_000_000  # a replaced file that no folder lists (yet)
    retry_us: int = 1_000_000
    retry_max_us: int = 60_000_000


@dataclass(slots=True)
class Body:
    """One file as it is being read. ino None: not opened yet."""

    state: State
    ino: int | None = None
    born_ns: int | None = None
    handle: int | None = None
    role: str = "path"
    told: bool = False
    drained: bool = False
    quiet_since_us: int = 0
    size: int = 0
    candidate: Stat | None = None  # another file, open as handle, that may hold the same bytes

    def same(self, seen: Stat) -> bool:
        """As far as numbers tell; inodes are used again at once, so content decides in the end."""
        return self.ino is None or seen.is_of(self.ino, self.born_ns)


@dataclass(slots=True)
class Polled:
    """What a poll gave. end: everything that is there was read; more: there is more to read at once; fresh: bytes handed over; failed:
    the errno of what went wrong."""

    items: list[Told] = field(default_factory=list)
    end: bool = False
    more: bool = False
    fresh: int = 0
    failed: int | None = None


@dataclass(slots=True)
class Retry:
    """When to try again after a failure: 1 s, doubling, at most 60 s."""

    at_us: int = 0
    times: int = 0

    def failed(self, now_us: int, patience: Patience) -> None:
        self.at_us = now_us + min(patience.retry_max_us, patience.retry_us << min(self.times, 16))
        self.times += 1

    def went_well(self) -> None:
        self.at_us = self.times = 0
