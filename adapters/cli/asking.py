"""Options of the commands about acting: policy, consent, decide, whatif."""

from __future__ import annotations

import argparse
from pathlib import Path

from defib.adapters.cli import options
from defib.adapters.cli.options import RAW


def add(commands) -> None:  # type: ignore[no-untyped-def]
    """All of them."""
    p = commands.add_parser("policy", help="check policy files")
    verbs = p.add_subparsers(title="verbs", metavar="VERB", required=True)
    c = verbs.add_parser("check", help="every fault of policy files at its line, or what they change against ours")
    c.add_argument("files", nargs="+", type=Path, metavar="FILE", help="laid over the shipped ones in this order")
    c.add_argument("--json", action="store_true", help="one JSON document")
    c.set_defaults(run="policy:check")
    o = commands.add_parser("consent", help="print or explain the job comment by which its owner lets defib restart it", formatter_class=RAW,
        description="Print the comment by which a job's owner lets defib restart it. It says that the script resumes from its own checkpoint.",
        epilog="examples:\n  sbatch --requeue --comment=\"$(defib consent --restart crash)\" train.sh\n"
        "  defib consent --check \"$(squeue -h -j 4711 -o %k)\"")  # fmt: skip
    o.add_argument("--restart", metavar="KIND[,…]", help="crash, hang, slow, timeout")
    o.add_argument("--max-restarts", type=_restarts, metavar="N", help="at most so many restarts of this job in all")
    o.add_argument("--act-on-running", action="store_true", help="also end a run that holds its nodes and hangs")
    o.add_argument("--no-exclude", action="store_true", help="keep no node out of the next start")
    o.add_argument("--revoke", action="store_true", help="print the comment that takes consent back")
    o.add_argument("--how", action="store_true", help="also how to give it to Slurm")
    o.add_argument("--check", metavar="TEXT", help="explain this comment; exit 1 where it is no consent")
    o.set_defaults(run="policy:consent")
    d = commands.add_parser("decide", help="make a stored decision again and show every gate")
    d.add_argument(
        "--replay", required=True, metavar="ID|FILE",
        help="a decision of the history by its id ('defib why JOB' names it), or a file with its inputs or with a row of the audit",
    )  # fmt: skip
    options.database(d)
    d.add_argument("--json", action="store_true", help="one JSON document")
    d.set_defaults(run="policy:decide")
    w = commands.add_parser("whatif", help="which advices another policy would have given over the recorded history")
    w.add_argument(
        "--policy",
        required=True,
        action="append",
        type=Path,
        metavar="FILE",
        help="laid over the present policy (repeatable)",
    )
    options.database(w)
    w.add_argument("--json", action="store_true", help="one JSON document")
    w.set_defaults(run="policy:whatif")

    _acting(commands)


def _acting(commands) -> None:  # type: ignore[no-untyped-def]
    a = commands.add_parser("act", help="what a watch that recovers asks of people, and what they say to it")
    verbs = a.add_subparsers(title="verbs", metavar="VERB", required=True)
    ls = verbs.add_parser("list", help="plans that wait for a person, cases under way, open breakers")
    ls.add_argument("--json", action="store_true", help="one JSON document")
    _state(ls)
    ls.set_defaults(run="acting:list_asked")
    for word, target, about in (
        ("approve", "CASE", "let the plan that waits be carried out (only the very one that is shown)"),
        ("refuse", "CASE", "let nothing be done about it"),
        ("regret", "CASE", "what was done was wrong: nothing more is done until the breaker is closed"),
        ("settle", "CASE", "a person has taken care of it"),
        ("close", "BREAKER", "its reason is gone"),
    ):
        w = verbs.add_parser(word, help=about)
        w.add_argument("target", metavar=target)
        w.add_argument("--why", metavar="TEXT", help="kept with it")
        _state(w)
        w.set_defaults(run="acting:say", word=word)
    e = commands.add_parser("evidence", help="hand in what other diagnosers or people know of a node or a job")
    added = e.add_subparsers(title="verbs", metavar="VERB", required=True)
    d = added.add_parser(
        "add", help="evidence against a node or GPU; or that a job does not move, seen from outside its log"
    )
    d.add_argument("--node", metavar="NODE")
    d.add_argument("--gpu", metavar="GPU")
    d.add_argument("--job", metavar="JOB", help="this job does not move (1234 or 1234_5)")
    d.add_argument("--source", required=True, metavar="NAME", help="who says so: nhc, dcgm, gpud, a person")
    d.add_argument(
        "--class", dest="klass", default="gpu-hardware", metavar="CLASS", help="of rules/classes.yaml (gpu-hardware)"
    )
    d.add_argument("--confidence", choices=("certain", "likely", "possible"), default="likely")
    d.add_argument(
        "--expires", type=options.lasting, default=86_400_000_000, metavar="TIME", help="how long it counts (24h)"
    )
    d.add_argument("--because", metavar="TEXT")
    _state(d)
    d.set_defaults(run="acting:evidence")
    u = commands.add_parser("audit", help="what was decided and done, and why not more")
    kinds = u.add_subparsers(title="verbs", metavar="VERB", required=True)
    v = kinds.add_parser("verify", help="checksums, hash chain, no row missing")
    v.add_argument("--json", action="store_true", help="one JSON document")
    _state(v)
    v.set_defaults(run="acting:verify")
    sh = kinds.add_parser("show", help="every row, or those about one job")
    sh.add_argument("job", nargs="?", metavar="JOB")
    sh.add_argument("--json", action="store_true", help="one JSON document")
    _state(sh)
    sh.set_defaults(run="acting:show")


def _state(p) -> None:  # type: ignore[no-untyped-def]
    p.add_argument("--state", metavar="DIR", help="the watch's state folder (default: $DEFIB_STATE or /var/lib/defib)")


def _restarts(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 100:
        raise argparse.ArgumentTypeError(f"'{text}': give a whole number from 0 to 100")
    return int(text)
