"""incidents: traces of a job's streams -> attempts; the counter and the framework that speak for them; fingerprints."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.conftest import CLASSES, LANGUAGE, Kit, batch_of, kit, place_facts, replay, signal

from defib.engine import core
from defib.engine.incidents import attempt_id, fingerprint, with_year
from defib.engine.words import AttemptVerdict, JobKey, StreamFacts

JOB = JobKey(job_id="7")


def text(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def attempts(made: Kit, *streams: tuple[StreamFacts, bytes]) -> list[AttemptVerdict]:
    files = {f"s{n}": data for n, (_, data) in enumerate(streams)}
    return replay(made, files, facts=[f for f, _ in streams]).attempts


def test_an_attempts_name_is_readable() -> None:
    assert attempt_id(JobKey("alps", "7", "3"), 1) == "alps/7_3#1"
    assert attempt_id(JobKey(job_id="7"), 0) == "7#0"
    assert attempt_id(JobKey(place="/l/train"), 2) == "/l/train#2"


def test_attempts_told_by_paths_are_put_in_their_order(language: Kit) -> None:
    first, second = StreamFacts(JOB, attempt=0), StreamFacts(JOB, attempt=1)
    found = attempts(language, (second, text("step=5", "COMPLETED")), (first, text("step=1", "ROOT")))
    assert [(a.index, a.streams, a.verdict) for a in found] == [(0, (1,), "crashed"), (1, (0,), "completed")]


def test_a_restart_count_goes_before_the_attempt_and_is_told(language: Kit) -> None:
    found = attempts(
        language,
        (StreamFacts(JOB, restart_count=2), text("step=1")),
        (StreamFacts(JOB, restart_count=1), text("step=0")),
    )
    assert [(a.restart_count, a.streams) for a in found] == [(1, (1,)), (2, (0,))]


def test_a_stream_without_a_number_goes_with_the_last_attempt(language: Kit) -> None:
    found = attempts(
        language,
        (StreamFacts(JOB, attempt=0), text("step=1")),
        (StreamFacts(JOB, attempt=1), text("step=2")),
        (StreamFacts(JOB), text("ROOT")),
    )
    assert [a.streams for a in found] == [(0,), (1, 2)]


def test_streams_with_as_many_attempts_are_matched_one_by_one(language: Kit) -> None:
    plain = StreamFacts(JOB)
    found = attempts(language, (plain, text("step=1", "AGAIN", "step=2")), (plain, text("ROOT", "AGAIN", "HARD")))
    assert [a.streams for a in found] == [(0, 1), (0, 1)]
    assert [a.first_line[1] for a in found] == [1, 2]  # type: ignore[index]


def test_a_stream_with_fewer_attempts_is_matched_by_time_else_from_the_end(language: Kit) -> None:
    plain = StreamFacts(JOB)
    two = text("2026-01-02 03:00:00 step=1", "AGAIN", "2026-01-02 04:00:00 step=2")
    early = attempts(language, (plain, two), (plain, text("2026-01-02 03:30:00 ROOT")))
    assert [a.streams for a in early] == [(0, 1), (0,)]
    late = attempts(language, (plain, two), (plain, text("2026-01-02 04:30:00 ROOT")))
    assert [a.streams for a in late] == [(0,), (0, 1)]
    unknown = attempts(language, (plain, two), (plain, text("ROOT")))
    assert [a.streams for a in unknown] == [(0,), (0, 1)]


def test_a_silent_stream_is_part_of_the_job_and_says_nothing(language: Kit) -> None:
    (a,) = attempts(language, (StreamFacts(JOB), text("step=1", "COMPLETED")), (StreamFacts(JOB), text("x", "y")))
    assert (a.verdict, a.streams) == ("completed", (0, 1))


def test_the_job_id_may_come_from_the_schedulers_own_lines(language: Kit) -> None:
    a = replay(language, ["step=1", "CANCELLED job=99"]).only
    assert (a.job.job_id, a.job.place) == ("99", "job")
    assert "job id read from the log's own lines" in a.notes
    (b,) = attempts(language, (StreamFacts(JOB), text("CANCELLED job=99")))
    assert b.job == JOB
    assert replay(language, ["ROOT"]).only.job.job_id is None


def test_progress_is_summed_up(language: Kit) -> None:
    p = replay(
        language, ["step=5/20 time=2 tput=10", "step=6/20 time=2", "step=7/20 time=4", "step=7/20"]
    ).only.progress
    assert p is not None
    assert (p.format, p.framework, p.kind, p.first_step, p.last_step, p.total_steps, p.points) == (
        "t.step",
        "t",
        "train",
        5,
        7,
        20,
        4,
    )
    assert p.median_step_s == pytest.approx(2.0, rel=1e-3)
    assert (p.throughput, p.throughput_unit, p.clock) == (pytest.approx(10, rel=1e-3), "tokens/s", "step")


def test_training_speaks_before_evaluation_and_bars(language: Kit) -> None:
    def speaks(*lines: str) -> str | None:
        p = replay(language, lines).only.progress
        return p.format if p else None

    assert speaks("map=1/9", "map=2/9", "map=3/9", "step=1", "step=2") == "t.step"
    assert speaks("step=1", "step=2", *[f"eval={n}" for n in range(9)]) == "t.step"
    assert speaks("map=1/9", "map=2/9", "eval=1", "eval=2") == "t.eval"
    assert speaks("map=1/9", "map=2/9") == "t.bar"
    assert speaks("x") is None


def test_oddities_are_noted(language: Kit) -> None:
    a = replay(language, ["step=1 loss=nan", "step=2 loss=inf", "step=3 loss=1.0"]).only
    assert "2 printed losses were not a finite number" in a.notes


def test_giants_are_noted(language: Kit) -> None:
    a = replay(language, b"step=1\n" + b"x" * 200_000 + b"\n").only
    assert [n for n in a.notes if "128 KiB" in n]


FINER = r"""
    framework: fine
    about: a
    refines: [t]
    banners:
      - {id: fine.banner, pattern: Welcome to fine, hits: [Welcome to fine], misses: [x]}
