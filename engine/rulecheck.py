"""Rule text -> Rulebook, or every fault at once.

In: (path, text) pairs of YAML files. Out: a `Rulebook`, or `RuleError` with one `Problem` per fault, each naming file,
line, rule and mend. Checks here are static (shape, vocabulary, ids, both regex dialects); that examples hold is
`proof.prove`'s work, which needs the real scan path.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Iterator
from re import _parser as re_parser  # type: ignore[attr-defined]  # the standard library's parser has no public name
from typing import Any

import hyperscan
from pydantic import ValidationError

from defib.engine import policyfiles, rulefaults, yamlpos
from defib.engine import rulemodels as models
from defib.engine.rulebook import Example, FailureClass, Format, Row, Rule, Rulebook, Table, Template
from defib.engine.words import Problem, RuleError

TRAILING_QUANTIFIER = re.compile(r"(?<!\\)(?:[*+]|\{\d+,\d*\})\??\)*$")
LINE_FEED = 10
BOUNDED_GAP = re.compile(r"\.\{\d+,\d+\}")

# What Hyperscan says -> what to write instead.
HYPERSCAN_MENDS = (
    ("look", "Hyperscan has no look-around: put the second condition in 'unless' or 'extract'"),
    ("Zero-width", "Hyperscan has no look-around: put the second condition in 'unless' or 'extract'"),
    ("reference", "Hyperscan has no back-references: match one side, compare in 'extract'"),
    ("empty buffer", "the pattern must need at least one character: add a literal"),
    ("too large", "shorten bounded repeats; write '.*' for a gap"),
    ("Embedded", "anchors inside a pattern: put ^ first and $ last, or leave them out"),
    ("Possessive", "Hyperscan has no possessive quantifiers: drop the '+' after the quantifier"),
    ("Atomic", "Hyperscan has no atomic groups: use a plain group (?:…)"),
)


def load(files: Iterable[tuple[str, str]]) -> Rulebook:
    """Check and build. Raises RuleError carrying every problem of every file."""
    digest = hashlib.sha256()
    problems: list[Problem] = []
    parsed: list[tuple[yamlpos.Positioned, Any]] = []
    policies: list[yamlpos.Positioned] = []
    # Ours first, so that a clash is told of the folder that can be changed.
    for path, text in sorted(files, key=lambda f: (not f[0].startswith("rules/"), f[0])):
        digest.update(path.encode("utf-8", "surrogateescape") + b"\0" + text.encode() + b"\0")
        source = yamlpos.read(path, text)
        problems += source.problems
        if not source.problems and isinstance(source.data, dict) and "policy" in source.data:
            policies.append(source)
            continue
        model = _validate(source, problems) if not source.problems else None
        if model is not None:
            parsed.append((source, model))
    book = _assemble(digest.hexdigest(), parsed, policyfiles.assemble(policies, problems))
    problems += _vocabulary(book, parsed)
    problems += list(_dialects(book))
    if problems:
        raise RuleError(sorted(problems, key=lambda p: (p.path, p.line, p.column, p.message)))
    return book


def _validate(source: yamlpos.Positioned, problems: list[Problem]) -> Any:
    if not isinstance(source.data, dict):
        problems.append(source.problem((), "a rule file is a mapping", "begin with 'family:' or 'framework:'"))
        return None
    for key, model in models.FILE_KINDS.items():
        if key in source.data:
            try:
                return model.model_validate(source.data)
            except ValidationError as e:
                problems += rulefaults.problems_of(e, lambda *told: _told(source, *told), _all_keys(model))
                return None
    mend = "one of " + ", ".join([*models.FILE_KINDS, "policy"])
    problems.append(source.problem((), "cannot tell what kind of rule file this is", f"give it a key {mend}"))
    return None


def _told(source: yamlpos.Positioned, loc: tuple[Any, ...], message: str, mend: str) -> Problem:
    """A fault of a file's shape with the rule it stands in."""
    rule, data = "", source.data
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            break
        if isinstance(data, dict) and isinstance(data.get("id"), str):
            rule = str(data["id"])
            break
    return source.problem(loc, message, mend, rule)


def _all_keys(model: type[Any]) -> Iterator[str]:
    seen: list[Any] = [model]
    for m in seen:
        for name, info in m.model_fields.items():
            yield info.alias or name
            for sub in (
                models.Signature,
                models.Format,
                models.Phase,
                models.Banner,
                models.Hit,
                models.Row,
                models.Template,
            ):
                if sub.__name__ in str(info.annotation) and sub not in seen:
                    seen.append(sub)


