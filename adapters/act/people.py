"""What people say to a controller, and what other diagnosers hand in, as events.

In: letters of two spools. Out: `Said`, `OutsideEvidence`, `Sign`; or why a letter is none. Always: strict: unknown keys, wrong types and
values out of range make a letter bad; who said it is the file's owner, never what the letter claims; nothing here decides.

    DIR/said/      {"what": "approve", "target": "<case>", "digest": "<plan>"}    also refuse, regret, close-breaker, settle
    DIR/inbox/     {"kind": "node", "node": "n03", "gpu": "2", "class": "gpu-hardware", "source": "nhc", "confidence": "likely",
                    "expires_s": 86400, "because": "…"}
                   {"kind": "sign", "job": "1234_5", "source": "step-monitor", "because": "…"}    this job does not move, seen from outside
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, cast

from defib.adapters.act.spool import Letter
from defib.adapters.show import safe
from defib.engine.recover.events import OutsideEvidence, Said
from defib.engine.recover.words import BREAKERS, KEY, NODE_NAME

SECOND = 1_000_000
EXPIRES_MAX_S = 30 * 86400
BECAUSE_MAX = 300
WHATS = ("approve", "refuse", "regret", "close-breaker", "settle")
CONFIDENCES = ("certain", "likely", "possible")
CASE = re.compile(r"[0-9a-f]{16}", re.ASCII)
SOURCE = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}", re.ASCII)
GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,63}", re.ASCII)
JOB = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sign:
    """Somebody outside the log says that this job does not move. job: as Slurm's commands name it."""

    at_us: int
    job: str
    source: str
    who: str


Word = Said | OutsideEvidence | Sign


def said(letter: Letter, now_us: int) -> Said:
    """A person's word. Raises ValueError with what is wrong."""
    v = _object(letter.said, {"what", "target"}, {"digest", "why"})
    if v["what"] not in WHATS:
        raise ValueError(f"what is one of {', '.join(WHATS)}")
    target, digest = v["target"], v.get("digest", "")
    if v["what"] == "close-breaker":
        if target.partition(":")[0] not in BREAKERS or len(target) > 80 or not target.isprintable():
            raise ValueError("no breaker of that name")
    elif CASE.fullmatch(target) is None:
        raise ValueError("target is no case")
    if v["what"] == "approve" and not 0 < len(digest) <= 64:
        raise ValueError("an approval names the digest of its plan")
    return Said(now_us, letter.who, cast(Any, v["what"]), target, digest)


def evidence(letter: Letter, now_us: int, classes: Collection[str]) -> OutsideEvidence | Sign:
    """Evidence from outside. classes: ids of failure classes. Raises ValueError with what is wrong."""
    if letter.said.get("kind") == "sign":
        v = _object(letter.said, {"kind", "job", "source"}, {"because"})
        _match(JOB, v, "job")
        _match(SOURCE, v, "source")
        return Sign(now_us, v["job"], v["source"], letter.who)
    whole = dict(letter.said)
    expires = whole.pop("expires_s", None)
    v = _object(whole, {"kind", "node", "class", "source", "confidence"}, {"gpu", "because"})
    if v["kind"] != "node":
        raise ValueError("kind is node or sign")
    if type(expires) is not int or not 60 <= expires <= EXPIRES_MAX_S:
        raise ValueError(f"expires_s is a whole number from 60 to {EXPIRES_MAX_S}")
    for pattern, key in ((NODE_NAME, "node"), (SOURCE, "source"), (GPU, "gpu")):
        if key in v:
            _match(pattern, v, key)
    if v["class"] not in classes:
        raise ValueError("class is no failure class; see 'defib rules list'")
    if v["confidence"] not in CONFIDENCES:
        raise ValueError(f"confidence is one of {', '.join(CONFIDENCES)}")
    because = safe(v.get("because", ""))[:BECAUSE_MAX]
    name = f"{letter.name}|{v}|{letter.uid}"
    id_ = hashlib.blake2b(name.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
    return OutsideEvidence(
        now_us, id_, f"{v['source']} by {safe(letter.who)}", v["node"], v.get("gpu"), v["class"], v["confidence"],
        now_us + expires * SECOND, because,
    )  # fmt: skip


def digest_ok(text: str) -> bool:
    """Whether a text has the form of a plan's digest."""
    return KEY.fullmatch(text) is not None or CASE.fullmatch(text) is not None


def read(letter: Letter, make: Callable[[Letter], Word]) -> tuple[Word | None, str]:
    """(event, "") or (None, why it is bad)."""
    if letter.fault:
        return None, letter.fault
    try:
        return make(letter), ""
    except ValueError as e:
        return None, str(e)


def _object(given: dict[str, Any], needed: set[str], allowed: set[str]) -> dict[str, str]:
    missing, unknown = sorted(needed - given.keys()), sorted(given.keys() - needed - allowed)
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    if unknown:
        raise ValueError(f"unknown key {safe(unknown[0])[:40]}")
    for key, value in given.items():
        if not isinstance(value, str):
            raise ValueError(f"{key} is no text")  # noqa: TRY004 - one kind of error for a bad letter
    return given


def _match(pattern: re.Pattern[str], v: dict[str, str], key: str) -> None:
    if pattern.fullmatch(v[key]) is None:
        raise ValueError(f"{key} is none: {safe(v[key])[:40]}")
