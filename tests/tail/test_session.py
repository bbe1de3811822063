"""How a watch begins and ends, and what the paths on a command line come to."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.conftest import Kit
from tests.tail.live import Clock

from defib.adapters.tail.files import SystemFiles
from defib.adapters.tail.pace import SECOND, Pace, looking
from defib.adapters.tail.roots import rooted
from defib.adapters.tail.session import CATCH_UP_US, Session
from defib.adapters.tail.source import TailSource
from defib.engine.ports import Closed, Data, JobClosed, Opened, SourceItem, Ticked


class Stage:
    """A session over a folder of real files; `asked` says that it is enough."""

    def __init__(self, paths: list[str], made: Kit, pace: Pace | None = None, idle_us: int | None = None) -> None:
        self.asked, self.between, self.clock = False, 0, Clock()
        watches, roots = rooted(paths)
        source = TailSource(watches, made.book.paths, SystemFiles(roots), self.clock, pace=pace)
        self.session = Session(source, lambda: self.asked, self.count, idle_us)

    def count(self) -> None:
        self.between += 1

    def poll(self) -> list[SourceItem]:
        items = self.session.poll()
        assert items is not None
        return items

    def follow(self, seconds: float) -> list[SourceItem]:
        until, out = self.clock.us + int(seconds * SECOND), list[SourceItem]()
        while self.clock.us < until:
            out += self.poll()
        return out

    def opened(self, seconds: float = 30) -> list[str]:
        return [i.id.path for i in self.follow(seconds) if isinstance(i, Opened)]


def test_the_first_tick_comes_when_what_was_there_is_read(tmp_path: Path, language: Kit) -> None:
    for n in range(5):
        (tmp_path / f"slurm-{n}.out").write_bytes(b"step=1\n" * 1000)
    stage = Stage([str(tmp_path)], language, Pace(poll_bytes=3000, quantum=3000))
    read, ticks = 0, 0
    while not ticks:
        assert stage.between == 0
        items = stage.poll()
        read += sum(i.read for i in items if isinstance(i, Data))
        ticks += sum(isinstance(i, Ticked) for i in items)
    assert read == 35_000
    stage.poll()
    assert stage.between == 1


class Flood:
    """A source that never comes to the end of what there is to read."""

    behind = True

    def __init__(self) -> None:
        self.us, self.stopped = 0, False

    def poll(self) -> list[SourceItem] | None:
        self.us += SECOND
        return [Data(0, b"x", 1), Ticked(self.us)]

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        pass


def test_more_than_can_be_read_is_waited_for_a_minute_only() -> None:
    flood = Flood()
    session = Session(flood, lambda: False, lambda: None, idle_us=SECOND)
    polls = [session.poll() or [] for _ in range(70)]
    first = next(n for n, items in enumerate(polls) if isinstance(items[-1], Ticked))
    assert first == CATCH_UP_US // SECOND
    assert all(isinstance(items[-1], Ticked) for items in polls[first:])
    assert not flood.stopped, "a log that grows is not idle"


@pytest.mark.parametrize("caught_up", [True, False])
def test_enough_closes_every_job(tmp_path: Path, language: Kit, caught_up: bool) -> None:
    (tmp_path / "slurm-1.out").write_bytes(b"step=1\n" * 1000)
    stage = Stage([str(tmp_path)], language, Pace(quantum=300))
    stage.poll()
    if caught_up:
        stage.follow(30)
    stage.asked = True
    items = stage.poll()
    assert [type(i) for i in items] == [Closed, JobClosed, Ticked]
    assert stage.session.poll() is None


def test_idleness_is_counted_from_the_last_bytes(tmp_path: Path, language: Kit) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_bytes(b"x\n")
    stage = Stage([str(tmp_path)], language, idle_us=20 * SECOND)
    stage.follow(15)
    log.write_bytes(b"x\ny\n")
    began = stage.clock.us
    while not any(isinstance(i, JobClosed) for i in stage.poll()):
        pass
    assert 20 * SECOND <= stage.clock.us - began <= 25 * SECOND


def test_a_folder_that_is_made_anew_is_followed_again(tmp_path: Path, language: Kit) -> None:
    folder = tmp_path / "logs"
    stage = Stage([str(folder)], language)
    for name in ("slurm-1.out", "slurm-2.out"):
        assert stage.opened() == []
        folder.mkdir()
        (folder / name).write_bytes(b"x\n")
        assert stage.opened(130) == [str(folder / name)]
        shutil.rmtree(folder)


def test_a_name_that_exists_is_no_pattern(tmp_path: Path, language: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "run[1]*"
    here.mkdir()
    for name in ("a[b].log", "ab.log", "other.log"):
        (here / name).write_bytes(name.encode())
    monkeypatch.chdir(here)
    assert Stage(["a[b].log"], language).opened() == [str(here / "a[b].log")]
    assert Stage(["a[b]*"], language).opened() == [str(here / "ab.log")]
    assert len(Stage(["."], language).opened()) == 3


def test_links_are_followed_only_where_they_were_named(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    real = os.fsencode(tmp_path.resolve() / "real")
    assert rooted([str(tmp_path / "link")]) == ([real], (os.path.dirname(real),))
    assert rooted([str(tmp_path / "link" / "*.log")]) == ([real + b"/*.log"], (real,))
    assert rooted([str(tmp_path / "link" / "no" / "x.log")]) == ([real + b"/no/x.log"], (real,))
    assert rooted(["/", "/*.log"]) == ([b"/", b"/*.log"], (b"/",))


def test_quiet_logs_are_looked_at_more_rarely_and_ticks_come_every_second() -> None:
    often, rarely = looking(SECOND // 5), looking(120 * SECOND)
    assert (often.hot_us, often.tick_us, often.cold_us) == (SECOND // 5, SECOND // 5, Pace().cold_us)
    assert (rarely.hot_us, rarely.tick_us, rarely.cold_us) == (120 * SECOND, SECOND, 120 * SECOND)
