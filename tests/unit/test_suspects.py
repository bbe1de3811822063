"""suspects and witnesses: who is named, by which kind of evidence, and when nobody is."""

from __future__ import annotations

import pytest
from tests.conftest import Kit
from tests.unit.crowd import crowd, judged, judged_logs

from defib.engine.words import AttemptVerdict


@pytest.fixture(scope="module")
def made() -> Kit:
    return crowd()


Named = tuple[str, int | None, str | None] | None


def named(a: AttemptVerdict) -> Named:
    s = a.suspect
    return (s.how, s.rank, s.node) if s else None


def unsaid(a: AttemptVerdict) -> str:
    """The note that says why nobody is a suspect."""
    return next(n for n in a.notes if n.startswith("no suspect"))


def each(ranks: range | list[int], what: str, but: int | None = None) -> list[str]:
    return [f"n{r // 4}: [rank{r}]: {what}" for r in ranks if r != but]


# ---- cause ----------------------------------------------------------------------------------------------------------


def test_who_prints_a_root_accuses_itself(made: Kit) -> None:
    a = judged(made, "n2: [rank9]: ROOT", *each(range(8), "LOST n2"), "EXIT")
    assert named(a) == ("cause", 9, "n2")
    assert a.suspect is not None
    assert a.suspect.confidence == a.cause.confidence == "likely"  # type: ignore[union-attr]
    assert [s.rule for s in a.suspect.evidence] == ["t.root"]


def test_a_gpu_is_named_with_its_node(made: Kit) -> None:
    a = judged(made, "n2: XBAD 00:1b", *each(range(8), "LOST n2"), "EXIT")
    assert a.suspect is not None
    assert (a.suspect.node, a.suspect.gpu, a.suspect.confidence) == ("n2", "00:1b", "certain")


def test_a_rank_lives_where_any_line_or_path_says(made: Kit) -> None:
    assert named(judged(made, "n2: [rank9]: x ROOT", "EXIT")) == ("cause", 9, "n2")
    assert named(judged(made, "COMM 9 of 16 on n7", "[rank9]: ROOT", "EXIT")) == ("cause", 9, "n7")
    assert named(judged(made, "[rank9]: ROOT", "HOST n7", "RANK 9", "CODE 1", "EXIT")) == ("cause", 9, "n7")
    assert named(judged(made, "3: [rank9]: ROOT", "3: n7 LEFT")) == ("cause", 9, "n7")
    logs = {"7/n1.log": ["[rank3]: MAYBE"], "7/n2.log": ["[rank9]: ROOT", "EXIT"]}
    assert named(judged_logs(made, logs)) == ("cause", 9, "n2")


def test_ranks_of_a_smaller_communicator_mean_nothing(made: Kit) -> None:
    a = judged(made, "COMM 9 of 16 on n7", "COMM 9 of 12 on n1", "[rank9]: ROOT", "EXIT")
    assert named(a) == ("cause", 9, "n7")


def test_neighbours_tell_a_ranks_node_where_nodes_are_evenly_filled(made: Kit) -> None:
    filled = [f"COMM {r} of 12 on n{r // 4}" for r in (0, 3, 4, 7, 8)]
    assert named(judged(made, *filled, "[rank10]: ROOT", "EXIT")) == ("cause", 10, "n2")
    assert named(judged(made, "COMM 8 of 12 on n2", "[rank10]: ROOT", "EXIT")) == ("cause", 10, None)


def test_srun_numbers_are_ranks_only_where_lines_show_it(made: Kit) -> None:
    same = [f"{r}: [rank{r}]: LOST n2" for r in (0, 1, 2)]
    assert named(judged(made, "7: ROOT", *same, "EXIT")) == ("cause", 7, None)
    other = [f"0: [rank{r}]: LOST n2" for r in (0, 1, 2)]
    assert unsaid(judged(made, "7: ROOT", *other[:1], "TEARDOWN"))


def test_a_cause_without_a_name_is_tied_to_the_exit_code_that_fits(made: Kit) -> None:
    report = ["HOST n2", "RANK 9", "CODE -9", "HOST n2", "RANK 10", "CODE 1"]
    assert named(judged(made, "KILLER", *report, "EXIT")) == ("cause", 9, "n2")
    twice = [*report[:5], "CODE -9"]
    assert named(judged(made, "KILLER", *twice, "EXIT")) is None


