"""One scripted life of a watch with a memory, with a clock and a world of its own, that can die at any call that changes the disk.

In: a folder, and at which call to die (0: never). Out: the folder with the state as it was left. The world (logs that grow, are truncated,
renamed, left silent) goes by the clock, remembers how far it came, and never dies halfway: only the watch does. So a life that was killed and
taken up again sees the same bytes at the same times as one that was not, and must come to the same history.

    python bench/killcase.py FOLDER [--kill N] [--torn]
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb

from defib.adapters import daemon, rulefiles
from defib.adapters.tail.files import SystemFiles
from defib.adapters.tail.pace import looking
from defib.adapters.tail.session import Session
from defib.adapters.tail.source import TailSource
from defib.adapters.wire import Fan
from defib.engine.words import JobKey

SECOND = 1_000_000
BEGAN, END = 1_000_000 * SECOND, 1_000_034 * SECOND
CHANGES = (
    "write", "pwrite", "fsync", "fdatasync", "rename", "replace", "ftruncate", "truncate", "unlink", "mkdir", "posix_fallocate",
)  # fmt: skip
POLICY = """
policy: detect
hang:
  after_error_s: 1
  after_exit_s: 1
  phases:
    steady: {floor_s: 4, unlearned_s: 4, ceiling_s: 8}
    startup: {floor_s: 8, unlearned_s: 8, ceiling_s: 16}
