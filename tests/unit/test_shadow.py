"""New rules beside the old: only the old speak, differences are counted, and after the change open streams go on."""

from __future__ import annotations

import pytest
from tests.conftest import LANGUAGE, STORY, Collected, Kit, batch_of, kit, place_facts

from defib.engine import core
from defib.engine.blocks import Batch
from defib.engine.drive import Drive
from defib.engine.observe import Observation, Observer
from defib.engine.ports import Closed, Data, JobClosed, Opened, SourceItem, Ticked
from defib.engine.shadow import Difference, Shadow, take_over
from defib.engine.words import StreamId

MORE = STORY.replace("pattern: ROOT", "pattern: 'ROOT|RADIX'") + (
    "      - {id: t.new, title: new, pattern: NOVEL, role: root, class: user-code, hits: [NOVEL], misses: [x]}\n"
)
LESS = MORE.replace("pattern: MAYBE", "pattern: 'MAYBE INDEED'").replace("hits: [MAYBE]", "hits: [MAYBE INDEED]")
LOG = b"step=1/9\nROOT\nRADIX\nNOVEL\nMAYBE\nNOVEL\nx\n"


@pytest.fixture(scope="module")
def newer() -> Kit:
    return kit({**LANGUAGE, "signatures/t.yaml": LESS})


def test_only_the_old_speak_and_the_differences_are_counted(language: Kit, newer: Kit) -> None:
    shadow = Shadow(language.observer(), newer.observer())
    said, alone = shadow.observe(batch_of(LOG)), language.observer().observe(batch_of(LOG))
    assert said.signals.equals(alone.signals)
    assert said.progress.equals(alone.progress)
    assert shadow.differences() == [Difference("t.new", 2, 0), Difference("t.maybe", 0, 1), Difference("t.root", 1, 0)]
    assert shadow.lines == 7
    assert shadow.book is language.book


def test_the_same_rules_differ_in_nothing(language: Kit) -> None:
    shadow = Shadow(language.observer(), language.observer())
    shadow.observe(batch_of(LOG))
    assert shadow.differences() == []


def test_a_new_set_that_fails_stops_nothing(language: Kit) -> None:
    class Broken(Observer):
        def observe(self, batch: Batch) -> Observation:
            raise ValueError("a fault of ours")

    shadow = Shadow(language.observer(), Broken(language.book, language.databases))
    assert shadow.observe(batch_of(b"ROOT\n")).signals.num_rows == 1
    assert shadow.observe(batch_of(b"ROOT\n")).signals.num_rows == 1
    assert shadow.failed == "ValueError: a fault of ours"


def test_open_streams_go_on_with_the_new_rules(language: Kit, newer: Kit) -> None:
    sink = Collected()
    drive = Drive(language.observer(), core.State(language.book), sink, verify=True)
    (facts,) = place_facts(language.book, ["/l/a.log"])

    def give(*items: SourceItem) -> None:
        for item in items:
            drive._take(item)

    give(Opened(0, StreamId("/l/a.log"), facts, 0), Data(0, b"step=1/9\nNOVEL\nstep=2/9\n", 0), Ticked(1_000_000))
    drive.observer = Shadow(language.observer(), newer.observer())
    give(Data(0, b"step=3/9\nNOVEL\n", 0), Ticked(2_000_000))
    assert sink.rows("signals") == []
    drive.observer = drive.observer.observer
    take_over(drive.state, newer.book)
    give(Data(0, b"step=4/9\nNOVEL\n", 0), Ticked(3_000_000), Closed(0), JobClosed(facts.job), Ticked(4_000_000))
    assert [r["rule"] for r in sink.rows("signals")] == ["t.new"]
    assert [r["step"] for r in sink.rows("progress")] == [1, 2, 3, 4]
    assert sink.only.cause is not None
    assert sink.only.cause.signal.rule == "t.new"


def test_formats_that_are_gone_stay_counted(language: Kit) -> None:
    steps = LANGUAGE["progress/t.yaml"]
    at, to = steps.index("      - id: t.inepoch"), steps.index("      - id: t.eval")
    fewer = kit({**LANGUAGE, "progress/t.yaml": steps[:at] + steps[to:]})
    sink = Collected()
    drive = Drive(language.observer(), core.State(language.book), sink, verify=True)
    (facts,) = place_facts(language.book, ["/l/a.log"])
    drive._take(Opened(0, StreamId("/l/a.log"), facts, 0))
    drive._take(Data(0, b"batch=1/9\nbatch=2/9\n", 0))
    drive._take(Ticked(1_000_000))
    drive.observer = fewer.observer()
    take_over(drive.state, fewer.book)
    for item in (
        Data(0, b"step=1/9\nEXIT\n", 0),
        Ticked(2_000_000),
        Closed(0),
        JobClosed(facts.job),
        Ticked(3_000_000),
    ):
        drive._take(item)
    assert sink.only.verdict