def test_a_cause_without_a_name_is_tied_to_the_first_process_that_ended(made: Kit) -> None:
    a = judged(made, "ROOT", "n2 LEFT", "TEARDOWN", "n3 LEFT")
    assert named(a) == ("cause", None, "n2")
    assert a.suspect is not None
    assert a.suspect.confidence == "possible"
    assert named(judged(made, "ROOT", "TEARDOWN", "n2 LEFT")) is None


def test_nobody_printed_it(made: Kit) -> None:
    assert "does not tell who printed it" in unsaid(judged(made, "ROOT", "EXIT"))


@pytest.mark.parametrize("act", ["CANCELLED", "PREEMPTED", "TIMELIMIT", "COMPLETED"])
def test_an_act_or_a_planned_end_has_no_suspect(made: Kit, act: str) -> None:
    a = judged(made, f"n2: [rank9]: {act}")
    assert a.suspect is None
    assert not any(n.startswith("no suspect") for n in a.notes)


# ---- breadth --------------------------------------------------------------------------------------------------------


def test_what_many_nodes_show_at_once_accuses_nobody(made: Kit) -> None:
    a = judged(made, *[f"n{n}: [rank{4 * n}]: ROOT" for n in range(3)], "EXIT")
    assert named(a) is None
    assert "3 nodes show the same error" in unsaid(a)
    assert named(judged(made, *[f"n{n}: [rank{4 * n}]: ROOT" for n in range(2)], "EXIT")) == ("cause", 0, "n0")


def test_a_fifth_of_the_nodes_is_many(made: Kit) -> None:
    layout = [f"COMM {r} of 80 on n{r // 4}" for r in range(80)]
    few = [f"n{n}: [rank{4 * n}]: ROOT" for n in range(3)]
    assert named(judged(made, *layout, *few, "EXIT")) == ("cause", 0, "n0"), "3 of 20"
    assert named(judged(made, *layout, *[f"n{n}: [rank{4 * n}]: ROOT" for n in range(4)], "EXIT")) is None, "4 of 20"


def test_all_ranks_of_one_node_alike_are_not_to_blame_but_their_gpu_node_is(made: Kit) -> None:
    assert "processes show the same" in unsaid(judged(made, *[f"[rank{r}]: ROOT" for r in range(4)], "EXIT"))
    gpu = judged(made, *[f"n2: [rank{r}]: XBAD 00:1{r}" for r in range(8, 12)], *each(range(8), "LOST n2"), "EXIT")
    assert named(gpu) == ("cause", 8, "n2")


def test_the_same_error_much_later_is_not_at_once(made: Kit) -> None:
    def at(second: int, rank: int) -> str:
        return f"n{rank}: [rank{rank}]: 2026-01-02 03:{second // 60:02}:{second % 60:02} ROOT"

    assert named(judged(made, at(0, 1), at(1, 2), at(2, 3), "EXIT")) is None
    assert named(judged(made, at(0, 1), at(61, 2), at(122, 3), "EXIT")) == ("cause", 1, "n1")


# ---- those who waited -----------------------------------------------------------------------------------------------


def test_the_rank_that_printed_no_timeout(made: Kit) -> None:
    a = judged(made, "WORLD 8", *each(range(8), "LONG 60000", but=5), "EXIT")
    assert named(a) == ("silent-rank", 5, "n1")
    assert a.suspect is not None
    assert (a.suspect.confidence, len(a.suspect.evidence)) == ("likely", 7)
    assert "7 of 8 ranks" in a.suspect.because


def test_without_a_world_size_a_gap_is_possible_and_an_end_is_not_seen(made: Kit) -> None:
    a = judged(made, *each(range(8), "LONG 60000", but=5), "EXIT")
    assert a.suspect is not None
    assert (a.suspect.rank, a.suspect.confidence) == (5, "possible")
    assert named(judged(made, *each(range(8), "LONG 60000", but=7), "EXIT")) is None


def test_a_silent_node_is_named_and_scattered_silence_is_not(made: Kit) -> None:
    layout = [f"COMM {r} of 12 on n{r // 4}" for r in range(12)]
    assert named(judged(made, *layout, *each(range(8), "LONG 60000"), "EXIT")) == ("silent-rank", None, "n2")
    some = each([r for r in range(12) if r not in (1, 5)], "LONG 60000")
    assert "2 of 12 ranks printed no timeout" in unsaid(judged(made, *layout, *some, "EXIT"))


def test_more_ranks_than_lines_kept_are_counted(made: Kit) -> None:
    a = judged(made, "WORLD 512", *each(range(512), "LONG 60000", but=333), "EXIT")
    assert named(a) == ("silent-rank", 333, "n83")


