"""The folder people put letters into: what is taken, from whom, and what hostile files do (nothing)."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest

from defib.adapters.act import spool
from defib.adapters.act.spool import AT_ONCE, BAD, DONE, LETTER_MAX, Spool

NOBODY = pwd.getpwnam("nobody")
root_only = pytest.mark.usefixtures("root")


@pytest.fixture
def inbox(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "in"))


def put(inbox: Spool, name: str, text: str = '{"a": "b"}', mode: int = 0o600) -> Path:
    path = Path(inbox.folder) / name
    path.write_text(text)
    path.chmod(mode)
    return path


def fault(inbox: Spool) -> str:
    (letter,) = inbox.take()
    assert letter.said == {} or not letter.fault
    return letter.fault


def test_a_letter_is_taken_once_with_its_owner(inbox: Spool) -> None:
    name = spool.post(inbox.folder, {"what": "approve"})
    (letter,) = inbox.take()
    assert (letter.name, letter.uid, letter.said, letter.fault) == (name, os.geteuid(), {"what": "approve"}, "")
    assert letter.who == pwd.getpwuid(os.geteuid()).pw_name
    assert inbox.settle(letter)
    assert inbox.take() == []
    (kept,) = (Path(inbox.folder) / DONE).iterdir()
    assert kept.name.endswith(name)


def test_a_bad_one_is_kept_apart_with_the_reason(inbox: Spool) -> None:
    put(inbox, "x.json", "{")
    (letter,) = inbox.take()
    assert letter.fault.startswith("no JSON: ")
    assert inbox.settle(letter, letter.fault)
    kept = sorted((Path(inbox.folder) / BAD).iterdir())
    assert [p.suffix for p in kept] == [".json", ".why"]
    assert kept[1].read_text().startswith("no JSON: ")


def test_half_written_letters_wait(inbox: Spool) -> None:
    """Whoever writes begins the name with a dot and renames when done."""
    half = put(inbox, ".x.json", '{"a": ')
    assert inbox.take() == []
    half.write_text('{"a": "b"}')
    half.rename(Path(inbox.folder) / "x.json")
    assert fault(inbox) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no JSON"), ('{"a": ', "no JSON"), ("[1]", "no JSON object"), ("null", "no JSON object"), ("\x00" * 64, "no JSON"),
     (json.dumps({"a": "x" * LETTER_MAX}), "larger than"), ("[" * 5000, "no JSON")],
    ids=["empty", "cut-off", "list", "null", "zeros", "large", "deep"],
)  # fmt: skip
def test_what_is_no_small_json_object_is_bad(inbox: Spool, text: str, said: str) -> None:
    put(inbox, "x.json", text)
    assert fault(inbox).startswith(said)


def test_a_file_that_is_larger_than_memory_is_not_read(inbox: Spool) -> None:
    with (Path(inbox.folder) / "big").open("wb") as f:
        f.truncate(1 << 40)
    os.chmod(Path(inbox.folder) / "big", 0o600)
    assert fault(inbox).startswith("larger than")


def test_links_pipes_folders_and_second_names_are_no_letters(inbox: Spool, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"a": "b"}')
    folder = Path(inbox.folder)
    (folder / "link").symlink_to(secret)
    assert "cannot be opened" in fault(inbox)
    (folder / "link").unlink()
    os.link(secret, folder / "second")
    assert "more than one name" in fault(inbox)
    (folder / "second").unlink()
    os.mkfifo(folder / "pipe", 0o600)
    assert fault(inbox) == "no regular file"
    (folder / "pipe").unlink()
    (folder / "sub").mkdir()
    assert fault(inbox) == "no regular file"


def test_a_file_that_others_may_change_has_no_author(inbox: Spool) -> None:
    put(inbox, "x", mode=0o622)
    assert fault(inbox) == "others may write to it"


@root_only
def test_only_members_of_the_group_may_write(tmp_path: Path) -> None:
    closed = Spool(str(tmp_path / "closed"))
    os.chown(put(closed, "x"), NOBODY.pw_uid, -1)
    assert fault(closed) == "nobody may not write here"
    opened = Spool(str(tmp_path / "open"), group=NOBODY.pw_gid)
    os.chown(put(opened, "x"), NOBODY.pw_uid, -1)
    assert fault(opened) == ""
    assert opened.take()[0].who == "nobody"
    assert os.stat(opened.folder).st_mode & 0o7777 == 0o1730
    strange = Spool(str(tmp_path / "strange"), group=NOBODY.pw_gid)
    os.chown(put(strange, "x"), 3_999_999, -1)
    assert fault(strange) == "user 3999999 may not write here"


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J.json", "$(id)", "-rf", "é", "x" * 255, "a;b'c\""])
def test_hostile_names_are_names(inbox: Spool, name: str) -> None:
    put(inbox, name)
    (letter,) = inbox.take()
    assert (letter.name, letter.fault) == (name, "")
    assert inbox.settle(letter, "as a test")
    assert inbox.take() == []
    assert len(list((Path(inbox.folder) / BAD).iterdir())) == 2


def test_a_name_that_is_no_text_is_dealt_with(inbox: Spool) -> None:
    path = os.fsencode(inbox.folder) + b"/\xff\xfe"
    with open(path, "wb") as f:
        f.write(b"{}")
    os.chmod(path, 0o600)
    (letter,) = inbox.take()
    assert inbox.settle(letter, "bad")
    assert inbox.take() == []


def test_a_flood_is_taken_piece_by_piece(inbox: Spool) -> None:
    for i in range(AT_ONCE + 5):
        put(inbox, f"{i:04}")
    first = inbox.take()
    assert len(first) == AT_ONCE
    assert all(inbox.settle(x) for x in first)
    assert len(inbox.take()) == 5


def test_a_letter_that_cannot_be_moved_is_not_taken(inbox: Spool) -> None:
    put(inbox, "x")
    (letter,) = inbox.take()
    (Path(inbox.folder) / "x").unlink()
    assert not inbox.settle(letter), "it would be taken again, or was taken by somebody else"
