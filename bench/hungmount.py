"""A real mount that hangs: a file system in user space whose reads do not return, beside a disk that goes on.

In: for how long it hangs. Out: whether the other logs were read as fast as before, what was said of those on the mount, whether all came once it
answered, and whether a watch ends while it hangs. Needs root, fuse3 and the package mfusepy. Exit status 1 if anything was otherwise.

    python bench/hungmount.py [--seconds 40]
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from defib.adapters.mounts.router import Setup
from defib.adapters.mounts.source import Mounts
from defib.adapters.tail.clock import SystemClock
from defib.adapters.tail.pace import looking
from defib.engine.ports import Closed, Data, Looked, Opened

SILENT_S = 5


def serve(point: str, control: str) -> None:
    """The file system: one log that grows by a line a second; while the file `control` is there, no call on the log returns."""
    import mfusepy

    began = time.time()

    def content() -> bytes:
        return b"".join(b"line %06d\n" % n for n in range(int(time.time() - began) + 1))

    def wait() -> None:
        while os.path.exists(control):
            time.sleep(0.05)

    class Hanging(mfusepy.Operations):
        use_ns = True

        def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
            if path != "/slurm-2.out":
                raise mfusepy.FuseOSError(errno.ENOENT)
            wait()
            return {"st_mode": stat.S_IFREG | 0o644, "st_nlink": 1, "st_size": len(content())}

        def readdir(self, path: str, fh: Any) -> list[str]:
            wait()
            return [".", "..", "slurm-2.out"]

        def read(self, path: str, size: int, offset: int, fh: Any) -> bytes:
            wait()
            return content()[offset : offset + size]

    mfusepy.FUSE(Hanging(), point, foreground=True, direct_io=True, attr_timeout=0, entry_timeout=0)


class Run:
    """A watch over both, and when what came."""

    def __init__(self, home: Path) -> None:
        self.source = Mounts([os.fsencode(home)], SystemClock())
        self.source.begin(Setup((), None, looking(500_000), silent_us=SILENT_S * 1_000_000))
        self.names: dict[int, str] = {}
        self.got: dict[str, bytes] = {}
        self.troubles: dict[str, list[str | None]] = {}
        self.slowest = 0.0

    def poll(self) -> bool:
        began = time.monotonic()
        items = self.source.poll()
        self.slowest = max(self.slowest, time.monotonic() - began)
        for item in items or ():
            match item:
                case Opened(n, name):
                    self.names[n] = os.path.basename(name.path)
                    self.got[self.names[n]] = b""
                case Data(n, data):
                    self.got[self.names[n]] += data
                case Looked(n, trouble):
                    self.troubles.setdefault(self.names[n], []).append(trouble)
                case Closed(n, note):
                    self.troubles.setdefault(self.names[n], []).append(note)
        return items is not None

    def waits(self, log: Path, seconds: float) -> list[float]:
        """How long a line waits, one after another."""
        out, until = [], time.monotonic() + seconds
        while time.monotonic() < until:
            wrote = time.monotonic()
            with log.open("ab") as f:
                f.write(b"x" * 20 + b"\n")
            while self.got.get(log.name, b"") != log.read_bytes():
                self.poll()
            out.append(time.monotonic() - wrote)
        return sorted(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    home = Path(os.path.realpath(tempfile.mkdtemp()))
    control, point, log = home.with_suffix(".hang"), home / "net", home / "slurm-1.out"
    point.mkdir()
    log.write_bytes(b"")
    words = [sys.executable, __file__, "--serve", str(point), str(control)]
    server = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        while not os.path.ismount(point):
            time.sleep(0.1)
        return measure(Run(home), log, control, args.seconds)
    finally:
        control.unlink(missing_ok=True)
        subprocess.run(["umount", "-l", point], check=False)
        server.send_signal(signal.SIGTERM)
        server.wait()
        shutil.rmtree(home, ignore_errors=True)


def measure(run: Run, log: Path, control: Path, seconds: float) -> int:
    run.waits(log, 3)
    while "slurm-2.out" not in run.got or not run.got["slurm-2.out"]:
        run.poll()
    before = run.waits(log, 10)
    control.write_text("")
    run.slowest = 0.0
    during = run.waits(log, seconds)
    told = [t for t in run.troubles.get("slurm-2.out", []) if t]
    control.unlink()
    had = len(run.got["slurm-2.out"])
    began = time.monotonic()
    while len(run.got["slurm-2.out"]) < had + 10 * int(seconds) and time.monotonic() - began < 30:
        run.poll()
    back = time.monotonic() - began
    whole = run.got["slurm-2.out"] == b"".join(b"line %06d\n" % n for n in range(len(run.got["slurm-2.out"]) // 12))
    control.write_text("")
    began = time.monotonic()
    while time.monotonic() - began < SILENT_S + 3:
        run.poll()
    began = time.monotonic()
    run.source.stop()
    while run.poll():
        pass
    ended = time.monotonic() - began
    pick = lambda waits: f"median {waits[len(waits) // 2]:.2f} s, most {waits[-1]:.2f} s of {len(waits)}"  # noqa: E731
    print(
        f"a line on the disk waits, before: {pick(before)}; while the mount hangs: {pick(during)}; slowest poll {run.slowest:.2f} s"
    )
    print(f"said of the log on the mount: {told[:1]}; read on {back:.1f} s after it answered; every byte once: {whole}")
    print(f"ended {ended:.1f} s after it was asked to, while the mount hung")
    good = bool(told) and whole and ended < 10 and during[-1] <= max(2.0, 2 * before[-1]) and back < 30
    print("as it should be" if good else "NOT as it should be")
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3])
    else:
        sys.exit(main())
