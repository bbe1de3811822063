"""The main job on generated logs, in the order a newcomer would type it: replay, runs, one story, two questions in SQL.

Writes to `demo-out/`. No network, no Slurm; the same output every time.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = Path("demo-out")
SUSPECTS = "SELECT node, incidents, what FROM suspects"
LOST = "SELECT job, attempts, steps_run, steps_kept, kept_ratio FROM goodput ORDER BY kept_ratio LIMIT 4"


def run(*command: str) -> None:
    """Show a command as a person would type it, then its output."""
    print(f"\n$ {shlex.join(command)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "defib", *command[1:]], check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)


def main() -> int:
    db = str(OUT / "history.duckdb")
    OUT.mkdir(exist_ok=True)
    Path(db).unlink(missing_ok=True)
    print("Eight jobs of a night on 8 to 64 GPUs each, generated with seed 7:", flush=True)
    subprocess.run(
        [sys.executable, str(HERE / "loggen"), str(OUT / "logs"), "--preset", "demo", "--seed", "7"], check=True
    )
    run("defib", "replay", str(OUT / "logs"), "--db", db)
    run("defib", "why", "481214", "--db", db)
    print("\nWhich node do incidents point at?", end="", flush=True)
    run("defib", "sql", SUSPECTS, "--db", db)
    print("\nWhat did restarts repeat?", end="", flush=True)
    run("defib", "sql", LOST, "--db", db)
    print(f"\nThe history is {db}; ask it anything: defib sql --db {db}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
