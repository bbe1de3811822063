"""Rule folders and the cache beside them: used when nothing changed, never trusted, never needed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from defib.adapters import rulefiles
from defib.engine import proof, rulecheck, scan
from defib.engine.words import RuleError

FAMILY = """family: mine
about: Rules of a site of its own.
signatures:
  - id: mine.boom
    title: The thing went boom
    pattern: '{pattern}'
    role: root
    class: user-code
    domain: user
    hits: ['MINE WENT BOOM']
    misses: ['mine went well']
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A rulebook of one family in place of the shipped one, with an empty cache: compiles in a moment."""
    ours = tmp_path / "ours"
    (ours / "signatures").mkdir(parents=True)
    shutil.copy(rulefiles.built_in() / "classes.yaml", ours)
    for name in ("data", "more"):
        (ours / "signatures" / f"{name}.yaml").write_text(
            FAMILY.format(pattern="MINE WENT BOOM").replace("mine", name).replace("MINE", name.upper())
        )
    monkeypatch.setattr(rulefiles, "BUILT_IN", ours)
    monkeypatch.setenv("DEFIB_CACHE", str(tmp_path / "cache"))
    return ours


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "site rules"
    folder.mkdir()
    (folder / "mine.yaml").write_text(FAMILY.format(pattern="MINE WENT BOOM"))
    return folder


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every compilation."""
    made: list[int] = []
    real = scan.compile_databases

    def counting(*a: Any) -> tuple[bytes, bytes]:
        made.append(1)
        return real(*a)

    monkeypatch.setattr(scan, "compile_databases", counting)
    return made