def _assemble(digest: str, parsed: list[tuple[yamlpos.Positioned, Any]], policies: dict[str, Any]) -> Rulebook:
    rules: list[Rule] = []
    formats: list[Format] = []
    classes: list[FailureClass] = []
    tables: list[Table] = []
    prefixes: list[Template] = []
    paths: list[Template] = []
    refines: dict[str, tuple[str, ...]] = {}
    for source, m in parsed:
        if isinstance(m, models.SignatureFile):
            rules += [_signature(source, ("signatures", i), s) for i, s in enumerate(m.signatures)]
        elif isinstance(m, models.ProgressFile):
            refines[m.framework] = tuple(m.refines)
            formats += [_format(source, ("formats", i), f, m.framework) for i, f in enumerate(m.formats)]
            rules += [_phase(source, ("phases", i), p, m.framework) for i, p in enumerate(m.phases)]
            rules += [_banner(source, ("banners", i), b, m.framework) for i, b in enumerate(m.banners)]
        elif isinstance(m, models.ClassFile):
            classes += [FailureClass(**c.model_dump()) for c in m.classes]
        elif isinstance(m, models.TableFile):
            rows = {r.value: Row(r.title, r.role, r.class_, r.domain, r.action) for r in m.rows}
            d = m.default
            tables.append(Table(m.table, m.key, rows, Row(d.title, d.role, d.class_, d.domain, d.action)))
        elif isinstance(m, models.PrefixFile):
            prefixes += [_template(source, ("prefixes", i), t) for i, t in enumerate(m.prefixes)]
        elif isinstance(m, models.PathFile):
            paths += [_template(source, ("paths", i), t) for i, t in enumerate(m.paths)]
    return Rulebook(
        digest, tuple(rules), tuple(formats), tuple(classes), tuple(tables), tuple(prefixes), tuple(paths), refines,
        policies=policies,
    )  # fmt: skip


def _examples(source: yamlpos.Positioned, loc: yamlpos.Path, hits: list[Any], key: str) -> tuple[Example, ...]:
    out = []
    for i, h in enumerate(hits):
        at = source.where((*loc, key, i))[0]
        out.append(Example(h, at) if isinstance(h, str) else Example(h.line, at, dict(h.fields), tuple(h.also)))
    return tuple(out)


def _common(source: yamlpos.Positioned, loc: yamlpos.Path, m: Any) -> dict[str, Any]:
    return {
        "id": m.id,
        "title": m.title or m.id,
        "limits": getattr(m, "limits", None),
        "see": tuple(getattr(m, "see", ())),
        "hits": _examples(source, loc, m.hits, "hits"),
        "misses": _examples(source, loc, m.misses, "misses"),
        "path": source.path,
        "at": source.where((*loc, "id"))[0],
    }


def _patterns(m: Any) -> tuple[str, ...]:
    return ((m.pattern,) if m.pattern is not None else ()) + tuple(m.patterns)


def _signature(source: yamlpos.Positioned, loc: yamlpos.Path, s: models.Signature) -> Rule:
    return Rule(
        kind="signature", patterns=_patterns(s), unless=tuple(s.unless), extract=tuple(s.extract), role=s.role,
        klass=s.class_, domain=s.domain, mark=s.mark, looks_back=s.looks_back, table=s.table,
        generic=s.generic == "true", traits=tuple(s.traits), status=s.status, **_common(source, loc, s),
    )  # fmt: skip


def _phase(source: yamlpos.Positioned, loc: yamlpos.Path, p: models.Phase, framework: str) -> Rule:
    return Rule(
        kind="phase", patterns=_patterns(p), unless=tuple(p.unless), extract=tuple(p.extract), phase=p.phase, edge=p.edge,
        framework=framework, role="locator", **_common(source, loc, p),
    )  # fmt: skip


def _banner(source: yamlpos.Positioned, loc: yamlpos.Path, b: models.Banner, framework: str) -> Rule:
    return Rule(kind="banner", patterns=_patterns(b), framework=framework, role="locator", **_common(source, loc, b))


def _format(source: yamlpos.Positioned, loc: yamlpos.Path, f: models.Format, framework: str) -> Format:
    priority = int(f.priority) if f.priority.isdigit() else -1
    return Format(
        framework=framework, anchors=tuple(f.anchor), pattern=f.pattern, unless=tuple(f.unless), more=tuple(f.more),
        step_time_unit=f.units.get("step_time", "s"), throughput_unit=f.units.get("throughput"), counts=f.counts,
        kind=f.kind, priority=priority, of=f.of, **_common(source, loc, f),
    )  # fmt: skip


def _template(source: yamlpos.Positioned, loc: yamlpos.Path, t: models.Template) -> Template:
    common = _common(source, loc, t)
    return Template(t.id, t.title, t.pattern, common["hits"], common["misses"], source.path, common["at"])


