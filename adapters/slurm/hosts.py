"""Slurm's short form of many host names -> the names.

In: `n[01-03,07],gpu-[7-9]-x`, as commands print it. Out: the names in the order written, each once. Always: leading zeros kept, several
brackets in a name multiplied out, and never more than a number of names, counted before any is made. Our own, because `scontrol show
hostnames` costs a process each time and some releases refuse a suffix behind brackets (seen with 22.05).
"""

from __future__ import annotations

import re
from itertools import product

NAMES_MAX = 100_000
TEXT_MAX = 4 * 1024 * 1024
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?", re.ASCII)
_NAME = re.compile(r"[^\s,\[\]]+")


def expand(text: str, most: int = NAMES_MAX) -> tuple[str, ...]:
    """The names. Raises ValueError where the text is no host list or stands for more than `most` names."""
    if text in ("", "(null)", "None assigned", "N/A"):
        return ()
    if len(text) > TEXT_MAX:
        raise ValueError("a host list of absurd length")
    names: dict[str, None] = {}
    for part in _parts(text):
        for name in _one(part, most - len(names)):
            names[name] = None
    return tuple(names)


def _parts(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for found in re.finditer(r"[\[\],]", text):
        match found[0]:
            case "[":
                depth += 1
            case "]":
                depth -= 1
            case _ if depth == 0:
                parts.append(text[start : found.start()])
                start = found.end()
        if depth not in (0, 1):
            raise ValueError("brackets do not match in a host list")
    if depth:
        raise ValueError("brackets do not match in a host list")
    return [*parts, text[start:]]


def _one(part: str, most: int) -> list[str]:
    pieces = _BRACKET.split(part)  # text, inside of a bracket, text, …
    if not _NAME.fullmatch(_BRACKET.sub("0", part)):
        raise ValueError("an empty or odd name in a host list")
    ranges = [_ranges(inside) for inside in pieces[1::2]]
    count = 1
    for spans in ranges:
        count *= sum(high - low + 1 for low, high, _ in spans)
        if count > most:
            raise ValueError(f"a host list of more than {NAMES_MAX:,} names")
    if most < 1:
        raise ValueError(f"a host list of more than {NAMES_MAX:,} names")
    choices = [[f"{n:0{width}d}" for low, high, width in spans for n in range(low, high + 1)] for spans in ranges]
    out = []
    for chosen in product(*choices):
        words = list(pieces)
        words[1::2] = chosen
        out.append("".join(words))
    return out


def _ranges(inside: str) -> list[tuple[int, int, int]]:
    """(first, last, width) of each."""
    out = []
    for word in inside.split(","):
        found = _RANGE.fullmatch(word)
        if found is None:
            raise ValueError("an odd range in a host list")
        low, high = int(found[1]), int(found[2] or found[1])
        if high < low:
            raise ValueError("a range that runs backwards in a host list")
        out.append((low, high, len(found[1])))
    return out
