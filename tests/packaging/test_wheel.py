"""What is shipped: one package with the rules inside, no links, every import declared."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import defib

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("engine", "adapters", "rules")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAMES = {"annotated-types": "annotated_types", "pyyaml": "yaml"}  # distribution -> what is imported, where they differ


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built offline."""
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Iterator[zipfile.ZipFile]:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as z:
        yield z


@pytest.mark.parametrize("room", ROOMS)
def test_the_links_in_src_point_at_the_rooms(room: str) -> None:
    link = ROOT / "src" / "defib" / room
    mend = f"mend: rm -rf {link} && ln -s ../../{room} {link} (git needs core.symlinks=true)"
    assert link.is_symlink(), f"{link} is no symbolic link; {mend}"
    assert link.readlink() == Path("../..") / room, f"{link} points to {link.readlink()}; {mend}"
    assert link.resolve() == ROOT / room, f"{link} leads nowhere; {mend}"


def test_the_wheel_holds_one_package(wheel: zipfile.ZipFile) -> None:
    tops = {n.split("/")[0] for n in wheel.namelist()}
    assert tops == {"defib", f"defib-{defib.__version__}.dist-info"}
    links = [i.filename for i in wheel.infolist() if (i.external_attr >> 16) & 0o170000 == 0o120000]
    assert links == []
    assert len(wheel.namelist()) == len(set(wheel.namelist()))


@pytest.mark.parametrize("room", ROOMS)
def test_the_wheel_holds_every_file_of_a_room(room: str, wheel: zipfile.ZipFile) -> None:
    ours = {
        f"defib/{room}/{p.relative_to(ROOT / room)}"
        for p in (ROOT / room).rglob("*")
        if p.suffix in (".py", ".yaml", ".c")
    }
    shipped = {n for n in wheel.namelist() if n.startswith(f"defib/{room}/") and n.endswith((".py", ".yaml", ".c"))}
    assert shipped == ours
    assert "defib/py.typed" in wheel.namelist()


def test_the_wheel_holds_nothing_of_the_workshop(wheel: zipfile.ZipFile) -> None:
    assert [
        n for n in wheel.namelist() if re.search(r"__pycache__|\.pyc|(^|/)tests?/|bench|\.duckdb|/shared/|\.ci/", n)
    ] == []


def test_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = [n for n in wheel.namelist() if n.endswith("METADATA")]
    text = wheel.read(name).decode()
    assert f"Version: {defib.__version__}\n" in text
    assert "License-File: LICENSE" in text
    assert f"Requires-Python: {PROJECT['requires-python']}" in text
    (entry,) = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    assert "defib = defib.adapters.cli:main" in wheel.read(entry).decode()


def test_the_wheel_runs_without_the_checkout(built: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    script = "import sys; sys.path.insert(0, sys.argv[1]); import defib.adapters.rulefiles as r; assert r.__file__.startswith(sys.argv[1]), r.__file__; print(len(r.read_folders([r.built_in()])))"
    done = subprocess.run([sys.executable, "-S", "-c", script, str(tmp_path)], capture_output=True, text=True, check=False,
                          env={"PYTHONPATH": str(Path(pytest.__file__).parents[1])})  # fmt: skip
    assert done.returncode == 0, done.stderr[-800:]
    assert int(done.stdout) == len(list((ROOT / "rules").rglob("*.yaml")))


def test_the_sdist_can_be_built_from(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as t:
        names = {n.split("/", 1)[1] for n in t.getnames() if "/" in n}
        assert not [m.name for m in t.getmembers() if m.issym()]
    assert {
        "pyproject.toml",
        "src/defib/__init__.py",
        "engine/core.py",
        "adapters/wire.py",
        "adapters/blind.h",
        "adapters/collect.c",
        "adapters/fields.c",
        "adapters/shapes.c",
        "adapters/sieve.c",
        "rules/classes.yaml",
        "LICENSE",
    } <= names


def imported(folder: Path) -> dict[str, str]:
    """Top-level modules that a room imports -> a file that does."""
    out: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for name in names:
                out.setdefault(name.split(".")[0], str(path.relative_to(ROOT)))
    return out


def test_every_import_is_declared() -> None:
    used = {**imported(ROOT / "engine"), **imported(ROOT / "adapters"), **imported(ROOT / "src")}
    foreign = {n: p for n, p in used.items() if n not in sys.stdlib_module_names and n not in ("defib", "__future__")}
    optional = [d for extra in PROJECT["optional-dependencies"].values() for d in extra]
    names = [re.split(r"[^\w.-]", d)[0].lower() for d in (*PROJECT["dependencies"], *optional)]
    declared = {NAMES.get(n, n.replace("-", "_")) for n in names}
    assert set(foreign) - declared == set(), f"imported, declared neither as a dependency nor in an extra: {foreign}"


def test_every_dependency_has_a_floor_and_no_ceiling() -> None:
    for line in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dask"]):
        assert re.fullmatch(r"[\w.-]+>=[\d.]+", line), line
