"""The way back from a journal: the same state by every road, and roads that are closed are passed over."""

from __future__ import annotations

import dataclasses
import io
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from defib.adapters import daemon
from defib.adapters.board import Board
from defib.adapters.journal import snapshot
from defib.adapters.journal.resume import Resumed, fold
from defib.adapters.journal.segments import read, segments
from defib.engine.core import Effect, Event, HealthChanged, JobJudged, Observed, State
from defib.engine.words import StoreError
from killcase import differences, tables


class Taken:
    """What a fold hands on: the judged jobs and the changes of health, and a board."""

    def __init__(self, board: Board | None = None, stop: int | None = None) -> None:
        self.board = board or Board()
        self.stop = stop
        self.effects: list[tuple[int, str]] = []

    def __call__(
        self, seq: int, events: Sequence[Event], effects: Sequence[Effect], state: State, chain: bytes
    ) -> None:
        self.board.take(events, effects, state)
        self.effects += [(seq, repr(e)) for e in effects if isinstance(e, JobJudged | HealthChanged)]
        if seq == self.stop:
            raise InterruptedError


def folded(journal: Path, book: Any, stop: int | None = None) -> tuple[Resumed, Taken]:
    r, taken = Resumed(State(book)), Taken(stop=stop)
    try:
        fold(str(journal), r, taken)
    except InterruptedError:
        assert stop is not None
    return r, taken


def test_a_snapshot_goes_on_like_the_whole_journal(life: Path, loaded: Any, tmp_path: Path) -> None:
    """Taken after any commit, with jobs in every state: what follows is the same, down to the last effect."""
    journal = life / "state" / "journal"
    _, whole = folded(journal, loaded.book)
    numbers = [r.seq for r in read(str(journal)) if r.kind == "events"]
    for seq in numbers[2::5]:
        r, taken = folded(journal, loaded.book, stop=seq)
        snapshot.save(str(tmp_path), seq, (r, taken.board), loaded.book, "id")
        found = snapshot.load(str(tmp_path), seq, loaded.book, "id")
        assert found is not None
        again, board = found[1]
        assert again.state.book is loaded.book
        later = Taken(board)
        fold(str(journal), again, later)
        assert taken.effects + later.effects == whole.effects
        assert later.board.jobs == whole.board.jobs


def test_a_snapshot_with_anything_wrong_is_passed_over(life: Path, loaded: Any, tmp_path: Path) -> None:
    r, taken = folded(life / "state" / "journal", loaded.book)
    value = (r, taken.board)
    snapshot.save(str(tmp_path), 7, value, loaded.book, "id")
    path = Path(snapshot.found(str(tmp_path))[0][1])
    raw = path.read_bytes()
    assert snapshot.load(str(tmp_path), 7, loaded.book, "id") is not None
    assert snapshot.load(str(tmp_path), 6, loaded.book, "id") is None, "it is of a later record"
    assert snapshot.load(str(tmp_path), 7, loaded.book, "another") is None
    assert snapshot.load(str(tmp_path), 7, dataclasses.replace(loaded.book, hash="other"), "id") is None
    for at in (0, 20, 60, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:at] + bytes((raw[at] ^ 1,)) + raw[at + 1 :])
        assert snapshot.load(str(tmp_path), 7, loaded.book, "id") is None
    path.write_bytes(raw[: len(raw) // 2])
    assert snapshot.load(str(tmp_path), 7, loaded.book, "id") is None


def test_a_snapshot_makes_nothing_but_the_engines_own_things(loaded: Any) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            import os

            return os.getcwd, ()

    raw = io.BytesIO(pickle.dumps(Evil()))
    with pytest.raises(pickle.UnpicklingError, match="has no place"):
        snapshot._Loader(raw, loaded.book).load()


def without(book: Any, rule: str, form: str) -> Any:
    return dataclasses.replace(
        book,
        hash="fewer",
        rules=tuple(r for r in book.rules if r.id != rule),
        formats=tuple(f for f in book.formats if f.id != form),
    )


def test_events_of_rules_that_are_gone_are_folded_without_them(life: Path, loaded: Any) -> None:
    """A rule or a format that was deleted since claims nothing any more; all the rest is told as before."""
    journal = life / "state" / "journal"
    used = {s for r in read(str(journal)) if r.kind == "events" for s in _rules(r.payload)}
    assert "cuda.out-of-memory" in used
    r, taken = folded(journal, without(loaded.book, "cuda.out-of-memory", "megatron-lm.iteration"))
    assert not r.state.jobs, "every job was judged all the same"
    assert sum("JobJudged" in e for _, e in taken.effects) == 6
    assert not any("cuda-oom" in e for _, e in taken.effects if "JobJudged" in e)


def _rules(payload: bytes) -> set[str]:
    from defib.adapters.journal.codec import decode

    return {
        name
        for e in decode(payload).events
        if isinstance(e, Observed)
        for name in e.observation.signals.column("rule").to_pylist()
    }


def test_a_journal_without_its_oldest_segments_still_folds(life: Path, loaded: Any, tmp_path: Path) -> None:
    """Events of streams whose beginning was deleted are passed over."""
    for keep in range(1, len(segments(str(life / "state" / "journal")))):
        journal = tmp_path / str(keep)
        shutil.copytree(life / "state" / "journal", journal)
        for s in segments(str(journal))[:keep]:
            Path(s.path).unlink()
        r, _ = folded(journal, loaded.book)
        assert not r.state.jobs


def test_a_history_made_anew_is_the_same(life: Path, loaded: Any, tmp_path: Path) -> None:
    db = tmp_path / "new.duckdb"
    done = daemon.rebuild(str(life / "state"), str(db), loaded)
    assert (done.jobs, done.running) == (6, 0)
    assert list(differences(tables(life / "state" / "history.duckdb"), tables(db))) == []
    with pytest.raises(StoreError, match="is there already"):
        daemon.rebuild(str(life / "state"), str(db), loaded)


def test_a_damaged_journal_is_salvaged_and_the_watch_goes_on(life: Path, loaded: Any, tmp_path: Path) -> None:
    """Refused first, with what to do; then what stands before the damage is kept, and the next start makes the history from it."""
    from killcase import Counter, play

    shutil.copytree(life, tmp_path / "life")
    state = tmp_path / "life" / "state"
    hurt = Path(segments(str(state / "journal"))[2].path)
    raw = bytearray(hurt.read_bytes())
    raw[len(raw) // 2] ^= 255
    hurt.write_bytes(raw)
    with pytest.raises(StoreError, match="--salvage"):
        daemon.rebuild(str(state), str(tmp_path / "x.duckdb"), loaded)
    assert not (tmp_path / "x.duckdb").exists()
    done = daemon.rebuild(str(state), str(tmp_path / "y.duckdb"), loaded, salvage=True)
    assert done.notes
    assert done.seq > 0
    alarms = play(tmp_path / "life", loaded, Counter())
    assert any("journal has lost" in text for text in alarms)
    jobs = "\n".join(tables(state / "history.duckdb")["attempts"])
    assert all(f"'{n}#0'" in jobs for n in range(1, 7))
    assert list(state.glob("history.duckdb.aside-*"))
