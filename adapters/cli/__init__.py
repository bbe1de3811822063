"""The command line: parsing, dispatch, exit codes. Heavy parts are imported by the command that needs them.

Exit codes: 0 done; 1 something was found (rule problems, `--fail-on`); 2 usage; 3 the world refused (unreadable input,
store in use); 70 a bug of ours; 130 interrupted, whole jobs kept.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from pathlib import Path

from defib import __version__
from defib.adapters.cli import asking

EPILOG = """examples:
  defib replay logs/                         read finished logs, print what happened to each run
  defib watch logs/                          follow running jobs, tell every change of their health
  defib why 884123                           the story of one job (or of one log file)
  defib sql "SELECT * FROM suspects"         anything else
  defib check-log train.out                  what is recognised in a log, and what is not
"""
RAW = argparse.RawDescriptionHelpFormatter


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if not hasattr(args, "run"):
        parser.print_help()
        return 2
    from defib.engine.errors import DefibError, ProblemsError

    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - a closed stream stays away for the whole run
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character gets its escape, not a traceback
            stream.reconfigure(errors="backslashreplace")
    try:
        code = int(_command(args.run)(args))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG):
            raise
        print(f"defib: the output cannot be written: {e.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 3
    except ProblemsError as e:
        from defib.adapters.show import safe

        for problem in e.problems:
            print("\n".join(safe(line) for line in str(problem).splitlines()), file=sys.stderr)
        print(f"Found {len(e.problems)} problem{'s' if len(e.problems) != 1 else ''}.", file=sys.stderr)
        return 2
    except DefibError as e:
        from defib.adapters.show import safe

        print("defib: " + "\n".join(safe(line) for line in str(e).splitlines()), file=sys.stderr)
        return 3
    except Exception:
        import traceback

        traceback.print_exc()
        print("defib: this is a bug of ours; please report the lines above with the command you ran", file=sys.stderr)
        return 70
    return code


def _command(name: str):  # type: ignore[no-untyped-def]
    """`module:function` of this package, imported only now."""
    import importlib

    module, function = name.split(":")
    return getattr(importlib.import_module(f"defib.adapters.cli.{module}"), function)


def build_parser() -> argparse.ArgumentParser:
    """Every command with its options; builds in milliseconds and imports nothing heavy."""
    parser = argparse.ArgumentParser(
        prog="defib",
        description="Reads the logs of training jobs and knows what happened to each run.",
        epilog=EPILOG,
        formatter_class=RAW,
    )
    parser.add_argument("--version", action="version", version=f"defib {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _replay(commands)
    _scan(commands)
    _watch(commands)
    _listings(commands)
    _slurm(commands)
    asking.add(commands)
    _rules(commands)
    _service(commands)
    return parser


def _db(p: argparse.ArgumentParser) -> None:
    default = os.environ.get("DEFIB_DB", "defib.duckdb")
    p.add_argument(
        "--db", default=default, help="history file (default: $DEFIB_DB or ./defib.duckdb; ':memory:' keeps nothing)"
    )


def _extra_rules(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--rules",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="a folder of your own rules beside ours (repeatable)",
    )


def _output(p: argparse.ArgumentParser) -> None:
    group = p.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="one JSON document")
    group.add_argument("--jsonl", action="store_true", help="one JSON object a line")
    group.add_argument("--csv", action="store_true", help="CSV with a header")
    group.add_argument("-P", "--parsable", action="store_true", help="columns separated by |")
    p.add_argument("--noheader", action="store_true", help="no header line")


def _told(p: argparse.ArgumentParser) -> None:
    """How judged attempts are told."""
    out = p.add_mutually_exclusive_group()
    out.add_argument("--json", action="store_true", help="one JSON document")
    out.add_argument("--jsonl", action="store_true", help="one JSON object per attempt, one a line")
    p.add_argument(
        "--fail-on", default="", metavar="VERDICT[,…]", help="exit 1 if an attempt ended so, e.g. crashed,stalled"
    )
    p.add_argument("-q", "--quiet", action="store_true", help="no progress and no summary")


def _replay(commands) -> None:  # type: ignore[no-untyped-def]
    p = commands.add_parser("replay", help="read finished logs into the history", formatter_class=RAW,
        description="Read finished logs (files, directories, .gz, .zst) and judge every attempt in them.",
        epilog="example:\n  defib replay runs/2026-11/ --db history.duckdb\n  defib replay train.out --jsonl --db :memory:\n"
        "as a Slurm job array of 32 tasks, whose parts are merged afterwards:\n"
        "  defib replay /logs --part $SLURM_ARRAY_TASK_ID/32 -o parts/$SLURM_ARRAY_TASK_ID.part\n"
        "  defib merge parts/*.part --db history.duckdb")  # fmt: skip
    p.add_argument("paths", nargs="+", metavar="PATH")
    _db(p)
    _extra_rules(p)
    p.add_argument("--cluster", help="name of the cluster the logs come from")
    _told(p)
    p.add_argument(
        "--block-bytes",
        type=_bytes,
        default=1024 * 1024,
        help="bytes read at a time (the result does not depend on it)",
    )
    how = p.add_mutually_exclusive_group()
    how.add_argument(
        "--jobs", type=_count, default=1, metavar="N", help="read with N processes (the result is the same)"
    )
    how.add_argument("--scheduler", metavar="WHERE", help="local:N (as --jobs), or dask://HOST:PORT for a Dask cluster")
    how.add_argument(
        "--part", type=_part, metavar="I/N", help="read only the I-th of N shares; write it with -o for 'defib merge'"
    )
    p.add_argument("-o", "--output", type=Path, metavar="FILE", help="with --part: the part to write")
    p.set_defaults(run="replay:replay")
    m = commands.add_parser("merge", help="put the parts of a replay together", description="Put all parts of one replay (replay --part) into "
        "the history and tell every attempt. Parts are refused where one is missing, or rules or logs differ between them.")  # fmt: skip
    m.add_argument("parts", nargs="+", type=Path, metavar="PART")
    _db(m)
    _extra_rules(m)
    _told(m)
    m.set_defaults(run="replay:merge")
    c = commands.add_parser(
        "check-log",
        help="what is and is not recognised in a log",
        description="What is and is not recognised in a log: progress, phases, ranks, stamps, error-looking lines without a rule.",
    )
    c.add_argument("paths", nargs="+", metavar="FILE")
    _extra_rules(c)
    c.add_argument("--json", action="store_true")
    c.set_defaults(run="checklog:check_log")


WATCH = """Follow the logs of running jobs (files, directories, globs; they may appear later) and tell every change of a run's health:
starting, healthy, slow, hung, dead, blind (its log cannot be read, or nothing in it is known) or ended. One line each: the local
time, the job, the attempt since the watch began, its health, what it was, and why. It only observes: it runs no command, and without
--state it writes nothing.

