"""native: the helper in C finds what the binding finds, and is run only from where nobody else can write."""

from __future__ import annotations

import os
from pathlib import Path

import hyperscan as hs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import CLASSES, Kit, batch_of, kit
from tests.needs import lacking

from defib.adapters import native, rulefiles
from defib.engine import hits, match, plan, proof, scan
from defib.engine.finder import MULTILINE, ONCE
from defib.engine.library import BINDING, Gate, Library
from defib.engine.match import Matcher
from defib.engine.proof import one_line

RULES = {
    "classes.yaml": CLASSES,
    "signatures/s.yaml": r"""
        family: s
        about: a
        signatures:
          - {id: s.disk, title: t, pattern: 'DISK \d', role: root, class: user-code, unless: [RETRY], hits: [DISK 1], misses: [x]}
          - {id: s.bare, title: t, pattern: '[xyz]\d\d', role: root, class: user-code, hits: [x12], misses: [x]}
          - {id: s.calm, title: t, pattern: CALM, role: benign, unless: [REALLY], hits: [CALM], misses: [x]}
    """,
    "progress/f.yaml": r"""
        framework: f
        about: a
        formats:
          - {id: f.step, title: t, anchor: 'step [', pattern: 'step \[(?P<step>[0-9]+)', hits: ['step [3'], misses: [x]}
        banners:
          - {id: f.one, pattern: 'WELCOME to [0-9]', hits: ['WELCOME to 7'], misses: [x]}
          - {id: f.two, pattern: 'WELCOME from [A-Z]', hits: ['WELCOME from F'], misses: [x]}
    """,
}
LINES = [
    "DISK 1",
    "DISK 1 RETRY",
    "DISK",
    "a DISK 2 CALM",
    "CALM REALLY DISK 3",
    "x12",
    "WELCOME",
    "WELCOME to 7",
    "WELCOME from F",
    "step [4",
    "",
    "q" * 90,
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def system(cache: Path) -> Library:
    library = native.library(cache)
    if library is None:
        lacking("native", native.told(cache))
    return library


@pytest.fixture(scope="session")
def rules() -> Kit:
    return kit(RULES)


def found(k: Kit, library: Library, text: bytes) -> tuple[object, ...]:
    databases = k.databases if library is BINDING else scan.compile_databases(k.book, library=library)
    told = scan.Scanner(k.book, databases, library).scan(batch_of(text))
    matcher = Matcher(plan.roster(scan.plan(k.book)), databases, library)
    return (
        told.rule.tolist(),
        told.record.tolist(),
        told.anchors,
        told.banners,
        matcher.hits(text),
        matcher.tallies(text),
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=40))
@pytest.mark.parametrize("few", [0, 1 << 30])
def test_both_libraries_find_the_same(
    few: int, rules: Kit, system: Library, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    monkeypatch.setattr(match, "FEW", few)
    text = "".join(f"{line}\n" for line in lines).encode()
    assert found(rules, system, text) == found(rules, BINDING, text)


def test_every_shipped_example_holds_with_both(shipped: Kit, system: Library) -> None:
    databases = scan.compile_databases(shipped.book, library=system)
    assert proof.prove(shipped.book, databases, system) == []
    lines = [
        one_line(e.line) + b"\n" for r in (*shipped.book.rules, *shipped.book.formats) for e in (*r.hits, *r.misses)
    ]
    for text in (b"".join(lines), b"".join(line + b"quiet\n" * 40 for line in lines)):  # dense and sparse
        text = text.replace(b"\r", b"\n")
        one = hits.HitFinder(plan.roster(scan.plan(shipped.book)), databases, system).scan(batch_of(text))
        other = shipped.scanner().scan(batch_of(text))
        assert (one.rule.tolist(), one.record.tolist()) == (other.rule.tolist(), other.record.tolist())
        assert (one.anchors, one.banners) == (other.anchors, other.banners)


@pytest.fixture(params=["binding", "system"])
def library(request: pytest.FixtureRequest) -> Library:
    return BINDING if request.param == "binding" else request.getfixturevalue("system")


def test_what_a_library_promises(library: Library) -> None:
    db = library.load(library.compiled([(7, b"ab+", MULTILINE), (9, b"x", ONCE)]))
    ids, ends = db.scan(memoryview(b"-abb\nxx\n")[1:])
    assert sorted(zip(ends, ids, strict=True)) == [(2, 7), (3, 7), (5, 9)]
    placed = library.load(library.compiled([(7, b"ab+", MULTILINE | hs.HS_FLAG_SOM_LEFTMOST), (9, b"x", MULTILINE)]))
    spans = placed.spans(memoryview(b"-abb\nxx\n"))
    assert sorted(zip(*spans, strict=True)) == [(7, 1, 3), (7, 1, 4), (9, 0, 6), (9, 0, 7)]
    assert db.few(b"abb\n", 2) == [(2, 7), (3, 7)]
    assert db.few(b"abb\n", 1) is None
    assert db.scan(b"quiet\n")[0].tolist() == []
    with pytest.raises((ValueError, hs.error)):
        library.compiled([(0, b"(?=x)y", 0)])
    with pytest.raises((ValueError, hs.error)):
        library.load(b"no database")


def test_many_matches_and_records_in_any_order(system: Library) -> None:
    gate = system.load(system.compiled([(5, b"A", 0), (1, b"B", 0)]))
    patterns = system.load(system.compiled([(0, b"A.", MULTILINE), (1, b"z", MULTILINE)]))
    assert isinstance(gate, Gate)
    text = b"zAq\n" + b"z" * 9000 + b"\n" + b"Az\nB\n" * 500
    (ids, ends), literals = gate.gated(patterns, text, 5)
    assert literals == {1}
    places = set(zip(ids, ends, strict=True))
    assert {(0, 3), (1, 1)} <= places
    assert sum(n == 0 for n, _ in places) == 501
    assert all(text[end - 2 : end - 1] == b"A" for n, end in places if n == 0)
    assert (1, 5) not in places, "a record without a literal of the gate is not looked at"


def test_it_can_be_switched_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFIB_NATIVE", "off")
    assert native.library(cache) is None
    assert "DEFIB_NATIVE=off" in native.told(cache)


def test_no_compiler_is_no_fault(system: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.library(tmp_path / "new") is None
    assert native.told(tmp_path / "new") == "without the helper in C: there is no C compiler"


def test_a_failed_compilation_is_not_tried_again(
    system: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "collect.c"
    wrong.write_text("no C")
    monkeypatch.setattr(native, "SOURCE", wrong)
    cache = tmp_path / "cache"
    assert native.library(cache) is None
    (left,) = cache.iterdir()
    assert left.stat().st_size == 0
    monkeypatch.setattr(native, "_compile", lambda *_: pytest.fail("compiled again"))
    assert native.told(cache) == "without the helper in C: it could not be compiled or loaded"


@pytest.mark.parametrize("which", ["folder", "above", "file"])
def test_code_others_could_write_is_not_run(which: str, system: Library, tmp_path: Path) -> None:
    cache = tmp_path / "above" / "cache"
    assert native.library(cache) is not None
    (helper,) = cache.iterdir()
    assert helper.stat().st_mode & 0o777 == 0o600
    os.chmod({"folder": cache, "above": cache.parent, "file": helper}[which], 0o777)
    assert native.library(cache) is None


def test_a_link_in_the_helpers_place_is_not_followed(system: Library, tmp_path: Path) -> None:
    assert native.library(tmp_path / "cache") is not None
    (helper,) = (tmp_path / "cache").iterdir()
    helper.rename(tmp_path / "elsewhere.so")
    helper.symlink_to(tmp_path / "elsewhere.so")
    assert native.library(tmp_path / "cache") is None


def test_each_library_has_its_own_place_in_the_cache(
    system: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFIB_CACHE", str(tmp_path / "cache"))
    for _ in range(2):  # made, then read
        assert rulefiles.load_scan()[2].name == system.name
        with monkeypatch.context() as m:
            m.setenv("DEFIB_NATIVE", "off")
            assert rulefiles.load_scan()[2] is BINDING
    assert len(list((tmp_path / "cache").iterdir())) == 3
