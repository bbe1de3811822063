"""yamlpos: plain data with the place of every value, and refusal of what reads differently to people and machines."""

from __future__ import annotations

import pytest

from defib.engine.yamlpos import read

TEXT = """\
family: f
list:
  - id: a
    no: no
    num: 1
  - {id: b, deep: [x, 'y']}
block: |
  one
  two
"""


def test_every_scalar_is_a_string() -> None:
    assert read("f", TEXT).data == {
        "family": "f",
        "list": [{"id": "a", "no": "no", "num": "1"}, {"id": "b", "deep": ["x", "y"]}],
        "block": "one\ntwo\n",
    }


@pytest.mark.parametrize(
    ("loc", "place"),
    [
        ((), (1, 1)), (("family",), (1, 1)), (("list",), (2, 1)), (("list", 0), (3, 5)), (("list", 0, "num"), (5, 5)),
        (("list", 1, "deep", 1), (6, 23)), (("block",), (7, 1)), (("list", 0, "nowhere", 3), (3, 5)), (("nowhere",), (1, 1)),
    ],
)  # fmt: skip
def test_every_value_knows_its_place_and_what_is_missing_stands_at_its_parent(
    loc: tuple[str | int, ...], place: tuple[int, int]
) -> None:
    assert read("f", TEXT).where(loc) == place


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: [1\n", 3, "not YAML"),
        ("a: 1\n b: 2\n", 2, "not YAML"),
        ("a: 1\nb: 'x\n", 3, "not YAML"),
        ("a: \x01\n", 1, "not YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, "given twice"),
        ("a:\n  - {k: 1, k: 2}\n", 2, "given twice"),
        ("a: 1\nb: !foo x\n", 2, "tag"),
        ("a: &here 1\nb: 2\n", 1, "anchors"),
        ("a: &here 1\nb: *here\n", 2, "anchors"),
        ("a: 1\n---\nb: 2\n", 2, "not YAML"),
    ],
)
def test_what_is_refused_is_named_with_its_line_and_a_mend(text: str, line: int, said: str) -> None:
    problems = read("f", text).problems
    assert [(p.path, p.line) for p in problems if said in p.message][-1] == ("f", line)
    assert all(p.mend for p in problems)


@pytest.mark.parametrize(
    "text",
    ["a: [&x 1, *x]\n", "a: {b: &x 1, c: *x}\n", "'a': &x 1\nb: *x\n", '- {line: "q", f: &x 1}\n- *x\n'],
)
def test_anchors_are_refused_wherever_they_stand(text: str) -> None:
    assert [p for p in read("f", text).problems if "anchors" in p.message]


@pytest.mark.parametrize(
    "text", ["a: 'R&D: &x'\n", "# see: &x\na: 1\n", 'a: "b: *c"\n', "a: |\n  b: &c d\n", "a: x & y * z\n"]
)
def test_ampersands_and_stars_of_text_are_no_anchors(text: str) -> None:
    assert read("f", text).problems == []


@pytest.mark.parametrize("text", ["a: !!int 3\n", "a: !!str 3\n"])
def test_tags_of_yaml_itself_are_refused_too(text: str) -> None:
    assert [p for p in read("f", text).problems if "tag" in p.message]


def test_several_faults_of_a_file_are_told_at_once() -> None:
    problems = read("f", "a: &x 1\nb: !t 2\na: 3\n").problems
    assert sorted(p.line for p in problems) == [1, 2, 3]


def test_an_empty_file_has_no_data() -> None:
    assert read("f", "").data is None
    assert read("f", "# only words\n").data is None


def test_an_alias_that_holds_itself_is_refused_and_not_followed() -> None:
    got = read("f", "hang: &a {factor: *a}\n")
    assert [p.line for p in got.problems] == [1, 1]
    assert got.data == {"hang": {"factor": None}}


def test_aliases_upon_aliases_are_refused_before_anybody_counts_them() -> None:
    text = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 4)}]\n" for n in range(1, 40))
    found = read("f", text)
    assert (found.data, found.problems[0].line) == (None, 1)
    assert "anchors" in found.problems[0].message
