"""`defib scan`: hits by file and line, as text and JSON, in any kind of file."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from defib.adapters import matching

Run = Any
TRACE = b"Traceback (most recent call last):\n"
LOST = b"node1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"


def log(*parts: bytes) -> bytes:
    return b"".join(parts)


@pytest.fixture(autouse=True, params=["on", "off"])
def helper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the helper in C, where it can be had, and without."""
    monkeypatch.setenv("DEFIB_NATIVE", request.param)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.out").write_bytes(log(b"one\n", TRACE, b"two\rthree\rfour\n", LOST, b"x\n", TRACE))
    (folder / "b.out.gz").write_bytes(gzip.compress(log(b"\x1b[31mred\x1b[0m\n", b"bar\rbar\n", TRACE.rstrip())))
    (folder / "c.out").write_bytes(b"nothing here\n" * 10)
    (folder / "d.out").write_bytes(bytes(range(256)) * 40)
    return folder


def test_every_hit_has_its_line(say: Run, logs: Path) -> None:
    done = say("scan", logs, "--each")
    places = [line.rpartition("/")[2] for line in done.stdout.decode().splitlines()]
    traces = [p for p in places if p.endswith("python.traceback")]
    assert traces == ["a.out:2: python.traceback", "a.out:6: python.traceback", "b.out.gz:3: python.traceback"]
    assert "a.out:4: gpu.xid" in places
    assert b"looks binary" in done.stderr
    assert done.returncode == 0


def test_counts_and_places(say: Run, logs: Path) -> None:
    shown = say("scan", logs).stdout.decode()
    assert "a.out:2: python.traceback (2, last at line 6)\n" in shown
    total = say("scan", logs, "--count").stdout.decode().split()
    assert total[:2] == ["3", "python.traceback"]
    document = json.loads(say("scan", logs, "--json").stdout)
    assert document["files"] == 3
    row = next(r for r in document["rows"] if r["rule"] == "python.traceback" and r["path"].endswith("a.out"))
    assert (row["count"], row["first_line"], row["last_line"]) == (2, 2, 6)
    assert "first_line" not in json.loads(say("scan", logs, "--json", "--count").stdout)["rows"][0]


def test_exit_codes(say: Run, logs: Path, tmp_path: Path) -> None:
    assert say("scan", logs / "c.out").returncode == 1
    assert say("scan", logs / "c.out", tmp_path / "none.log").returncode == 3
    broken = tmp_path / "broken.gz"
    broken.write_bytes((logs / "b.out.gz").read_bytes()[:-12])
    done = say("scan", broken)
    assert b"read to where it broke" in done.stderr
    assert done.returncode == 3


@pytest.mark.parametrize("pays", [0, 1 << 40])
def test_lines_do_not_depend_on_how_they_are_counted(
    say: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pays: int
) -> None:
    monkeypatch.setattr(matching, "NUMPY_PAYS", pays)
    monkeypatch.setattr(matching, "BLOCK_BYTES", 4096)
    path = tmp_path / "long.log"
    path.write_bytes(b"".join(b"filler %d\n" % i for i in range(5000)) + TRACE + b"y" * 300_000 + b"\n" + TRACE)
    assert "long.log:5001: python.traceback (2, last at line 5003)" in say("scan", path).stdout.decode()


def test_a_scan_without_finds_loads_nothing_heavy(logs: Path, say: Run) -> None:
    say("scan", logs)  # fills the cache
    code = (
        "import sys; from defib.adapters.cli import main; main(['scan', sys.argv[1]]); "
        "print(sorted({'numpy', 'pyarrow', 'polars', 'duckdb', 'yaml', 'pydantic', 'orjson', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, logs / "c.out"], capture_output=True, check=True, timeout=100)
    assert done.stdout.decode().splitlines()[-1] == "[]"


def test_blocks_and_the_helper_change_nothing_in_a_storm(
    say: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm = b"".join(b"[rank%d]: " % (n % 7) + (TRACE if n % 3 else LOST) + b"quiet\n" * (n % 5) for n in range(3000))
    (tmp_path / "storm.log").write_bytes(storm)
    said = set()
    for size in (4096, 100_000, 1 << 20):
        monkeypatch.setattr(matching, "BLOCK_BYTES", size)
        said.add(say("scan", tmp_path / "storm.log").stdout)
    (only,) = said
    assert b"storm.log:2: python.traceback (2000, last at line 8996)" in only, only


@pytest.mark.parametrize("to", ["full", "closed"])
def test_an_output_that_takes_nothing_is_no_fault_of_the_log(tmp_path: Path, to: str) -> None:
    """`scan --each | head -1` ends quietly; a full disk is told as such."""
    (tmp_path / "many.out").write_bytes(TRACE * 30_000)
    command = [Path(sys.executable).with_name("defib"), "scan", "many.out", "--each"]
    if to == "full":
        with open("/dev/full", "wb") as out:
            done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, cwd=tmp_path, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (3, b"defib: the output cannot be written: No space left on device\n")
        return
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as asked:
        assert asked.stdout is not None
        assert asked.stderr is not None
        assert asked.stdout.readline().endswith(b"many.out:1: python.traceback\n")
        asked.stdout.close()
        assert (asked.stderr.read(), asked.wait(60)) == (b"", 0)
