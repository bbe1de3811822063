"""causes: one small story per ordering rule, told in the made-up language of conftest."""

from __future__ import annotations

import pytest
from tests.conftest import Kit, replay

from defib.engine.causes import BAND_LINES, NEAR_END_LINES
from defib.engine.words import AttemptVerdict

TRAIN = ["step=1", "step=2", "step=3"]


def judged(made: Kit, *lines: str) -> AttemptVerdict:
    return replay(made, lines).only


def said(made: Kit, *lines: str) -> tuple[str, str | None, int | None]:
    """(verdict, rule of the cause, its line)."""
    a = judged(made, *lines)
    return a.verdict, (str(a.cause.signal.rule) if a.cause else None), (a.cause.signal.line if a.cause else None)


def test_nothing_said_is_unknown_and_steps_alone_are_still_running(language: Kit) -> None:
    assert said(language, "x") == ("unknown", None, None)
    assert said(language, *TRAIN) == ("running-at-end", None, None)


def test_an_error_at_the_end_is_the_cause(language: Kit) -> None:
    assert said(language, *TRAIN, "ROOT") == ("crashed", "t.root", 4)
    assert said(language, *TRAIN, "MAYBE", "EXIT") == ("crashed", "t.maybe", 4)


def test_an_error_followed_by_progress_is_background(language: Kit) -> None:
    a = judged(language, "step=1", "ROOT", "step=2", "step=3")
    assert (a.verdict, a.cause) == ("running-at-end", None)
    assert [e.why for e in a.evidence] == ["background"]
    assert any("followed by progress" in n for n in a.notes)
    assert said(language, "step=1", "ROOT", "step=2", "MAYBE", "EXIT") == ("crashed", "t.maybe", 4)


def test_an_error_far_from_the_end_of_a_log_that_goes_on_is_not_fatal(language: Kit) -> None:
    assert said(language, *TRAIN, "ROOT", *["x"] * (NEAR_END_LINES + 1)) == ("running-at-end", None, None)
    assert said(language, *TRAIN, "ROOT", *["x"] * NEAR_END_LINES)[0] == "crashed"
    assert said(language, *TRAIN, "ROOT", *["x"] * 500, "EXIT")[:2] == ("crashed", "t.root")


def test_the_earliest_error_is_the_cause(language: Kit) -> None:
    far = ["x"] * (BAND_LINES + 1)
    assert said(language, *TRAIN, "MAYBE", *far, "HARD", "EXIT") == ("crashed", "t.maybe", 4)


@pytest.mark.parametrize(
    ("weaker", "stronger"),
    [
        ("ROOT", "HARD"), ("MAYBE", "HARD"), ("ROOT", "HOSTOOM"), ("MAYBE", "ROOT"), ("VAGUE", "MAYBE"), ("HOSTOOM", "HARD"),
        ("VAGUE", "ROOT"),
    ],
)  # fmt: skip
def test_within_the_band_the_stronger_kind_of_evidence_wins(language: Kit, weaker: str, stronger: str) -> None:
    rule = {"HARD": "t.hard", "ROOT": "t.root", "HOSTOOM": "t.oom", "MAYBE": "t.maybe"}[stronger]
    assert said(language, *TRAIN, weaker, "x", stronger, "EXIT") == ("crashed", rule, 6)
    assert said(language, *TRAIN, stronger, "x", weaker, "EXIT") == ("crashed", rule, 4)


def test_of_equals_in_the_band_the_first_counts(language: Kit) -> None:
    assert said(language, *TRAIN, "x", "ROOT", "ROOT", "EXIT")[2] == 5


def test_times_far_apart_are_no_band(language: Kit) -> None:
    lines = ["2026-01-02 03:00:00 MAYBE", "2026-01-02 03:00:10 HARD", "EXIT"]
    assert said(language, *TRAIN, *lines)[1] == "t.maybe"
    assert said(language, *TRAIN, lines[0], "2026-01-02 03:00:01 HARD", "EXIT")[1] == "t.hard"


@pytest.mark.parametrize("trouble", ["ROOT", "HARD", "PEER", "WAITED", "WRAP"])
def test_after_the_planned_end_of_the_program_nothing_accuses(language: Kit, trouble: str) -> None:
    a = judged(language, *TRAIN, "COMPLETED", trouble, "EXIT", "TEARDOWN")
    assert (a.verdict, a.klass, a.cause) == ("completed", None, None)
    assert a.evidence[0].why == "end"


