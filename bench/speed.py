"""How fast defib scans and replays, beside what people would use otherwise, side by side in one run.

Builds seeded corpora (a: Megatron rank-0 progress lines; b: NCCL INFO chatter of many ranks with rare errors; c: tqdm bars with CR and
UTF-8; d: traceback storm), then times whole processes in interleaved rounds and prints medians of CPU seconds, the spread, and ratios:

    match     every rule over the bytes, hits vetoed and placed (defib's scan path, no store)
    replay    everything, into a DuckDB file
    rg        `rg -c -f PATTERNS` with the same patterns (--no-unicode -j1), where ripgrep is installed
    re        a plain Python loop: one alternation of the patterns over the lines, on the first --re-bytes only

    python bench/speed.py [--size 64MiB] [--rounds 5] [--corpora a,b,c,d] [--json]

Absolute figures depend on the machine; the ratios are what is claimed. rg counts lines only, defib also places, extracts and judges.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

MATCH = """
import sys
from defib.adapters import rulefiles
from defib.engine.blocks import Batch, LineCutter
from defib.engine.scan import Scanner
loaded = rulefiles.load()
scanner, cutter, batch, hits = Scanner(loaded.book, loaded.databases), LineCutter(0), Batch(), 0
def flush(batch):
    found = scanner.scan(batch)
    if len(found.record):
        batch.place(found.record)
    return len(found.rule)
with open(sys.argv[1], "rb", buffering=0) as f:
    while data := f.read(1 << 20):
        for piece in cutter.feed(data):
            batch.add(piece)
        if batch.size >= 4 << 20:
            hits, batch = hits + flush(batch), Batch()
for piece in cutter.finish():
    batch.add(piece)
print(hits + flush(batch) if batch.size else hits)
"""
RE = """
import re, sys
patterns = [p.rstrip("\\n").encode() for p in open(sys.argv[2])]
rule = re.compile(b"|".join(b"(?:" + p + b")" for p in patterns))
n = 0
with open(sys.argv[1], "rb") as f:
    for line in f:
        n += rule.search(line) is not None
