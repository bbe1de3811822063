"""`defib nodes`: what the history holds against each node, and which might be kept out. Only says; changes nothing."""

from __future__ import annotations

import argparse
import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from defib.adapters.cli.query import ask
from defib.adapters.show import printable, safe, when

if TYPE_CHECKING:
    from defib.engine.nodes import NodeFact, NodeJudged

FACTS = "SELECT node, gpu, epoch_us(time), class, confidence, lineage, incident_id, breadth, source FROM node_facts"
LATEST = "SELECT epoch_us(max(time)) FROM (SELECT time FROM incidents UNION ALL SELECT time FROM node_facts)"


def nodes(args: Any) -> int:
    """Judge every suspected node as of a moment and tell it."""
    from defib.adapters import rulefiles
    from defib.adapters.cli.tables import as_json, write_json
    from defib.adapters.history import open_history
    from defib.engine.nodes import Fleet, NodeFact, judge
    from defib.engine.policies import NodesPolicy

    book = rulefiles.load(args.rules).book
    policy = book.policy(NodesPolicy)
    con = open_history(args.db)
    facts = [
        NodeFact(node, gpu, us, klass or "", sure, job, incident, None, breadth, source)
        for node, gpu, us, klass, sure, job, incident, breadth, source in ask(con, args.db, FACTS, []).fetchall()
    ]
    latest = con.execute(LATEST).fetchall()[0][0]
    con.close()
    now = args.as_of if args.as_of is not None else latest or 0
    fleet = Fleet(args.cluster_nodes, frozenset(printable(n) for n in args.kept_out))
    judged = judge(facts, book.class_by_id, policy, now, fleet)
    if args.json:
        rows = [as_json(_object(j)) for j in judged]
        document = {"schema": "defib/nodes/1", "as_of": _moment(now), "cluster_nodes": fleet.nodes, "rows": rows}
        write_json(document)
        return 0
    at = "as told" if args.as_of is not None else "the newest incident of the history"
    print("\n".join(tell(judged, facts, f"As of {when(now)} UTC ({at})" if now else "No incident has a time")))
    return 0


def tell(judged: tuple[NodeJudged, ...], facts: list[NodeFact], head: str) -> list[str]:
    """The page: candidates first, then the rest, each with the sentence and the places it rests on."""
    out = [head]
    if not judged:
        return [
            *out,
            "",
            "No incident of this history points at a node." if not facts else "No incident was known by then.",
        ]
    for title, rows in (
        ("MIGHT BE KEPT OUT - for a person to confirm; defib changes nothing", [j for j in judged if j.candidate]),
        ("LEFT IN", [j for j in judged if not j.candidate]),
    ):
        if rows:
            out += ["", title]
        for j in rows:
            out += [f"  {safe(j.node)}: {safe(j.because)}"]
            for e in j.evidence:
                place = f"GPU {e.gpu}: " if e.gpu is not None else ""
                count = f"{e.incidents} incident{'' if e.incidents == 1 else 's'} of {e.jobs} job{'' if e.jobs == 1 else 's'}"
                out.append(
                    f"    {safe(place)}{count}, weight {e.weight:.2f}, last {when(e.last_us)}: {safe(', '.join(e.classes))}"
                )
    if not any(j.candidate for j in judged):
        out += ["", "No node has to be kept out."]
    return out


def _object(j: NodeJudged) -> dict[str, Any]:
    """One node as `--json` prints it."""
    places = [
        {
            **{k: v for k, v in dataclasses.asdict(e).items() if k not in ("node", "last_us")},
            "last_time": _moment(e.last_us),
        }
        for e in j.evidence
    ]
    return {
        "node": j.node, "candidate": j.candidate, "because": j.because, "weight": round(j.weight, 6), "until": _moment(j.until_us),
        "evidence": places,
    }  # fmt: skip


def _moment(us: int | None) -> datetime | None:
    return None if us is None else datetime.fromtimestamp(us / 1e6, UTC).replace(tzinfo=None)


def moment(text: str) -> int:
    """`2026-12-01`, `2026-12-01T02:30`, `…Z`, `…+01:00` as microseconds UTC; without a zone it is UTC, as logs are read."""
    try:
        at = datetime.fromisoformat(text)
        us = round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1e6)
    except (ValueError, OverflowError) as e:
        raise argparse.ArgumentTypeError(
            f"'{text}': give a time such as 2026-12-01T02:30 or 2026-12-01T02:30+01:00"
        ) from e
    return us
