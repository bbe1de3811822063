"""Memory: a line of any length and a log of any length fit into the same bound. Measured in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

MIB = 1 << 20
SCRIPT = r"""
import json, os, resource, sys
# A process begins with the peak of the one that started it (the kernel carries it over an exec), and a test worker may
# be large. A child of this small one counts its own memory alone.
if pid := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
from defib.adapters import rulefiles
from defib.adapters.duck import DuckStore
from defib.engine.core import JobJudged, State, StreamRead
from defib.engine.drive import Drive
from defib.engine.observe import Observer
from defib.engine.ports import Closed, Data, JobClosed, Opened
from defib.engine.words import JobKey, StreamFacts, StreamId

kind, size, db = sys.argv[1], int(sys.argv[2]) << 20, sys.argv[3]
STEP = b" iteration %8d/ 1000000 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.5E+00 |\n"
TALK = b"node7:8812:8970 [3] NCCL INFO Channel 04/0 : 3[3] -> 4[0] [send] via NET/IBext/2/GDRDMA\n" * 11_000


def blocks():
    if kind == "line":
        yield b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB. "
        for _ in range(size >> 20):
            yield b"x" * (1 << 20)
        return
    given = step = 0
    while given < size:
        step += 1
        block = b"".join(STEP % (step * 100 + i) for i in range(100)) + TALK
        given += len(block)
        yield block
    yield b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB.\n"


class Endless:
    def __init__(self):
        job = JobKey(job_id="1")
        def items():
            yield Opened(0, StreamId("/logs/slurm-1.out"), StreamFacts(job), size)
            for block in blocks():
                yield Data(0, block, len(block))
            yield Closed(0)
            yield JobClosed(job)
        self.items = items()

    def poll(self):
        item = next(self.items, None)
        return None if item is None else [item]

    def close(self):
        pass


seen = []
class Sink:
    def apply(self, effects):
        store.apply(effects)
        seen.extend(e for e in effects if isinstance(e, (JobJudged, StreamRead)))

rules = rulefiles.load()
store = DuckStore(db, rules.book)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
Drive(Observer(rules.book, rules.databases), State(rules.book), Sink()).run(Endless())
store.close()
read, judged = seen
a = judged.attempts[0]
print(json.dumps({
    "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, "before": before >> 10, "bytes": read.size, "lines": read.lines,
    "notes": read.notes, "class": a.klass, "last": a.progress and a.progress.last_step,
}))
"""


def measure(kind: str, mib: int, db: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(mib), str(db)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-1500:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.timeout(110)
def test_a_line_of_300_mib(tmp_path: object) -> None:
    told = measure("line", 300, f"{tmp_path}/h.duckdb")
    assert told["bytes"] > 300 * MIB
    assert told["lines"] == 1
    assert told["class"] == "cuda-oom", "the head of a giant line is read"
    assert any("128 KiB" in n for n in told["notes"])
    assert told["rss"] < 512, f"{told['rss']} MiB"


@pytest.mark.timeout(110)
def test_memory_does_not_grow_with_the_log(tmp_path: object) -> None:
    small, large = (measure("log", mib, f"{tmp_path}/{mib}.duckdb") for mib in (64, 256))
    assert large["last"] > 3 * small["last"] > 0
    assert small["class"] == large["class"] == "cuda-oom"
    assert large["rss"] < 512, f"{large['rss']} MiB"
    assert large["rss"] < small["rss"] + 48, f"64 MiB of log took {small['rss']} MiB, 256 MiB took {large['rss']} MiB"
