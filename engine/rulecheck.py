"""Rule text -> Rulebook, or every fault at once.

In: (path, text) pairs of YAML files. Out: a `Rulebook`, or `RuleError` with one `Problem` per fault, each naming file,
line, rule and mend. Checks here are static (shape, vocabulary, ids, both regex dialects); that examples hold is
`proof.prove`'s work, which needs the real scan path.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import ValidationError

from defib.engine import policyfiles, ruledialects, rulefaults, yamlpos
from defib.engine import rulemodels as models
from defib.engine.rulebook import Example, FailureClass, Format, Row, Rule, Rulebook, Table, Template
from defib.engine.rulespots import Spots
from defib.engine.words import Problem, RuleError

UNITS = ("h", "min", "ms", "s", "us")
RATES = ("%mfu", "TFLOP/s/gpu", "samples/s", "samples/s/gpu", "steps/s", "tokens/s", "tokens/s/gpu")


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
    spots = Spots(source for source, _ in parsed)
    problems += _vocabulary(book, parsed, spots)
    problems += list(ruledialects.faults(book, spots))
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
                problems += rulefaults.problems_of(
                    e, lambda *told: _told(source, *told), functools.partial(_keys, model)
                )
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


def _keys(model: Any, loc: tuple[Any, ...]) -> list[str]:
    """The keys that may stand in a file's mapping at a place; none where it is no mapping of ours."""
    for name in (n for n in loc if isinstance(n, str)):
        fields = {info.alias or key: info for key, info in model.model_fields.items()} if model is not None else {}
        model = _model(fields[name].annotation) if name in fields else None
    return [] if model is None else [info.alias or key for key, info in model.model_fields.items()]


def _model(hint: Any) -> Any:
    """The shape within a list of it, an optional one, an annotated one."""
    if isinstance(hint, type) and issubclass(hint, models.Strict):
        return hint
    return next((m for part in get_args(hint) if (m := _model(part)) is not None), None)


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


def _vocabulary(book: Rulebook, parsed: list[tuple[yamlpos.Positioned, Any]], spots: Spots) -> list[Problem]:
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
        out += _rule_vocabulary(book, r, spots)
    seen: set[tuple[str, str]] = set()
    for source, m in parsed:
        out += list(_doubles(book, source, m, seen))
    for f in book.formats:
        out += _format_vocabulary(book, f, spots)
    return out


def _format_vocabulary(book: Rulebook, f: Format, spots: Spots) -> Iterator[Problem]:
    if f.step_time_unit not in UNITS:
        mend = f"one of {', '.join(UNITS)}"
        yield spots.problem(f, ("units", "step_time"), f"units.step_time '{f.step_time_unit}'", mend)
    if f.throughput_unit is not None and f.throughput_unit not in RATES:
        mend = f"one of {', '.join(RATES)}"
        yield spots.problem(f, ("units", "throughput"), f"units.throughput '{f.throughput_unit}'", mend)
    if f.of is not None and f.of not in book.format_by_id:
        mend = "give the id of the format that prints the step"
        yield spots.problem(f, ("of",), f"'of' names no format: '{f.of}'", mend)
    if f.priority < 0:
        yield spots.problem(f, ("priority",), "priority is not a number", "0 to 100")


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


def _rule_vocabulary(book: Rulebook, r: Rule, spots: Spots) -> Iterator[Problem]:
    if not r.patterns:
        yield spots.problem(r, (), "no pattern", "add 'pattern: …' (or 'patterns: [...]')")
    if r.klass is not None and r.klass not in book.class_by_id:
        close = difflib.get_close_matches(r.klass, list(book.class_by_id), n=1)
        mend = f"did you mean '{close[0]}'?" if close else "use an id of classes.yaml"
        yield spots.problem(r, ("class",), f"class '{r.klass}' is not in classes.yaml", mend)
    if r.kind == "signature" and r.klass is None and r.role in ("root", "candidate") and r.table is None:
        yield spots.problem(r, ("role",), f"role {r.role} needs a class", "add 'class: …' from classes.yaml")
    if r.table is not None and r.table not in book.table_by_id:
        yield spots.problem(r, ("table",), f"table '{r.table}' is not there", f"add tables/{r.table}.yaml")
    for e in r.hits:
        for other in e.also:
            if other not in book.by_id:
                yield Problem(r.path, e.at, 1, f"'also' names no rule: '{other}'", "give the id of a rule", r.id)
