"""rulecheck: every kind of fault is told with file, line, rule and mend, and all faults of all files at once."""

from __future__ import annotations

import pytest
from tests.conftest import CLASSES, LANGUAGE, faults, proven, rulebook

from defib.engine.words import Problem

SIGNATURE = {
    "id": "s.a", "title": "t", "pattern": "'LONG'", "role": "root", "class": "user-code", "hits": "['a LONG line']", "misses": "['x']",
}  # fmt: skip
FORMAT = {
    "id": "f.step", "title": "t", "anchor": "['step=']", "pattern": r"'step=(?P<step>\d+)'", "hits": "['step=1']", "misses": "['x']",
}  # fmt: skip


def entry(base: dict[str, str], **changes: str | None) -> str:
    """A rule as YAML, one key a line; None takes a key away."""
    keys = {**base, **{k.rstrip("_"): v for k, v in changes.items()}}
    lines = [f"{k}: {v}" for k, v in keys.items() if v is not None]
    return "  - " + "\n    ".join(lines) + "\n"


def signatures(*entries: str) -> str:
    return "family: s\nabout: a\nsignatures:\n" + "".join(entries)


def formats(*entries: str) -> str:
    return "framework: f\nabout: a\nformats:\n" + "".join(entries)


def check(text: str, path: str = "bad.yaml") -> list[Problem]:
    return faults({"classes.yaml": CLASSES, path: text})


def one(problems: list[Problem], said: str) -> Problem:
    """The one problem that says so."""
    (found,) = [p for p in problems if said in p.message]
    assert found.mend
    return found


def test_a_good_book_loads_and_survives_its_cache() -> None:
    book = rulebook(LANGUAGE)
    assert type(book).from_json(book.to_json()) == book
    assert check(signatures(entry(SIGNATURE))) == []
    assert check(formats(entry(FORMAT))) == []


def test_the_hash_is_of_content_and_path() -> None:
    a, b = signatures(entry(SIGNATURE)), signatures(entry(SIGNATURE, title="u"))
    book = rulebook({"classes.yaml": CLASSES, "a": a})
    assert rulebook({"a": a, "classes.yaml": CLASSES}).hash == book.hash
    assert rulebook({"classes.yaml": CLASSES, "a": b}).hash != book.hash
    assert rulebook({"classes.yaml": CLASSES, "b": a}).hash != book.hash


LONG_GAP = "'LONG.{0,60}line'"

