"""One command of Slurm, run so that it cannot harm whoever asks.

In: which tool, fixed arguments, how to get to where Slurm lives. Out: an `Answer` with what came back. Always: an argument list, never a shell
of ours; a clean environment; a hard deadline after which the whole process group is killed; output bounded; nothing the command does raises.

Where Slurm lives elsewhere a prefix goes first (`kubectl exec -n slurm login-0 --`, `ssh head1`). The environment then travels as words of
`env -i`, so the far side is as clean as this one. ssh hands its words to a shell on the far side: declared with `shell`, they are quoted. What
the prefix itself needs (KUBECONFIG, HOME) belongs into it: `env KUBECONFIG=/etc/defib/kube kubectl …`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from defib.adapters.show import cut, safe

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/opt/slurm/bin:/usr/local/slurm/bin"
OUT_MAX = 256 * 1024 * 1024
ERR_MAX = 64 * 1024
DEADLINE_S = 30.0  # more than twice Slurm's MessageTimeout of 10 s
REAP_S = 5.0  # a killed process that is still there after so long hangs in the kernel and is left behind


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command came to. rc: None when it was killed or never began; cut: it printed more than it may; failed: why it never began."""

    argv: tuple[str, ...]
    rc: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    cut: bool = False
    took_s: float = 0.0
    failed: str = ""

    @property
    def good(self) -> bool:
        return self.rc == 0 and not self.cut

    @property
    def said(self) -> str:
        """Why it is no good answer, in one line that is safe to show."""
        if self.failed:
            return safe(self.failed)
        if self.timed_out:
            return f"no answer within {self.took_s:.0f} s"
        if self.cut:
            return "it printed more than is read"
        lines = [t for raw in self.stderr.split(b"\n") if (t := raw.decode("utf-8", "replace").strip())]
        return cut(safe("; ".join(lines[:3])), 300) or f"exit code {self.rc}, nothing on standard error"


@dataclass(frozen=True, slots=True)
class Commands:
    """How to get at Slurm's tools. folder: where they are; without it the first on `path` (with a prefix: on the far side's `path`).

    conf: a slurm.conf that is not in the usual place. shell: words after the prefix pass through a shell on the far side.
    """

    prefix: tuple[str, ...] = ()
    shell: bool = False
    folder: str | None = None
    conf: str | None = None
    path: str = PATH

    def environment(self) -> dict[str, str]:
        """All a tool of Slurm gets to see. Times come as seconds since 1970, whatever zone the cluster lives in."""
        seen = {"PATH": self.path, "LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
        return seen | ({"SLURM_CONF": self.conf} if self.conf else {})

    def argv(self, tool: str, *args: str) -> list[str]:
        """The words to run. With a prefix everything the far side needs is among them."""
        binary = os.path.join(self.folder, tool) if self.folder else tool
        if not self.prefix:
            return [shutil.which(binary, path=self.path) or binary, *args]
        words = ["env", "-i", *(f"{k}={v}" for k, v in self.environment().items()), binary, *args]
        return [*self.prefix, *(map(shlex.quote, words) if self.shell else words)]

    def call(self, tool: str, *args: str, deadline_s: float = DEADLINE_S) -> Call:
        """A call that has not begun."""
        return Call(self.argv(tool, *args), self.environment(), deadline_s)

    def run(self, tool: str, *args: str, deadline_s: float = DEADLINE_S) -> Answer:
        """Begin, wait for the end, at most the deadline and the time it takes to die."""
        call, pause = self.call(tool, *args, deadline_s=deadline_s), 0.002
        call.start()
        while (answer := call.poll()) is None:
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return answer


@dataclass(slots=True)
class Call:
    """A command that runs while its caller does other things: `start` once, `poll` until it answers. Neither waits.

    What it prints goes to memory files of its own, so a full pipe never stops it; a limit on file size ends it when it prints too much.
    """

    argv: list[str]
    env: dict[str, str]
    deadline_s: float = DEADLINE_S
    out_max: int = OUT_MAX
    err_max: int = ERR_MAX
    clock: Callable[[], float] = time.monotonic
    _process: subprocess.Popen[bytes] | None = None
    _files: list[IO[bytes]] = field(default_factory=list)
    _began: float = 0.0
    _killed: float | None = None
    _timed_out: bool = False
    _cut: bool = False
    _answer: Answer | None = None

    def start(self) -> None:
        """Run it. A command that cannot be run answers so at the next poll."""
        assert self._process is None, "a call is made once"
        self._began = self.clock()
        self._files = [_memory(), _memory()]
        out, err = self._files
        try:
            self._process = subprocess.Popen(  # noqa: S603 - an argument list out of our own configuration, no shell
                self.argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self.env, cwd="/", start_new_session=True
            )  # fmt: skip
        except (OSError, ValueError) as e:
            why = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
            self._end(None, f"{self.argv[0]} cannot be run: {why}")
            return
        with contextlib.suppress(OSError):  # it may be over already
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (self.out_max + 1, self.out_max + 1))

    def poll(self) -> Answer | None:
        """The answer, or None while there is none."""
        if self._answer is not None:
            return self._answer
        assert self._process is not None, "a call that was not begun"
        rc, now = self._process.poll(), self.clock()
        self._cut |= any(os.fstat(f.fileno()).st_size > most for f, most in self._bounds())
        if rc is not None:
            return self._end(None if self._killed is not None else rc)
        if self._killed is None and (self._cut or now - self._began >= self.deadline_s):
            self._timed_out = not self._cut
            self.kill()
        if self._killed is not None and now - self._killed >= REAP_S:
            return self._end(None)
        return None

    def kill(self) -> None:
        """End it and all it began. The answer comes when it is gone."""
        if self._process is not None and self._answer is None:
            self._killed = self.clock()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End it for whoever goes away: nothing it said is wanted, nothing of it stays open."""
        self.kill()
        if self._process is not None and self._answer is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._end(None)

    def _bounds(self) -> tuple[tuple[IO[bytes], int], ...]:
        out, err = self._files
        return (out, self.out_max), (err, self.out_max)  # errors are kept short, but long ones are no reason to kill

    def _end(self, rc: int | None, failed: str = "") -> Answer:
        out, err = (self._read(f, most) for f, most in zip(self._files, (self.out_max, self.err_max), strict=True))
        for f in self._files:
            f.close()
        took = self.clock() - self._began
        self._answer = Answer(tuple(self.argv), rc, out, err, self._timed_out, self._cut, took, failed)
        return self._answer

    @staticmethod
    def _read(file: IO[bytes], most: int) -> bytes:
        file.seek(0)
        return file.read(most)


def _memory() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("slurm"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
