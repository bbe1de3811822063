"""The command line: parsing, dispatch, exit codes. Heavy parts are imported by the command that needs them.

Exit codes: 0 done; 1 something was found (rule problems, `--fail-on`), or nothing (`scan`); 2 usage, or settings and policies with faults; 3 the
world refused (input missing or unreadable, store in use, output that takes nothing); 70 a bug of ours; 130 interrupted, whole jobs kept.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from defib import __version__
from defib.adapters.cli import asking, options, serving
from defib.adapters.cli.options import RAW

EPILOG = """examples:
  defib replay logs/                         read finished logs, print what happened to each run
  defib watch logs/                          follow running jobs, tell every change of their health
  defib why 884123                           the story of one job (or of one log file)
  defib sql "SELECT * FROM suspects"         anything else
  defib check-log train.out                  what is recognised in a log, and what is not
"""
UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)


class Parser(argparse.ArgumentParser):
    """One that repeats what was typed only with control characters escaped: a shell's `*` may have typed it."""

    _width: int | None = 80  # None: the terminal's

    def error(self, message: str) -> NoReturn:
        """What cannot be parsed, and the exit code for it."""
        from defib.adapters.show import safe

        super().error(safe(message))

    def _get_formatter(self) -> argparse.HelpFormatter:
        """As the library does it, for every option that is added; but how wide a terminal is matters, and costs four libraries, for help alone."""
        return self.formatter_class(prog=self.prog, width=self._width)  # type: ignore[call-arg]  # the stub knows only `prog`

    def format_usage(self) -> str:
        """Made for the terminal."""
        self._width = None
        return super().format_usage()

    def format_help(self) -> str:
        """Made for the terminal."""
        self._width = None
        return super().format_help()

    def _print_message(self, message: str, file: Any = None) -> None:
        """As the library does it, but a help text that standard output does not take is not passed over."""
        if file is not sys.stdout:
            super()._print_message(message, file)
        elif message:
            sys.stdout.write(message)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code. Raises SystemExit after --help, --version and for what cannot be parsed."""
    _streams()
    try:
        code = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as e:
        return _failed(e)
    return code


def _run(argv: list[str] | None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = build_parser(argv[0] if argv else None)
    try:
        args = parser.parse_args(argv)
    except SystemExit:
        sys.stdout.flush()  # else a help text that could not be written would look like one that was
        raise
    if not hasattr(args, "run"):
        parser.print_help()
        return 2
    return int(_command(args.run)(args))


def _streams() -> None:
    """Standard streams that take every character, also where the caller closed them."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - a closed stream stays away for the whole run
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character gets its escape, not a traceback
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What is still buffered goes nowhere, so that the interpreter's own flush at the end does not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(e: Exception) -> int:
    """Tell what went wrong; the exit code that says so. Called where it is handled."""
    from defib.adapters.show import safe
    from defib.engine.errors import DefibError, ProblemsError

    def tell(text: str, before: str = "") -> None:
        print(before + "\n".join(safe(line) for line in text.splitlines()), file=sys.stderr)

    if isinstance(e, ProblemsError):
        for problem in e.problems:
            tell(str(problem))
        print(f"Found {len(e.problems)} problem{'s' if len(e.problems) != 1 else ''}.", file=sys.stderr)
        return 3 if e.unread else 2
    if isinstance(e, DefibError):
        tell(str(e), "defib: ")
        return 3
    if isinstance(e, OSError) and e.filename is None and e.errno in UNWRITABLE:
        print(f"defib: the output cannot be written: {e.strerror}", file=sys.stderr)
        _drop_output()
        return 3
    if isinstance(e, OSError) and isinstance(e.filename, str | bytes):
        from defib.adapters.show import printable

        tell(f"{printable(os.fsdecode(e.filename))}: {e.strerror}", "defib: ")
        return 3
    import traceback

    tell(traceback.format_exc())
    print("defib: this is a bug of ours; please report the lines above with the command you ran", file=sys.stderr)
    return 70


def _command(name: str):  # type: ignore[no-untyped-def]
    """`module:function` of this package, imported only now."""
    import importlib

    module, function = name.split(":")
    return getattr(importlib.import_module(f"defib.adapters.cli.{module}"), function)


