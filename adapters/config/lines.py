"""Where each key of a TOML text stands. The library that reads the values tells no positions; this finds them, values stay its business.

In: text that is valid TOML. Out: (section, key) -> line, from 1; a section itself under (section, ""). Multi-line strings and arrays are passed over.
"""

from __future__ import annotations

import re

HEADER = re.compile(r"""\s*\[\[?\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*(\..*)?\]""")
KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*(?:\.\s*(?:"([^"]*)"|'([^']*)'|([\w-]+)))?[^=]*=""")
STRING = re.compile(
    r'"{3}.*?(?<!\\)"{3}|\'{3}.*?\'{3}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}]|[^"\'#\[\]{}]+|.', re.S
)


def places(text: str) -> dict[tuple[str, str], int]:
    """The line of every section and of every key in one."""
    found: dict[tuple[str, str], int] = {}
    section = ""
    for line, begun in _statements(text):
        header = HEADER.match(begun)
        if header is not None:
            section = next(g for g in header.groups()[:3] if g is not None)
            found.setdefault((section, ""), line)
        elif (key := KEY.match(begun)) is not None:
            first = next(g for g in key.groups()[:3] if g is not None)
            second = next((g for g in key.groups()[3:] if g is not None), None)
            if section:
                found.setdefault((section, first), line)
            elif second is not None:
                found.setdefault((first, ""), line)
                found.setdefault((first, second), line)
            else:
                found.setdefault((first, ""), line)
    return found


def _statements(text: str) -> list[tuple[int, str]]:
    """(line, its text) of every line that does not begin within a string or a bracket opened before."""
    inside, depth = [False], 0
    for token in STRING.finditer(text):
        piece = token[0]
        depth += (piece in ("[", "{")) - (piece in ("]", "}"))
        inside += [depth > 0 or piece.startswith(("'", '"'))] * piece.count("\n")
    return [(n, t) for n, (t, within) in enumerate(zip(text.split("\n"), inside, strict=True), 1) if not within]
