"""`defib policy check`, `consent`, `decide`: what may be done to jobs, said before anything is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from defib.adapters.cli import main
from defib.engine.recover import consent

Capture = pytest.CaptureFixture[str]


def test_a_site_file_is_laid_over_the_shipped_one(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("policy: recovery\nmode: act\nallow: {partitions: [train]}\n")
    assert main(["policy", "check", str(file)]) == 0
    out = capsys.readouterr().out
    assert "mode: observe -> act" in out
    assert "settle_s" not in out
    assert "nobody's" not in out


def test_a_mode_that_reaches_nobody_is_pointed_out(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("policy: recovery\nmode: act\n")
    assert main(["policy", "check", str(file), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["rows"] == [{"policy": "recovery", "key": "mode", "shipped": "observe", "now": "act"}]
    assert "allow.partitions is empty" in said["notes"][0]


def test_every_fault_has_its_line_and_mend(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("policy: recovery\nmode: axt\nconfirm:\n  settle_s: 1\n  settel_s: 40\n")
    assert main(["policy", "check", str(file)]) == 2
    said = capsys.readouterr().err
    for place in (f"{file}:2:1", f"{file}:4:3", f"{file}:5:3"):
        assert place in said
    assert "did you mean 'act'" in said


@pytest.mark.parametrize("text", ["", "mode: act\n", "- a\n", "policy: recovry\n"])
def test_a_file_that_is_no_policy_is_refused(text: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    assert main(["policy", "check", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


def test_what_consent_prints_is_a_consent(capsys: Capture) -> None:
    assert main(["consent", "--restart", "hang,crash", "--max-restarts", "2", "--act-on-running", "--no-exclude"]) == 0
    comment = capsys.readouterr().out.splitlines()[0]
    parsed = consent.parse(comment)
    assert parsed == consent.Consent(frozenset({"crash", "hang"}), 2, act_on_running=True, exclude_nodes=False)
    assert main(["consent", "--check", comment]) == 0


@pytest.mark.parametrize(
    "comment", ["", "yes", '{"defib": {"restart": ["crash"], "force": true}}', '{"defib": {}, "defib": {}}', "{" * 5000]
)
def test_what_is_no_consent_is_explained(comment: str, capsys: Capture) -> None:
    assert main(["consent", "--check", comment]) == 1
    assert "mend:" in capsys.readouterr().out


def test_a_kind_nobody_knows_is_refused(capsys: Capture) -> None:
    assert main(["consent", "--restart", "crash,everything"]) == 2
    assert "everything" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"now_us": "x"}'])
def test_inputs_that_are_none_are_refused(text: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "inputs.json"
    file.write_text(text)
    assert main(["decide", "--replay", str(file)]) == 3
    assert "no inputs of a decision" in capsys.readouterr().err
