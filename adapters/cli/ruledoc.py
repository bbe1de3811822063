"""`defib rules doc | coverage`: all rules on one page, and what of them many logs show.

In: a proven rulebook, for coverage also logs. Out: Markdown, a report, JSON, or a rule file of stubs. Always holds: the same rules
give the same page; text of logs and rules is escaped for where it is shown (terminal, Markdown, YAML).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from defib.adapters import rulefiles
from defib.adapters.show import cut, safe, size
from defib.engine.blocks import I64, Batch, LineCutter
from defib.engine.scan import Hits, Scanner

if TYPE_CHECKING:
    from defib.engine.rulebook import Databases, Format, Rule, Rulebook
    from defib.engine.survey import Survey

SHOWN = 20
SHAPES_MAX = 20_000
EXAMPLE_CHARS = 160
PLACEHOLDERS = (
    (re.compile(r"(?:/[\w.@#+=-]+){2,}/?"), "/#"),
    (re.compile(r"'[^']{1,80}'"), "'#'"),
    (re.compile(r"\b(?=[a-fA-F#-]*#)[a-fA-F#-]{6,}(?![\w-])"), "#"),
    (re.compile(r"#(?:[.,:/T -]{0,2}#)+"), "#"),
    (re.compile(r"^(?:\[?[a-z]*#\]?:\s*)+"), ""),  # the label of a rank or task
)


class Noting(Scanner):
    """A scanner that also counts what no SIGNALS row shows: benign rules that muted a record, and banners."""

    remembers = False  # every record counts

    def __init__(self, book: Rulebook, databases: Databases) -> None:
        super().__init__(book, databases)
        self.counts: dict[str, int] = {}

    def scan(self, batch: Batch) -> Hits:
        hits = super().scan(batch)
        for i in hits.banners:
            self._note(i)
        return hits

    def vetoes(self, batch: Batch, records: I64, rules: I64 | None = None) -> tuple[I64, I64, npt.NDArray[np.bool_]]:
        rule, record, benign = super().vetoes(batch, records, rules)
        for i, _ in set(zip(rule[benign].tolist(), record[benign].tolist(), strict=True)):
            self._note(i)
        return rule, record, benign

    def _note(self, rule: int) -> None:
        name = self.book.rules[rule].id
        self.counts[name] = self.counts.get(name, 0) + 1


@dataclass(slots=True)
class Shape:
    """Error-looking lines of one shape that no rule speaks for, over all files."""

    path: str
    line: int
    text: str
    files: int = 0
    count: int = 0


@dataclass(slots=True)
class Coverage:
    """id -> [files, lines] of what was seen; shape -> lines without a rule."""

    files: int = 0
    lines: int = 0
    bytes_read: int = 0
    seen: dict[str, list[int]] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)

    def add(self, path: str, survey: Survey, noted: dict[str, int]) -> None:
        """Take in one log."""
        self.files += 1
        counts = {**noted, **survey.rules, **{f: n for f, (n, _, _) in survey.formats.items()}}
        for name, n in counts.items():
            known = self.seen.setdefault(name, [0, 0])
            known[0] += 1
            known[1] += n
        here: set[str] = set()
        for fine, u in sorted(survey.unknown.items(), key=lambda x: x[1].line):
            key = shape_of(fine)
            shape = self.shapes.get(key)
            if shape is None:
                if len(self.shapes) >= SHAPES_MAX:
                    continue
                shape = self.shapes[key] = Shape(path, u.line, u.text)
            shape.files += key not in here
            shape.count += u.count
            here.add(key)

    def ranked(self) -> list[tuple[str, Shape]]:
        return sorted(self.shapes.items(), key=lambda x: (-x[1].files, -x[1].count, x[1].path, x[1].line))


def shape_of(text: str) -> str:
    """A line without what differs from log to log: numbers (already `#`), paths, quoted names, addresses."""
    for pattern, sign in PLACEHOLDERS:
        text = pattern.sub(sign, text)
    return text


def coverage(args: Any) -> int:
    """What of the rulebook many logs show, and which error-looking lines it lacks."""
    from defib.adapters.archive import Archive
    from defib.adapters.cli.tables import write_json
    from defib.engine.rulelint import suggest

    loaded = rulefiles.load(args.rules)
    source = Archive(args.paths, loaded.book.paths)
    seen = _survey(loaded, source)
    for u in source.unread:
        print(f"not read: {safe(u.path)}: {safe(u.why)}", file=sys.stderr)
    ranked = seen.ranked()
    shown = ranked if args.all or args.json else ranked[:SHOWN]
    stubs = suggest(loaded.book, [(key, s.text) for key, s in shown]) if args.suggest else {}
    if args.json:
        write_json(_document(loaded.book, seen, shown, stubs))
    elif args.suggest:
        print(stub_file(shown, stubs))
    else:
        _report(loaded.book, seen, shown, args.all)
    return 3 if any(u.refused for u in source.unread) else 0


def _survey(loaded: rulefiles.LoadedRules, source: Any) -> Coverage:
    from defib.engine.observe import Observer
    from defib.engine.ports import Closed, Data, Opened
    from defib.engine.survey import Survey

    out = Coverage()
    observer = Observer(loaded.book, loaded.databases)
    noting = observer.scanner = Noting(loaded.book, loaded.databases)
    survey, cutter, path = Survey(), LineCutter(0), ""
    while (items := source.poll()) is not None:
        for item in items:
            batch = Batch()
            if isinstance(item, Opened):
                survey, cutter, path = Survey(), LineCutter(item.stream), item.id.path
                noting.counts = {}
            elif isinstance(item, Data):
                out.bytes_read += len(item.data)
                for piece in cutter.feed(item.data):
                    batch.add(piece)
            elif isinstance(item, Closed):
                out.lines += cutter.line - 1
                for piece in cutter.finish():
                    batch.add(piece)
                    out.lines += 1
            if batch.size:
                survey.add(observer, batch, observer.observe(batch))
            if isinstance(item, Closed):
                observer.forget(item.stream)
                out.add(path, survey, noting.counts)
    return out


def _kinds(book: Rulebook) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {"signature": [], "phase": [], "banner": []}
    for r in book.rules:
        if r.status != "retired":
            kinds[r.kind].append(r.id)
    return {**kinds, "format": [f.id for f in book.formats]}


def _document(book: Rulebook, seen: Coverage, shown: list[tuple[str, Shape]], stubs: dict[str, Any]) -> dict[str, Any]:
    kinds = _kinds(book)
    rows = []
    for key, s in shown:
        stub = {"stub": stubs.get(key)} if stubs else {}
        rows.append({"shape": key, "files": s.files, "count": s.count, "path": s.path, "line": s.line, "text": s.text, **stub})  # fmt: skip
    return {
        "schema": "defib/coverage/1", "files": seen.files, "lines": seen.lines, "bytes": seen.bytes_read,
        "seen": [{"id": i, "kind": k, "files": seen.seen[i][0], "count": seen.seen[i][1]} for k, ids in kinds.items() for i in ids if i in seen.seen],
        "never": {k: [i for i in ids if i not in seen.seen] for k, ids in kinds.items()}, "unknown": rows,
    }  # fmt: skip


def _report(book: Rulebook, seen: Coverage, shown: list[tuple[str, Shape]], everything: bool) -> None:
    from defib.adapters.cli.tables import table

    kinds = _kinds(book)
    kind = {i: k for k, ids in kinds.items() for i in ids}
    print(f"{seen.files:,} files, {seen.lines:,} lines, {size(seen.bytes_read)}")
    for k, ids in kinds.items():
        n = sum(i in seen.seen for i in ids)
        print(f"  {k + 's':<11} {n} of {len(ids)} seen, {len(ids) - n} never")
    rows = [(i, kind[i], n[0], n[1]) for i, n in seen.seen.items() if i in kind]
    rows.sort(key=lambda r: (-r[2], -r[3], r[0]))
    print("\nSeen" if everything or len(rows) <= SHOWN else f"\nSeen most ({len(rows)} in all; --all lists every one)")
    table(("ID", "KIND", "FILES", "LINES"), rows if everything else rows[:SHOWN])
    if everything:
        print("\nNever seen")
        for k, ids in kinds.items():
            for i in ids:
                if i not in seen.seen:
                    print(f"  {k:<9} {i}")
    n = len(seen.shapes)
    print(f"\nError-looking lines without a rule: {n} shape{'s' if n != 1 else ''}" + (" (--suggest writes stubs)" if n else ""))  # fmt: skip
    for _, s in shown:
        print(f"  {s.files:>4} files {s.count:>6} x  {safe(s.path)}:{s.line}: {cut(safe(s.text), 160)}")
    if len(shown) < n:
        print(f"  … and {n - len(shown)} more (--all lists them)")


def stub_file(shapes: list[tuple[str, Shape]], stubs: dict[str, dict[str, Any]]) -> str:
    """A rule file to start from."""
    import yaml

    out = ["family: mine", "about: Stubs from `defib rules coverage --suggest`; every TODO is yours.", "signatures:"]
    for key, s in shapes:
        if key in stubs:
            out.append(f"  # {s.files} files, {s.count} lines; first {safe(s.path)}:{s.line}")
            text = yaml.safe_dump([stubs[key]], width=10**9, sort_keys=False, allow_unicode=False)
            out += ["  " + line for line in text.rstrip("\n").split("\n")]
    return "\n".join(out) if stubs else "# no error-looking line without a rule"


def doc(args: Any) -> int:
    """All rules as one Markdown page."""
    from defib.engine.words import DefibError

    loaded = rulefiles.load(args.rules)
    text = page(loaded.book, _abouts(args.rules))
    if args.output is None:
        sys.stdout.write(text)
        return 0
    try:
        args.output.write_text(text, encoding="utf-8")
    except OSError as e:
        raise DefibError(f"cannot write {args.output}: {e.strerror}") from e
    return 0


def _abouts(extra: list[Any]) -> dict[str, str]:
    """'family nccl' -> its `about`, which the rulebook does not carry."""
    from defib.engine import yamlpos

    out: dict[str, str] = {}
    for path, text in rulefiles.read_folders([rulefiles.built_in(), *extra]):
        data = yamlpos.read(path, text).data
        for key in ("family", "framework", "table"):
            if isinstance(data, dict) and key in data:
                out.setdefault(f"{key} {data[key]}", str(data.get("about", "")))
    return out


def md(text: str) -> str:
    """Text that Markdown and HTML show as it is, in a paragraph or a table."""
    text = " ".join(safe(text.replace("\n", " ")).split())
    text = re.sub(r"[\\*_\[\]~#$]", lambda m: "\\" + m[0], text)
    return re.sub(r"[&<>|`]", lambda m: f"&#{ord(m[0])};", text)


def fenced(lines: list[str], language: str) -> list[str]:
    """A code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, *lines, fence]


