"""Rule folders on disk -> a proven rulebook with compiled databases, cached by content.

The cache (`$XDG_CACHE_HOME/defib`, or `DEFIB_CACHE`) holds the checked rulebook and its databases under a key of rule content, Hyperscan
version and CPU features, so a normal start reads two files and compiles nothing. A cache that cannot be written only costs time.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from defib import __version__
from defib.adapters import native
from defib.adapters.show import printable
from defib.engine.errors import Problem, RuleError
from defib.engine.library import BINDING, Library
from defib.engine.plan import FORMAT, Databases, Roster, from_json

if TYPE_CHECKING:
    from defib.engine.fields import Kernel
    from defib.engine.rulebook import Rulebook
    from defib.engine.shorter import Sorter
    from defib.engine.sieve import Memory

BUILT_IN = Path(__file__).resolve().parent.parent / "rules"


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """A rulebook that may be used: every example in it holds."""

    book: Rulebook
    databases: Databases


def built_in() -> Path:
    """The folder of the shipped rules (beside this package, in a checkout or a wheel)."""
    if BUILT_IN.is_dir() and (BUILT_IN / "classes.yaml").exists():
        return BUILT_IN
    import importlib.resources

    return Path(str(importlib.resources.files("defib.rules")))


def read_folders(folders: list[Path]) -> list[tuple[str, str]]:
    """(shown path, text) of every .yaml/.yml below the folders. Raises RuleError for folders or files that cannot be read."""
    files: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for folder in folders:
        paths = [folder] if folder.is_file() else sorted(p for p in folder.rglob("*") if p.suffix in (".yaml", ".yml"))
        if not folder.exists():
            problems.append(
                Problem(printable(str(folder)), 1, 1, "no such file or folder", "check the path", unread=True)
            )
        elif not paths:
            problems.append(
                Problem(printable(str(folder)), 1, 1, "no rule files here", "give a folder that holds .yaml files")
            )
        for p in paths:
            shown = f"rules/{p.relative_to(folder)}" if folder == built_in() else _theirs(printable(str(p)))
            try:
                files.append((shown, _text(p)))
            except (OSError, UnicodeDecodeError) as e:
                problems.append(
                    Problem(shown, 1, 1, f"cannot be read: {_why(e)}", "rule files are UTF-8 text", unread=True)
                )
    if problems:
        raise RuleError(problems)
    return files


def _theirs(path: str) -> str:
    """A path of a site's own file, told apart from ours, which are named from `rules/` on."""
    return f"./{path}" if path.startswith("rules/") else path


def _why(e: OSError | UnicodeDecodeError) -> str:
    """The system's own words, without the path once more."""
    return (e.strerror or str(e)) if isinstance(e, OSError) else str(e)


def _text(path: Path) -> str:
    """A rule file's text. Raises OSError for what is no file: opening a named pipe would wait for ever."""
    if path.exists() and not path.is_file():
        raise OSError("not a regular file")
    return path.read_text(encoding="utf-8")


def load(extra: list[Path] | None = None, *, use_cache: bool = True) -> LoadedRules:
    """The shipped rules plus `extra` folders. Raises RuleError with every fault, failed examples included."""
    files = read_folders([built_in(), *(extra or [])])
    slot = _cache_dir() / _key(files, BINDING)
    if use_cache:
        cached = _read(slot)
        if cached is not None:
            return cached
    from defib.engine import proof, rulecheck, scan

    book = rulecheck.load(files)
    databases = scan.compile_databases(book)
    problems = proof.prove(book, databases)
    if problems:
        raise RuleError(problems)
    loaded = LoadedRules(book, databases)
    if use_cache:
        with contextlib.suppress(OSError):
            _write(slot, loaded)
    return loaded


