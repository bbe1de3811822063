"""Frameworks that redraw a bar with carriage returns: HF Trainer with DeepSpeed, and Lightning.

In: progress. Out: bar redraws (no line feed) and dict lines. Always: a bar redraw tags its step.
"""

from loggen.scribe import Frame, Scribe
from loggen.styles.base import HOME, Progress, Style, clock_text

BLOCKS = " ▏▎▍▌▋▊▉"


def bar(done: int, total: int, width: int = 10) -> str:
    """A tqdm bar of `width` cells with eighths."""
    eighths = 8 * width * done // total
    full, part = divmod(eighths, 8)
    return ("█" * full + (BLOCKS[part] if part else "")).ljust(width)


class Rate:
    """tqdm's exponential mean of the step time."""

    def __init__(self) -> None:
        self.mean = 0.0

    def text(self, seconds: float) -> str:
        self.mean = 0.3 * seconds + 0.7 * self.mean if self.mean else seconds
        return f"{1 / self.mean:5.2f}it/s" if self.mean < 1 else f"{self.mean:5.2f}s/it"


class DeepSpeed(Style):
    """HF Trainer on DeepSpeed: the bar on stderr, dicts on stdout, the engine's own lines between."""

    script = "run_clm.py"
    nan_error = "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."

    def __init__(self, scribe: Scribe, done: int = 0) -> None:
        super().__init__(scribe, done)
        self.rate = Rate()

    def log(self, level: str, source: str, text: str, rank: int = 0) -> None:
        when = self.s.clock(self.job.node_of(rank))
        head = f"[{when:%Y-%m-%d %H:%M:%S},{when.microsecond // 1000:03d}] [{level}] [{source}]"
        self.s.out(rank, f"{head} {text}")

    def frames(self, phase: str = "train") -> tuple[Frame, ...]:
        site = "/opt/env/lib/python3.11/site-packages"
        top = (f"{HOME}/run_clm.py", 655, "<module>", "main()")
        train = (f"{site}/transformers/trainer.py", 2245, "train", "return inner_training_loop(")
        if phase == "checkpoint":
            return (
                top,
                train,
                (
                    f"{site}/deepspeed/runtime/engine.py",
                    3412,
                    "save_checkpoint",
                    "self._save_zero_checkpoint(",
                ),
            )
        if phase == "startup":
            return (top, (f"{site}/deepspeed/__init__.py", 193, "initialize", "engine = DeepSpeedEngine("))
        return (
            top,
            train,
            (f"{site}/deepspeed/runtime/engine.py", 2020, "forward", "loss = self.module(*inputs, **kwargs)"),
        )

    def shard(self, step: int, rank: int) -> str:
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        return f"{self.ckpt_dir}/checkpoint-{step}/global_step{step}/{name}"

    def banner(self) -> None:
        s, job = self.s, self.job
        for rank in range(min(job.world, 8)):
            self.log(
                "INFO",
                "real_accelerator.py:222:get_accelerator",
                "Setting ds_accelerator to cuda (auto detect)",
                rank,
            )
        s.now += 6.0
        self.log("INFO", "comm.py:658:init_distributed", "Initializing TorchBackend in DeepSpeed with backend nccl")
        s.now += 12.0
        when = s.clock()
        stamp = f"{when:%Y-%m-%d %H:%M:%S},{when.microsecond // 1000:03d}"
        for row in (
            "***** Running training *****",
            "  Num examples = 64,000",
            f"  Total optimization steps = {job.steps:,}",
        ):
            s.err(0, f"[INFO|trainer.py:2414] {stamp} >> {row}")

    def resume(self, step: int) -> None:
        s = self.s
        s.err(0, "  Continuing training from checkpoint, will skip to saved global_step")
        s.err(0, f"  Continuing training from global step {step}")
        s.now += 14.0

    def draw(self, p: Progress, *, again: bool = False) -> None:
        total = self.job.steps
        left = clock_text((total - p.step) * max(self.rate.mean, 0.01))
        rate = self.rate.text(p.seconds) if not again else self.rate.text(self.rate.mean)
        text = (
            f"\r{100 * p.step // total:3d}%|{bar(p.step, total)}| {p.step}/{total} "
            f"[{clock_text(p.elapsed)}<{left}, {rate}]"
        )
        self.s.put("err", text, rank=0, end="", step=p.step, cause=p.cause and not again and p.loss == p.loss)

    def step(self, p: Progress) -> bool:
        self.draw(p)
        if not self.due(p.step):
            return False
        lr = f"{p.lr:.3e}"
        row = {"loss": round(p.loss, 4), "grad_norm": round(p.grad_norm, 4), "learning_rate": float(lr)}
        row["epoch"] = round(p.step / self.job.epoch, 2)
        self.s.put("err", "\r" + " " * 70 + "\r", rank=0, end="")
        self.s.out(0, str(row), cause=p.cause and p.loss != p.loss)
        self.draw(p, again=True)
        self.log(
            "INFO",
            "logging.py:107:log_dist",
            f"[Rank 0] step={p.step}, skipped={p.skipped}, lr=[{lr}], mom=[(0.9, 0.95)]",
        )
        speed = 512 * p.work / p.mean
        self.log(
            "INFO",
            "timer.py:264:stop",
            f"epoch=0/micro_step={p.step * 2}/global_step={p.step}, RunningAvgSamplesPerSec={speed:.4f}, "
            f"CurrSamplesPerSec={512 * p.batch / p.seconds:.4f}, MemAllocated=12.8GB, MaxMemAllocated=61.41GB",
        )
        return True

    def overflow(self, scale: int) -> None:
        self.s.out(
            0,
            f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {scale}, reducing to {scale // 2}",
        )

    def checkpoint_begin(self, step: int) -> None:
        self.s.err(0, f"Saving model checkpoint to {self.ckpt_dir}/checkpoint-{step}")
        self.log("INFO", "torch_checkpoint_engine.py:21:save", f"[Torch] Saving {self.shard(step, 0)}...")

    def checkpoint_end(self, step: int, seconds: float) -> None:
        self.log("INFO", "torch_checkpoint_engine.py:23:save", f"[Torch] Saved {self.shard(step, 0)}.")
        self.log(
            "INFO",
            "torch_checkpoint_engine.py:33:commit",
            f"[Torch] Checkpoint global_step{step} is ready now!",
        )

    def evaluation(self, step: int, loss: float, seconds: float) -> None:
        s = self.s
        s.err(0, "***** Running Evaluation *****")
        for i in range(1, 9):
            s.now += seconds / 8
            rate = f"{8 / seconds:5.2f}it/s" if seconds < 8 else f"{seconds / 8:5.2f}s/it"
            left = f"{clock_text(i * seconds / 8)}<{clock_text((8 - i) * seconds / 8)}"
            s.put("err", f"\r{100 * i // 8:3d}%|{bar(i, 8)}| {i}/8 [{left}, {rate}]", rank=0, end="")
        s.put("err", "\r" + " " * 70 + "\r", rank=0, end="")
        row = {
            "eval_loss": round(loss, 4),
            "eval_runtime": round(seconds, 1),
            "epoch": round(step / self.job.epoch, 2),
        }
        s.out(0, str(row))

    def finish(self, elapsed: float) -> None:
        s = self.s
        s.err(0, "")
        s.err(0, "Training completed. Do not forget to share your model on huggingface.co/models =)")
        s.out(
            0,
            str(
                {
                    "train_runtime": round(elapsed, 1),
                    "train_loss": 1.7,
                    "epoch": round(self.job.steps / self.job.epoch, 2),
                }
            ),
        )
        for rank in range(self.job.gpus_per_node):
            self.log("INFO", "launch.py:351:main", f"Process {s.pid(rank)} exits successfully.")


class Lightning(Style):
    """A bar per epoch that restarts at each; the rate is always it/s."""

    script = "fit.py"
    nan_error = "ValueError: The loss returned in `training_step` is nan."

    def banner(self) -> None:
        s, job = self.s, self.job
        for rank in range(job.world):
            s.err(
                rank,
                f"Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/{job.world}",
                after=0.02 * rank,
            )
        s.now += 9.0
        s.err(0, "SLURM auto-requeueing enabled. Setting signal handlers.")
        s.err(0, f"LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [{','.join(map(str, range(job.gpus_per_node)))}]")
        s.put(
            "err",
            "\rSanity Checking DataLoader 0: 100%|██████████| 2/2 [00:01<00:00,  1.41it/s]",
            rank=0,
            end="",
        )
        s.now += 4.0

    def resume(self, step: int) -> None:
        self.s.err(0, f"Restoring states from the checkpoint path at {self.ckpt_dir}/step={step}.ckpt")
        self.s.now += 11.0
        self.s.err(0, f"Restored all states from the checkpoint at {self.ckpt_dir}/step={step}.ckpt")

    def step(self, p: Progress) -> bool:
        total = self.job.epoch
        epoch, place = divmod(p.step - 1, total)
        place += 1
        spent = place * p.mean
        text = (
            f"\rEpoch {epoch}: {100 * place // total:3d}%|{bar(place, total)}| {place}/{total} "
            f"[{clock_text(spent)}<{clock_text((total - place) * p.mean)}, {1 / p.seconds:5.2f}it/s, "
            f"v_num=4, train_loss={p.loss:.3f}]"
        )
        self.s.put("err", text, rank=0, end="\n" if place == total else "", step=p.step, cause=p.cause)
        return self.due(p.step)

    def evaluation(self, step: int, loss: float, seconds: float) -> None:
        for i in range(1, 6):
            self.s.now += seconds / 5
            text = f"\rValidation DataLoader 0: {20 * i:3d}%|{bar(i, 5)}| {i}/5 [00:{i:02d}<00:0{5 - i},  1.00it/s]"
            self.s.put("err", text, rank=0, end="")

    def checkpoint_begin(self, step: int) -> None:
        self.s.out(0, f"Epoch {(step - 1) // self.job.epoch}, global step {step}: 'train_loss' was not in top 3")

    def finish(self, elapsed: float) -> None:
        self.s.err(0, "")
        self.s.err(0, f"`Trainer.fit` stopped: `max_steps={self.job.steps}` reached.")
