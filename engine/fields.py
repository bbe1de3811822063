"""Regular expressions of progress formats -> small programs that a helper in C runs over many records at once.

In: an expression in the syntax that Polars takes. Out: a `Program`, or None for one that uses what is not known here; then, and for every
record that holds a byte beyond ASCII or on which a program takes too long, Polars reads. Always holds: on a record of ASCII a program finds the
spans that the expression finds: the leftmost match, earlier alternatives first, greedy and lazy as written (a backtracking matcher, as Henry
Spencer's of 1986; the syntax tree is that of Python's own parser).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from re import _parser as re_parser  # type: ignore[attr-defined]  # the standard library's parser has no public name
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from defib.engine.digits import DIGITS, ZERO, ZEROS

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
U8 = npt.NDArray[np.uint8]

MATCH, CHAR, SET, SPLIT, JUMP, SAVE, BEGIN, END, WORD_EDGE, NO_WORD_EDGE, GREEDY, LAZY, TEXT = range(
    13
)  # as in fields.c
NONE, FOUND, LEFT, NO_DATE = range(4)
CODE_MAX = 2000  # instructions
SLOTS_MAX = 64
SPACES = frozenset((9, 10, 11, 12, 13, 32))
WORDS = DIGITS | frozenset(range(65, 91)) | frozenset(range(97, 123)) | {95}
DRAWN = 128  # stands for a character that is no letter, digit or space, has no case, and is named by no expression
# As in shapes.c.
DRAWN_BYTES = re.compile(rb"\xe2(?:\x80[\x90-\xa7]|\x86[\x90-\xbf]|\x87[\x80-\xbf]|[\x94-\x97][\x80-\xbf])")
ALL = frozenset(range(129))
CATEGORIES = {
    "CATEGORY_DIGIT": DIGITS, "CATEGORY_NOT_DIGIT": ALL - DIGITS, "CATEGORY_SPACE": SPACES, "CATEGORY_NOT_SPACE": ALL - SPACES,
    "CATEGORY_WORD": WORDS, "CATEGORY_NOT_WORD": ALL - WORDS,
}  # fmt: skip
PLACES = {
    "AT_BEGINNING": BEGIN, "AT_BEGINNING_STRING": BEGIN, "AT_END": END, "AT_END_STRING": END, "AT_BOUNDARY": WORD_EDGE,
    "AT_NON_BOUNDARY": NO_WORD_EDGE,
}  # fmt: skip
REQUIRED_MAX = 3  # literals tested before a regex runs


@dataclass(frozen=True, slots=True)
class Program:
    """code: four numbers an instruction. sets: 32 bytes each. names: group name -> number of its first slot. first: 256 bytes, where a match can
    begin; empty: it may begin anywhere; anchored: only at the start. prefix: every match begins with it; needed: every match holds it."""

    code: npt.NDArray[np.int32]
    sets: bytes
    texts: bytes
    first: bytes
    prefix: bytes
    needed: bytes
    slots: int
    anchored: bool
    empty: bool
    names: dict[str, int]
    some: tuple[bytes, ...] | None  # every match holds one of these; None where none is evident
    fold: bool  # they are in lower case, and may be found in any
    run: int  # of a program that begins with one character and any number of a set: that set; else -1
    blind: bool  # it finds the same whatever the digits of a record are, if there are digits in the same places
    wide: bool  # it knows what to make of `DRAWN`


class Kernel(Protocol):
    """What runs programs. start, stop: records in the text, without their line feeds."""

    def has(self, text: bytes, literal: bytes) -> bool:
        """Whether it stands anywhere."""

    def search(self, program: Program, text: bytes, start: I64, stop: I64, begin: I64 | None = None) -> tuple[U8, I64]:
        """FOUND, NONE or LEFT of each record, and its slots: places in the text, -1 where a group took no part. begin: where matches may begin,
        and afterwards where they do."""

    def shapes(self, text: bytes, start: I64, stop: I64) -> tuple[I64, I64, bytes, I64, I64, U8]:
        """The shape of each record, and of each shape: where a record that has it starts; itself with its digits as `0` and its drawn characters as
        `DRAWN`, all in one text; where that starts and stops in it; 0 for ASCII, 1 with drawn characters, 2 with others beyond ASCII."""

    def dates(self, text: bytes, start: I64, shape: I64, part: I64) -> tuple[I64, U8]:
        """Microseconds UTC of records (their starts, and the number of their shape) in whose shape a date stands. part: of each shape, where year,
        month, day, hour, minute, second, fraction and zone start and stop behind the record's start, -1 for none. FOUND; NO_DATE; or LEFT
        where the digits are not those of a date."""

    def widened(self, text: bytes, start: I64, place: I64) -> I64:
        """Places in characters of records with drawn ones -> in bytes. start: of each record in the text."""

    def holding(self, text: bytes, stop: I64, literal: bytes) -> npt.NDArray[np.bool_]:
        """Which records hold a literal; the first one begins with the text."""

    def numbers(self, text: bytes, start: I64, stop: I64) -> tuple[F64, U8]:
        """Pieces as numbers: FOUND, NONE where start is -1, LEFT where it is written in a way that is not plain."""

    def cells(self, text: bytes, start: I64, shape: I64, part: I64) -> tuple[F64, U8]:
        """The same of pieces of records of known shapes, a row for each piece: part as `dates` has it, of any number of pieces."""


class _UnknownError(Exception):
    """The expression uses what is not known here."""


@dataclass(slots=True)
class _Writer:
    """loose: digits stand for each other, so what is written finds the expression's matches and perhaps others."""

    loose: bool = False
    code: list[list[int]] = field(default_factory=list)
    sets: list[frozenset[int]] = field(default_factory=list)
    texts: bytearray = field(default_factory=bytearray)

    def put(self, *words: int) -> int:
        if len(self.code) >= CODE_MAX:
            raise _UnknownError
        self.code.append([*words, *[0] * (4 - len(words))])
        return len(self.code) - 1

    def charset(self, values: frozenset[int]) -> int:
        values |= DIGITS if self.loose and values & DIGITS else frozenset()
        if values not in self.sets:
            self.sets.append(values)
        return self.sets.index(values)

    def sequence(self, tree: Sequence[Any], fold: bool) -> None:
        run = bytearray()
        for op, value in tree:
            if str(op) == "LITERAL" and value < 128 and not (fold and chr(value).isalpha()):
                run.append(ZERO if self.loose and value in DIGITS else value)
                continue
            self._literal(run)
            self._one(str(op), value, fold)
        self._literal(run)

    def _literal(self, run: bytearray) -> None:
        if len(run) == 1:
            self.put(CHAR, run[0])
        elif run:
            self.put(TEXT, len(self.texts), len(run))
            self.texts += run
        run.clear()

    def _one(self, op: str, value: Any, fold: bool) -> None:
        match op:
            case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY":
                self.put(SET, self.charset(_chars(op, value, fold)))
            case "AT" if str(value) in PLACES:
                self.put(PLACES[str(value)])
            case "SUBPATTERN":
                group, added, removed, body = value
                if removed or added & ~re.IGNORECASE:
                    raise _UnknownError
                if group is not None:
                    self.put(SAVE, 2 * group - 2)
                self.sequence(body, fold or bool(added))
                if group is not None:
                    self.put(SAVE, 2 * group - 1)
            case "BRANCH":
                self._branch(value[1], fold)
            case "MAX_REPEAT" | "MIN_REPEAT":
                self._repeat(op == "MAX_REPEAT", value, fold)
            case _:
                raise _UnknownError

    def _branch(self, bodies: Sequence[Any], fold: bool) -> None:
        ends = []
        for body in bodies[:-1]:
            split = self.put(SPLIT)
            self.code[split][1] = len(self.code)
            self.sequence(body, fold)
            ends.append(self.put(JUMP))
            self.code[split][2] = len(self.code)
        self.sequence(bodies[-1], fold)
        for end in ends:
            self.code[end][1] = len(self.code)

    def _repeat(self, greedy: bool, what: Any, fold: bool) -> None:
        least, most, body = what
        endless = most is re_parser.MAXREPEAT
        if len(body) == 1 and str(body[0][0]) in ("LITERAL", "NOT_LITERAL", "IN", "ANY"):
            one = self.charset(_chars(str(body[0][0]), body[0][1], fold))
            self.put(GREEDY if greedy else LAZY, one, least, -1 if endless else most)
            self.put(JUMP, -1)  # its first operand: what may follow
            return
        if body.getwidth()[0] == 0:
            raise _UnknownError  # what an empty turn captures is nobody's business
        for _ in range(least):
            self.sequence(body, fold)
        splits = []
        for _ in range(1 if endless else most - least):
            splits.append(self.put(SPLIT))
            self.sequence(body, fold)
            if endless:
                self.put(JUMP, splits[-1])
        for split in splits:
            ways = (split + 1, len(self.code))
            self.code[split][1:3] = ways if greedy else ways[::-1]

    def ahead(self, pc: int, seen: set[int] | None = None) -> frozenset[int] | None:
        """Bytes that what begins at this instruction can begin with; None where it may match nothing at all."""
        seen = set() if seen is None else seen
        out: set[int] = set()
        while True:
            op, a, b, _ = self.code[pc]
            if pc in seen:
                return frozenset(out)
            seen.add(pc)
            match op:
                case 0 | 7:  # MATCH, END
                    return None
                case 1:
                    return frozenset(out | {a})
                case 2:
                    return frozenset(out | self.sets[a])
                case 12:
                    return frozenset(out | {self.texts[a]})
                case 3:
                    ways = [self.ahead(to, seen) for to in (a, b)]
                    return None if None in ways else frozenset(out.union(*(w for w in ways if w is not None)))
                case 4:
                    pc = a
                case 10 | 11:
                    out |= self.sets[a]
                    if b > 0:
                        return frozenset(out)
                    pc += 2
                case _:
                    pc += 1

    def anchored(self, pc: int = 0) -> bool:
        """Whether every way begins at the start of the record."""
        while self.code[pc][0] in (SAVE, WORD_EDGE, NO_WORD_EDGE):
            pc += 1
        if self.code[pc][0] == SPLIT:
            return all(self.anchored(to) for to in self.code[pc][1:3] if to > pc) and min(self.code[pc][1:3]) > pc
        return self.code[pc][0] == BEGIN

    def blind(self) -> bool:
        """Whether no instruction asks which digit stands somewhere."""
        for op, a, b, _ in self.code:
            if (op == CHAR and a in DIGITS) or (op == TEXT and DIGITS.intersection(self.texts[a : a + b])):
                return False
            if op in (SET, GREEDY, LAZY) and 0 < len(self.sets[a] & DIGITS) < len(DIGITS):
                return False
        return True

    def prefix(self) -> bytes:
        """What every match begins with."""
        pc = 0
        while self.code[pc][0] in (SAVE, WORD_EDGE, NO_WORD_EDGE):
            pc += 1
        op, a, b, _ = self.code[pc]
        return bytes([a]) if op == CHAR else bytes(self.texts[a : a + b]) if op == TEXT else b""