def page(book: Rulebook, abouts: dict[str, str]) -> str:
    """The whole page; depends on its arguments only."""
    families: dict[str, list[Rule]] = {}
    frameworks: dict[str, list[Rule | Format]] = {}
    for r in book.rules:
        if r.kind == "signature":
            families.setdefault(r.id.split(".")[0], []).append(r)
    for f in book.formats:
        frameworks.setdefault(f.framework, []).append(f)
    for r in book.rules:
        if r.framework is not None:
            frameworks.setdefault(r.framework, []).append(r)
    out = [*_head(book, families, frameworks), "", "## Signatures"]
    for name, rules in families.items():
        out += ["", f'### <a id="family-{name}"></a>{md(name)}', "", md(abouts.get(f"family {name}", "")), ""]
        out += ["| rule | role | class | says |", "| --- | --- | --- | --- |"]
        out += [f"| [{r.id}](#{r.id}) | {r.role} | {r.klass or ''} | {md(r.title)} |" for r in rules]
        for r in rules:
            out += _signature(book, r)
    out += ["", "## Progress"]
    for name, things in sorted(frameworks.items()):
        out += ["", f'### <a id="framework-{name}"></a>{md(name)}', "", md(abouts.get(f"framework {name}", ""))]
        for t in things:
            out += _progress(t)
    out += [*_classes(book), *_tables(book, abouts)]
    out += [*_templates("Prefixes of lines", book.prefixes), *_templates("Forms of paths", book.paths)]
    return "\n".join(out) + "\n"