print(n)
"""


def megatron(rng: random.Random, size: int) -> Iterator[bytes]:
    import loggen

    with tempfile.TemporaryDirectory() as folder:
        loggen.bulk(Path(folder), size, rng.randrange(1 << 30), start=datetime.fromisoformat("2026-11-30T21:00:00"))
        for path in sorted(Path(folder).glob("*.out")):
            with path.open("rb") as f:
                while part := f.read(1 << 20):
                    yield part


def chatter(rng: random.Random, size: int) -> Iterator[bytes]:
    done = 0
    while done < size:
        rank = rng.randrange(512)
        host = f"gpu{rank // 8:03d}:{20000 + rank}:{30000 + rank} [{rank % 8}]"
        kind = rng.random()
        if kind < 0.00002:
            line = f"{host} misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer gpu{rng.randrange(64):03d}<{rng.randrange(60000)}>\n"
        elif kind < 0.5:
            line = f"{host} NCCL INFO Channel {rng.randrange(64):02d}/0 : {rank}[{rank % 8}] -> {(rank + 8) % 512}[{rank % 8}] [send] via NET/IB/{rank % 8}/GDRDMA\n"
        else:
            line = f"{host} NCCL INFO Trees [{rng.randrange(64)}] {rank + 1}/-1/-1->{rank}->{rank - 1} [{rng.randrange(64)}] {rank + 2}/-1/-1->{rank}->{rank - 1}\n"
        done += len(line)
        yield line.encode()


def bars(rng: random.Random, size: int) -> Iterator[bytes]:
    done = step = 0
    while done < size:
        step += 1
        n = step % 100000
        bar = "█" * (n // 10000) + "▌" + " " * (9 - n // 10000)
        end = "\n" if step % 2000 == 0 else ""
        line = f"\r{n // 1000:3d}%|{bar}| {n}/100000 [{n // 3600}:{n // 60 % 60:02d}:{n % 60:02d}<27:46:40, {rng.uniform(0.9, 1.1):.2f}s/it, loss={rng.random():.4f}]{end}"
        raw = line.encode()
        done += len(raw)
        yield raw


def storm(rng: random.Random, size: int) -> Iterator[bytes]:
    done = 0
    while done < size:
        rank = rng.randrange(512)
        frames = "".join(
            f'[rank{rank}]:   File "/opt/env/lib/python3.11/site-packages/torch/{rng.randrange(99)}.py", line {rng.randrange(3000)}, in call\n[rank{rank}]:     return self._call(*args, **kwargs)\n'
            for _ in range(4)
        )
        text = f"[rank{rank}]: Traceback (most recent call last):\n{frames}[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error\n"
        done += len(text)
        yield text.encode()


CORPORA = {"a": megatron, "b": chatter, "c": bars, "d": storm}


def build(name: str, size: int, folder: Path) -> Path:
    path = folder / f"{name}-{size}.log"
    if not path.exists():
        with path.open("wb") as f:
            for part in CORPORA[name](random.Random(f"defib {name}"), size):
                f.write(part)
    return path


def patterns() -> list[str]:
    """Every finder pattern, as other engines read it."""
    from defib.adapters import rulefiles
    from defib.engine.scan import confine, plan

    return [confine(p) for p, kind, _ in plan(rulefiles.load().book).finders if kind != "anchor"]


def timed(command: list[str]) -> tuple[float, int]:
    """(CPU seconds of the process and its children, peak RSS in KiB)."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        sys.exit(f"{command[:4]} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def measure(path: Path, args: argparse.Namespace, folder: Path, rules: Path) -> dict[str, dict[str, Any]]:
    small = folder / f"{path.stem}-re.log"
    with path.open("rb") as whole:  # never the whole file: a child's peak memory begins with its parent's
        small.write_bytes(whole.read(args.re_bytes))
    db = folder / "speed.duckdb"
    commands: dict[str, tuple[list[str], Path]] = {
        "match": ([sys.executable, "-c", MATCH, str(path)], path),
        "replay": ([sys.executable, "-m", "defib", "replay", "--quiet", "--jsonl", "--db", str(db), str(path)], path),
        "re": ([sys.executable, "-c", RE, str(small), str(rules)], small),
    }
    if shutil.which("rg"):
        commands["rg"] = (["rg", "--no-unicode", "-j1", "--no-config", "-a", "-c", "-f", str(rules), str(path)], path)
    rates: dict[str, list[float]] = {k: [] for k in commands}
    peak: dict[str, int] = {}
    for _ in range(args.rounds):
        for name, (command, target) in commands.items():
            db.unlink(missing_ok=True)
            seconds, rss = timed(command)
            rates[name].append(target.stat().st_size / 1e6 / max(seconds, 1e-6))
            peak[name] = max(peak.get(name, 0), rss)
    return {
        k: {"mb_per_cpu_s": statistics.median(v), "low": min(v), "high": max(v), "peak_mib": peak[k] / 1024}
        for k, v in rates.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="64MiB", help="of each corpus")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--corpora", default="a,b,c,d")
    parser.add_argument("--re-bytes", type=int, default=256 * 1024)
    parser.add_argument("--keep", type=Path, help="folder for the corpora (default: a temporary one)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    units = {"KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}
    size = int(args.size.upper()[:-3]) * units[args.size.upper()[-3:]]
    result: dict[str, Any] = {"size": size, "rounds": args.rounds, "python": sys.version.split()[0], "corpora": {}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rules = folder / "patterns.txt"
        rules.write_text("\n".join(patterns()) + "\n")
        result["patterns"] = len(patterns())
        for name in args.corpora.split(","):
            result["corpora"][name] = measure(build(name, size, folder), args, folder, rules)
    print(json.dumps(result, indent=1) if args.json else table(result))
    return 0


def table(result: dict[str, Any]) -> str:
    out = [
        f"{result['patterns']} patterns, {result['size'] / 1e6:.0f} MB a corpus, {result['rounds']} interleaved rounds; MB per CPU second of the whole process, median (low-high)"
    ]
    out.append(f"{'corpus':<8}{'what':<8}{'MB/s':>9}{'spread':>18}{'peak MiB':>10}   ratio")
    for name, rows in result["corpora"].items():
        base = rows.get("rg", rows["re"])["mb_per_cpu_s"]
        against = "rg" if "rg" in rows else "re loop"
        for what, r in rows.items():
            spread = f"{r['low']:.1f}-{r['high']:.1f}"
            out.append(
                f"{name:<8}{what:<8}{r['mb_per_cpu_s']:>9.1f}{spread:>18}{r['peak_mib']:>10.0f}   {r['mb_per_cpu_s'] / base:.2f}x {against}"
            )
    return "\n".join(out)


if __name__ == "__main__":
    sys.exit(main())
