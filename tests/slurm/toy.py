"""A training script that is none: prints Megatron's progress lines, saves a checkpoint, resumes from it, and fails where it is told to.

toy.py FOLDER STEPS    with FAULT=none|crash|hang|slow|exit:N, FAULT_NODE=n01 (any: everywhere), FAULT_STEP=12
"""

import os
import sys
import time


def line(step: int, total: int, ms: float) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    return (
        f" [{stamp}] iteration {step:8}/{total:8} | consumed samples: {step * 64:12} | elapsed time per iteration (ms): {ms:.1f} | "
        f"learning rate: 1.000E-04 | global batch size:    64 | lm loss: 2.0{step:05}E+00 | loss scale: 1.0 | grad norm: 1.203 |"
    )


def main() -> int:
    folder, total = sys.argv[1], int(sys.argv[2])
    saved = os.path.join(folder, "checkpoint")
    step = 0
    if os.path.exists(saved):
        with open(saved) as f:
            step = int(f.read())
    node = os.environ.get("SLURMD_NODENAME", "")
    fault, where, at = (os.environ.get(k, "") for k in ("FAULT", "FAULT_NODE", "FAULT_STEP"))
    print("using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1", flush=True)
    if step:
        print(f"  successfully loaded checkpoint from {folder} at iteration {step}", flush=True)
    pause = float(os.environ.get("PAUSE", "0.25"))
    while step < total:
        step += 1
        took = pause * 8 if fault == "slow" and where in (node, "any") and step >= int(at) else pause
        time.sleep(took)
        print(line(step, total, took * 1000), flush=True)
        if step % 5 == 0:
            with open(saved + ".new", "w") as f:
                f.write(str(step))
            os.replace(saved + ".new", saved)
        if step == int(at or 0) and where in (node, "any"):
            if fault == "hang":
                time.sleep(100000)
            if fault == "crash":
                print("[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered", flush=True)
                return 1
            if fault.startswith("exit:"):
                return int(fault[5:])
    print("[after training is done] datetime: 2026-01-01 00:00:00", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