def _vocabulary(book: Rulebook, parsed: list[tuple[yamlpos.Positioned, Any]]) -> list[Problem]:
    """Ids unique and of their family; classes, tables, units, `of` and `also` known."""
    out: list[Problem] = []
    named: dict[str, str] = {}
    things: list[Any] = [*book.rules, *book.formats, *book.prefixes, *book.paths]
    for t in things:
        if t.id in named:
            out.append(
                Problem(t.path, t.at, 1, "id is taken", f"{named[t.id]} has it; ids are for ever, choose another", t.id)
            )
        named[t.id] = f"{t.path}:{t.at}"
    for source, m in parsed:
        family = getattr(m, "family", None) or getattr(m, "framework", None)
        for key in ("signatures", "formats", "phases", "banners"):
            for i, r in enumerate(getattr(m, key, ())):
                if family and not r.id.startswith(family + "."):
                    out.append(
                        source.problem(
                            (key, i, "id"), f"id must begin with '{family}.'", f"write '{family}.{r.id}'", r.id
                        )
                    )
    for r in book.rules:
        out += _rule_vocabulary(book, r)
    seen: set[tuple[str, str]] = set()
    for source, m in parsed:
        out += list(_doubles(book, source, m, seen))
    units = {"s", "ms", "us", "min", "h"}
    rates = {"tokens/s", "tokens/s/gpu", "samples/s", "samples/s/gpu", "TFLOP/s/gpu", "steps/s", "%mfu", None}
    for f in book.formats:
        if f.step_time_unit not in units:
            out.append(
                Problem(
                    f.path, f.at, 1, f"units.step_time '{f.step_time_unit}'", f"one of {', '.join(sorted(units))}", f.id
                )
            )
        if f.throughput_unit not in rates:
            mend = "one of " + ", ".join(sorted(u for u in rates if u))
            out.append(Problem(f.path, f.at, 1, f"units.throughput '{f.throughput_unit}'", mend, f.id))
        if f.of is not None and f.of not in book.format_by_id:
            out.append(
                Problem(
                    f.path,
                    f.at,
                    1,
                    f"'of' names no format: '{f.of}'",
                    "give the id of the format that prints the step",
                    f.id,
                )
            )
        if f.priority < 0:
            out.append(Problem(f.path, f.at, 1, "priority is not a number", "0 to 100", f.id))
    return out


def _doubles(book: Rulebook, source: yamlpos.Positioned, m: Any, seen: set[tuple[str, str]]) -> Iterator[Problem]:
    """Classes and table rows are given once over all files, and rows name known classes."""
    for key, name in (("classes", "id"), ("rows", "value")):
        for i, entry in enumerate(getattr(m, key, ())):
            value = getattr(entry, name)
            mark = (getattr(m, "table", key), value)
            if mark in seen:
                yield source.problem((key, i, name), f"{name} '{value}' is given twice", "keep one of the two", value)
            seen.add(mark)
            klass = getattr(entry, "class_", None)
            if klass is not None and klass not in book.class_by_id:
                yield source.problem(
                    (key, i, "class"), f"class '{klass}' is not in classes.yaml", "use an id of classes.yaml", value
                )
    klass = getattr(getattr(m, "default", None), "class_", None)
    if klass is not None and klass not in book.class_by_id:
        yield source.problem(
            ("default", "class"), f"class '{klass}' is not in classes.yaml", "use an id of classes.yaml"
        )


def _rule_vocabulary(book: Rulebook, r: Rule) -> Iterator[Problem]:
    def fault(message: str, mend: str) -> Problem:
        return Problem(r.path, r.at, 1, message, mend, r.id)

    if not r.patterns:
        yield fault("no pattern", "add 'pattern: …' (or 'patterns: [...]')")
    if r.klass is not None and r.klass not in book.class_by_id:
        close = difflib.get_close_matches(r.klass, list(book.class_by_id), n=1)
        yield fault(
            f"class '{r.klass}' is not in classes.yaml",
            f"did you mean '{close[0]}'?" if close else "use an id of classes.yaml",
        )
    if r.kind == "signature" and r.klass is None and r.role in ("root", "candidate") and r.table is None:
        yield fault(f"role {r.role} needs a class", "add 'class: …' from classes.yaml")
    if r.table is not None and r.table not in book.table_by_id:
        yield fault(f"table '{r.table}' is not there", f"add tables/{r.table}.yaml")
    for e in r.hits:
        for other in e.also:
            if other not in book.by_id:
                yield Problem(r.path, e.at, 1, f"'also' names no rule: '{other}'", "give the id of a rule", r.id)


