"""A pattern -> literals, one of which every match holds: what a scan may look for before it runs the pattern itself.

In: Hyperscan patterns, and text such as healthy jobs print, against which literals are weighed. Out: for each pattern the set of byte
strings of its gate, or None where it has none that serves. Always holds: a record without any literal of a gate holds no match (a
construct that is not understood asks for nothing; a pattern that cannot be read has no gate); the same text gives the same choice.

The sets are worked out bottom-up over the parse tree from what a part matches exactly, begins and ends with, as in Cox, "Regular
Expression Matching with a Trigram Index" (2012); here the strings themselves are kept instead of their trigrams.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from re import _parser as re_parser  # type: ignore[attr-defined]  # the standard library's parser has no public name
from typing import Any

SHORTEST = 4  # bytes; shorter ones are in every log
LONGEST = 8  # bytes; Hyperscan's literal matcher compares no more in one step
MOST = 160  # strings of one set
KEPT = 16  # characters kept of a beginning or an end that something unknown follows or precedes
EACH = 4  # what looking for one more literal costs, in occurrences
CHANCE = 2  # occurrences in the sample that say nothing
UNSEEN = 100  # a literal the sample lacks is taken to be so much rarer than its parts
RARE = {4: 30, 5: 10, 6: 4, 7: 2}  # occurrences to expect of a literal so short, besides those seen
ANY = frozenset({""})
# POSIX classes, comments, and {,n} (plain text to Hyperscan): Python's parser reads them otherwise.
OTHERWISE = re.compile(r"\[:\^?\w+:\]|\(\?[a-zA-Z-]*x|\{,")

Strings = frozenset[str]


@dataclass(frozen=True, slots=True)
class Part:
    """What is known of a part of a pattern. exact: all it can match (None: unknown); head, tail: every match begins, ends with one."""

    exact: Strings | None
    head: Strings = ANY
    tail: Strings = ANY
    needs: tuple[Strings, ...] = ()  # of each set one string must stand somewhere in the match

    def sets(self) -> tuple[Strings, ...]:
        return tuple(s for s in (*self.needs, self.exact or ANY, self.head, self.tail) if "" not in s)


UNKNOWN = Part(None)


def exactly(strings: Strings) -> Part:
    """A part that matches just these."""
    return Part(strings, strings, strings)


def _joined(a: Strings, b: Strings) -> Strings | None:
    """Every string of a before every one of b; None if those would be too many."""
    return None if len(a) * len(b) > MOST else frozenset(x + y for x in a for y in b)


class Gates:
    """Literals weighed against a sample of healthy text: the rarest one wins, and a single one over many."""

    def __init__(self, sample: Iterable[tuple[bytes, int]]) -> None:
        """sample: text and its weight, as if it stood there so many times."""
        self._seen: Counter[bytes] = Counter()
        by_weight: dict[int, list[bytes]] = {}
        for text, weight in sample:
            by_weight.setdefault(weight, []).append(text)
        for weight, texts in by_weight.items():
            text = b"\n".join(texts)
            counted = Counter(text[i : i + n] for n in (SHORTEST, LONGEST) for i in range(len(text) - n + 1))
            self._seen.update({gram: n * weight for gram, n in counted.items()})
        self._cuts: dict[str, bytes] = {}

    def of(self, pattern: str) -> frozenset[bytes] | None:
        """The gate of one pattern (as Hyperscan is to compile it), or None."""
        if OTHERWISE.search(pattern):
            return None
        try:
            # One character per byte, as Hyperscan sees the pattern.
            tree = re_parser.parse(pattern.encode().decode("latin-1").replace("(?-u:", "(?:"))
        except (re.error, OverflowError, RecursionError):
            return None
        best = self._best(self._sequence(tree, bool(tree.state.flags & re.IGNORECASE)).sets())
        return None if best is None else frozenset(self._cut(s) for s in best)

    def common(self, literal: bytes) -> int:
        """How often the literal is to be expected in the sample, and what looking for it costs besides."""
        parts = min(map(self._seen.__getitem__, _grams(literal)))
        seen, likely = (self._seen[literal], parts // UNSEEN) if len(literal) == LONGEST else (parts, 0)
        return EACH + max(0, seen - CHANCE) + likely + RARE.get(len(literal), 0)

    def _cut(self, string: str) -> bytes:
        """Its rarest LONGEST bytes, and rare in each part: a common end keeps the matcher busy as well."""
        if string not in self._cuts:
            literal = string.encode("latin-1")
            pieces = [literal[i : i + LONGEST] for i in range(max(1, len(literal) - LONGEST + 1))]
            self._cuts[string] = min(
                pieces, key=lambda p: (self.common(p), sum(map(self._seen.__getitem__, _grams(p))))
            )
        return self._cuts[string]

    def _best(self, sets: Iterable[Strings]) -> Strings | None:
        usable = [shorter for s in sets for shorter in (s, *_shared(s)) if min(map(len, shorter)) >= SHORTEST]
        return min(usable, key=self._cost, default=None)

    def _cost(self, strings: Strings) -> tuple[int, int, list[str]]:
        cut = {self._cut(s) for s in strings}
        return sum(map(self.common, cut)), -min(map(len, strings)), sorted(strings)

    def _sequence(self, tree: Any, caseless: bool) -> Part:
        whole = exactly(ANY)
        for op, value in tree:
            whole = _then(whole, self._part(str(op), value, caseless))
        return whole

    def _part(self, op: str, value: Any, caseless: bool) -> Part:
        match op:
            case "LITERAL":
                return exactly(_cases(chr(value), caseless))
            case "IN":
                return _class(value, caseless)
            case "AT":
                return exactly(ANY)
            case "SUBPATTERN":
                _, on, off, inside = value
                return self._sequence(inside, bool((caseless or on & re.IGNORECASE) and not off & re.IGNORECASE))
            case "BRANCH":
                return self._either([self._sequence(branch, caseless) for branch in value[1]])
            case "MAX_REPEAT" | "MIN_REPEAT":
                low, high, inside = value
                return _repeated(self._sequence(inside, caseless), int(low), int(high))
        return UNKNOWN

    def _either(self, parts: list[Part]) -> Part:
        if all(p.exact is not None for p in parts):
            exact = frozenset[str]().union(*(p.exact or ANY for p in parts))
            if len(exact) <= MOST:
                return exactly(exact)
        head, tail = (frozenset[str]().union(*each) for each in ([p.head for p in parts], [p.tail for p in parts]))
        found = [self._best(p.sets()) for p in parts]
        needs = frozenset[str]().union(*(f or ANY for f in found))
        return Part(None, head if len(head) <= MOST else ANY, tail if len(tail) <= MOST else ANY, (needs,))


def _shared(strings: Strings) -> list[Strings]:
    """What all of them begin and end with."""
    if len(strings) < 2:
        return []
    return [frozenset({_beginning(strings)}), frozenset({_beginning({s[::-1] for s in strings})[::-1]})]


def _beginning(strings: Collection[str]) -> str:
    low, high = min(strings), max(strings)  # these two differ first
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[:same]


def _grams(literal: bytes) -> list[bytes]:
    return [literal[i : i + SHORTEST] for i in range(len(literal) - SHORTEST + 1)]


def _then(a: Part, b: Part) -> Part:
    """One part after another."""
    if a.exact is not None and b.exact is not None and (exact := _joined(a.exact, b.exact)) is not None:
        return exactly(exact)
    between = _joined(a.tail, b.head)
    head = _joined(a.exact, b.head) if a.exact is not None else None
    tail = _joined(a.tail, b.exact) if b.exact is not None else None
    return Part(
        None,
        frozenset(s[:KEPT] for s in (a.head if head is None else head)),
        frozenset(s[-KEPT:] for s in (b.tail if tail is None else tail)),
        tuple(s for s in (*a.sets(), *b.sets(), between or ANY) if "" not in s),
    )


def _repeated(inside: Part, low: int, high: int) -> Part:
    powers = [ANY]
    for _ in range(min(high, KEPT) if inside.exact is not None else 0):
        power = _joined(powers[-1], inside.exact or ANY)
        if power is None:
            break
        powers.append(power)
    if inside.exact is not None and high < len(powers):
        exact = frozenset[str]().union(*powers[low : high + 1])
        if len(exact) <= MOST:
            return exactly(exact)
    if low == 0:
        return UNKNOWN
    if inside.exact is not None and low < len(powers):
        return Part(None, powers[low], powers[low])
    return Part(None, inside.head, inside.tail, inside.sets())


def _class(members: Any, caseless: bool) -> Part:
    """A character class, if it is small."""
    out: set[str] = set()
    for op, value in members:
        match str(op):
            case "LITERAL":
                out |= _cases(chr(value), caseless)
            case "RANGE" if value[1] - value[0] < 10:
                for code in range(value[0], value[1] + 1):
                    out |= _cases(chr(code), caseless)
            case "CATEGORY" if str(value) == "CATEGORY_DIGIT":
                out |= set("0123456789")
            case _:
                return UNKNOWN
    return exactly(frozenset(out)) if 0 < len(out) <= MOST else UNKNOWN


def _cases(c: str, caseless: bool) -> Strings:
    return frozenset({c.lower(), c.upper()}) if caseless and c.isascii() else frozenset({c})