def _chars(op: str, value: Any, fold: bool) -> frozenset[int]:
    """Bytes that one character of an expression stands for."""
    if op == "ANY":
        return ALL - {10}
    if op == "LITERAL":
        return ALL & _folded({value}, fold)
    if op == "NOT_LITERAL":
        return ALL - _chars("LITERAL", value, fold)
    chars: set[int] = set()
    away = False
    for kind, what in value:
        match str(kind):
            case "LITERAL":
                chars.add(what)
            case "RANGE":
                chars.update(range(what[0], min(what[1], 127) + 1))
            case "CATEGORY" if str(what) in CATEGORIES:
                chars |= CATEGORIES[str(what)]
            case "NEGATE":
                away = True
            case _:
                raise _UnknownError
    found = _folded(chars, fold)
    return ALL - found if away else ALL & found


def _folded(chars: set[int] | frozenset[int], fold: bool) -> frozenset[int]:
    if not fold:
        return frozenset(chars)
    return frozenset({ord(x) for c in chars if c < 128 for x in (chr(c).lower(), chr(c).upper())})


def _names_beyond(tree: Any) -> bool:
    """Whether a character beyond ASCII is named in it."""
    if isinstance(tree, tuple) and len(tree) == 2 and str(tree[0]) in ("LITERAL", "NOT_LITERAL", "RANGE"):
        return bool(np.max(tree[1]) >= 128)
    return not isinstance(tree, int | str | None) and any(map(_names_beyond, tree))


