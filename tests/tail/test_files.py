"""The door to the kernel: what it refuses to open, in both ways of opening, and what it tells of an open file."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from defib.adapters.tail.files import SystemFiles
from defib.adapters.tail.siblings import open_checked


@pytest.fixture(params=["openat2", "component by component"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SystemFiles]:
    (tmp_path / "root" / "job").mkdir(parents=True)
    (tmp_path / "root" / "job" / "log").write_bytes(b"text\n")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "log").write_bytes(b"secret\n")
    made = SystemFiles((os.fsencode(tmp_path / "root"),), request.param == "openat2")
    yield made
    made.shut()


def path(tmp_path: Path, *parts: str) -> bytes:
    return os.fsencode(tmp_path.joinpath("root", *parts))


def refused(files: SystemFiles, name: bytes) -> int | None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is what counts
        files.open(name)
    return caught.value.errno


def test_a_file_below_the_root_is_read(files: SystemFiles, tmp_path: Path) -> None:
    handle = files.open(path(tmp_path, "job", "log"))
    assert files.read(handle, 2, 10) == b"xt\n"
    seen = files.stat(handle)
    os.close(handle)
    real = (tmp_path / "root/job/log").stat()
    assert (seen.ino, seen.size, seen.uid, seen.links, seen.regular) == (real.st_ino, 5, real.st_uid, 1, True)


def test_a_link_in_any_component_is_refused(files: SystemFiles, tmp_path: Path) -> None:
    (tmp_path / "root/link").symlink_to(tmp_path / "root/job/log")
    (tmp_path / "root/away").symlink_to(tmp_path / "secret")
    (tmp_path / "root/near").symlink_to("job")
    for name in ("link", "away/log", "near/log"):
        assert refused(files, path(tmp_path, *name.split("/"))) in (errno.ELOOP, errno.ENOTDIR)


@pytest.mark.parametrize("name", [b"../secret/log", b"job/../../secret/log", b"job/../job/log/../../../secret/log"])
def test_no_way_leads_out_of_the_root(name: bytes, files: SystemFiles, tmp_path: Path) -> None:
    assert refused(files, path(tmp_path) + b"/" + name) in (errno.EXDEV, errno.ENOTDIR, errno.ENOENT)


@pytest.mark.parametrize("name", [b"/etc/passwd", b"/proc/self/environ", b"relative", b""])
def test_what_is_outside_every_root_is_not_even_tried(name: bytes, files: SystemFiles) -> None:
    assert refused(files, name) == errno.EXDEV


def test_a_root_is_no_prefix_of_its_neighbours_name(files: SystemFiles, tmp_path: Path) -> None:
    (tmp_path / "root2").mkdir()
    (tmp_path / "root2/log").write_bytes(b"x")
    assert refused(files, os.fsencode(tmp_path / "root2/log")) == errno.EXDEV


def test_a_name_with_a_nul_is_refused(files: SystemFiles, tmp_path: Path) -> None:
    assert refused(files, path(tmp_path, "job") + b"/log\0.txt") == errno.EINVAL


def test_a_fifo_does_not_block_and_is_known_as_one(files: SystemFiles, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "root/fifo")
    handle = files.open(path(tmp_path, "fifo"))
    assert not files.stat(handle).regular
    os.close(handle)


def test_a_socket_cannot_be_opened(files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path / "root")  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("sock")
        assert refused(files, path(tmp_path, "sock")) == errno.ENXIO


def test_names_that_are_no_text_are_names(files: SystemFiles, tmp_path: Path) -> None:
    name = b"log\n\xff\x1b[31m"
    with open(os.path.join(path(tmp_path), name), "wb") as f:
        f.write(b"x")
    handle = files.open(path(tmp_path) + b"/" + name)
    os.close(handle)
    assert name in {n.name for n in files.names(path(tmp_path))}


def test_names_tell_what_is_what_without_following(files: SystemFiles, tmp_path: Path) -> None:
    (tmp_path / "root/link").symlink_to("job")
    os.mkfifo(tmp_path / "root/fifo")
    kinds = {n.name: n.kind for n in files.names(path(tmp_path))}
    assert kinds == {b"job": "folder", b"link": "other", b"fifo": "other"}
    (only,) = files.names(path(tmp_path, "job"))
    assert only.ino == (tmp_path / "root/job/log").stat().st_ino


def test_a_hole_is_jumped_over(files: SystemFiles, tmp_path: Path) -> None:
    with open(tmp_path / "root/sparse", "wb") as f:
        f.write(b"begin")
        f.truncate(64 << 20)
    handle = files.open(path(tmp_path, "sparse"))
    assert files.data_after(handle, 0) == 0
    assert files.data_after(handle, 1 << 20) is None
    with open(tmp_path / "root/sparse", "r+b") as f:
        f.seek(32 << 20)
        f.write(b"data")
    assert files.data_after(handle, 1 << 20) == 32 << 20
    os.close(handle)


def test_files_born_one_after_the_other_are_told_apart(files: SystemFiles, tmp_path: Path) -> None:
    born = []
    for n in range(3):
        (tmp_path / f"root/{n}").write_bytes(b"x")
        handle = files.open(path(tmp_path, str(n)))
        born.append((files.stat(handle).ino, files.stat(handle).born_ns))
        os.close(handle)
    assert len(set(born)) == 3


def test_a_root_that_was_replaced_is_found_again(files: SystemFiles, tmp_path: Path) -> None:
    os.close(files.open(path(tmp_path, "job", "log")))
    (tmp_path / "root").rename(tmp_path / "old")
    (tmp_path / "old/job/log").unlink()
    (tmp_path / "root/job").mkdir(parents=True)
    (tmp_path / "root/job/log").write_bytes(b"new\n")
    handle = files.open(path(tmp_path, "job", "log"))
    assert files.read(handle, 0, 9) == b"new\n"
    os.close(handle)


def test_a_folder_swapped_for_a_link_while_it_is_opened_never_leads_out(files: SystemFiles, tmp_path: Path) -> None:
    stop = threading.Event()
    (tmp_path / "root/evil").symlink_to(tmp_path / "secret")
    job, evil, other = (tmp_path / "root" / n for n in ("job", "evil", "other"))

    def swap() -> None:
        while not stop.is_set():
            job.rename(other)
            evil.rename(job)
            job.rename(evil)
            other.rename(job)

    thread = threading.Thread(target=swap)
    thread.start()
    opened = 0
    try:
        for _ in range(20_000):
            try:
                handle = files.open(path(tmp_path, "job", "log"))
            except OSError:
                continue
            opened += 1
            assert files.read(handle, 0, 99) == b"text\n"
            os.close(handle)
    finally:
        stop.set()
        thread.join()
    assert opened


@pytest.mark.parametrize("other", ["link", "fifo", "foreign"])
def test_a_log_swapped_while_it_is_opened_is_judged_by_what_was_opened(
    other: str, files: SystemFiles, tmp_path: Path
) -> None:
    """Thousands of swaps: what was opened is the user's own regular file, whatever stood at the path before or after."""
    stop = threading.Event()
    log, evil, third = (tmp_path / "root/job" / n for n in ("log", "evil", "third"))
    if other == "link":
        evil.symlink_to(tmp_path / "secret" / "log")
    elif other == "fifo":
        os.mkfifo(evil)
    else:
        evil.write_bytes(b"secret\n")
        if os.geteuid() == 0:
            os.chown(evil, 12345, 12345)
        else:
            evil.unlink()
            evil.mkdir()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            log.rename(third)
            evil.rename(log)
            log.rename(evil)
            third.rename(log)
            swaps += 1

    thread = threading.Thread(target=swap)
    thread.start()
    opened = refusals = 0
    try:
        while swaps < 3000 or not (opened and refusals):
            try:
                handle, _ = open_checked(files, path(tmp_path, "job", "log"), os.geteuid())
            except OSError:
                refusals += 1
                continue
            opened += 1
            assert files.read(handle, 0, 99) == b"text\n"
            os.close(handle)
    finally:
        stop.set()
        thread.join()


