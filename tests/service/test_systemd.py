"""What the service manager hears, and the unit it gets."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from tests.needs import lacking

from defib.adapters.systemd import Notifier, unit

HARDENED = """NoNewPrivileges=yes ProtectSystem=strict ProtectHome=read-only PrivateTmp=yes RestrictAddressFamilies= SystemCallFilter=
MemoryMax= CapabilityBoundingSet= StateDirectory=defib Type=notify WatchdogSec=""".split()


@pytest.mark.parametrize("abstract", [False, True])
def test_it_is_heard(abstract: bool, tmp_path: Path) -> None:
    name = f"\0defib-test-{os.getpid()}" if abstract else str(tmp_path / "n.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(name)
        s.settimeout(5)
        n = Notifier(
            {"NOTIFY_SOCKET": name.replace("\0", "@"), "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())}
        )
        assert n.tell("READY=1")
        assert s.recv(100) == b"READY=1"
        for now in (1_000_000, 1_500_000, 2_000_000, 2_900_000, 3_000_000):
            n.beat(now)
        s.setblocking(False)
        assert [s.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        with pytest.raises(BlockingIOError):
            s.recv(100)


@pytest.mark.parametrize(
    "environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nowhere/x"}, {"NOTIFY_SOCKET": "vsock:2:1"}]
)
def test_without_a_manager_nothing_happens(environ: dict[str, str]) -> None:
    n = Notifier(environ)
    assert not n.tell("READY=1")
    n.beat(10**9)


def test_a_watchdog_for_another_process_is_not_ours() -> None:
    assert Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_us == 0


def test_the_unit_is_hardened() -> None:
    text = unit("/opt/defib/bin/defib")
    assert [w for w in HARDENED if not any(line.startswith(w) for line in text.splitlines())] == []
    assert "ExecStart=/opt/defib/bin/defib watch" in text


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        lacking("systemd", "there is no systemd-analyze here")
    path = tmp_path / "defib.service"
    path.write_text(unit("/bin/true"))
    done = subprocess.run([tool, "verify", path], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, [x for x in done.stderr.splitlines() if "defib" in x]) == (0, [])
