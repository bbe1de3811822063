"""trace: where attempts begin inside a stream, what a trace keeps, and which counters it holds."""

from __future__ import annotations

import itertools

import pytest
from tests.conftest import Kit, replay

from defib.engine import trace
from defib.engine.trace import Trace


def spans(made: Kit, *lines: str) -> list[tuple[int, int]]:
    """(first line, last line) of every attempt."""
    return [(a.first_line[0], a.last_line[0]) for a in replay(made, lines).attempts]  # type: ignore[index]


def traces(made: Kit, *lines: str) -> list[Trace]:
    """The traces behind a story: read from the state before the job is judged."""
    from tests.conftest import batch_of, place_facts

    from defib.engine import core

    state = core.State(made.book)
    (facts,) = place_facts(made.book, ["job.log"])
    core.advance(state, core.StreamOpened(0, core.StreamId("job.log"), facts))
    batch = batch_of("".join(f"{line}\n" for line in lines).encode())
    core.advance(state, core.Observed(made.observer().observe(batch)))
    core.check(state)
    return state.streams[0].fold.traces


def test_a_quiet_log_is_one_attempt(language: Kit) -> None:
    assert spans(language, "x", "y") == [(1, 2)]
    assert spans(language, "step=1/9", "step=2/9", "x") == [(1, 3)]


def test_a_restart_begins_an_attempt_once_the_one_before_has_moved_or_failed(language: Kit) -> None:
    assert spans(language, "step=1", "AGAIN", "step=2") == [(1, 1), (2, 3)]
    assert spans(language, "ROOT", "AGAIN", "step=2") == [(1, 1), (2, 3)]
    assert spans(language, "LAUNCH", "AGAIN", "step=1") == [(1, 3)]


@pytest.mark.parametrize("end", ["EXIT", "COMPLETED", "CANCELLED", "PREEMPTED", "TIMELIMIT", "NODEFAIL"])
def test_a_start_after_an_end_begins_an_attempt(language: Kit, end: str) -> None:
    assert spans(language, "step=1", end, "LAUNCH", "step=2") == [(1, 2), (3, 4)]


def test_a_start_without_an_end_before_it_does_not(language: Kit) -> None:
    assert spans(language, "step=1", "LAUNCH", "step=2", "step=3") == [(1, 4)]
    assert spans(language, "LAUNCH", "LAUNCH", "step=1") == [(1, 3)]


def test_an_end_followed_by_progress_is_no_end(language: Kit) -> None:
    assert spans(language, "step=1", "EXIT", "step=2", "LAUNCH", "step=3") == [(1, 5)]


def test_a_launch_and_a_step_that_goes_back_begin_an_attempt_at_the_launch(language: Kit) -> None:
    assert spans(language, *[f"step={n}" for n in range(1, 9)], "LAUNCH", "x", "step=1", "step=2") == [(1, 8), (9, 12)]


def test_a_step_that_goes_back_after_an_end_begins_an_attempt(language: Kit) -> None:
    assert spans(language, "step=7", "step=8", "EXIT", "x", "step=5", "step=6") == [(1, 4), (5, 6)]


def test_a_run_with_another_plan_after_an_end_begins_an_attempt(language: Kit) -> None:
    assert spans(language, "step=7/9", "step=8/9", "COMPLETED", "step=1/5", "step=2/5") == [(1, 3), (4, 5)]


def test_another_job_of_the_scheduler_begins_an_attempt(language: Kit) -> None:
    lines = ["step=1", "CANCELLED job=1", "x", "ROOT", "CANCELLED job=2"]
    assert spans(language, *lines) == [(1, 3), (4, 5)]
    assert spans(language, "step=1", "CANCELLED job=1", "CANCELLED job=1") == [(1, 3)]


def test_ranks_that_lag_by_a_line_do_not_split(language: Kit) -> None:
    lines = [f"[rank{r}]: step={n}" for n in range(1, 9) for r in (0, 1)]
    lines[8], lines[9] = lines[9], lines[8]
    lagging = [
        *lines[:6],
        "[rank0]: step=4",
        "[rank1]: step=3",
        "[rank0]: step=5",
        "[rank1]: step=4",
        "[rank1]: step=5",
    ]
    assert len(spans(language, *lines)) == 1
    assert len(spans(language, *lagging)) == 1


def test_ranks_that_lag_in_the_first_steps_do_not_split(language: Kit) -> None:
    """The lines say which rank they are of: another rank's first step is no step back."""
    lines = [
        "[rank0]: step=1",
        "[rank0]: step=2",
        "[rank1]: step=1",
        "[rank1]: step=2",
        "[rank0]: step=3",
        "[rank1]: step=3",
    ]
    assert len(spans(language, *lines)) == 1


