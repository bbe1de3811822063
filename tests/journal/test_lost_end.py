"""A journal that lost its last records after the history had taken them in: the history is recognised as astray, never counted on silently."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from defib.adapters import daemon
from defib.adapters.journal import snapshot
from defib.adapters.journal.resume import resume
from defib.adapters.journal.segments import chain_of, read, segments
from defib.adapters.journal.writer import Journal
from defib.adapters.wire import Fan
from defib.engine.words import StoreError
from killcase import Quiet, World, differences, keeping, tables


def cut(journal: Path, segment: str, at: int) -> None:
    """The journal ends at this byte of this segment, as a crash of the file system leaves it."""
    for s in segments(str(journal)):
        if s.path > segment:
            os.unlink(s.path)
    os.truncate(segment, at)


def begun(folder: Path, loaded: Any) -> list[str]:
    """Start over what the folder holds, end in order; what was said loudly."""
    hooks = Quiet()
    fan = Fan([], lambda a, paths: None)
    daemon.open_station(str(folder / "state"), loaded, fan, hooks, World(folder), keeping()).close()
    return hooks.alarms


def places(life: Path) -> list[tuple[int, str, int, int]]:
    """(number, segment, where its frame begins, where it ends) of every record."""
    journal = str(life / "state" / "journal")
    every = segments(journal)
    out = []
    for r in read(journal):
        segment = max((s for s in every if s.first <= r.seq), key=lambda s: s.first)
        out.append((r.seq, segment.path, r.at, r.end))
    return out


@pytest.fixture(scope="module")
def applied(life: Path) -> int:
    (row,) = [r for r in _meta(life / "state" / "history.duckdb") if r[0] == "applied"]
    return int(row[1])


def _meta(db: Path) -> list[tuple[str, str]]:
    import duckdb

    con = duckdb.connect(str(db), read_only=True)
    try:
        return con.execute("SELECT key, value FROM meta").fetchall()
    finally:
        con.close()


@pytest.mark.parametrize("where", ["boundary", "middle"])
def test_a_history_ahead_of_its_journal_is_made_anew(
    where: str, life: Path, loaded: Any, applied: int, tmp_path: Path
) -> None:
    """Cut anywhere: either the history's last record is still there and nothing is said, or it is said and the history is the journal's again."""
    every = places(life)
    assert every[-1][0] >= applied > 20
    for seq, segment, at, end in every[2:]:  # the first two name the journal: without them there is none
        folder = tmp_path / f"{where}-{seq}"
        shutil.copytree(life, folder)
        state = folder / "state"
        here = segment.replace(str(life), str(folder))
        cut(state / "journal", here, at if where == "boundary" else (at + end) // 2)
        alarms = begun(folder, loaded)
        lost = [a for a in alarms if "records the journal has lost" in a]
        assert bool(lost) == (seq <= applied), (seq, alarms)
        assert bool(list(state.glob("history.duckdb.aside-*"))) == bool(lost)
        if lost and seq % 5 == 0:
            daemon.rebuild(str(state), str(folder / "anew.duckdb"), loaded)
            assert list(differences(tables(folder / "anew.duckdb"), tables(state / "history.duckdb"))) == []
        meta = dict(_meta(state / "history.duckdb"))
        known = chain_of(str(state / "journal"), int(meta["applied"])) if meta["applied"] != "0" else b""
        assert known is not None
        assert meta["chain"] == known.hex(), "the history is fenced by the record it ends with"
        if seq % 5 == 0:
            assert begun(folder, loaded) == [], "the next start has nothing to say"
        shutil.rmtree(folder)


def test_a_lost_end_whose_numbers_were_given_again_is_recognised(life: Path, loaded: Any, tmp_path: Path) -> None:
    """One record lost and two written at the next opening: by numbers alone the journal is ahead."""
    folder = tmp_path / "life"
    shutil.copytree(life, folder)
    db = folder / "state" / "history.duckdb"
    last = int(dict(_meta(db))["applied"])
    (place,) = [p for p in places(folder) if p[0] == last]
    cut(folder / "state" / "journal", place[1], place[2])
    journal = Journal(str(folder / "state" / "journal"))
    for _ in range(3):
        journal.append("word", b"of something else")
    journal.close()
    assert journal.seq > last
    alarms = begun(folder, loaded)
    assert any(f"record {last} is another one now" in a for a in alarms)


def test_a_snapshot_of_a_lost_end_is_passed_over(life: Path, loaded: Any, tmp_path: Path) -> None:
    """Also when the journal has long grown past its number."""
    folder = tmp_path / "life"
    shutil.copytree(life, folder)
    journal = folder / "state" / "journal"
    kept = [seq for seq, _ in snapshot.found(str(journal))]
    assert len(kept) == 2
    (place,) = [p for p in places(folder) if p[0] == kept[0]]
    cut(journal, place[1], place[2])
    again = Journal(str(journal))
    while again.seq < kept[0]:
        again.append("word", b"of something else")
    again.close()
    seeded: list[int] = []
    r = resume(
        str(journal), loaded.book, again.identity, 10**9, lambda r, board: seeded.append(r.seq), lambda *of: None
    )
    assert seeded == [kept[1]], "the older one is of records that are there"
    assert r.seq < kept[0]


def test_a_journal_that_lost_everything_is_not_taken_for_the_history_s(life: Path, loaded: Any, tmp_path: Path) -> None:
    """Not even its name is left: nothing is made anew from nothing; a person is told."""
    folder = tmp_path / "life"
    shutil.copytree(life, folder)
    _, segment, _, end = places(folder)[0]
    cut(folder / "state" / "journal", segment, end - 1)
    with pytest.raises(StoreError, match="not made from the journal beside it"):
        begun(folder, loaded)
    assert tables(folder / "state" / "history.duckdb") == tables(life / "state" / "history.duckdb")
