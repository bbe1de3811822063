"""Where in its file a part of a rule stands, after the rule itself has become a plain record.

In: the positioned data of rule files, a rule (or format, prefix, path) and the keys that lead to the part. Out: a `Problem` at the line and
column of that part, of a list the very item; where the part is not written down, at the rule's id.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from defib.engine.words import Problem
from defib.engine.yamlpos import Path, Positioned


class Spots:
    """The entries of all files, found again by what every record keeps: its file, the line of its id, its id."""

    def __init__(self, sources: Iterable[Positioned]) -> None:
        self._entries: dict[tuple[str, int, str], tuple[Positioned, Path, dict[str, Any]]] = {}
        for source in sources:
            for key, listed in source.data.items():
                for i, entry in enumerate(listed if isinstance(listed, list) else ()):
                    if isinstance(entry, dict) and "id" in entry:
                        at = source.where((key, i, "id"))[0]
                        self._entries[source.path, at, str(entry["id"])] = source, (key, i), entry

    def problem(self, owner: Any, keys: tuple[str, ...], message: str, mend: str) -> Problem:
        """A fault of the value that keys lead to."""
        found = self._entries.get((owner.path, owner.at, owner.id))
        if found is None or not keys or (*found[1], *keys) not in found[0].at:
            return Problem(owner.path, owner.at, 1, message, mend, owner.id)
        return found[0].problem((*found[1], *keys), message, mend, owner.id)

    def text(self, owner: Any, keys: Iterable[str], text: str, message: str, mend: str) -> Problem:
        """A fault of a text that stands under one of the keys, alone or in a list."""
        found = self._entries.get((owner.path, owner.at, owner.id))
        if found is not None:
            source, loc, entry = found
            for key in keys:
                value = entry.get(key)
                if value == text:
                    return source.problem((*loc, key), message, mend, owner.id)
                if isinstance(value, list) and text in value:
                    return source.problem((*loc, key, value.index(text)), message, mend, owner.id)
        return Problem(owner.path, owner.at, 1, message, mend, owner.id)
