"""What the cluster says of itself, and what its accounting remembers.

In: `scontrol show config`, `sacct` with a divider of our own. Out: ClusterFacts, PastRuns. Always: a setting that is not said or not understood
is its documented default or None; rows that are half written are left out and told.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from defib.adapters.show import cut, safe
from defib.adapters.slurm import shapes
from defib.adapters.slurm.hosts import expand
from defib.engine.jobs import ClusterFacts, PastRun

PAST = "JobIDRaw,JobID,UID,State,ExitCode,NodeList,Submit,Start,End"
CRED_EXPIRE_S, CRED_EXPIRE_MIN_S = 120, 5  # a smaller one counts as the default
_CODES = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?", re.ASCII)


def settings(data: bytes) -> dict[str, str]:
    """`scontrol show config`: key -> value, of lines `Key = value`. `(null)` is empty."""
    found: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").split("\n"):
        key, mark, value = line.partition("=")
        if mark and key.strip():
            found.setdefault(key.strip(), "" if value.strip() == "(null)" else value.strip())
    return found


def facts(
    s: Mapping[str, str], name: str | None, *, sluids: bool, up: bool | None, ping_s: float | None
) -> ClusterFacts:
    """The settings that matter here. name: our own for the cluster, else the one it gives itself."""
    return ClusterFacts(
        name=name or shapes.clean(s.get("ClusterName", "")),
        version=tuple(int(n) for n in re.findall(r"\d+", s.get("SLURM_VERSION", ""))[:3]),
        booted_us=_time(s.get("BOOT_TIME")),
        first_job_id=_int(s.get("FirstJobId")),
        requeue_delay_s=_delay(s),
        message_timeout_s=float(_int(s.get("MessageTimeout")) or 10),
        min_job_age_s=float(300 if (age := _int(s.get("MinJobAge"))) is None else age),
        job_requeue=_int(s.get("JobRequeue")) != 0,
        append=_int(s.get("JobFileAppend")) == 1,
        requeue_exits=_codes(s.get("RequeueExit", "")),
        requeue_hold_exits=_codes(s.get("RequeueExitHold", "")),
        sluids=sluids,
        up=up,
        ping_s=ping_s,
    )


def _time(value: str | None) -> int | None:
    try:
        return shapes.time_us(value)
    except ValueError:
        return None


def _int(value: str | None) -> int | None:
    """The number a setting begins with: `10 sec`."""
    found = re.match(r"\d{1,10}", value or "", re.ASCII)
    return int(found[0]) if found else None


def _delay(s: Mapping[str, str]) -> float | None:
    """How long a requeued job waits: requeue_delay where it is set, else the lifetime of a credential and a second (measured). None where the
    settings were not told."""
    if "AuthInfo" not in s and "SchedulerParameters" not in s:
        return None
    if (own := _parameter(s.get("SchedulerParameters", ""), "requeue_delay")) is not None:
        return float(own)
    expire = _parameter(s.get("AuthInfo", ""), "cred_expire")
    return float(CRED_EXPIRE_S if expire is None or expire < CRED_EXPIRE_MIN_S else expire) + 1


def _parameter(words: str, name: str) -> int | None:
    return next((_int(v) for k, _, v in (w.partition("=") for w in words.split(",")) if k.strip() == name), None)


def _codes(words: str) -> frozenset[int]:
    """`5,7-9` -> 5, 7, 8, 9."""
    found = [(int(m[1]), int(m[2] or m[1])) for m in _CODES.finditer(words)]
    return frozenset(n for low, high in found for n in range(low, min(high, 255) + 1))


def utc(us: int) -> str:
    """A moment as Slurm's commands take it, where TZ is UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(us // 1_000_000))


def past(data: bytes, divider: str) -> tuple[tuple[PastRun, ...], tuple[str, ...]]:
    """What `sacct -X -D -n -P --delimiter=… -o PAST` printed, and what could not be read."""
    runs, troubles = [], []
    for line in data.decode("utf-8", "replace").split("\n"):
        if not line:
            continue
        try:
            runs.append(_run(line.split(divider)))
        except ValueError:
            troubles.append(f"a row of the accounting cannot be read: {cut(safe(line.split(divider)[0]), 40)}")
    return tuple(runs), tuple(troubles)


def _run(words: list[str]) -> PastRun:
    job, label, uid, state, code, nodes, submit, start, end = words
    if not state or not uid:
        raise ValueError("half written")
    exit_code, sig = shapes.exit_of(code)
    return PastRun(
        shapes.needed(job, "job id"), shapes.clean(label), shapes.number(uid), state.split(" ")[0].rstrip("+"), shapes.time_us(submit),
        shapes.time_us(start), shapes.time_us(end), exit_code, sig, expand(nodes),
    )  # fmt: skip