class _Unasked:
    """Takes the place of the parser of a command that was not typed: making forty of them takes longer than reading a short log."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **how: self


class _Only:
    """Subparsers of which one command's alone is made."""

    def __init__(self, commands: Any, wanted: str) -> None:
        self._commands, self._wanted, self.met = commands, wanted, False

    def add_parser(self, name: str, **how: Any) -> Any:
        """As argparse has it."""
        if name != self._wanted:
            return _Unasked()
        self.met = True
        return self._commands.add_parser(name, **how)


def build_parser(typed: str | None = None) -> argparse.ArgumentParser:
    """Every command with its options, or the one command that was typed; imports nothing heavy."""
    parser = Parser(
        prog="defib",
        description="Reads the logs of training jobs and knows what happened to each run.",
        epilog=EPILOG,
        formatter_class=RAW,
    )
    parser.add_argument("--version", action="version", version=f"defib {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    if typed is not None:
        _add(only := _Only(commands, typed))
        if only.met:
            return parser
    _add(commands)
    return parser


def _add(commands) -> None:  # type: ignore[no-untyped-def]
    _replay(commands)
    _scan(commands)
    serving.add(commands)
    _listings(commands)
    asking.add(commands)
    _rules(commands)


def _replay(commands) -> None:  # type: ignore[no-untyped-def]
    p = commands.add_parser("replay", help="read finished logs into the history", formatter_class=RAW,
        description="Read finished logs (files, directories, .gz, .zst) and judge every attempt in them.",
        epilog="example:\n  defib replay runs/2026-11/ --db history.duckdb\n  defib replay train.out --jsonl --db :memory:\n"
        "as a Slurm job array of 32 tasks, whose parts are merged afterwards:\n"
        "  defib replay /logs --part $SLURM_ARRAY_TASK_ID/32 -o parts/$SLURM_ARRAY_TASK_ID.part\n"
        "  defib merge parts/*.part --db history.duckdb")  # fmt: skip
    p.add_argument("paths", nargs="+", metavar="PATH")
    options.database(p)
    options.extra_rules(p)
    p.add_argument("--cluster", help="name of the cluster the logs come from")
    options.told(p)
    p.add_argument(
        "--block-bytes",
        type=options.size,
        default=1024 * 1024,
        help="bytes read at a time (the result does not depend on it)",
    )
    how = p.add_mutually_exclusive_group()
    how.add_argument(
        "--jobs", type=options.count, default=1, metavar="N", help="read with N processes (the result is the same)"
    )
    how.add_argument("--scheduler", metavar="WHERE", help="local:N (as --jobs), or dask://HOST:PORT for a Dask cluster")
    how.add_argument(
        "--part",
        type=options.part,
        metavar="I/N",
        help="read only the I-th of N shares; write it with -o for 'defib merge'",
    )
    p.add_argument("-o", "--output", type=Path, metavar="FILE", help="with --part: the part to write")
    p.set_defaults(run="replay:replay")
    m = commands.add_parser("merge", help="put the parts of a replay together", description="Put all parts of one replay (replay --part) into "
        "the history and tell every attempt. Parts are refused where one is missing, or rules or logs differ between them.")  # fmt: skip
    m.add_argument("parts", nargs="+", type=Path, metavar="PART")
    options.database(m)
    options.extra_rules(m)
    options.told(m)
    m.set_defaults(run="replay:merge")
    c = commands.add_parser(
        "check-log",
        help="what is and is not recognised in a log",
        description="What is and is not recognised in a log: progress, phases, ranks, stamps, error-looking lines without a rule.",
    )
    c.add_argument("paths", nargs="+", metavar="FILE")
    options.extra_rules(c)
    c.add_argument("--json", action="store_true")
    c.set_defaults(run="checklog:check_log")


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
    options.extra_rules(p)
    out = p.add_mutually_exclusive_group()
    out.add_argument("--json", action="store_true", help="one JSON document")
    out.add_argument("--each", action="store_true", help="every hit, one a line, as it is found")
    p.add_argument("--count", action="store_true", help="only how often each rule hits, in all files together")
    p.set_defaults(run="scan:scan")


def _listings(commands) -> None:  # type: ignore[no-untyped-def]
    for name, about in (
        ("jobs", "one row per job"),
        ("attempts", "one row per attempt"),
        ("incidents", "one row per attempt that did not end well"),
    ):
        p = commands.add_parser(name, help=about)
        p.add_argument("-j", "--job", help="only this job (its id, name or path)")
        options.database(p)
        options.output(p)
        p.set_defaults(run=f"query:{name}")
    w = commands.add_parser(
        "why",
        help="the story of one job, attempt or log",
        description="Why did it end so: the cause with its evidence, what followed, how far it came, and what the default policy says.",
    )
    w.add_argument(
        "what", metavar="JOB_OR_FILE", nargs="+", help="a job id, job name or attempt id in the history, or log files"
    )
    options.database(w)
    options.extra_rules(w)
    w.add_argument("--json", action="store_true")
    w.set_defaults(run="why:why")
    n = commands.add_parser(
        "nodes",
        help="what speaks against each node, and which might be kept out",
        description="Adds up what the incidents of all jobs hold against each node, older ones counting less, and says which might be kept "
        "out and why (numbers: rules/policy/nodes.yaml). It only says; it changes nothing.",
    )
    n.add_argument(
        "--as-of", type=options.moment, metavar="TIME", help="weigh as of then, UTC (default: the newest incident)"
    )
    n.add_argument(
        "--cluster-nodes", type=options.count, metavar="N", help="nodes the cluster has; without it one node at most"
    )
    n.add_argument("--kept-out", nargs="+", default=[], metavar="NODE", help="nodes that are kept out already")
    options.database(n)
    options.extra_rules(n)
    n.add_argument("--json", action="store_true", help="one JSON document")
    n.set_defaults(run="nodes:nodes")
    s = commands.add_parser("sql", help="ask the history anything", formatter_class=RAW,
        description="Run SQL (DuckDB's) over the history, read-only. Without a query: a prompt on a terminal, else it is read from the pipe.",
        epilog='example:\n  defib sql "SELECT class, count(*) FROM incidents GROUP BY ALL" --csv')  # fmt: skip
    s.add_argument("query", nargs="?")
    options.database(s)
    options.output(s)
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
    options.extra_rules(ls)
    ls.add_argument("--jsonl", action="store_true", help="one object per rule, one a line")
    ls.add_argument("--json", action="store_true", help="one JSON document")
    ls.set_defaults(run="rules:list_rules")
    sh = verbs.add_parser("show", help="one rule with its examples and limits")
    sh.add_argument("id")
    options.extra_rules(sh)
    sh.add_argument("--json", action="store_true")
    sh.set_defaults(run="rules:show")
    ex = verbs.add_parser("explain", help="what the rules make of one line of a log, and why")
    ex.add_argument(
        "place", metavar="FILE:LINE", help="a log (.gz and .zst too) and a line, counted by line feeds from 1"
    )
    options.extra_rules(ex)
    ex.add_argument("--json", action="store_true", help="one JSON document")
    ex.set_defaults(run="rules:explain")
    co = verbs.add_parser(
        "coverage", help="which rules many logs never show, and which error-looking lines have no rule"
    )
    co.add_argument("paths", nargs="+", metavar="PATH")
    options.extra_rules(co)
    co.add_argument("--all", action="store_true", help="list rules never seen and every shape")
    co.add_argument("--suggest", action="store_true", help="print a rule file of stubs for the shapes shown (YAML)")
    co.add_argument("--json", action="store_true", help="one JSON document")
    co.set_defaults(run="ruledoc:coverage")
    pr = verbs.add_parser("profile", help="which rules cost time on these logs, and what rewording would buy")
    pr.add_argument("paths", nargs="+", metavar="PATH")
    options.extra_rules(pr)
    pr.add_argument("--all", action="store_true", help="every pattern that meets anything")
    pr.add_argument("--json", action="store_true", help="one JSON document")
    pr.set_defaults(run="profile:profile")
    dc = verbs.add_parser("doc", help="one Markdown page of all rules")
    dc.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of to standard output")
    options.extra_rules(dc)
    dc.set_defaults(run="ruledoc:doc")
    sc = verbs.add_parser("schema", help="JSON schema of rule files, for editors")
    sc.set_defaults(run="rules:schema")
