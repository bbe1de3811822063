"""`defib act`, `evidence add`, `audit`: letters the watch would take, and the pages of what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from defib.adapters import status
from defib.adapters.act import people
from defib.adapters.act.audit import Audit
from defib.adapters.act.spool import Spool
from defib.adapters.cli import main
from defib.adapters.rulefiles import load
from defib.engine.recover.words import Row

Capture = pytest.CaptureFixture[str]
CASE = "0123456789abcdef"
PLAN = {
    "case": CASE,
    "digest": "d" * 32,
    "sentence": "requeue job 7 run 0",
    "until_us": 1_800_000_000_000_000,
    "job": "job 7 run 0",
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder as a watch leaves it, with one plan that waits."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    Spool(str(folder / "said"))
    Spool(str(folder / "inbox"))
    asked = {"schema": "defib/asked/1", "mode": "approve", "broken": "", "asked": [PLAN], "breakers": [], "open": []}
    (folder / "asked.json").write_text(json.dumps(asked))
    return folder


def test_an_approval_names_the_plan_that_is_shown(state: Path, capsys: Capture) -> None:
    assert main(["act", "approve", CASE, "--state", str(state)]) == 0
    assert PLAN["sentence"] in capsys.readouterr().out
    (letter,) = Spool(str(state / "said")).take()
    said = people.said(letter, 5)
    assert (said.what, said.target, said.digest) == ("approve", CASE, PLAN["digest"])


def test_what_does_not_wait_cannot_be_approved(state: Path, capsys: Capture) -> None:
    assert main(["act", "approve", "f" * 16, "--state", str(state)]) == 3
    assert "no plan of that case waits" in capsys.readouterr().err
    assert Spool(str(state / "said")).take() == []


@pytest.mark.parametrize("words", [["refuse", "nonsense"], ["close", "no-breaker"], ["regret", "../../etc/passwd"]])
def test_a_letter_the_watch_would_not_take_is_not_sent(words: list[str], state: Path) -> None:
    assert main(["act", *words, "--state", str(state)]) == 3
    assert Spool(str(state / "said")).take() == []


def test_evidence_is_handed_in(state: Path) -> None:
    argv = [
        "evidence",
        "add",
        "--node",
        "n03",
        "--gpu",
        "2",
        "--source",
        "nhc",
        "--because",
        "ECC \x1b[2J",
        "--expires",
        "7d",
        "--state",
        str(state),
    ]
    assert main(argv) == 0
    (letter,) = Spool(str(state / "inbox")).take()
    found = people.evidence(letter, 10, load().book.class_by_id)
    assert isinstance(found, people.OutsideEvidence)
    assert (found.node, found.gpu, found.confidence, found.until_us) == ("n03", "2", "likely", 10 + 7 * 86_400_000_000)
    assert "\x1b" not in found.because


@pytest.mark.parametrize(
    "more",
    [
        ["--node", "n03;rm"],
        ["--node", "n03", "--job", "7"],
        [],
        ["--job", "7 8"],
        ["--node", "n03", "--class", "nothing"],
    ],
)
def test_evidence_that_is_none_is_refused(more: list[str], state: Path) -> None:
    assert main(["evidence", "add", "--source", "nhc", *more, "--state", str(state)]) == 3
    assert Spool(str(state / "inbox")).take() == []


def test_the_list_says_what_to_type(state: Path, capsys: Capture) -> None:
    assert main(["act", "list", "--state", str(state)]) == 0
    assert f"defib act approve {CASE}" in capsys.readouterr().out


def test_the_audit_is_verified_and_shown(state: Path, capsys: Capture) -> None:
    audit = Audit(str(state / "actions"))
    audit.record(Row(1, 1_760_000_000_000_000, audit.epoch, "start", "", "started", "the watch began \x1b[31m"))
    audit.sync()
    audit.close()
    assert main(["audit", "verify", "--state", str(state)]) == 0
    assert "1 rows" in capsys.readouterr().out
    assert main(["audit", "show", "--state", str(state)]) == 0
    out = capsys.readouterr().out
    assert "the watch began" in out
    assert "\x1b" not in out
    (segment,) = (state / "actions").glob("*.seg")
    raw = bytearray(segment.read_bytes())
    raw[raw.index(b"the watch began")] ^= 1
    segment.write_bytes(raw)
    assert main(["audit", "verify", "--state", str(state)]) == 3


def test_an_audit_where_there_is_no_folder_is_no_empty_one(tmp_path: Path, capsys: Capture) -> None:
    assert main(["audit", "show", "--state", str(tmp_path / "typo")]) == 3
    assert "mend:" in capsys.readouterr().err


def test_a_list_nobody_keeps_any_more_says_so(state: Path, capsys: Capture) -> None:
    assert main(["act", "list", "--state", str(state)]) == 0
    assert "no watch answers there" in capsys.readouterr().err


def test_where_nothing_can_wait_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def told(folder: Path) -> str:
        assert main(["act", "list", "--state", str(folder)]) == 3
        return capsys.readouterr().err

    assert "no such folder" in told(tmp_path / "typo")
    assert "no watch that asks Slurm has run here" in told(tmp_path)
    monkeypatch.setattr(status, "ask", lambda _: {"alarms": []})
    assert "does not ask Slurm" in told(tmp_path)
    (tmp_path / "asked.json").write_text("{")
    assert "not what a watch writes" in told(tmp_path)


def test_a_scheduler_that_cannot_be_read_is_told_with_the_list(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    why = "the scheduler could not be read: squeue cannot be run: No such file or directory"
    monkeypatch.setattr(status, "ask", lambda _: {"alarms": ["another", why], "scheduler": {"reads": 1}})
    assert main(["act", "list", "--state", str(state)]) == 0
    assert capsys.readouterr().err == f"note: {why}\n"