def load_scan(extra: list[Path] | None = None) -> tuple[Roster, Databases, Library]:
    """The same rules for a scan that needs only codes and names, from the cache without the rulebook, and the library that they are for:
    the system's, where `native` finds one and every example holds with it. Raises RuleError as `load` does."""
    files = read_folders([built_in(), *(extra or [])])
    system = native.library(_cache_dir())
    for library in (system, BINDING):
        parts = _parts(_cache_dir() / _key(files, library)) if library is not None else None
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if parts is not None and library is not None:
                return from_json(parts[1]), Databases(*parts[2:]), library
        if library is not BINDING and library is not None and (made := _made_for(library, files, extra)) is not None:
            return made
    from defib.engine import plan, scan

    loaded = load(extra)
    return plan.roster(scan.plan(loaded.book)), loaded.databases, BINDING


def kernel() -> Kernel | None:
    """What reads the fields of progress lines in C, where it can be had."""
    from defib.adapters import nativefields

    return nativefields.kernel(_cache_dir())


def sorter() -> Sorter:
    """What sorts records by shape, in C where that can be had."""
    from defib.adapters import nativeshapes
    from defib.engine.sorting import PlainSorter

    return nativeshapes.sorter(_cache_dir()) or PlainSorter()


def memory() -> Memory | None:
    """What remembers shapes in which nothing was found, where it can be had."""
    from defib.adapters import nativesieve

    return nativesieve.memory(_cache_dir())


def _made_for(
    library: Library, files: list[tuple[str, str]], extra: list[Path] | None
) -> tuple[Roster, Databases, Library] | None:
    """Databases of a library other than the binding, kept beside those; None if it cannot compile a rule or an example fails with it."""
    from defib.engine import plan, proof, scan

    book = load(extra).book
    try:
        databases = scan.compile_databases(book, library=library)
    except ValueError:
        return None
    if proof.prove(book, databases, library):
        return None
    with contextlib.suppress(OSError):
        _write(_cache_dir() / _key(files, library), LoadedRules(book, databases))
    return plan.roster(scan.plan(book)), databases, library


def scanned_by() -> str:
    """In one line: how `defib scan` looks for these rules."""
    return native.told(_cache_dir())


def _cache_dir() -> Path:
    named = os.environ.get("DEFIB_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "defib"


def _key(files: list[tuple[str, str]], library: Library) -> str:
    digest = hashlib.sha256(f"{__version__}|{FORMAT}|{library.name}|{_cpu()}".encode())
    for path, text in sorted(files):
        digest.update(path.encode("utf-8", "surrogateescape") + b"\0" + text.encode() + b"\0")
    return digest.hexdigest()


def _cpu() -> str:
    """What the compiled database depends on: architecture and instruction sets."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return hashlib.sha256(line.encode()).hexdigest()[:16]
    except OSError:
        pass
    return os.uname().machine


def _read(slot: Path) -> LoadedRules | None:
    """A damaged or foreign cache entry is as good as none."""
    parts = _parts(slot)
    if parts is None:
        return None
    from defib.engine.rulebook import Rulebook

    try:
        return LoadedRules(Rulebook.from_json(parts[0]), Databases(*parts[2:]))
    except (ValueError, KeyError, TypeError):
        return None


def _parts(slot: Path) -> list[bytes] | None:
    """What `_write` wrote: rulebook, plan, databases; None if it is not whole."""
    try:
        raw = slot.read_bytes()
        head, body = raw[:64], memoryview(raw)[64:]
        if hashlib.sha256(body).hexdigest().encode() != head:
            return None
        begin = raw.index(b"\n", 64) + 1
        sizes = json.loads(raw[64:begin])
        ends = list(itertools.accumulate(sizes, initial=begin))
        return [raw[a:b] for a, b in itertools.pairwise(ends)]
    except (OSError, ValueError, TypeError):
        return None


def _write(slot: Path, loaded: LoadedRules) -> None:
    import tempfile

    from defib.engine import scan

    slot.parent.mkdir(parents=True, exist_ok=True)
    parts = [loaded.book.to_json(), scan.plan(loaded.book).to_json(), *loaded.databases]
    body = b"".join((json.dumps([len(p) for p in parts]).encode(), b"\n", *parts))
    handle, name = tempfile.mkstemp(dir=slot.parent)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(hashlib.sha256(body).hexdigest().encode() + body)
        os.replace(name, slot)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
