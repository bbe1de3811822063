"""The known pits of following a log, one by one. The numbers are those of the field's list of pits (P1 to P49)."""

from __future__ import annotations

import errno
from itertools import pairwise

import pytest
from tests.tail.conftest import LINES, Play, failing

from defib.adapters.tail import body, reading
from defib.adapters.tail.body import Begin
from defib.adapters.tail.follower import ELDERS_MAX
from defib.adapters.tail.guard import GUARD_BYTES
from defib.adapters.tail.reading import Hole
from tailmodel import Memory

OTHER = LINES.replace(b"loss 1.25", b"loss 9.75")


@pytest.mark.parametrize("births", [True, False])
def test_p1_an_inode_that_is_used_again_at_once_is_another_file(births: bool) -> None:
    play = Play(Memory(births=births, reuse=True))
    play.append(LINES)
    play.poll()
    play.follower.relax()  # no descriptor keeps the inode from being given away
    before = play.world.entries[b"log"].ino
    play.world.remove(b"log")
    play.append(OTHER * 2)
    assert play.world.entries[b"log"].ino == before
    play.poll()
    assert play.got == {0: LINES, 1: OTHER * 2}
    play.poll(61)
    assert play.ended[0].lost


def test_p2_files_that_begin_alike_are_different_streams() -> None:
    world = Memory()
    header = LINES[:4000]
    plays = []
    for n in range(64):
        play = Play(world)
        play.follower.path = b"/logs/rank%d" % n
        play.append(header + b"rank %d\n" % n, b"rank%d" % n)
        plays.append(play)
    for n, play in enumerate(plays):
        play.poll()
        assert play.got == {0: header + b"rank %d\n" % n}


@pytest.mark.parametrize("size", [0, 1, 10, 63, 64, 65, 255, 1023, 1024, 4095, 4096, 4097])
def test_p3_small_files_are_files(size: int, play: Play) -> None:
    play.append(LINES[:size])
    play.poll()
    play.append(b"Segmentation fault")
    play.poll()
    assert play.got == {0: LINES[:size] + b"Segmentation fault"}


@pytest.mark.parametrize("size", [100, 5000, 8000, 8001, 20000])
def test_p4_truncated_and_grown_again_past_the_offset(size: int, play: Play) -> None:
    header = LINES[:80]
    play.append(header + LINES)
    play.poll()
    play.world.truncate(b"log", 0)
    play.append((header + OTHER * 3)[:size])
    play.poll(full=False)
    assert play.got[1] == (header + OTHER * 3)[:size]
    assert play.ended[0].lost
    assert str(len(header + LINES)) in (play.ended[0].note or "")