def required(pattern: str) -> tuple[str, ...]:
    """Literals every match of the pattern holds, longest first (none if none is evident): substring tests spare most regex work.

    Read off the parse tree of Python's own regex parser; a construct it does not know costs only the shortcut.
    """
    try:
        tree = re_parser.parse(pattern.replace("(?-u:", "(?:"))
    except (re.error, OverflowError):
        return ()
    if tree.state.flags & re.IGNORECASE:
        return ()
    runs = [""]
    for literal in _literals(tree):
        if literal:
            runs[-1] += literal
        else:
            runs.append("")
    long = sorted({r for r in runs if len(r) > 2}, key=lambda r: (-len(r), r))
    return tuple(r for i, r in enumerate(long) if not any(r in longer for longer in long[:i]))[:REQUIRED_MAX]


def _literals(tree: Any) -> Iterator[str]:
    """Characters in a row that must stand there; "" where something else may stand between."""
    for op, value in tree:
        name = str(op)
        if name == "LITERAL" and value < 128:
            yield chr(value)
        elif name == "SUBPATTERN" and not value[1] and not value[2]:
            yield from _literals(value[3])
        elif name == "MAX_REPEAT" and value[0] >= 1 and value[1] == value[0] == 1:
            yield from _literals(value[2])
        elif name == "AT":
            continue
        else:
            yield ""


