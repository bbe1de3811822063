"""YAML text -> plain data whose every value knows its line and column.

In: the text of one file. Out: dicts, lists and strings (every scalar stays a string), a map from the path of a value
(`("signatures", 3, "pattern")`) to its 1-based (line, column), and all faults found. Anchors, aliases, tags and
duplicate keys are refused: a rule must read the same to a person and to us.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from defib.engine.words import Problem

Path = tuple[str | int, ...]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

ALIASES_MAX = 8  # refused all the same, but with so few the other faults of the file can be told too


@dataclass(slots=True)
class Positioned:
    """Data of one file, where each value stands, and what was wrong with the text itself."""

    path: str
    data: Any = None
    at: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def where(self, loc: Path) -> tuple[int, int]:
        """The position of loc, or of its nearest parent that has one."""
        while loc and loc not in self.at:
            loc = loc[:-1]
        return self.at.get(loc, (1, 1))

    def problem(self, loc: Path, message: str, mend: str = "", rule: str = "") -> Problem:
        line, column = self.where(loc)
        return Problem(self.path, line, column, message, mend, rule)


def read(path: str, text: str) -> Positioned:
    """Parse one file; never raises for bad content."""
    out, aliases = Positioned(path), 0
    try:
        # libyaml resolves aliases and tags while composing, so they are only visible in the text's own events; and a few lines of aliases
        # upon aliases stand for billions of values, so the events come first.
        for event in yaml.parse(text, Loader=_Loader):
            start: Any = event.start_mark
            aliases += isinstance(event, yaml.AliasEvent)
            if getattr(event, "anchor", None):
                said, mend = "anchors and aliases are not allowed", "write the value out"
            elif getattr(event, "tag", None):
                said, mend = f"tag {event.tag} is not allowed", "remove the tag"  # type: ignore[attr-defined]
            else:
                continue
            out.problems.append(Problem(path, start.line + 1, start.column + 1, said, mend))
        node = yaml.compose(text, Loader=_Loader) if aliases <= ALIASES_MAX else None
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        out.problems.append(
            Problem(path, line, column, f"not YAML: {e.problem}", "check quotes, colons and indentation here")
        )
        return out
    except yaml.YAMLError as e:
        out.problems.append(
            Problem(path, 1, 1, f"not YAML: {e}", "the file must be UTF-8 text without control characters")
        )
        return out
    out.data = _value(node, (), out) if node is not None else None
    return out


def _value(node: Any, loc: Path, out: Positioned, within: frozenset[int] = frozenset()) -> Any:
    if id(node) in within:
        return None  # an alias (refused above) that stands for what holds it
    within |= {id(node)}
    out.at.setdefault(loc, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, yaml.ScalarNode):
        return node.value
    if isinstance(node, yaml.SequenceNode):
        return [_value(child, (*loc, i), out, within) for i, child in enumerate(node.value)]
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        here = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
        if key in result:
            out.problems.append(Problem(out.path, *here, f"key '{key}' is given twice", "keep one of the two"))
        out.at[(*loc, key)] = here
        result[key] = _value(value_node, (*loc, key), out, within)
    return result
