"""A batch -> which rules hit which records, in whole columns.

In: the roster of a rulebook's codes, its compiled databases, and batches. Out: `Hits`. Always holds: a rule that an `unless` of its own or a
benign rule speaks against on the same record is not told; a generic rule gives way to a particular signature.
"""

from __future__ import annotations

from dataclasses import dataclass

import hyperscan as hs
import numpy as np
import numpy.typing as npt

from defib.engine import finder
from defib.engine.blocks import I64, Batch
from defib.engine.finder import Finder, Matches
from defib.engine.plan import Databases, Roster


@dataclass(frozen=True, slots=True)
class Hits:
    """rule[i] hit record[i]; sorted by record, then rule; each pair once. anchors, banners: indices that occur in the batch."""

    rule: I64
    record: I64
    anchors: frozenset[int]
    banners: frozenset[int]


class HitFinder:
    """Holds the loaded databases and their scratch space; one per thread or process."""

    def __init__(self, roster: Roster, databases: Databases) -> None:
        self.roster = roster
        self._finder = Finder(databases, tuple(a.encode() for a in roster.anchors))
        self._vetoes, self._spares = finder.load(databases.vetoes), finder.load(databases.spares)
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
        """Drop hits that an `unless` of their rule or a benign rule speaks against."""
        veto_rule, veto_record, benign = self.vetoes(batch, _distinct(record), _distinct(rule))
        if not len(veto_rule):
            return rule, record
        muted = _among(record, veto_record[benign])
        keep = ~(muted | _among(self._pair(record, rule), self._pair(veto_record[~benign], veto_rule[~benign])))
        return rule[keep], record[keep]

    def _give_way(self, rule: I64, record: I64) -> tuple[I64, I64]:
        """Generic rules say nothing where a particular signature hits the same record."""
        generic = self._generic[rule]
        particular = record[self._particular[rule]]
        keep = ~(generic & _among(record, particular))
        return rule[keep], record[keep]

    def _pair(self, record: I64, rule: I64) -> I64:
        return record * self._rules + rule

    def vetoes(self, batch: Batch, records: I64, rules: I64 | None = None) -> tuple[I64, I64, npt.NDArray[np.bool_]]:
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
    def _asked_of(batch: Batch, records: I64, db: hs.Database | None) -> tuple[I64, I64]:
        """(group, record) of every match on these records."""
        if db is None or not len(records):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        starts, stops = batch.starts[records], batch.ends[records] + 1
        view = memoryview(batch.buffer)
        joined = b"".join([view[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)])
        ids, ends = finder.scan(db, joined)
        at = np.searchsorted(np.cumsum(stops - starts) - 1, np.frombuffer(ends, np.int64) - 1)
        return np.frombuffer(ids, np.int64), records[at]

    def _each(self, groups: I64, hit: I64, asked: npt.NDArray[np.bool_]) -> tuple[I64, I64]:
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


def _flags(members: I64 | frozenset[int], size: int) -> npt.NDArray[np.bool_]:
    out = np.zeros(size, bool)
    out[np.fromiter(members, np.int64, len(members))] = True
    return out


def _distinct(numbers: I64) -> I64:
    """Each once, ascending. By sorting, as in `_among`."""
    ordered = np.sort(numbers)
    return ordered[np.concatenate((np.ones(1, bool), ordered[1:] != ordered[:-1]))] if len(ordered) else ordered


def _among(these: I64, those: I64) -> npt.NDArray[np.bool_]:
    """Which of these occur among those. By sorting: numpy's own way hashes, and is many times slower on whole numbers without order."""
    if not len(these) or not len(those):
        return np.zeros(len(these), bool)
    those = np.sort(those)
    at = np.searchsorted(those, these)
    return np.asarray(those[np.minimum(at, len(those) - 1)] == these)
