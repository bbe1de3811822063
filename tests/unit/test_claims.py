"""claims: which errors may be named at all. One small story per ordering rule."""

from __future__ import annotations

import pytest
from tests.conftest import Kit
from tests.unit.crowd import crowd, judged, judged_logs

from defib.engine.words import AttemptVerdict


@pytest.fixture(scope="module")
def made() -> Kit:
    return crowd()


def cause(a: AttemptVerdict) -> tuple[str, int] | None:
    return (str(a.cause.signal.rule), a.cause.signal.line) if a.cause else None


def at(minute: int, what: str, second: int = 0) -> str:
    return f"2026-01-02 {3 + minute // 60:02}:{minute % 60:02}:{second:02} {what}"


# ---- echoes ---------------------------------------------------------------------------------------------------------


def test_a_cuda_error_stays_with_its_process(made: Kit) -> None:
    """The second one is stronger evidence and near, but of the same rank."""
    assert cause(judged(made, "[rank3]: STICKY", "[rank3]: STUCK", "EXIT")) == ("u.sticky", 3)
    assert cause(judged(made, "[rank3]: STICKY", "[rank4]: STUCK", "EXIT")) == ("u.stuck", 4)
    assert cause(judged(made, "[rank3]: MAYBE", "[rank3]: STUCK", "EXIT")) == ("u.stuck", 4), "not a state that stays"


def test_a_driver_line_is_never_an_echo_of_a_rank(made: Kit) -> None:
    assert cause(judged(made, "[rank3]: STICKY", "n1: HARD", "EXIT")) == ("t.hard", 4)


def test_of_a_burst_of_faults_on_one_gpu_the_strongest_leads_else_the_first(made: Kit) -> None:
    assert cause(judged(made, at(0, "n1: XBAD 00:1b"), at(1, "n1: XBAD 00:1b"), "EXIT")) == ("u.gpu", 3)
    assert cause(judged(made, "n1: XSOFT 00:1b", "n1: XBAD 00:1b", "EXIT")) == ("u.gpu", 4)
    far = [at(0, "n1: XSOFT 00:1b"), at(2, "n1: XBAD 00:1b"), "EXIT"]
    assert cause(judged(made, *far)) == ("u.gpu", 4), "within three minutes"
    farther = [at(0, "n1: XSOFT 00:1b"), at(4, "n1: XBAD 00:1b"), "EXIT"]
    assert cause(judged(made, *farther)) == ("u.soft", 3)
    other = [at(0, "n1: XSOFT 00:1b"), at(2, "n1: XBAD 00:2c"), "EXIT"]
    assert cause(judged(made, *other)) == ("u.soft", 3), "another GPU"


# ---- looking back through a timeout ---------------------------------------------------------------------------------


def test_roots_are_sought_where_the_collective_waited(made: Kit) -> None:
    """The collective had begun at 3:20 (600 s before): 3:21 is inside, an hour before is not."""
    wait = at(90, "LONG 600000")
    inside = {"a.log": ["step=1", at(81, "MAYBE")], "b.log": ["step=1", wait, "EXIT"]}
    logs = {f"7/rank_{n}.log": lines for n, lines in enumerate(inside.values())}
    a = judged_logs(made, logs)
    assert cause(a) == ("t.maybe", 2)
    before = {"7/rank_0.log": ["step=1", at(20, "MAYBE")], "7/rank_1.log": ["step=1", wait, "EXIT"]}
    a = judged_logs(made, before)
    assert (a.verdict, cause(a)) == ("stalled", ("u.waited", 2))
    assert any("long before the collective" in n for n in a.notes)


def test_a_weak_error_after_the_timeout_is_its_consequence_a_root_is_not(made: Kit) -> None:
    def logs(what: str, minute: int) -> dict[str, list[str]]:
        return {"7/rank_0.log": ["step=1", at(minute, what)], "7/rank_1.log": ["step=1", at(90, "LONG 600000"), "EXIT"]}

    assert cause(judged_logs(made, logs("MAYBE", 91))) == ("u.waited", 2)
    assert cause(judged_logs(made, logs("MAYBE", 89))) == ("t.maybe", 2)
    assert cause(judged_logs(made, logs("ROOT", 91))) == ("t.root", 2)