def slots(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").glob("*"))


def test_the_shipped_rules_load(loaded: rulefiles.LoadedRules) -> None:
    assert len(loaded.book.rules) > 500
    assert all(p.startswith("rules/") for p in {r.path for r in loaded.book.rules})
    assert loaded.databases.bare == b"", "every shipped pattern holds a literal to look for first"
    assert all(len(d) > 10_000 for d in loaded.databases._replace(digits=b"") if d)


def test_the_cache_is_used(small: Path, compiled: list[int], tmp_path: Path) -> None:
    first = rulefiles.load()
    assert len(slots(tmp_path)) == len(compiled) == 1
    again = rulefiles.load()
    assert len(compiled) == 1
    assert again == first


def test_use_cache_off_neither_reads_nor_writes(small: Path, compiled: list[int], tmp_path: Path) -> None:
    rulefiles.load(use_cache=False)
    assert slots(tmp_path) == []
    rulefiles.load()
    rulefiles.load(use_cache=False)
    assert len(compiled) == 3


@pytest.mark.parametrize("what", ["changed", "renamed", "added", "removed"])
def test_the_cache_is_rebuilt_when_rules_change(what: str, small: Path, compiled: list[int], tmp_path: Path) -> None:
    rulefiles.load()
    path = small / "signatures" / "data.yaml"
    if what == "changed":
        path.write_text(path.read_text() + "\n# a comment\n")
    elif what == "renamed":
        path.rename(path.with_name("datas.yaml"))
    elif what == "added":
        (small / "signatures" / "mine.yaml").write_text(FAMILY.format(pattern="MINE WENT BOOM"))
    else:
        path.unlink()
    rulefiles.load()
    assert len(compiled) == len(slots(tmp_path)) == 2


def test_times_of_files_do_not_matter(small: Path, compiled: list[int]) -> None:
    rulefiles.load()
    for path in small.rglob("*.yaml"):
        os.utime(path, (1, 1))
    rulefiles.load()
    assert len(compiled) == 1


@pytest.mark.parametrize("keep", [0, 1, 63, 64, 65, 1000, 0.5, -1])
def test_a_shortened_entry_is_ignored_and_replaced(
    keep: float, small: Path, compiled: list[int], tmp_path: Path
) -> None:
    good = rulefiles.load()
    (slot,) = slots(tmp_path)
    raw = slot.read_bytes()
    slot.write_bytes(raw[: int(len(raw) * keep) if isinstance(keep, float) else keep])
    assert rulefiles.load() == good
    assert len(compiled) == 2
    assert slot.read_bytes()[:64] == raw[:64]


@pytest.mark.parametrize("at", [0, 70, 5000, -1])
def test_a_flipped_bit_is_noticed(at: int, small: Path, compiled: list[int], tmp_path: Path) -> None:
    good = rulefiles.load()
    (slot,) = slots(tmp_path)
    raw = bytearray(slot.read_bytes())
    raw[at] ^= 1
    slot.write_bytes(bytes(raw))
    assert rulefiles.load() == good
    assert len(compiled) == 2


def test_an_entry_that_is_no_file_is_ignored(small: Path, compiled: list[int], tmp_path: Path) -> None:
    rulefiles.load()
    (slot,) = slots(tmp_path)
    slot.unlink()
    slot.mkdir()
    rulefiles.load()
    assert len(compiled) == 2


@pytest.mark.parametrize("where", ["/proc/nowhere", "file"])
def test_a_cache_that_cannot_be_written_only_costs_time(
    where: str, small: Path, compiled: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("DEFIB_CACHE", where if where.startswith("/") else str(tmp_path / where / "below"))
    rulefiles.load()
    rulefiles.load()
    assert len(compiled) == 2


def test_a_full_disk_leaves_no_rest_behind(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    rulefiles.load()
    assert slots(tmp_path) == []


def test_the_cache_goes_where_xdg_says(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEFIB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    rulefiles.load()
    assert len(list((tmp_path / "xdg" / "defib").iterdir())) == 1


def test_a_folder_of_ones_own_stands_beside_ours(small: Path, mine: Path) -> None:
    book = rulefiles.load([mine]).book
    assert book.by_id["mine.boom"].path == str(mine / "mine.yaml")
    assert len(book.rules) == len(rulefiles.load().book.rules) + 1
    assert {r.id for r in rulefiles.load([mine / "mine.yaml"]).book.rules} == {r.id for r in book.rules}


def test_faults_come_with_the_path_a_person_gave(small: Path, mine: Path) -> None:
    (mine / "mine.yaml").write_text(FAMILY.format(pattern="(?=BOOM)").replace("role: root", "rule: root"))
    with pytest.raises(RuleError) as e:
        rulefiles.load([mine])
    assert all(p.path == str(mine / "mine.yaml") for p in e.value.problems)
    assert any(p.line == 7 and "rule" in p.message for p in e.value.problems), [str(p) for p in e.value.problems]


def test_an_example_that_does_not_hold_is_a_fault(small: Path, mine: Path, tmp_path: Path) -> None:
    (mine / "mine.yaml").write_text(FAMILY.format(pattern="SOMETHING ELSE"))
    with pytest.raises(RuleError) as e:
        rulefiles.load([mine])
    (problem,) = e.value.problems
    assert (problem.path, problem.rule) == (str(mine / "mine.yaml"), "mine.boom")
    assert slots(tmp_path) == [], "a rulebook with a failing example is not cached"


def test_an_id_of_ours_cannot_be_taken(small: Path, mine: Path) -> None:
    shutil.copy(small / "signatures" / "data.yaml", mine / "data.yaml")
    with pytest.raises(RuleError) as e:
        rulefiles.load([mine])
    assert any(p.path == str(mine / "data.yaml") for p in e.value.problems)


def test_what_cannot_be_read_is_told(small: Path, mine: Path, tmp_path: Path) -> None:
    (mine / "latin.yaml").write_bytes(b"family: caf\xe9\n")
    (mine / "gone.yml").symlink_to(tmp_path / "nowhere")
    (mine / "folder.yaml").mkdir()
    with pytest.raises(RuleError) as e:
        rulefiles.load([mine, tmp_path / "missing"])
    told = {p.path: p.message for p in e.value.problems}
    assert set(told) == {str(mine / n) for n in ("latin.yaml", "gone.yml", "folder.yaml")} | {str(tmp_path / "missing")}


def test_a_folder_whose_name_is_no_text(small: Path, mine: Path, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), b"r\xff")))
    shutil.copytree(mine, odd)
    assert "mine.boom" in rulefiles.load([odd]).book.by_id


def test_the_cached_book_is_the_checked_book(small: Path) -> None:
    checked = rulecheck.load(rulefiles.read_folders([small]))
    rulefiles.load()
    cached = rulefiles.load().book
    assert cached.hash == checked.hash
    assert [r.id for r in cached.rules] == [r.id for r in checked.rules]
    assert proof.prove(cached, rulefiles.load().databases) == []
