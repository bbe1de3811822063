"""sieve: what is left of a text holds every hit of it, on the lines where it was written, whatever the digits, escapes and line ends."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from tests.adapters.test_shorter import LAST
from tests.conftest import Kit, kit
from tests.unit.test_match import RULES

from defib.adapters import matching, nativesieve, rulefiles
from defib.adapters.logfiles import LogFile
from defib.engine import plan, scan, sieve
from defib.engine.match import Matcher
from defib.engine.sieve import Memory


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieve, "LEAST", 0)
    monkeypatch.setattr(sieve, "PAUSES", (0,))
    monkeypatch.setattr(nativesieve, "SHARE", 1)
    monkeypatch.setattr(nativesieve, "FRESH", 300)
    monkeypatch.setattr(nativesieve, "SHORTEST", 1)
    monkeypatch.setattr(matching, "BLOCK_BYTES", 5000)


@pytest.fixture
def memory() -> Memory:
    found = rulefiles.memory()
    if found is None:
        pytest.skip("the sieve needs a C compiler")
    return found


def found(k: Kit, path: Path, memory: Memory | None, *, each: bool) -> tuple[object, list[tuple[int, int]]]:
    matcher = Matcher(plan.roster(scan.plan(k.book)), k.databases, memory=lambda: memory)
    told: list[tuple[int, int]] = []
    tell = (lambda _file, line, rule: told.append((line, rule))) if each else None
    (one,) = matching.scan_files(
        [LogFile(str(path), "a.log", path.stat().st_size, True)], matcher, [], tell, lines=True
    )
    return one.rules, told


def log(lines: list[str], rng: random.Random, size: int) -> bytes:
    """Some of the lines again and again, with other digits, escapes and line ends."""
    some = [rng.choice(lines) for _ in range(rng.choice((3, 20, 60)))]
    some += [f"\x1b[3{k}m{line}\0 \x1b[0m" for k, line in enumerate(some[:2])]
    ends = rng.choice((["\n"], ["\r"], ["\n", "\r", "\r\n"]))
    out = []
    for _ in range(size):
        line = re.sub("[0-9]", lambda m: rng.choice((m[0], "0", "1", "7", "9")), rng.choice(some))
        out.append(line + rng.choice(ends))
    return "".join(out).encode()


@pytest.mark.parametrize("seed", range(30))
def test_shipped_rules(seed: int, shipped: Kit, memory: Memory, tmp_path: Path) -> None:
    rng = random.Random(seed)
    lines = sorted({e.line for r in shipped.book.rules for e in (*r.hits, *r.misses) if "\n" not in e.line})
    path = tmp_path / "a.log"
    path.write_bytes(log(lines, rng, 2000))
    for each in (False, True):
        assert found(shipped, path, memory, each=each) == found(shipped, path, None, each=each)


@pytest.mark.parametrize("seed", range(60))
def test_rules_that_ask_for_digits(seed: int, memory: Memory, tmp_path: Path) -> None:
    rules = dict(RULES)
    rules["signatures/s.yaml"] = RULES["signatures/s.yaml"].rstrip() + (
        LAST if seed % 2 else LAST.rpartition("          - ")[0]
    )
    k = kit(rules)
    rng = random.Random(seed)
    words = [
        "ERROR",
        "DISK",
        "RETRY",
        "AGAIN",
        "CALM 5",
        "LAST",
        "CODE 4",
        "NOT 7",
        "",
        "12 ",
        "step 3/40 of a longer record",
    ]
    lines = [" ".join(rng.choice(words) for _ in range(rng.randrange(6))) for _ in range(40)]
    path = tmp_path / "a.log"
    path.write_bytes(log(lines, rng, 900))
    for each in (False, True):
        assert found(k, path, memory, each=each) == found(k, path, None, each=each)


def test_quiet_shapes_are_left_out_and_those_where_a_digit_matters_told_apart(shipped: Kit, memory: Memory) -> None:
    matcher = Matcher(plan.roster(scan.plan(shipped.book)), shipped.databases, memory=lambda: memory)
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
    assert (list(again.start), list(again.line), again.feeds) == ([len(quiet)], [500], 1001)
    assert [matcher.hits(again.text), matcher.hits(bad)] == [matcher.hits(bad)] * 2 != [[], []]


def test_it_forgets_when_it_is_full_and_goes_on(shipped: Kit, memory: Memory) -> None:
    matcher = Matcher(plan.roster(scan.plan(shipped.book)), shipped.databases, memory=lambda: memory)
    for k in range(nativesieve.MOST // 50):
        words = (bytes([97 + k // 26 % 26, 97 + k % 26]) + b"x" * n for n in range(60))
        matcher.left(b"".join(word + b"\n" for word in words))
    left = matcher.left(b"a quiet line\n" * 100)
    assert left is not None
    assert len(left.text) <= 13 * 30


def test_lines_are_counted_over_stretches_that_were_told_and_not(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"ab\n" * 30)
    with path.open("rb") as f:
        count = matching.Lines(f.fileno(), 90)
        count.told(0, 9, 3)
        count.told(30, 60, 10)
        count.told(60, 75, 5)
        assert [count.of(at) for at in (9, 12, 30, 33, 75, 87)] == [4, 5, 11, 12, 26, 30]
