"""Which errors may be named at all: those nobody caught, that repeat no earlier one, and that can have stopped what stopped.

In: the claims (roots and candidates) of a case. Out: fewer of them, in the same order. What is taken out is a consequence or background.
"""

from __future__ import annotations

from defib.engine.case import (
    BAND_LINES,
    HARD,
    LOOK_BACK_MARGIN_US,
    SKEW_US,
    Case,
    began_us,
    in_band,
    key,
    stands_alone,
    strength,
)
from defib.engine.words import Signal

BURST_US = 180_000_000  # Xids of one GPU within so long are one event (NVSentinel's window)
Source = tuple[str, object, object]


def countable(case: Case, claims: list[Signal]) -> list[Signal]:
    """Claims that may be the first cause."""
    return outlived(case, looked_back(case, without_echoes(case, [s for s in claims if not ignored(case, s)])))


def ignored(case: Case, s: Signal) -> bool:
    """The interpreter caught this one on its way out: a line saying so stands before it, in the same traceback."""
    if s.role != "candidate":
        return False
    near = [x for x in case.trace_of(s).kept if 0 <= s.line - x.line <= BAND_LINES and x.offset <= s.offset]
    marks = [x for x in near if x.mark == "ignored"]
    if not marks:
        return False
    since = marks[-1].offset
    return sum(x.role == "wrapper" and x.offset > since for x in near) <= 1


def without_echoes(case: Case, claims: list[Signal]) -> list[Signal]:
    """Claims less those that only repeat an earlier one: a CUDA error stays with its process, a GPU's fault comes in bursts of Xids.

    Of a burst the strongest kind leads ("keep the primary", arXiv 2503.11901), else the first.
    """
    echoes: set[int] = set()
    leaders: dict[Source, Signal] = {}
    stamped = all(s.order_us is not None for s in claims)
    for s in sorted(claims, key=key if stamped else lambda s: (0, s.stream, s.offset)):
        for who in _sources(case, s):
            lead = leaders.get(who)
            if lead is None or not _same_event(lead, s, burst=who[0] == "gpu"):
                leaders[who] = s
            elif strength(s) < strength(lead) and (who[0] == "gpu" or strength(s) == 0):
                echoes.add(id(lead))
                leaders[who] = s
            else:
                echoes.add(id(s))
    return [s for s in claims if id(s) not in echoes]


def _sources(case: Case, s: Signal) -> list[Source]:
    """The process whose CUDA state, and the GPU whose fault, a claim tells of."""
    out: list[Source] = []
    rule = case.book.by_id.get(s.rule)
    if rule is not None and "sticky" in rule.traits and case.rank_of(s) is not None:
        out.append(("process", case.rank_of(s), None))
    pci = s.fields.get("pci")
    if pci is not None and (s.domain == "gpu" or (rule is not None and rule.table is not None)):
        out.append(("gpu", s.node, pci.partition(".")[0].lower()[-7:]))
    return out


def _same_event(lead: Signal, s: Signal, *, burst: bool) -> bool:
    if not burst:
        return True
    if lead.order_us is not None and s.order_us is not None:
        return s.order_us - lead.order_us <= BURST_US
    return lead.stream == s.stream and in_band(lead, s)


def looks_back(case: Case, s: Signal) -> str | None:
    """The capture a timeout line's rule looks back through; None for all others."""
    rule = case.book.by_id.get(s.rule)
    return rule.looks_back if rule is not None else None


def looked_back(case: Case, claims: list[Signal]) -> list[Signal]:
    """Claims that can have stopped the collective that timed out first: from before it began until the first timeout was printed.

    Kernel and fabric lines always stay: their clock may be another zone's.
    """
    claims = [s for s in claims if not _waited_too(case, s)]
    waits = [(began, s) for s in case.live if (began := began_us(s, looks_back(case, s))) is not None]
    if not waits:
        return claims
    opens = min(began for began, _ in waits) - LOOK_BACK_MARGIN_US
    closes = min(s.order_us for _, s in waits if s.order_us is not None) + SKEW_US

    def early(s: Signal) -> bool:
        return s.order_us is not None and s.domain not in HARD and s.order_us < opens

    def late(s: Signal) -> bool:
        return s.order_us is not None and s.domain not in HARD and s.order_us > closes and not stands_alone(s)

    before = next((s for s in claims if early(s)), None)
    if before is not None:
        where = f"{before.rule} at line {before.line}"
        case.notes.append(f"{where} was printed long before the collective that timed out began: not its cause")
    return [s for s in claims if not early(s) and not late(s)]


def _waited_too(case: Case, s: Signal) -> bool:
    """Whoever waited in the collective itself had come as far as all others: an error it might have caught did not stop it."""
    return s.role == "candidate" and _among(case, s, case.voices.waited.ranks)


def outlived(case: Case, claims: list[Signal]) -> list[Signal]:
    """Where somebody's death is told, an error that might have been caught does not count for a process that lived to complain of others."""
    lived = {id(s) for s in claims if s.role == "candidate" and lived_on(case, s)}
    others = any(id(s) not in lived and (s.rank is not None or stands_alone(s)) for s in claims)
    return [s for s in claims if id(s) not in lived] if lived and others else claims


def lived_on(case: Case, s: Signal) -> bool:
    """Its printer is among those who noticed that others went away: the first to die does not."""
    return _among(case, s, case.voices.noticed.ranks)


def _among(case: Case, s: Signal, ranks: int) -> bool:
    rank = case.rank_of(s)
    return rank is not None and bool(ranks >> rank & 1)
