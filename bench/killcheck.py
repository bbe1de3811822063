"""Kill a watch at every call that changes the disk, take it up again, and compare: it must come to the history of one that was never killed.

In: how much of it. Out: one line with what was done, and every difference with the call that led to it; exit status 1 if there were any. The
calls are Python's own (journal, snapshots, locks), each once before it is made and, for writes, once after half of the bytes. Where strace is
there, a sample of kills at the system calls of the whole process covers DuckDB's too. A rebuild from the journal is compared as well.

Every life is a fork of this process, which therefore imports none of defib itself: Polars and DuckDB do not outlive a fork.

    python bench/killcheck.py [--every 1] [--first 1] [--twice] [--seconds 0] [--strace 0] [--forget]
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KILLED, FAILED = -1, -2
LIFE = "life"  # every life has the same folder: paths are in the history
# Of a whole life, about so many each. Writes and renames are left to the other way: the world makes some too, and it must not die halfway.
SYSCALLS = {"pwrite64": 25, "fsync": 31, "fdatasync": 83, "unlink": 9}


@dataclass
class Tally:
    """What a run of the check came to."""

    kills: int = 0
    calls: int = 0
    names: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def apart(act: Callable[..., Any], *args: Any) -> Any:
    """The result of a function run in a process of its own; KILLED, or FAILED, where there is none."""
    assert not {"polars", "duckdb", "pyarrow"} & sys.modules.keys(), "a fork of a process with their threads may hang"
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            raw = pickle.dumps(act(*args))
            with os.fdopen(writer, "wb") as f:
                f.write(raw)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as f:
        said = f.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return KILLED
    return pickle.loads(said) if os.waitstatus_to_exitcode(status) == 0 else FAILED


def proven() -> None:
    """Compile and prove the rules; from then on they are read ready-made."""
    from killcase import rules

    rules()


def live(folder: Path, kill: int, torn: bool, forget: bool) -> list[str]:
    """One life; the names of the calls it made."""
    from killcase import Counter, play, rules

    counter = Counter(kill, torn)
    play(folder, rules(), counter, forget)
    return counter.names


def finished(folder: Path, wanted: dict[str, list[Any]], what: str, forget: bool, anew: bool) -> list[str]:
    """Take a life up again, to its end, and compare."""
    live(folder, 0, False, forget)
    found = judged(folder, wanted, what)
    return found + rebuilt(folder, wanted, what) if anew else found


def content(db: Path) -> dict[str, list[Any]]:
    """What a history holds."""
    from killcase import tables

    return tables(db)


def judged(folder: Path, wanted: dict[str, list[Any]], what: str) -> list[str]:
    """Compare a finished life with the one that was never killed."""
    from killcase import differences, tables

    return [f"{what}: {text}" for text in differences(wanted, tables(folder / "state" / "history.duckdb"))]


def rebuilt(folder: Path, wanted: dict[str, list[Any]], what: str) -> list[str]:
    """The same from the journal alone."""
    from defib.adapters import daemon
    from killcase import differences, rules, tables

    db = folder / "rebuilt.duckdb"
    daemon.rebuild(str(folder / "state"), str(db), rules())
    return [f"{what}, rebuilt: {text}" for text in differences(wanted, tables(db))]


def told(found: Any, what: str) -> list[str]:
    """What a comparison found, also where it found no end."""
    return [f"{what}: the next start or the comparison failed"] if isinstance(found, int) else list(found)


def killed(base: Path, wanted: dict[str, list[Any]], args: argparse.Namespace, tally: Tally) -> None:
    """Every call in turn, or every so many, as long as the time lasts."""
    until = time.monotonic() + args.seconds if args.seconds else None
    names = tally.names
    chance = random.Random(args.first)
    for kill in range(args.first, tally.calls + 1, args.every):
        for torn in (False, True) if names[kill - 1] == "write" or args.twice else (False,):
            if until is not None and time.monotonic() > until:
                return
            folder = base / LIFE
            folder.mkdir()
            what = f"killed at call {kill}{' after half a write' if torn else ''}"
            done = apart(live, folder, kill, torn, args.forget)
            if done == KILLED and args.twice:
                again = chance.randint(1, 25)
                what += f", again at call {again}"
                done = apart(live, folder, again, chance.random() < 0.5, args.forget)
            tally.kills += done == KILLED
            if done == FAILED:
                tally.failures.append(f"{what}: it failed")
            else:
                anew = kill % 7 == 0 and not args.forget
                tally.failures += told(apart(finished, folder, wanted, what, args.forget, anew), what)
            shutil.rmtree(folder)


def traced(base: Path, wanted: dict[str, list[Any]], count: int, tally: Tally) -> None:
    """Kills at system calls of the whole process, DuckDB's threads included."""
    chance = random.Random(count)
    for _ in range(count):
        call = chance.choice(list(SYSCALLS))
        when = chance.randint(1, SYSCALLS[call])
        folder = base / LIFE
        command = [sys.executable, str(Path(__file__).with_name("killcase.py")), str(folder)]
        inject = [
            "strace",
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            f"trace={call}",
            "-e",
            f"inject={call}:signal=KILL:when={when}",
        ]
        first = subprocess.run([*inject, *command], capture_output=True, check=False)
        tally.kills += first.returncode != 0
        second = subprocess.run(command, capture_output=True, check=False, text=True)
        what = f"killed by strace at {call} {when}"
        if second.returncode:
            tally.failures.append(f"{what}: the next start failed: {second.stderr[-500:]}")
        else:
            tally.failures += told(apart(judged, folder, wanted, what), what)
        shutil.rmtree(folder)


def check(args: argparse.Namespace) -> Tally:
    """The whole check in a folder of its own."""
    apart(proven)
    tally = Tally()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        whole = base / LIFE
        whole.mkdir()
        names = apart(live, whole, 0, False, args.forget)
        assert isinstance(names, list), "the life that is not killed ends in order"
        tally.names, tally.calls = names, len(names)
        wanted = apart(content, whole / "state" / "history.duckdb")
        if not args.forget:
            tally.failures += told(apart(rebuilt, whole, wanted, "not killed"), "not killed")
        shutil.rmtree(whole)
        killed(base, wanted, args, tally)
        if args.strace:
            traced(base, wanted, args.strace, tally)
    return tally


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--every", type=int, default=1, help="kill at every so many calls")
    p.add_argument("--first", type=int, default=1, help="the first call to kill at, and the seed")
    p.add_argument("--seconds", type=float, default=0, help="begin no further kill after so long")
    p.add_argument("--twice", action="store_true", help="kill the second life too, at a call drawn by chance")
    p.add_argument("--strace", type=int, default=0, help="so many kills at system calls of the whole process")
    p.add_argument("--forget", action="store_true", help="delete old segments all the time")
    return p


def main() -> int:
    tally = check(parser().parse_args())
    print(f"{tally.kills} kills at {tally.calls} calls of a life; {len(tally.failures)} failures")
    print("\n".join(tally.failures[:20]))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
