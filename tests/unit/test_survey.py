"""survey: what of a log is recognised and which error-looking lines nobody speaks for."""

from __future__ import annotations

import pytest
from tests.conftest import Kit, batch_of

from defib.engine import survey
from defib.engine.survey import Survey


def surveyed(made: Kit, *batches: bytes) -> Survey:
    out, observer = Survey(), made.observer()
    for data in batches:
        batch = batch_of(data)
        out.add(observer, batch, observer.observe(batch))
    return out


def test_rules_formats_ranks_and_stamps_are_counted(language: Kit) -> None:
    s = surveyed(language, b"x\nROOT\n[rank3]: ROOT\nstep=4\n", b"2026-01-02 03:04:05 step=9\n")
    assert s.records == 5
    assert s.rules == {"t.root": 2}
    assert s.first_line == {"t.root": 2}
    assert s.formats == {"t.step": [2, 4, 9]}
    assert s.ranks == {3}
    assert (s.stamped, s.unstamped) == (1, 3)


def test_error_looking_lines_without_a_rule_are_grouped_by_shape(language: Kit) -> None:
    s = surveyed(language, b"fine\nerror 12 at 0xff\nerror 13 at 0xab\nTraceback here\nROOT error\n")
    assert {shape: (u.line, u.count) for shape, u in s.unknown.items()} == {
        "error # at #": (2, 2),
        "Traceback here": (4, 1),
    }


@pytest.mark.parametrize(
    "line",
    ["Error", "EXCEPTION", "failed", "failure", "timed out", "time out", "aborted", "corrupt", "segfault", "lost"],
)
def test_what_looks_bad_is_broad(language: Kit, line: str) -> None:
    assert len(surveyed(language, f"{line}: x\n".encode()).unknown) == 1


@pytest.mark.parametrize("line", ["terror", "errors_total", "failsafe", "all is well", ""])
def test_but_not_every_word(language: Kit, line: str) -> None:
    assert surveyed(language, f"{line}\n".encode()).unknown == {}


def test_a_benign_line_is_muted_not_unknown(language: Kit) -> None:
    s = surveyed(language, b"HARMLESS error\n", b"a real error\n")
    assert s.muted == 1
    assert list(s.unknown) == ["a real error"]


def test_shapes_are_bounded(language: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "SHAPES_MAX", 3)
    s = surveyed(language, b"error a\nerror b\nerror c\nerror d\nerror a\n")
    assert {u.text: u.count for u in s.unknown.values()} == {"error a": 2, "error b": 1, "error c": 1}
