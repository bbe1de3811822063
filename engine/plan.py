"""What a scan needs to know of a rulebook: expressions, codes and names, as plain values that load without YAML, Arrow or numpy.

In: made by `scan.plan` from a rulebook, or read from the cache beside the compiled databases. Out: `Plan`, `Databases`. Always holds: a
plan read back from its JSON equals the one it was written from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

FORMAT = 13  # of the compiled databases; part of the cache key


# Codes of `Databases.asked`: a digit matters between start and end of the match, or there is no telling where in the record.
ASKED_HERE, ASKED_ANYWHERE = 0, 1


class Databases(NamedTuple):
    """Serialized; b"" where there is nothing to find.

    gate: literals. gated: expressions of which every match holds one of them; banners: those of them that are banners. bare: expressions
    without such literals. anchors: the literals of progress lines. vetoes: expressions asked of single records. spares: what silences the
    benign rules among them, asked only of records such a rule matched. doubts: expressions that ask which digit stands somewhere, as they
    match where `0` stands for every digit, by number; digits: JSON, of each of those numbers the literals (as Latin-1) of which every match of the
    expression itself holds one, null where there are none, or an empty list where it only silences.
    asked: of those that find, with the starts of their matches, under one of two codes.
    """

    gate: bytes
    gated: bytes
    banners: bytes
    bare: bytes
    anchors: bytes
    vetoes: bytes
    spares: bytes
    doubts: bytes
    digits: bytes
    asked: bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """Which expression stands for what. Codes index `rules`, `anchors` or `banners` of the same rulebook."""

    finders: tuple[tuple[str, str, int], ...]  # (expression, "rule" | "banner" | "anchor", index)
    vetoes: tuple[tuple[str, str, int], ...]  # (expression, "unless" | "spare" | "benign", rule index)
    anchors: tuple[str, ...]
    rules: tuple[str, ...]  # the id of every rule
    generic: frozenset[int]  # rules that give way to a particular signature on the same record
    particular: frozenset[int]  # those they give way to

    def veto_groups(self) -> dict[str, list[int]]:
        """Numbers of the vetoes that share an expression: many rules are silenced by the same words, which are looked for once."""
        groups: dict[str, list[int]] = {}
        for n, (expression, _, _) in enumerate(self.vetoes):
            groups.setdefault(expression, []).append(n)
        return groups

    def to_json(self) -> bytes:
        """Without the text of the expressions, which the databases hold compiled."""
        groups = {e: n for n, e in enumerate(self.veto_groups())}
        return json.dumps(
            {
                "finders": [(kind, i) for _, kind, i in self.finders],
                "vetoes": [(groups[e], kind, i) for e, kind, i in self.vetoes],
                "anchors": self.anchors,
                "rules": self.rules,
                "generic": sorted(self.generic),
                "particular": sorted(self.particular),
            }
        ).encode()


@dataclass(frozen=True, slots=True)
class Roster:
    """A plan as the scan of single records uses it: numbers only. Made by `roster` or read by `from_json`."""

    finders: tuple[tuple[str, int], ...]  # (kind, index)
    vetoes: tuple[tuple[tuple[str, int], ...], ...]  # of every expression of the vetoes: whom it speaks for
    anchors: tuple[str, ...]
    rules: tuple[str, ...]
    generic: frozenset[int]
    particular: frozenset[int]


def from_json(text: bytes) -> Roster:
    """What `Plan.to_json` wrote. Raises ValueError, KeyError or TypeError for anything else."""
    raw = json.loads(text)
    groups: list[list[tuple[str, int]]] = []
    for group, kind, i in raw["vetoes"]:
        while len(groups) <= group:
            groups.append([])
        groups[group].append((kind, i))
    return Roster(
        tuple((kind, i) for kind, i in raw["finders"]),
        tuple(map(tuple, groups)),
        tuple(raw["anchors"]),
        tuple(raw["rules"]),
        frozenset(raw["generic"]),
        frozenset(raw["particular"]),
    )


def roster(plan: Plan) -> Roster:
    """The same without the text of the expressions."""
    return from_json(plan.to_json())
