"""What those who waited tell of the one they waited for: four questions asked of the voices of a case.

In: a case, the cause that was judged (a symptom, or a line that points elsewhere), the layout. Out: a suspect, or why this question singles
nobody out ("" where it has nothing to say). Always: the printer of such a line is never the answer.
"""

from __future__ import annotations

from defib.engine.case import Case, key
from defib.engine.layout import Layout
from defib.engine.voices import PEER_CLASSES, bits, host
from defib.engine.words import Cause, Signal, Suspect

WITNESSES_MIN = 2
ACCUSED_MAX = 2  # Aegis (NSDI 2025): one or two hosts named by many are suspects, more are a network or an echo
SPOKE_MIN = 2  # a single rank that waited says nothing of the others
EVIDENCE_MAX = 8
Found = tuple[Suspect | None, str]


def by_names(case: Case, cause: Cause, layout: Layout) -> Found:
    """The library itself lists the ranks that did not come (desync report, monitored barrier)."""
    missing = sorted(case.voices.missing)
    node = layout.common_node(missing)
    if len(missing) > 1 and node is None:
        return None, f"the library names {ranks_of(missing)} as absent: too many to single one out"
    if not missing:
        return None, ""
    rank = missing[0] if len(missing) == 1 else None
    because = f"the library names {ranks_of(missing)} as absent" + (f", all on {node}" if rank is None else "")
    lines = lines_of(list(case.voices.missing.values()))
    return Suspect(rank, node or layout.node_of(rank), None, "behind-rank", "certain", because, lines), ""


def by_position(case: Case, cause: Cause, layout: Layout) -> Found:
    """The rank whose process group had come less far than everybody else's (PyTorch's flight recorder analysis asks the same).

    Ranks put work into the queue ahead at their own pace, so only who completed less, or has nothing outstanding while others wait, is behind.
    """
    behind: dict[int, str] = {}
    for _, told in sorted(case.voices.far.items()):
        least = min(told.values())
        low = [r for r, at in told.items() if at == least]
        rest = [at for at in told.values() if at != least]
        if len(told) <= SPOKE_MIN or not rest or 2 * len(low) >= len(told):
            continue
        if least[0] < min(done for done, _ in rest):
            position = f"had completed work {least[0]}, the others {min(done for done, _ in rest)}"
        elif least[1] <= least[0] < min(queued for _, queued in rest):
            position = f"had put nothing after work {least[1]} into the queue while the others waited for it"
        else:
            continue
        behind.update(dict.fromkeys(low, position))
    ranks = sorted(behind)
    node = layout.common_node(ranks)
    if not ranks or (len(ranks) > 1 and node is None):
        return None, f"{ranks_of(ranks)} had come less far than the others: too many to single one out" if ranks else ""
    rank = ranks[0] if len(ranks) == 1 else None
    because = f"{ranks_of(ranks)} {behind[ranks[0]]}"
    lines = lines_of([x for x in case.live if "completed" in x.fields and x.rank in behind])
    return Suspect(rank, node or layout.node_of(rank), None, "behind-rank", "likely", because, lines), ""


def by_silence(case: Case, cause: Cause, layout: Layout) -> Found:
    """The rank that printed no timeout where all others did, or the node none of whose ranks did."""
    waited = case.voices.waited
    spoke = bits(waited.ranks)
    if len(spoke) < SPOKE_MIN or waited.nameless or case.voices.large:
        return None, ""
    # Without a world size the ranks up to the greatest one known must exist.
    size = layout.world or max([*spoke, *layout.known]) + 1
    if size <= max(spoke):
        return None, ""
    silent = [r for r in range(size) if not waited.ranks >> r & 1]
    if not silent:
        return None, "every rank printed a timeout"
    node = layout.common_node(silent)
    if len(silent) > 1 and (node is None or len(spoke) < len(silent)):
        return None, f"{len(silent)} of {size} ranks printed no timeout: too many to single one out"
    rank = silent[0] if len(silent) == 1 else None
    sure = "likely" if layout.world is not None and len(spoke) > SPOKE_MIN else "possible"
    they = f"rank {rank} did not" if rank is not None else f"the {len(silent)} ranks of {node} did not"
    because = f"{len(spoke)} of {size} ranks printed that a collective timed out; {they}"
    lines = lines_of([x for x in case.live if x.rule == cause.signal.rule])
    return Suspect(rank, node or layout.node_of(rank), None, "silent-rank", sure, because, lines), ""


def by_peers(case: Case, cause: Cause, layout: Layout) -> Found:
    """One or two peers that several witnesses name: sockets and transfers break at the side that went away."""
    known = case.voices.addresses
    accused: dict[str, set[str]] = {}
    for name, witnesses in case.voices.accused.items():
        accused.setdefault(known.get(name, name), set()).update(witnesses)
    strong = {n: k for n, w in accused.items() if (k := _independent(w)) >= WITNESSES_MIN}
    if not strong:
        return None, ""
    if len(accused) > ACCUSED_MAX:
        return None, f"broken connections name {len(accused)} peers: a network, or echoes of echoes"
    order = sorted(strong, key=lambda n: (-strong[n], n))
    first = order[0]
    if len(order) > 1 and strong[first] < 2 * strong[order[1]]:
        return None, f"broken connections name both {first} and {order[1]}"
    rank = int(first[5:]) if first.startswith("rank ") else None
    node = layout.node_of(rank) if rank is not None else first
    because = f"{strong[first]} witnesses lost their connection to {first}"
    sure = "likely" if strong[first] > WITNESSES_MIN and len(accused) == 1 else "possible"

    def names_it(x: Signal) -> bool:
        peer = host(x.fields.get("peer", ""))
        return x.klass in PEER_CLASSES and first in (known.get(peer, peer), f"rank {x.fields.get('peer_rank')}")

    return Suspect(rank, node, None, "peer", sure, because, lines_of([x for x in case.live if names_it(x)])), ""


def _independent(witnesses: set[str]) -> int:
    """How many processes these are at least: one may be named by its rank here and by its node there."""
    ranks = sum(w.startswith("rank ") for w in witnesses)
    places = sum("/" in w for w in witnesses)
    return max(ranks, places, len(witnesses) - ranks - places)


def lines_of(signals: list[Signal]) -> tuple[Signal, ...]:
    """The first few of the lines that say so, in order."""
    once = {(s.stream, s.offset, s.rule): s for s in signals}
    return tuple(sorted(once.values(), key=key)[:EVIDENCE_MAX])


def ranks_of(ranks: list[int]) -> str:
    """Ranks in words, the first few of many."""
    shown = ", ".join(map(str, ranks[:6])) + (" …" if len(ranks) > 6 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