def test_p4_rewritten_with_the_same_size(play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.world.truncate(b"log", 0)
    play.append(OTHER)
    play.poll(full=False)
    assert play.got == {0: LINES, 1: OTHER}


def test_p5_a_requeue_truncates_the_same_inode(play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.world.truncate(b"log", 0)
    play.poll()
    assert play.ended[0].lost
    play.append(LINES)  # the next attempt prints the very same
    play.poll()
    assert play.got == {0: LINES, 1: LINES}


def test_p7_copytruncate_drains_the_copy(play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.append(b"written just before\n")
    play.world.copy(b"log", b"log.1")
    play.append(b"between copy and truncation: nobody can know\n")
    play.world.truncate(b"log", 0)
    play.append(b"after\n")
    play.poll()
    assert play.got == {0: LINES + b"written just before\n", 1: b"after\n"}
    assert play.ended[0] == body.End(0, body.COPIED.format(len(LINES) + 20), True)


def test_p7_an_older_attempt_with_the_same_header_is_not_taken_for_the_copy(play: Play) -> None:
    play.append(LINES + b"an older attempt\n", b"log.1")
    play.append(LINES)
    play.poll()
    play.world.truncate(b"log", 0)
    play.poll()
    assert play.got[0] == LINES


@pytest.mark.parametrize("times", [1, 3])
def test_p8_rotated_while_the_reader_was_down(times: int, play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.append(b"unread\n")

    def rotate() -> None:
        for n in range(times):
            for k in range(n, 0, -1):
                play.world.rename(b"log.%d" % k, b"log.%d" % (k + 1))
            play.world.rename(b"log", b"log.1")
            play.append(b"file %d\n" % n)

    play.restart(rotate)
    play.poll()
    assert play.got == {0: LINES + b"unread\n", 1: b"file %d\n" % (times - 1)}
    play.poll(601)
    assert play.ended[0] == body.End(0, body.REPLACED, False)


def test_p9_a_rotated_file_is_drained_before_the_new_one_and_watched_for_late_writers(play: Play) -> None:
    play.quantum = 1000
    play.append(b"first\n")
    play.poll()
    play.append(LINES)
    play.world.rename(b"log", b"log.1")
    play.append(b"new\n")
    play.poll()
    order = [i.generation for i in play.told if isinstance(i, reading.Bytes)]
    assert order == sorted(order)
    play.append(b"late\n", b"log.1")
    play.poll()
    assert play.got == {0: b"first\n" + LINES + b"late\n", 1: b"new\n"}
    assert not play.ended
    play.poll(601)
    assert not play.ended[0].lost


def test_p9_too_many_growing_older_files_are_let_go_with_a_word(play: Play) -> None:
    for n in range(ELDERS_MAX + 2):
        play.append(b"file %d\n" % n)
        play.poll()
        play.world.rename(b"log", b"old%d" % n)
    play.append(b"last\n")
    play.poll()
    lost = [g for g, end in play.ended.items() if end.lost]
    assert lost == [0, 1]
    assert play.follower.handles == ELDERS_MAX + 1


def test_p10_other_numbers_after_a_remount_with_the_same_bytes_go_on(play: Play) -> None:
    play.append(LINES)
    play.poll()

    def remount() -> None:
        play.world.entries[b"log"].ino += 5000
        play.world.entries[b"log"].born += 77

    play.restart(remount)
    play.append(b"more\n")
    play.poll()
    assert play.got == {0: LINES + b"more\n"}
    assert not play.ended


@pytest.mark.parametrize("away_s", [5, 400])
def test_p11_p35_a_file_that_vanishes_and_returns_keeps_its_offset(away_s: int, play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.follower.relax()
    play.world.rename(b"log", b"elsewhere")
    play.poll()
    assert play.troubles[-1] == "No such file or directory"
    play.restart()
    play.poll(away_s)
    play.world.rename(b"elsewhere", b"log")
    play.append(b"more\n")
    play.poll(61)
    assert play.got == {0: LINES + b"more\n"}
    assert play.troubles[-1] is None


def test_p12_a_bad_position_heals_itself_and_says_so(play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.restart(lambda: play.world.create(b"log"))
    play.append(b"short\n")
    play.poll()
    assert play.got[1] == b"short\n"
    play.poll(61)
    assert play.ended[0].lost


@pytest.mark.parametrize("cut", [1, 7, 20, 21, 300, 3000])
def test_p13_an_end_that_was_cut_off_is_not_read_all_over_again(cut: int, play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.world.truncate(b"log", len(LINES) - cut)
    play.poll()
    begun = [i for i in play.told if isinstance(i, Begin)][-1]
    at = LINES.rindex(b"\n", 0, len(LINES) - cut) + 1
    assert (begun.offset, begun.line) == (at, LINES.count(b"\n", 0, at) + 1)
    play.append(b"and on\n")
    play.poll()
    assert play.got[1] == LINES[:-cut] + b"and on\n"


def test_p13_a_new_attempt_with_the_same_beginning_is_read_from_its_first_byte(play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.world.truncate(b"log", 0)
    play.append(LINES[: len(LINES) // 3])
    play.poll()
    assert [i.offset for i in play.told if isinstance(i, Begin)] == [0, 0]


def test_p13_a_cut_is_believed_only_if_everything_before_is_the_same(play: Play) -> None:
    play.append(b"job 1" + LINES)
    play.poll()
    play.world.truncate(b"log", 0)
    play.append((b"job 2" + LINES)[:-50])  # the 4 KiB before the offset tell nothing
    play.poll()
    assert play.got[1] == (b"job 2" + LINES)[:-50]
    assert [i.offset for i in play.told if isinstance(i, Begin)] == [0, 0]


def test_p14_an_unlinked_file_is_read_to_its_end(play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.append(b"last words\n")
    play.world.remove(b"log")
    play.poll()
    assert play.got == {0: LINES + b"last words\n"}


@pytest.mark.parametrize("head", [b"\x7fELF....", b"\x1f\x8b\x08\0\0", b"\x80\x02}q\x00", b"\x01\x02\x03" * 300])
def test_p15_p16_what_is_no_log_is_refused(head: bytes, play: Play) -> None:
    play.append(head)
    play.poll()
    packed = head.startswith(b"\x1f\x8b")
    told = "packed, so it does not grow: 'defib replay' reads it" if packed else "looks binary, not a log"
    assert play.follower.refused == told
    assert play.told == []
    assert play.follower.handles == 0


@pytest.mark.parametrize("holes", [True, False])
@pytest.mark.parametrize("nuls", [1, 100, 5000, 300_000])
def test_p17_nuls_at_the_end_are_waited_for(nuls: int, holes: bool) -> None:
    play = Play(Memory(holes=holes))
    play.quantum = 65536
    play.append(LINES)
    play.world.truncate(b"log", len(LINES) + nuls)
    play.poll()
    play.poll(20)
    assert play.got == {0: LINES}
    play.world.write(b"log", len(LINES), (LINES * 40)[:nuls])
    play.poll(5)
    assert play.got == {0: LINES + (LINES * 40)[:nuls]}
    assert not play.gaps


@pytest.mark.parametrize("holes", [True, False])
@pytest.mark.parametrize("nuls", [1, 100, 5000, 300_000])
def test_p17_nuls_that_stay_become_a_hole(nuls: int, holes: bool) -> None:
    play = Play(Memory(holes=holes))
    play.quantum = 65536
    play.append(LINES)
    play.world.truncate(b"log", len(LINES) + nuls)
    play.poll()
    play.poll(31)
    assert play.got == {0: LINES + bytes(nuls)}
    assert sum(i.length for i in play.told if isinstance(i, Hole)) == nuls
    play.append(b"and on\n")
    play.poll()
    assert play.got == {0: LINES + bytes(nuls) + b"and on\n"}


def test_p17_data_that_come_after_the_wait_are_told_and_read(play: Play) -> None:
    play.append(LINES)
    play.world.truncate(b"log", len(LINES) + 100)
    play.poll()
    play.poll(31)
    play.world.write(b"log", len(LINES), OTHER[:100])
    play.poll()
    assert play.ended[0] == body.End(0, reading.FILLED, True)
    assert play.got[1] == LINES + OTHER[:100]
    assert [i.offset for i in play.told if isinstance(i, Begin)] == [0, len(LINES)]


def test_p17_nuls_in_the_middle_are_passed_on_at_once(play: Play) -> None:
    play.append(LINES + bytes(5000) + b"more\n")
    play.poll()
    assert play.got == {0: LINES + bytes(5000) + b"more\n"}


def test_p17_p41_a_huge_hole_costs_a_few_calls(play: Play) -> None:
    calls = 0

    def count(call: str) -> None:
        nonlocal calls
        calls += 1

    play.quantum = 4096
    play.append(b"begin\n")
    play.world.write(b"log", 30_000_000, LINES[:1000])
    play.world.fault = count
    play.poll()
    assert len(play.got[0]) == 30_001_000
    assert calls < 20


def test_p18_a_last_line_without_its_end_is_handed_over_once_and_known_as_unfinished(play: Play) -> None:
    play.append(LINES)
    for n, byte in enumerate(b"Traceback: boom"):
        play.append(bytes([byte]))
        play.poll()
        assert play.follower.current is not None
        s = play.follower.current.state
        assert (s.record_at, s.line, s.partial) == (len(LINES), 401, b"Traceback: boom"[: n + 1])
    play.append(b"\n")
    play.poll()
    assert play.got == {0: LINES + b"Traceback: boom\n"}
    assert play.follower.current.state.partial == b""


def test_p18_a_restart_hands_the_unfinished_line_over_as_a_whole(play: Play) -> None:
    play.append(LINES + b"Trace")
    play.poll()
    (position,) = play.restart()
    assert (position.offset, position.line) == (len(LINES), 401)
    play.append(b"back\n")
    play.poll()
    assert [i for i in play.told if isinstance(i, Begin)][1] == Begin(0, len(LINES), 401, len(LINES) + 10)
    assert play.got == {0: LINES + b"Traceback\n"}


def test_p19_of_a_very_long_line_little_is_kept(play: Play) -> None:
    play.append(b"x" * 3_000_000)
    play.poll()
    assert play.follower.current is not None
    s = play.follower.current.state
    assert (len(s.partial), len(s.guard.last), s.record_at) == (reading.PARTIAL_BYTES, GUARD_BYTES, 0)


def test_p29_a_short_size_alone_is_no_truncation(play: Play) -> None:
    """The attributes lag, the bytes are there."""
    play.append(LINES)
    play.poll()
    real = play.world.stat
    play.world.stat = lambda h: reading.replace(real(h), size=100)  # type: ignore[method-assign]
    play.append(b"more\n")
    play.poll()
    assert play.got == {0: LINES + b"more\n"}


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EACCES, errno.ENOTCONN, errno.ETIMEDOUT])
def test_p31_p32_an_error_is_told_tried_again_ever_less_often_and_ends(code: int, play: Play) -> None:
    play.append(LINES)
    play.poll()
    tries = []

    def fail(call: str) -> None:
        if call == "open":
            tries.append(play.now // 1_000_000)
            raise OSError(code, errno.errorcode[code])

    play.world.fault = fail
    play.append(b"more\n")
    for _ in range(300):
        play.follower.relax()
        play.poll()
    pauses = [b - a for a, b in pairwise(tries)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 32]
    assert set(pauses[6:]) == {60}
    assert play.troubles == [None, errno.errorcode[code]]
    play.world.fault = lambda call: None
    play.poll(61)
    assert play.troubles[-1] is None
    assert play.got == {0: LINES + b"more\n"}


def test_p37_a_log_that_may_not_be_read_is_blind_not_absent(play: Play) -> None:
    play.append(LINES)
    play.world.fault = failing("open", errno.EACCES)
    play.poll()
    assert play.told == [Begin(0, 0, 1, 0), body.Trouble(0, "Permission denied")]
    play.world.fault = lambda call: None
    play.poll(61)
    assert play.got == {0: LINES}


def test_a_missing_log_is_no_stream_yet(play: Play) -> None:
    play.poll()
    assert play.told == []
    assert play.follower.trouble == "No such file or directory"


def test_a_file_of_another_user_is_not_read() -> None:
    play = Play(owner=4711)
    play.append(LINES)
    play.poll()
    assert play.troubles == ["belongs to another user"]
    assert play.got == {0: b""}
    assert play.world.open_handles == 0


def test_a_cut_behind_what_was_read_is_a_gap(play: Play) -> None:
    play.quantum = 1000
    play.append(LINES)
    for item in play.follower.poll(play.now, 1000).items:
        play.take(item)
    play.world.truncate(b"log", 5000)
    play.poll()
    assert play.gaps == [body.SHRUNK.format(len(LINES) - 5000)]


def test_an_end_without_reading_all_is_a_loss(play: Play) -> None:
    play.append(LINES)
    play.poll()
    play.world.truncate(b"log", len(LINES) + 10)
    play.poll()
    (end,) = play.follower.end()
    assert end == body.End(0, body.LEFT.format(len(LINES)), True)
    assert play.world.open_handles == 0