def test_other_mounts_are_not_touched(tmp_path: Path) -> None:
    """Neither listed nor opened, in both ways of opening; a root that is mounted in another is the one that counts."""
    for name in ("root/net/x", "root/disk/y"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "log").write_bytes(b"z")
    root, net, inner = (os.fsencode(tmp_path / n) for n in ("root", "root/net", "root/net/x"))
    for openat2 in (True, False):
        files = SystemFiles((root,), openat2, frozenset((net, os.fsencode(tmp_path))))
        assert [n.name for n in files.names(root)] == [b"disk"]
        assert refused(files, inner + b"/log") == errno.EXDEV
        os.close(files.open(path(tmp_path, "disk", "y", "log")))
        files.roots += (inner,)
        os.close(files.open(inner + b"/log"))
        files.shut()


def test_a_real_mount_is_not_crossed() -> None:
    """The kernel says so too, where a mount came after the table was read."""
    files = SystemFiles((b"/",), others=frozenset())
    with contextlib.suppress(OSError):
        os.close(files.open(b"/etc/hostname"))
    if not files.openat2 or not os.path.ismount("/proc"):
        return  # a kernel without the call: the table alone must do
    with pytest.raises(OSError, match="cross-device"):
        os.close(files.open(b"/proc/version"))
    files.shut()
