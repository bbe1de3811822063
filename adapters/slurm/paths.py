"""Where a job writes: Slurm's filename patterns -> paths, and the site's templates for files of steps -> globs.

In: a pattern as the user gave it or as the scheduler expanded it, and what it is about. Out: absolute paths as bytes. Always: names stay
bytes; what is put into a glob is escaped; a path that leaves the allowed roots is told, not returned, whatever a job calls itself.

Slurm expands batch patterns on the first node (sbatch(1), "filename pattern"); what the scheduler prints is expanded only in part: the node's
name, `%%` and padded numbers are left (measured with 22.05, 24.11, 26.05).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from defib.engine.jobs import JobFacts, LogPath

PAD_MAX = 10  # Slurm's own cap
NO_TASK = 4294967294  # what %a prints outside of an array
PATH_MAX = 4096
SYMBOL = re.compile(rb"%(\d*)(.)", re.S)
PADDED = frozenset(b"jAaJntsbr")
LATER = {b"b": (23, 11), b"r": (25, 11)}  # symbols a release does not know stay as they are
WILD = re.compile(rb"[*?\[]")
HOLE = re.compile(r"\{(\w*)\}")


@dataclass(frozen=True, slots=True)
class Values:
    """What the symbols stand for. node: short name of the first node, None while there is none. version: (), where unknown, knows no later
    symbol."""

    job_id: int
    array_job_id: int | None = None
    array_task: int | None = None
    name: bytes = b""
    user: bytes = b""
    node: bytes | None = None
    restarts: int = 0
    version: tuple[int, ...] = ()

    def of(self, symbol: bytes) -> bytes | None:
        """What a symbol of a batch job becomes; None for one that stays as it is."""
        if symbol in LATER and self.version < LATER[symbol]:
            return None
        task = NO_TASK if self.array_task is None else self.array_task
        found: dict[bytes, int | bytes | None] = {
            b"j": self.job_id, b"J": self.job_id, b"A": self.array_job_id or self.job_id, b"a": task, b"b": task % 10, b"n": 0,
            b"t": 0, b"s": b"batch", b"u": self.user or None, b"x": self.name or None, b"N": self.node, b"r": self.restarts,
        }  # fmt: skip
        value = found.get(symbol)
        return b"%d" % value if isinstance(value, int) else value


def expand(pattern: bytes, values: Values, work_dir: bytes) -> bytes:
    """A pattern as the user gave it -> the path of the file."""
    if b"\\" in pattern:  # no symbol is processed then, and each backslash stands for the character behind it
        return _beneath(re.sub(rb"\\(.?)", rb"\1", pattern, flags=re.S), work_dir)
    return _beneath(SYMBOL.sub(lambda m: _symbol(m, values), pattern), work_dir)


def finish(expanded: bytes, values: Values, work_dir: bytes) -> bytes:
    """A path as the scheduler expanded it -> the path of the file. A job's name that looks like symbols is left alone."""
    if b"%" not in expanded:
        return _beneath(expanded, work_dir)
    parts = expanded.split(values.name) if b"%" in values.name else [expanded]
    return _beneath(values.name.join(SYMBOL.sub(lambda m: _symbol(m, values), p) for p in parts), work_dir)


def _symbol(found: re.Match[bytes], values: Values) -> bytes:
    width, symbol = found[1], found[2]
    if symbol == b"%":
        return found[0] if width else b"%"
    value = values.of(symbol)
    if value is None:
        return found[0]
    return value.zfill(min(int(width), PAD_MAX)) if width and symbol[0] in PADDED and value.isdigit() else value


def _beneath(path: bytes, work_dir: bytes) -> bytes:
    return path if path.startswith(b"/") else work_dir.rstrip(b"/") + b"/" + path


@dataclass(frozen=True, slots=True)
class Logs:
    """The places a job writes to that may be read, and why others may not."""

    paths: tuple[LogPath, ...] = ()
    troubles: tuple[str, ...] = ()


