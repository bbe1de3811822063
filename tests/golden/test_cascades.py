"""Sixty generated cascades of 8 to 512 ranks, clocks askew, writers mixed and torn: is the culprit named where the logs contain it, and nobody
where they do not?

A suspect is right when neither its rank nor its node is another's, and wrong when there is no culprit at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest
from tests.conftest import Kit, replay

import loggen
from defib.engine.words import Suspect
from loggen import Fault, Job, Truth

COUNT, SEED = 60, 11
NODES = (1, 1, 2, 2, 4, 4, 8, 16)
KINDS: tuple[tuple[loggen.FaultKind, bool], ...] = (
    ("cuda-oom", False), ("python-error", False), ("gpu-xid79", False), ("ecc", False), ("nccl-timeout", False), ("host-oom", False),
    ("no-space", False), ("nan-loss", False), ("segfault", False), ("node-failure", False), ("cuda-oom", True), ("python-error", True),
)  # fmt: skip


def cases(count: int, seed: int) -> Iterator[tuple[Job, Fault]]:
    """Every kind in turn, all else drawn; every tenth job has 512 ranks."""
    rng = Random(seed)
    for i in range(count):
        hosts = tuple(f"gpu{k:03d}" for k in range(1, (64 if i % 10 == 0 else rng.choice(NODES)) + 1))
        kind, everywhere = KINDS[i % len(KINDS)]
        # A lost node is requeued: in logs of one rank or node nothing may mark where the next attempt begins, so there is no verdict to check.
        layouts = loggen.LAYOUTS[:2] if kind == "node-failure" else loggen.LAYOUTS
        job = Job(
            f"case{i}", str(810_000 + i), rng.choice(loggen.FRAMEWORKS), hosts, steps=60, log_every=5, checkpoint_every=20,
            layout=rng.choice(layouts), launcher=rng.choice(("torchrun", "srun")), labels=rng.random() < 0.5,
            interleave=rng.choice((0.0, 0.5, 1.0)), skew=tuple(rng.uniform(-1.5, 1.5) for _ in hosts),
            traps=rng.random() < 0.5, chatter=rng.choice((0, 6)), rank_tags=rng.random() < 0.8,
        )  # fmt: skip
        yield job, Fault(kind, everywhere=everywhere)


@dataclass(frozen=True)
class Answer:
    job: Job
    truth: Truth
    suspect: Suspect | None
    said: str

    @property
    def node(self) -> str | None:
        rank = self.truth.culprit_rank
        return self.truth.culprit_node or (self.job.nodes[self.job.node_of(rank)] if rank is not None else None)

    @property
    def right(self) -> bool:
        """Nobody else is named: the culprit, or nobody where there is none."""
        s = self.suspect
        if s is None or self.node is None:
            return s is None and self.node is None
        return s.rank in (None, self.truth.culprit_rank) and s.node in (None, self.node)

    def __str__(self) -> str:
        j, s = self.job, self.suspect
        named = f"{s.how} {s.rank} {s.node}: {s.because}" if s else "nobody"
        return f"{j.name} {self.truth.fault} {j.framework} {j.layout} {j.launcher} {j.world}: {self.truth.culprit_rank} {self.node}, said {named} ({self.said})"


@pytest.fixture(scope="module")
def answers(shipped: Kit) -> list[Answer]:
    out = []
    for i, (job, fault) in enumerate(cases(COUNT, SEED)):
        rendered = loggen.render(job, fault, i)
        a = replay(shipped, rendered.files).attempts[0]
        said = f"{a.verdict} by {a.cause.signal.rule if a.cause else None}"
        out.append(Answer(job, rendered.truth[0], a.suspect, said))
    return out


@pytest.mark.timeout(300)
def test_the_culprit_is_named(answers: list[Answer]) -> None:
    asked = [a for a in answers if a.node is not None]
    wrong = [str(a) for a in asked if not a.right]
    assert len(asked) >= 45
    assert len(wrong) <= 0.05 * len(asked), "\n".join(wrong)


def test_nobody_is_named_where_nobody_is_to_blame(answers: list[Answer]) -> None:
    asked = [a for a in answers if a.node is None]
    assert len(asked) >= 9
    assert [str(a) for a in asked if a.suspect is not None] == []


def test_every_suspect_shows_lines_and_says_why(answers: list[Answer]) -> None:
    for a in answers:
        if a.suspect is not None:
            assert a.suspect.evidence, str(a)
            assert a.suspect.because
            assert a.suspect.rank is not None or a.suspect.node is not None


def test_a_rank_has_its_node_where_any_line_ties_them(answers: list[Answer]) -> None:
    """Chatter names host and rank of everybody, and so do per-node logs."""
    tied = [a for a in answers if a.suspect is not None and (a.job.chatter or a.job.layout == "per-node")]
    assert len(tied) >= 20
    assert [str(a) for a in tied if a.suspect is not None and a.suspect.node is None] == []
