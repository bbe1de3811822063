"""rhythm: what a run's own gaps teach about how long a silence may be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.conftest import Kit

from defib.engine.rhythm import Habits, Rhythm


def beats(
    made: Kit, gaps: list[float], *, every: int = 10, explained: bool = False, elder: Habits | None = None
) -> Rhythm:
    """A counter that moves `every` steps after each gap; explained: its printed seconds per step say the same."""
    r = Rhythm(made.book.detect.hang, elder)
    us = np.cumsum([0.0, *gaps]) * 1e6
    n = len(us)
    steps = np.arange(1, n + 1) * every
    told = np.array([math.nan, *gaps]) if explained else np.full(n, math.nan)
    r.add(us.astype(np.int64), steps, steps, steps, [()] * n, told)
    return r


def test_the_limit_is_a_multiple_of_what_is_usual_within_bounds(language: Kit) -> None:
    policy = language.book.detect.hang
    assert beats(language, [20.0] * 50).limit("steady").seconds == policy.phases.steady.floor_s
    assert beats(language, [1500.0] * 50).limit("steady").seconds == pytest.approx(4500.0, rel=0.01)
    assert beats(language, [20.0] * 3).limit("steady").seconds == policy.phases.steady.unlearned_s


def test_a_gap_beyond_its_limit_is_a_silence_and_teaches_nothing(language: Kit) -> None:
    r = beats(language, [20.0] * 30 + [5000.0] + [20.0] * 30)
    assert [(s.from_step, s.to_step) for s in r.silences] == [(310, 320)]
    assert r.limit("steady").seconds == language.book.detect.hang.phases.steady.floor_s


def test_a_run_that_prints_rarely_is_not_hung_between_its_lines(language: Kit) -> None:
    """One line in forty minutes: two of them look like hangs, from the third on it is how this run prints."""
    assert len(beats(language, [2400.0] * 100).silences) <= 2


def test_an_hour_that_only_the_stamps_know_is_a_clock_that_was_set(language: Kit) -> None:
    assert beats(language, [20.0] * 30 + [3620.0] + [20.0] * 30).silences == []


def test_an_hour_that_the_runs_own_timers_saw_is_a_silence(language: Kit) -> None:
    assert len(beats(language, [20.0] * 30 + [3620.0] + [20.0] * 30, explained=True).silences) == 1


def test_pauses_have_a_period_and_a_limit_of_their_own(language: Kit) -> None:
    gaps = ([20.0] * 19 + [1200.0]) * 6
    r = beats(language, gaps, every=1)
    assert r.pauses().period == 20
    due, between = r.limit("steady", 120), r.limit("steady", 110)
    assert (due.phase, between.phase) == ("pause", "steady")
    assert due.seconds > between.seconds


def test_what_an_elder_showed_is_inherited(language: Kit) -> None:
    elder = beats(language, [1500.0] * 50).habits()
    assert beats(language, [20.0] * 3, elder=elder).limit("steady").seconds == pytest.approx(4500.0, rel=0.01)
    assert elder.with_(Habits(gap_s=10.0)).gap_s == elder.gap_s
