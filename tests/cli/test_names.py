"""What is named on the command line and is not there, or not so."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from defib.adapters.show import safe

Run = Any  # the fixture's type lives in conftest.py


@pytest.mark.parametrize(
    "command", ["replay --db :memory:", "check-log", "why", "scan", "rules coverage", "rules profile"]
)
def test_a_folder_without_a_log_is_missing_input_everywhere(say: Run, tmp_path: Path, command: str) -> None:
    """And where there is another that holds one, it is only told."""
    (tmp_path / "empty").mkdir()
    told = f"not read: {tmp_path}/empty: no log in it\n"
    done = say(*command.split(), "empty", cwd=tmp_path)
    assert (done.returncode, told in done.stderr.decode()) == (3, True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.log").write_text(
        " iteration 1/ 10 | elapsed time per iteration (ms): 400.0 |\nRuntimeError: x\n"
    )
    done = say(*command.split(), "empty", "full", "full/a.log", cwd=tmp_path)
    assert (done.returncode, told in done.stderr.decode()) == (0, True)


def test_a_job_is_found_by_the_name_it_is_shown_by(say: Run, tmp_path: Path) -> None:
    """Bytes that are no text, and characters that steer a terminal, are shown as escapes; its page has every line all the same."""
    line = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.62 GiB. GPU 0 has a total capacity of 79.10 GiB\n"
    for name in (b"caf\xe9", b"red\x1b[31m", b"back\\slash"):
        folder = os.path.join(os.fsencode(tmp_path), b"logs", name)
        os.makedirs(folder)
        with open(os.path.join(folder, b"train.log"), "wb") as f:
            f.write(line)
    assert say("replay", "logs", "--db", "h.duckdb", cwd=tmp_path).returncode == 0
    rows = json.loads(say("jobs", "--db", "h.duckdb", "--json", cwd=tmp_path).stdout)["rows"]
    shown = {safe(r["job"]) for r in rows}
    assert len(shown) == 3
    for job in shown:
        page = say("why", job, "--db", "h.duckdb", cwd=tmp_path)
        assert (page.returncode, b"rule cuda.out-of-memory, " in page.stdout) == (0, True), page
        listed = say("incidents", "--job", job, "--db", "h.duckdb", "--json", cwd=tmp_path)
        assert len(json.loads(listed.stdout)["rows"]) == 1