SIGNATURE_FAULTS = [
    # changes, what is said, line in the file, part of the mend
    ({"patern": "x"}, "unknown key 'patern'", 11, "did you mean 'pattern'?"),
    ({"zzz": "x"}, "unknown key 'zzz'", 11, "known here: class, domain, extract,"),
    ({"role": "roto"}, "'role' is 'roto'", 7, "did you mean 'root'?"),
    ({"domain": "gpus"}, "'domain' is 'gpus'", 11, "did you mean 'gpu'?"),
    ({"mark": "finished"}, "'mark' is 'finished'", 11, "expected"),
    ({"hits": None}, "'hits' is missing", 4, "add 'hits"),
    ({"misses": None}, "'misses' is missing", 4, "add 'misses"),
    ({"title": None}, "'title' is missing", 4, "add 'title"),
    ({"hits": "[]"}, "'hits' is empty", 9, "example"),
    ({"misses": "[]"}, "'misses' is empty", 10, "example"),
    ({"id": "s.A_b"}, "'id' is 's.A_b'", 4, "lower case"),
    ({"id": "other.a"}, "id must begin with 's.'", 4, "s.other.a"),
    ({"pattern": None}, "no pattern", 4, "add 'pattern"),
    ({"class": None}, "role root needs a class", 7, "add 'class"),
    ({"class": "user-cod"}, "class 'user-cod' is not in classes.yaml", 8, "did you mean 'user-code'?"),
    ({"class": "zzzzz"}, "class 'zzzzz' is not in classes.yaml", 8, "use an id"),
    ({"table": "xid"}, "table 'xid' is not there", 11, "tables/xid.yaml"),
    ({"pattern": "'LO(?=NG)'"}, "Hyperscan refuses", 6, "look-around"),
    ({"pattern": "'(?<!x)LONG'"}, "Hyperscan refuses", 6, "look-around"),
    ({"unless": "'(?!x)LONG'"}, "Hyperscan refuses", 11, "look-around"),
    ({"pattern": r"'(LON)G\1'"}, "Hyperscan refuses", 6, "back-references"),
    ({"pattern": "'LONG('"}, "Hyperscan refuses", 6, "dialect"),
    ({"pattern": "'(LONG)?'"}, "Hyperscan refuses", 6, "at least one character"),
    ({"pattern": "'LONG.*'"}, "pattern ends in a quantifier", 6, "cut it"),
    ({"pattern": r"'LONG \d+'"}, "pattern ends in a quantifier", 6, "cut it"),
    ({"pattern": r"'LONG (\d{2,9})'"}, "pattern ends in a quantifier", 6, "cut it"),
    ({"pattern": r"'LONG (a|b+?)'"}, "pattern ends in a quantifier", 6, "cut it"),
    ({"pattern": LONG_GAP}, "bounded gap", 6, "'.*'"),
    ({"extract": r"'(?P<rnk>\d+)'"}, "unknown capture 'rnk'", 11, "did you mean 'rank'?"),
    ({"extract": r"'(?P<step_time>\d+)'"}, "unknown capture 'step_time'", 11, "step"),
    ({"extract": r"'\d+'"}, "no named capture", 11, "name a group"),
    ({"extract": r"'(?P<rank>\d+'"}, "regex does not compile", 11, "dialect"),
    ({"extract": r"'(?=x)(?P<rank>\d+)'"}, "regex does not compile", 11, "look-around"),
    ({"hits": "[{line: LONG, also: [no.rule]}]"}, "'also' names no rule: 'no.rule'", 9, "id of a rule"),
    ({"hits": "[{lin: LONG}]"}, "unknown key 'lin'", 9, "did you mean 'line'?"),
    ({"looks_back": "rank"}, "'looks_back' is 'rank'", 11, "expected"),
    ({"generic": "maybe"}, "'generic' is 'maybe'", 11, "expected"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said", "line", "mend"), SIGNATURE_FAULTS, ids=[f"{f[1]}-{i}" for i, f in enumerate(SIGNATURE_FAULTS)]
)
def test_a_fault_in_a_signature_is_told_with_place_rule_and_mend(
    changes: dict[str, str | None], said: str, line: int, mend: str
) -> None:
    found = one(check(signatures(entry(SIGNATURE, **changes))), said)
    assert (found.path, found.line) == ("bad.yaml", line)
    assert found.rule == (changes.get("id") or "s.a")
    assert mend in found.mend
    assert str(found).startswith(f"bad.yaml:{line}:")


FORMAT_FAULTS = [
    ({"pattern": r"'step=(?P<stp>\d+)'"}, "unknown capture 'stp'", 7, "did you mean 'step'?"),
    ({"pattern": r"'step=(?P<loss>\d+)'"}, "pattern captures no step", 7, "(?P<step>"),
    ({"pattern": r"'step=(?P<step>\d+'"}, "regex does not compile", 7, "dialect"),
    ({"pattern": r"'step=(?P<step>\d+)(?!x)'"}, "regex does not compile", 7, "look-around"),
    ({"more": r"'(?P<node>\d+)'"}, "unknown capture 'node'", 10, "one of"),
    ({"unless": "'('"}, "regex does not compile", 10, "dialect"),
    ({"of": "f.nowhere"}, "'of' names no format: 'f.nowhere'", 10, "id of the format"),
    ({"units": "{step_time: fortnights}"}, "units.step_time 'fortnights'", 10, "one of"),
    ({"units": "{throughput: bytes/s}"}, "units.throughput 'bytes/s'", 10, "tokens/s"),
    ({"units": "{step_tim: s}"}, "step_tim", 10, ""),
    ({"priority": "high"}, "priority is not a number", 10, "0 to 100"),
    ({"anchor": None}, "'anchor' is missing", 4, "add 'anchor"),
    ({"counts": "steps"}, "'counts' is 'steps'", 10, "did you mean 'step'?"),
    ({"kind": "training"}, "'kind' is 'training'", 10, "expected"),
    ({"id": "g.step"}, "id must begin with 'f.'", 4, "f.g.step"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said", "line", "mend"), FORMAT_FAULTS, ids=[f"{f[1]}-{i}" for i, f in enumerate(FORMAT_FAULTS)]
)
def test_a_fault_in_a_format_is_told_with_place_rule_and_mend(
    changes: dict[str, str | None], said: str, line: int, mend: str
) -> None:
    found = one(check(formats(entry(FORMAT, **changes))), said)
    assert (found.path, found.line) == ("bad.yaml", line)
    assert found.rule == (changes.get("id") or "f.step")
    assert mend in found.mend


def test_an_id_is_taken_once_whatever_kind_of_rule_has_it() -> None:
    found = one(check(signatures(entry(SIGNATURE), entry(SIGNATURE, pattern="'OTHER'"))), "id is taken")
    assert (found.line, found.rule) == (11, "s.a")
    assert "bad.yaml:4" in found.mend
    book = {"classes.yaml": CLASSES, "a.yaml": signatures(entry(SIGNATURE)), "b.yaml": signatures(entry(SIGNATURE))}
    assert one(faults(book), "id is taken").path == "b.yaml"


YAML_FAULTS = [
    (entry(SIGNATURE) + "    title: again\n", "key 'title' is given twice", 11),
    (entry(SIGNATURE, title="&t words"), "anchors", 5),
    (entry(SIGNATURE, title="&t words", limits="*t"), "anchors", 11),
    (entry(SIGNATURE, title="!secret words"), "tag", 5),
    (entry(SIGNATURE, title="'no end"), "not YAML", 7),
    (entry(SIGNATURE, title="a: b"), "not YAML", 5),
]


@pytest.mark.parametrize(("text", "said", "line"), YAML_FAULTS, ids=[f[1] for f in YAML_FAULTS])
def test_a_fault_of_the_yaml_itself_is_told_with_its_line(text: str, said: str, line: int) -> None:
    found = [p for p in check(signatures(text)) if said in p.message]
    assert found[-1].path == "bad.yaml"
    assert found[-1].mend
    if said != "not YAML" or line == 5:
        assert found[-1].line == line


@pytest.mark.parametrize("text", ["- a\n", "just words\n", ""])
def test_a_file_that_is_no_mapping_is_refused(text: str) -> None:
    assert "mapping" in one(check(text), "mapping").message


def test_a_file_of_no_known_kind_is_refused() -> None:
    found = one(check("fmily: s\nabout: a\n"), "cannot tell what kind")
    assert "family" in found.mend


def test_faults_of_several_files_are_told_at_once_in_order() -> None:
    book = {
        "classes.yaml": CLASSES,
        "a.yaml": signatures(entry(SIGNATURE, role="roto", zzz="1")),
        "b.yaml": "family: s\nabout: [\n",
        "c.yaml": formats(entry(FORMAT, of="no.where", priority="x")),
        "d.yaml": signatures(
            entry(SIGNATURE, pattern="'LONG.*'"), entry(SIGNATURE, id="s.b", pattern="'(?=x)y'", extract="'z'")
        ),
    }
    found = faults(book)
    assert [p.path for p in found] == sorted(p.path for p in found)
    assert {(p.path, p.rule) for p in found} == {
        ("a.yaml", "s.a"),
        ("b.yaml", ""),
        ("c.yaml", "f.step"),
        ("d.yaml", "s.a"),
        ("d.yaml", "s.b"),
    }
    assert len(found) == 8


def test_patterns_of_prefixes_and_paths_know_their_captures() -> None:
    def template(kind: str, capture: str) -> str:
        return f"{kind}:\n  - id: p.a\n    title: t\n    pattern: '^(?P<{capture}>a)'\n    hits: [a]\n    misses: [b]\n"

    assert one(check(template("prefixes", "nod")), "unknown capture 'nod'").line == 4
    assert one(check(template("paths", "gpu")), "unknown capture 'gpu'").rule == "p.a"
    assert check(template("paths", "restart_count")) == []


TABLE = """\
table: codes
key: xid
about: a
rows:
  - {value: '1', title: t, role: root, class: CLASS, domain: gpu}
default: {title: t, role: confirm, class: user-code}
"""


def test_a_class_named_by_a_table_must_be_known() -> None:
    assert check(TABLE.replace("CLASS", "gpu-hardware")) == []
    assert one(check(TABLE.replace("CLASS", "gpu-hardwar")), "class 'gpu-hardwar'").path == "bad.yaml"


def test_a_class_or_a_row_of_a_table_is_given_once() -> None:
    twice = TABLE.replace("CLASS", "gpu-hardware").replace(
        "default", "  - {value: '1', title: u, role: confirm}\ndefault"
    )
    assert check(twice)
    assert check(CLASSES, path="more.yaml")


def test_benign_rules_and_banners_may_end_in_a_quantifier() -> None:
    assert check(signatures(entry(SIGNATURE, role="benign", pattern="'LONG.*'"))) == []
    banner = "framework: f\nabout: a\nbanners:\n  - {id: f.b, pattern: 'B+', hits: [B], misses: [x]}\n"
    assert check(banner) == []


@pytest.mark.parametrize("pattern", [r"'LONG\*'", r"'LONG\+'", "'LONG$'", "'LON[*+]'"])
def test_an_escaped_quantifier_is_a_character(pattern: str) -> None:
    assert check(signatures(entry(SIGNATURE, pattern=pattern))) == []


@pytest.mark.parametrize(
    "pattern", ["'(?s)LONG.x'", r"'LONG\nx'", r"'LONG\x0ax'", "'LONG[[:space:]]x'", r"'LONG[\x00-\x20]x'"]
)
def test_a_pattern_that_could_cross_a_record_is_refused_or_confined(pattern: str) -> None:
    """The view is one record at a time: two lines together must never make a hit."""
    from tests.conftest import fired, kit

    files = {"classes.yaml": CLASSES, "bad.yaml": signatures(entry(SIGNATURE, pattern=pattern, unless="'never'"))}
    assert faults(files) or fired(kit(files), "LONG", "x") == [set(), set()]


def test_examples_are_not_run_by_the_static_checks() -> None:
    wrong = signatures(entry(SIGNATURE, hits="['nothing here']"))
    assert check(wrong) == []
    assert proven({"classes.yaml": CLASSES, "bad.yaml": wrong})
