"""The one writer: numbers, epochs, segments, and everything a disk can do to it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from defib.adapters.journal import place
from defib.adapters.journal.segments import DamageError, read, segments
from defib.adapters.journal.writer import Journal, salvage
from defib.adapters.room import FullError
from defib.engine.words import StoreError

SMALL = {"segment_bytes": 600, "ballast_bytes": 4096}


def told(folder: Path, after: int = 0) -> list[tuple[int, bytes]]:
    return [(r.seq, r.payload) for r in read(str(folder), after) if not r.kind.startswith("journal.")]


def fill(folder: Path, first: int, last: int) -> list[tuple[int, bytes]]:
    """Records synced one by one, as (number, payload)."""
    journal = Journal(str(folder), **SMALL)
    out = []
    for n in range(first, last + 1):
        out.append((journal.append("word", b"payload %d" % n), b"payload %d" % n))
        journal.sync()
    journal.close()
    return out


def test_records_go_over_segments_and_openings(tmp_path: Path) -> None:
    said = fill(tmp_path / "j", 1, 40) + fill(tmp_path / "j", 41, 60)
    assert told(tmp_path / "j") == said
    numbers = [r.seq for r in read(str(tmp_path / "j"))]
    assert numbers == list(range(1, len(numbers) + 1)), "no number is left out, the journal's own records included"
    assert len(segments(str(tmp_path / "j"))) > 3
    assert told(tmp_path / "j", after=said[50][0]) == said[51:]


def test_a_closed_segment_tells_the_digest_of_its_bytes(tmp_path: Path) -> None:
    import hashlib

    import orjson

    fill(tmp_path / "j", 1, 40)
    first = segments(str(tmp_path / "j"))[0]
    sealed = next(r for r in read(str(tmp_path / "j")) if r.kind == "journal.sealed")
    raw = Path(first.path).read_bytes()
    assert sealed.end == len(raw)
    values = orjson.loads(sealed.payload)
    assert values["blake2b"] == hashlib.blake2b(raw[: sealed.at], digest_size=32).hexdigest()


def test_every_writer_has_a_greater_epoch_and_nobody_else(tmp_path: Path) -> None:
    one = Journal(str(tmp_path / "j"), **SMALL)
    with pytest.raises(StoreError, match=f"process {os.getpid()}"):
        Journal(str(tmp_path / "j"), **SMALL)
    one.close()
    two = Journal(str(tmp_path / "j"), **SMALL)
    two.close()
    (tmp_path / "j" / "lock").write_text("nonsense")  # the records know the epoch too
    three = Journal(str(tmp_path / "j"), **SMALL)
    three.close()
    assert [one.epoch, two.epoch, three.epoch] == [1, 2, 3]
    assert one.identity == two.identity == three.identity


def test_what_was_cut_off_is_put_aside_and_told(tmp_path: Path) -> None:
    said = fill(tmp_path / "j", 1, 5)
    last = segments(str(tmp_path / "j"))[-1].path
    with open(last, "ab") as f:
        f.write(b"dfj1 half a record")
    journal = Journal(str(tmp_path / "j"), **SMALL)
    journal.close()
    assert len(journal.told) == 1
    assert "18 bytes" in journal.told[0]
    assert [p.read_bytes() for p in (tmp_path / "j").glob("torn-*")] == [b"dfj1 half a record"]
    assert told(tmp_path / "j") == said
    assert any(r.kind == "journal.torn" for r in read(str(tmp_path / "j")))


def test_damage_in_the_middle_refuses_until_it_is_salvaged(tmp_path: Path) -> None:
    said = fill(tmp_path / "j", 1, 40)
    hurt = segments(str(tmp_path / "j"))[1]
    raw = bytearray(Path(hurt.path).read_bytes())
    raw[len(raw) // 2] ^= 1
    Path(hurt.path).write_bytes(raw)
    found: list[tuple[int, bytes]] = []
    with pytest.raises(DamageError, match="defib rebuild") as e:
        found.extend((r.seq, r.payload) for r in read(str(tmp_path / "j")) if r.kind == "word")
    assert found == said[: len(found)]
    assert found[-1][0] <= e.value.last
    kept = salvage(str(tmp_path / "j"), e.value)
    assert all(os.path.exists(path) for path in kept)
    assert told(tmp_path / "j") == found
    fill(tmp_path / "j", 41, 42)
    assert [p for _, p in told(tmp_path / "j")] == [*(p for _, p in found), b"payload 41", b"payload 42"]


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    fill(tmp_path / "j", 1, 40)
    os.unlink(segments(str(tmp_path / "j"))[1].path)
    with pytest.raises(DamageError, match="are missing"):
        told(tmp_path / "j")


def opened(folder: Path) -> DamageError | None:
    """Open and close; the damage that refuses it."""
    try:
        Journal(str(folder), **SMALL).close()
    except DamageError as e:
        return e
    return None


def test_any_cut_or_changed_byte_keeps_what_stands_before_it(tmp_path: Path) -> None:
    """A start never fails because of the end of a journal, and never drops an acknowledged record before a damage."""
    said = fill(tmp_path / "j", 1, 9)
    (segment,) = segments(str(tmp_path / "j"))[-1:]
    raw = Path(segment.path).read_bytes()
    before = [s for s in said if s[0] < segment.first]
    ends = {r.seq: r.end for r in read(str(tmp_path / "j"), segment.first - 1)}
    chance = Random(1)
    for _ in range(60):
        changed = bytearray(raw)
        at = chance.randrange(len(raw))
        if chance.random() < 0.5:
            del changed[at:]
        else:
            changed[at] ^= chance.randint(1, 255)
        Path(segment.path).write_bytes(changed)
        whole = before + [s for s in said if s[0] >= segment.first and ends[s[0]] <= at]
        damage = opened(tmp_path / "j")
        if damage is None:
            assert [s for s in told(tmp_path / "j") if s in said][: len(whole)] == whole
        else:
            assert damage.last >= max((s[0] for s in whole), default=0)
        for extra in segments(str(tmp_path / "j")):
            if extra.first > segment.first:
                os.unlink(extra.path)


def broken(monkeypatch: pytest.MonkeyPatch, name: str, code: int, when: Callable[[], bool], part: bool = False) -> None:
    real = getattr(os, name)

    def call(*args: Any) -> Any:
        if when():
            if part:
                real(args[0], bytes(args[1])[:7])
            raise OSError(code, os.strerror(code))
        return real(*args)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("name", ["write", "fdatasync"])
def test_a_full_disk_loses_nothing_and_is_waited_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(str(tmp_path / "j"), **SMALL)
    full = [False]
    broken(monkeypatch, name, errno.ENOSPC, lambda: full[0], part=name == "write")
    said = [(journal.append("word", b"one"), b"one")]
    journal.sync()
    full[0] = True
    said.append((journal.append("word", b"two"), b"two"))
    for _ in range(3):
        with pytest.raises(FullError):
            journal.sync()
    assert journal.durable == said[0][0]
    assert told(tmp_path / "j") == said[:1], "what was not acknowledged is not there, and nothing half of it"
    said.append((journal.append("word", b"three"), b"three"))
    full[0] = False
    journal.sync()
    journal.close()
    assert told(tmp_path / "j") == said


def test_a_full_disk_at_the_end_of_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment may grow beyond its size until there is room for the next; neither is left half."""
    journal = Journal(str(tmp_path / "j"), **SMALL)
    full = [True]
    broken(monkeypatch, "fsync", errno.ENOSPC, lambda: full[0])
    said = []
    for n in range(30):
        said.append((journal.append("word", b"payload %d" % n), b"payload %d" % n))
        journal.sync()
    assert len(segments(str(tmp_path / "j"))) == 1
    full[0] = False
    said.append((journal.append("word", b"last"), b"last"))
    journal.sync()
    assert len(segments(str(tmp_path / "j"))) == 2
    journal.close()
    assert told(tmp_path / "j") == said


