"""Letters as events: strict, and who said it is never what the letter claims."""

from __future__ import annotations

from typing import Any

import pytest

from defib.adapters.act import people
from defib.adapters.act.people import Sign
from defib.adapters.act.spool import Letter
from defib.engine.recover.events import OutsideEvidence

CASE = "0123456789abcdef"
CLASSES = ("gpu-hardware",)
NODE = {
    "kind": "node", "node": "n03", "class": "gpu-hardware", "source": "nhc", "confidence": "likely", "expires_s": 3600,
}  # fmt: skip


def letter(said: dict[str, Any]) -> Letter:
    return Letter("x.json", 7, "ada", said)


def test_who_approves_is_the_owner_of_the_file() -> None:
    said = people.said(letter({"what": "approve", "target": CASE, "digest": "d"}), 5)
    assert (said.who, said.what, said.target, said.digest, said.at_us) == ("ada", "approve", CASE, "d", 5)
    with pytest.raises(ValueError, match="unknown key who"):
        people.said(letter({"what": "approve", "target": CASE, "digest": "d", "who": "root"}), 5)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "target is missing"),
        ({"what": "cancel", "target": CASE}, "what is one of"),
        ({"what": "approve", "target": CASE}, "names the digest"),
        ({"what": "approve", "target": CASE, "digest": "d" * 65}, "names the digest"),
        ({"what": "refuse", "target": CASE.upper()}, "no case"),
        ({"what": "refuse", "target": CASE + "\n"}, "no case"),
        ({"what": "refuse", "target": 7}, "target is no text"),
        ({"what": "close-breaker", "target": "nothing"}, "no breaker"),
        ({"what": "close-breaker", "target": "flood:\x1b[2J"}, "no breaker"),
        ({"what": "close-breaker", "target": "flood:" + "a" * 80}, "no breaker"),
        ({"what": "refuse", "target": CASE, "\x1b[2J": "x"}, r"unknown key \\x1b"),
    ],
)
def test_a_word_that_is_none(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        people.said(letter(said), 5)
    assert people.read(letter(said), lambda x: people.said(x, 5))[0] is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"node": "n03;reboot"}, "node is none"),
        ({"node": "n[1-9]"}, "node is none"),
        ({"node": "n03\n"}, "node is none"),
        ({"gpu": "../../x"}, "gpu is none"),
        ({"source": "NHC \x1b[31m"}, "source is none"),
        ({"class": "nothing"}, "no failure class"),
        ({"confidence": "sure"}, "confidence is one of"),
        ({"expires_s": 59}, "expires_s"),
        ({"expires_s": 31 * 86400}, "expires_s"),
        ({"expires_s": True}, "expires_s"),
        ({"expires_s": "3600"}, "expires_s"),
        ({"expires_s": None}, "expires_s"),
        ({"kind": "job"}, "kind is node or sign"),
        ({"weight": "1000"}, "unknown key weight"),
        ({"because": ["x"]}, "because is no text"),
    ],
)
def test_evidence_that_is_none(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        people.evidence(letter(NODE | change), 5, CLASSES)


def test_evidence_is_signed_by_source_and_owner_and_ends() -> None:
    found = people.evidence(letter(NODE | {"because": "ECC \x1b[2J" + "x" * 1000}), 5, CLASSES)
    assert isinstance(found, OutsideEvidence)
    assert (found.source, found.until_us) == ("nhc by ada", 5 + 3600 * 1_000_000)
    assert "\x1b" not in found.because
    assert len(found.because) <= people.BECAUSE_MAX
    again = people.evidence(letter(dict(NODE)), 9, CLASSES)
    other = people.evidence(Letter("y.json", 7, "ada", dict(NODE)), 9, CLASSES)
    assert isinstance(again, OutsideEvidence)
    assert isinstance(other, OutsideEvidence)
    assert again.id == people.evidence(letter(dict(NODE)), 5, CLASSES).id != other.id  # type: ignore[union-attr]


@pytest.mark.parametrize("job", ["7", "7_3"])
def test_a_sign_names_a_job_by_numbers(job: str) -> None:
    assert people.evidence(letter({"kind": "sign", "job": job, "source": "steps"}), 5, CLASSES) == Sign(
        5, job, "steps", "ada"
    )


@pytest.mark.parametrize("job", ["", "7;8", "7_[1-9]", "7_*", "-7", "٧", "7\n", "12345678901"])
def test_a_sign_about_anything_else_is_none(job: str) -> None:
    with pytest.raises(ValueError, match="job is none"):
        people.evidence(letter({"kind": "sign", "job": job, "source": "steps"}), 5, CLASSES)


def test_a_letter_with_a_fault_makes_nothing() -> None:
    bad = Letter("x", 7, "ada", {}, "others may write to it")
    assert people.read(bad, lambda x: people.said(x, 5)) == (None, "others may write to it")