def test_a_kernels_clock_may_be_another_zones(made: Kit) -> None:
    logs = {"7/rank_0.log": ["step=1", at(0, "n1: HARD")], "7/rank_1.log": ["step=1", at(600, "LONG 600000"), "EXIT"]}
    assert cause(judged_logs(made, logs)) == ("t.hard", 2)


def test_whoever_waited_itself_had_come_as_far_as_the_others(made: Kit) -> None:
    own = judged(made, "[rank3]: MAYBE", *[f"[rank{r}]: LONG 600000" for r in range(4)], "EXIT")
    assert (own.verdict, cause(own)) == ("stalled", ("u.waited", 4))
    absent = judged(made, "[rank3]: MAYBE", *[f"[rank{r}]: LONG 600000" for r in range(3)], "EXIT")
    assert (absent.verdict, cause(absent)) == ("crashed", ("t.maybe", 3))
    root = judged(made, "[rank3]: ROOT", *[f"[rank{r}]: LONG 600000" for r in range(4)], "EXIT")
    assert cause(root) == ("t.root", 3)


def test_a_run_that_hung_and_was_then_stopped_is_a_stall(made: Kit) -> None:
    """The timeout is printed after the act, but its collective had begun nine minutes before it."""
    hung = judged(made, at(9, "CANCELLED"), at(10, "LONG 600000"), "EXIT")
    assert (hung.verdict, cause(hung)) == ("stalled", ("u.waited", 4))
    left_behind = judged(made, at(1, "CANCELLED"), at(11, "LONG 600000"), "EXIT")
    assert (left_behind.verdict, cause(left_behind)) == ("cancelled", ("t.cancelled", 3))
    unstamped = judged(made, "CANCELLED", "LONG 600000", "EXIT")
    assert unstamped.verdict == "cancelled"


# ---- who lived on ---------------------------------------------------------------------------------------------------


def test_the_first_to_die_does_not_live_to_complain(made: Kit) -> None:
    """Both errors look alike; the rank of the first one went on to notice that others were gone."""
    crowd_lost = [f"[rank{r}]: LOST n2" for r in (0, 1, 3)]
    assert cause(judged(made, "[rank3]: MAYBE", *["x"] * 50, "[rank9]: MAYBE", *crowd_lost, "EXIT")) == ("t.maybe", 54)
    assert cause(judged(made, "[rank3]: MAYBE", *crowd_lost, "EXIT")) == ("t.maybe", 3), "nobody else to name"
    assert cause(judged(made, "[rank3]: MAYBE", *["x"] * 50, "MAYBE", *crowd_lost, "EXIT")) == ("t.maybe", 3)
    assert cause(judged(made, "[rank3]: ROOT", *["x"] * 50, "[rank9]: MAYBE", *crowd_lost, "EXIT")) == ("t.root", 3)


# ---- how sure -------------------------------------------------------------------------------------------------------


def test_a_killer_that_reports_itself_is_certain(made: Kit) -> None:
    a = judged(made, "KILLER", "EXIT")
    assert a.cause is not None
    assert a.cause.confidence == "certain"


def test_two_different_errors_at_once_are_only_possible(made: Kit) -> None:
    a = judged(made, "[rank1]: MAYBE", "[rank2]: RETRY n2", "EXIT")
    assert a.cause is not None
    assert (a.cause.confidence, "at the same time" in a.cause.because) == ("possible", True)


def test_a_warning_and_then_nothing_at_all_is_a_stall(made: Kit) -> None:
    assert judged(made, "[rank1]: LOST n2").verdict == "stalled"
    assert judged(made, "[rank1]: LOST n2", "EXIT").verdict == "crashed"
    assert judged(made, "[rank1]: LOST n2", "WRAP").verdict == "crashed"


def test_hardware_trouble_before_an_act_stays_on_record(made: Kit) -> None:
    a = judged(made, "n2: XSOFT 00:1b", "CANCELLED")
    assert a.verdict == "cancelled"
    assert any("hardware trouble before the end" in n and "n2" in n for n in a.notes)
    assert "u.soft" in [e.signal.rule for e in a.evidence]