def test_a_failed_fsync_is_never_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(str(tmp_path / "j"), **SMALL)
    bad = [True]
    broken(monkeypatch, "fdatasync", errno.EIO, lambda: bad[0])
    journal.append("word", b"one")
    with pytest.raises(StoreError, match="Input/output"):
        journal.sync()
    bad[0] = False
    with pytest.raises(StoreError, match="earlier write failed"):
        journal.sync()
    journal.close()
    assert told(tmp_path / "j") == []
    fill(tmp_path / "j", 1, 1)


def test_old_segments_go_and_the_journal_goes_on(tmp_path: Path) -> None:
    fill(tmp_path / "j", 1, 40)
    journal = Journal(str(tmp_path / "j"), **SMALL)
    size, first = journal.size, segments(str(tmp_path / "j"))[3].first
    assert journal.forget(first, 0) == 3
    assert journal.size < size
    assert journal.forget(10**9, 10**9) == 0, "nothing goes while it is small"
    journal.append("word", b"more")
    journal.close()
    assert [p for _, p in told(tmp_path / "j")][-1] == b"more"
    assert next(read(str(tmp_path / "j"))).seq == first
    assert any(r.kind == "journal.deleted" for r in read(str(tmp_path / "j")))


def test_state_is_refused_where_it_would_not_last(tmp_path: Path) -> None:
    for kind, name in ((0x6969, "NFS"), (0x0BD00BD0, "Lustre"), (0x65735546, "FUSE")):
        with pytest.raises(StoreError, match=f"is on {name}.*local disk"):
            Journal(str(tmp_path / "j"), file_system=kind)
    assert place.file_system(str(tmp_path)) not in (None, *place.NETWORK)
    os.chmod(tmp_path / "j", 0o750)
    with pytest.raises(StoreError, match="chmod 700"):
        Journal(str(tmp_path / "j"))
    os.chmod(tmp_path / "j", 0o700)
    (tmp_path / "link").symlink_to(tmp_path / "j")
    with pytest.raises(StoreError, match="symbolic links"):
        Journal(str(tmp_path / "link"))


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"not ours")
    fill(tmp_path / "j", 1, 2)
    os.unlink(tmp_path / "j" / "lock")
    (tmp_path / "j" / "lock").symlink_to(elsewhere)
    with pytest.raises(StoreError):
        Journal(str(tmp_path / "j"))
    assert elsewhere.read_bytes() == b"not ours"
