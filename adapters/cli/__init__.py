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
    from defib.engine.words import DefibError, ProblemsError

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
    _watch(commands)
    _listings(commands)
    _rules(commands)
    _recovery(commands)
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


def _replay(commands) -> None:  # type: ignore[no-untyped-def]
    p = commands.add_parser("replay", help="read finished logs into the history", formatter_class=RAW,
        description="Read finished logs (files, directories, .gz, .zst) and judge every attempt in them.",
        epilog="example:\n  defib replay runs/2026-11/ --db history.duckdb\n  defib replay train.out --jsonl --db :memory:")  # fmt: skip
    p.add_argument("paths", nargs="+", metavar="PATH")
    _db(p)
    _extra_rules(p)
    p.add_argument("--cluster", help="name of the cluster the logs come from")
    out = p.add_mutually_exclusive_group()
    out.add_argument("--json", action="store_true", help="one JSON document")
    out.add_argument("--jsonl", action="store_true", help="one JSON object per attempt, one a line")
    p.add_argument(
        "--fail-on", default="", metavar="VERDICT[,…]", help="exit 1 if an attempt ended so, e.g. crashed,stalled"
    )
    p.add_argument(
        "--block-bytes",
        type=_bytes,
        default=1024 * 1024,
        help="bytes read at a time (the result does not depend on it)",
    )
    p.add_argument("-q", "--quiet", action="store_true", help="no progress and no summary")
    p.set_defaults(run="replay:replay")
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
time, the job, the attempt since the watch began, its health, what it was, and why. It only observes: it runs no command and writes
nothing.

Ctrl-C (exit code 130) or SIGTERM (0) ends it, with a summary on standard error.
"""
WATCH_END = """Silence is measured from when the watch began or the last line that arrived since, whatever stamps the lines carry.
Limits and their reasons are in rules/policy/detect.yaml; a file of your own with 'policy: detect' in a --rules folder changes them.

The scheduler is not asked yet (there is no Slurm source): a suspended or pending job looks silent and is called hung in the end,
and the log of a job that ended without a word, or was killed, looks like a hang. Attempts are judged when the watch ends.

example:
  defib watch /shared/logs 'runs/*/train.log' --every 10s
"""


def _watch(commands) -> None:  # type: ignore[no-untyped-def]
    p = commands.add_parser(
        "watch",
        help="follow running jobs and tell every change of their health",
        formatter_class=RAW,
        description=WATCH,
        epilog=WATCH_END,
    )
    p.add_argument("paths", nargs="+", metavar="PATH")
    p.add_argument(
        "--every",
        type=_duration,
        default=10_000_000,
        metavar="TIME",
        help="how often logs that grow are looked at (10s; 1m, 500ms); those quiet for ten minutes every 30s at most",
    )
    _extra_rules(p)
    p.add_argument("--cluster", help="name of the cluster the logs come from")
    p.add_argument(
        "--jsonl", action="store_true", help="one JSON object per change, and per attempt when the watch ends"
    )
    p.add_argument("--once-idle", type=_duration, metavar="TIME", help="end when no log has grown for so long")
    p.set_defaults(run="watch:watch")


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
    dc = verbs.add_parser("doc", help="one Markdown page of all rules")
    dc.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of to standard output")
    _extra_rules(dc)
    dc.set_defaults(run="ruledoc:doc")
    sc = verbs.add_parser("schema", help="JSON schema of rule files, for editors")
    sc.set_defaults(run="rules:schema")


def _recovery(commands) -> None:  # type: ignore[no-untyped-def]
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
    _db(w)
    w.add_argument("--json", action="store_true", help="one JSON document")
    w.set_defaults(run="policy:whatif")


def _restarts(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 100:
        raise argparse.ArgumentTypeError(f"'{text}': give a whole number from 0 to 100")
    return int(text)


def _moment(text: str) -> int:
    from defib.adapters.cli.nodes import moment

    return moment(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**9:
        raise argparse.ArgumentTypeError(f"'{text}': give a whole number from 1 on")
    return int(text)


def _bytes(text: str) -> int:
    """`4096`, `64K`, `16M`; at least 1 KiB, at most 1 GiB."""
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    factor = units.get(number[-1:], 1)
    digits = number[:-1] if factor > 1 else number
    if not digits.isdigit() or not 1024 <= int(digits) * factor <= 1024**3:
        raise argparse.ArgumentTypeError(f"'{text}': give a size such as 65536, 64K or 16M, between 1K and 1G")
    return int(digits) * factor


def _duration(text: str) -> int:
    """`10s`, `500ms`, `2m`, `1h`, or seconds: microseconds, at least 100 ms, at most a day."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h)?", text.strip(), re.ASCII)
    us = float(found[1]) * {"ms": 1e3, "s": 1e6, "m": 60e6, "h": 3600e6}[found[2] or "s"] if found else 0.0
    if not 100_000 <= us <= 86_400e6:
        raise argparse.ArgumentTypeError(f"'{text}': give a time such as 10s, 500ms or 2m, from 100ms to 24h")
    return round(us)