def test_a_log_of_a_rank_speaks_for_it(made: Kit) -> None:
    logs = {f"7/rank_{r}.log": ["LONG 60000"] for r in range(4) if r != 2} | {"7/rank_2.log": ["step=1"]}
    assert named(judged_logs(made, logs)) == ("silent-rank", 2, None)


def test_timeouts_that_were_survived_are_forgotten(made: Kit) -> None:
    early = each(range(8), "LONG 60000", but=2)
    a = judged(made, "WORLD 8", *early, "step=3", *each(range(8), "LONG 60000", but=5), "EXIT")
    assert named(a) == ("silent-rank", 5, "n1")


def test_the_rank_that_came_less_far(made: Kit) -> None:
    waits = each(range(8), "LONG 60000")
    far = [f"[rank{r}]: FAR {6 if r == 3 else 7} 9" for r in range(8)]
    a = judged(made, *waits, *far, "EXIT")
    assert named(a) == ("behind-rank", 3, "n0")
    assert a.suspect is not None
    assert "completed work 6, the others 7" in a.suspect.because
    idle = [f"[rank{r}]: FAR 7 {7 if r == 3 else 9}" for r in range(8)]
    assert named(judged(made, *waits, *idle, "EXIT")) == ("behind-rank", 3, "n0")
    ahead = [f"[rank{r}]: FAR 7 {8 + r % 3}" for r in range(8)]
    assert named(judged(made, *waits, *ahead, "EXIT")) is None, "ranks run ahead at their own pace"
    half = [f"[rank{r}]: FAR {6 + r % 2} 9" for r in range(8)]
    assert named(judged(made, *waits, *half, "EXIT")) is None


def test_ranks_the_library_names(made: Kit) -> None:
    a = judged(made, *each(range(8), "LONG 60000"), "ABSENT 3", "EXIT")
    assert named(a) == ("behind-rank", 3, "n0")
    assert a.suspect is not None
    assert a.suspect.confidence == "certain"
    assert named(judged(made, *each(range(8), "LONG 60000"), "ABSENT 4, 6", "EXIT")) == ("behind-rank", None, "n1")
    assert named(judged(made, *each(range(8), "LONG 60000"), "ABSENT 1, 6", "EXIT")) is None


# ---- peers ----------------------------------------------------------------------------------------------------------


def test_two_witnesses_accuse_a_peer(made: Kit) -> None:
    assert named(judged(made, *each([0, 4], "LOST n2"), "EXIT")) == ("peer", None, "n2")
    assert named(judged(made, *each([0], "LOST n2"), "EXIT")) is None
    assert named(judged(made, "n0: [rank0]: LOST n2", "[rank0]: LOST n2", "EXIT")) is None, "one witness twice"


def test_names_with_a_domain_and_addresses_are_the_same_node(made: Kit) -> None:
    lines = ["n2 USES 10.0.0.2", "[rank0]: LOST n2.cluster", "[rank1]: LOST 10.0.0.2", "[rank4]: LOST n2"]
    a = judged(made, *lines, "EXIT")
    assert named(a) == ("peer", None, "n2")
    assert a.suspect is not None
    assert "3 witnesses" in a.suspect.because


def test_many_accused_are_none(made: Kit) -> None:
    a = judged(made, *[f"[rank{r}]: LOST n{r % 4}" for r in range(16)], "EXIT")
    assert named(a) is None
    assert "4 peers" in unsaid(a)
    two = judged(made, *each(range(8), "LOST n2"), *each([8, 9], "LOST n3"), "EXIT")
    assert named(two) == ("peer", None, "n2")
    assert two.suspect is not None
    assert two.suspect.confidence == "possible"


def test_a_line_that_points_at_the_far_side_needs_two_reporters(made: Kit) -> None:
    assert named(judged(made, "n0: [rank0]: RETRY n2", "EXIT")) is None
    assert named(judged(made, "n0: [rank0]: RETRY n2", "n1: [rank4]: RETRY n2", "EXIT")) == ("peer", None, "n2")


def test_the_scheduler_names_a_node(made: Kit) -> None:
    a = judged(made, "NODEGONE n2", "n0: [rank0]: NODEFAIL")
    assert named(a) == ("scheduler", None, "n2")
    assert a.suspect is not None
    assert a.suspect.confidence == "certain"
    assert named(judged(made, "NODEGONE n2", "NODEGONE n3")) is None


def test_no_cascade_printer_is_ever_named(made: Kit) -> None:
    for what in ("LOST", "PEER", "WAITED", "WRAP"):
        assert named(judged(made, f"n1: [rank4]: {what}", "EXIT")) is None
