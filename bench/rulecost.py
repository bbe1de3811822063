"""What the rulebook costs: compile time, size of the databases, and scan rate with all rules against the first 60 signatures.

In: the shipped rules (and `--rules DIR`), bytes made in memory by `defib.engine.rulelint.corpora`. Out: a table per corpus with rates and
their ratio (goal 0.8: ten times the rules may cost a fifth of the speed), and the rules whose absence speeds the whole up most; `--json`
for machines. Rates are medians of interleaved rounds in CPU time, through `Scanner.scan` as replay calls it, vetoes included.

"first 60" searches for nothing else; "beside" keeps the formats, phases and banners that every replay needs. "plain" runs every expression
over all bytes, as a scan without the gate of literals would: all rules, and the first 60. The line "whole replay" times
reading, scanning, extraction and judging of the same healthy bytes as files (no store), which is what a user waits for.

    python bench/rulecost.py [--rules DIR] [--rounds 7] [--bytes 4M] [--leave-out 12] [--json]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import hyperscan as hs

from defib.adapters import rulefiles
from defib.adapters.archive import Archive
from defib.adapters.wire import Fan
from defib.engine import rulelint
from defib.engine.blocks import Batch, Piece
from defib.engine.core import State
from defib.engine.drive import Drive
from defib.engine.finder import literal
from defib.engine.observe import Observer
from defib.engine.rulebook import Rulebook
from defib.engine.scan import Scanner, compile_databases

FIRST = 60
GOAL = 0.8


def batch_of(text: bytes) -> Batch:
    """Cleaned and indexed beforehand: only the scan is to be measured."""
    batch = Batch()
    batch.add(Piece(0, 0, 1, text))
    assert len(batch.ends), "the index is made here, not in the first round"
    return batch


def subset(book: Rulebook, count: int) -> Rulebook:
    """The first signatures that a finder searches for, without formats, phases and banners."""
    first = [r for r in book.rules if r.kind == "signature" and r.role != "benign" and r.status != "retired"][:count]
    return dataclasses.replace(book, rules=tuple(first), formats=())


def beside(book: Rulebook, few: Rulebook) -> Rulebook:
    """The few signatures with every format, phase and banner of the book."""
    kept = {r.id for r in few.rules}
    return dataclasses.replace(book, rules=tuple(r for r in book.rules if r.kind != "signature" or r.id in kept))


def compiled(book: Rulebook, *, by_literals: bool = True) -> tuple[Scanner, float, int]:
    """(scanner, CPU seconds to compile, bytes of the databases)"""
    began = time.process_time()
    databases = compile_databases(book, by_literals=by_literals)
    took = time.process_time() - began
    return Scanner(book, databases), took, sum(map(len, databases))


def rates(scanners: dict[str, Scanner], texts: dict[str, bytes], rounds: int) -> dict[str, dict[str, float]]:
    """scanner -> corpus -> median MB per CPU second. Scanners take turns, so drift of the machine meets all alike."""
    took: dict[tuple[str, str], list[float]] = {}
    for name, text in texts.items():
        batch = batch_of(text)
        for turn in range(rounds + 1):
            for who, scanner in scanners.items():
                began = time.process_time()
                scanner.scan(batch)
                if turn:  # the first one only warms the caches
                    took.setdefault((who, name), []).append(time.process_time() - began)
    return {
        who: {name: len(texts[name]) / 1e6 / statistics.median(took[who, name]) for name in texts} for who in scanners
    }


def replayed(books: dict[str, Rulebook], texts: dict[str, bytes], rounds: int) -> dict[str, float]:
    """rulebook -> median MB per CPU second of a whole replay of the healthy corpora, without a store."""
    loaded = {who: (book, compile_databases(book)) for who, book in books.items()}
    took: dict[str, list[float]] = {who: [] for who in books}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            if name != rulelint.NEAR:
                (Path(folder) / f"{name.replace(' ', '-')}.log").write_bytes(text)
        size = sum(p.stat().st_size for p in Path(folder).iterdir())
        for turn in range(rounds + 1):
            for who, (book, databases) in loaded.items():
                source = Archive([folder], book.paths)
                source.open()
                began = time.process_time()
                Drive(Observer(book, databases), State(book), Fan([], lambda *_: None)).run(source)
                if turn:
                    took[who].append(time.process_time() - began)
    return {who: size / 1e6 / statistics.median(seconds) for who, seconds in took.items()}


def floor(book: Rulebook, texts: dict[str, bytes], rounds: int) -> dict[str, Any]:
    """What no wording can beat: eight plain bytes per signature and nothing else, all of them against the first ones, in Hyperscan itself."""
    words = [
        w for r in book.rules if r.kind == "signature" for h in r.hits if len(w := h.line.strip().encode()[:8]) == 8
    ]
    words = list(dict.fromkeys(words))
    databases = {}
    for name, some in (("all", words), ("first", words[:FIRST])):
        db = hs.Database(mode=hs.HS_MODE_BLOCK)
        patterns = [literal(w) for w in some]
        db.compile(
            expressions=patterns,
            ids=list(range(len(some))),
            elements=len(some),
            flags=[hs.HS_FLAG_SINGLEMATCH] * len(some),
        )
        databases[name] = db
    took: dict[tuple[str, str], list[float]] = {}
    for name, text in texts.items():
        for turn in range(rounds + 1):
            for who, db in databases.items():
                began = time.process_time()
                db.scan(text, match_event_handler=lambda *_: None)
                if turn:
                    took.setdefault((who, name), []).append(time.process_time() - began)
    rate = {
        who: total({n: len(texts[n]) / 1e6 / statistics.median(took[who, n]) for n in texts}, texts)
        for who in databases
    }
    return {"literals": len(words), **rate, "ratio": rate["all"] / rate["first"]}


def total(per_corpus: dict[str, float], texts: dict[str, bytes]) -> float:
    """MB/s over all healthy corpora together."""
    healthy = [n for n in texts if n != rulelint.NEAR]
    return sum(len(texts[n]) / 1e6 for n in healthy) / sum(len(texts[n]) / 1e6 / per_corpus[n] for n in healthy)


def groups(book: Rulebook) -> dict[str, Rulebook]:
    """The rulebook without one kind of expression at a time."""
    out = {
        f"without {kind}s": dataclasses.replace(book, rules=tuple(r for r in book.rules if r.kind != kind))
        for kind in ("signature", "phase", "banner")
    }
    return {**out, "without anchors": dataclasses.replace(book, formats=())}


def leave_out(book: Rulebook, texts: dict[str, bytes], count: int, rounds: int) -> list[dict[str, Any]]:
    """The rules that look dearest alone, each measured by what the whole gains without it."""
    small = {name: text[: 256 * 1024].rpartition(b"\n")[0] + b"\n" for name, text in texts.items()}
    _, alone = rulelint.costs(book, small, time.process_time)
    candidates = list(dict.fromkeys(c.owner for c in alone if c.kind != "anchor"))[:count]
    scanners = {"": compiled(book)[0]}
    for name in candidates:
        scanners[name] = compiled(dataclasses.replace(book, rules=tuple(r for r in book.rules if r.id != name)))[0]
    per = rates(scanners, texts, rounds)
    every = total(per[""], texts)
    near = per[""][rulelint.NEAR]
    rows = [
        {"rule": n, "gain": total(per[n], texts) / every - 1, "gain_near": per[n][rulelint.NEAR] / near - 1}
        for n in candidates
    ]
    return sorted(rows, key=lambda r: -float(r["gain"]))


def measure(book: Rulebook, texts: dict[str, bytes], rounds: int, leave: int) -> dict[str, Any]:
    every, took, sizes = compiled(book)
    few = subset(book, FIRST)
    first, first_took, first_sizes = compiled(few)
    parts = {name: compiled(part)[0] for name, part in groups(book).items()}
    plain = {"plain": compiled(book, by_literals=False)[0], "plain_first": compiled(few, by_literals=False)[0]}
    near = {"beside": compiled(beside(book, few))[0], **plain}
    per = rates({"all": every, "first": first, **near, **parts}, texts, rounds)
    whole = replayed({"all": book, "beside": beside(book, few)}, texts, rounds)
    return {
        "rules": len(book.rules), "formats": len(book.formats), "compile_s": took, "bytes": sizes,
        "first_compile_s": first_took, "first_bytes": first_sizes,
        "corpora": {n: {"all": per["all"][n], "first": per["first"][n], "ratio": per["all"][n] / per["first"][n],
                        "beside": per["beside"][n], "ratio_beside": per["all"][n] / per["beside"][n]} for n in texts},
        "all_mb_s": total(per["all"], texts), "first_mb_s": total(per["first"], texts),
        "ratio": total(per["all"], texts) / total(per["first"], texts), "goal": GOAL,
        "beside_mb_s": total(per["beside"], texts), "ratio_beside": total(per["all"], texts) / total(per["beside"], texts),
        **{f"{name}_mb_s": total(per[name], texts) for name in plain},
        "ratio_plain_first": total(per["all"], texts) / total(per["plain_first"], texts),
        "floor": floor(book, texts, rounds),
        "replay": {**whole, "ratio": whole["all"] / whole["beside"]},
        "groups": {name: total(per[name], texts) / total(per["all"], texts) - 1 for name in parts},
        "leave_one_out": leave_out(book, texts, leave, rounds) if leave else [],
    }  # fmt: skip


def report(m: dict[str, Any]) -> None:
    for name, key in (("all", ""), (f"first {FIRST} signatures", "first_")):
        sizes = m[f"{key}bytes"]
        print(f"{name}: compiled in {m[f'{key}compile_s']:.2f} s to {sizes:,} bytes")
    print(f"all: {m['rules']} rules, {m['formats']} formats\n")
    print(f"{'corpus':<16}{'all MB/s':>10}{f'first {FIRST}':>10}{'ratio':>8}{'beside':>10}{'ratio':>8}")
    for name, row in m["corpora"].items():
        numbers = f"{row['all']:>10,.0f}{row['first']:>10,.0f}{row['ratio']:>8.2f}"
        print(f"{name:<16}{numbers}{row['beside']:>10,.0f}{row['ratio_beside']:>8.2f}")
    said = "met" if m["ratio"] >= GOAL else "MISSED"
    print(
        f"{'healthy, all':<16}{m['all_mb_s']:>10,.0f}{m['first_mb_s']:>10,.0f}{m['ratio']:>8.2f}"
        f"{m['beside_mb_s']:>10,.0f}{m['ratio_beside']:>8.2f}  goal {GOAL} of first {FIRST}: {said}"
    )
    print(
        f"{'plain, all':<16}{m['plain_mb_s']:>10,.0f}{m['plain_first_mb_s']:>10,.0f}"
        f"{m['ratio_plain_first']:>8.2f}  (ratio: all by literals to the first {FIRST} plain)"
    )
    least = m["floor"]
    print(
        f"{'literals alone':<16}{least['all']:>10,.0f}{least['first']:>10,.0f}{least['ratio']:>8.2f}  "
        f"({least['literals']} strings of eight bytes and no rules at all: what the matcher itself allows)"
    )
    whole = m["replay"]
    print(f"{'whole replay':<16}{whole['all']:>10,.0f}{'':>18}{whole['beside']:>10,.0f}{whole['ratio']:>8.2f}")
    for name, gain in m["groups"].items():
        print(f"  {name:<20} {gain:>+7.1%}")
    if m["leave_one_out"]:
        print("\nrate of the whole without one rule (healthy, near-literals); within a few per cent is noise")
        for r in m["leave_one_out"]:
            print(f"  {r['gain']:>+7.1%} {r['gain_near']:>+7.1%}  {r['rule']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rules", action="append", default=[], type=Path, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds, at least 5")
    parser.add_argument("--bytes", type=int, default=4 * 1024 * 1024, help="of each corpus")
    parser.add_argument("--leave-out", type=int, default=12, metavar="N", help="candidates for leave-one-out (0: none)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.rounds < 5:
        parser.error("--rounds: fewer than 5 tell nothing")
    book = rulefiles.load(args.rules).book
    result = measure(book, rulelint.corpora(book, args.bytes), args.rounds, args.leave_out)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        report(result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
