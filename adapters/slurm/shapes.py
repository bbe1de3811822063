"""One value as some release of Slurm prints it -> the value. By shape, never by version.

A number may be plain, text, or {set, infinite, number}; a state one word or a list; an exit code a wait status, `3:0`, or an object; a time
seconds or ISO text in UTC. What is unset, unlimited or one of Slurm's marks for "no value" is None. Odd shapes raise ValueError, so that the
record is left out and named instead of half believed.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Mapping
from time import strptime
from typing import Any

from defib.engine.jobs import BASE_STATES, FLAGS

# NO_VAL and INFINITE of 32 and 64 bits (slurm.h), as plain numbers print them. Those of 16 bits are user ids, too.
NO_VALUES = frozenset([0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF])
EMPTY = ("", "(null)", "N/A", "n/a", "None", "NONE", "Unknown", "None assigned")
# Where a release prints only the flag that wins, the base state it stands for. COMPLETING may go with any.
IMPLIED = {
    "CONFIGURING": "RUNNING", "STOPPED": "RUNNING", "RESIZING": "RUNNING", "SIGNALING": "RUNNING",
    "REQUEUED": "PENDING", "REQUEUE_HOLD": "PENDING", "REQUEUE_FED": "PENDING", "SPECIAL_EXIT": "PENDING",
    "RESV_DEL_HOLD": "PENDING",
}  # fmt: skip
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", re.ASCII)
_PER_NODE = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?:[:=/](?!\d+(?:,|$))[\w.-]+)?(?:[:=](\d{1,6}))?(?=,|$)", re.ASCII)
_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)


def number(value: Any) -> int | None:
    """A whole number, None where there is none."""
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite", False):
            return None
        value = value.get("number")
    if value is None:
        return None
    if isinstance(value, str):
        if value in EMPTY or value == "UNLIMITED":
            return None
        if not _INTEGER.fullmatch(value):
            raise ValueError("a number that is none")
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise ValueError("a number that is none")
    return None if value in NO_VALUES else int(value)


def needed(value: Any, what: str) -> int:
    """A number no record is understood without."""
    if (found := number(value)) is None:
        raise ValueError(f"no {what}")
    return found


def time_us(value: Any) -> int | None:
    """Microseconds; 0 is "not yet". Text is seconds, or a UTC stamp."""
    if isinstance(value, str) and "T" in value:
        try:
            return timegm(strptime(value, "%Y-%m-%dT%H:%M:%S")) * 1_000_000
        except ValueError:
            raise ValueError("a time that is none") from None
    seconds = number(value)
    return seconds * 1_000_000 if seconds else None


def minutes_s(value: Any) -> int | None:
    """A time limit in minutes, or as `1-12:00:00`, in seconds. None is no limit."""
    if isinstance(value, str) and (found := _DURATION.fullmatch(value)):
        days, hours, mins, secs = (int(n or 0) for n in found.groups())
        return ((days * 24 + hours) * 60 + mins) * 60 + secs
    if isinstance(value, str) and value in ("UNLIMITED", "Partition_Limit", "NOT_SET", "INVALID"):
        return None
    found_minutes = number(value)
    return found_minutes * 60 if found_minutes is not None else None


def truth(value: Any) -> bool | None:
    """Yes or no; None where it is not said."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("yes", "no"):
        return value.lower() == "yes"
    found = number(value)
    return None if found is None else found != 0


def text(value: Any) -> str:
    """Text as the record has it: bytes that are no UTF-8 may be in it as lone surrogates."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError("a text that is none")  # noqa: TRY004 - one kind of error for all odd shapes
    return value


def clean(value: str) -> str:
    """The same text, valid: whatever a user put into it can be stored and printed."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def raw(value: str) -> bytes:
    """The bytes a text was."""
    return value.encode("utf-8", "surrogateescape")


def state(value: Any) -> tuple[str, frozenset[str]]:
    """(base state, flags). The base is "" where only a flag was printed that goes with any."""
    words = value if isinstance(value, list) else re.split(r"[\s,+]+", text(value))
    if words and words[0] == "CANCELLED":
        words = words[:1] if "by" in words else words  # `CANCELLED by 1001` of sacct
    known = [text(w).strip("*~#%$@!^-").upper() for w in words if w]
    if not known:
        raise ValueError("no state")
    base = next((w for w in known if w in BASE_STATES), None)
    flags = frozenset(w for w in known if w != base)
    if base is None:
        base = next((IMPLIED[w] for w in known if w in IMPLIED), "")
        if not base and not flags & FLAGS:
            raise ValueError("a state nobody knows")
    return base, flags


def exit_of(value: Any) -> tuple[int | None, int | None]:
    """(code, signal) of what ran; a signal of None is none."""
    if isinstance(value, Mapping) and ("return_code" in value or "signal" in value):
        inner = value.get("signal")
        inner = inner if isinstance(inner, Mapping) else {}
        sig = number(inner.get("id", inner.get("signal_id"))) or None
        code = number(value.get("return_code"))
        return 0 if sig and code is None else code, sig
    if isinstance(value, str) and ":" in value:
        left, _, right = value.partition(":")
        return number(left), number(right) or None
    status = number(value)
    if status is None:
        return None, None
    # A wait status: the low seven bits are the signal, the next byte the code (wait(2)).
    return (0, status & 0x7F) if status & 0x7F else (status >> 8 & 0xFF, None)


def gpus(*tres: str) -> int | None:
    """GPUs out of the first trackable-resources text that names any: `cpu=2,gres/gpu=4` or only typed, `gres/gpu:h100=4`."""
    for words in tres:
        counts = dict(w.rsplit("=", 1) for w in words.split(",") if w.startswith("gres/gpu") and "=" in w)
        found = (
            [counts["gres/gpu"]]
            if "gres/gpu" in counts
            else [n for k, n in counts.items() if k.startswith("gres/gpu:")]
        )
        if found:
            return sum(needed(n, "GPU count") for n in found)
    return None


def per_node(words: str) -> int | None:
    """GPUs out of what was asked for on a node: `gres:gpu:2`, `gres/gpu:h100=4,gres/shm=1`."""
    found = [m[1] or "1" for m in _PER_NODE.finditer(words)]
    return sum(map(int, found)) if found else None
