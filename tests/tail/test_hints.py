"""Hints: only for local file systems, and nothing goes wrong without them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from defib.adapters.tail.hints import LocalHints
from defib.adapters.tail.mountinfo import mount_of, mounts

MOUNTS = rb"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /home rw,relatime shared:20 - nfs4 server:/home rw,vers=4.2
41 40 0:36 / /home/with\040blank rw,relatime - lustre mgs@tcp:/fs rw
42 22 0:37 / /scratch rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (b"/var/log", "ext4"),
        (b"/home", "nfs4"),
        (b"/homes/x", "ext4"),
        (b"/home/x/logs", "nfs4"),
        (b"/home/with blank/x", "lustre"),
        (b"/scratch/job", "xfs"),
    ],
)
def test_the_file_system_of_a_path(path: bytes, kind: str) -> None:
    assert mount_of(path, mounts(MOUNTS)).kind == kind


def test_a_table_that_cannot_be_read_knows_nothing() -> None:
    assert mounts(b"garbage\n\n - \n1 2 3 - ext4") == []
    assert mount_of(b"/x", []).kind == ""


def test_network_file_systems_get_no_hints() -> None:
    hints = LocalHints([b"/home/x"], MOUNTS)
    assert hints.folders == []
    assert hints() == set()
    hints.close()


def test_a_folder_that_is_not_there_gets_none(tmp_path: Path) -> None:
    hints = LocalHints([os.fsencode(tmp_path / "nowhere")])
    assert hints() == set()


def test_a_write_on_a_local_disk_is_hinted_at(tmp_path: Path) -> None:
    hints = LocalHints([os.fsencode(tmp_path)], b"1 0 0:1 / / rw - ext4 /dev/vda rw\n")
    seen: set[bytes] = set()
    (tmp_path / "log").write_bytes(b"x")
    for _ in range(200):
        seen |= hints()
        if seen:
            break
        time.sleep(0.02)
    hints.close()
    assert seen == {os.fsencode(tmp_path / "log")}
