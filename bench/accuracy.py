"""How often `defib replay` agrees with what a person read in the same logs.

In: a manifest (columns of the shared corpus: file, framework, verdicts, classes, flags, root_lines, first_step, last_step, median_step_s, …)
and the logs beside it. Out: a table per question (verdict group, class, cause line, framework, steps, step time), false alarms on
healthy files, every miss listed; `--json` for machines; `--against OLD.json` compares two versions.

    python bench/accuracy.py [MANIFEST] [--only real/] [--json] [--against OLD.json] [--block 65536]

Wilson intervals (95 %) stand beside every rate: with a hundred files a few per cent are noise.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEALTHY = {"completed", "running-at-end", "unknown"}
GROUP = {"hung": "stalled", "running-at-end": "healthy", "completed": "healthy", "unknown": "healthy"}

# Classes of the manifest -> classes of rules/classes.yaml that say the same.
CLASSES = {
    "nccl_timeout": {"collective-timeout"}, "nccl_heartbeat": {"collective-timeout", "hang"}, "cuda_oom": {"cuda-oom"},
    "user_error": {"user-code", "user-config", "user-environment"}, "fs_missing_file": {"missing-file"},
    "xid79": {"gpu-hardware"}, "xid13": {"gpu-suspect"}, "gpu_ecc": {"gpu-hardware"}, "host_oom": {"host-oom"},
    "ray_actor_lost": {"actor-lost"}, "fs_write_failed": {"storage-fault", "storage-space"}, "loss_scale_minimum": {"numerics"},
    "efa_error": {"nic-link", "collective-error"}, "shm_bus_error": {"shared-memory"}, "segfault": {"native-crash"},
    "rendezvous_lost": {"peer-lost", "rendezvous"}, "rendezvous": {"rendezvous"}, "remote_peer_lost": {"peer-lost"},
    "port_in_use": {"port-in-use"}, "peermem": {"gpu-suspect", "node-fault"}, "non-fatal": {"nvlink"},
    "nccl_peer_closed": {"peer-lost"}, "nccl_conn_reset": {"peer-lost"}, "nan_loss": {"numerics"}, "nan_grad": {"numerics"},
    "init_timeout": {"rendezvous"}, "ib_retry_exceeded": {"nic-link"}, "gpu_memory_fault": {"kernel-fault", "gpu-suspect"},
    "fs_stale_handle": {"storage-fault"}, "fs_quota": {"storage-space"}, "fs_no_space": {"storage-space", "storage-fault"},
    "cuda_kernel_error": {"kernel-fault"}, "cuda_illegal_access": {"kernel-fault"}, "checkpoint_corrupt": {"checkpoint-corrupt"},
}  # fmt: skip

# Words of the manifest's free text -> framework tokens that answer it. Every word found adds its tokens.
FRAMEWORKS = (
    ("Megatron-DeepSpeed", "megatron-deepspeed"), ("Megatron-LLM", "megatron-lm"), ("Megatron-LM", "megatron-lm"), ("GPT-NeoX", "gpt-neox"),
    ("NeMo", "nemo"), ("MLPerf", "mlperf"), ("mllog", "mlperf"), ("MaxText", "maxtext"), ("torchtitan", "torchtitan"), ("torchtune", "torchtune"),
    ("Composer", "composer"), ("OLMo", "olmo"), ("Levanter", "levanter"), ("HF", "hf-trainer"), ("LLaMA-Factory", "hf-trainer"),
    ("TRL", "hf-trainer"), ("open-instruct", "hf-trainer"), ("Lightning", "lightning"), ("nanoGPT", "nanogpt"), ("nanochat", "nanogpt"),
    ("llm.c", "llm.c"), ("fairseq", "fairseq"), ("veRL", "verl"), ("mmcv", "mmcv"), ("mmengine", "mmcv"), ("dinov2", "metric-logger"),
    ("MXNet", "mxnet"), ("TensorFlow", "tensorflow"), ("Keras", "keras"), ("improved-diffusion", "improved-diffusion"), ("CoreNet", "corenet"),
    ("wenet", "funasr-wenet"), ("RETURNN", "returnn"), ("pix2pix", "pix2pix"), ("darknet", "darknet"), ("nccl-tests", "nccl-tests"),
    ("DeepSpeed", "deepspeed"), ("tqdm", "tqdm"),
)  # fmt: skip
NAMELESS = {None, "generic", "tqdm", "pytorch-examples", "deepspeed", "mlperf", "metric-logger", "verl"}


def frameworks(text: str) -> set[str | None]:
    """Tokens that answer the manifest's words; logs of no named framework accept null and the generic names."""
    found: set[str | None] = {token for word, token in FRAMEWORKS if word in text}
    if "megatron-deepspeed" in found:
        found -= {"deepspeed"}
    return found or set(NAMELESS)