def test_trained_then_a_failing_save_is_a_crash(language: Kit) -> None:
    assert said(language, *TRAIN, "TRAINED", "ROOT", "EXIT") == ("crashed", "t.root", 5)
    assert said(language, *TRAIN, "TRAINED", "ROOT") == ("crashed", "t.root", 5)
    assert said(language, *TRAIN, "TRAINED") == ("completed", None, None)


def test_a_planned_end_followed_by_training_is_void(language: Kit) -> None:
    assert said(language, *TRAIN, "COMPLETED", "step=4", "ROOT", "EXIT") == ("crashed", "t.root", 6)
    assert said(language, *TRAIN, "TRAINED", "eval=1")[0] == "completed"


def test_a_death_before_the_planned_end_undoes_it(language: Kit) -> None:
    assert said(language, *TRAIN, "ROOT", "EXIT", "COMPLETED") == ("crashed", "t.root", 4)
    assert said(language, *TRAIN, "ROOT", "COMPLETED") == ("completed", None, None)
    assert said(language, *TRAIN, "ROOT", "EXIT", "COMPLETED", "HARD") == ("crashed", "t.root", 4), (
        "teardown is never stronger"
    )


def test_every_process_ending_well_is_a_planned_end_unless_one_ended_badly(language: Kit) -> None:
    assert said(language, *TRAIN, "FINE") == ("completed", None, None)
    assert said(language, *TRAIN, "FINE", "EXIT")[0] == "crashed"


@pytest.mark.parametrize(
    ("act", "verdict", "rule"),
    [
        ("CANCELLED", "cancelled", "t.cancelled"),
        ("PREEMPTED", "preempted", "t.preempted"),
        ("TIMELIMIT", "time-limit", "t.limit"),
        ("NODEFAIL", "crashed", "t.nodefail"),
    ],
)
def test_the_schedulers_act_explains_every_later_error(language: Kit, act: str, verdict: str, rule: str) -> None:
    a = judged(language, *TRAIN, act, "ROOT", "HARD", "WAITED", "EXIT")
    assert (a.verdict, a.cause.signal.rule if a.cause else None) == (verdict, rule)
    assert a.cause is not None
    assert a.cause.confidence == "certain"


@pytest.mark.parametrize("act", ["PREEMPTED", "TIMELIMIT", "NODEFAIL"])
def test_but_not_an_earlier_death(language: Kit, act: str) -> None:
    assert said(language, *TRAIN, "ROOT", "EXIT", act) == ("crashed", "t.root", 4)


def test_a_weak_error_without_a_death_before_the_act_is_not_the_cause(language: Kit) -> None:
    assert said(language, *TRAIN, "VAGUE", "CANCELLED")[:2] == ("cancelled", "t.cancelled")


def test_an_error_that_stands_alone_is_not_buried_by_a_later_act(language: Kit) -> None:
    """Whoever cancels a run that died hours ago is not its cause."""
    assert said(language, *TRAIN, "ROOT", "CANCELLED")[:2] == ("crashed", "t.root")


def test_a_few_last_steps_do_not_undo_an_act(language: Kit) -> None:
    assert said(language, *TRAIN, "PREEMPTED", "step=90")[:2] == ("preempted", "t.preempted")
    assert said(language, *TRAIN, "PREEMPTED", *[f"step={n}" for n in range(90, 120)])[0] == "running-at-end"


def test_a_bare_cancelled_after_a_bad_exit_is_the_launcher_stopping_the_rest(language: Kit) -> None:
    assert said(language, *TRAIN, "EXIT", "CANCELLED")[:2] == ("crashed", "t.exit")


def test_a_timeout_before_the_act_is_a_stall(language: Kit) -> None:
    assert said(language, *TRAIN, "WAITED", "CANCELLED")[:2] == ("stalled", "t.waited")


def test_an_act_is_told_by_the_most_telling_of_its_lines(language: Kit) -> None:
    assert said(language, *TRAIN, "CANCELLED", "PREEMPTED")[:2] == ("preempted", "t.preempted")
    assert said(language, *TRAIN, "CANCELLED", "NODEFAIL", "PREEMPTED")[1] == "t.nodefail"


def test_symptoms_are_used_only_when_nothing_better_is_there(language: Kit) -> None:
    assert said(language, *TRAIN, "WAITED", "PEER", "ROOT", "EXIT")[1] == "t.root"
    assert said(language, *TRAIN, "PEER", "WAITED", "EXIT") == ("stalled", "t.waited", 5)
    assert said(language, *TRAIN, "WRAP", "PEER", "EXIT") == ("crashed", "t.peer", 5)
    assert said(language, *TRAIN, "WRAP", "EXIT") == ("crashed", "t.wrap", 4)
    a = judged(language, *TRAIN, "PEER", "EXIT")
    assert a.cause is not None
    assert a.cause.confidence == "unknown"


