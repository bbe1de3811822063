"""What each rule costs on given logs: how often the literal it is looked for by stands there, and how often for nothing.

In: a rulebook and batches of real logs. Out: `Load` a pattern, dearest first. Always holds: counts are exact and do not depend on how the bytes
were cut; a literal that several patterns share is counted for each of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from defib.engine import finder
from defib.engine.blocks import Batch
from defib.engine.finder import MULTILINE
from defib.engine.rulebook import Rulebook
from defib.engine.scan import confine, gates, plan


@dataclass(frozen=True, slots=True)
class Load:
    """One pattern on these logs. literals: what it is looked for by, with how often each stands there ("" and 0: nothing in it is literal, so it
    is run over all bytes). records: records that hold one of them, each of which is read again by the general engine. hits: records the
    pattern then matches; matches: callbacks this takes (more than hits where an open end matches again and again)."""

    rule: str
    pattern: str
    literals: tuple[tuple[str, int], ...]
    records: int
    hits: int
    matches: int

    @property
    def vain(self) -> int:
        """Records that were read again for nothing."""
        return self.records - self.hits

    @property
    def worth(self) -> str:
        """What rewording would buy."""
        if not self.literals:
            return "run over all bytes: let every match hold four plain characters"
        if self.matches > 2 * self.hits + 8:
            return f"{self.matches / max(1, self.hits):.0f} callbacks a hit: close the open end of the pattern"
        if self.vain > 2 * self.hits:
            literal, count = max(self.literals, key=lambda x: (x[1], x[0]))
            return f"'{literal}' stands {count:,} times: let every match hold something rarer"
        return "hits what it looks for"


class Profiler:
    """`add` batches, then ask for `loads`."""

    def __init__(self, book: Rulebook) -> None:
        self.size = 0
        p, self._gates = plan(book), gates(book)
        self._owners = {n: (book.rules[i].id, e) for n, (e, kind, i) in enumerate(p.finders) if kind != "anchor"}
        literals = sorted({literal for n in self._owners for literal in self._gates.get(n, ())})
        self._literals = {literal: i for i, literal in enumerate(literals)}
        self._gate = finder.load(finder.compiled(finder.literals(literals)))
        entries = [(n, confine(e).encode(), MULTILINE) for n, (_, e) in self._owners.items()]
        self._all = finder.load(finder.compiled(entries))
        self._seen: Counter[int] = Counter()
        self._records: Counter[int] = Counter()
        self._hits: Counter[int] = Counter()
        self._matches: Counter[int] = Counter()

    def add(self, batch: Batch) -> None:
        """Count what a batch of whole records holds."""
        self.size += len(batch.buffer)
        ids, ends = (np.frombuffer(m, np.int64) for m in finder.scan(self._gate, batch.buffer))
        record = np.searchsorted(batch.ends, ends - 1)
        self._seen.update(ids.tolist())
        held = {i: np.unique(record[ids == i]) for i in np.unique(ids).tolist()}
        for n in self._owners:
            mine = [held[i] for i in map(self._literals.__getitem__, self._gates.get(n, ())) if i in held]
            if mine:
                self._records[n] += len(mine[0] if len(mine) == 1 else np.unique(np.concatenate(mine)))
        ids, ends = (np.frombuffer(m, np.int64) for m in finder.scan(self._all, batch.buffer))
        record = np.searchsorted(batch.ends, ends - 1)
        for n in np.unique(ids).tolist():
            at = record[ids == n]
            self._matches[n] += len(at)
            self._hits[n] += len(np.unique(at))

    def loads(self) -> list[Load]:
        """Patterns that cost anything, dearest first."""
        out = []
        for n, (rule, pattern) in self._owners.items():
            gate = self._gates.get(n)
            if gate is not None and not self._records[n]:
                continue
            told = tuple((text.decode("latin-1"), self._seen[self._literals[text]]) for text in sorted(gate or ()))
            records = self._hits[n] if gate is None else self._records[n]
            out.append(Load(rule, pattern, told, records, self._hits[n], self._matches[n]))
        return sorted(out, key=lambda c: (bool(c.literals), -(c.records + c.matches), c.rule, c.pattern))