def _some(tree: Any, pattern: str) -> tuple[tuple[bytes, ...] | None, bool]:
    """Literals of which every match holds one, and whether in any case."""
    if told := required(pattern):
        return (told[0].encode(),), False
    fold = bool(tree.state.flags & re.IGNORECASE)
    bodies = tree[0][1][1] if len(tree) == 1 and str(tree[0][0]) == "BRANCH" else [tree]
    out = [max("".join(x or "\0" for x in _literals(body)).split("\0"), key=len).lower() for body in bodies]
    short = min(map(len, out)) < 3
    return (None if short or (not fold and len(bodies) == 1) else tuple(x.encode() for x in out)), True


def _same_to_both(pattern: str) -> bool:
    """Whether Python and Polars read the expression alike: not so operations on sets, classes in them, an open lower bound, classes by name."""
    at, inside = 0, False
    while at < len(pattern):
        c, two = pattern[at], pattern[at : at + 2]
        if c == "\\":
            if two[1:] in ("p", "P", "z", "Z"):
                return False
            at += 2
            continue
        if inside:
            if c == "[" or two in ("&&", "--", "~~"):
                return False
            inside = c != "]"
        elif c == "[":
            inside = True
            at += 1 + (pattern[at + 1 : at + 2] == "^")
            at += pattern[at : at + 1] == "]"  # a bracket that stands first is one of the set
            continue
        elif two == "{,":
            return False
        at += 1
    return True


def unnumbered(literal: bytes) -> bytes:
    """As it stands in shapes: its digits as `0`, its drawn characters as `DRAWN`."""
    return DRAWN_BYTES.sub(bytes([DRAWN]), literal).translate(ZEROS)


@cache
def program(pattern: str, loose: bool = False) -> Program | None:
    """The expression as a program; None where it uses what is not known here. loose: digits stand for each other."""
    if not _same_to_both(pattern):
        return None
    try:
        tree = re_parser.parse(pattern.replace("(?-u:", "(?:"))
    except (re.error, OverflowError):
        return None
    if tree.state.flags & ~(re.UNICODE | re.IGNORECASE) or 2 * (tree.state.groups - 1) > SLOTS_MAX:
        return None
    w = _Writer(loose)
    try:
        w.sequence(tree, bool(tree.state.flags & re.IGNORECASE))
        w.put(MATCH)
        for pc, (op, *_) in enumerate(w.code):
            if op in (GREEDY, LAZY, SPLIT):
                then = w.ahead(pc + 2 if op != SPLIT else w.code[pc][1])
                w.code[pc + (op != SPLIT)][3 if op == SPLIT else 1] = -1 if then is None else w.charset(then)
    except _UnknownError:
        return None
    first, prefix = w.ahead(0), w.prefix()
    some, folded = (((prefix,), False)) if len(prefix) > 2 else _some(tree, pattern)
    needed = next((r.encode() for r in required(pattern) if r.encode() not in prefix), b"")
    return Program(
        np.array(w.code, np.int32),
        b"".join(np.packbits([b in s for b in range(256)], bitorder="little").tobytes() for s in w.sets),
        bytes(w.texts),
        bytes(first is None or b in first for b in range(256)),
        prefix,
        unnumbered(needed) if loose else needed,
        2 * (tree.state.groups - 1),
        w.anchored(),
        first is None,
        {name: 2 * group - 2 for name, group in tree.state.groupdict.items()},
        tuple(map(unnumbered, some)) if loose and some else some,
        folded,
        w.code[1][1] if w.code[0][0] == SET and w.code[1][0] == GREEDY and w.code[1][2:] == [0, -1] else -1,
        w.blind(),
        not _names_beyond(tree),
    )
