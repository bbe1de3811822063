"""Many logs at once: what is found, in which order it is read, what is told of it. Real files, a clock of the test's own."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.conftest import Kit
from tests.tail.live import Live

from defib.adapters.tail.files import SystemFiles
from defib.adapters.tail.pace import SECOND, Pace
from defib.engine.ports import Closed, Data, Looked, Opened, Skipped


def test_logs_are_found_where_they_are_and_when_they_come(live: Live) -> None:
    live.write("a.log", b"a\n")
    live.write("deep/er/b.out", b"b\n")
    live.poll()
    live.write("c.err", b"c\n")
    live.poll(11)
    assert live.streams == {("a.log", 0): b"a\n", ("deep/er/b.out", 0): b"b\n", ("c.err", 0): b"c\n"}


def test_what_is_no_log_is_not_opened(live: Live) -> None:
    for name in ("x.py", "x.gz", ".hidden", "x.pt"):
        live.write(name, b"x\n")
    live.write("core", b"\x7fELF" + bytes(100))
    (live.folder / "link.log").symlink_to(live.write("real.log", b"r\n"))
    os.mkfifo(live.folder / "fifo.log")
    live.poll(11)
    assert live.streams == {("real.log", 0): b"r\n"}
    assert live.source.unread == {os.fsencode(live.folder / "core"): "looks binary, not a log"}


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.log", {"a.log"}),
        ("j*/out", {"j1/out", "j2/out"}),
        ("j[1]/*", {"j1/out", "j1/sub/x"}),
        ("*/sub", {"j1/sub/x"}),
        ("j?/sub/x", {"j1/sub/x"}),
        ("a.log", {"a.log"}),
        ("none*", set()),
    ],
)
def test_globs(pattern: str, found: set[str], live: Live) -> None:
    for name in ("a.log", "b.txt", "j1/out", "j2/out", "j1/sub/x"):
        live.write(name, b"x\n")
    live.open([os.fsencode(live.folder / pattern)])
    live.poll()
    assert {name for name, _ in live.streams} == found


def test_a_named_log_is_awaited(live: Live) -> None:
    live.open([os.fsencode(live.folder / "later.log")])
    live.poll(20)
    assert live.streams == {}
    live.write("later.log", b"x\n")
    live.poll(61)
    assert live.streams == {("later.log", 0): b"x\n"}


def test_a_named_link_is_refused_aloud(live: Live) -> None:
    (live.folder / "link").symlink_to(live.write("real", b"x\n"))
    live.open([os.fsencode(live.folder / "link")])
    live.poll()
    (looked,) = live.of(Looked)
    assert looked.trouble == os.strerror(errno.ELOOP)
    assert set(live.streams.values()) == {b""}


def test_p9_rotation_is_one_path_with_two_generations(live: Live) -> None:
    log = live.write("train.log", b"one\n")
    live.poll(5)
    live.write("train.log", b"two\n")
    log.rename(live.folder / "train.log.1")
    live.write("train.log", b"three\n")
    live.poll(30)
    assert live.streams == {("train.log", 0): b"one\ntwo\n", ("train.log", 1): b"three\n"}
    live.poll(700)
    assert [c.note for c in live.of(Closed)] == [
        "another file took the place; one that came and went between two looks would not be seen"
    ]


def test_p5_truncation_says_what_was_lost(live: Live) -> None:
    live.write("train.log", b"one\n")
    live.poll(3)
    live.write("train.log", b"two\n", "wb")
    live.poll(3)
    assert live.streams == {("train.log", 0): b"one\n", ("train.log", 1): b"two\n"}
    assert "after byte 4" in live.of(Closed)[0].note


def test_holes_are_skipped_and_noted(live: Live) -> None:
    log = live.write("train.log", b"one\n")
    with log.open("r+b") as f:
        f.truncate(3 << 30)
        f.seek(3 << 30)
        f.write(b"two\n")
    live.poll(2)
    skipped = sum(s.length for s in live.of(Skipped))
    assert skipped > (3 << 30) - (1 << 20)
    live.source.stop()
    live.items += live.source.poll() or []
    assert "NUL bytes at byte" in live.of(Closed)[0].note


def test_p44_a_loud_log_starves_nobody(live: Live) -> None:
    pace = Pace(quantum=1000, poll_bytes=5000)
    live.open(pace=pace)
    live.write("loud.log", b"x" * 99 + b"\n" * 1)
    live.poll()
    live.write("loud.log", (b"x" * 99 + b"\n") * 10_000)
    for n in range(20):
        live.write(f"quiet{n:02}.log", b"quiet\n")
    live.clock.us += 11 * SECOND
    seen: dict[int, int] = {}
    for n in range(12):
        for item in live.source.poll() or []:
            if isinstance(item, Data):
                seen.setdefault(item.stream, n)
    assert len(seen) == 21
    assert live.source.behind


def test_p45_what_is_not_read_stays_in_the_file(live: Live) -> None:
    live.open(pace=Pace(quantum=500, poll_bytes=1000))
    data = {f"{n}.log": b"line %d\n" % n * 2000 for n in range(5)}
    for name, text in data.items():
        live.write(name, text)
    live.poll()
    assert live.streams == {(name, 0): text for name, text in data.items()}


def test_p46_live_jobs_first(live: Live) -> None:
    live.write("slurm-1.out", b"x\n")
    live.write("slurm-2.out", b"x\n")
    live.open(pace=Pace(quantum=100, poll_bytes=100))
    live.poll(1)
    old, new = (o.facts.job for o in sorted(live.of(Opened), key=lambda o: o.id.path))
    live.source.running(old, False)
    live.write("slurm-1.out", b"old\n" * 100)
    live.write("slurm-2.out", b"new\n" * 100)
    live.clock.us += 60 * SECOND
    order = [i.data[:3] for _ in range(12) for i in live.source.poll() or [] if isinstance(i, Data)]
    assert order == [b"new"] * 4 + [b"old"] * 4
    assert new


def test_p41_descriptors_are_bounded(live: Live) -> None:
    live.open(pace=Pace(handles=7))
    for n in range(50):
        live.write(f"{n}.log", b"x\n")
    live.poll(3)
    for n in range(50):
        live.write(f"{n}.log", b"y\n")
    live.poll(40)
    assert set(live.streams.values()) == {b"x\ny\n"}
    assert len(live.streams) == 50
    assert sum(t.follower.handles for t in live.source._tracks.values()) <= 7


def test_p41_too_many_open_files_is_no_fault_of_the_log(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    real, most, held = SystemFiles.open, 10, set[int]()
    shut = SystemFiles.close

    def few(self: SystemFiles, path: bytes) -> int:
        if len(held) >= most:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        held.add(handle := real(self, path))
        return handle

    def close(self: SystemFiles, handle: int) -> None:
        held.discard(handle)
        shut(self, handle)

    monkeypatch.setattr(SystemFiles, "open", few)
    monkeypatch.setattr(SystemFiles, "close", close)
    for n in range(40):
        live.write(f"{n}.log", b"x\n")
    live.poll(130)
    assert set(live.streams.values()) == {b"x\n"}
    assert len(live.streams) == 40


def test_p38_quiet_logs_are_looked_at_less_and_less(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    real = SystemFiles.open
    monkeypatch.setattr(SystemFiles, "open", lambda self, path: opened.append(live.clock.us) or real(self, path))  # type: ignore[func-returns-value]
    live.write("a.log", b"x\n")
    live.poll(3000)
    per_minute = [sum(1 for at in opened if n <= (at - 1000 * SECOND) // (60 * SECOND) < n + 1) for n in (1, 20)]
    assert per_minute[0] <= 6
    assert per_minute[1] <= 2


def test_p18_an_unfinished_line_is_shown_after_a_while_and_counted_once(live: Live) -> None:
    live.write("a.log", b"whole\nSegmentation fa")
    live.poll(2)
    assert live.source.unfinished() == []
    live.poll(11)
    (only,) = live.source.unfinished()
    assert (only.offset, only.line, only.text) == (6, 2, b"Segmentation fa")
    live.write("a.log", b"ult\n")
    live.poll(6)
    assert live.source.unfinished() == []
    assert live.streams == {("a.log", 0): b"whole\nSegmentation fault\n"}


def test_a_look_by_path_that_reaches_the_end_vouches_for_the_stream(live: Live) -> None:
    log = live.write("a.log", b"x\n")
    live.poll(25)
    assert {i.trouble for i in live.of(Looked)} == {None}
    assert len(live.of(Looked)) >= 2
    log.rename(live.folder / ".away")
    live.poll(12)
    assert live.of(Looked)[-1].trouble == "No such file or directory"
    (live.folder / ".away").rename(log)
    live.poll(60)
    assert live.of(Looked)[-1].trouble is None
    assert live.streams == {("a.log", 0): b"x\n"}


def test_a_hint_saves_waiting(tmp_path: Path, language: Kit) -> None:
    hinted: set[bytes] = set()
    live = Live(tmp_path.resolve(), language, hints=lambda: set(hinted))
    live.write("a.log", b"x\n")
    live.poll(900)
    live.write("a.log", b"y\n")
    hinted.add(os.fsencode(live.folder / "a.log"))
    live.poll(1.1)
    assert live.streams == {("a.log", 0): b"x\ny\n"}
    live.source.close()
