"""Our own log: one line a record whatever is told, nothing steers a terminal, repeats are counted instead of told."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defib.adapters.selflog import BURST, WINDOW_S, SelfLog

STEERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


class Ear:
    def __init__(self, **more: Any) -> None:
        self.lines: list[str] = []
        self.s = 100.0
        self.log = SelfLog(write=self.lines.append, now_s=lambda: 0.0, monotonic_s=lambda: self.s, **more)


@given(st.text() | st.binary(), st.sampled_from(["logfmt", "json"]))
def test_a_record_is_one_line_that_steers_nothing(said: Any, form: str) -> None:
    ear = Ear(form=form)
    ear.log.info("a thing", what=said, n=1)
    (line,) = ear.lines
    assert not STEERS.search(line)
    if form == "json":
        assert json.loads(line)["n"] == 1
    else:
        assert line.startswith('time=1970-01-01T00:00:00Z level=info event="a thing" what=')
        assert line.endswith(" n=1")


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_no_field_can_be_forged(form: str) -> None:
    ear = Ear(form=form)
    ear.log.info("x", path='a" level=error event="forged\nlevel=error')
    (line,) = ear.lines
    if form == "json":
        assert json.loads(line)["level"] == "info"
    else:
        assert re.sub(r'"(?:\\.|[^"\\])*"', "", line).count("level=") == 1


def test_repeats_are_counted() -> None:
    ear = Ear()
    for n in range(100):
        ear.log.warning("full disk", n=n)
        ear.log.warning("another", n=n)
    assert len(ear.lines) == 2 * BURST
    ear.s += WINDOW_S
    ear.log.flush()
    assert [line for line in ear.lines if "more_like_this=95" in line] == ear.lines[-2:]
    ear.log.warning("full disk", n=1)
    assert "n=1" in ear.lines[-1]


def test_levels() -> None:
    ear = Ear(level="warning")
    for level in ("debug", "info", "warning", "error"):
        ear.log.say(level, "x")
    assert [line.split()[1] for line in ear.lines] == ["level=warning", "level=error"]
