"""Options and values that commands share.

In: a parser, or the text of a value. Out: the parser with options, or the value; what is wrong with it in one sentence.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

RAW = argparse.RawDescriptionHelpFormatter


def database(p: argparse.ArgumentParser) -> None:
    """Where the history is."""
    default = os.environ.get("DEFIB_DB", "defib.duckdb")
    p.add_argument(
        "--db", default=default, help="history file (default: $DEFIB_DB or ./defib.duckdb; ':memory:' keeps nothing)"
    )


def extra_rules(p: argparse.ArgumentParser) -> None:
    """Folders of rules beside ours."""
    p.add_argument(
        "--rules",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="a folder of your own rules beside ours (repeatable)",
    )


def output(p: argparse.ArgumentParser) -> None:
    """How a table is written."""
    group = p.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="one JSON document")
    group.add_argument("--jsonl", action="store_true", help="one JSON object a line")
    group.add_argument("--csv", action="store_true", help="CSV with a header")
    group.add_argument("-P", "--parsable", action="store_true", help="columns separated by |")
    p.add_argument("--noheader", action="store_true", help="no header line")


def told(p: argparse.ArgumentParser) -> None:
    """How judged attempts are told."""
    out = p.add_mutually_exclusive_group()
    out.add_argument("--json", action="store_true", help="one JSON document")
    out.add_argument("--jsonl", action="store_true", help="one JSON object per attempt, one a line")
    p.add_argument(
        "--fail-on", default="", metavar="VERDICT[,…]", help="exit 1 if an attempt ended so, e.g. crashed,stalled"
    )
    p.add_argument("-q", "--quiet", action="store_true", help="no progress and no summary")


def asking(p) -> None:  # type: ignore[no-untyped-def]
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
        type=template,
        metavar="PATH",
        help="files of steps, e.g. '{work_dir}/logs/{job_id}/rank_*.log' (repeatable)",
    )


def moment(text: str) -> int:
    """A point in time."""
    from defib.adapters.cli.nodes import moment

    return moment(text)


def template(text: str) -> str:
    """A path of steps' logs with holes."""
    from defib.adapters.cli.slurm import template

    try:
        return template(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"'{text}': {e}") from None


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**9:
        raise argparse.ArgumentTypeError(f"'{text}': give a whole number from 1 on")
    return int(text)


def part(text: str) -> tuple[int, int]:
    """`3/32`: the third of 32."""
    index, _, of = text.partition("/")
    if not 1 <= count(index) <= count(of) <= 100_000:
        raise argparse.ArgumentTypeError(
            f"'{text}': give the number of the share and how many there are, as 1/32 to 32/32"
        )
    return int(index), int(of)


def size(text: str) -> int:
    """`4096`, `64K`, `16M`; at least 1 KiB, at most 1 GiB."""
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    factor = units.get(number[-1:], 1)
    digits = number[:-1] if factor > 1 else number
    if not digits.isdigit() or not 1024 <= int(digits) * factor <= 1024**3:
        raise argparse.ArgumentTypeError(f"'{text}': give a size such as 65536, 64K or 16M, between 1K and 1G")
    return int(digits) * factor


def volume(text: str) -> int:
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


def group(text: str) -> int:
    """A group's number, by its name or itself."""
    import grp

    try:
        return int(text) if text.isascii() and text.isdigit() else grp.getgrnam(text).gr_gid
    except (KeyError, ValueError) as e:
        raise argparse.ArgumentTypeError(f"'{text}': no such group") from e


def duration(text: str) -> int:
    """`10s`, `500ms`, `2m`, `1h`, or seconds: microseconds, at least 100 ms, at most a day."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h)?", text.strip(), re.ASCII)
    us = float(found[1]) * {"ms": 1e3, "s": 1e6, "m": 60e6, "h": 3600e6}[found[2] or "s"] if found else 0.0
    if not 100_000 <= us <= 86_400e6:
        raise argparse.ArgumentTypeError(f"'{text}': give a time such as 10s, 500ms or 2m, from 100ms to 24h")
    return round(us)
