"""Logs that were removed, replaced or rewritten, and what is told of bytes nobody can read any more."""

from __future__ import annotations

import errno

from tests.tail.conftest import LINES, Play, failing

from defib.adapters.tail import body, reading
from tailmodel import Memory

OTHER = LINES.replace(b"loss 1.25", b"loss 9.75")


def test_p1_a_file_in_doubt_that_is_replaced_under_the_same_number_is_read_once() -> None:
    play = Play(Memory(births=True, reuse=True))
    play.append(LINES)
    play.poll()
    play.follower.relax()
    play.world.remove(b"log")
    play.append(OTHER)
    play.world.fault = failing("read", errno.ESTALE)  # whether it holds the same bytes cannot be told yet
    play.poll()
    play.world.fault = lambda call: None
    play.world.remove(b"log")
    third = OTHER.replace(b"9.75", b"4.25")
    play.append(third)
    play.poll(5)
    assert any(isinstance(t, reading.Gap) and t.note == body.PASSED for t in play.told)
    play.append(b"more\n")
    play.poll(5)
    assert play.got == {0: LINES, 1: third + b"more\n"}


def test_a_log_that_was_read_whole_and_removed_lost_nothing(play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.world.remove(b"log")
    play.poll(full=False)
    play.poll(5)
    assert play.follower.end() == [body.End(0, body.REMOVED, False)]


def test_a_log_that_was_removed_before_it_was_read_whole_is_a_loss(play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.follower.relax()
    play.append(LINES)
    play.world.remove(b"log")
    play.poll(5)
    (end,) = play.follower.end()
    assert end == body.End(0, body.LEFT.format(len(LINES)), True)


def test_a_log_rewritten_after_it_was_read_was_not_cut_unread(play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.world.truncate(b"log", 0)
    play.poll(full=False)
    play.poll()
    assert not any(isinstance(t, reading.Gap) for t in play.told)


def test_a_log_rewritten_and_taken_away_between_two_looks_is_seen_through_its_descriptor(play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.world.truncate(b"log", 0)
    play.append(OTHER)
    play.world.rename(b"log", b"aside")
    play.poll(5)
    assert play.got == {0: LINES, 1: OTHER}
    assert play.ended[0].lost
    assert play.follower.end() == [body.End(1, body.REMOVED, False)]


def test_a_log_that_lost_bytes_nobody_read_and_was_taken_away_is_a_loss(play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.append(LINES)
    play.world.fault = failing("read", errno.EIO)
    play.poll()
    play.world.fault = lambda call: None
    play.world.truncate(b"log", len(LINES))
    play.world.rename(b"log", b"aside")
    play.poll(5)
    assert play.follower.end() == [body.End(0, body.LEFT.format(len(LINES)), True)]