def test_a_bad_exit_and_nothing_else_is_process_failed(language: Kit) -> None:
    a = judged(language, *TRAIN, "EXIT", "EXIT")
    assert (a.verdict, a.klass) == ("crashed", "process-failed")
    assert a.cause is not None
    assert (a.cause.signal.line, a.cause.confidence) == (4, "unknown")


def test_labelled_errors_go_before_a_batch_scripts_trouble(language: Kit) -> None:
    gap = ["x"] * (BAND_LINES + 1)
    assert said(language, "MAYBE", *gap, "[rank3]: MAYBE", "EXIT")[2] == len(gap) + 2
    assert said(language, "3: MAYBE", *gap, "[rank3]: MAYBE", "EXIT")[2] == 1
    assert said(language, "ROOT", *gap, "[rank3]: MAYBE", "EXIT")[2] == 1, "a root is more than trouble"
    assert said(language, "MAYBE", "[rank3]: MAYBE", "EXIT")[2] == 1, "close by, a label means nothing"


def test_confidence_says_how_much_stands_behind_the_cause(language: Kit) -> None:
    def confidence(*lines: str) -> str:
        cause = judged(language, *TRAIN, *lines).cause
        assert cause is not None
        return cause.confidence

    assert confidence("HARD") == "certain"
    assert confidence("ROOT", "EXIT") == "likely"
    assert confidence("ROOT", "PEER") == "likely"
    assert confidence("ROOT") == "possible"
    assert confidence("MAYBE", "EXIT") == "likely"
    assert confidence("MAYBE", "PEER") == "likely"
    assert confidence("MAYBE") == "possible"


def test_the_class_says_who_is_at_fault_where_the_rule_does_not(language: Kit) -> None:
    a = judged(language, *TRAIN, "MAYBE", "EXIT")
    assert a.cause is not None
    assert a.cause.domain == "user"


def test_evidence_names_each_rule_once_with_counts(language: Kit) -> None:
    a = judged(language, *TRAIN, "ROOT", "PEER", "PEER", "PEER", "EXIT", "EXIT")
    assert [(e.why, e.signal.rule, e.count) for e in a.evidence] == [
        ("cause", "t.root", 1),
        ("cascade", "t.peer", 3),
        ("exit", "t.exit", 2),
    ]
    assert a.cascades == 5


def test_a_fatal_error_counts_however_often_the_same_rule_was_background(language: Kit) -> None:
    """A retried error may fill a trace's memory of its rule; the one that killed the run must still be seen."""
    lines = [line for n in range(40) for line in (f"step={n}", "ROOT")]
    assert said(language, *lines, "EXIT") == ("crashed", "t.root", len(lines))


def test_a_bad_exit_counts_however_often_others_were_survived(language: Kit) -> None:
    lines = [line for n in range(40) for line in (f"step={n}", "EXIT")]
    assert said(language, *lines) == ("crashed", "t.exit", len(lines))


def test_in_two_streams_time_orders_and_else_strength(language: Kit) -> None:
    def two(a: list[str], b: list[str]) -> str | None:
        streams = {"job.out": a, "job.err": b}
        cause = replay(
            language, {p: "".join(f"{x}\n" for x in lines).encode() for p, lines in streams.items()}
        ).only.cause
        return str(cause.signal.rule) if cause else None

    assert two(["2026-01-02 03:00:30 HARD", "EXIT"], ["2026-01-02 03:00:00 MAYBE", "EXIT"]) == "t.maybe"
    assert two(["2026-01-02 03:00:01 HARD", "EXIT"], ["2026-01-02 03:00:00 MAYBE", "EXIT"]) == "t.hard"
    assert two(["MAYBE", "EXIT"], ["HARD", "EXIT"]) == "t.hard"


def test_progress_in_another_stream_makes_an_error_background_only_by_time(language: Kit) -> None:
    def verdict(error: str, step: str) -> str:
        return replay(
            language, {"job.out": f"step=1\n{step}\n".encode(), "job.err": f"{error}\n".encode()}
        ).only.verdict

    assert verdict("2026-01-02 03:00:00 ROOT", "2026-01-02 03:01:00 step=2") == "running-at-end"
    assert verdict("2026-01-02 03:00:00 ROOT", "2026-01-02 03:00:01 step=2") == "crashed"
    assert verdict("ROOT", "2026-01-02 03:01:00 step=2") == "crashed"
