"""The folds: rows of one stream, grouped in any way or taken one by one, teach `Sketch`, `Windows` and `StreamFold` the same."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import Kit, signal

from defib.engine import counters, sketch, trace, windows
from defib.engine.counters import Counter
from defib.engine.points import NONE, Between, ProgressRows
from defib.engine.policies import Detect, PhaseLimit
from defib.engine.sketch import Sketch
from defib.engine.trace import StreamFold, Trace
from defib.engine.windows import Windows
from defib.engine.words import Signal

some_values = st.lists(st.one_of(st.floats(1e-6, 1e6), st.sampled_from([0.0, -1.0, float("nan")])), max_size=40)


def groups(n: int, cuts: list[int]) -> list[tuple[int, int]]:
    marks = sorted({0, n, *(c % (n + 1) for c in cuts)})
    return list(itertools.pairwise(marks))


@given(values=some_values, cuts=st.lists(st.integers(0, 100), max_size=8), seed=st.integers(0, 999))
def test_a_sketch_knows_neither_order_nor_grouping(values: list[float], cuts: list[int], seed: int) -> None:
    whole = Sketch()
    whole.add(np.array(values, np.float64))
    shuffled = values[:]
    Random(seed).shuffle(shuffled)
    parts, merged = Sketch(), Sketch()
    for lo, hi in groups(len(values), cuts):
        parts.add(np.array(shuffled[lo:hi], np.float64))
        one = Sketch()
        one.add(np.array(values[lo:hi], np.float64))
        merged.merge(one)
    assert parts.bins == merged.bins == whole.bins
    assert [parts.count, merged.count] == [whole.count] * 2


@given(k=st.integers(-13000, 13000), off=st.integers(-3, 3))
def test_a_value_on_the_edge_of_a_bin_falls_where_an_array_of_it_falls(k: int, off: int) -> None:
    value = float(np.exp((k + 0.5) * sketch._GAMMA) * (1 + off * 2.0**-52))
    one, many = Sketch(), Sketch()
    one.one(value)
    many.add(np.array([value]))
    assert one.bins == many.bins


@st.composite
def window_points(draw: st.DrawFn, forward: bool) -> tuple[list[float], list[int], list[float]]:
    jumps = draw(
        st.lists(st.sampled_from([0.0, 1.0, 100.0, 299.0, 300.0, 700.0] + ([] if forward else [-400.0])), max_size=30)
    )
    at = np.cumsum([1000.0, *jumps]).tolist()
    steps = draw(st.lists(st.integers(0, 50), min_size=len(at), max_size=len(at)))
    seconds = draw(st.lists(st.sampled_from([0.5, 2.0, float("nan")]), min_size=len(at), max_size=len(at)))
    return at, steps, seconds


def fold_windows(
    points: tuple[list[float], list[int], list[float]], parts: list[tuple[int, int]]
) -> list[dict[str, object]]:
    w = Windows()
    at, steps, seconds = points
    for lo, hi in parts:
        w.add(np.array(at[lo:hi]), np.array(steps[lo:hi], np.int64), np.array(seconds[lo:hi]))
    return w.rows("a", "s", "f", "event")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("forward", [True, False], ids=["clock-goes-forward", "clocks-of-ranks-differ"])
@given(data=st.data(), cuts=st.lists(st.integers(0, 100), max_size=10))
def test_windows_do_not_depend_on_grouping(
    monkeypatch: pytest.MonkeyPatch, forward: bool, data: st.DataObject, cuts: list[int]
) -> None:
    monkeypatch.setattr(windows, "CELLS_MAX", 4)
    points = data.draw(window_points(forward))
    n = len(points[0])
    assert fold_windows(points, groups(n, cuts)) == fold_windows(points, [(0, n)])


Said = tuple[str, int, int | None, int | None, float]  # format or rule, step, total, time in seconds, step time

said = st.one_of(
    st.tuples(
        st.sampled_from(["t.step", "t.step", "t.eval", "t.inepoch", "t.bar"]),
        st.integers(0, 12),
        st.sampled_from([None, 20, 30]),
        st.one_of(st.none(), st.integers(0, 2000)),
        st.sampled_from([1.0, 1.0, 2.5, float("nan")]),
    ),
    st.tuples(st.just("t.value"), st.just(int(NONE)), st.none(), st.none(), st.just(float("nan"))),
    st.tuples(
        st.sampled_from(["t.saving", "t.saved", "t.root", "t.exit", "t.start", "t.restart", "t.done", "t.cancelled", "t.peer"]),
        st.just(0), st.none(), st.one_of(st.none(), st.integers(0, 2000)), st.just(0.0),
    ),
)  # fmt: skip


def rows_of(part: list[tuple[int, Said]]) -> ProgressRows:
    n = len(part)
    offset = np.array([o for o, _ in part], np.int64)
    whole = [[s[k] if s[k] is not None else NONE for _, s in part] for k in (1, 2, 3)]
    times = np.array([t if t == NONE else int(t) * 1_000_000 for t in whole[2]], np.int64)
    return ProgressRows(
        offset, offset + 1, times, [s[0] for _, s in part], np.array(whole[0], np.int64), np.array(whole[1], np.int64),
        np.full(n, NONE, np.int64), np.array([s[4] for _, s in part], np.float64), np.arange(n) * 0.0 + offset + 1.0,
        np.full(n, np.nan), np.zeros(n, bool), np.full(n, np.nan), np.full(n, np.nan),
    )  # fmt: skip


LIMIT = PhaseLimit(50.0, 100.0, 400.0)


def nervous(policy: Detect) -> Detect:
    """Small numbers, so that short stories have hangs, pauses and slowdowns in them."""
    phases = replace(policy.hang.phases, **{f.name: LIMIT for f in fields(policy.hang.phases)})
    return replace(
        policy,
        hang=replace(policy.hang, learn_gaps=2, learn_pauses=1, phases=phases),
        slow=replace(policy.slow, for_s=2.0, steps=2, bin_s=1.0, learn_bins=2, learn_bins_max=8),
    )


def fold_story(made: Kit, story: list[Said], parts: list[tuple[int, int]]) -> list[object]:
    fold = StreamFold(0, made.book.format_by_id, nervous(made.book.detect))
    for lo, hi in parts:
        part = list(enumerate(story))[lo:hi]
        signals: list[Signal] = [
            signal(made, s[0], at, line=at + 1, time_us=None if s[3] is None else s[3] * 1_000_000)
            for at, s in part
            if s[0] in made.book.by_id
        ]
        fold.fold(signals, rows_of([(at, s) for at, s in part if s[0] not in made.book.by_id]))
    fold.finish(len(story), len(story))
    return [summary(t) for t in fold.traces]


def inside(thing: object) -> object:
    """Everything an object remembers, as plain values. NaN equals itself."""
    if isinstance(thing, dict):
        return {k: inside(v) for k, v in thing.items()}
    if isinstance(thing, list | tuple):
        return [inside(v) for v in thing]
    names = getattr(thing, "__dict__", None) or getattr(type(thing), "__slots__", ())
    if names and not isinstance(thing, str | int | float):
        return {name: inside(getattr(thing, name)) for name in names}
    return repr(thing)


def summary(t: Trace) -> object:
    counters = [
        (
            key, c.first_step, c.last_step, c.points, c.advances, c.nan_losses, c.pace, c.stamp, c.last_at, c.clock, c.step_clock_s,
            c.printed.bins, c.stamped.bins, c.throughput.bins, c.windows.rows("", "", "", ""), inside(c.rhythm), inside(c.slowdown), inside(c.work),
        )
        for key, c in t.counters.items()
    ]  # fmt: skip
    rest = {name: getattr(t, name) for name in Trace.__slots__ if name != "counters"}
    return rest, sorted(counters, key=lambda c: (c[0][0], c[0][1] or -1))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=st.lists(said, max_size=25), cuts=st.lists(st.integers(0, 100), max_size=12))
def test_a_fold_does_not_depend_on_grouping(language: Kit, story: list[Said], cuts: list[int]) -> None:
    n = len(story)
    assert fold_story(language, story, groups(n, cuts)) == fold_story(language, story, [(0, n)])


@st.composite
def trainings(draw: st.DrawFn) -> list[Said]:
    """A run that moves on by its stamps, with pauses, hangs, slower stretches and other counters between."""
    story: list[Said] = []
    at = 0
    for n in range(1, draw(st.integers(4, 30))):
        at += draw(st.sampled_from([20, 20, 20, 21, 60, 300, 900]))
        for other in draw(
            st.lists(st.sampled_from(["t.saving", "t.saved", "t.eval", "t.bar", "t.inepoch", "t.value"]), max_size=2)
        ):
            story.append((other, n, None, draw(st.sampled_from([None, at])), 1.0))
        story.append(step(n, None, at, draw(st.sampled_from([1.0, 20.0, 300.0, float("nan")]))))
    return story


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=trainings(), cuts=st.lists(st.integers(0, 100), max_size=12))
def test_a_training_does_not_depend_on_grouping(language: Kit, story: list[Said], cuts: list[int]) -> None:
    n = len(story)
    assert fold_story(language, story, groups(n, cuts)) == fold_story(language, story, [(0, n)])


def step(n: int, total: int | None = None, at: int | None = None, seconds: float = 1.0) -> Said:
    return ("t.step", n, total, at, seconds)


VALUE: Said = ("t.value", int(NONE), None, None, float("nan"))


@pytest.mark.parametrize(
    "story",
    [
        pytest.param([step(1), step(2), step(3, at=100), step(4, at=200)], id="stamps begin in the middle"),
        pytest.param([VALUE, step(1), VALUE], id="a value line stands before its first step"),
        pytest.param([step(1, 20), VALUE, step(1, 30), VALUE], id="value lines of two counters"),
        pytest.param([step(10), step(10), step(20), step(21), step(22), step(18)], id="the interval shrinks"),
        pytest.param([step(1), ("t.exit", 0, None, None, 0.0), step(1), step(2)], id="a run begins again"),
        pytest.param([step(k, at=20 * k) for k in range(9)] + [step(9, at=900), step(10, at=920)], id="a long silence"),
        pytest.param(
            [step(k, at=20 * k) for k in range(6)] + [("t.eval", 1, None, 300, 1.0), step(6, at=320), step(7, at=340)],
            id="evaluation between",
        ),
        pytest.param([step(k, seconds=1.0 if k < 9 else 3.0) for k in range(24)], id="slower"),
        pytest.param(
            [step(k, at=20 * k) for k in range(9)]
            + [
                ("t.saving", 0, None, 170, 0.0),
                ("t.inepoch", 1, 9, 180, 1.0),
                ("t.inepoch", 2, 9, 190, 1.0),
                step(9, at=250),
                step(10, at=270),
            ],
            id="another counter moves between a checkpoint and the next step",
        ),
        pytest.param(
            [step(k, at=20 * k) for k in range(9)] + [step(9, at=900, seconds=740.0), step(10, at=920)],
            id="the line after a long silence says how long its step took",
        ),
    ],
)
def test_a_fold_row_by_row_is_the_fold_at_once(language: Kit, story: list[Said]) -> None:
    n = len(story)
    whole = fold_story(language, story, [(0, n)])
    for k in range(1, n):
        assert fold_story(language, story, [(0, k), (k, n)]) == whole, f"cut before row {k}"
    assert fold_story(language, story, [(i, i + 1) for i in range(n)]) == whole


some_rows = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 30), st.integers(0, 10**12)),  # step
        st.sampled_from([None, None, 1, 5, 20, 90, 900, -30]),  # seconds since the row before, None: no stamp
        st.sampled_from([NONE, 0, 1, 2]),  # rank
        st.sampled_from([1.0, 1.0, 1.3, 40.0, 0.0, -1.0, float("nan")]),  # seconds per step
        st.sampled_from([float("nan"), 0.5, 1e4, 1.7e4]),  # throughput
        st.sampled_from([float("nan"), 120.0, 95.0]),  # TFLOP/s
        st.sampled_from([float("nan"), 64.0, 128.0, 4096.0]),  # samples, tokens so far
        st.booleans(),  # rows rise from here: a step more than the row before
    ),
    max_size=40,
)


def counted_rows(story: list[tuple[Any, ...]]) -> ProgressRows:
    n, at, us, steps, times = len(story), 0, 10**15, [], []
    for step_, apart, _, _, _, _, _, rises in story:
        at = at + 1 if rises else step_
        us += 0 if apart is None else apart * 1_000_000
        steps.append(at)
        times.append(NONE if apart is None else us)
    rank, seconds, rate, tflops, total = ([s[k] for s in story] for k in (2, 3, 4, 5, 6))
    offset = np.arange(n, dtype=np.int64) * 10 + 100
    return ProgressRows(
        offset, offset + 1, np.array(times, np.int64), ["t.step"] * n, np.array(steps, np.int64), np.full(n, NONE), np.array(rank, np.int64),
        np.array(seconds, np.float64), np.array(rate, np.float64), np.array(tflops, np.float64), np.array(rate, np.float64) > 1e4,
        np.cumsum(np.array(total, np.float64)), np.cumsum(np.array(total, np.float64)) * 7,
    )  # fmt: skip


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    story=some_rows,
    cuts=st.lists(st.integers(0, 100), max_size=12),
    spoken=st.dictionaries(st.sampled_from(["checkpoint", "evaluation"]), st.integers(0, 99)),
    evaluation=st.lists(st.integers(100, 500), max_size=4),
    timed=st.booleans(),
    unit=st.sampled_from([None, "tokens/s", "samples/s", "%mfu", "it/s"]),
    counts=st.sampled_from(["step", "epoch"]),
)
def test_rows_one_by_one_tell_what_they_tell_at_once(
    language: Kit, story: list[tuple[Any, ...]], cuts: list[int], spoken: dict[str, int], evaluation: list[int], timed: bool,
    unit: str | None, counts: str,
) -> None:  # fmt: skip
    rows = counted_rows(story)
    fmt = replace(
        language.book.format_by_id["t.step"], pattern="(?P<step>)" + "(?P<step_time>)" * timed, more=(), throughput_unit=unit, counts=counts
    )  # fmt: skip
    between = Between(spoken, np.array(sorted(evaluation), np.int64))
    seen = []
    for handful, parts in ((-1, [(0, len(rows))]), (1 << 30, [(0, len(rows))]), (24, groups(len(rows), cuts))):
        with mock.patch.object(counters, "HANDFUL", handful):
            counter = Counter(fmt, None, nervous(language.book.detect))
            forward = [counter.advance(rows, np.arange(lo, hi), between) for lo, hi in parts if hi > lo]
            counter.values(rows, np.arange(len(rows)))
        last = next((f for f in reversed(forward) if f is not None), None)
        told = {name: inside(value) for name, value in vars(counter).items() if name not in ("windows", "format")}
        seen.append(
            {**told, "last": last, "width": counter.windows.width_s, "windows": counter.windows.rows("", "", "", "")}
        )
    for other, way in zip(seen[1:], ("one by one", "some of each"), strict=True):
        assert {k: (v, other[k]) for k, v in seen[0].items() if v != other[k]} == {}, way


def test_more_counters_than_fit_give_way_in_the_same_order(language: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "COUNTERS_MAX", 2)
    bars: list[Said] = [("t.bar", k, total, None, 1.0) for total in (5, 6, 7, 5, 8) for k in range(total % 4 + 1)]
    n = len(bars)
    assert fold_story(language, bars, [(i, i + 1) for i in range(n)]) == fold_story(language, bars, [(0, n)])
