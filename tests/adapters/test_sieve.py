"""sieve: what is left of a text holds every hit of it, on the lines where it was written, whatever the digits, escapes and line ends."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import hyperscan as hs
import pytest
from tests.adapters.test_shorter import LAST, digits, known, with_last, worded
from tests.conftest import Kit, kit
from tests.needs import lacking

from defib.adapters import matching, nativesieve, rulefiles
from defib.adapters.logfiles import LogFile
from defib.engine import plan, scan, sieve
from defib.engine.finder import MULTILINE
from defib.engine.library import BINDING, Entry
from defib.engine.match import Matcher
from defib.engine.plan import ASKED_ANYWHERE, ASKED_HERE

QUIET = "step 3/40 of a longer record in which nobody finds a thing"
UNLOOSENED = r"""
          - {id: s.odd, title: t, pattern: 'PORT \x37', role: root, class: user-code, hits: [PORT 7], misses: [PORT 8]}
"""


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieve, "LEAST", 0)
    monkeypatch.setattr(sieve, "PAUSES", (0,))
    monkeypatch.setattr(nativesieve, "SHARE", 1)
    monkeypatch.setattr(nativesieve, "FRESH", 300)
    monkeypatch.setattr(nativesieve, "SHORTEST", 1)
    monkeypatch.setattr(matching, "BLOCK_BYTES", 5000)


@pytest.fixture
def memory() -> nativesieve.Memory:
    made = rulefiles.memory()
    if made is None:
        lacking("native", "the sieve needs a C compiler")
    assert isinstance(made, nativesieve.Memory)
    return made


def matched(k: Kit, memory: nativesieve.Memory | None) -> Matcher:
    return Matcher(plan.roster(scan.plan(k.book)), k.databases, memory=lambda: memory)


def found(matcher: Matcher, path: Path, *, each: bool) -> tuple[object, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []
    tell = (lambda _file, line, rule: told.append((line, rule))) if each else None
    log = LogFile(str(path), "a.log", path.stat().st_size, True)
    (one,) = matching.scan_files([log], matcher, [], tell, lines=True)
    return one.rules, told


def same(k: Kit, memory: nativesieve.Memory, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares what is found with and without the sieve, which must have left something out."""
    out = 0
    sift = nativesieve.Memory.sift

    def counted(self: nativesieve.Memory, payload: bytes, judge: object) -> object:
        nonlocal out
        left = sift(self, payload, judge)  # type: ignore[arg-type]
        out += len(payload) - len(left.text) if left is not None else 0
        return left

    monkeypatch.setattr(nativesieve.Memory, "sift", counted)
    with_it, without = matched(k, memory), matched(k, None)
    for each in (False, True):
        assert found(with_it, path, each=each) == found(without, path, each=each)
    assert out > 0


def log(lines: list[str], rng: random.Random, size: int) -> bytes:
    """Some of the lines again and again, with other digits, escapes and line ends."""
    some = [QUIET, *(rng.choice(lines) for _ in range(rng.choice((3, 20, 60))))]
    some += [f"\x1b[3{k}m{line}\0 \x1b[0m" for k, line in enumerate(some[:2])]
    ends = rng.choice((["\n"], ["\r"], ["\n", "\r", "\r\n"]))
    return "".join(digits(rng.choice(some), rng) + rng.choice(ends) for _ in range(size)).encode()