def test_counters_that_begin_anew_every_epoch_do_not_split(language: Kit) -> None:
    lines = [f"batch={n}/4" for _ in range(3) for n in range(1, 5)]
    assert len(spans(language, *lines)) == 1
    assert len(spans(language, *lines[:4], "EXIT", *lines[:4])) == 1


def test_evaluation_and_preparation_bars_do_not_split(language: Kit) -> None:
    assert len(spans(language, "step=1", "eval=1", "eval=9", "step=2", "eval=1", "EXIT", "eval=1")) == 1
    assert len(spans(language, "map=1/3", "map=3/3", "EXIT", "map=1/3")) == 1


def test_attempts_of_a_stream_touch_and_hold_every_line(language: Kit) -> None:
    lines = ["x", "step=1", "EXIT", "y", "LAUNCH", "step=1", "AGAIN", "step=2", "z"]
    found = spans(language, *lines)
    assert found[0][0] == 1
    assert found[-1][1] == len(lines)
    assert all(b == a + 1 for (_, a), (b, _) in itertools.pairwise(found))


def test_the_first_signals_of_a_rule_are_kept_and_the_rest_counted(language: Kit) -> None:
    (t,) = traces(language, *["ROOT"] * 50, "EXIT")
    assert [s.rule for s in t.kept] == ["t.root"] * trace.KEEP + ["t.exit"]
    assert t.counts == {"t.root": 50, "t.exit": 1}
    assert t.last_by_rule["t.root"].line == 50


def test_only_training_and_evaluation_are_progress_and_only_a_new_step(language: Kit) -> None:
    (t,) = traces(language, "step=1", "step=1", "map=1/9", "eval=1")
    assert t.training is not None
    assert (t.training.line, t.progress.line if t.progress else None) == (1, 4)
    (t,) = traces(language, "map=1/9", "map=2/9")
    assert t.progress is None


def test_a_trace_knows_what_was_only_noise_of_a_batch_script(language: Kit) -> None:
    assert [t.begun for t in traces(language, "EXIT", "PEER")] == [False]
    assert [t.begun for t in traces(language, "LAUNCH")] == [True]
    assert [t.begun for t in traces(language, "MAYBE")] == [True]
    assert [t.spoke for t in traces(language, "x")] == [False]


def test_a_counter_holds_steps_times_and_values(language: Kit) -> None:
    lines = [
        "step=5/9 time=2.0 loss=nan",
        "value 100",
        "step=6/9 time=4.0 loss=1.5",
        "step=6/9 time=9.0",
        "step=8/9 tput=200",
    ]
    (t,) = traces(language, *lines)
    (c,) = t.counters.values()
    assert (c.first_step, c.last_step, c.points, c.advances, c.nan_losses, c.pace.interval) == (5, 8, 4, 3, 1, 2)
    assert c.printed.count == 2, "a step printed again gives no second time"
    assert c.throughput.count == 2
    assert c.clock == "step"
    assert c.step_clock_s == 6.0


def test_stamps_are_the_better_clock(language: Kit) -> None:
    (t,) = traces(language, "2026-01-02 03:04:00 step=1 time=1", "2026-01-02 03:04:10 step=3 time=1")
    (c,) = t.counters.values()
    assert c.clock == "event"
    assert c.stamped.quantile(0.5) == pytest.approx(5.0, rel=1e-3)
    assert t.first_us is not None
    assert (t.last_us or 0) - t.first_us == 10_000_000


def test_without_stamps_and_times_there_is_no_clock(language: Kit) -> None:
    (t,) = traces(language, "step=1", "step=2")
    assert [c.clock for c in t.counters.values()] == ["none"]


def test_counters_are_bounded_and_the_first_stay(language: Kit) -> None:
    (t,) = traces(language, *[f"step={n}/{n}" for n in range(1, 100)])
    assert len(t.counters) == trace.COUNTERS_MAX
    assert ("t.step", 1) in t.counters


def test_bars_of_preparation_share_a_counter_whatever_their_total(language: Kit) -> None:
    (t,) = traces(language, *[f"map=1/{n}" for n in range(1, 100)], "step=1/5")
    assert len(t.counters) == 2
    assert ("t.step", 5) in t.counters


def test_a_step_that_goes_back_without_a_new_attempt_is_counted(language: Kit) -> None:
    story = ["step=1", "[rank0]: step=4", "[rank1]: step=4", "[rank0]: step=5", "[rank1]: step=4", "[rank0]: step=6"]
    assert [t.setbacks for t in traces(language, *story)] == [1]


def test_a_log_of_endless_restarts_stops_making_attempts_and_says_so(
    language: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "TRACES_MAX", 3)
    lines = [line for n in range(6) for line in (f"step={n + 1}", "AGAIN")]
    told = replay(language, lines).attempts
    assert [(a.first_line[0], a.last_line[0]) for a in told] == [(1, 1), (2, 3), (4, 12)]  # type: ignore[index]
    assert [any("attempts" in note for note in a.notes) for a in told] == [False, False, True]
