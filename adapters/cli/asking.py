"""Options of the commands about acting: policy, consent, decide."""

from __future__ import annotations

import argparse
from pathlib import Path

RAW = argparse.RawDescriptionHelpFormatter


def add(commands) -> None:  # type: ignore[no-untyped-def]
    """All of them."""
    _policy(commands)
    _consent(commands)
    d = commands.add_parser("decide", help="make a stored decision again from its inputs, gate by gate")
    d.add_argument(
        "--replay", required=True, type=Path, metavar="FILE", help="the inputs of a decision, as the audit keeps them"
    )
    d.add_argument("--json", action="store_true", help="one JSON document")
    d.set_defaults(run="policy:decide")


def _policy(commands) -> None:  # type: ignore[no-untyped-def]
    p = commands.add_parser("policy", help="check what a site allows")
    verbs = p.add_subparsers(title="verbs", metavar="VERB", required=True)
    c = verbs.add_parser(
        "check", help="lay policy files over the shipped ones; every fault with its line, every change"
    )
    c.add_argument("files", nargs="+", type=Path, metavar="FILE")
    c.add_argument("--json", action="store_true", help="one JSON document")
    c.set_defaults(run="policy:check")


def _consent(commands) -> None:  # type: ignore[no-untyped-def]
    p = commands.add_parser(
        "consent",
        help="the comment by which the owner of a job allows restarts",
        description="Print a job comment by which its owner allows restarts, or explain one. It narrows what the site's policy allows; without\n"
        "it nothing is ever done to a job. Giving it says that the script resumes from its own checkpoint.",
        epilog='examples:\n  defib consent --restart crash,hang --max-restarts 3\n  defib consent --check \'{"defib": {"restart": []}}\'',
        formatter_class=RAW,
    )
    p.add_argument("--restart", default="crash", metavar="KINDS", help="of crash, hang, slow, timeout (crash)")
    p.add_argument("--max-restarts", type=int, metavar="N", help="at most so many in all")
    p.add_argument("--act-on-running", action="store_true", help="also while a hung run still holds its nodes")
    p.add_argument("--keep-nodes", action="store_true", help="do not keep suspected nodes out of the next start")
    p.add_argument("--check", metavar="COMMENT", help="explain a comment ('-': from standard input)")
    p.add_argument("--json", action="store_true", help="one JSON document")
    p.set_defaults(run="policy:consent")