blind: {after_s: 2, no_log_s: 2}
"""
BANNER = b"using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1\n"
DEATH = b"""[rank0]: Traceback (most recent call last):
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.62 GiB. GPU 0 has a total capacity of 79.10 GiB
srun: error: gpu011: task 0: Exited with exit code 1
"""
REAL = {name: getattr(os, name) for name in CHANGES}


def steps(first: int, last: int) -> bytes:
    """Lines of a run that moves."""
    return b"".join(
        b" iteration %8d/   10000 | consumed samples: %12d | elapsed time per iteration (ms): 400.0 | learning rate: 1.000E-04 | "
        b"global batch size:    64 | lm loss: 2.0%05dE+00 | loss scale: 1.0 | grad norm: 1.203 |\n" % (n, n * 64, n)
        for n in range(first, last + 1)
    )


Act = tuple[int, str, str, bytes]  # (second, what, name, bytes or the other name)


def script() -> list[Act]:
    """What happens to the logs: job 1 is requeued into the same file, 2 crashes and is over, 3 hangs and goes on, 4 is rotated, 5 says
    nothing known, 6 is read in one piece with a line that ends later."""
    grow: list[Act] = [(t, "append", "slurm-1.out", steps(10 * t, 10 * t + 9)) for t in range(2, 10)]
    grow += [(t, "append", "slurm-1.out", steps(50 + 10 * t, 59 + 10 * t)) for t in range(13, 26)]
    grow += [(t, "append", "slurm-2.out", steps(5 * t, 5 * t + 4)) for t in range(3, 12)]
    grow += [(t, "append", "slurm-3.out", steps(5 * t, 5 * t + 4)) for t in (*range(2, 9), *range(24, 28))]
    grow += [(t, "append", "slurm-4.out", steps(5 * t, 5 * t + 4)) for t in (*range(4, 12), *range(16, 22))]
    whole = steps(1, 40)
    return sorted(
        [
            *((1, "append", f"slurm-{n}.out", BANNER) for n in (1, 2, 3, 4)),
            *grow,
            (11, "write", "slurm-1.out", BANNER + steps(60, 64)),
            (12, "append", "slurm-2.out", DEATH),
            (15, "rename", "slurm-4.out", b"slurm-4.out.1"),
            (15, "append", "slurm-4.out", b"going on in another file\n"),
            (5, "append", "slurm-5.out", b"hello\nworld\n"),
            (20, "append", "slurm-5.out", b"\rstill\rhere"),
            (6, "append", "slurm-6.out", BANNER + whole[:1111]),
            (7, "append", "slurm-6.out", whole[1111:5000]),
            (18, "append", "slurm-6.out", whole[5000:] + b"last words without an end"),
        ],
        key=lambda act: act[0],
    )


OVER = {17: "2", 29: "6"}  # what the scheduler says


@dataclass
class World:
    """The clock, and what happens as it goes on."""

    folder: Path
    acts: list[Act] = field(default_factory=script)
    polls: int = 0

    def __post_init__(self) -> None:
        self.logs = self.folder / "logs"
        self.logs.mkdir(exist_ok=True)
        kept = self.folder / "time"
        self.us = int(kept.read_text()) if kept.exists() else BEGAN

    def now_us(self) -> int:
        return self.us

    def sleep_us(self, us: int) -> None:
        before, self.us = self.us, self.us + us
        for at, what, name, data in self.acts:
            if before < BEGAN + at * SECOND <= self.us:
                self._act(what, self.logs / name, data)
        self._raw(self.folder / "time", b"%d" % self.us, os.O_TRUNC)

    def _act(self, what: str, path: Path, data: bytes) -> None:
        if what == "rename":
            REAL["rename"](path, self.logs / data.decode())
        else:
            self._raw(path, data, os.O_APPEND if what == "append" else os.O_TRUNC)

    @staticmethod
    def _raw(path: Path, data: bytes, how: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600)
        REAL["write"](fd, data)
        os.close(fd)

    @property
    def done(self) -> bool:
        return self.us >= END and self.polls > 0

    def said(self, source: TailSource) -> None:
        """Before every poll but the first: what a scheduler says it says again after a restart."""
        self.polls += 1
        for at, job in OVER.items():
            if self.us >= BEGAN + at * SECOND:
                source.over(JobKey(job_id=job))


@dataclass
class Counter:
    """Counts the calls that change the disk, and dies at one. torn: a write gets half of its bytes through first."""

    kill: int = 0
    torn: bool = False
    calls: int = 0
    names: list[str] = field(default_factory=list)

    def install(self) -> None:
        for name in CHANGES:
            setattr(os, name, self._counted(name, REAL[name]))

    def restore(self) -> None:
        for name in CHANGES:
            setattr(os, name, REAL[name])

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            self.calls += 1
            self.names.append(name)
            if self.calls == self.kill:
                if self.torn and name == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        return call


class Quiet:
    """Hooks that end nothing; alarms are kept."""

    def __init__(self) -> None:
        self.alarms: list[str] = []

    def asked(self) -> bool:
        return False

    def alarm(self, text: str) -> None:
        self.alarms.append(text)


def rules() -> Any:
    """The shipped rules with limits of seconds, in a folder whose name is always the same: the compiled rules are kept by it."""
    folder = Path(tempfile.gettempdir()) / f"defib-killcase-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "detect.yaml").write_text(POLICY)
    return rulefiles.load([folder])


def keeping(forget: bool = False) -> daemon.Keeping:
    """Everything small, so that every kind of write happens many times in a short life."""
    return daemon.Keeping(
        most_bytes=24 * 1024 if forget else 1 << 40,
        segment_bytes=8 * 1024,
        ballast_bytes=64 * 1024,
        snapshot_bytes=6 * 1024,
        snapshot_us=8 * SECOND,
    )


def play(folder: Path, loaded: Any, counter: Counter, forget: bool = False) -> list[str]:
    """Live from wherever the folder stands to the end, or to the counter's call. Returns what was said loudly."""
    world, hooks = World(folder), Quiet()
    counter.install()
    try:
        fan = Fan([], lambda a, paths: None)
        station = daemon.open_station(str(folder / "state"), loaded, fan, hooks, world, keeping(forget))
        fan.paths.update({n: s.id.path for n, s in station.state.streams.items()})
        files = SystemFiles((os.fsencode(world.logs.resolve()),))
        pace = replace(
            looking(SECOND),
            warm_us=SECOND,
            cold_us=SECOND,
            poll_us=SECOND,
            tick_us=SECOND,
            settle_us=0,
            poll_max_us=60 * SECOND,
        )
        source = TailSource(
            [os.fsencode(world.logs.resolve())], loaded.book.paths, files, world, pace=pace, kept=station.kept("tail")
        )
        session = Session(source, lambda: world.done, lambda: world.said(source))
        try:
            station.run(session)
        finally:
            session.close()
            files.shut()
            station.close()
    finally:
        counter.restore()
    return hooks.alarms


def tables(db: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every table of a history, rows sorted; what names one journal, one place or one count of records is left out."""
    con = duckdb.connect(str(db), read_only=True)
    out = {}
    for (name,) in con.execute("SELECT table_name FROM duckdb_tables() ORDER BY 1").fetchall():
        rows = con.execute(f"SELECT * FROM {name}").fetchall()
        out[name] = sorted(r for r in map(repr, rows) if not r.startswith(("('journal'", "('applied'", "('chain'")))
    con.close()
    return out


def differences(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> Iterator[str]:
    """Tables that are not the same, with a row of each side that the other lacks."""
    for name in sorted({*one, *other}):
        a, b = one.get(name, []), other.get(name, [])
        if a != b:
            only = [r for r in a if r not in b][:2], [r for r in b if r not in a][:2]
            yield f"{name}: {len(a)} and {len(b)} rows; only in the first {only[0]}; only in the second {only[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill", type=int, default=0)
    parser.add_argument("--torn", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True)
    counter = Counter(args.kill, args.torn)
    alarms = play(args.folder, rules(), counter)
    print(f"{counter.calls} calls; {len(alarms)} alarms: {alarms}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
