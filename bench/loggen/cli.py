"""The command line: a preset, a seed and a directory.

In: arguments. Out: log files, truth.jsonl, one summary line on stdout.
Always: the same arguments, the same bytes.
"""

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from loggen.bulk import bulk
from loggen.plan import plan
from loggen.presets import DAY_ONE, PRESETS, cases
from loggen.render import write

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_of(text: str) -> int:
    """1GiB, 512M, 4096 in bytes."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 1GiB or 300M")
    return int(match[1]) * UNITS[match[2].upper()]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("loggen", description="Write realistic training logs with known truth.")
    made.add_argument("out", metavar="OUT", help="directory to write to")
    made.add_argument("--preset", choices=[*PRESETS, "detectors", "big-megatron"], default="demo")
    made.add_argument("--seed", type=int, default=7)
    made.add_argument(
        "--jobs", type=int, metavar="N", help="so many jobs of the preset (default: each once; detectors: 100)"
    )
    made.add_argument("--size", type=size_of, default=1 << 30, metavar="BYTES", help="of big-megatron (default 1GiB)")
    made.add_argument("--start", type=datetime.fromisoformat, default=DAY_ONE, metavar="TIME", help="of the first job")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    asked = parser()
    args = asked.parse_args(argv)
    if args.jobs is not None and args.jobs < 1:
        asked.error("--jobs must be 1 or more")
    try:
        if args.preset == "big-megatron":
            truth = bulk(args.out, args.size, args.seed, start=args.start)
        elif args.preset == "detectors":
            drawn = plan(args.seed, args.jobs or 100, args.start)
            truth = write(args.out, ((p.job, p.fault) for p in drawn), args.seed)
        else:
            truth = write(args.out, cases(args.preset, start=args.start, count=args.jobs), args.seed)
    except (ValueError, OSError) as wrong:
        asked.error(str(wrong))
    ends = Counter(t.verdict for t in truth)
    said = ", ".join(f"{n} {verdict}" for verdict, n in sorted(ends.items()))
    print(f"{args.out}: {len({t.job_id for t in truth})} jobs, {len(truth)} attempts ({said})")
    return 0