def _head(book: Rulebook, families: dict[str, Any], frameworks: dict[str, Any]) -> list[str]:
    counts = {k: len(ids) for k, ids in _kinds(book).items()}
    return [
        "# Rules", "",
        "Generated from the rule files by `defib rules doc -o docs/rules.md`; do not edit. The format is described in rules/README.md.", "",
        f"{counts['signature']} signatures, {counts['format']} progress formats, {counts['phase']} phase lines, {counts['banner']} banners, "
        f"{len(book.classes)} classes. In the examples a line after `+` is matched and a line after `-`, a near-miss, is not.", "",
        "## Contents", "",
        "- [Signatures](#signatures): " + ", ".join(f"[{md(n)}](#family-{n}) ({len(r)})" for n, r in families.items()),
        "- [Progress](#progress): " + ", ".join(f"[{md(n)}](#framework-{n})" for n in sorted(frameworks)),
        "- [Failure classes](#failure-classes)",
        *(f"- [Table {md(t.id)}](#table-{t.id})" for t in book.tables),
        "- [Prefixes of lines](#prefixes-of-lines)", "- [Forms of paths](#forms-of-paths)",
    ]  # fmt: skip


def _examples(t: Any) -> list[str]:
    lines = [f"{sign} {cut(safe(e.line), EXAMPLE_CHARS)}" for sign, es in (("+", t.hits), ("-", t.misses)) for e in es[:1]]  # fmt: skip
    return ["", *fenced(lines, "diff")]


