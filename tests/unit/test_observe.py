"""observe: one call from batch to rows, and each banner of a stream told once."""

from __future__ import annotations

import pytest
from tests.conftest import LANGUAGE, Kit, batch_of, kit

from defib.engine.words import PROGRESS, SIGNALS

BANNER = r"""
    framework: fine
    about: a
    banners:
      - {id: fine.banner, pattern: Welcome to fine, hits: [Welcome to fine], misses: [x]}
      - {id: fine.other, pattern: Fine print, hits: [Fine print], misses: [x]}
"""


@pytest.fixture(scope="module")
def made() -> Kit:
    return kit({**LANGUAGE, "fine.yaml": BANNER})


def test_one_call_gives_both_tables(made: Kit) -> None:
    seen = made.observer().observe(batch_of(b"step=1\nROOT\nx\n"))
    assert seen.signals.schema == SIGNALS
    assert seen.progress.schema == PROGRESS
    assert (seen.signals.num_rows, seen.progress.num_rows, seen.frameworks) == (1, 1, {})


def test_a_banner_is_told_for_its_own_stream_and_once(made: Kit) -> None:
    observer = made.observer()
    assert observer.observe(batch_of(b"x\n", b"Welcome to fine\n")).frameworks == {1: frozenset({"fine"})}
    assert observer.observe(batch_of(b"Welcome to fine\n", b"Welcome to fine\n")).frameworks == {0: frozenset({"fine"})}
    assert observer.observe(batch_of(b"x\n", b"Welcome to fine\n")).frameworks == {}


def test_what_is_kept_about_a_stream_goes_with_it(made: Kit) -> None:
    observer = made.observer()
    observer.observe(batch_of(b"Welcome to fine\n"))
    observer.forget(0)
    observer.forget(7)
    assert observer._seen == {}
    assert observer.observe(batch_of(b"Welcome to fine\n")).frameworks == {0: frozenset({"fine"})}


def test_a_batch_says_the_same_whatever_was_observed_before(made: Kit) -> None:
    used = made.observer()
    used.observe(batch_of(b"HARD\nstep=9\n"))
    a, b = used.observe(batch_of(b"ROOT\nstep=1\n")), made.observer().observe(batch_of(b"ROOT\nstep=1\n"))
    assert a.signals.equals(b.signals)
    assert a.progress.equals(b.progress)
