"""NULs at the end of a log that was cut meanwhile: pit 17 where a file is not what it was."""

from __future__ import annotations

from tests.tail.conftest import LINES, Play

from tailmodel import Memory


def test_p17_a_file_that_shrank_to_other_nuls_is_waited_for_anew() -> None:
    """Nothing of it was handed over, so only its size tells that these are not the NULs of before."""
    play = Play()
    play.world.create(b"log")
    play.world.truncate(b"log", 9000)
    play.poll()
    play.poll(20)
    play.world.truncate(b"log", 40)
    play.poll(20)
    assert play.got[0] == b""
    play.world.write(b"log", 0, LINES)
    play.poll()
    assert play.got == {0: LINES}


def test_p17_nuls_accepted_before_a_truncation_excuse_none_behind_it() -> None:
    """Data behind a run of NULs prove it; the file is emptied before the run is handed over."""
    play = Play(Memory(holes=False))
    play.world.create(b"log")
    play.world.write(b"log", 2500, LINES)
    play.quantum = 1000
    while not play.follower.bodies or not play.follower.bodies[0].state.accept_to:
        for item in play.follower.poll(play.now, play.quantum).items:
            play.take(item)
    assert play.got[0] == b""
    play.world.truncate(b"log", 0)
    play.poll()
    play.world.truncate(b"log", 900)
    play.poll()
    assert play.got[0] == b""
    play.world.write(b"log", 0, LINES)
    play.poll()
    assert play.got[0] == LINES
