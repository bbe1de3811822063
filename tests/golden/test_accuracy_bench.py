"""bench/accuracy.py scores what it is given: right answers count, wrong ones are listed, and two versions can be compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench" / "accuracy.py"
HEAD = "file\tkind\tframework\tverdicts\tclasses\tflags\troot_lines\tfirst_failing\tfirst_step\tlast_step\tmedian_step_s\ttruth\n"
STEP = " iteration {n:8d}/     100 | consumed samples: {n} | elapsed time per iteration (ms): 1400.0 | lm loss: 2.3E+00 |\n"


def manifest(folder: Path, last: int, root: int) -> Path:
    text = "".join(STEP.format(n=n) for n in range(1, 41))
    (folder / "fine.log").write_text(text)
    (folder / "oom.log").write_text(text + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    path = folder / "manifest.tsv"
    path.write_text(
        HEAD
        + "fine.log\treal\tMegatron-LM\tcompleted|running-at-end|unknown\t\thealthy\t-\t-\t1\t40\t1.4\t-\n"
        + f"oom.log\treal\tMegatron-LM\tcrashed\tcuda_oom\t\t{root}\t-\t1\t{last}\t1.4\t-\n"
    )
    return path


def run(path: Path, *more: str) -> str:
    done = subprocess.run([sys.executable, str(BENCH), str(path), *more], capture_output=True, check=True, text=True)
    return done.stdout


def test_right_answers_count(tmp_path: Path) -> None:
    result = json.loads(run(manifest(tmp_path, 40, 41), "--json"))
    assert {name: (s["right"], s["asked"]) for name, s in result["scores"].items()} == {
        "verdict group": (2, 2), "class": (1, 1), "cause line": (1, 1), "cause line within 3": (1, 1), "framework": (2, 2),
        "first step": (2, 2), "last step": (2, 2), "step time": (2, 2), "healthy not accused": (1, 1),
    }  # fmt: skip
    assert result["classes"] == {"cuda-oom": [1, 0, 0]}
    assert result["false_alarms"] == 0


def test_wrong_answers_are_listed_and_versions_compared(tmp_path: Path) -> None:
    good = json.loads(run(manifest(tmp_path, 40, 41), "--json"))
    (tmp_path / "old.json").write_text(json.dumps(good))
    path = manifest(tmp_path, 39, 20)
    text = run(path)
    assert "miss [last step] oom.log: said 40 (megatron-lm.iteration), a person reads 39" in text
    assert "miss [cause line within 3] oom.log: said 41 cuda.out-of-memory, a person reads 20" in text
    assert "new miss [last step] oom.log" in run(path, "--against", str(tmp_path / "old.json"))