@dataclass
class Score:
    """right of asked, with the misses in words."""

    right: int = 0
    asked: int = 0
    misses: list[str] = field(default_factory=list)

    def add(self, file: str, ok: bool, said: object, wanted: object) -> None:
        self.asked += 1
        self.right += ok
        if not ok:
            self.misses.append(f"{file}: said {said}, a person reads {wanted}")

    def row(self) -> dict[str, Any]:
        low, high = wilson(self.right, self.asked)
        rate = self.right / self.asked if self.asked else None
        return {"right": self.right, "asked": self.asked, "rate": rate, "low": low, "high": high, "misses": self.misses}


def wilson(right: int, asked: int, z: float = 1.96) -> tuple[float, float]:
    """95 % score interval (Wilson 1927)."""
    if not asked:
        return 0.0, 1.0
    p, z2 = right / asked, z * z
    middle, spread = p + z2 / (2 * asked), z * math.sqrt(p * (1 - p) / asked + z2 / (4 * asked * asked))
    return (middle - spread) / (1 + z2 / asked), (middle + spread) / (1 + z2 / asked)


def replay(files: Iterable[Path], block: int | None) -> dict[str, list[dict[str, Any]]]:
    """File -> the attempts whose streams hold it, in order. Runs the command a user would run."""
    command = [sys.executable, "-m", "defib", "replay", "--jsonl", "--db", ":memory:", *map(str, files)]
    if block:
        command += ["--block-bytes", str(block)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode not in (0, 1, 3):
        sys.exit(done.stderr.decode())
    out: dict[str, list[dict[str, Any]]] = {}
    for line in done.stdout.splitlines():
        attempt = json.loads(line)
        for stream in attempt["streams"]:
            out.setdefault(stream, []).append(attempt)
    return out


def judge(
    rows: list[dict[str, str]], base: Path, got: dict[str, list[dict[str, Any]]]
) -> tuple[dict[str, Score], dict[str, list[int]]]:
    scores = {
        k: Score()
        for k in (
            "verdict group",
            "class",
            "cause line",
            "cause line within 3",
            "framework",
            "first step",
            "last step",
            "step time",
        )
    }
    scores["healthy not accused"] = Score()
    confusion: dict[str, list[int]] = {}  # class -> [true positive, false positive, false negative]
    for row in rows:
        path = str((base / row["file"]).resolve())
        attempts = got.get(path, [])
        if not attempts:
            scores["verdict group"].add(row["file"], False, "nothing", row["verdicts"])
            continue
        if "unsure" in row["flags"]:
            continue
        _ask(row, path, attempts, scores, confusion)
    return scores, confusion


def _ask(
    row: dict[str, str],
    path: str,
    attempts: list[dict[str, Any]],
    scores: dict[str, Score],
    confusion: dict[str, list[int]],
) -> None:
    last, name = attempts[-1], row["file"]
    verdict = "stalled" if last["verdict"] == "hung" else last["verdict"]
    wanted = {("stalled" if v == "hung" else v) for v in row["verdicts"].split("|")}
    wanted_groups = {GROUP.get(v, v) for v in wanted}
    scores["verdict group"].add(name, GROUP.get(verdict, verdict) in wanted_groups, verdict, row["verdicts"])
    if "healthy" in row["flags"].split("|"):
        scores["healthy not accused"].add(
            name,
            verdict in HEALTHY,
            f"{verdict} {(last['cause'] or {}).get('rule')} line {(last['cause'] or {}).get('line')}",
            "healthy",
        )
    classes = [c for c in row["classes"].split("|") if c]
    if classes and not wanted & HEALTHY:
        accepted = set().union(*(CLASSES[c] for c in classes))
        scores["class"].add(
            name, last["class"] in accepted, f"{last['class']} ({(last['cause'] or {}).get('rule')})", row["classes"]
        )
        _confuse(confusion, last["class"], accepted)
    roots = [int(x) for x in row["root_lines"].split(";") if x.strip().isdigit()]
    if roots and not wanted & HEALTHY and "pair" not in row["flags"]:
        cause = last["cause"] or {}
        line = cause.get("line") if cause.get("stream") == path else None
        scores["cause line"].add(name, line in roots, f"{line} {cause.get('rule')}", row["root_lines"])
        scores["cause line within 3"].add(
            name,
            line is not None and min(abs(line - r) for r in roots) <= 3,
            f"{line} {cause.get('rule')}",
            row["root_lines"],
        )
    scores["framework"].add(
        name, last["framework"] in frameworks(row["framework"]), last["framework"], row["framework"]
    )
    steps = [a["progress"] for a in attempts if a["progress"]]
    final = last["progress"] or {}
    if row["first_step"] != "-":
        first = min((p["first_step"] for p in steps), default=None)
        scores["first step"].add(name, first == int(row["first_step"]), first, row["first_step"])
    if row["last_step"] != "-":
        scores["last step"].add(
            name,
            final.get("last_step") == int(row["last_step"]),
            f"{final.get('last_step')} ({final.get('format')})",
            row["last_step"],
        )
    if row["median_step_s"] != "-" and float(row["median_step_s"]) > 0:
        said, true = final.get("median_step_s"), float(row["median_step_s"])
        scores["step time"].add(name, said is not None and abs(said - true) <= max(0.1 * true, 0.002), said, true)


def _confuse(confusion: dict[str, list[int]], said: str | None, accepted: set[str]) -> None:
    truth = sorted(accepted)[0]
    if said in accepted:
        confusion.setdefault(str(said), [0, 0, 0])[0] += 1
    else:
        confusion.setdefault(str(said), [0, 0, 0])[1] += 1
        confusion.setdefault(truth, [0, 0, 0])[2] += 1


def report(result: dict[str, Any]) -> None:
    print(f"{'question':<22}{'right':>7}{'asked':>7}{'rate':>8}   95 % interval")
    for name, s in result["scores"].items():
        if s["asked"]:
            print(
                f"{name:<22}{s['right']:>7}{s['asked']:>7}{100 * s['rate']:>7.1f}%   {100 * s['low']:.0f}-{100 * s['high']:.0f} %"
            )
    print(f"\n{'class':<22}{'precision':>10}{'recall':>8}")
    for name, (tp, fp, fn) in sorted(result["classes"].items()):
        precision = f"{tp}/{tp + fp}" if tp + fp else "-"
        recall = f"{tp}/{tp + fn}" if tp + fn else "-"
        print(f"{name:<22}{precision:>10}{recall:>8}")
    alarms, files, size = result["false_alarms"], result["healthy_files"], result["healthy_bytes"] / 1e9
    per = f" ({alarms / files:.3f} a file, {alarms / size:.1f} a GB)" if files and size else ""
    print(f"\nfalse alarms on healthy files: {alarms} in {files} files, {size * 1000:.1f} MB{per}")
    for name, s in result["scores"].items():
        for miss in s["misses"]:
            print(f"  miss [{name}] {miss}")


def compare(new: dict[str, Any], old: dict[str, Any]) -> None:
    print(f"{'question':<22}{'old':>8}{'new':>8}")
    for name, s in new["scores"].items():
        before = old["scores"].get(name, {}).get("rate")
        if s["asked"]:
            print(f"{name:<22}{'-' if before is None else f'{100 * before:.1f}%':>8}{100 * s['rate']:>7.1f}%")
        gone = set(s["misses"]) - set(old["scores"].get(name, {}).get("misses", []))
        for miss in sorted(gone):
            print(f"  new miss [{name}] {miss}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manifest", nargs="?", default="../shared/corpus/manifest.tsv", type=Path)
    parser.add_argument("--only", default="", help="files whose name begins so")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--against", type=Path, help="a --json result of another version")
    parser.add_argument("--block", type=int, help="block size in bytes")
    args = parser.parse_args()
    if not args.manifest.exists():
        print(f"{args.manifest}: no manifest here; name one (see the docstring for its columns)", file=sys.stderr)
        return 3
    base = args.manifest.parent
    with args.manifest.open(encoding="utf-8") as f:
        rows = [r for r in csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE) if r["file"].startswith(args.only)]
    got = replay([base / r["file"] for r in rows], args.block)
    scores, confusion = judge(rows, base, got)
    healthy = [r for r in rows if "healthy" in r["flags"].split("|") and "unsure" not in r["flags"]]
    alarms = scores["healthy not accused"]
    result = {
        "scores": {k: s.row() for k, s in scores.items()}, "classes": confusion, "false_alarms": alarms.asked - alarms.right,
        "healthy_files": alarms.asked, "healthy_bytes": sum((base / r["file"]).stat().st_size for r in healthy),
    }  # fmt: skip
    if args.json:
        print(json.dumps(result, indent=1))
    elif args.against:
        compare(result, json.loads(args.against.read_text()))
    else:
        report(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