Ctrl-C (exit code 130) or SIGTERM (0) ends it, with a summary on standard error; with --state running jobs stay open, and the next start
goes on with them.
"""
WATCH_END = """Silence is measured from when the watch began or the last line that arrived since, whatever stamps the lines carry.
Limits and their reasons are in rules/policy/detect.yaml; a file of your own with 'policy: detect' in a --rules folder changes them.

The scheduler is not asked yet (there is no Slurm source): a suspended or pending job looks silent and is called hung in the end,
and the log of a job that ended without a word, or was killed, looks like a hang. Attempts are judged when the watch ends; with --state
only when it ends by --once-idle.

example:
  defib watch /shared/logs 'runs/*/train.log' --every 10s
  defib watch /shared/logs --state /var/lib/defib; meanwhile: defib sql --db /var/lib/defib "SELECT * FROM live"
"""


def _scan(commands) -> None:  # type: ignore[no-untyped-def]
    p = commands.add_parser(
        "scan",
        help="which rules hit in logs, how often and where, and nothing else",
        formatter_class=RAW,
        description="Look for every rule in logs (files, directories, .gz, .zst) and tell where it hits first and how often. No job is told\n"
        "from another and nothing is judged or kept, so it is fast.\n\nExit code 1 if nothing was found.",
        epilog="example:\n  defib scan runs/2026-11/ --count",
    )
    p.add_argument("paths", nargs="+", metavar="PATH")
    _extra_rules(p)
    out = p.add_mutually_exclusive_group()
    out.add_argument("--json", action="store_true", help="one JSON document")
    out.add_argument("--each", action="store_true", help="every hit, one a line, as it is found")
    p.add_argument("--count", action="store_true", help="only how often each rule hits, in all files together")
    p.set_defaults(run="scan:scan")


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
        type=_duration,
        metavar="TIME",
        help="how often logs that grow are looked at (10s; 1m, 500ms); those quiet for ten minutes every 30s at most",
    )
    _extra_rules(p)
    p.add_argument("--cluster", help="name of the cluster the logs come from")
    p.add_argument(
        "--slurm",
        action="store_true",
        default=None,
        help="ask Slurm which jobs run and follow their logs; needs --state and --root",
    )
    p.add_argument(
        "--ask-every", type=_duration, metavar="TIME", help="how often Slurm is asked, once for all jobs (10s)"
    )
    _asking(p)
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
        type=_volume,
        metavar="SIZE",
        help="of the journal, beyond which segments of closed jobs are deleted (20G)",
    )
    p.add_argument("--sql-group", type=_group, metavar="GROUP", help="a group whose members may ask the history too")
    p.add_argument("--once-idle", type=_duration, metavar="TIME", help="end when no log has grown for so long")
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
    _extra_rules(r)
    r.set_defaults(run="rebuild:rebuild")


def _listings(commands) -> None:  # type: ignore[no-untyped-def]
    for name, about in (
        ("jobs", "one row per job"),
        ("attempts", "one row per attempt"),
        ("incidents", "one row per attempt that did not end well"),
    ):
        p = commands.add_parser(name, help=about)
        p.add_argument("-j", "--job", help="only this job (its id, name or path)")
        _db(p)
        _output(p)
        p.set_defaults(run=f"query:{name}")
    w = commands.add_parser(
        "why",
        help="the story of one job, attempt or log",
        description="Why did it end so: the cause with its evidence, what followed, how far it came, and what the default policy says.",
    )
    w.add_argument(
        "what", metavar="JOB_OR_FILE", nargs="+", help="a job id, job name or attempt id in the history, or log files"
    )
    _db(w)
    _extra_rules(w)
    w.add_argument("--json", action="store_true")
    w.set_defaults(run="why:why")
    n = commands.add_parser(
        "nodes",
        help="what speaks against each node, and which might be kept out",
        description="Adds up what the incidents of all jobs hold against each node, older ones counting less, and says which might be kept "
        "out and why (numbers: rules/policy/nodes.yaml). It only says; it changes nothing.",
    )
    n.add_argument("--as-of", type=_moment, metavar="TIME", help="weigh as of then, UTC (default: the newest incident)")
    n.add_argument(
        "--cluster-nodes", type=_count, metavar="N", help="nodes the cluster has; without it one node at most"
    )
    n.add_argument("--kept-out", nargs="+", default=[], metavar="NODE", help="nodes that are kept out already")
    _db(n)
    _extra_rules(n)
    n.add_argument("--json", action="store_true", help="one JSON document")
    n.set_defaults(run="nodes:nodes")
    s = commands.add_parser("sql", help="ask the history anything", formatter_class=RAW,
        description="Run SQL (DuckDB's) over the history, read-only. Without a query: a prompt on a terminal, else it is read from the pipe.",
        epilog='example:\n  defib sql "SELECT class, count(*) FROM incidents GROUP BY ALL" --csv')  # fmt: skip
    s.add_argument("query", nargs="?")
    _db(s)
    _output(s)
    s.set_defaults(run="query:sql")


def _asking(p) -> None:  # type: ignore[no-untyped-def]
    """How a scheduler is asked."""
    p.add_argument(
        "--prefix", metavar="WORDS", help="goes before every command, e.g. 'kubectl exec -n slurm login-0 --'"
    )
    p.add_argument("--shell", action="store_true", help="the prefix hands its words to a shell (ssh does): quote them")
    p.add_argument(
        "--bin-dir", metavar="DIR", help="where squeue and scontrol are (default: the first in the usual places)"
    )
    p.add_argument("--conf", metavar="FILE", help="slurm.conf, where it is not in its usual place")
    p.add_argument(
        "--root", action="append", default=[], metavar="DIR", help="logs may only lie below (repeatable; default /)"
    )
    p.add_argument(
        "--template",
        action="append",
        default=[],
        type=_template,
        metavar="PATH",
        help="files of steps, e.g. '{work_dir}/logs/{job_id}/rank_*.log' (repeatable)",
    )


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
    _asking(p)
    p.add_argument("--cluster", help="name to give the cluster (default: its own)")
    p.add_argument("--deadline", type=_duration, default=30_000_000, metavar="TIME", help="for each command (30s)")
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


def _rules(commands) -> None:  # type: ignore[no-untyped-def]
    r = commands.add_parser("rules", help="check, list, show and explain rules")
    verbs = r.add_subparsers(title="verbs", metavar="VERB", required=True)
    c = verbs.add_parser("check", help="prove every rule: examples, near-misses, dialects; all faults at once")
    c.add_argument("dirs", nargs="*", type=Path, metavar="DIR", help="your own rule folders, checked beside ours")
    c.add_argument("--warnings", action="store_true", help="list the warnings too, not only their number")
    c.add_argument(
        "--cost", action="store_true", help="measure every pattern: size, scan time, hits on healthy chatter"
    )
    c.add_argument("--json", action="store_true", help="one JSON document")
    c.set_defaults(run="rules:check")
    ls = verbs.add_parser("list", help="every rule in a table")
    _extra_rules(ls)
    ls.add_argument("--jsonl", action="store_true", help="one object per rule, one a line")
    ls.add_argument("--json", action="store_true", help="one JSON document")
    ls.set_defaults(run="rules:list_rules")
    sh = verbs.add_parser("show", help="one rule with its examples and limits")
    sh.add_argument("id")
    _extra_rules(sh)
    sh.add_argument("--json", action="store_true")
    sh.set_defaults(run="rules:show")
    ex = verbs.add_parser("explain", help="what the rules make of one line of a log, and why")
    ex.add_argument(
        "place", metavar="FILE:LINE", help="a log (.gz and .zst too) and a line, counted by line feeds from 1"
    )
    _extra_rules(ex)
    ex.add_argument("--json", action="store_true", help="one JSON document")
    ex.set_defaults(run="rules:explain")
    co = verbs.add_parser(
        "coverage", help="which rules many logs never show, and which error-looking lines have no rule"
    )
    co.add_argument("paths", nargs="+", metavar="PATH")
    _extra_rules(co)
    co.add_argument("--all", action="store_true", help="list rules never seen and every shape")
    co.add_argument("--suggest", action="store_true", help="print a rule file of stubs for the shapes shown (YAML)")
    co.add_argument("--json", action="store_true", help="one JSON document")
    co.set_defaults(run="ruledoc:coverage")
    pr = verbs.add_parser("profile", help="which rules cost time on these logs, and what rewording would buy")
    pr.add_argument("paths", nargs="+", metavar="PATH")
    _extra_rules(pr)
    pr.add_argument("--all", action="store_true", help="every pattern that meets anything")
    pr.add_argument("--json", action="store_true", help="one JSON document")
    pr.set_defaults(run="profile:profile")
    dc = verbs.add_parser("doc", help="one Markdown page of all rules")
    dc.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of to standard output")
    _extra_rules(dc)
    dc.set_defaults(run="ruledoc:doc")
    sc = verbs.add_parser("schema", help="JSON schema of rule files, for editors")
    sc.set_defaults(run="rules:schema")


def _moment(text: str) -> int:
    from defib.adapters.cli.nodes import moment

    return moment(text)


def _template(text: str) -> str:
    from defib.adapters.cli.slurm import template

    try:
        return template(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"'{text}': {e}") from None


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**9:
        raise argparse.ArgumentTypeError(f"'{text}': give a whole number from 1 on")
    return int(text)


def _part(text: str) -> tuple[int, int]:
    """`3/32`: the third of 32."""
    index, _, of = text.partition("/")
    if not 1 <= _count(index) <= _count(of) <= 100_000:
        raise argparse.ArgumentTypeError(
            f"'{text}': give the number of the share and how many there are, as 1/32 to 32/32"
        )
    return int(index), int(of)


def _bytes(text: str) -> int:
    """`4096`, `64K`, `16M`; at least 1 KiB, at most 1 GiB."""
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    factor = units.get(number[-1:], 1)
    digits = number[:-1] if factor > 1 else number
    if not digits.isdigit() or not 1024 <= int(digits) * factor <= 1024**3:
        raise argparse.ArgumentTypeError(f"'{text}': give a size such as 65536, 64K or 16M, between 1K and 1G")
    return int(digits) * factor


def _volume(text: str) -> int:
    """`512M`, `20G`; at least 64 MiB."""
    units = {"M": 1024**2, "G": 1024**3, "T": 1024**4}
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    factor = units.get(number[-1:], 0)
    if (
        not factor
        or not number[:-1].isascii()
        or not number[:-1].isdigit()
        or not 64 * 1024**2 <= int(number[:-1]) * factor < 1 << 60
    ):
        raise argparse.ArgumentTypeError(f"'{text}': give a size such as 512M or 20G, from 64M on")
    return int(number[:-1]) * factor


def _group(text: str) -> int:
    import grp

    try:
        return int(text) if text.isascii() and text.isdigit() else grp.getgrnam(text).gr_gid
    except (KeyError, ValueError) as e:
        raise argparse.ArgumentTypeError(f"'{text}': no such group") from e


def _duration(text: str) -> int:
    """`10s`, `500ms`, `2m`, `1h`, or seconds: microseconds, at least 100 ms, at most a day."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h)?", text.strip(), re.ASCII)
    us = float(found[1]) * {"ms": 1e3, "s": 1e6, "m": 60e6, "h": 3600e6}[found[2] or "s"] if found else 0.0
    if not 100_000 <= us <= 86_400e6:
        raise argparse.ArgumentTypeError(f"'{text}': give a time such as 10s, 500ms or 2m, from 100ms to 24h")
    return round(us)
