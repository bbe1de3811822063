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
        "--replay", required=True, type=Path, metavar="FILE", help="the stored inputs (JSON), or a row of the audit"
    )
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


def _restarts(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 100:
        raise argparse.ArgumentTypeError(f"'{text}': give a whole number from 0 to 100")
    return int(text)
