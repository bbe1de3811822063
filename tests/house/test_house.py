"""The house's own rules, asserted: size, documentation, no clock in the engine, ids that are unique, a version that is told."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import defib

ROOT = Path(__file__).resolve().parents[2]
FILES_MAX, FUNCTION_MAX = 450, 70
ROOMS = ("engine", "adapters", "bench", "tests")
SOURCES = sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.py") if "__pycache__" not in p.parts)
IDS = [str(p.relative_to(ROOT)) for p in SOURCES]
PUBLIC = [p for p in SOURCES if p.relative_to(ROOT).parts[0] in ("engine", "adapters")]


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_files_and_functions_fit_a_head(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= FILES_MAX, f"{lines} lines"
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno
        and node.end_lineno - node.lineno >= FUNCTION_MAX
    }
    assert not long, f"functions over {FUNCTION_MAX} lines: {long}"


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_a_file_says_what_it_is(path: Path) -> None:
    assert path.stat().st_size == 0 or ast.get_docstring(parse(path)), "no docstring at the top"


def undocumented(path: Path) -> list[str]:
    """Public top-level classes and functions without a docstring."""
    return [
        node.name
        for node in parse(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]


def test_public_names_are_documented() -> None:
    missing = {str(p.relative_to(ROOT)): names for p in PUBLIC if (names := undocumented(p))}
    count = sum(map(len, missing.values()))
    assert not missing, f"{count} public names without a docstring:\n" + "\n".join(
        f"  {p}: {', '.join(n)}" for p, n in missing.items()
    )


FOREIGN = {
    "time",
    "subprocess",
    "threading",
    "multiprocessing",
    "asyncio",
    "socket",
    "random",
    "duckdb",
    "rich",
    "watchfiles",
}
CLOCKS = {"now", "utcnow", "today", "environ", "getenv", "perf_counter", "monotonic"}


@pytest.mark.parametrize("path", sorted((ROOT / "engine").rglob("*.py")), ids=lambda p: p.name)
def test_the_engine_has_no_clock_and_no_processes(path: Path) -> None:
    for node in ast.walk(parse(path)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {n.split(".")[0] for n in names} & FOREIGN, f"line {getattr(node, 'lineno', 0)}: imports {names}"
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("datetime", "date", "os")
        ):
            assert node.attr not in CLOCKS, f"line {node.lineno}: {node.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "print", "input"), f"line {node.lineno}: I/O"


def test_rule_ids_are_unique() -> None:
    seen: dict[str, str] = {}
    for path in sorted((ROOT / "rules").rglob("*.yaml")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if m := re.match(r" *- (?:\{)?id: *['\"]?([\w.-]+)", line):
                here = f"{path.relative_to(ROOT)}:{number}"
                assert m[1] not in seen, f"{m[1]}: {here} and {seen[m[1]]}"
                seen[m[1]] = here
    assert len(seen) > 500


def test_rule_ids_begin_with_their_file() -> None:
    for path in sorted((ROOT / "rules" / "signatures").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        family = re.search(r"(?m)^family: *(\S+)", text)
        assert family, path
        strays = [i for i in re.findall(r"(?m)^ *- (?:\{)?id: *(\S+)", text) if not i.startswith(family[1] + ".")]
        assert not strays, f"{path.name}: {strays}"


def test_the_changelog_tells_the_version() -> None:
    path = ROOT / "CHANGELOG.md"
    assert path.exists(), "CHANGELOG.md is missing"
    assert re.search(rf"(?m)^#+ *\[?v?{re.escape(defib.__version__)}\b", path.read_text(encoding="utf-8")), (
        defib.__version__
    )


def test_no_secret_and_no_own_path_is_in_the_sources() -> None:
    own = re.compile(r"/work/(main|shared)\b|/root/")
    strays = [
        str(p.relative_to(ROOT))
        for p in SOURCES
        if p != Path(__file__).resolve() and own.search(p.read_text(encoding="utf-8"))
    ]
    assert not strays


def test_imports_point_one_way() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
