"""The configuration: every fault at once, at its line; the example is valid and says what holds without a file; only root speaks to root."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defib.adapters.config import trust
from defib.adapters.config.keys import KEYS, OPAQUE, SECTIONS, example, written
from defib.adapters.config.lines import places
from defib.adapters.config.load import parse, read, value_of
from defib.engine.errors import ConfigError, Problem


def faults(text: str) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.toml")
    return caught.value.problems


def test_the_example_says_what_holds_without_a_file() -> None:
    said, silent = parse(example(), "example"), parse("", "")
    assert dict(said.values) == dict(silent.values)
    assert all(f"[{s}]" in example() for s in SECTIONS)


def test_the_example_is_valid_with_every_comment_taken_away() -> None:
    lines = [line.removeprefix("# ") if " = " in line else line for line in example().splitlines()]
    config = parse("\n".join(lines), "f.toml")
    assert all(config.set(k.section, k.name) for k in KEYS)
    assert config("watch", "roots") == ("/home", "/scratch")
    assert config("metrics", "listen") == ("127.0.0.1", 9788)


@pytest.mark.parametrize("key", [k for k in KEYS if k.default is not None], ids=lambda k: f"{k.section}.{k.name}")
def test_a_value_written_is_the_value_read(key: Any) -> None:
    assert value_of(key, tomllib.loads(f"x = {written(key, key.default)}")["x"]) == key.default


def test_every_fault_is_told_at_its_line() -> None:
    text = """# a comment
[watch]
evry = "10s"
every = 10
paths = "logs"
silent = "1ms"
cluster = ""

[wotch]
x = 1
[metrics]
listen = "somewhere.example:80"
[log]
level = "inof"
[state]
directory = "relative"
retention = "many"
[slurm]
enabled = "yes"
templates = ["{nothing}/x"]
"""
    found = [(p.line, p.message, p.mend) for p in faults(text)]
    assert [line for line, _, _ in found] == [3, 4, 5, 6, 7, 9, 12, 14, 16, 17, 19, 20]
    assert found[0][1:] == ("[watch] has no key 'evry'", "did you mean 'every'?")
    assert found[1][1:] == ("[watch] every: a number is not what is wanted", 'a time in quotes, such as "10s"')
    assert found[5][2] == "did you mean 'watch'?"
    assert "IP address" in found[6][2]
    assert found[7][2] == "did you mean 'info'?"
    assert str(faults(text)[0]) == "f.toml:3:1: [watch] has no key 'evry'\n    mend: did you mean 'every'?"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[watch\n", 1),
        ('[watch]\nevery = "10s\n', 2),
        ("x = = 1", 1),
        ("[watch]\n\nevery = 5s", 3),
        ("a = [" * 2000, 1),
    ],
)
def test_what_is_no_toml_is_told_at_its_place(text: str, line: int) -> None:
    (problem,) = faults(text)
    assert problem.line == line
    assert "(at line" not in problem.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[slurm]\nenabled = true", "none is allowed"),
        ('[metrics]\nlisten = "0.0.0.0:80"', "reached from other machines"),
        ('[metrics]\nlisten = "[::]:80"', "reached from other machines"),
    ],
)
def test_what_does_not_fit_together(text: str, message: str) -> None:
    (problem,) = faults(text)
    assert message in problem.message
    assert problem.line == 2


def test_anywhere_is_said_on_purpose() -> None:
    assert parse('[metrics]\nlisten = "0.0.0.0:80"\nanywhere = true', "f")("metrics", "listen") == ("0.0.0.0", 80)
    assert parse('[metrics]\nlisten = "localhost:80"', "f")("metrics", "listen") == ("127.0.0.1", 80)
    assert parse('[metrics]\nlisten = "[::1]:80"', "f")("metrics", "listen") == ("::1", 80)


def test_options_win_and_every_value_knows_who_said_it() -> None:
    config = parse('[watch]\n\nevery = "30s"\ncluster = "a"', "f.toml", {("watch", "every"): (5, "--every")})
    assert (config("watch", "every"), config.origins["watch", "every"]) == (5, "--every")
    assert (config("watch", "cluster"), config.origins["watch", "cluster"]) == ("a", "f.toml:4")
    assert config.origins["log", "level"] == "default"


def test_recovery_is_somebody_elses() -> None:
    assert OPAQUE == ("recovery",)
    assert parse("[recovery]\nmode = 'observe'\n[recovery.budget]\nx = 1", "f").recovery == {
        "mode": "observe",
        "budget": {"x": 1},
    }


def test_lines_are_found_whatever_the_values_hold() -> None:
    text = '''
[watch]
paths = [
  "every = 1", # every = 2
  """
every = 3
""",
]
"every" = "10s"
[ slurm ] # [state]
interval = '[log]'
state.directory = "/x"
'''
    assert places(text) == {
        ("watch", ""): 2, ("watch", "paths"): 3, ("watch", "every"): 9, ("slurm", ""): 10, ("slurm", "interval"): 11, ("slurm", "state"): 12,
    }  # fmt: skip
    assert places("watch.every = 1") == {("watch", ""): 1, ("watch", "every"): 1}


@given(st.text(max_size=300))
def test_no_text_breaks_it(text: str) -> None:
    try:
        parse(text, "f.toml")
    except ConfigError as e:
        assert all(1 <= p.line <= text.count("\n") + 2 for p in e.problems)  # noqa: PT017


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "latin"])
def test_a_file_that_cannot_be_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "latin":
        path.write_bytes(b"# \xe9\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        read(path)


def test_only_root_speaks_to_root(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o755)
    path = folder / "defib.toml"
    path.write_text("")
    path.chmod(0o644)
    outer = {p.path for p in trust.faults([tmp_path], 0)}

    def told() -> set[str]:
        return {p.path for p in trust.faults([path], 0)} - outer

    good = set() if os.geteuid() == 0 else {str(path.resolve()), str(folder.resolve())}
    assert told() == good
    path.chmod(0o666)
    assert str(path.resolve()) in told()
    path.chmod(0o644)
    folder.chmod(0o777)
    assert str(folder.resolve()) in told()
    assert trust.faults([path], 1000) == [], "who is not root trusts what he was told to read"


@pytest.mark.usefixtures("root")
def test_a_rule_of_somebody_else_is_refused(tmp_path: Path) -> None:
    rule = tmp_path / "rules" / "a.yaml"
    rule.parent.mkdir()
    rule.write_text("")
    os.chown(rule, 1000, 1000)
    assert [(p.path, p.message) for p in trust.faults([rule.parent], 0)] == [(str(rule), "belongs to user 1000")]
