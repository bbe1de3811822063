"""Shared by the command line's tests: the real console command in a process of its own, and histories to ask."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loggen.presets import cases
from loggen.render import write

COMMAND = Path(sys.executable).with_name("defib")
DEMO_JOBS = 4  # of the demo: a healthy one, an OOM, a lost GPU, a hang

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def environment(**more: str) -> dict[str, str]:
    """Ours, without what colours or widens output; warnings are errors in the command too."""
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "DEFIB_DB", "TERM")}
    return {**kept, "PYTHONWARNINGS": "error", **more}


@pytest.fixture(scope="session")
def run() -> Run:
    """`run('jobs', '--db', x)`: the finished process with bytes of both streams."""
    assert COMMAND.exists(), f"{COMMAND}: defib is not installed in this environment (make test installs it)"

    def go(
        *args: str | bytes | Path, stdin: bytes = b"", cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [COMMAND, *args],
            input=stdin,
            capture_output=True,
            cwd=cwd,
            env=environment(**env),
            timeout=100,
            check=False,
        )

    return go


@pytest.fixture(scope="session")
def say() -> Run:
    """Like `run`, in this process: ten times as fast, for what does not need a process of its own."""
    from defib.adapters.cli import main

    def go(*args: str | bytes | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in "oe")
        words = [os.fsdecode(a) for a in args]
        with contextlib.chdir(cwd or "."), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code: object = main(words)
            except SystemExit as e:
                code = e.code
        seen = [t.buffer.getvalue() for t in (out, err) if isinstance(t.buffer, io.BytesIO)]
        return subprocess.CompletedProcess(words, int(str(code)), *seen)

    return go


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of four jobs."""
    folder = tmp_path_factory.mktemp("cli") / "demo"
    write(folder, cases("demo", count=DEMO_JOBS), 7)
    return folder


@pytest.fixture(scope="session")
def history(run: Run, demo: Path) -> Path:
    """The four jobs read into a history; nobody writes to it."""
    db = demo.parent / "history.duckdb"
    done = run("replay", demo, "--db", db, "-q")
    assert (done.returncode, done.stderr) == (0, b"")
    return db