"""
OTHER = FINER.replace("refines: [t]", "refines: []").replace("fine", "other").replace("reothers", "refines")


def test_a_framework_is_told_by_its_steps_or_by_a_finer_ones_banner() -> None:
    made = kit({**LANGUAGE, "fine.yaml": FINER, "other.yaml": OTHER})

    def framework(*lines: str) -> str | None:
        return replay(made, lines).only.framework

    assert framework("step=1", "step=2") == "t"
    assert framework("Welcome to fine", "step=1", "step=2") == "fine"
    assert framework("Welcome to other", "step=1", "step=2") == "t"
    assert framework("Welcome to other") == "other"
    assert framework("Welcome to other", "map=1/2", "map=2/2") == "other"
    assert framework("x") is None


def test_a_fingerprint_is_of_the_mechanism_not_of_the_moment(language: Kit) -> None:
    s = signal(language, "t.root", 5, text="failed at 0x7f12 on rank 3 in /a/b.py line 9")
    same = replace(s, text="failed at 0x9999 on rank 14 in /c/d.py line 1", offset=9)
    assert fingerprint(s) == fingerprint(same)
    assert fingerprint(s) != fingerprint(replace(s, text="another failure"))
    assert fingerprint(s) != fingerprint(signal(language, "t.hard", 5, text=s.text))


def us(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp()) * 1_000_000  # type: ignore[arg-type,misc]


def test_a_stamp_without_a_year_lies_nearest_to_the_jobs_full_stamps() -> None:
    second_of_january = 86_400_000_000
    last_of_december = 365 * 86_400_000_000
    leap_day = 59 * 86_400_000_000
    assert with_year(second_of_january, us(2026, 6, 1)) == us(2026, 1, 2)
    assert with_year(second_of_january, us(2025, 12, 31)) == us(2026, 1, 2)
    assert with_year(last_of_december, us(2026, 1, 1)) == us(2025, 12, 31)
    assert with_year(leap_day, us(2024, 3, 1)) == us(2024, 2, 29)


def test_what_a_table_says_of_a_number_reaches_the_verdict() -> None:
    table = """
        table: codes
        key: xid
        about: a
        rows:
          - {value: '79', title: gone, role: root, class: gpu-hardware, domain: gpu}
        default: {title: odd, role: confirm, class: user-code, domain: user}
    """
    rule = r"""
        family: x
        about: a
        signatures:
          - {id: x.code, title: t, pattern: 'CODE \d', extract: 'CODE (?P<xid>\d+)', role: confirm, table: codes, hits: [CODE 79], misses: [x]}
    """
    made = kit({"classes.yaml": CLASSES, "t.yaml": table, "x.yaml": rule})
    a = replay(made, ["CODE 79"]).only
    assert (a.verdict, a.klass) == ("crashed", "gpu-hardware")
    assert a.cause is not None
    assert a.cause.signal.title == "gone"
    assert replay(made, ["CODE 5"]).only.cause is None


@pytest.mark.parametrize("numbered", [False, True], ids=["by-time", "number-in-the-path"])
def test_a_log_that_was_cut_or_replaced_goes_on_as_another_attempt(language: Kit, numbered: bool) -> None:
    """Both lives of the log count, each with its own steps; the number in a path counts on."""
    state = core.State(language.book)
    (facts,) = place_facts(language.book, ["job.log"])
    facts = replace(facts, restart_count=2 if numbered else None)
    for life in (0, 1):
        core.advance(state, core.StreamOpened(life, core.StreamId("job.log", life), facts))
    lives = [b"".join(b"step=%d\n" % n for n in range(1, last)) for last in (30, 20)]
    core.advance(state, core.Observed(language.observer().observe(batch_of(*lives))))
    for life in (0, 1):
        core.advance(state, core.StreamEnded(life, len(lives[life]), lives[life].count(b"\n")))
    (judged,) = core.advance(state, core.JobEnded(facts.job))
    assert isinstance(judged, core.JobJudged)
    told = [(a.index, a.streams, a.progress.last_step, a.progress.points) for a in judged.attempts if a.progress]
    first = 2 if numbered else 0
    assert told == [(first, (0,), 29, 29), (first + 1, (1,), 19, 19)]
