"""How fast defib scans and replays, beside what people would use otherwise, side by side in one run.

Builds seeded corpora (a: Megatron rank-0 progress lines; b: NCCL INFO chatter of many ranks with rare errors; c: tqdm bars with CR and
UTF-8; d: traceback storm; e: a mix of them), then times whole processes in interleaved rounds: medians of CPU and wall seconds with spread,
peak memory, and ratios:

    scan      `defib scan`: every rule over the bytes, hits vetoed and placed, with the helper in C where it can be had; which is told
    scan-pure the same without the helper (DEFIB_NATIVE=off)
    replay    `defib replay`: everything, into a DuckDB file
    hs        the same patterns in C with the system's Hyperscan or Vectorscan (bench/hsraw.c): reading and scanning only, without compiling;
              left out with a word where no compiler or library is there
    rg        `rg -c -f PATTERNS` with the same patterns, --no-unicode -j1; rg-def: with its defaults
    re        a plain Python loop: one alternation of the patterns over the lines, on the first --re-bytes only; mtail, sec: likewise
    wc        `wc -l`

    python bench/speed.py [--size 64MiB] [--rounds 5] [--corpora a,b,c,d,e] [--json] [--results FILE]
    python bench/speed.py --check        small, against bench/speed-floor.json: exit code 1 where a ratio fell far below it

Absolute figures depend on the machine; the ratios are what is claimed. rg counts lines only, defib also places, extracts and judges.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FLOOR = HERE / "speed-floor.json"
FAR = 0.6  # of the stored ratio: what noise of a shared machine does not do to a median
CHECK_BYTES = 16 << 20
SMALL_S = 60  # what is given the small part only may need longer than anybody waits
DEFIB = [sys.executable, "-m", "defib"]
# A process that compiles its own source on every start measures that.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
sys.path.insert(0, str(HERE))

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


def mix(rng: random.Random, size: int) -> Iterator[bytes]:
    """What a folder of logs holds: mostly progress and chatter, some bars, few storms."""
    for make, share in ((megatron, 0.35), (chatter, 0.35), (bars, 0.28), (storm, 0.02)):
        yield from make(rng, int(size * share))
        yield b"\n"


CORPORA = {"a": megatron, "b": chatter, "c": bars, "d": storm, "e": mix}


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


def timed(command: list[str]) -> tuple[float, float, int, str]:
    """(CPU seconds of the process and its children, wall seconds, peak RSS in KiB, what it printed)."""
    began = time.perf_counter()
    with (
        tempfile.TemporaryFile() as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=ENVIRONMENT) as process,
    ):
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said = out.read(4096).decode("utf-8", "replace")
    if process.returncode not in (0, 1):
        raise RuntimeError("none in a minute" if process.returncode == 124 else f"ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss, said


def raw_scanner(folder: Path) -> Path | None:
    """bench/hsraw.c compiled against whichever library the system has."""
    out = folder / "hsraw"
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    done = subprocess.run([compiler, "-O2", "-o", out, HERE / "hsraw.c", "-lhs"], capture_output=True, check=False)
    return out if done.returncode == 0 else None


def peers(folder: Path, rules: Path) -> dict[str, tuple[list[str], bool]]:
    """Other programs with the same patterns: name -> (command without the log, only on the small part). What is not installed is left out."""
    out: dict[str, tuple[list[str], bool]] = {"wc": (["wc", "-l"], False)}
    if shutil.which("rg"):
        rg = ["rg", "--no-config", "-a", "-c", "-f", str(rules)]
        out["rg"] = ([*rg, "--no-unicode", "-j1"], False)
        out["rg-def"] = (rg, True)  # with Unicode it may need minutes on bars
    hs = raw_scanner(folder)
    if hs is not None:
        out["hs"] = ([str(hs), str(rules)], False)
    out["re"] = ([sys.executable, "-c", RE, "{}", str(rules)], True)
    listed = [p for p in rules.read_text().splitlines() if "(?-u" not in p]
    if shutil.which("sec"):
        conf = folder / "rules.sec"
        conf.write_text(
            "".join(f"type=single\nptype=regexp\npattern={p}\ndesc={n}\naction=none\n\n" for n, p in enumerate(listed))
        )
        out["sec"] = (["sec", f"--conf={conf}", "--notail", "--input={}"], True)
    if shutil.which("mtail"):
        program = folder / "rules.mtail"
        body = "".join("/" + p.replace("/", "\\/") + "/ {\n  hits++\n}\n" for p in listed)
        program.write_text("counter hits\n" + body)
        out["mtail"] = (["mtail", "--one_shot", f"--progs={program}", "--logs={}"], True)
    return out


def measure(
    path: Path, args: argparse.Namespace, folder: Path, others: dict[str, tuple[list[str], bool]]
) -> dict[str, Any]:
    small = folder / f"{path.stem}-small.log"
    with path.open("rb") as whole:  # never the whole file: a child's peak memory begins with its parent's
        small.write_bytes(whole.read(args.re_bytes))
    db = folder / "speed.duckdb"
    commands: dict[str, tuple[list[str], Path]] = {
        "scan": ([*DEFIB, "scan", "--count", str(path)], path),
        "scan-pure": (["env", "DEFIB_NATIVE=off", *DEFIB, "scan", "--count", str(path)], path),
        "replay": ([*DEFIB, "replay", "--quiet", "--jsonl", "--db", str(db), str(path)], path),
    }
    for name, (command, part) in others.items():
        log = small if part else path
        at = [c.replace("{}", str(log)) for c in command]
        at = at if at != command else [*command, str(log)]
        commands[name] = (["timeout", str(SMALL_S), *at] if part else at, log)
    commands = {k: v for k, v in commands.items() if not args.only or k in args.only.split(",")}
    took: dict[str, list[tuple[float, float, int]]] = {k: [] for k in commands}
    failed: dict[str, str] = {}
    for turn in range(args.rounds + 1):
        for name, (command, _) in commands.items():
            db.unlink(missing_ok=True)
            if name in failed:
                continue
            try:
                cpu, wall, rss, said = timed(command)
            except RuntimeError as e:
                failed[name] = str(e)
                continue
            if name == "hs":
                cpu = float(said.split()[1])
            if turn:  # the first one fills the caches
                took[name].append((cpu, wall, rss))
    rows = {k: _row(v, commands[k][1].stat().st_size) for k, v in took.items() if v}
    return {"rows": rows, "failed": failed}


def _row(took: list[tuple[float, float, int]], size: int) -> dict[str, Any]:
    rates = [size / 1e6 / max(cpu, 1e-6) for cpu, _, _ in took]
    return {
        "mb_per_cpu_s": statistics.median(rates), "low": min(rates), "high": max(rates), "mb": size / 1e6,
        "wall_s": statistics.median(w for _, w, _ in took), "peak_mib": max(r for _, _, r in took) / 1024,
    }  # fmt: skip


def starts(rounds: int, folder: Path) -> dict[str, float]:
    """Median CPU seconds beyond a bare Python's: help, and a scan of one line."""
    line = folder / "line.log"
    line.write_bytes(b"x\n")
    commands = {
        "bare": [sys.executable, "-c", "pass"],
        "help": [*DEFIB, "--help"],
        "scan of one line": [*DEFIB, "scan", str(line)],
    }
    took: dict[str, list[float]] = {k: [] for k in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            took[name].append(timed(command)[0])
    middle = {k: statistics.median(v[1:]) for k, v in took.items()}
    return {k: v - middle["bare"] for k, v in middle.items() if k != "bare"}


def growth(path: Path, folder: Path, rounds: int) -> dict[str, float]:
    """CPU seconds of a scan over 1, 2, … 32 times a thirty-second of the corpus."""
    out: dict[str, float] = {}
    for times in (1, 2, 4, 8, 16, 32):
        part = folder / "growth.log"
        with path.open("rb") as f:
            part.write_bytes(f.read(path.stat().st_size * times // 32))
        out[f"{times}x"] = statistics.median(timed([*DEFIB, "scan", "--count", str(part)])[0] for _ in range(rounds))
    return out


def check(args: argparse.Namespace) -> int:
    """Against the stored ratios: what may vary with the machine cancels out in them, a lost shortcut does not."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rules = folder / "patterns.txt"
        rules.write_text("\n".join(patterns()) + "\n")
        others = {"re": ([sys.executable, "-c", RE, "{}", str(rules)], True)}
        args.rounds, args.re_bytes = 3, 64 * 1024
        found: dict[str, float] = {}
        for name in "ac":
            rows = measure(build(name, CHECK_BYTES, folder), args, folder, others)["rows"]
            for what in ("scan", "replay"):
                found[f"{name} {what}/re"] = rows[what]["mb_per_cpu_s"] / rows["re"]["mb_per_cpu_s"]
    if args.store:
        FLOOR.write_text(json.dumps({k: round(v, 1) for k, v in found.items()}, indent=1) + "\n")
    floor = json.loads(FLOOR.read_text())
    slow = [k for k, v in floor.items() if found[k] < FAR * v]
    for k, v in floor.items():
        print(f"{k:<14}{found[k]:>9.0f}x  stored {v:.0f}x{'   TOO SLOW' if k in slow else ''}")
    return 1 if slow else 0


def machine() -> str:
    """CPU, cores and versions; no names."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"model name\s*:\s*(.+)", text)
    rg = (
        subprocess.run(["rg", "--version"], capture_output=True, text=True, check=False).stdout.split("\n")[0]
        if shutil.which("rg")
        else "no rg"
    )
    from defib.adapters import rulefiles

    return (
        f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {rg}; "
        f"scan runs {rulefiles.scanned_by()}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="64MiB", help="of each corpus")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--corpora", default="a,b,c,d,e")
    parser.add_argument("--only", help="what to measure, e.g. scan,hs,rg")
    parser.add_argument("--re-bytes", type=int, default=256 * 1024)
    parser.add_argument("--keep", type=Path, help="folder for the corpora (default: a temporary one)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--results", type=Path, help="write the tables there as well (Markdown)")
    parser.add_argument("--check", action="store_true", help="small, against the stored ratios")
    parser.add_argument("--store", action="store_true", help="with --check: store what was found")
    args = parser.parse_args()
    if args.check:
        return check(args)
    units = {"KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}
    size = int(args.size.upper()[:-3]) * units[args.size.upper()[-3:]]
    result: dict[str, Any] = {"size": size, "rounds": args.rounds, "machine": machine(), "corpora": {}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rules = folder / "patterns.txt"
        rules.write_text("\n".join(patterns()) + "\n")
        result["patterns"] = len(patterns())
        others = peers(folder, rules)
        for name in args.corpora.split(","):
            result["corpora"][name] = measure(build(name, size, folder), args, folder, others)
        result["start"] = starts(args.rounds, folder)
        first = args.corpora.split(",")[0]
        result["growth"] = {first: growth(build(first, size, folder), folder, 3)}
    print(json.dumps(result, indent=1) if args.json else table(result))
    if args.results:
        args.results.write_text(table(result) + "\n")
    return 0


def table(result: dict[str, Any]) -> str:
    """As Markdown."""
    out = [
        f"{result['machine']}. {result['patterns']} patterns, {result['size'] / 1e6:.0f} MB a corpus, {result['rounds']} interleaved rounds; "
        "whole processes, medians. hs is reading and scanning alone. re, sec, mtail and rg with its defaults see only the first part.",
        "",
        "| corpus | what | MB | MB per CPU s | low-high | wall s | peak MiB | of hs | of rg |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, found in result["corpora"].items():
        rows = found["rows"]
        for what, r in rows.items():
            against = [
                f"{r['mb_per_cpu_s'] / rows[base]['mb_per_cpu_s']:.2f}" if base in rows else "-"
                for base in ("hs", "rg")
            ]
            out.append(
                f"| {name} | {what} | {r['mb']:.1f} | {r['mb_per_cpu_s']:.1f} | {r['low']:.1f}-{r['high']:.1f} | {r['wall_s']:.2f} | "
                f"{r['peak_mib']:.0f} | {against[0]} | {against[1]} |"
            )
        out += [f"| {name} | {what} | | could not do it: {why} | | | | | |" for what, why in found["failed"].items()]
    out += [
        "",
        "CPU seconds beyond a bare Python: " + ", ".join(f"{k} {v:.3f}" for k, v in result["start"].items()) + ".",
    ]
    for name, sizes in result["growth"].items():
        out.append(
            f"CPU seconds of a scan of ({name}) as it grows: "
            + ", ".join(f"{k} {v:.3f}" for k, v in sizes.items())
            + "."
        )
    return "\n".join(out)


if __name__ == "__main__":
    sys.exit(main())
