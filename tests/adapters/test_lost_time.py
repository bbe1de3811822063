"""Where wall time went: views over hand-made stores, every number worked out beside its test."""

from __future__ import annotations

from typing import Any

import pytest
from tests.adapters.stories import Stories, Try, episode

from defib.adapters.rulefiles import LoadedRules

PARTS = (
    "wall_s",
    "startup_s",
    "training_s",
    "stall_s",
    "ending_s",
    "repeated_steps",
    "repeated_s",
    "counted_s",
    "gap_s",
)


def every(first: int, last: int, by: int, begin: float, seconds: float) -> list[tuple[int, float | None]]:
    """Progress lines of steps first, first + by, … last; `seconds` apart from `begin` on."""
    return [(step, begin + seconds * i) for i, step in enumerate(range(first, last + 1, by))]


def times(stories: Stories, job: str = "7") -> list[tuple[Any, ...]]:
    rows = stories.ask(f"SELECT * FROM attempt_time WHERE job = '{job}' ORDER BY attempt_index")
    return [tuple(r[p] for p in PARTS) for r in rows]


def whole(stories: Stories, job: str = "7") -> dict[str, Any]:
    (row,) = stories.ask(f"SELECT * FROM goodput WHERE job = '{job}'")
    return row


def test_a_run_that_completed(stories: Stories) -> None:
    """First line at 0, steps 10…100 from 60 on, 20 s a line: the last at 60 + 9 x 20 = 240; last line at 250."""
    stories.write("7", Try(every(10, 100, 10, 60, 20), (0, 250)))
    assert times(stories) == [(250, 60, 180, 0, 10, 0, 0, 180, None)]
    row = whole(stories)
    assert (row["wall_s"], row["counted_s"], row["ettr"]) == (250, 180, 0.72)
    assert (row["slow_lost_s"], row["gap_s"], row["stall_s"]) == (0, 0, 0)


def test_a_restart_from_a_checkpoint(stories: Stories) -> None:
    """The first try prints 10…100 (60 to 240 s) and is silent until it dies at 300. The second begins at 420 and prints from step 70 on:
    70, 80, 90 and 100 were done again, all after step 60, which was printed at 60 + 5 x 20 = 160. So 40 steps and 240 - 160 = 80 s
    are repeated, 180 - 80 = 100 s counted. It prints 70…120 from 460 on, 20 s apart, the last at 560, and ends at 570."""
    stories.write(
        "7",
        Try(every(10, 100, 10, 60, 20), (0, 300), "crashed", "gpu-hardware"),
        Try(every(70, 120, 10, 460, 20), (420, 570)),
    )
    assert times(stories) == [
        (300, 60, 180, 60, 0, 40, 80, 100, 120),
        (150, 40, 100, 0, 10, 0, 0, 100, None),
    ]
    row = whole(stories)
    assert (row["wall_s"], row["counted_s"], row["repeated_s"], row["gap_s"]) == (570, 200, 80, 120)
    assert row["ettr"] == round(200 / 570, 4)
    # All of the wall time is accounted for: 200 counted + 80 repeated + 100 start-up + 60 stall + 120 gap + 10 ending.
    assert sum(row[k] for k in ("counted_s", "repeated_s", "startup_s", "stall_s", "gap_s", "ending_s")) == 570
    assert (row["steps_run"], row["steps_kept"]) == (91 + 51, 111)


def test_a_third_try_that_falls_further_back_undoes_both_before(stories: Stories) -> None:
    """Tries print 10…50, 40…80 and 20…100. The third begins at 20, so only step 10 of the first counts and nothing of the second."""
    stories.write(
        "7",
        Try(every(10, 50, 10, 10, 10), (0, 50), "crashed", "gpu-hardware"),
        Try(every(40, 80, 10, 110, 10), (100, 150), "crashed", "gpu-hardware"),
        Try(every(20, 100, 10, 210, 10), (200, 290)),
    )
    first, second, third = times(stories)
    assert first[5:8] == (40, 40, 0)  # steps 20 to 50: after 10 s, until 50 s
    assert second[5:8] == (41, 40, 0)  # 40 to 80, the first line's own ten are not known: 80 - 40 + 1
    assert third[5:8] == (0, 0, 80)


