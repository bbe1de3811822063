"""The archive against a world that refuses: missing, forbidden, broken while read; and any bytes at all."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.adapters.conftest import LINES, Read, put, zst

from defib.adapters import archive as module


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    read = Read(tmp_path / "nowhere", put(tmp_path / "a.log", b"text\n"))
    assert read.only == b"text\n"
    assert read.unread == {str(tmp_path / "nowhere"): "No such file or directory"}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name).resolve()


@contextlib.contextmanager
def no_root() -> Iterator[None]:
    """Root may read any file, so root becomes nobody for a while."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_file_that_may_not_be_read(open_folder: Path) -> None:
    put(open_folder / "a.log", b"text\n").chmod(0)
    with no_root():
        read = Read(open_folder)
    assert read.unread == {str(open_folder / "a.log"): "Permission denied"}


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENOENT])
def test_a_file_the_system_refuses_to_open(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, real = str(put(tmp_path / "a.log", b"text\n")), os.open
    put(tmp_path / "b.log", b"fine\n")

    def refuse(path: Any, *rest: Any, **more: Any) -> int:
        if path == bad:
            raise OSError(code, os.strerror(code), path)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    read = Read(tmp_path)
    assert read.only == b"fine\n"
    assert read.unread == {bad: os.strerror(code)}
    assert read.archive.unread[0].refused


@pytest.mark.parametrize("good", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["plain", "gz", "zst"])
def test_a_file_that_fails_while_it_is_read(
    kind: str, good: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(io.FileIO):
        left = good

        def fail(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        def read(self, *a: Any) -> bytes:
            self.fail()
            return super().read(*a)

        def readinto(self, *a: Any) -> int:
            self.fail()
            return super().readinto(*a)

    data = {"plain": LINES, "gz": gzip.compress(LINES, 0), "zst": zst(random.Random(1).randbytes(300_000))}[kind]
    bad = put(tmp_path / "a.log", data)
    real = os.fdopen
    monkeypatch.setattr(
        os, "fdopen", lambda fd, *a, **k: Failing(fd) if bad.stat().st_ino == os.fstat(fd).st_ino else real(fd, *a, **k)
    )
    put(tmp_path / "b.log", b"fine\n")
    read = Read(tmp_path, block_bytes=65_536)
    assert read.data[str(tmp_path / "b.log")] == b"fine\n"
    assert list(read.unread) == [str(bad)]
    assert os.strerror(errno.EIO) in read.unread[str(bad)]
    if good:
        assert (read.notes[str(bad)] or "").startswith("read to where it broke")
    if kind == "plain" and good > 1:
        assert LINES.startswith(read.data[str(bad)])
        assert len(read.data[str(bad)]) == (good - 1) * 65_536


def test_a_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shut").mkdir()
    put(tmp_path / "a.log", b"text\n")
    real = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("shut"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    read = Read(tmp_path)
    assert read.only == b"text\n"
    assert read.unread == {str(tmp_path / "shut"): "Permission denied"}


def test_nothing_is_left_open(tmp_path: Path) -> None:
    for i in range(20):
        put(tmp_path / f"{i}.log", gzip.compress(b"x\n") if i % 2 else b"x\n")
    before = len(os.listdir("/proc/self/fd"))
    Read(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=3000), kind=st.sampled_from(["plain", "gz", "zst"]), cut=st.integers(0, 3000))
def test_any_bytes_end_without_an_error(data: bytes, kind: str, cut: int, tmp_path: Path) -> None:
    packed = {"plain": data, "gz": gzip.compress(data), "zst": zst(data)}[kind][:cut]
    read = Read(put(tmp_path / "a.log", packed))
    for got in read.data.values():
        assert data.startswith(got) or packed == got or not packed.startswith((module.GZIP, module.ZSTD))
