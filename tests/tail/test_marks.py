"""How far a source has read, told after the items it belongs to: whoever keeps it goes on there, without a byte twice or missing."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tail.live import Live

from defib.adapters.tail.guard import Guard
from defib.adapters.tail.position import Position, closed_job, from_mark, to_mark
from defib.engine.ports import Data, Marked
from defib.engine.words import JobKey

raw = st.binary(max_size=64)
number = st.integers(0, 2**63)
guards = st.builds(
    Guard, number, st.just(64), raw.map(lambda b: b.ljust(64, b"x")), st.just(b""), st.integers(0, 2**32 - 1), raw
)
roles = st.sampled_from(["path", "copy", "renamed"])
positions = st.builds(
    Position, st.just(b"/l\xff"), number, number, number, guards, st.none() | number, st.none() | number, roles, number
)
texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]))
jobs = st.builds(JobKey, texts, texts, texts, st.none() | number)


@given(st.lists(positions, max_size=4), st.booleans(), st.none() | jobs)
def test_a_mark_is_its_positions(ps: list[Position], closed: bool, job: JobKey | None) -> None:
    mark = to_mark(tuple(ps), closed, job=job)
    assert from_mark(b"/l\xff", mark) == (tuple(ps), closed)
    assert closed_job(mark) == job


def test_the_guard_of_a_mark_is_short(live: Live) -> None:
    live.open(kept={})
    live.write("a.log", b"line of a log\n" * 1000)
    live.poll(2)
    assert len(live.of(Marked)[-1].mark) < 1500


def test_a_mark_comes_after_what_it_covers_and_only_when_it_has_changed(live: Live) -> None:
    live.open(kept={})
    live.write("a.log", b"one\n")
    live.poll(2)
    live.write("a.log", b"two\n")
    items = live.poll(3)
    (data,) = [n for n, i in enumerate(items) if isinstance(i, Data)]
    (mark,) = [n for n, i in enumerate(items) if isinstance(i, Marked)]
    assert mark > data
    assert not [i for i in live.poll(60) if isinstance(i, Marked)]


def kept_of(live: Live) -> dict[bytes, bytes]:
    return {i.key: i.mark for i in live.of(Marked)}


def test_another_source_goes_on_from_the_marks(live: Live) -> None:
    live.open(kept={})
    live.write("a.log", b"one\ntwo")
    live.poll(3)
    kept = kept_of(live)
    assert {path: from_mark(path, m)[0] for path, m in kept.items()} == {p.path: (p,) for p in live.source.positions()}
    live.items.clear()
    live.open(kept=kept)
    live.write("a.log", b" and a half\nthree\n")
    live.poll(3)
    (data,) = live.of(Data)
    assert data.data == b"two and a half\nthree\n"


@pytest.mark.parametrize("runs_again", [False, True])
def test_what_was_closed_stays_closed_until_its_job_runs_again(live: Live, runs_again: bool) -> None:
    live.open(kept={})
    live.write("slurm-7.out", b"one\n")
    live.poll(3)
    job = live.job
    live.source.over(job)
    live.poll(15)
    kept = kept_of(live)
    assert closed_job(kept[os.fsencode(live.folder / "slurm-7.out")]) == job
    live.items.clear()
    live.open(kept=kept)
    live.write("slurm-7.out", b"two\n")
    if runs_again:
        live.source.running(job)
    live.poll(30)
    assert [d.data for d in live.of(Data)] == ([b"two\n"] if runs_again else [])
