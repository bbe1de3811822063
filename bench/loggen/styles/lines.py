"""Frameworks with one plain line per log interval: torchtitan, nanoGPT, fairseq, NeMo 2.

In: progress. Out: one line per interval.
Always: torchtitan prints on every rank when ranks have files of their own.
"""

from loggen.styles.base import Progress, Style

TOKENS = 32_768


LAST_WORDS = "Process group destroyed"
"""After which nothing of torchtitan's is left to do: a process that lives on hangs where no log shows it."""


class Torchtitan(Style):
    def log(
        self,
        text: str,
        *,
        rank: int = 0,
        level: str = "INFO",
        step: int | None = None,
        cause: bool = False,
        after: float = 0.0,
    ) -> None:
        when = self.s.clock(self.job.node_of(rank), after)
        head = f"[titan] {when:%Y-%m-%d %H:%M:%S},{when.microsecond // 1000:03d} - root - {level} - "
        own_file = self.job.layout == "per-rank"
        text = ("" if own_file else f"[rank{rank}]:") + head + text
        self.s.put("out", text, rank=rank, after=after, step=step, cause=cause)

    def banner(self) -> None:
        self.log("Starting job: Llama 3 8B training")
        self.s.now += 7.0
        self.log("Building 1-D device mesh with ['dp_shard'], [" + str(self.job.world) + "]")
        self.s.now += 15.0
        self.log(
            "Trainer is initialized with local batch size 4, "
            f"global batch size {4 * self.job.world}, gradient "
            f"accumulation steps 1, sequence length 8192, total steps {self.job.steps} (warmup 20)"
        )
        if not self.done:
            self.log("Training starts at step 1")

    def resume(self, step: int) -> None:
        self.log(f"Loading the checkpoint from {self.ckpt_dir}/step-{step}.")
        self.s.now += 14.2
        self.log("Finished loading the checkpoint in 14.20 seconds.")
        self.log(f"Training starts at step {step + 1}")

    def due(self, step: int) -> bool:
        return step == 1 or super().due(step)

    def step(self, p: Progress) -> bool:
        if not self.due(p.step):
            return False
        every = self.job.layout == "per-rank" or self.job.habits.rank_lines
        for rank in range(self.job.world) if every else (0,):
            mine = rank == p.late
            text = self.text(p, p.mean + p.pull if mine else p.mean)
            self.log(
                text, rank=rank, step=p.step, cause=p.cause and rank == (p.late or 0), after=p.lag if mine else 0.0
            )
        if p.step == 1:
            self.log("Synchronizing and adjusting timeout for all ProcessGroups to 0:01:40")
        return True

    def text(self, p: Progress, mean: float) -> str:
        tps = round(TOKENS * p.work / mean)
        tflops = 407.35 * self.job.step_s * p.work / mean
        return (
            f"step: {p.step:2d}  loss: {p.loss:8.5f}  grad_norm: "
            f"{p.grad_norm:7.4f}  memory: 58.31GiB(73.65%)  "
            f"tps: {tps:,}  tflops: {tflops:.2f}  mfu: {tflops / 9.89:.2f}%"
        )

    def checkpoint_begin(self, step: int) -> None:
        self.log("Saving the checkpoint (or staging if async is enabled).")

    def checkpoint_end(self, step: int, seconds: float) -> None:
        self.log(f"Finished saving the checkpoint (or staging if async is enabled)in {seconds:.2f} seconds.")

    def evaluation(self, step: int, loss: float, seconds: float) -> None:
        self.s.now += seconds
        self.log(f"validate step: {step:2d}  loss: {loss:8.5f}  memory: 60.02GiB(75.81%)  tps: 9,000")

    def finish(self, elapsed: float) -> None:
        self.log("Sleeping 2 seconds for other ranks to complete")
        self.s.now += 2.0
        self.log("Training completed")
        self.log(LAST_WORDS)


class NanoGPT(Style):
    zero_based = True

    def banner(self) -> None:
        self.s.out(0, f"tokens per iteration will be: {TOKENS * self.job.world:,}")
        if not self.done:
            self.s.out(0, "Initializing a new model from scratch", after=1.0)
        self.s.now += 9.0
        self.s.out(0, "number of parameters: 123.59M")
        self.s.out(0, "compiling the model... (takes a ~minute)")
        self.s.now += 30.0

    def resume(self, step: int) -> None:
        self.s.out(0, f"Resuming training from {self.ckpt_dir}")

    def step(self, p: Progress) -> bool:
        if (p.step - 1) % self.job.log_every:
            return False
        mfu = 41.19 * self.job.step_s * p.load / p.seconds if p.step > 5 else -100.0
        text = f"iter {p.step - 1}: loss {p.loss:.4f}, time {p.seconds * 1000:.2f}ms, mfu {mfu:.2f}%"
        self.s.out(0, text, step=p.step - 1, cause=p.cause)
        return True

    def evaluation(self, step: int, loss: float, seconds: float) -> None:
        self.s.now += seconds
        self.s.out(0, f"step {step}: train loss {loss - 0.04:.4f}, val loss {loss:.4f}")

    def checkpoint_begin(self, step: int) -> None:
        self.s.out(0, f"saving checkpoint to {self.ckpt_dir}")


