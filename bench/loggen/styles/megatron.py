"""Megatron-LM: the last rank prints one line per log interval with the mean step time in ms.

In: progress. Out: iteration, checkpoint, evaluation and resume lines.
Always: one line per `log_every` steps.
"""

from loggen.scribe import Frame
from loggen.styles.base import HOME, Progress, Style

BATCH = 512


class Megatron(Style):
    script = "pretrain_gpt.py"
    nan_error = "AssertionError: Rank {rank}: found NaN in local grad norm for bucket #0 in backward pass"

    @property
    def printer(self) -> int:
        return self.job.world - 1

    def frames(self, phase: str = "train") -> tuple[Frame, ...]:
        root = f"{HOME}/Megatron-LM/megatron"
        top = (f"{HOME}/Megatron-LM/pretrain_gpt.py", 296, "<module>", "pretrain(")
        loop = (
            f"{root}/training/training.py",
            2412,
            "train",
            "loss, skipped = train_step(forward_step_func,",
        )
        if phase == "startup":
            return (
                top,
                (f"{root}/training/training.py", 811, "pretrain", "model = setup_model_and_optimizer("),
            )
        if phase == "checkpoint":
            return (
                top,
                (f"{root}/training/checkpointing.py", 431, "save_checkpoint", "dist_checkpointing.save("),
            )
        return (
            top,
            loop,
            (f"{root}/core/pipeline_parallel/schedules.py", 604, "forward_step", "output = model("),
        )

    def shard(self, step: int, rank: int) -> str:
        return f"{self.ckpt_dir}/iter_{step:07d}/__{rank}_0.distcp"

    def banner(self) -> None:
        s, job = self.s, self.job
        tensor = min(8, job.gpus_per_node)
        s.out(
            0,
            f"using world size: {job.world}, data-parallel size: "
            f"{job.world // tensor}, context-parallel size: 1, "
            f"tensor-model-parallel size: {tensor}, pipeline-model-parallel size: 1",
        )
        s.out(0, "> building GPT2BPETokenizer tokenizer ...", after=0.4)
        s.out(0, " > padded vocab (size: 50257) with 943 dummy tokens (new size: 51200)", after=2.1)
        s.now += 20.0
        s.out(
            0,
            f"> number of parameters on (tensor, pipeline) model parallel rank (0, 0): {7_241_732_096 // tensor}",
        )
        s.now += 8.0
        s.out(
            self.printer,
            f"[after dataloaders are built] datetime: {s.clock(len(job.nodes) - 1):%Y-%m-%d %H:%M:%S} ",
        )
        s.out(0, "training ...")
        s.out(0, f"[before the start of training step] datetime: {s.clock():%Y-%m-%d %H:%M:%S} ", after=0.2)

    def resume(self, step: int) -> None:
        s = self.s
        s.out(0, f" loading checkpoint from {self.ckpt_dir} at iteration {step}")
        s.now += 18.0
        s.out(0, f"  successfully loaded checkpoint from {self.ckpt_dir} [ t 1/8, p 1/1 ] at iteration {step}")

    def step(self, p: Progress) -> bool:
        if not self.due(p.step):
            return False
        s, job = self.s, self.job
        when = s.clock(job.node_of(self.printer))
        flops = 612.4 * job.step_s * p.work / p.mean
        text = (
            f" [{when:%Y-%m-%d %H:%M:%S.%f}] iteration {p.step:8d}/{job.steps:8d} | "
            f"consumed samples: {round(p.samples * BATCH):12d} | elapsed "
            f"time per iteration (ms): {p.mean * 1000:.1f} | "
            f"throughput per GPU (TFLOP/s/GPU): {flops:.1f} | learning rate: {p.lr:.6E} | "
            f"global batch size: {round(p.batch * BATCH):5d} | lm loss: {p.loss:.6E} "
            f"| loss scale: 1.0 | grad norm: {p.grad_norm:.3f} | "
            f"number of skipped iterations: {p.skipped:3d} | number of nan iterations: {p.nans:3d} |"
        )
        s.out(self.printer, text, step=p.step, cause=p.cause)
        return True

    def checkpoint_begin(self, step: int) -> None:
        self.s.out(0, f"saving checkpoint at iteration {step:7d} to {self.ckpt_dir} in torch_dist format")

    def checkpoint_end(self, step: int, seconds: float) -> None:
        s = self.s
        s.out(0, f"  successfully saved checkpoint from iteration {step:7d} to {self.ckpt_dir} [ t 1/8, p 1/1 ]")
        s.out(self.printer, "(min, max) time across ranks (ms):", after=0.1)
        low, high = seconds * 1000 - 41.2, seconds * 1000
        s.out(
            self.printer,
            f"    save-checkpoint ................................: ({low:.2f}, {high:.2f})",
            after=0.1,
        )

    def evaluation(self, step: int, loss: float, seconds: float) -> None:
        s, last = self.s, self.printer
        s.out(0, f"Evaluating on {10 * BATCH} samples")
        for i in range(1, 11):
            s.out(0, f"Evaluating iter {i}/10")
            s.now += seconds / 10
        text = f" validation loss at iteration {step} | lm loss value: {loss:.6E} | lm loss PPL: {2.718**loss:.6E} | "
        for row in ("-" * len(text), text, "-" * len(text)):
            s.out(last, row)

    def finish(self, elapsed: float) -> None:
        self.s.out(0, f"[after training is done] datetime: {self.s.clock():%Y-%m-%d %H:%M:%S} ")
