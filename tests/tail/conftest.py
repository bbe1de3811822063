"""A log in a file system in memory, a follower on it, and what it handed over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import Kit
from tests.tail.live import Live

from defib.adapters.tail.body import Begin, End, Polled, Told, Trouble
from defib.adapters.tail.follower import Follower
from defib.adapters.tail.position import Position
from defib.adapters.tail.reading import Bytes, Gap, Hole
from tailmodel import FOLDER, Memory

PATH = FOLDER + b"/log"
SECOND = 1_000_000
LINES = b"".join(b"step %05d loss 1.25\n" % n for n in range(400))  # 8,000 bytes


class Play:
    """`world` is written to, `poll` looks; generations as they were handed over are in `got`, their ends in `ended`."""

    def __init__(self, world: Memory | None = None, owner: int | None = None) -> None:
        self.world = world or Memory()
        self.owner = owner
        self.now = SECOND
        self.quantum = 1 << 20
        self.told: list[Told] = []
        self.got: dict[int, bytes] = {}
        self.ended: dict[int, End] = {}
        self.follower = Follower(self.world, PATH, owner=owner)

    def append(self, data: bytes, name: bytes = b"log") -> None:
        if name not in self.world.entries:
            self.world.create(name)
        self.world.write(name, len(self.world.entries[name].data), data)

    def poll(self, wait_s: float = 1, full: bool = True, final: bool = False) -> Polled:
        """Look after a while, again as long as there is more."""
        self.now += int(wait_s * SECOND)
        while True:
            polled = self.follower.poll(self.now, self.quantum, full, final)
            for item in polled.items:
                self.take(item)
            if not polled.more:
                return polled

    def take(self, item: Told) -> None:
        self.told.append(item)
        match item:
            case Begin(g, offset):
                self.got[g] = self.got.get(g, self.got.get(g - 1, b""))[:offset]
            case Bytes(g, data):
                self.got[g] += data
            case Hole(g, offset, length):
                assert offset == len(self.got[g])
                self.got[g] += bytes(length)
            case End(g):
                self.ended[g] = item
            case _:
                pass

    def restart(self, change: Callable[[], None] = lambda: None) -> tuple[Position, ...]:
        """The reader dies with what it had saved; something happens; another one goes on."""
        positions = self.follower.positions
        self.follower.end()
        change()
        self.follower = Follower(self.world, PATH, positions, self.owner)
        return positions

    @property
    def troubles(self) -> list[str | None]:
        return [t.text for t in self.told if isinstance(t, Trouble)]

    @property
    def gaps(self) -> list[str]:
        return [g.note for g in self.told if isinstance(g, Gap)]


def failing(name: str, code: int) -> Callable[[str], None]:
    """A fault of the world: every call of this name fails."""

    def fail(call: str) -> None:
        if call == name:
            raise OSError(code, os.strerror(code))

    return fail


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def live(tmp_path: Path, language: Kit) -> Iterator[Live]:
    made = Live(tmp_path.resolve(), language)
    yield made
    made.source.close()
