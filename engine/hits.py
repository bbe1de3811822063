"""A batch -> which rules hit which records, in whole columns.

In: the roster of a rulebook's codes, its compiled databases, and batches. Out: `Hits`. Always holds: a rule that an `unless` of its own or a
benign rule speaks against on the same record is not told; a generic rule gives way to a particular signature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from defib.engine import finder
from defib.engine.blocks import I64, Batch
from defib.engine.finder import Finder
from defib.engine.library import BINDING, Library, Matches, Searcher
from defib.engine.plan import Databases, Roster

# What of recent records is remembered, since a storm says the same words again and again:
REMEMBERED = 4096  # records
REMEMBERED_BYTES = 4 * 1024 * 1024  # and their text
PAUSE = 15  # batches without remembering after one that mostly said new things

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Hits:
    """rule[i] hit record[i]; sorted by record, then rule; each pair once. anchors, banners: indices that occur in the batch."""

    rule: I64
    record: I64
    anchors: frozenset[int]
    banners: frozenset[int]


class HitFinder:
    """Holds the loaded databases and their scratch space; one per thread or process."""

    remembers = True  # whether what silences a record is asked once for records of the same text

    def __init__(self, roster: Roster, databases: Databases, library: Library = BINDING) -> None:
        self.roster = roster
        self._finder = Finder(databases, tuple(a.encode() for a in roster.anchors), library)
        self._vetoes, self._spares = (finder.load(d, library) for d in (databases.vetoes, databases.spares))
        self._rules = len(roster.rules)
        self._banner = np.array([kind == "banner" for kind, _ in roster.finders], bool)
        self._code = np.array([i for _, i in roster.finders], np.int64)
        self._generic = _flags(roster.generic, self._rules)
        self._particular = _flags(roster.particular, self._rules)
        vetoes = [veto for group in roster.vetoes for veto in group]
        self._veto_benign = np.array([kind == "benign" for kind, _ in vetoes], bool)
        self._veto_spare = np.array([kind == "spare" for kind, _ in vetoes], bool)
        self._veto_code = np.array([i for _, i in vetoes], np.int64)
        self._veto_groups = np.repeat(np.arange(len(roster.vetoes)), [len(group) for group in roster.vetoes])
        self._silences = Silences(self._rules)

    def scan(self, batch: Batch) -> Hits:
        """One pass over the batch, vetoes applied."""
        return self.told(batch, self._finder.matches(batch.buffer), self._finder.anchors(batch.buffer))

    def told(self, batch: Batch, matches: Matches, anchors: frozenset[int]) -> Hits:
        """Matches -> hits."""
        ids, ends = (np.frombuffer(m, np.int64) for m in matches)
        code, signature = self._code[ids], ~self._banner[ids]
        rule, record = code[signature], np.empty(0, np.int64)
        if len(rule):
            record = np.searchsorted(batch.ends, ends[signature] - 1)
            pairs = _distinct(self._pair(record, rule))
            record, rule = pairs // self._rules, pairs % self._rules
            rule, record = self._give_way(*self._spare(batch, rule, record))
        banners = frozenset(np.unique(code[~signature]).tolist()) if len(code) else frozenset()
        return Hits(rule, record, anchors, banners)

    def _spare(self, batch: Batch, rule: I64, record: I64) -> tuple[I64, I64]:
        """Drop hits that an `unless` of their rule or a benign rule speaks against. record: ascending."""
        new = np.concatenate((np.ones(1, bool), record[1:] != record[:-1]))
        records = record[new]
        rows = self._silences.rows(batch, records, self.vetoes) if self.remembers else None
        if rows is None:
            keep = self._unsilenced(batch, rule, record, records)
        else:
            row = rows[np.cumsum(new) - 1]
            keep = ~(self._silences.muted[row] | self._silences.vetoed[row, rule])
        return rule[keep], record[keep]

    def _unsilenced(self, batch: Batch, rule: I64, record: I64, records: I64) -> Bools:
        """Which hits are left, by asking of all these records at once."""
        veto_rule, veto_record, benign = self.vetoes(batch, records, _distinct(rule))
        muted = _among(record, veto_record[benign])
        return ~(muted | _among(self._pair(record, rule), self._pair(veto_record[~benign], veto_rule[~benign])))

    def _give_way(self, rule: I64, record: I64) -> tuple[I64, I64]:
        """Generic rules say nothing where a particular signature hits the same record."""
        generic = self._generic[rule]
        particular = record[self._particular[rule]]
        keep = ~(generic & _among(record, particular))
        return rule[keep], record[keep]

    def _pair(self, record: I64, rule: I64) -> I64:
        return record * self._rules + rule

    def vetoes(self, batch: Batch, records: I64, rules: I64 | None = None) -> tuple[I64, I64, Bools]:
        """(rule, record, is benign) of every veto that holds on one of the records; a benign rule's own `unless` is applied.

        rules: whose `unless` is asked for, None for all; benign rules always speak.
        """
        every = np.ones(self._rules, bool) if rules is None else _flags(rules, self._rules)
        asked = self._veto_benign | (every[self._veto_code] & ~self._veto_spare)
        number, hit = self._each(*self._asked_of(batch, records, self._vetoes), asked)
        rule, benign = self._veto_code[number], self._veto_benign[number]
        if not benign.any():
            return rule, hit, benign
        # What silences a benign rule matters only where that rule speaks, which is rare.
        spoke = self._veto_spare & _flags(rule[benign], self._rules)[self._veto_code]
        number, where = self._each(*self._asked_of(batch, _distinct(hit[benign]), self._spares), spoke)
        spared = benign & _among(self._pair(hit, rule), self._pair(where, self._veto_code[number]))
        return rule[~spared], hit[~spared], benign[~spared]

    @staticmethod
    def _asked_of(batch: Batch, records: I64, db: Searcher | None) -> tuple[I64, I64]:
        """(group, record) of every match on these records."""
        if db is None or not len(records):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        starts, stops = batch.starts[records], batch.ends[records] + 1
        text = batch.buffer
        joined = b"".join([text[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)])
        ids, ends = finder.scan(db, joined)
        at = np.searchsorted(np.cumsum(stops - starts) - 1, np.frombuffer(ends, np.int64) - 1)
        return np.frombuffer(ids, np.int64), records[at]

    def _each(self, groups: I64, hit: I64, asked: Bools) -> tuple[I64, I64]:
        """Matches of shared expressions -> (veto number, record) of every rule that shares them and is asked."""
        numbers = np.flatnonzero(asked)
        of = self._veto_groups[numbers]
        first, past = (np.searchsorted(of, groups, side=side) for side in ("left", "right"))
        many = past - first
        within = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
        return numbers[np.repeat(first, many) + within], np.repeat(hit, many)

    def banners_in(self, text: bytes) -> frozenset[int]:
        """Rule indices of the banners in one stream's part of a batch."""
        ids, _ = self._finder.matches(text)
        return frozenset(self.roster.finders[n][1] for n in set(ids) if self.roster.finders[n][0] == "banner")


