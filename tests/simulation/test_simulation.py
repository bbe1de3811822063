"""Three hundred clusters of 72 simulated hours each, audited after every step. Longer runs: bench/simulate.py."""

from __future__ import annotations

import pytest
from tests.simulation.mutations import MUTATIONS, Mutation, planted
from tests.simulation.run import run
from tests.simulation.sim import BrokenError

SEEDS, TOGETHER = 300, 10
CAUGHT_WITHIN = 12  # seeds from the first that is tried


@pytest.mark.parametrize("first", range(0, SEEDS, TOGETHER))
def test_no_invariant_breaks(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        run(seed)


def test_where_nothing_of_ours_fails_it_restarts_jobs_and_they_recover() -> None:
    stats = run(0) + run(10) + run(20)
    assert stats["effective"] >= 10
    assert stats["case recovered"] >= stats["effective"] * 0.6
    assert stats["called exclude"]
    assert stats["called release"] == stats["called requeuehold"]


def test_a_seed_is_the_same_every_time() -> None:
    assert run(17, hours=24) == run(17, hours=24)


@pytest.mark.parametrize("m", MUTATIONS, ids=lambda m: m.name)
def test_a_planted_bug_is_caught(m: Mutation) -> None:
    with planted(m):
        for seed in range(m.first, m.first + CAUGHT_WITHIN):
            try:
                run(seed, only=m.only)
            except BrokenError:
                return
    pytest.fail(f"not caught: {m.name}")


def test_there_are_enough_planted_bugs_and_each_is_undone() -> None:
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS) >= 20
    with planted(MUTATIONS[0]):
        pass
    run(1, hours=12)


def test_a_bug_that_no_longer_fits_the_code_fails() -> None:
    m = MUTATIONS[0]
    with pytest.raises(LookupError), planted(Mutation("gone", m.module, m.function, "no such text", "")):
        pass
