"""Every file call fails with every errno, once and for a while: what is read in the end is the same, or its loss is told."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tail.conftest import LINES, Play

from tailmodel import Memory, OnDisk

ERRNOS = [
    errno.EIO, errno.ESTALE, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EAGAIN,
    errno.ETIMEDOUT, errno.ENOTCONN, errno.ENOMEM, errno.ELOOP, errno.EBADF, errno.ENOTDIR, errno.EXDEV,
]  # fmt: skip
TRUTH = [LINES + b"rotated\n", LINES[:3000] + b"copied\n", b"short\n" + bytes(9000) + b"behind a hole\n"]


def life(play: Play) -> None:
    """Growth, rotation by rename, copytruncate, a hole: everything that needs more than one call."""
    w = play.world
    play.append(LINES)
    play.poll()
    play.append(b"rotated\n")
    w.rename(b"log", b"log.1")
    play.append(LINES[:3000])
    play.poll(5)
    play.poll(5, full=False)
    play.append(b"copied\n")
    w.copy(b"log", b"log.copy")
    w.truncate(b"log", 0)
    play.append(b"short\n")
    play.poll(5)
    play.restart()
    play.append(bytes(9000) + b"behind a hole\n")
    play.poll(5)


def settle(play: Play) -> None:
    play.world.fault = lambda call: None
    for _ in range(3):
        play.poll(61)


class Failing:
    """Calls from number `first` on fail, `times` of them."""

    def __init__(self, first: int, code: int, times: int) -> None:
        self.first, self.code, self.times, self.calls = first, code, times, 0

    def __call__(self, call: str) -> None:
        self.calls += 1
        if self.first <= self.calls < self.first + self.times:
            raise OSError(self.code, errno.errorcode[self.code])


def faultless(world: Memory) -> int:
    play = Play(world)
    play.quantum = 2000
    play.world.fault = counting = Failing(0, errno.EIO, 0)
    life(play)
    settle(play)
    assert list(play.got.values())[0::2] == TRUTH[0::2]
    assert TRUTH[1].startswith(play.got[1])
    return counting.calls


@pytest.mark.parametrize("times", [1, 3, 50])
@pytest.mark.parametrize("code", ERRNOS, ids=lambda c: errno.errorcode[c])
def test_every_call_fails_with_every_errno(code: int, times: int) -> None:
    calls = faultless(Memory())
    assert calls > 50
    for first in range(1, calls + 1):
        play = Play()
        play.quantum = 2000
        play.world.fault = Failing(first, code, times)
        life(play)
        settle(play)
        judge(play, f"call {first}")


def judge(play: Play, what: str) -> None:
    assert play.got[max(play.got)] == TRUTH[2], what
    assert play.troubles[-1] is None, what
    assert play.world.open_handles == play.follower.handles, what
    for g, data in play.got.items():
        ends = [t for t in TRUTH if t.startswith(data)]
        assert ends, f"{what}: generation {g} is not what was written"
        end = play.ended.get(g)
        assert data in TRUTH or (end is not None and end.lost), f"{what}: generation {g} is short and nobody says so"
    seen = [n for n, t in enumerate(TRUTH) if any(d and t.startswith(d) for d in play.got.values())]
    missing = [
        n for n in range(len(TRUTH)) if n not in seen and n > min(seen)
    ]  # before the first look nothing can be known
    assert not missing or any(e.lost for e in play.ended.values()) or play.follower.elders, what


@pytest.mark.parametrize("code", ERRNOS[::4], ids=lambda c: errno.errorcode[c])
def test_the_same_on_real_files(code: int, tmp_path: Path) -> None:
    (tmp_path / "count").mkdir()
    calls = faultless(OnDisk(tmp_path / "count"))
    for first in range(1, calls + 1, 3):
        folder = tmp_path / str(first)
        folder.mkdir()
        play = Play(OnDisk(folder))
        play.quantum = 2000
        play.world.fault = Failing(first, code, 2)
        life(play)
        settle(play)
        judge(play, f"call {first}")


METHODS = ("open", "stat", "read", "data_after", "names", "close")
WHEN: dict[str, Callable[[int], bool]] = {
    "first": lambda n: n == 1,
    "seventh": lambda n: n == 7,
    "every third": lambda n: n % 3 == 0,
    "for ever": lambda n: True,
}


class OneCall:
    """Calls of one method fail, as `when` says of their number."""

    def __init__(self, method: str, code: int, when: Callable[[int], bool]) -> None:
        self.method, self.code, self.when, self.calls, self.failed = method, code, when, 0, 0

    def __call__(self, call: str) -> None:
        if call == self.method:
            self.calls += 1
            if self.when(self.calls):
                self.failed += 1
                raise OSError(self.code, errno.errorcode[self.code])


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_fails_with_every_errno_at_every_time(method: str, when: str) -> None:
    """A fault that lasts is over before the end, or nobody could read what was written meanwhile."""
    for code in [*ERRNOS, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENXIO, errno.EOVERFLOW]:
        play = Play()
        play.quantum = 2000
        play.world.fault = failing = OneCall(method, code, WHEN[when])
        life(play)
        settle(play)
        judge(play, f"{method} {when} {errno.errorcode[code]}")
        assert failing.calls or method in ("data_after", "names"), "the story does not call it"
