"""`defib why JOB` where recovery was on: what was decided and done, why not more, and what comes next, in words a person who trains understands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.act.loop import Loop, site
from tests.act.test_acts import mend
from tests.act.test_control import QUIET
from tests.cli.conftest import Run

from defib.adapters import rulefiles
from defib.adapters.act import spool
from defib.adapters.acts import Acts
from defib.adapters.cli import deeds
from defib.adapters.livestore import LiveStore
from defib.engine.recover import gates
from defib.engine.recover.words import FINAL, State

HOSTILE = "dead \x1b[2J\x1b]0;pwned\x07 \u202e end"


class Site:
    """A history and a watch that recovers; `page` asks `defib why` about its only job."""

    def __init__(self, folder: Path, say: Run) -> None:
        self.folder, self.say = folder, say
        self.store = LiveStore(str(folder / "h.duckdb"), rulefiles.load([]).book, "one")
        self.acts = self.store.beside = Acts(self.store.meta)
        self.loop: Any = None

    def crash(self, mode: str = "act", because: str = "boom", **job: object) -> Loop:
        self.loop = Loop(self.folder / "state", site(mode), self.acts)
        self.loop.job(**job)
        self.loop.run(QUIET)
        self.loop.change(state="FAILED", exit_code=1, end_us=self.loop.us)
        self.loop.run(20)
        self.loop.judge(incident="bed/1001#0", because=because)
        self.loop.run(60)
        return self.loop

    def asked(self, *more: str) -> str:
        self.store.close()
        done = self.say("why", "1001", "--db", self.folder / "h.duckdb", *more)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def page(self) -> list[str]:
        lines = self.asked().splitlines()
        return [x.strip() for x in lines[lines.index("What was done, and why not more") + 1 :]]


@pytest.fixture
def place(tmp_path: Path, say: Run) -> Iterator[Site]:
    made = Site(tmp_path, say)
    yield made
    made.loop.die()


def test_a_refusal_names_its_gate_the_value_and_when_in_plain_words(place: Site) -> None:
    place.crash(comment="")
    page = place.page()
    assert page[0] == "run 0: refused - it was left alone"
    assert "why not more: the job's owner has not asked for this" in page
    assert any(x.startswith("gate consent: none: ") and "(read 1970-01-12" in x for x in page)
    assert page[-1].startswith("what comes next: defib does nothing more about this run")
    assert not any(x.startswith("called:") for x in page)


def test_a_decision_is_made_again_by_the_id_the_page_names(place: Site, say: Run) -> None:
    place.crash(comment="")
    (command,) = [x for x in place.page() if x.startswith("every gate: defib decide --replay ")]
    number, db = command.rpartition(" ")[2], place.folder / "h.duckdb"
    again = say("decide", "--replay", number, "--db", db)
    assert again.returncode == 0, again.stderr
    assert "not done: gate" in again.stdout.decode()
    assert " consent" in again.stdout.decode().split("not done: ")[1].splitlines()[0]
    assert len([x for x in again.stdout.decode().splitlines() if " open " in x or " CLOSED " in x]) == len(gates.GATES)
    missing = say("decide", "--replay", "0123456789abcdef-7", "--db", db)
    assert missing.returncode == 3
    assert b"no decision 0123456789abcdef-7" in missing.stderr


def test_a_recovery_tells_its_course_and_its_proof(place: Site) -> None:
    mend(place.crash())
    page = place.page()
    assert page[0] == "run 0: recovered - it was restarted and went past the step where it had failed"
    assert page[1] == "the plan: job 1001 (run 0) has ended: class gpu-hardware; requeue it"
    course = [x.split("UTC  ")[1].split(":")[0] for x in page if "UTC  " in x]
    assert course == ["suspect", "confirmed", "planned", "authorised", "issued", "accepted", "started", "recovered"]
    assert "called: scontrol requeue 1001 -> done" in page
    assert "the next run reached step 101; it had failed at 100" in page


def test_observe_says_what_only_the_mode_kept_back(place: Site) -> None:
    place.crash("observe")
    page = place.page()
    assert page[0] == "run 0: planned - a restart is planned and has not been called for"
    assert "why not more: defib may only watch here, or a person has to approve first" in page
    assert any(x.startswith("gate mode: observe (read ") for x in page)


def test_who_approved_is_told(place: Site) -> None:
    loop = place.crash("approve")
    (case,) = loop.controller.desk.cases.values()
    assert case.plan is not None
    said = {"what": "approve", "target": case.id, "digest": case.plan.digest}
    spool.post(str(place.folder / "state/said"), said)
    loop.run(60)
    assert loop.state == "accepted"
    page = place.page()
    assert any(", said by root: approved by root" in x for x in page)
    assert page[-1].startswith("what comes next: Slurm starts it again when it can")


def test_json_holds_the_same(place: Site) -> None:
    place.crash(comment="")
    document = json.loads(place.asked("--json"))
    (story,) = document["rows"]
    (run,) = story["recovery"]
    assert (run["job"], run["restarts"], run["state"], run["gate"]) == ("bed/1001", 0, "refused", "consent")
    assert run["decision"]["value"].startswith("none: ")
    assert run["decision"]["read_at"]
    assert [s["state"] for s in run["steps"]] == ["suspect", "confirmed", "refused"]
    assert run["calls"] == []


def test_hostile_text_stays_harmless(place: Site) -> None:
    place.crash(because=HOSTILE, partition="\x1b[31mred\x9b\n")
    text = place.asked()
    assert "gate allow-list" in text
    assert "pwned" in text
    assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_a_history_without_recovery_has_no_such_part(say: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("Traceback (most recent call last):\nRuntimeError: boom\n")
    done = say("why", log)
    assert b"What was done, and why not more" not in done.stdout
    assert b"defib only observed" in done.stdout
    assert done.returncode == 0


def test_every_gate_and_state_has_its_words() -> None:
    assert set(deeds.GATES) == {name for name, _ in gates.GATES}
    assert set(deeds.STATES) == set(State.__args__) - {"observed"}
    assert FINAL - {"recovered", "cleared", "satisfied-by-other"} <= set(deeds.NEXT)
