"""Rules as the engine uses them, and the way from checked data to them.

A `Rulebook` is frozen, plain and JSON-able, so that a start needs neither YAML nor validation: `to_json`/`from_json`
round-trip it for the cache beside the compiled database. `rulecheck.load` is the way in from text.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import orjson

from defib.engine.errors import ConfigError, Problem
from defib.engine.plan import Databases as Databases
from defib.engine.policies import POLICIES, Detect, P, restore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Example:
    """A line a rule must match (or, in `misses`, must not), with where it stands in the rule file."""

    line: str
    at: int = 1
    fields: dict[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One signature, phase line or banner: patterns Hyperscan finds, captures taken from the found record.

    kind: signature | phase | banner. For phases `phase`/`edge` are set, for banners and phases `framework`.
    """

    id: str
    title: str
    kind: str
    patterns: tuple[str, ...]
    unless: tuple[str, ...] = ()
    extract: tuple[str, ...] = ()
    role: str = "confirm"
    klass: str | None = None
    domain: str = "unknown"
    mark: str | None = None
    looks_back: str | None = None
    table: str | None = None
    generic: bool = False
    traits: tuple[str, ...] = ()
    status: str = "stable"
    phase: str | None = None
    edge: str | None = None
    framework: str | None = None
    limits: str | None = None
    see: tuple[str, ...] = ()
    hits: tuple[Example, ...] = ()
    misses: tuple[Example, ...] = ()
    path: str = ""
    at: int = 1


@dataclass(frozen=True, slots=True)
class Format:
    """How a framework prints a step. `anchors` are literals one of which every such line holds."""

    id: str
    title: str
    framework: str
    anchors: tuple[str, ...]
    pattern: str
    unless: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    step_time_unit: str = "s"
    throughput_unit: str | None = None
    counts: str = "step"
    kind: str = "train"
    priority: int = 50
    of: str | None = None
    limits: str | None = None
    see: tuple[str, ...] = ()
    hits: tuple[Example, ...] = ()
    misses: tuple[Example, ...] = ()
    path: str = ""
    at: int = 1

    @property
    def prints_time(self) -> bool:
        """Whether its lines tell seconds per step themselves."""
        return any(f"(?P<{name}>" in p for p in (self.pattern, *self.more) for name in ("step_time", "rate"))


@dataclass(frozen=True, slots=True)
class FailureClass:
    """Who is at fault and what is done by default; fields as in rules/classes.yaml."""

    id: str
    title: str
    verdict: str
    fault: str
    retry: str
    exclude: str
    budget: str
    why: str


@dataclass(frozen=True, slots=True)
class Row:
    """What one value of a table stands for."""

    title: str
    role: str
    klass: str | None
    domain: str
    action: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """What a number means: the capture `key` chooses the row."""

    id: str
    key: str
    rows: dict[str, Row]
    default: Row


@dataclass(frozen=True, slots=True)
class Template:
    """A prefix or path form: a regex with named captures."""

    id: str
    title: str
    pattern: str
    hits: tuple[Example, ...] = ()
    misses: tuple[Example, ...] = ()
    path: str = ""
    at: int = 1


@dataclass(frozen=True)
class Rulebook:
    """Everything defib recognises. `hash` is the SHA-256 of the rule files' content."""

    hash: str
    rules: tuple[Rule, ...]
    formats: tuple[Format, ...]
    classes: tuple[FailureClass, ...]
    tables: tuple[Table, ...]
    prefixes: tuple[Template, ...]
    paths: tuple[Template, ...]
    refines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # Checked values by the policy's name; `policy` makes the shape of them.
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def detect(self) -> Detect:
        """The policy of detection."""
        return self.policy(Detect)

    @cached_property
    def by_id(self) -> dict[str, Rule]:
        return {r.id: r for r in self.rules}

    @cached_property
    def format_by_id(self) -> dict[str, Format]:
        return {f.id: f for f in self.formats}

    @cached_property
    def class_by_id(self) -> dict[str, FailureClass]:
        return {c.id: c for c in self.classes}

    @cached_property
    def table_by_id(self) -> dict[str, Table]:
        return {t.id: t for t in self.tables}

    def policy(self, shape: type[P]) -> P:
        """The policy of this shape. Raises ConfigError where the rules hold none."""
        name = next(n for n, known in POLICIES.items() if known is shape)
        if name not in self.policies:
            raise ConfigError([Problem("rules", 1, 1, f"there is no policy '{name}'", f"add policy/{name}.yaml")])
        return restore(shape, self.policies[name])

    def to_json(self) -> bytes:
        return orjson.dumps(dataclasses.asdict(self), option=orjson.OPT_SORT_KEYS)

    @staticmethod
    def from_json(text: bytes) -> Rulebook:
        raw = orjson.loads(text)
        return Rulebook(
            hash=raw["hash"],
            rules=tuple(_build(Rule, r) for r in raw["rules"]),
            formats=tuple(_build(Format, f) for f in raw["formats"]),
            classes=tuple(FailureClass(**c) for c in raw["classes"]),
            tables=tuple(
                Table(t["id"], t["key"], {k: Row(**v) for k, v in t["rows"].items()}, Row(**t["default"]))
                for t in raw["tables"]
            ),
            prefixes=tuple(_build(Template, t) for t in raw["prefixes"]),
            paths=tuple(_build(Template, t) for t in raw["paths"]),
            refines={k: tuple(v) for k, v in raw["refines"].items()},
            policies=raw["policies"],
        )


def _build(cls: type[T], raw: dict[str, Any]) -> T:
    """Rebuild a frozen dataclass from JSON: lists back to tuples, examples back to `Example`."""
    out: dict[str, Any] = {}
    for key, value in raw.items():
        if key in ("hits", "misses"):
            out[key] = tuple(Example(e["line"], e["at"], e["fields"], tuple(e["also"])) for e in value)
        else:
            out[key] = tuple(value) if isinstance(value, list) else value
    return cls(**out)