def _facts(pairs: list[tuple[str, str]]) -> list[str]:
    return [f"- {name}: {text}" for name, text in pairs if text]


def _signature(book: Rulebook, r: Rule) -> list[str]:
    from defib.engine.rulelint import named

    c = book.class_by_id.get(r.klass or "")
    klass = f"[{c.id}](#class-{c.id}) (retry {c.retry}, exclude {c.exclude}, budget {c.budget})" if c else ""
    table = f"[{r.table}](#table-{r.table}) decides by number" if r.table else ""
    says = [("role", r.role + (", generic" if r.generic else "")), ("class", klass), ("table", table),
        ("domain", r.domain if r.domain != "unknown" else ""),
        ("mark", r.mark or ""), ("status", r.status if r.status != "stable" else ""), ("captures", ", ".join(sorted(named(r.extract)))),
        ("looks back through", r.looks_back or ""),
        ("traits", ", ".join(r.traits)), ("limits", md(r.limits or "")), ("known from", md("; ".join(r.see)))]  # fmt: skip
    return ["", f'#### <a id="{r.id}"></a>{md(r.id)}', "", f"{md(r.title)}.".replace("..", "."), "", *_facts(says), *_examples(r)]  # fmt: skip


def _progress(t: Any) -> list[str]:
    from defib.engine.rulelint import named

    kind = getattr(t, "kind", "")
    if hasattr(t, "anchors"):
        what = f"progress format ({kind}), counts {t.counts}" + (f", values of {t.of}" if t.of else "")
        captured = named([t.pattern, *t.more])
        units = f"step time in {t.step_time_unit}" if "step_time" in captured else ""
        units += f" throughput in {t.throughput_unit}" if t.throughput_unit else ""
    else:
        what = f"phase line: {t.phase}, {t.edge}" if kind == "phase" else "banner"
        captured, units = named(t.extract), ""
    says = [
        ("kind", what), ("captures", ", ".join(sorted(captured))), ("units", units.strip()), ("limits", md(t.limits or "")),
        ("known from", md("; ".join(t.see))),
    ]  # fmt: skip
    title = "" if t.title == t.id else f"{md(t.title)}.".replace("..", ".")
    return [
        "",
        f'#### <a id="{t.id}"></a>{md(t.id)}',
        *(["", title] if title else []),
        "",
        *_facts(says),
        *_examples(t),
    ]


def _classes(book: Rulebook) -> list[str]:
    out = ["", "## Failure classes", "", "| class | means | verdict | at fault | retry | exclude | budget | why |", "|" + " --- |" * 8]  # fmt: skip
    for c in book.classes:
        cells = (f'<a id="class-{c.id}"></a>{md(c.id)}', md(c.title), c.verdict, c.fault, c.retry, c.exclude, md(c.budget), md(c.why))  # fmt: skip
        out.append("| " + " | ".join(cells) + " |")
    return out


def _tables(book: Rulebook, abouts: dict[str, str]) -> list[str]:
    out: list[str] = []
    for t in book.tables:
        out += ["", f'## <a id="table-{t.id}"></a>Table {md(t.id)}', "", md(abouts.get(f"table {t.id}", "")), ""]
        out += [f"| {md(t.key)} | means | role | class | domain | action |", "|" + " --- |" * 6]
        rows = sorted(t.rows.items(), key=lambda kv: (not kv[0].isdigit(), int(kv[0]) if kv[0].isdigit() else 0, kv[0]))
        for value, row in [*rows, ("any other", t.default)]:
            out.append(f"| {md(value)} | {md(row.title)} | {row.role} | {row.klass or ''} | {row.domain} | {md(row.action or '')} |")  # fmt: skip
    return out


def _templates(title: str, templates: Any) -> list[str]:
    from defib.engine.rulelint import named

    out = ["", f"## {title}", "", "The first that matches in this order wins."]
    for t in templates:
        taken = f"- captures: {', '.join(sorted(named([t.pattern])))}"
        out += ["", f'#### <a id="{t.id}"></a>{md(t.id)}', "", f"{md(t.title)}.", "", taken, *_examples(t)]
    return out
