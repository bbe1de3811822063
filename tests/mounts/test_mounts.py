"""Several mounts at once: one that hangs, dies, comes and goes leaves the others alone, and no byte of it is lost or comes twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.mounts.conftest import Site

from defib.engine.ports import Closed, Data, JobClosed, Looked, Opened
from defib.engine.words import JobKey, StreamFacts

LINES = b"".join(b"step=%d time=1\n" % n for n in range(2000))


def job(number: str) -> JobKey:
    return JobKey(None, number)


def test_each_mount_has_a_reader_of_its_own_and_every_log_comes_once(site: Site) -> None:
    for name in ("slurm-1.out", "disk/slurm-2.out", "net/deep/slurm-3.out"):
        site.write(name, LINES)
    site.open(".")
    site.until(lambda: len(site.streams) == 3 and set(site.streams.values()) == {LINES})
    assert {r.mount.point for r in site.source.readers() if r.followed or r.polls} >= {  # type: ignore[union-attr]
        os.fsencode(p) for p in site.points
    }
    assert len({r.process.pid for r in site.source.readers()}) == 3  # type: ignore[union-attr]
    site.stop()
    assert sorted(map(str, site.closed_jobs)) == ["1", "2", "3"]


def test_a_mount_that_hangs_is_blind_and_delays_nobody(site: Site) -> None:
    site.write("disk/slurm-1.out", b"a\n")
    site.write("net/slurm-2.out", b"a\n")
    site.open(".")
    site.until(lambda: len(site.streams) == 2 and set(site.streams.values()) == {b"a\n"})
    site.signal("net", signal.SIGSTOP)
    site.waits.clear()
    site.until(lambda: any(t for t in site.troubles("net/slurm-2.out")))
    assert site.troubles("net/slurm-2.out")[-1] == f"the mount {site.home}/net does not answer for 1 s"
    for n in range(20):
        site.write("disk/slurm-1.out", b"%d\n" % n)
        site.write("net/slurm-2.out", b"%d\n" % n)
        before = len(site.of(Data))
        began = time.monotonic()
        site.until(lambda before=before: len(site.of(Data)) > before)
        assert time.monotonic() - began < 5
    assert max(site.waits) < 2
    assert not any(site.troubles("disk/slurm-1.out"))
    assert site.streams[("net/slurm-2.out", 0)] == b"a\n"
    site.signal("net", signal.SIGCONT)
    site.until(lambda: site.streams[("net/slurm-2.out", 0)] == site.streams[("disk/slurm-1.out", 0)])
    site.until(lambda: site.troubles("net/slurm-2.out")[-1] is None)
    assert len(site.of(Opened)) == 2
    assert not site.of(Closed)


@pytest.mark.parametrize("part", [b"", b"half a li"])
def test_a_reader_that_is_killed_again_and_again_loses_and_doubles_nothing(site: Site, part: bytes) -> None:
    log = site.write("net/slurm-2.out", LINES + part)
    site.open("net")
    site.until(lambda: site.streams.get(("net/slurm-2.out", 0)) == log.read_bytes())
    for n in range(3):
        site.signal("net", signal.SIGKILL)
        site.write("net/slurm-2.out", b"ne\nmore %d\n" % n + LINES + part)
        site.until(lambda: site.streams[("net/slurm-2.out", 0)] == log.read_bytes())
    assert len(site.of(Opened)) == 1
    assert not site.of(Closed)


def test_killed_while_it_reads_much(site: Site) -> None:
    data = LINES * 400  # 6 MB in pieces
    log = site.write("net/slurm-2.out", data)
    site.open("net")
    site.until(lambda: site.of(Data))
    site.signal("net", signal.SIGKILL)
    site.until(lambda: len(site.streams[("net/slurm-2.out", 0)]) >= len(data))
    assert site.streams == {("net/slurm-2.out", 0): log.read_bytes()}


def test_a_log_that_was_replaced_while_its_reader_was_dead_is_another_generation(site: Site) -> None:
    site.write("net/slurm-2.out", b"first\n")
    site.open("net")
    site.until(lambda: site.streams == {("net/slurm-2.out", 0): b"first\n"})
    site.signal("net", signal.SIGKILL)
    site.write("net/slurm-2.out", b"another\n", "wb")
    site.until(lambda: ("net/slurm-2.out", 1) in site.streams)
    site.until(lambda: site.streams[("net/slurm-2.out", 1)] == b"another\n")
    assert "after byte 6" in site.of(Closed)[0].note


def test_what_is_closed_stays_closed_when_its_reader_begins_anew(site: Site) -> None:
    site.write("net/slurm-2.out", b"x\n")
    source = site.open("net")
    site.until(lambda: site.of(Data))
    source.over(job("2"))
    site.until(lambda: site.closed_jobs == ["2"])
    site.signal("net", signal.SIGKILL)
    site.write("net/slurm-3.out", b"y\n")
    site.until(lambda: ("net/slurm-3.out", 0) in site.streams)
    assert len(site.of(Opened)) == 2
    source.running(job("2"))
    site.write("net/slurm-2.out", b"again\n")
    site.until(lambda: len(site.of(Opened)) == 3)
    site.until(lambda: b"again\n" in [i.data for i in site.of(Data)])


def test_another_run_goes_on_from_the_marks(site: Site) -> None:
    site.write("net/slurm-2.out", b"one\ntwo")
    site.write("disk/slurm-1.out", b"one\n")
    site.open(".")
    site.until(lambda: site.streams == {("net/slurm-2.out", 0): b"one\ntwo", ("disk/slurm-1.out", 0): b"one\n"})
    assert site.source is not None
    site.source.over(job("1"))
    site.until(lambda: site.closed_jobs)
    assert site.source is not None
    site.source.close()
    site.items.clear()
    site.write("net/slurm-2.out", b" and\n")
    site.open(".", marks=site.kept)
    site.until(lambda: site.of(Data))
    assert [d.data for d in site.of(Data)] == [b"two and\n"]
    assert [o.offset for o in site.of(Opened)] == [4]


def test_a_job_on_two_mounts_is_closed_once_by_the_last(site: Site) -> None:
    site.write("disk/slurm-7.out", b"x\n")
    site.write("net/slurm-7.out", b"x\n")
    source = site.open(".")
    site.until(lambda: len(site.of(Data)) == 2)
    source.over(job("7"))
    site.until(lambda: site.closed_jobs)
    assert [type(i) for i in site.items if isinstance(i, Closed | JobClosed)] == [Closed, Closed, JobClosed]


def test_a_job_that_is_over_on_a_mount_that_hangs_is_closed_in_the_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("defib.adapters.mounts.source.GIVE_UP_US", 2_000_000)
    site.write("net/slurm-7.out", b"x\n")
    source = site.open("net")
    site.until(lambda: site.of(Data))
    site.signal("net", signal.SIGSTOP)
    source.over(job("7"))
    site.until(lambda: site.closed_jobs == ["7"])
    assert "does not answer" in site.of(Closed)[0].note
    site.signal("net", signal.SIGCONT)
    time.sleep(0.3)
    for _ in range(20):
        site.poll()
    assert len(site.streams) == 1, "nothing comes of it afterwards"


def test_stopping_waits_for_no_hung_mount(site: Site) -> None:
    site.write("disk/slurm-1.out", b"x\n")
    site.write("net/slurm-2.out", b"x\n")
    site.open(".")
    site.until(lambda: len(site.of(Data)) == 2)
    site.signal("net", signal.SIGSTOP)
    site.until(lambda: any(site.troubles("net/slurm-2.out")))
    began = time.monotonic()
    site.stop()
    assert time.monotonic() - began < 5
    assert sorted(map(str, site.closed_jobs)) == ["1", "2"]
    assert any("does not answer" in (c.note or "") for c in site.of(Closed))


def test_a_reader_that_hangs_for_long_is_killed_and_another_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("defib.adapters.mounts.source.KILL_AFTER_US", 3_000_000)
    log = site.write("net/slurm-2.out", b"one\n")
    site.open("net")
    site.until(lambda: site.of(Data))
    first = site.reader("net").process.pid
    site.signal("net", signal.SIGSTOP)
    site.write("net/slurm-2.out", b"two\n")
    site.until(lambda: site.streams == {("net/slurm-2.out", 0): log.read_bytes()})
    assert site.reader("net").process.pid != first
    site.until(lambda: site.troubles("net/slurm-2.out")[-1] is None)


def test_links_that_were_named_lead_to_the_reader_of_another_mount(site: Site) -> None:
    site.write("net/real/slurm-2.out", b"x\n")
    (site.home / "disk" / "link").symlink_to("../net/real")
    (site.home / "disk" / "chain").symlink_to(site.home / "disk" / "link")
    site.open("disk/chain")
    site.until(lambda: site.streams == {("net/real/slurm-2.out", 0): b"x\n"})
    (site.home / "net" / "real" / "evil").symlink_to(site.home)
    site.write("slurm-9.out", b"x\n")
    for _ in range(10):
        site.poll()
    assert len(site.streams) == 1, "below what was named no link is followed"


def test_a_glob_goes_on_on_the_mounts_it_matches(site: Site) -> None:
    for name in ("disk/runs/a.log", "net/runs/b.log", "net/other/c.log", "runs/d.log"):
        site.write(name, b"x\n")
    site.open("*/runs/*.log")
    site.until(lambda: set(site.streams) == {("disk/runs/a.log", 0), ("net/runs/b.log", 0)})


def test_a_mount_that_comes_later_gets_its_reader(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("defib.adapters.mounts.source.TABLE_US", 300_000)
    site.write("slurm-1.out", b"x\n")
    site.open(".")
    site.until(lambda: site.of(Data))
    site.points[site.home / "late"] = "0:99"
    site.poll()
    site.write("late/slurm-5.out", b"x\n")
    site.until(lambda: ("late/slurm-5.out", 0) in site.streams)
    assert [o.id.path for o in site.of(Opened)].count(str(site.home / "late" / "slurm-5.out")) == 1


def test_what_a_scheduler_names_is_followed_beneath_allowed_folders_only(site: Site) -> None:
    (site.home / "users").symlink_to("net/users")
    site.write("net/users/ann/train.log", b"x\n")
    site.write("net/users/ann/ranks/rank_3.out", b"x\n")
    secret = site.write("disk/secret.log", b"x\n")
    (site.home / "net/users/ann/planted.log").symlink_to(secret)
    source = site.open(roots=("users",))
    facts = StreamFacts(JobKey("c", "77"), "train")
    for path in (
        "users/ann/train.log",
        "users/ann/ranks/*.out",
        "users/ann/planted.log",
        "disk/secret.log",
        "users/../disk/secret.log",
    ):
        source.assign(os.fsencode(site.home / path), facts, os.getuid())
    site.until(lambda: sorted(site.streams.values()) == [b"", b"x\n", b"x\n"])
    assert {o.facts.job for o in site.of(Opened)} == {facts.job}
    assert {o.facts.rank for o in site.of(Opened)} == {None, 3}
    site.until(lambda: any(site.troubles("net/users/ann/planted.log")))
    assert set(source.unread.values()) == {"outside the allowed folders"}
    assert len(source.unread) == 2


def test_another_owner_is_blind(site: Site) -> None:
    site.write("net/train.log", b"x\n")
    source = site.open(roots=("net",))
    source.assign(os.fsencode(site.home / "net/train.log"), StreamFacts(JobKey("c", "77")), os.getuid() + 1)
    site.until(lambda: site.of(Looked))
    assert site.of(Looked)[0].trouble == "belongs to another user"


def test_readers_die_with_their_parent(tmp_path: Path) -> None:
    code = (
        "import os, sys; from defib.adapters.mounts.source import Mounts; from defib.adapters.mounts.router import Setup\n"
        "from defib.adapters.tail.clock import SystemClock\n"
        "m = Mounts([os.fsencode(sys.argv[1])], SystemClock()); m.begin(Setup(()))\n"
        "while not m.readers()[0].polls: m.poll()\n"
        "print(*(r.process.pid for r in m.readers()), flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    for pid in done.stdout.split():
        began = time.monotonic()
        while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
            assert time.monotonic() - began < 10
            time.sleep(0.05)


def test_on_a_local_disk_a_write_is_seen_before_the_next_look(site: Site) -> None:
    site.kind = "ext4"
    site.write("disk/slurm-1.out", b"x\n")
    site.open("disk", every_s=3600, silent_s=20)
    site.until(lambda: site.of(Data))
    began = time.monotonic()
    while time.monotonic() - began < 8:  # until its folder is listened to
        site.poll()
    site.write("disk/slurm-1.out", b"y\n")
    site.until(lambda: site.streams == {("disk/slurm-1.out", 0): b"x\ny\n"})


def test_a_remote_mount_is_asked_at_its_time_only(site: Site) -> None:
    site.write("net/slurm-1.out", b"x\n")
    site.open("net", every_s=3600, silent_s=20)
    site.until(lambda: site.of(Data))
    site.write("net/slurm-1.out", b"y\n")
    began = time.monotonic()
    while time.monotonic() - began < 8:
        site.poll()
    assert site.streams == {("net/slurm-1.out", 0): b"x\n"}
