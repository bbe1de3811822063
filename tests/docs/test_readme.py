"""README.md is executed: commands print what it shows, its SQL runs, its rule files prove themselves.

In a ```console block, a line `$ defib …` is run where `logs/` holds the demo (`python bench/loggen logs --preset demo --seed 7`) and
`my-rules/` the page's rule files; commands share that folder in the order of the page. The lines below it are the output: `…` alone stands for any
lines, `…` at a line's end for any rest. A command without lines below must only succeed. ```yaml after `<!-- rule file: NAME -->` is a rule file.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
FENCE = re.compile(r"^(`{3,}|~{3,})\s*(\w*)")
RULE_FILE = re.compile(r"<!--\s*rule file:\s*([\w./-]+)\s*-->")
ANY = "…"


@dataclass
class Block:
    """A fenced block: its language, the line before it, its text, where it begins (1-based)."""

    language: str
    before: str
    line: int
    text: list[str] = field(default_factory=list)


@dataclass
class Step:
    """A command and what should come out."""

    command: str
    line: int
    shown: list[str] = field(default_factory=list)


def blocks(text: str) -> list[Block]:
    """Fenced blocks in order. A fence ends at one at least as long, of the same kind."""
    out: list[Block] = []
    fence, before = "", ""
    for number, line in enumerate(text.splitlines(), 1):
        found = FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not found[2]:
                fence = ""
            else:
                out[-1].text.append(line)
        elif found:
            fence = found[1]
            out.append(Block(found[2], before, number))
        before = line.strip() or before
    assert not fence, f"the block that begins in line {out[-1].line} does not end"
    return out


def steps(block: Block) -> list[Step]:
    """The commands of a console block; a backslash at the end goes on in the next line."""
    out: list[Step] = []
    going_on = False
    for number, line in enumerate(block.text, block.line + 1):
        if going_on or line.startswith("$ "):
            part = line.removeprefix("$ ").strip() if not going_on else line.removeprefix("> ").strip()
            if going_on:
                out[-1].command += " " + part.removesuffix("\\").strip()
            else:
                out.append(Step(part.removesuffix("\\").strip(), number))
            going_on = part.endswith("\\")
        elif out:
            out[-1].shown.append(line)
    for step in out:
        while step.shown and not step.shown[-1].strip():
            step.shown.pop()
    return out


def fits(shown: list[str], printed: list[str]) -> bool:
    """Whether the output is what the page shows."""
    if not shown:
        return not printed
    head, rest = shown[0].rstrip(), shown[1:]
    if head.strip() == ANY:
        return any(fits(rest, printed[i:]) for i in range(len(printed) + 1))
    if not printed:
        return False
    got = printed[0].rstrip()
    same = got.startswith(head[: -len(ANY)].rstrip()) if head.endswith(ANY) else got == head
    return same and fits(rest, printed[1:])


def difference(shown: list[str], printed: list[str]) -> str:
    """The first line that differs, for people."""
    for i, (s, p) in enumerate(itertools.zip_longest(shown, printed, fillvalue="(nothing)")):
        if s.strip() == ANY:
            return f"after the … in line {i + 1} of the output nothing fits; printed were {len(printed)} lines"
        if not fits([s], [p]):
            return f"line {i + 1} of the output\n  page:    {s}\n  printed: {p}"
    return "the lengths differ"


def rule_files(found: list[Block]) -> dict[str, str]:
    return {
        m[1]: "\n".join(b.text) + "\n" for b in found if b.language == "yaml" and (m := RULE_FILE.fullmatch(b.before))
    }


PAGE = blocks(README.read_text(encoding="utf-8")) if README.exists() else []
COMMANDS = [s for b in PAGE if b.language == "console" for s in steps(b) if s.command.startswith("defib")]
SQL = [b for b in PAGE if b.language == "sql"]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As a reader would: in a shell, with this environment's defib first."""
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "DEFIB_DB")}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the page's commands run."""
    folder = tmp_path_factory.mktemp("readme")
    subprocess.run(
        [sys.executable, ROOT / "bench" / "loggen", folder / "logs", "--preset", "demo", "--seed", "7"],
        check=True,
        capture_output=True,
    )
    (folder / "my-rules").mkdir()
    for name, text in rule_files(PAGE).items():
        (folder / "my-rules" / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def performed(workshop: Path) -> dict[int, subprocess.CompletedProcess[str]]:
    """Line of the page -> what its command did; all in the order of the page."""
    return {s.line: run(s.command, workshop) for s in COMMANDS}


@pytest.mark.parametrize("step", COMMANDS, ids=lambda s: f"{s.line}: {s.command}")
def test_commands_print_what_the_page_shows(step: Step, performed: dict[int, subprocess.CompletedProcess[str]]) -> None:
    done = performed[step.line]
    assert done.returncode in (0, 1), f"README.md:{step.line}: exit {done.returncode}\n{done.stderr}"
    out, both = done.stdout.splitlines(), [*done.stdout.splitlines(), *done.stderr.splitlines()]
    if step.shown:
        assert fits(step.shown, out) or fits(step.shown, both), (
            f"README.md:{step.line}: {step.command}: {difference(step.shown, out)}"
        )


def test_rule_files_prove_themselves(workshop: Path) -> None:
    assert rule_files(PAGE), "README.md has no block marked <!-- rule file: NAME -->"
    done = run("defib rules check my-rules", workshop)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("block", SQL, ids=lambda b: f"line {b.line}")
def test_sql_runs(block: Block, workshop: Path, performed: object) -> None:
    history = workshop / "defib.duckdb"
    if not history.exists():
        run("defib replay logs -q", workshop)
    con = duckdb.connect(str(history), read_only=True)
    for statement in con.extract_statements("\n".join(block.text)):
        result = con.execute(statement.query)
        assert result.description, statement.query
        assert result.fetchall(), f"README.md:{block.line}: no rows: {statement.query}"
    con.close()


def test_the_page_names_no_command_that_is_not_there() -> None:
    from defib.adapters.cli import build_parser

    known = next(a.choices for a in build_parser()._actions if isinstance(getattr(a, "choices", None), dict))
    named = set(re.findall(r"`defib ([a-z][\w-]*)", README.read_text(encoding="utf-8")))
    assert named <= set(known or {}), sorted(named - set(known or {}))


# --- the executor itself -----------------------------------------------------------------------------------------------------------------

SAMPLE = """# Sample

```console
$ defib one
a   b
…
last …
$ defib two \\
    --flag
$ other
x
```

<!-- rule file: mine.yaml -->

```yaml
family: mine
```

```yaml
not: a rule
```

````text
```console
$ defib never
```
````

```sql
SELECT 1;
```
"""


def test_a_page_is_taken_apart() -> None:
    found = blocks(SAMPLE)
    assert [(b.language, b.line) for b in found] == [
        ("console", 3),
        ("yaml", 16),
        ("yaml", 20),
        ("text", 24),
        ("sql", 30),
    ]
    one, two, other = steps(found[0])
    assert (one.command, one.line, one.shown) == ("defib one", 4, ["a   b", "…", "last …"])
    assert (two.command, two.shown) == ("defib two --flag", [])
    assert (other.command, other.shown) == ("other", ["x"])
    assert rule_files(found) == {"mine.yaml": "family: mine\n"}


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a"], ["a"], True),
        (["a"], ["a   "], True),
        (["a"], ["ab"], False),
        (["a"], ["a", "b"], False),
        (["a", "b"], ["a"], False),
        (["a …"], ["a b c"], True),
        (["a…"], ["abc"], True),
        (["a …"], ["b"], False),
        (["…"], [], True),
        (["…"], ["a", "b"], True),
        (["…", "c"], ["a", "b", "c"], True),
        (["…", "b"], ["a", "b", "c"], False),
        (["a", "  …", "c", "…"], ["a", "x", "y", "c", "d"], True),
        (["a", "…", "c"], ["a", "c"], True),
        ([], ["a"], False),
    ],
)
def test_an_ellipsis_stands_for_anything(shown: list[str], printed: list[str], same: bool) -> None:
    assert fits(shown, printed) is same
    if not same:
        assert difference(shown, printed)


def test_an_open_block_is_told() -> None:
    with pytest.raises(AssertionError, match="line 2 does not end"):
        blocks("x\n```sql\nSELECT 1")
