"""How each framework prints: one `Style` a framework, chosen by name."""

from loggen.model import Framework
from loggen.scribe import Scribe
from loggen.styles.bars import DeepSpeed, Lightning
from loggen.styles.base import Progress, Style
from loggen.styles.lines import Fairseq, NanoGPT, Nemo, Torchtitan
from loggen.styles.megatron import Megatron

__all__ = ["Progress", "Style", "style_for"]

STYLES: dict[Framework, type[Style]] = {
    "megatron-lm": Megatron,
    "deepspeed": DeepSpeed,
    "torchtitan": Torchtitan,
    "nanogpt": NanoGPT,
    "fairseq": Fairseq,
    "lightning": Lightning,
    "nemo": Nemo,
}


def style_for(scribe: Scribe, done: int = 0) -> Style:
    """A fresh style for one attempt; styles remember elapsed time and means."""
    return STYLES[scribe.job.framework](scribe, done)
