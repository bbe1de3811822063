"""The command line (being grown)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from defib.adapters import rulefiles
from defib.engine.words import RuleError


def main(argv: list[str] | None = None) -> int:
    args = sys.argv[1:] if argv is None else argv
    if args[:2] == ["rules", "check"]:
        t0 = time.time()
        try:
            loaded = rulefiles.load([Path(p) for p in args[2:]], use_cache=False)
        except RuleError as e:
            print(e)
            print(f"Found {len(e.problems)} problems.")
            return 1
        b = loaded.book
        n = sum(len(r.hits) + len(r.misses) for r in (*b.rules, *b.formats))
        print(f"{len(b.rules)} rules, {len(b.formats)} formats, {n} examples hold; {sum(map(len, loaded.databases))} bytes, {time.time() - t0:.1f} s")
        return 0
    if args[:1] == ["replay"]:
        from defib.adapters import duck, wire
        def tell(a, paths):
            sys.stdout.buffer.write(duck.dumps(duck.attempt_object(a, paths)) + b"\n")
        bb = int(next((a.split("=")[1] for a in args if a.startswith("--block=")), 1 << 20))
        out = wire.replay(wire.ReplayOptions([a for a in args[1:] if not a.startswith("-")], next((a.split("=")[1] for a in args if a.startswith("--db=")), ":memory:"), block_bytes=bb), tell)
        print(out, file=sys.stderr)
        return 0
    print("usage: defib rules check [DIR…]")
    return 2
