"""The detectors' bench counts right answers right and wrong ones wrong; its rivals are the published methods they claim to be."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest

import loggen
from defib.engine.ports import Data, JobTold, Ticked
from detecting.ask import Change, Row, Said, Stretch
from detecting.feed import EPOCH_US, IDLE_S, Finished, Watched, facts_of
from detecting.rivals import DELTA, Alarm, Segments, Series, bocpd, rolling
from detecting.score import score

HUNG = loggen.Truth(
    "1", "job", 0, "torchtitan", "hang-silent", "stalled", "hang", None, None, (), 1, 100, 400, "", "", (), "hung", "train", 5000.0, 100,
)  # fmt: skip
SLOW = replace(
    HUNG,
    fault="slowdown",
    verdict="completed",
    klass="slow-path",
    trouble="slow",
    depth=0.3,
    passed_s=7000.0,
    passed_step=200,
)
FINE = replace(SLOW, fault="none", klass=None, trouble=None, phase=None, onset_s=None, onset_step=None, depth=None)
DEAD = replace(
    HUNG, fault="ecc", verdict="crashed", klass="gpu-hardware", trouble="crash", culprit_rank=3, culprit_node="n2"
)


def row(truth: loggen.Truth, said: Said, *changes: Change, **more: object) -> Row:
    group = "healthy-plain" if truth.trouble is None else truth.trouble
    made = Row("run", group, "torchtitan", 5, (truth,), 2.0, 100, [said], list(changes), [said])
    return replace(made, **more)  # type: ignore[arg-type]


def asked(r: Row) -> dict[str, tuple[int, int]]:
    return {name: (t.right, t.asked) for name, t in score([r]).tallies.items()}


def hung_at(at: float, limit: float = 1800.0) -> Change:
    stretch = Stretch("hung", "steady", 100, None, True, 5000.0, at, limit)
    return Change(at, 0, "healthy", "hung", "no progress", stretch)


def slow_stretch(step: int, until: int | None = None) -> Stretch:
    return Stretch("slow", "steady", step, until, True, depth=0.28)


def said(
    verdict: str, klass: str | None, *stretches: Stretch, rank: int | None = None, node: str | None = None
) -> Said:
    return Said(verdict, klass, "rule", rank, node, stretches)


def test_a_hang_seen_in_time_and_one_seen_late_early_or_never() -> None:
    stalled = said("stalled", "hang")
    good = row(HUNG, stalled, hung_at(6810.0))
    assert asked(good)["live hang seen, train"] == (1, 1)
    assert asked(good)["live hang within limit + one poll"] == (1, 1)
    assert asked(good)["live never hung too early"] == (1, 1)
    assert score([good]).values["live hang delay s, train"] == [1810.0]
    assert asked(row(HUNG, stalled, hung_at(6900.0)))["live hang within limit + one poll"] == (0, 1)
    early = asked(row(HUNG, stalled, hung_at(4000.0)))
    assert early["live hang seen, train"] == (0, 1)
    assert early["live never hung too early"] == (0, 1)
    assert asked(row(HUNG, said("completed", None)))["live hang seen, train"] == (0, 1)
    assert asked(row(HUNG, said("completed", None)))["live verdict, hung"] == (0, 1)
    assert asked(row(HUNG, said("running-at-end", None)))["replay verdict, hung"] == (1, 1), (
        "a silent end shows in no log"
    )


def test_a_death_told_of_and_one_passed_over() -> None:
    dead = Change(5100.0, 0, "healthy", "dead", "it ended", None)
    board = score([row(DEAD, said("crashed", "gpu-hardware"), dead)])
    assert board.values["live crash delay s"] == [100.0]
    assert asked(row(DEAD, said("crashed", "gpu-hardware")))["live crash told"] == (0, 1)
    assert asked(row(DEAD, said("crashed", "gpu-hardware"), replace(dead, at_s=10.0)))["live crash told"] == (0, 1)


def test_a_healthy_run_accused() -> None:
    fine = said("completed", None)
    assert asked(row(FINE, fine))["live healthy never hung or dead"] == (1, 1)
    assert asked(row(FINE, fine, hung_at(100.0)))["live healthy never hung or dead"] == (0, 1)
    crashed = asked(row(FINE, said("crashed", "user-code")))
    assert crashed["replay healthy never hung or dead"] == (0, 1)
    assert crashed["live verdict, healthy"] == (0, 1)
    board = score(
        [row(FINE, said("completed", None, slow_stretch(50)), Change(90.0, 0, "healthy", "slow", "slower", None))]
    )
    assert {who: len(names) for who, names in board.alarms.items()} == {
        "live slow, healthy": 1,
        "replay slow, healthy": 1,
    }
    assert board.hours == {"healthy": 2.0}


def test_a_slowdown_seen_and_one_imagined_elsewhere() -> None:
    seen = row(
        SLOW, said("completed", None, slow_stretch(102, 205)), Change(5400.0, 0, "healthy", "slow", "slower", None)
    )
    board = score([seen])
    assert board.tallies["live slow seen, 20-35 %"].right == board.tallies["replay slow seen, 20-35 %"].right == 1
    assert board.values["live slow delay s, 20-35 %"] == [400.0]
    assert board.values["replay slow depth off by, 20-35 %"] == [pytest.approx(0.02)]
    assert not board.alarms
    elsewhere = row(
        SLOW, said("completed", None, slow_stretch(320)), Change(9999.0, 0, "healthy", "slow", "slower", None)
    )
    board = score([elsewhere])
    assert board.tallies["live slow seen, 20-35 %"].right == board.tallies["replay slow seen, 20-35 %"].right == 0
    assert {who: len(names) for who, names in board.alarms.items()} == {
        "live slow, troubled": 1,
        "replay slow, troubled": 1,
    }


def test_culprits_named_missed_and_confused() -> None:
    def questions(truth: loggen.Truth, rank: int | None, node: str | None) -> list[tuple[int, int] | None]:
        got = asked(row(truth, said("crashed", "gpu-hardware", rank=rank, node=node)))
        return [got.get(f"replay {q}, crash") for q in ("culprit named", "culprit never another", "unknown kept")]

    assert questions(DEAD, 3, "n2") == questions(DEAD, None, "n2") == [(1, 1), (1, 1), None]
    assert questions(DEAD, None, None) == [(0, 1), (1, 1), None]
    assert questions(DEAD, 4, "n2") == questions(DEAD, None, "n9") == [(0, 1), (0, 1), None]
    nobody = replace(DEAD, culprit_rank=None, culprit_node=None)
    assert questions(nobody, None, None) == [None, None, (1, 1)]
    assert questions(nobody, 3, None) == [None, None, (0, 1)]
    lost = replace(DEAD, culprit_rank=None)
    assert questions(lost, None, "n2") == [(1, 1), (1, 1), None]


def test_what_differs_is_said_so() -> None:
    got = score([row(FINE, said("completed", None), same="windows", cut="")]).tallies
    assert got["live = replay"].misses == ["run: windows"]
    assert got["any cut = whole"].right == 1


JOB = loggen.Job(
    "job",
    "4711",
    "torchtitan",
    ("n001", "n002"),
    gpus_per_node=2,
    steps=120,
    log_every=4,
    checkpoint_every=40,
    layout="per-rank",
)


def bytes_of(items: list[object]) -> dict[int, bytes]:
    out: dict[int, bytes] = {}
    for item in items:
        if isinstance(item, Data):
            out[item.stream] = out.get(item.stream, b"") + item.data
    return out


def everything(source: Finished | Watched) -> list[object]:
    out: list[object] = []
    while (items := source.poll()) is not None:
        out += items
    return out


def test_sources_give_every_byte_and_a_live_one_no_byte_too_soon() -> None:
    run = loggen.render(JOB, loggen.Fault("hang-silent", 60, wait_s=3600.0), 5)
    facts = facts_of(list(run.files), (), "4711")
    whole = dict(enumerate(run.files.values()))
    assert bytes_of(everything(Finished(run.files, facts, 100))) == whole
    live = everything(Watched(run, facts, tell=True))
    assert bytes_of(live) == whole
    sizes = dict.fromkeys(whole, 0)
    ticks: list[float] = []
    arrivals = list(run.arrivals.values())
    for item in live:
        if isinstance(item, Data):
            sizes[item.stream] += len(item.data)
        elif isinstance(item, Ticked):
            now = (item.at_us - EPOCH_US) / 1e6
            ticks.append(now)
            for n, size in sizes.items():
                assert size == max([end for at, end in arrivals[n] if at <= now], default=0)
    apart = [b - a for a, b in pairwise(ticks)]
    assert min(apart) == 10.0
    assert max(apart) == IDLE_S
    assert run.ended_s <= ticks[-1] <= run.ended_s + 2 * IDLE_S
    assert [i.state.state for i in live if isinstance(i, JobTold)] == ["RUNNING"]
    alone = everything(Watched(run, facts, tell=False))
    assert not [i for i in alone if isinstance(i, JobTold)]
    last = max(i.at_us for i in alone if isinstance(i, Ticked))
    assert (last - EPOCH_US) / 1e6 > run.ended_s + 1000.0, "who hears nothing waits"


def made_series(levels: list[tuple[int, float]], noise: float = 0.03) -> Series:
    rng = Random(1)
    pace = [math.log(level) + rng.gauss(0.0, noise) for count, level in levels for _ in range(count)]
    return Series(list(range(1, len(pace) + 1)), [10.0 * n for n in range(1, len(pace) + 1)], np.array(pace))


@pytest.mark.parametrize("rival", [rolling, bocpd])
def test_rivals_see_a_slowdown_and_nothing_where_there_is_none(rival: object) -> None:
    assert rival(made_series([(400, 1.0)])) == []  # type: ignore[operator]
    assert rival(made_series([(200, 1.0), (200, 0.7)])) == [], "faster is no slowdown"  # type: ignore[operator]
    (alarm,) = rival(made_series([(200, 1.0), (200, 1.4)]))  # type: ignore[operator]
    assert isinstance(alarm, Alarm)
    assert 195 <= alarm.step <= 205
    assert 201 <= alarm.called_step <= 240
    assert alarm.called_s == 10.0 * alarm.called_step


def test_bocpd_tells_when_it_passed() -> None:
    (alarm,) = bocpd(made_series([(200, 1.0), (100, 1.4), (100, 1.0)]))
    assert alarm.until is not None
    assert 300 <= alarm.until <= 340
    (lasting,) = bocpd(made_series([(200, 1.0), (100, 1.4)]))
    assert lasting.until is None
    assert bocpd(made_series([(200, 1.0), (200, math.exp(0.5 * DELTA))], 0.005)) == [], "too little to count"


def test_the_posterior_is_that_of_every_possible_segment() -> None:
    """Against the sum over all ways to cut a short series, written out."""
    values, hazard = [0.1, -0.2, 0.05, 1.1, 0.9], 0.2
    first = np.array([0.0, 0.1, -0.1])
    model = Segments(first, hazard, 50)
    for x in values:
        model.take(x)

    def evidence(part: list[float]) -> float:
        """Of values that make one segment: normal with unknown mean and variance, the conjugate prior integrated out."""
        mean, kappa, alpha, beta = (float(v) for v in Segments(first, hazard, 50).prior)
        total = 0.0
        for x in part:
            scale = beta * (kappa + 1) / (alpha * kappa)
            total += math.lgamma(alpha + 0.5) - math.lgamma(alpha) - 0.5 * math.log(2 * alpha * math.pi * scale)
            total -= (alpha + 0.5) * math.log1p((x - mean) ** 2 / (2 * alpha * scale))
            beta += kappa * (x - mean) ** 2 / (2 * (kappa + 1))
            mean, kappa, alpha = (kappa * mean + x) / (kappa + 1), kappa + 1, alpha + 0.5
        return math.exp(total)

    n = len(values)
    weights = np.zeros(n + 1)
    for cuts in range(1 << n):
        ends = [i + 1 for i in range(n) if cuts >> i & 1]
        weight = math.prod(hazard if i + 1 in ends else 1 - hazard for i in range(n))
        for low, high in zip([0, *ends], [*ends, n], strict=True):
            weight *= evidence(values[low:high])
        weights[n - (ends[-1] if ends else 0)] += weight
    assert np.exp(model.log_r) == pytest.approx(weights / weights.sum())