def _dialects(book: Rulebook) -> Iterator[Problem]:
    """Every pattern in the dialect it will run in."""
    for r in book.rules:
        for p in (*r.patterns, *r.unless):
            yield from _hyperscan_fault(r, p)
            if may_cross(p):
                mend = "a record holds no line end: drop the flag s, \\n, [:space:] or the range that holds it"
                yield Problem(r.path, r.at, 1, f"could match across a line end: {p}", mend, r.id)
        for p in r.patterns:
            if TRAILING_QUANTIFIER.search(p) and r.role != "benign" and r.kind != "banner":
                yield Problem(
                    r.path,
                    r.at,
                    1,
                    f"pattern ends in a quantifier: {p}",
                    "cut it before the quantifier: every further character would be one more match",
                    r.id,
                )
            if BOUNDED_GAP.search(p):
                yield Problem(
                    r.path,
                    r.at,
                    1,
                    f"bounded gap in {p}",
                    "write '.*': a dot never crosses a record, and bounded gaps blow up the database",
                    r.id,
                )
        for p in r.extract:
            yield from _rust_fault(r, p, models.CAPTURES)
    for f in book.formats:
        for p in (f.pattern, *f.more):
            yield from _rust_fault(f, p, models.PROGRESS_CAPTURES)
        for p in f.unless:
            yield from _rust_fault(f, p, None)
        if f.of is None and "(?P<step>" not in f.pattern:
            yield Problem(
                f.path,
                f.at,
                1,
                "pattern captures no step",
                "name a group (?P<step>…), or give 'of:' for value lines",
                f.id,
            )
    for t in book.prefixes:
        yield from _rust_fault(t, t.pattern, models.CAPTURES)
    for t in book.paths:
        yield from _rust_fault(t, t.pattern, models.PATH_CAPTURES)


def may_cross(pattern: str) -> bool:
    """Whether a pattern can hold a line end in a way `scan.confine` does not mend."""
    if re.search(
        r"\(\?[a-zA-Z]*s[a-zA-Z]*[:)]|\[:(?:space|cntrl|\^\w+):\]|(?<!\\)(?:\\\\)*\\(?:[vHCRN]|c[jJ])", pattern
    ):
        return True
    try:
        tree = re_parser.parse(re.sub(r"\[:\^?\w+:\]", "a", pattern))
    except (re.error, OverflowError):
        return False
    return _holds_line_end(tree)


def _holds_line_end(tree: Any) -> bool:
    """A literal line feed, or a class or range with one, anywhere in the parse tree."""
    for op, value in tree:
        name = str(op)
        inner: list[Any] = []
        if name == "LITERAL" and value == LINE_FEED:
            return True
        if name == "IN" and str(value[0][0]) != "NEGATE":
            for kind, item in value:
                if str(kind) not in ("RANGE", "LITERAL"):
                    continue
                low, high = item if str(kind) == "RANGE" else (item, item)
                if low <= LINE_FEED <= high:
                    return True
        elif name == "SUBPATTERN":
            inner = [value[3]]
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            inner = [value[2]]
        elif name == "BRANCH":
            inner = value[1]
        if any(_holds_line_end(t) for t in inner):
            return True
    return False


def _hyperscan_fault(rule: Rule, pattern: str) -> Iterator[Problem]:
    try:
        db = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        db.compile(expressions=[pattern.encode()], ids=[0], elements=1, flags=[hyperscan.HS_FLAG_MULTILINE])
    except hyperscan.error as e:
        said = str(e)
        mend = next(
            (m for word, m in HYPERSCAN_MENDS if word.lower() in said.lower()), "see rules/README.md for the dialect"
        )
        yield Problem(rule.path, rule.at, 1, f"Hyperscan refuses {pattern}: {said}", mend, rule.id)


def _rust_fault(owner: Any, pattern: str, vocabulary: frozenset[str] | None) -> Iterator[Problem]:
    import polars as pl

    try:
        pl.Series([""]).str.contains(pattern)
    except pl.exceptions.PolarsError as e:
        said = " ".join(str(e).split())
        mend = (
            "Rust's regex has no look-around or back-references"
            if "look" in said
            else "see rules/README.md for the dialect"
        )
        yield Problem(owner.path, owner.at, 1, f"regex does not compile: {pattern}: {said[-160:]}", mend, owner.id)
        return
    if vocabulary is None:
        return
    names = re.findall(r"\(\?P?<([A-Za-z_][A-Za-z0-9_]*)>", pattern)
    if not names:
        yield Problem(
            owner.path, owner.at, 1, f"no named capture in {pattern}", "name a group (?P<rank>…), or drop it", owner.id
        )
    for name in names:
        if name not in vocabulary:
            close = difflib.get_close_matches(name, sorted(vocabulary), n=1)
            mend = f"did you mean '{close[0]}'?" if close else f"one of {' '.join(sorted(vocabulary))}"
            yield Problem(owner.path, owner.at, 1, f"unknown capture '{name}'", mend, owner.id)