class Fairseq(Style):
    script = "fairseq_cli/train.py"
    nan_error = (
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. "
        "Try lowering the learning rate, using gradient clipping or increasing the batch size."
    )

    def log(self, source: str, text: str, *, step: int | None = None, cause: bool = False) -> None:
        self.s.out(0, f"{self.s.clock():%Y-%m-%d %H:%M:%S} | INFO | {source} | {text}", step=step, cause=cause)

    def banner(self) -> None:
        self.log("fairseq.distributed.utils", f"initialized host {self.s.hosts[0]} as rank 0")
        self.s.now += 14.0
        self.log("fairseq_cli.train", f"training on {self.job.world} devices (GPUs/TPUs)")
        if not self.done:
            self.log("fairseq.trainer", "begin training epoch 1")

    def resume(self, step: int) -> None:
        self.s.now += 5.0
        epoch = step // self.job.epoch + 1
        self.log(
            "fairseq.trainer",
            f"Loaded checkpoint {self.ckpt_dir}/checkpoint_last.pt (epoch {epoch} @ {step} updates)",
        )
        self.log("fairseq.trainer", f"begin training epoch {epoch}")

    def overflow(self, scale: int) -> None:
        text = f"NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: {scale / 2048:.1f}"
        self.log("fairseq.trainer", text)

    def step(self, p: Progress) -> bool:
        if not self.due(p.step):
            return False
        epoch, place = divmod(p.step - 1, self.job.epoch)
        wps = 427_295 * p.work / p.mean
        text = (
            f"epoch {epoch + 1:03d}: {place + 1:6d} / {self.job.epoch} "
            f"loss={p.loss:.3f}, ppl={2**p.loss:.2f}, "
            f"wps={wps:.1f}, ups={1 / p.mean:.2f}, wpb={427_295 * p.load:.0f}, "
            f"bsz={14390.4 * p.batch:.1f}, num_updates={p.step}, lr={p.lr:.6g}, "
            f"gnorm={p.grad_norm:.3f}, loss_scale=64, "
            f"train_wall={p.mean * self.job.log_every:.0f}, gb_free=9.8, "
            f"wall={p.elapsed:.0f}"
        )
        self.log("train_inner", text, step=p.step, cause=p.cause)
        return True

    def checkpoint_begin(self, step: int) -> None:
        epoch = (step - 1) // self.job.epoch + 1
        self.log("fairseq.checkpoint_utils", f"Preparing to save checkpoint for epoch {epoch} @ {step} updates")

    def checkpoint_end(self, step: int, seconds: float) -> None:
        epoch = (step - 1) // self.job.epoch + 1
        path = f"{self.ckpt_dir}/checkpoint_{epoch}_{step}.pt"
        self.log(
            "fairseq.checkpoint_utils",
            f"Saved checkpoint {path} (epoch {epoch} @ {step} updates, "
            f"score None) (writing took {seconds:.2f} seconds)",
        )

    def evaluation(self, step: int, loss: float, seconds: float) -> None:
        self.log("fairseq_cli.train", 'begin validation on "valid" subset')
        self.s.now += seconds
        epoch = (step - 1) // self.job.epoch + 1
        self.log("valid", f"epoch {epoch:03d} | valid on 'valid' subset | loss {loss:.3f} | num_updates {step}")

    def finish(self, elapsed: float) -> None:
        self.log("fairseq_cli.train", f"done training in {elapsed:.1f} seconds")


class Nemo(Style):
    zero_based = True
    script = "nemo_pretrain.py"
    nan_error = "ValueError: The loss returned in `training_step` is nan."

    def info(self, text: str) -> None:
        self.s.out(0, f"[NeMo I {self.s.clock():%Y-%m-%d %H:%M:%S} nemo_logging:393] {text}")

    def banner(self) -> None:
        self.info("Experiments will be logged at /scratch/ada/nemo_experiments/default")
        self.s.now += 19.0
        self.info(f"Rank 0 has data parallel group : {list(range(0, self.job.world, 8))[:8]}")
        self.s.now += 12.0

    def resume(self, step: int) -> None:
        self.s.now += 17.0
        self.s.err(0, f"Restored all states from the checkpoint at {self.ckpt_dir}/step={step}")

    def step(self, p: Progress) -> bool:
        if (p.step - 1) % self.job.log_every:
            return False
        shown = p.step - 1
        text = (
            f"Training epoch 0, iteration {shown}/{self.job.steps - 1} "
            f"| lr: {p.lr:.4g} | global_batch_size: {round(512 * p.batch)} | "
            f"global_step: {shown} | reduced_train_loss: "
            f"{p.loss:.4g} | train_step_timing in s: {p.mean:.4g} | "
            f"consumed_samples: {round(512 * p.samples)}"
        )
        self.s.out(0, text, step=shown, cause=p.cause)
        return True

    def checkpoint_begin(self, step: int) -> None:
        self.info(f"Global Checkpoint Save : Rank: 0 : Iteration: {step} : Start time: {self.s.now:.3f}s")

    def checkpoint_end(self, step: int, seconds: float) -> None:
        self.s.out(0, f"Successfully saved checkpoint from iteration {step:7d} to {self.ckpt_dir}/step={step}")

    def evaluation(self, step: int, loss: float, seconds: float) -> None:
        for i in range(1, 6):
            self.s.now += seconds / 5
            self.s.out(0, f"Validation: iteration {i}/5")

    def finish(self, elapsed: float) -> None:
        self.s.err(0, f"`Trainer.fit` stopped: `max_steps={self.job.steps}` reached.")
