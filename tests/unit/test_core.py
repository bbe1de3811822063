from tests.conftest import Kit, replay, proven, LANGUAGE
def test_x(language: Kit) -> None:
    assert proven(LANGUAGE) == []
    r = replay(language, ["step=1/9 time=1", "step=2/9", "ROOT", "EXIT"])
    print(r.only)
    r = replay(language, b"step=1/9 time=1\nstep=2/9\nROOT")
    print(r.only.last_line, r.effects)
