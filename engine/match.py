"""Text -> which rules hit which records, without columns: for scans that find little, which is what logs of healthy runs are.

In: the roster of a rulebook's codes, its compiled databases, and the text of whole records. Out: (end of the record, rule) pairs. Always
holds: they are what `HitFinder` finds; where much is found it is asked, since columns pay from there on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from defib.engine import finder, sieve
from defib.engine.blocks import I64, Batch, Piece
from defib.engine.finder import Finder
from defib.engine.lazy import np
from defib.engine.library import BINDING, Library, Matches, Searcher
from defib.engine.plan import Databases, Roster
from defib.engine.sieve import Left, Memory, Sieve

if TYPE_CHECKING:
    from defib.engine.hits import Hits
    from defib.engine.shorter import Short, Shortener, Sorter

FEW = 256  # matches of one text up to which plain Python is faster than loading and using numpy
Hit = tuple[int, int]  # position of the record's line feed in the text, rule


@dataclass(frozen=True, slots=True)
class Tally:
    """Hits of a rule in one text. first, last: positions of the line feeds of their records."""

    rule: int
    count: int
    first: int
    last: int


class Matcher:
    """Holds the loaded databases and their scratch space; one per thread or process. sorter: gives what spares
    scanning records that differ from others in their digits only, and is asked at the first storm. memory: gives what
    remembers shapes in which nothing was found, if there is such a thing, and is asked at the first text that is long enough."""

    def __init__(
        self,
        roster: Roster,
        databases: Databases,
        library: Library = BINDING,
        sorter: Callable[[], Sorter] | None = None,
        memory: Callable[[], Memory | None] = lambda: None,
    ) -> None:
        self._roster = roster
        self._databases = databases
        self._library = library
        self._finder = Finder(databases, (), library)
        self._vetoes, self._spares = (finder.load(d, library) for d in (databases.vetoes, databases.spares))
        self._columns: object = None
        self._storm = False  # of the text before this one: in one, most of the time goes into what is found
        self._sorter = sorter
        self._shortener: Shortener | None = None
        self._memory: Callable[[], Memory | None] | None = memory
        self._sieve: Sieve | None = None

    def left(self, payload: bytes) -> Left | None:
        """The records that may hold a hit, as `hits` and `tallies` take them; None where all are to be looked at. payload: whole records as they
        were written."""
        if self._memory is not None and len(payload) >= sieve.LEAST:
            memory, self._memory = self._memory(), None
            if memory is not None:
                rules = [kind == "rule" for kind, _ in self._roster.finders]
                self._sieve = Sieve(self._databases, memory, self._finder.matches, rules, self._library)
        return self._sieve.of(payload) if self._sieve is not None else None

    def hits(self, text: bytes) -> list[Hit]:
        """Every hit, by record and then rule, each once. text: whole records as `blocks.clean` shows them."""
        matches = self._finder.matches(text)
        if len(matches[0]) <= FEW:
            return self._few(text, matches)
        ends, found = self._many(text, matches)
        return list(zip(ends[found.record].tolist(), found.rule.tolist(), strict=True))

    def _few(self, text: bytes, matches: Matches) -> list[Hit]:
        rules: dict[int, set[int]] = {}
        for n, end in zip(*matches, strict=True):
            kind, rule = self._roster.finders[n]
            if kind == "rule":
                rules.setdefault(text.index(b"\n", end - 1), set()).add(rule)
        if not rules:
            return []
        silenced = self._silenced(text, sorted(rules))
        out: list[Hit] = []
        for stop in sorted(rules):
            muted, vetoed = silenced.get(stop, (False, frozenset()))
            left = set() if muted else rules[stop] - vetoed
            if left & self._roster.particular:
                left -= self._roster.generic
            out += [(stop, rule) for rule in sorted(left)]
        return out

    def tallies(self, text: bytes) -> list[Tally]:
        """The same hits, added up by rule."""
        found = self._shortly(text) if self._storm else None
        if found is None:
            matches = self._finder.matches(text)
            self._storm = len(matches[0]) > FEW
            if not self._storm:
                return _added(self._few(text, matches))
            found = self._shortly(text)
        return found if found is not None else _summed(*self._many(text, matches))

    def _shortly(self, text: bytes) -> list[Tally] | None:
        """By a text that is shorter; None where there is none."""
        if self._shortener is None:
            from defib.engine.shorter import Shortener
            from defib.engine.sorting import PlainSorter

            self._shortener = Shortener(self._databases, (self._sorter or PlainSorter)(), self._library)
        short = self._shortener.of(text, self._finder.matches)
        if short is None:
            return None
        found = _weighed(short, self.hits(short.text))
        self._storm = sum(t.count for t in found) > FEW
        return found

    def _many(self, text: bytes, matches: Matches) -> tuple[I64, Hits]:
        """(ends of records, hits)."""
        from defib.engine.hits import HitFinder

        if not isinstance(self._columns, HitFinder):
            self._columns = HitFinder(self._roster, self._databases, self._library)
        batch = Batch([Piece(0, 0, 1, text)], len(text))
        return batch.ends, self._columns.told(batch, matches, frozenset())

    def _silenced(self, text: bytes, stops: list[int]) -> dict[int, tuple[bool, frozenset[int]]]:
        """Of the records that end at these places: whether a benign rule mutes them, and the rules their own `unless` speaks against."""
        said = self._asked(self._vetoes, text, stops, ("unless", "benign"))
        benign = {stop: {rule for kind, rule in of if kind == "benign"} for stop, of in said.items()}
        spoke = [stop for stop in stops if benign.get(stop)]
        spared = self._asked(self._spares, text, spoke, ("spare",))
        out: dict[int, tuple[bool, frozenset[int]]] = {}
        for stop, of in said.items():
            muting = benign[stop] - {rule for _, rule in spared.get(stop, ())}
            out[stop] = bool(muting), frozenset(rule for kind, rule in of if kind == "unless")
        return out

    def _asked(
        self, db: Searcher | None, text: bytes, stops: list[int], kinds: Iterable[str]
    ) -> dict[int, set[tuple[str, int]]]:
        """(kind, rule) of every veto that holds on the records that end at these places."""
        out: dict[int, set[tuple[str, int]]] = {}
        for stop in stops:
            groups, _ = finder.scan(db, text[text.rfind(b"\n", 0, stop) + 1 : stop + 1])
            said = {veto for group in set(groups) for veto in self._roster.vetoes[group] if veto[0] in kinds}
            if said:
                out[stop] = said
        return out


def _weighed(short: Short, hits: list[Hit]) -> list[Tally]:
    """Hits in a short text, added up as in the text it stands for."""
    count: Counter[int] = Counter()
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for stop, rule in hits:
        k = bisect_left(short.stop, stop)
        count[rule] += short.count[k]
        first[rule] = min(first.get(rule, short.first[k]), short.first[k])
        last[rule] = max(last.get(rule, 0), short.last[k])
    return [Tally(rule, count[rule], first[rule], last[rule]) for rule in sorted(count)]


def _added(hits: list[Hit]) -> list[Tally]:
    count = Counter(rule for _, rule in hits)
    last = {rule: stop for stop, rule in hits}
    first = {rule: stop for stop, rule in reversed(hits)}
    return [Tally(rule, count[rule], first[rule], last[rule]) for rule in sorted(count)]


def _summed(ends: I64, found: Hits) -> list[Tally]:
    """The same of many hits, in columns."""
    count = np.bincount(found.rule)
    first, last = np.zeros_like(count), np.zeros_like(count)
    last[found.rule] = found.record  # of what is assigned to one place, the last stays
    first[found.rule[::-1]] = found.record[::-1]
    hit = np.flatnonzero(count)
    columns = hit, count[hit], ends[first[hit]], ends[last[hit]]
    return [Tally(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]