def test_a_start_from_nothing_repeats_everything(stories: Stories) -> None:
    stories.write(
        "7",
        Try(every(5, 50, 5, 10, 10), (0, 110), "crashed", "gpu-hardware"),
        Try(every(5, 100, 5, 210, 10), (200, 410)),
    )
    assert times(stories)[0][5:8] == (46, 90, 0)


def test_a_try_without_a_step_is_start_up_and_repeats_nothing(stories: Stories) -> None:
    stories.write("7", Try([], (0, 40), "crashed", "gpu-hardware"), Try(every(1, 3, 1, 70, 10), (50, 90)))
    assert times(stories) == [(40, 40, 0, 0, 0, 0, 0, 0, 10), (40, 20, 20, 0, 0, 0, 0, 20, None)]
    row = whole(stories)
    assert (row["wall_s"], row["startup_s"], row["ettr"]) == (90, 60, round(20 / 90, 4))


def test_hangs_are_stalls_wherever_they_lie(stories: Stories) -> None:
    """Lines 0 to 1000. Start-up to 200, of it 50 hung. Steps 1…5 at 200, 300, 400, 600, 700; hung from 400 to 580 (after step 3).
    The last step at 700, then nothing until it is killed at 1000: a silent tail of 300 s."""
    steps: list[tuple[int, float | None]] = [(1, 200), (2, 300), (3, 400), (4, 600), (5, 700)]
    hangs = (
        episode("hung", 100, 150, phase="startup"),
        episode("hung", 400, 580, onset_step=3, end_step=4),
        episode("hung", 700, None, onset_step=5),
    )
    stories.write("7", Try(steps, (0, 1000), "stalled", "hang", episodes=hangs))
    assert times(stories) == [(1000, 150, 500 - 180, 50 + 180 + 300, 0, 0, 0, 320, None)]
    assert whole(stories)["ettr"] == 0.32


def test_a_hang_that_is_done_again_is_not_subtracted_twice(stories: Stories) -> None:
    """Steps 1…5 at 100, 200, 300, 600, 700, hung 300 to 550. The second try begins at step 4: 4 and 5 are repeated, all after 300.
    Repeated: 700 - 300 - 250 = 150 s. Training: 600 - 250 = 350 s. Counted: 200 s, the steps 1 to 3."""
    steps: list[tuple[int, float | None]] = [(1, 100), (2, 200), (3, 300), (4, 600), (5, 700)]
    hang = episode("hung", 300, 550, onset_step=3, end_step=4)
    stories.write(
        "7",
        Try(steps, (0, 700), "crashed", "gpu-hardware", episodes=(hang,)),
        Try(every(4, 6, 1, 900, 100), (800, 1100)),
    )
    assert times(stories)[0] == (700, 100, 350, 250, 0, 2, 150, 200, 100)


def test_overlapping_hangs_count_once(stories: Stories) -> None:
    hangs = (episode("hung", 200, 300, onset_step=1), episode("hung", 250, 400, onset_step=1))
    stories.write("7", Try([(1, 100), (2, 500)], (0, 500), episodes=hangs))
    assert times(stories)[0][2:4] == (400 - 200, 200)


def test_a_completed_run_that_hung_at_its_end(stories: Stories) -> None:
    """Last step at 100, hung until 160, then ten seconds of good-bye."""
    hang = episode("hung", 100, 160, phase="ending", onset_step=2)
    stories.write("7", Try([(1, 50), (2, 100)], (0, 170), episodes=(hang,)))
    assert times(stories)[0][:5] == (170, 50, 50, 60, 10)


def test_slowness_is_told_by_its_depth(stories: Stories) -> None:
    """200 s at half the throughput lost 100 s; 100 s to the last step at a fifth less lost 20 s."""
    slow = (
        episode("slow", 100, 300, depth=0.5, baseline_s=1.0, pace_s=2.0),
        episode("slow", 500, None, depth=0.2, baseline_s=1.0, pace_s=1.25),
    )
    stories.write("7", Try([(1, 50), (2, 600)], (0, 650), episodes=slow))
    (row,) = stories.ask("SELECT slow_s, slow_lost_s, stall_s, training_s FROM attempt_time")
    assert row == {"slow_s": 300, "slow_lost_s": 120, "stall_s": 0, "training_s": 550}
    assert whole(stories)["slow_lost_s"] == 120


