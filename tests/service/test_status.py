"""The status: asked over a socket by those who may, answered also when the loop is stuck, readable and steering nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_hostile import ATTACKS, STEERS

from defib.adapters.status import NAME, StatusServer, ask, rendered
from defib.engine.words import StoreError

DOCUMENT: dict[str, Any] = {
    "version": "1",
    "pid": 7,
    "running_s": 90,
    "jobs": {"healthy": 3, "hung": 1},
    "streams": {"open": 5, "troubled": 2, "lag_bytes": 4096},
    "mounts": [
        {"point": "/net", "kind": "nfs4", "trouble": "the mount /net does not answer for 20 s", "followed": 2, "pid": 9}
    ],
    "blind": [{"job": "17", "since": "2026-12-01 10:00:00", "because": "Stale file handle"}],
    "unread": [{"path": "/x", "why": "looks binary, not a log"}],
    "unread_count": 1,
    "journal": {"sequence": 12},
    "alarms": ["the disk is full"],
}


@pytest.fixture
def server(tmp_path: Path) -> Any:
    made = StatusServer(str(tmp_path / NAME))
    yield made
    made.close()


def test_what_was_published_is_answered(server: StatusServer, tmp_path: Path) -> None:
    server.publish(DOCUMENT)
    said = ask(str(tmp_path))
    assert said["schema"] == "defib/status/1"
    assert said["loop_turned_s_ago"] < 5
    assert {k: said[k] for k in DOCUMENT} == DOCUMENT
    assert oct((tmp_path / NAME).stat().st_mode)[-3:] == "600"


def test_a_loop_that_is_stuck_is_seen(server: StatusServer, tmp_path: Path) -> None:
    server.publish(DOCUMENT)
    server._published_s -= 100
    lines = rendered(ask(str(tmp_path)))
    assert lines[0].startswith("ATTENTION the main loop has not turned for 10")
    assert lines[1:3] == ["ATTENTION the mount /net does not answer for 20 s", "ATTENTION the disk is full"]


def test_it_reads_well() -> None:
    text = "\n".join(rendered(DOCUMENT))
    for part in ("3 healthy, 1 hung", "5 followed, 2 not vouched for", "4.1 KB known and not read", "sequence 12"):
        assert part in text
    assert "blind     17 since 2026-12-01 10:00:00: Stale file handle" in text


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_in_it_steers_a_terminal(attack: str) -> None:
    said = {
        **DOCUMENT,
        "jobs": {attack: 1},
        "mounts": [{"point": attack, "kind": attack, "trouble": attack}],
        "blind": [{"job": attack, "since": attack, "because": attack}],
        "unread": [{"path": attack, "why": attack}],
        "alarms": [attack],
        "journal": {attack: attack},
        "version": attack,
    }
    assert not any(STEERS.search(line) for line in rendered(said))


def test_without_a_document_it_reads_too() -> None:
    assert rendered({})


@pytest.mark.parametrize("there", ["nothing", "folder", "dead socket", "nonsense"])
def test_nobody_there_is_told_with_a_mend(there: str, tmp_path: Path) -> None:
    path = tmp_path / NAME
    if there == "folder":
        path.mkdir()
    elif there in ("dead socket", "nonsense"):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.bind(str(path))
        if there == "nonsense":
            s.listen()
            thread = threading.Thread(target=lambda: talk(s), daemon=True)
            thread.start()
        else:
            s.close()
    with pytest.raises(StoreError, match="mend: "):
        ask(str(tmp_path), 5)


def talk(s: socket.socket) -> None:
    peer, _ = s.accept()
    with peer:
        peer.sendall(b"\x00[1,2")
    s.close()


@pytest.mark.usefixtures("root")
def test_another_user_is_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    server = StatusServer(str(tmp_path / NAME))
    try:
        os.chmod(tmp_path / NAME, 0o666)
        code = (
            "import os, socket, sys; os.setgid(65534); os.setuid(65534); s = socket.socket(socket.AF_UNIX)\n"
            "os.chdir('/'); s.connect(sys.argv[1]); print(s.recv(1000))"
        )
        for folder in [tmp_path, *tmp_path.parents][:-2]:
            os.chmod(folder, 0o755)
        done = subprocess.run(
            [sys.executable, "-I", "-c", code, tmp_path / NAME], capture_output=True, text=True, check=False
        )
        assert "answers its own user only" in done.stdout, done.stderr
    finally:
        server.close()


def test_the_socket_of_a_dead_one_is_no_hindrance_and_goes_with_us(tmp_path: Path) -> None:
    first = StatusServer(str(tmp_path / NAME))
    second = StatusServer(str(tmp_path / NAME))
    second.publish({"pid": 2})
    assert ask(str(tmp_path))["pid"] == 2
    first._stop.set()
    second.close()
    assert not (tmp_path / NAME).exists()
    first.close()