Vetoes = Callable[[Batch, I64], tuple[I64, I64, Bools]]


class Silences:
    """Which rules are silenced on recent records, by the text of the record: muted[row], vetoed[row, rule]."""

    def __init__(self, rules: int) -> None:
        self.muted = np.zeros(REMEMBERED, bool)
        self.vetoed = np.zeros((REMEMBERED, rules), bool)
        self._row_of: dict[bytes, int] = {}
        self._bytes = 0
        self._pause = 0

    def rows(self, batch: Batch, records: I64, vetoes: Vetoes) -> I64 | None:
        """The row of each record; those not known yet are asked of. None where asking of all at once is cheaper."""
        if self._pause:
            self._pause -= 1
            return None
        text, starts, ends = batch.buffer, batch.starts[records].tolist(), batch.ends[records].tolist()
        said = [text[a:b] for a, b in zip(starts, ends, strict=True)]
        rows = list(map(self._row_of.get, said))
        if None not in rows:
            return np.array(rows, np.int64)
        new = self._new(said)
        if len(self._row_of) + len(new) > REMEMBERED or self._bytes + sum(map(len, new)) > REMEMBERED_BYTES:
            self._row_of.clear()
            self._bytes = 0
            new = self._new(said)
            if len(new) > REMEMBERED or sum(map(len, new)) > REMEMBERED_BYTES:
                self._pause = PAUSE
                return None
        if 2 * len(new) > len(said):
            self._pause = PAUSE
        if new:
            self._learn(new, *vetoes(batch, records[np.fromiter(new.values(), np.int64, len(new))]), records)
        return np.fromiter(map(self._row_of.__getitem__, said), np.int64, len(said))

    def _new(self, said: list[bytes]) -> dict[bytes, int]:
        """Texts not known yet -> which record said them first, in this order."""
        known, new = self._row_of, dict[bytes, int]()
        for n, text in enumerate(said):
            if text not in known:
                new.setdefault(text, n)
        return new

    def _learn(self, new: dict[bytes, int], rule: I64, record: I64, benign: Bools, records: I64) -> None:
        """Keep what the vetoes said of these."""
        first = len(self._row_of)
        for row, text in enumerate(new, first):
            self._row_of[text] = row
        self._bytes += sum(map(len, new))
        rows = slice(first, first + len(new))
        self.muted[rows], self.vetoed[rows] = False, False
        at = first + np.searchsorted(records[np.fromiter(new.values(), np.int64, len(new))], record)
        self.muted[at[benign]] = True
        self.vetoed[at[~benign], rule[~benign]] = True


def _flags(members: I64 | frozenset[int], size: int) -> Bools:
    out = np.zeros(size, bool)
    out[np.fromiter(members, np.int64, len(members))] = True
    return out


def _distinct(numbers: I64) -> I64:
    """Each once, ascending. By sorting, as in `_among`."""
    ordered = np.sort(numbers)
    return ordered[np.concatenate((np.ones(1, bool), ordered[1:] != ordered[:-1]))] if len(ordered) else ordered


def _among(these: I64, those: I64) -> Bools:
    """Which of these occur among those. By sorting: numpy's own way hashes, and is many times slower on whole numbers without order."""
    if not len(these) or not len(those):
        return np.zeros(len(these), bool)
    those = np.sort(those)
    at = np.searchsorted(those, these)
    return np.asarray(those[np.minimum(at, len(those) - 1)] == these)
