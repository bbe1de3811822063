"""The assembled watch on real files with a clock of the test's own: hours pass in moments, at the limits as shipped."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from defib.adapters import wire
from defib.engine.core import HealthChanged

SECOND = 1_000_000
BANNER = "using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1\n"


def step(n: int) -> str:
    return (
        f" iteration {n:8}/   10000 | consumed samples: {n * 64:12} | elapsed time per iteration (ms): 5000.0 | "
        f"learning rate: 1.000E-04 | global batch size:    64 | lm loss: 2.0{n:05}E+00 | loss scale: 1.0 | grad norm: 1.203 |\n"
    )


class Writer:
    """A clock that goes on when slept through; meanwhile the job writes what it had to say by then."""

    def __init__(self, log: Path, said: list[tuple[float, str]], end_s: float, end: Callable[[], None]) -> None:
        self.log, self.said, self.end_s, self.end = log, said, end_s, end
        self.us = self.began = 1_000_000 * SECOND

    def now_us(self) -> int:
        return self.us

    def sleep_us(self, us: int) -> None:
        self.us += us
        now = (self.us - self.began) / SECOND
        while self.said and self.said[0][0] <= now:
            with self.log.open("a") as f:
                f.write(self.said.pop(0)[1])
        if now >= self.end_s:
            self.end()


def watched(folder: Path, said: list[tuple[float, str]], end_s: float) -> tuple[list[HealthChanged], wire.Watched]:
    """Every change that was told, and how it ended: by SIGTERM after so many seconds."""
    changes: list[HealthChanged] = []
    ears = wire.Ears(lambda e, paths: changes.append(e), lambda a, paths: None, lambda unread: None)
    clock = Writer(folder / "slurm-7.out", said, end_s, lambda: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    outcome = wire.watch(wire.WatchOptions([str(folder)]), ears, clock)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    return changes, outcome


def test_a_hang_of_the_night_is_told_after_half_an_hour(tmp_path: Path) -> None:
    """Told once, within a poll of the limit; every job is told of when it is first seen."""
    said = [(1.0, BANNER), *((60.0 + 5 * n, step(n)) for n in range(1, 41)), (2200.0, step(41))]
    changes, outcome = watched(tmp_path, said, 2300.0)
    assert [(c.was, c.health) for c in changes] == [
        ("", "starting"),
        ("starting", "healthy"),
        ("healthy", "hung"),
        ("hung", "healthy"),
    ]
    silent_s = (changes[2].at_us / SECOND) - 1_000_000 - 260
    assert 1800 <= silent_s <= 1800 + 2 * 10 + 2
    assert changes[2].episode is not None
    assert changes[2].episode.onset_step == 40
    assert "in phase steady; limit 1800 s" in changes[2].because
    assert list(outcome.healths.values()) == ["healthy"]
    assert outcome.signal == signal.SIGTERM


def test_a_log_that_is_taken_away_is_blind_and_no_hang(tmp_path: Path) -> None:
    said = [(1.0, BANNER), *((60.0 + 5 * n, step(n)) for n in range(1, 41))]
    log = tmp_path / "slurm-7.out"

    class Thief(Writer):
        def sleep_us(self, us: int) -> None:
            super().sleep_us(us)
            if not self.said and log.exists():
                log.rename(tmp_path / ".away")

    changes: list[HealthChanged] = []
    ears = wire.Ears(lambda e, paths: changes.append(e), lambda a, paths: None, lambda unread: None)
    clock = Thief(log, said, 800.0, lambda: signal.raise_signal(signal.SIGTERM))
    wire.watch(wire.WatchOptions([str(tmp_path)]), ears, clock)
    assert [c.health for c in changes] == ["starting", "healthy", "blind"]
    assert "No such file or directory" in changes[-1].because