def template_fault(template: str) -> str | None:
    """What is wrong with a site's template, or None. For a configuration's check."""
    unknown = [h for h in HOLE.findall(template) if h not in HOLES]
    if unknown:
        return f"{{{unknown[0]}}} is not known; known: {', '.join(sorted(HOLES))}"
    return None if template.startswith(("/", "{work_dir}")) else "it has to begin with / or {work_dir}"


HOLES = frozenset(["work_dir", "job_id", "array_job_id", "array_task", "user", "name", "restarts", "batch_host"])


def logs(facts: JobFacts, templates: tuple[str, ...] = (), roots: tuple[bytes, ...] = (b"/",)) -> Logs:
    """Every place where this job writes, its own output first.

    templates: as `{work_dir}/logs/{job_id}/rank_*.log`; one that needs what this job has not is left out. roots: folders below which logs
    may lie. Patterns in templates are the site's, values put into them are not.
    """
    if facts.array_pending:
        return Logs()
    wanted = [LogPath(p, c) for p, c in ((facts.stdout, "out"), (facts.stderr, "err")) if p is not None]
    holes = _holes(facts)
    for template in templates:
        if (made := _fill(template, holes)) is not None:
            wanted.append(LogPath(made, "step", glob=True))
    paths: dict[bytes, LogPath] = {}
    troubles = []
    for log in wanted:
        path = os.path.normpath(log.path)
        path = path[1:] if path.startswith(b"//") else path
        if (why := _refusal(path, roots)) is not None:
            troubles.append(f"job {facts.label}: its {log.channel} is not followed: {why}")
        else:
            paths.setdefault(path, LogPath(path, log.channel, log.glob))
    return Logs(tuple(paths.values()), tuple(troubles))


def places(
    templates: tuple[str, ...] = (), roots: tuple[bytes, ...] = (b"/",)
) -> Callable[[JobFacts], tuple[tuple[LogPath, ...], tuple[str, ...]]]:
    """`logs` of a site, as the roster asks for it."""

    def of(facts: JobFacts) -> tuple[tuple[LogPath, ...], tuple[str, ...]]:
        found = logs(facts, templates, roots)
        return found.paths, found.troubles

    return of


def _refusal(path: bytes, roots: tuple[bytes, ...]) -> str | None:
    if path == b"/dev/null":
        return "it goes to /dev/null"
    if not path.startswith(b"/") or b"\0" in path or len(path) > PATH_MAX:
        return "its path is no path"
    if not any(path.startswith(root.rstrip(b"/") + b"/") for root in roots):
        return "its path leaves the folders logs are allowed in"
    return None


def _holes(facts: JobFacts) -> Mapping[str, bytes | None]:
    """Values of a template's names; what came over as text with replaced bytes matches any."""
    words = {
        "job_id": str(facts.job_id),
        "array_job_id": None if facts.array_job_id is None else str(facts.array_job_id),
        "array_task": None if facts.array_task is None else str(facts.array_task),
        "user": facts.user or None, "name": facts.name or None, "restarts": str(facts.restarts), "batch_host": facts.batch_host,
    }  # fmt: skip
    escaped = {k: None if v is None or "/" in v or v in (".", "..") else _escape(v.encode("utf-8", "replace")) for k, v in words.items()}  # fmt: skip
    return {k: v and v.replace("\ufffd".encode(), b"*") for k, v in escaped.items()} | {
        "work_dir": None if facts.work_dir is None else _escape(facts.work_dir)
    }


def _fill(template: str, holes: Mapping[str, bytes | None]) -> bytes | None:
    """The template with its values, None where one is missing."""
    pieces = HOLE.split(template)  # text, name, text, …
    out = [os.fsencode(pieces[0])]
    for name, following in zip(pieces[1::2], pieces[2::2], strict=True):
        value = holes.get(name)
        if value is None:
            return None
        out += [value, os.fsencode(following)]
    return b"".join(out)


def _escape(value: bytes) -> bytes:
    return WILD.sub(lambda found: b"[" + found[0] + b"]", value)
