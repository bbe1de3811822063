"""The archive: every kind of byte and every kind of path a directory of finished logs may hold."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import random
import socket
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.conftest import LINES, Read, put, zst

from defib.adapters.archive import Archive
from defib.adapters.rulefiles import LoadedRules
from defib.adapters.show import shown
from defib.adapters.sniff import MAGIC, is_binary
from defib.engine.ports import Data, Opened

# --- what the bytes look like -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"\n",
        b"no line end at the end",
        b"one\r\ntwo\r\n",
        b"\0" * 5000 + b"after a hole\n" + b"\0" * 5000,
        b"\0" * 20_000,
        b"caf\xe9 \xff\xfe\x80 \xc3\n" * 50,
        "\ufeffutf-8 with a mark\n".encode(),
        "Ein Traceback, überall\n".encode("utf-16"),
        "Ein Traceback, überall\n".encode("utf-16-be"),
        b"\x1b[31mred\x1b[0m \x1b]0;title\x07\n" * 20,
        b"  1%|#         | 1/100\r  2%|#         | 2/100\r",
        LINES,
    ],
    ids=["1-byte", "lf", "no-lf", "crlf", "nul-runs", "only-nul", "latin-1", "bom", "utf-16", "utf-16-be", "colour", "bar", "blocks"],
)  # fmt: skip
def test_bytes_arrive_as_they_are(data: bytes, tmp_path: Path) -> None:
    read = Read(put(tmp_path / "a.log", data))
    assert read.only == data
    assert (read.note, read.unread, read.jobs, read.read) == (None, {}, 1, len(data))


def test_an_empty_file_is_a_log_that_says_nothing(tmp_path: Path) -> None:
    read = Read(put(tmp_path / "a.log", b""))
    assert (read.only, read.note, read.unread) == (b"", "empty file", {})


@pytest.mark.parametrize("block", [1024, 4096, 65_536, 16 << 20])
def test_blocks_of_any_size_give_the_same_bytes(block: int, tmp_path: Path) -> None:
    plain, frames = put(tmp_path / "a.log", LINES), put(tmp_path / "c.log.zst", zst(LINES))
    packed = put(tmp_path / "b.log.gz", gzip.compress(LINES, 1))
    read = Read(plain, packed, frames, block_bytes=block)
    assert [len(d) for d in read.data.values()] == [len(LINES)] * 3
    assert all(d == LINES for d in read.data.values())
    assert read.read == sum(p.stat().st_size for p in (plain, packed, frames))


def test_binaries_are_told_apart_and_are_no_refusal(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as z:
        z.writestr("a.txt", "text " * 500)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:xz") as t:
        t.addfile(tarfile.TarInfo("a"))
    binaries = {
        "elf": Path("/proc/self/exe").read_bytes()[:20_000],
        "zip": made.getvalue(),
        "tar-xz": tar.getvalue(),
        "random": random.Random(7).randbytes(20_000),
        "pickle": b"\x80\x04\x95" + bytes(range(256)) * 8,
        "sqlite": b"SQLite format 3\0" + bytes(200),
    }
    for name, data in binaries.items():
        put(tmp_path / name, data)
    put(tmp_path / "a.log", b"text\n")
    read = Read(tmp_path)
    assert list(read.data) == [str(tmp_path / "a.log")]
    assert {os.path.basename(p) for p in read.unread} == set(binaries)
    assert not any(u.refused for u in read.archive.unread)
    assert all("binary" in u.why for u in read.archive.unread)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from("\n\r\t\x1b\0"), max_size=400))
def test_text_is_never_taken_for_a_binary(text: str) -> None:
    data = text.encode()
    assert not is_binary(data) or data.startswith(MAGIC)


# --- packed files ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_members_and_frames_are_joined(kind: str, parts: int, tmp_path: Path) -> None:
    pack = gzip.compress if kind == "gz" else zst
    cuts = [len(LINES) * i // parts for i in range(parts + 1)]
    packed = b"".join(pack(LINES[a:b]) for a, b in itertools.pairwise(cuts))
    read = Read(put(tmp_path / f"a.log.{kind}", packed))
    assert read.only == LINES
    assert (read.note, read.unread) == (None, {})


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_an_empty_member_ends_nothing(kind: str, tmp_path: Path) -> None:
    pack = gzip.compress if kind == "gz" else zst
    read = Read(put(tmp_path / f"a.{kind}", pack(b"") + pack(b"one\n") + pack(b"") + pack(b"two\n") + pack(b"")))
    assert read.only == b"one\ntwo\n"


def test_the_name_does_not_decide_how_a_file_is_packed(tmp_path: Path) -> None:
    read = Read(put(tmp_path / "a.log", gzip.compress(b"packed\n")), put(tmp_path / "b.gz", b"plain\n"))
    assert list(read.data.values()) == [b"packed\n", b"plain\n"]


def test_zeros_after_a_gzip_member_are_padding(tmp_path: Path) -> None:
    read = Read(put(tmp_path / "a.gz", gzip.compress(b"one\n") + bytes(512)))
    assert (read.only, read.note) == (b"one\n", None)


def decodable(packed: bytes, kind: str) -> bytes:
    """All that a patient reader gets out of a truncated file."""
    if kind == "zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    return zlib.decompressobj(wbits=31).decompress(packed)


@pytest.mark.parametrize("block", [4096, 1 << 20])
@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_truncated_file_gives_what_it_holds_and_says_so(kind: str, block: int, tmp_path: Path) -> None:
    text = "".join(f"{i} {random.Random(i).random()}\n" for i in range(30_000)).encode()
    packed = gzip.compress(text) if kind == "gz" else zst(text)
    path = put(tmp_path / f"a.log.{kind}", packed[: len(packed) * 3 // 4])
    whole = decodable(path.read_bytes(), kind)
    assert len(whole) > len(text) // 2
    read = Read(path, block_bytes=block)
    assert text.startswith(read.only)
    assert read.note is not None, f"a truncated .{kind} is not noticed"
    assert read.note.startswith("read to where it broke")
    assert list(read.unread) == [str(path)]
    assert len(read.only) == len(whole), f"{len(whole)} bytes can be unpacked, {len(read.only)} were given on"


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_rubbish_after_a_packed_log_does_not_cost_the_log(kind: str, tmp_path: Path) -> None:
    pack = gzip.compress if kind == "gz" else zst
    read = Read(put(tmp_path / f"a.{kind}", pack(b"one\ntwo\n") + b"rubbish, not a member"))
    assert read.note is not None
    assert read.only == b"one\ntwo\n"


def test_a_damaged_file_does_not_stop_the_others(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(LINES))
    packed[len(packed) // 2] ^= 0xFF
    read = Read(put(tmp_path / "a.log.gz", bytes(packed)), put(tmp_path / "b.log", b"fine\n"))
    assert read.data[str(tmp_path / "b.log")] == b"fine\n"
    assert read.notes[str(tmp_path / "a.log.gz")] is not None


def test_zstd_behind_a_skippable_frame_is_read(tmp_path: Path) -> None:
    """pzstd and seekable archives begin or end so (RFC 8878, 3.1.2)."""
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    read = Read(put(tmp_path / "a.zst", zst(b"one\n") + skippable), put(tmp_path / "b.zst", skippable + zst(b"two\n")))
    assert list(read.data.values()) == [b"one\n", b"two\n"]


def test_a_bomb_comes_in_blocks(tmp_path: Path) -> None:
    archive = Archive([str(put(tmp_path / "a.zst", zst(bytes(64 << 20))))], (), block_bytes=65_536)
    sizes = []
    while (items := archive.poll()) is not None:
        sizes += [len(i.data) for i in items if isinstance(i, Data)]
    assert (max(sizes), sum(sizes)) == (65_536, 64 << 20)


# --- what is found ----------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(20)
def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.path.relpath(tmp_path / "socket.log"))
    os.symlink("/dev/zero", tmp_path / "device.log")
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling.log")
    put(tmp_path / "a.log", b"text\n")
    found = Read(tmp_path)
    named = Read(*(tmp_path / f"{n}.log" for n in ("pipe", "socket", "device", "a")), "/dev/tty")
    listening.close()
    assert list(found.data) == list(named.data) == [str(tmp_path / "a.log")]
    assert set(named.unread) >= {str(tmp_path / n) for n in ("pipe.log", "socket.log", "device.log")}
    assert all(u.refused for u in named.archive.unread)


@pytest.mark.timeout(20)
def test_a_fifo_that_took_a_files_place_does_not_block(tmp_path: Path) -> None:
    path = put(tmp_path / "a.log", b"text\n")
    archive = Archive([str(path), str(put(tmp_path / "b.log", b"b\n"))], ())
    archive.open()
    path.unlink()
    os.mkfifo(path)
    items = []
    while (some := archive.poll()) is not None:
        items += some
    assert [u.path for u in archive.unread] == [str(path)]
    assert [i.data for i in items if isinstance(i, Data)] == [b"b\n"]


def test_loops_of_links_end_and_a_file_is_read_once(tmp_path: Path) -> None:
    run = tmp_path / "logs" / "run"
    run.mkdir(parents=True)
    put(run / "a.log", b"once\n")
    os.symlink(tmp_path / "logs", run / "up")
    os.symlink(".", run / "here")
    os.symlink("self", run / "self")
    os.symlink(run / "a.log", tmp_path / "logs" / "same.log")
    os.link(run / "a.log", tmp_path / "logs" / "hard.log")
    os.symlink(run, tmp_path / "logs" / "again")
    read = Read(tmp_path / "logs", run, run / "a.log", tmp_path / "logs" / "same.log")
    assert list(read.data.values()) == [b"once\n"]
    assert read.jobs == 1


def test_a_links_name_may_hold_the_jobs_number(tmp_path: Path, loaded: LoadedRules) -> None:
    real = tmp_path / "blob"
    real.mkdir()
    put(real / "train.log", b"x\n")
    put(real / "slurm-812301.out", b"x\n")
    os.symlink(real / "train.log", tmp_path / "slurm-812399.out")
    os.symlink(real / "slurm-812301.out", tmp_path / "latest.out")

    def number(path: Path) -> str | None:
        source = Archive([str(path)], loaded.book.paths)
        source.open()
        (opened,) = [i for i in source.poll() or [] if isinstance(i, Opened)]
        assert opened.id.path == str(path.resolve()), "a log is the same log by any name"
        return opened.facts.job.job_id

    assert number(real / "train.log") is None
    assert number(tmp_path / "slurm-812399.out") == "812399"
    assert number(tmp_path / "latest.out") == "812301", "the place a link leads to knows best"


def test_what_is_hidden_or_no_log_is_passed_over_unless_named(tmp_path: Path) -> None:
    for name in (".hidden.log", "model.pt", "config.yaml", "run.log"):
        put(tmp_path / name, b"text\n")
    assert list(Read(tmp_path).data) == [str(tmp_path / "run.log")]
    named = Read(tmp_path / ".hidden.log", tmp_path / "config.yaml")
    assert list(named.data) == [str(tmp_path / ".hidden.log"), str(tmp_path / "config.yaml")]


def test_the_order_of_arguments_does_not_matter(tmp_path: Path) -> None:
    paths = [put(tmp_path / f"{n}.log", n.encode()) for n in ("b", "a", "c")]
    assert Read(*paths).data == Read(*reversed(paths)).data == Read(tmp_path).data


def test_a_tree_as_deep_as_the_system_allows(tmp_path: Path) -> None:
    """1,200 folders in each other; no recursion of ours may run out."""
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    handle = os.open("a.log", os.O_WRONLY | os.O_CREAT, dir_fd=here)
    os.write(handle, b"deep\n")
    os.close(handle)
    os.close(here)
    try:
        assert Read(tmp_path).only == b"deep\n"
    finally:
        os.system(f"rm -rf {tmp_path}/d")


NAMES = [
    b"line\nfeed.log",
    b"esc\x1b[31m.log",
    b"bytes\xff\x9b.log",
    "bidi\u202egol.log".encode(),
    b"-rf.log",
    b"sp ace|pipe.log",
]


@pytest.mark.parametrize("name", NAMES)
def test_odd_names_are_read(name: bytes, tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), name)
    with open(path, "wb") as f:
        f.write(b"text\n")
    for how in (path, os.fsencode(tmp_path)):
        read = Read(how)
        assert read.only == b"text\n"
        (seen,) = read.data
        assert seen == shown(os.fsdecode(path))
        seen.encode()  # text without surrogates


def test_two_names_that_look_alike_are_two_streams(tmp_path: Path) -> None:
    r"""Byte 0xff in a name is shown as the four characters \xff; a file may have those in its name."""
    for name in (b"a\xff.log", b"a\\xff.log"):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as f:
            f.write(name)
    read = Read(tmp_path)  # asserts that no stream id comes twice
    assert len(read.data) == 2


def test_a_log_beside_its_packed_copy_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.out").write_bytes(b"step 1\n")
    (tmp_path / "a.out.gz").write_bytes(gzip.compress(b"step 1\n"))
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(b"step 2\n"))
    source = Archive([str(tmp_path)], ())
    source.open()
    assert [os.path.basename(f.path) for f in source.files] == ["a.out", "b.log.gz"]
    assert [(os.path.basename(u.path), "the same log" in u.why) for u in source.unread] == [("a.out.gz", True)]


def test_a_link_in_a_folder_leads_to_nothing_outside_of_what_was_named(tmp_path: Path) -> None:
    logs, outside = tmp_path / "logs", tmp_path / "outside"
    for folder in (logs, outside, tmp_path / "logs-old"):
        folder.mkdir()
        put(folder / "a.log", folder.name.encode())
    put(outside / "config.yaml", b"text\n")
    os.symlink(outside / "a.log", logs / "file.log")
    os.symlink(outside, logs / "folder")
    os.symlink("../logs-old", logs / "alike")  # its name begins like that of the folder
    os.symlink(tmp_path / "nowhere", logs / "dangling.log")
    os.symlink(outside / "config.yaml", logs / "config.yaml")  # would not be read inside either
    os.symlink("a.log", logs / "inside.log")
    os.symlink(".", logs / "again")
    read = Read(logs)
    assert list(read.data.values()) == [b"logs"]
    skipped = {os.path.basename(u.path): u for u in read.archive.unread}
    assert sorted(skipped) == ["alike", "dangling.log", "file.log", "folder"]
    assert len(read.archive.unread) == 4, "each is told once, also where a link leads to its folder again"
    assert all("leads outside" in u.why and not u.refused for u in skipped.values())
    # By name it is what the person meant, and so is a link between two folders that both are named.
    assert list(Read(logs / "file.log").data.values()) == [b"outside"]
    both = Read(logs, outside)
    assert sorted(both.data.values()) == [b"logs", b"outside"]
    os.symlink(logs, tmp_path / "link")
    assert list(Read(tmp_path / "link").data.values()) == [b"logs"]


def test_a_binary_given_by_name_is_a_refusal(tmp_path: Path) -> None:
    path = put(tmp_path / "core.log", b"\x7fELF" + bytes(range(256)))
    (told,) = Read(path).archive.unread
    assert told.refused
    assert "binary" in told.why