def test_a_live_episode_on_the_observers_clock_still_counts(stories: Stories) -> None:
    """Its length holds on any clock; where it lies is told by its step. One that never ended has no end on that clock: unknown."""
    known = episode("hung", 5000, 5060, clock="arrival", onset_step=1, end_step=2)
    stories.write("7", Try([(1, 100), (2, 300)], (0, 300), episodes=(known,)))
    assert times(stories)[0][:4] == (300, 100, 140, 60)
    endless = episode("hung", 5000, None, clock="arrival", onset_step=None)
    stories.write("8", Try([], (0, 300), "stalled", "hang", episodes=(endless,)), Try([(1, 400)], (350, 410)))
    assert times(stories, "8")[0][:4] == (300, None, 0, None)


def test_logs_of_many_ranks_print_the_same_steps(stories: Stories) -> None:
    stories.write("7", Try(every(1, 4, 1, 10, 10), (0, 50), streams=3))
    assert times(stories)[0][:5] == (50, 10, 30, 0, 10)
    stories.write("8", Try([(1, None), (3, None), (4, None)], clock="step", step_s=2.0, streams=3))
    assert times(stories, "8")[0][2] == 2 + 4 + 2


@pytest.mark.parametrize("clock", ["step", "none"])
def test_nothing_is_invented_where_the_clock_is_unknown(clock: str, stories: Stories) -> None:
    bare = Try([(1, None), (2, None), (3, None)], clock=clock, step_s=2.0 if clock == "step" else None)
    stories.write("7", bare, Try(every(2, 4, 1, 100, 10), (90, 130)))
    training = 6 if clock == "step" else None
    assert times(stories)[0] == (None, None, training, None, None, 2, None, None, None)
    row = whole(stories)
    assert (row["attempts"], row["repeated_steps"]) == (2, 2)
    assert {row[k] for k in ("wall_s", "counted_s", "startup_s", "stall_s", "repeated_s", "gap_s", "ettr")} == {None}


def test_stamps_on_other_lines_make_no_clock(stories: Stories) -> None:
    """Only an error line carries a stamp: the attempt spans nothing that could be measured."""
    stories.write("7", Try([(1, None)], (500, 500), "crashed", "gpu-hardware", clock="step", step_s=1.0))
    assert times(stories)[0][:2] == (None, None)


def test_a_counter_that_restarts_every_epoch_tells_no_place(stories: Stories, loaded: LoadedRules) -> None:
    epoch = next(f.id for f in loaded.book.formats if f.counts == "epoch" and f.kind == "train")
    one = Try(every(1, 9, 1, 10, 10), (0, 90), "crashed", "gpu-hardware", format=epoch)
    stories.write("7", one, Try(every(1, 9, 1, 110, 10), (100, 190), format=epoch))
    assert [t[5:8] for t in times(stories)] == [(None, None, None), (0, 0, 80)]
    assert whole(stories)["ettr"] is None
    stories.write("8", Try(every(1, 9, 1, 10, 10), (0, 100), format=epoch))
    assert whole(stories, "8")["ettr"] == 0.8


def test_steps_of_evaluation_are_no_training(stories: Stories) -> None:
    stories.write("7", Try(every(1, 9, 1, 10, 10), (0, 100), kind="eval"))
    assert times(stories)[0][:4] == (100, 100, 0, 0)
    assert stories.ask("SELECT * FROM goodput") == []


def test_the_fleet_adds_up_what_is_known(stories: Stories) -> None:
    """Job 7: 180 of 250 s. Job 8: 30 of 50 s. Job 9 has no clock and is only counted. (180 + 30) / 300 = 0.7."""
    stories.write("7", Try(every(10, 100, 10, 60, 20), (0, 250)))
    stories.write("8", Try(every(1, 4, 1, 10, 10), (0, 50)))
    stories.write("9", Try([(1, None), (2, None)], clock="step", step_s=2.0))
    (fleet,) = stories.ask("SELECT * FROM fleet_goodput")
    assert (fleet["jobs"], fleet["jobs_known"], fleet["attempts"]) == (3, 2, 3)
    assert (fleet["wall_s"], fleet["counted_s"], fleet["startup_s"], fleet["ending_s"]) == (300, 210, 70, 20)
    assert fleet["ettr"] == 0.7
    assert stories.ask("SELECT ettr FROM fleet_goodput WHERE jobs = 0") == []
