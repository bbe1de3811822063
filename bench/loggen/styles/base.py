"""What every framework can say; each style overrides what its framework prints.

In: a scribe and the state of training. Out: events through the scribe.
Always: only `step` tags events with a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loggen.scribe import TORCH, Frame, Scribe

HOME = "/home/ada/train"


@dataclass(frozen=True, slots=True)
class Progress:
    """One optimizer step as the trainer knows it."""

    step: int
    seconds: float
    mean: float
    """Mean step time since the last printed line."""
    elapsed: float
    loss: float
    grad_norm: float
    lr: float
    skipped: int = 0
    nans: int = 0
    cause: bool = False
    load: float = 1.0
    """Tokens in this step as a multiple of the first step's; `work` is the mean since the last printed line."""
    work: float = 1.0
    batch: float = 1.0
    """Samples in this step as a multiple of the first step's."""
    samples: float = 0.0
    """Samples so far, in samples of a first step."""
    late: int | None = None
    """A rank that is slower than the others: it prints `lag` seconds later, its steps take `pull` seconds longer."""
    lag: float = 0.0
    pull: float = 0.0


class Style:
    """The silent framework: says nothing at all."""

    zero_based = False
    script = "train.py"
    nan_error = "FloatingPointError: loss is nan, nothing to step on"

    def __init__(self, scribe: Scribe, done: int = 0) -> None:
        self.s = scribe
        self.job = scribe.job
        self.done = done
        """Steps done by earlier attempts."""
        self.lagged = 0.0
        """How far the slow rank was behind at the last printed line."""
        self.ckpt_dir = f"/scratch/ada/{scribe.job.name}/ckpt"

    @property
    def printer(self) -> int:
        """The rank whose progress lines are in the log."""
        return 0

    def due(self, step: int) -> bool:
        return step % self.job.log_every == 0

    def shown(self, step: int) -> int:
        """The number the log prints for the n-th step."""
        return step - 1 if self.zero_based else step

    def frames(self, phase: str = "train") -> Sequence[Frame]:
        """The user's part of a traceback."""
        top = (f"{HOME}/{self.script}", 412, "<module>", "main()")
        if phase == "checkpoint":
            return (
                top,
                (f"{HOME}/checkpoint.py", 88, "save", "torch.save(state, path)"),
                (f"{TORCH}/serialization.py", 944, "save", "with _open_zipfile_writer(f) as opened_zipfile:"),
            )
        if phase == "startup":
            return (top, (f"{HOME}/model.py", 61, "build", "model = Model(cfg).to(device)"))
        return (
            top,
            (f"{HOME}/{self.script}", 301, "main", "loss = train_step(model, batch)"),
            (f"{HOME}/{self.script}", 174, "train_step", "logits = model(batch['tokens'])"),
            (
                f"{TORCH}/nn/modules/module.py",
                1751,
                "_wrapped_call_impl",
                "return self._call_impl(*args, **kwargs)",
            ),
        )

    def shard(self, step: int, rank: int) -> str:
        """The file a rank writes at a checkpoint."""
        return f"{self.ckpt_dir}/step_{step}/rank_{rank:05d}.pt"

    def banner(self) -> None: ...
    def resume(self, step: int) -> None: ...
    def overflow(self, scale: int) -> None: ...
    def step(self, p: Progress) -> bool:
        """Print what this step prints; True when a mean was printed and starts anew."""
        return False

    def checkpoint_begin(self, step: int) -> None: ...
    def checkpoint_end(self, step: int, seconds: float) -> None: ...
    def evaluation(self, step: int, loss: float, seconds: float) -> None:
        """Print an evaluation and let its time pass."""
        self.s.now += seconds

    def finish(self, elapsed: float) -> None: ...


def clock_text(seconds: float) -> str:
    """[H:]MM:SS, as progress bars write spans."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"