@pytest.mark.parametrize("seed", range(20))
def test_shipped_rules(
    seed: int, shipped: Kit, memory: nativesieve.Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    path = tmp_path / "a.log"
    path.write_bytes(log(known(shipped), rng, 2000))
    same(shipped, memory, path, monkeypatch)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize(
    "last", [LAST.rpartition("          - ")[0], LAST, UNLOOSENED], ids=["code", "any", "unloosened"]
)
def test_rules_that_ask_for_digits(
    seed: int, last: str, memory: nativesieve.Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    path = tmp_path / "a.log"
    lines = [line + rng.choice(("", "", " PORT 1")) for line in worded(rng)]
    text = log(lines, rng, 900)
    path.write_bytes(text if last != LAST else text + b"a line with no digit\n" * 50)
    same(kit(with_last(last)), memory, path, monkeypatch)


def test_quiet_shapes_are_left_out_and_those_where_a_digit_matters_told_apart(
    shipped: Kit, memory: nativesieve.Memory
) -> None:
    matcher = matched(shipped, memory)
    line = (
        " iteration {:8} | lm loss: 2.3{:04} | number of skipped iterations:   0 | number of nan iterations:   {} |\n"
    )
    quiet = "".join(line.format(k, k, 0) for k in range(500)).encode()
    first = matcher.left(quiet)
    assert first is not None
    assert 0 < len(first.line) <= 9  # three widths of numbers, three records each until they are judged
    assert first.feeds == 500
    bad = line.format(77, 77, 3).encode()
    again = matcher.left(quiet + bad + quiet)
    assert again is not None
    assert again.text == bad
    assert (list(again.line), again.feeds) == ([500], 1001)
    assert [matcher.hits(again.text), matcher.hits(bad)] == [matcher.hits(bad)] * 2 != [[], []]


def test_it_forgets_when_it_is_full_and_goes_on(shipped: Kit, memory: nativesieve.Memory) -> None:
    matcher = matched(shipped, memory)
    for k in range(nativesieve.MOST // 50):
        words = (bytes([97 + k // 26 % 26, 97 + k % 26]) + b"x" * n for n in range(60))
        matcher.left(b"".join(word + b"\n" for word in words))
    assert memory.shapes < nativesieve.MOST // 2, "more shapes than it holds were shown to it"
    left = matcher.left(b"a quiet line\n" * 100)
    assert left is not None
    assert len(left.text) <= 13 * 30


def test_a_text_of_which_much_is_left_is_looked_at_whole_and_some_after_it_too(
    shipped: Kit, memory: nativesieve.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nativesieve, "SHARE", 4)
    monkeypatch.setattr(sieve, "PAUSES", (2, 3))
    matcher = matched(shipped, memory)
    quiet, diverse = b"a quiet line\n" * 900, b"".join(b"%s%d\n" % (b"y" * n, n) for n in range(300))
    assert matcher.left(diverse) is None
    assert [matcher.left(quiet) is None for _ in range(3)] == [True, True, False]


def test_what_a_library_cannot_place_is_asked_of_all_of_its_record() -> None:
    class Placeless:
        """A library that tells the start of no expression with an `x`."""

        name = "placeless"

        def compiled(self, entries: Sequence[Entry]) -> bytes:
            if any(flags & hs.HS_FLAG_SOM_LEFTMOST and b"x" in expression for _, expression, flags in entries):
                raise ValueError("no start")
            return BINDING.compiled(entries)

        load = staticmethod(BINDING.load)

    doubts = [(0, b"ax0", MULTILINE), (1, b"b0", MULTILINE), (2, scan.ANYTHING, MULTILINE)]
    ids, starts, ends = BINDING.load(scan._asked(doubts, Placeless())).spans(b"--ax0\n--b0\n")
    told = set(zip(ids, starts, ends, strict=True))
    assert {(n, end) for n, _, end in told} == {(ASKED_ANYWHERE, 5), (ASKED_HERE, 10), (ASKED_ANYWHERE, 10)}
    assert (ASKED_HERE, 8, 10) in told


def test_lines_are_counted_over_stretches_that_were_told_and_not(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"ab\n" * 30)
    with path.open("rb") as f:
        count = matching.Lines(f.fileno(), 90)
        count.told(0, 9, 3)
        count.told(30, 60, 10)
        count.told(60, 75, 5)
        assert [count.of(at) for at in (9, 12, 30, 33, 75, 87)] == [4, 5, 11, 12, 26, 30]
