"""The owner's consent: what a job's comment asks for, read strictly; everything odd is no consent.

In: the comment of the job's own record, as the scheduler told it. Out: `Consent`, or `ConsentError` with why and the mend.
Always: nothing is guessed or repaired; what a user writes can only narrow the site's policy.

    {"defib": {"restart": ["crash", "hang"], "max_restarts": 3, "act_on_running": true}}

By giving it the owner says that the script resumes from its own checkpoint when Slurm starts it again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from defib.engine.recover.words import COMMENT_MAX

KINDS = ("crash", "hang", "slow", "timeout")
RESTARTS_MAX = 100
DEPTH_MAX = 4
SLURM_COMMENT_MAX = 1024  # bytes slurmctld takes from scontrol update
KEYS = ("restart", "max_restarts", "act_on_running", "exclude_nodes")


class ConsentError(ValueError):
    """There is no consent. mend: what the owner would have to write."""

    def __init__(self, why: str, mend: str = "defib consent prints a valid comment") -> None:
        super().__init__(why)
        self.why, self.mend = why, mend


@dataclass(frozen=True, slots=True)
class Consent:
    """What an owner asks for. restart: kinds of trouble (KINDS). max_restarts: calls for this job in all, None: as the site's policy has it.

    act_on_running: also while the run still holds its nodes. exclude_nodes: the next start may keep a suspected node out.
    """

    restart: frozenset[str]
    max_restarts: int | None = None
    act_on_running: bool = False
    exclude_nodes: bool = True

    def comment(self) -> str:
        """The comment that says exactly this, in one line without quotes of the shell's single kind."""
        inner: dict[str, Any] = {"restart": [k for k in KINDS if k in self.restart]}
        if self.max_restarts is not None:
            inner["max_restarts"] = self.max_restarts
        if self.act_on_running:
            inner["act_on_running"] = True
        if not self.exclude_nodes:
            inner["exclude_nodes"] = False
        return json.dumps({"defib": inner})


def parse(comment: str) -> Consent:
    """The consent in a job's comment. Raises ConsentError for everything that is not plainly one."""
    if not comment.strip():
        raise ConsentError("the job's comment is empty")
    try:
        size = len(comment.encode())
    except UnicodeEncodeError as e:
        raise ConsentError("the comment is no valid UTF-8 text") from e
    if size > COMMENT_MAX:
        raise ConsentError(f"the comment is longer than {COMMENT_MAX} bytes")
    if not comment.lstrip().startswith("{"):
        raise ConsentError("the comment is no JSON object")
    if _depth(comment) > DEPTH_MAX:
        raise ConsentError(f"the comment is nested deeper than {DEPTH_MAX}")
    try:
        found = json.loads(comment, object_pairs_hook=_object, parse_constant=_constant, parse_int=_whole)
    except ConsentError:
        raise
    except (ValueError, RecursionError) as e:
        raise ConsentError("the comment is no valid JSON") from e
    if "defib" not in found:
        raise ConsentError("the comment does not name defib", 'write {"defib": {"restart": ["crash"]}}')
    others = sorted(k for k in found if k != "defib")
    if others:
        raise ConsentError(f"the comment holds more than defib: {_shown(others[0])}", "keep only the key defib")
    return _consent(found["defib"])


def _consent(inner: Any) -> Consent:
    if not isinstance(inner, dict):
        raise ConsentError("the value of defib is no object")
    unknown = sorted(k for k in inner if k not in KEYS)
    if unknown:
        raise ConsentError(f"unknown key {_shown(unknown[0])}", f"known are {', '.join(KEYS)}")
    kinds = inner.get("restart")
    if not isinstance(kinds, list) or not all(isinstance(k, str) for k in kinds):
        raise ConsentError("restart is no list of words", f"a list of {', '.join(KINDS)}")
    if not kinds:
        raise ConsentError("restart is an empty list: consent was taken back")
    strange = [k for k in kinds if k not in KINDS]
    if strange:
        raise ConsentError(f"restart holds {_shown(strange[0])}", f"known are {', '.join(KINDS)}")
    if len(set(kinds)) != len(kinds):
        raise ConsentError("restart names a kind twice")
    limit = inner.get("max_restarts")
    if "max_restarts" in inner and (type(limit) is not int or not 0 <= limit <= RESTARTS_MAX):
        raise ConsentError(f"max_restarts is no whole number from 0 to {RESTARTS_MAX}")
    for key in ("act_on_running", "exclude_nodes"):
        if type(inner.get(key, False)) is not bool:
            raise ConsentError(f"{key} is neither true nor false")
    return Consent(frozenset(kinds), limit, inner.get("act_on_running", False), inner.get("exclude_nodes", True))


def explain(comment: str) -> tuple[bool, list[str]]:
    """(valid, plain sentences) for the owner who wants to check what was written."""
    try:
        c = parse(comment)
    except ConsentError as e:
        return False, [f"no consent: {e.why}", f"mend: {e.mend}"]
    out = [f"defib may restart this job after: {', '.join(k for k in KINDS if k in c.restart)}"]
    if c.max_restarts is None:
        out.append("as often as the site's policy allows")
    else:
        out.append(
            f"at most {c.max_restarts} time{'' if c.max_restarts == 1 else 's'} in all, and never more often than the site's policy"
        )
    out.append(
        "also while the run still holds its nodes (hang, slow)"
        if c.act_on_running
        else "only after the run has ended; a hung run that holds its nodes is only told of"
    )
    if {"hang", "slow"} & c.restart and not c.act_on_running:
        out.append("note: hang and slow need act_on_running as well, as such a run has not ended")
    out.append(
        "a suspected node may be kept out of the next start"
        if c.exclude_nodes
        else "no node is kept out of the next start"
    )
    out.append("it takes effect only where the site's policy allows it; an empty restart list takes it back")
    if len(comment.encode()) > SLURM_COMMENT_MAX:
        out.append(f"note: scontrol takes comments of at most {SLURM_COMMENT_MAX} bytes")
    return True, out


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ConsentError("a key is given twice")
    return out


def _constant(word: str) -> Any:
    raise ConsentError(f"{word} is no JSON")


def _whole(digits: str) -> int:
    if len(digits) > 9:
        raise ConsentError("a number is too long")
    return int(digits)


def _depth(text: str) -> int:
    """Deepest nesting of brackets outside strings."""
    deepest = depth = 0
    inside = escaped = False
    for c in text:
        if inside:
            inside, escaped = not (c == '"' and not escaped), c == "\\" and not escaped
        elif c == '"':
            inside = True
        elif c in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif c in "]}":
            depth -= 1
    return deepest


def _shown(text: Any) -> str:
    return ascii(str(text)[:40])
