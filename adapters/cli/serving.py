"""Commands of running jobs: watch, rebuild, slurm, status, config."""

from __future__ import annotations

from pathlib import Path

from defib.adapters.cli import options
from defib.adapters.cli.options import RAW

WATCH = """Follow the logs of running jobs (files, directories, globs; they may appear later) and tell every change of a run's health:
starting, healthy, slow, hung, dead, blind (its log cannot be read, or nothing in it is known) or ended. One line each: the local
time, the job, the attempt since the watch began, its health, what it was, and why. Without --slurm it runs no command, and without
--state it writes nothing. What --slurm may do to a job stands in the policy: as shipped, nothing.

Ctrl-C (exit code 130) or SIGTERM (0) ends it, with a summary on standard error; with --state running jobs stay open, and the next start
goes on with them.
"""
WATCH_END = """Silence is measured from when the watch began or the last line that arrived since, whatever stamps the lines carry.
Limits and their reasons are in rules/policy/detect.yaml; a file of your own with 'policy: detect' in a --rules folder changes them.

Without --slurm the scheduler is not asked: a suspended or pending job looks silent and is called hung in the end, and the log of a job
that ended without a word, or was killed, looks like a hang. Attempts are then judged when the watch ends; with --state only when it ends
by --once-idle.

example:
  defib watch /shared/logs 'runs/*/train.log' --every 10s
  defib watch /shared/logs --state /var/lib/defib; meanwhile: defib sql --db /var/lib/defib "SELECT * FROM live"
"""


def _watch(commands) -> None:  # type: ignore[no-untyped-def]
    p = commands.add_parser(
        "watch",
        help="follow running jobs and tell every change of their health",
        formatter_class=RAW,
        description=WATCH,
        epilog=WATCH_END,
    )
    p.add_argument("paths", nargs="*", metavar="PATH")
    p.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings of a service (see 'defib config example'); options win over it",
    )
    p.add_argument(
        "--every",
        type=options.duration,
        metavar="TIME",
        help="how often logs that grow are looked at (10s; 1m, 500ms); those quiet for ten minutes every 30s at most",
    )
    options.extra_rules(p)
    p.add_argument("--cluster", help="name of the cluster the logs come from")
    p.add_argument(
        "--slurm",
        action="store_true",
        default=None,
        help="ask Slurm which jobs run and follow their logs; needs --state and --root",
    )
    p.add_argument(
        "--ask-every", type=options.duration, metavar="TIME", help="how often Slurm is asked, once for all jobs (10s)"
    )
    options.asking(p)
    p.add_argument(
        "--jsonl", action="store_true", help="one JSON object per change, and per attempt when the watch ends"
    )
    p.add_argument(
        "--state",
        metavar="DIR",
        help="remember: keep a journal and the history in this folder (local disk), answer 'defib sql --db DIR' meanwhile, and go on from "
        "there at the next start",
    )
    p.add_argument(
        "--keep",
        type=options.volume,
        metavar="SIZE",
        help="of the journal, beyond which segments of closed jobs are deleted (20G)",
    )
    p.add_argument(
        "--sql-group", type=options.group, metavar="GROUP", help="a group whose members may ask the history too"
    )
    p.add_argument("--once-idle", type=options.duration, metavar="TIME", help="end when no log has grown for so long")
    p.set_defaults(run="watch:watch")
    r = commands.add_parser(
        "rebuild",
        help="make a history anew from a watch's journal",
        description="Make a history anew from the journal in a state folder. A running watch may go on meanwhile; what it writes after the "
        "start may be missing.",
    )
    r.add_argument("--state", required=True, metavar="DIR", help="the state folder of the watch")
    r.add_argument("--db", required=True, metavar="NEW", help="the history to make; must not be there yet")
    r.add_argument(
        "--salvage",
        action="store_true",
        help="of a damaged journal make what stands before the damage, and put the rest aside so that the watch can start again",
    )
    options.extra_rules(r)
    r.set_defaults(run="rebuild:rebuild")


def _slurm(commands) -> None:  # type: ignore[no-untyped-def]
    s = commands.add_parser("slurm", help="what the scheduler says, and whether it can be read from here")
    verbs = s.add_subparsers(title="verbs", metavar="VERB", required=True)
    p = verbs.add_parser(
        "look",
        help="read the scheduler once: jobs, where they write their logs, troubles",
        description="Read Slurm once, the way the daemon does: which form of its answers works, its jobs, where each writes, what is odd. It "
        "only reads. Exit code 3 when the scheduler could not be read.",
        epilog="example:\n  defib slurm look --prefix 'ssh head1' --shell --root /lustre --template '{work_dir}/logs/{job_id}/rank_*.log'",
        formatter_class=RAW,
    )
    options.asking(p)
    p.add_argument("--cluster", help="name to give the cluster (default: its own)")
    p.add_argument(
        "--deadline", type=options.duration, default=30_000_000, metavar="TIME", help="for each command (30s)"
    )
    p.add_argument("--json", action="store_true", help="one JSON document")
    p.set_defaults(run="slurm:look")


def _service(commands) -> None:  # type: ignore[no-untyped-def]
    s = commands.add_parser(
        "status",
        help="how a watch with a state folder is: logs, what is blind and why, rates, memory",
        description="Ask the watch that holds a state folder how it is. Exit code 3 when none answers.",
    )
    s.add_argument("--state", metavar="DIR", help="its state folder (default: $DEFIB_STATE or /var/lib/defib)")
    s.add_argument("--json", action="store_true", help="one JSON document")
    s.set_defaults(run="status:status")
    c = commands.add_parser("config", help="check, show and begin the configuration of a service")
    verbs = c.add_subparsers(title="verbs", metavar="VERB", required=True)
    for name, about in (
        ("check", "every fault of a configuration, with its line and mend"),
        ("show", "every key, what it is and who said so"),
    ):
        v = verbs.add_parser(name, help=about)
        v.add_argument("file", nargs="?", type=Path, metavar="FILE", help="(default: /etc/defib/defib.toml)")
        v.set_defaults(run=f"config:{name}")
        if name == "show":
            v.add_argument("--json", action="store_true", help="one JSON document")
    verbs.add_parser("example", help="a commented file with every key").set_defaults(run="config:show_example")
    verbs.add_parser("unit", help="a hardened service for systemd").set_defaults(run="config:unit")


def add(commands) -> None:  # type: ignore[no-untyped-def]
    """All of them."""
    _watch(commands)
    _service(commands)
    _slurm(commands)
