"""What stops every call: many failures at once, calls that did not do what they should, another actor, and being blind or unwell ourselves.

In: desk. Out: breakers opened, half-opened and closed, each recorded. Always: an open breaker stops calls and nothing else; evidence, decisions
and messages go on. It is reviewed after every event, and a second review of unchanged facts changes nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from defib.engine.recover.budgets import HOUR
from defib.engine.recover.desk import Desk
from defib.engine.recover.inputs import SECOND
from defib.engine.recover.words import FINAL, Breaker

BY_HAND = frozenset(["regret", "amnesia"])  # closed by a person only
BY_CONDITION = frozenset(["blind", "scheduler", "health"])  # open while a condition holds and for a while after


def review(desk: Desk) -> None:
    """Open what has to be open; let one call try where it was open long enough; close what has proved itself."""
    tripped = _tripped(desk)
    for name, because in tripped.items():
        b = desk.breakers.get(name)
        if b is None or b.state != "open":
            set_state(desk, name, "open", because)
    for name, b in list(desk.breakers.items()):
        if b.state == "open" and name not in BY_HAND:
            _wait(desk, b, name in tripped)
        elif b.state == "half-open":
            _tried(desk, b)


def set_state(
    desk: Desk, name: str, state: Literal["open", "half-open", "closed"], because: str, who: str = ""
) -> None:
    """The breaker in this state from now on; recorded and told."""
    before = desk.breakers[name].state if name in desk.breakers else "closed"
    desk.breakers[name] = Breaker(name, state, desk.now_us, because)
    desk.record("breaker", before, state, f"{name}: {because}", breaker=desk.breakers[name], who=who)
    if state == "open":
        desk.notify("breaker", f"breaker:{name}:{desk.now_us}", f"no more restarts: {name}: {because}")


def _wait(desk: Desk, b: Breaker, still: bool) -> None:
    p = desk.rules.policy.breakers
    if b.name in BY_CONDITION:
        if still:
            desk.breakers[b.name] = dataclasses.replace(b, since_us=desk.now_us)
        elif desk.age_s(b.since_us) >= p.quiet_s:
            set_state(desk, b.name, "closed", "it has passed")
    elif b.name.startswith("flood:"):
        if not still and desk.age_s(b.since_us) >= p.half_open_s:
            set_state(desk, b.name, "closed", "it has passed")
    elif desk.age_s(b.since_us) >= p.half_open_s:
        set_state(desk, b.name, "half-open", "one call may try")


def _tried(desk: Desk, b: Breaker) -> None:
    case = desk.cases.get(b.trial) if b.trial else None
    if b.trial and case is None:
        set_state(desk, b.name, "open", "what became of the call that tried is not known")
    elif case is not None and case.state in FINAL | {"unknown", "not-done"}:
        good = case.state == "recovered"
        set_state(desk, b.name, "closed" if good else "open", f"the call that tried: {case.state}")


def _tripped(desk: Desk) -> dict[str, str]:
    """Breakers whose condition holds by what was seen since they were last closed, with the reason."""
    out: dict[str, str] = {}
    _correlated(desk, out)
    _verify(desk, out)
    _conditions(desk, out)
    p = desk.rules.policy.breakers
    for user, times in desk.alerts.items():
        recent = sum(desk.now_us - t < HOUR for t in times)
        if recent > p.alerts_per_hour:
            out[f"flood:{user}"] = f"{recent} verdicts about one user's jobs in an hour"
    return out


def _since(desk: Desk, name: str) -> int:
    """Nothing that lay before a breaker was half-opened or closed opens it again."""
    b = desk.breakers.get(name)
    return b.since_us if b is not None else 0


def _correlated(desk: Desk, out: dict[str, str]) -> None:
    p = desk.rules.policy.breakers
    after = max(_since(desk, "correlated"), desk.now_us - int(p.correlated_within_s * SECOND))
    recent = [s for s in desk.suspected if s[0] >= after]
    if len(recent) < p.correlated_lineages:
        return
    lineages, users = len({s[1] for s in recent}), len({s[2] for s in recent})
    if lineages < p.correlated_lineages:
        return
    share = desk.running_jobs is not None and lineages > p.correlated_share * desk.running_jobs
    if users >= p.correlated_users or share:
        out["correlated"] = f"{lineages} jobs of {users} users in trouble within {p.correlated_within_s:g} s"


def _verify(desk: Desk, out: dict[str, str]) -> None:
    p = desk.rules.policy.breakers
    if not desk.outcomes or desk.age_s(desk.outcomes[-1][0]) >= p.verify_within_s:
        return
    for name, limits in (
        ("verify", {"unknown": p.unknown, "stranded": p.stranded, "not-recovered": p.not_recovered}),
        ("surprise", {"satisfied-by-other": p.surprises}),
    ):
        after = max(_since(desk, name), desk.now_us - int(p.verify_within_s * SECOND))
        for state, limit in limits.items():
            count = sum(at >= after and s == state for at, s in desk.outcomes)
            if count >= limit:
                out[name] = f"{count} calls ended as {state} within {p.verify_within_s:g} s"


def _conditions(desk: Desk, out: dict[str, str]) -> None:
    p, v = desk.rules.policy.breakers, desk.vitals
    if v is not None:
        if v.mounts_hung:
            out["blind"] = f"{len(v.mounts_hung)} mounts do not answer"
        elif v.streams and v.blind is not None and v.blind > p.blind_share * v.streams:
            out["blind"] = f"{v.blind} of {v.streams} logs cannot be vouched for"
        if v.lag_s is not None and v.lag_s > p.lag_s:
            out["health"] = f"we lag by {v.lag_s:g} s"
        elif v.stepped_us is not None and desk.age_s(v.stepped_us) < p.crash_s:
            out["health"] = "the clock jumped"
    if desk.crashed_us is not None and desk.age_s(desk.crashed_us) < p.crash_s:
        out["health"] = "we crashed lately"
    if desk.read_trouble:
        out["scheduler"] = desk.read_trouble
    if desk.forgot:
        out["amnesia"] = desk.forgot


def read_trouble(desk: Desk) -> str:
    """What is wrong with the scheduler's latest answers; empty where nothing is. Asked for after each of them."""
    p = desk.rules.policy.breakers
    reads = list(desk.reads)[-p.scheduler_reads :]
    if len(reads) < min(5, p.scheduler_reads):
        return ""
    failed = sum(not ok for _, ok, _ in reads)
    slow = sorted(took for _, _, took in reads)[min(len(reads) - 1, int(0.95 * len(reads)))]
    if failed > p.scheduler_errors * len(reads):
        return f"{failed} of {len(reads)} reads failed"
    return f"reads take {slow:.1f} s" if slow > p.scheduler_p95_s else ""
