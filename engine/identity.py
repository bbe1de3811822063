"""Paths of logs -> which job, array task, node, rank and attempt they belong to.

The path templates of the rulebook are tried in order, first match wins. Files of one job share a `JobKey`: by job id where
the path tells one, else by place: the directory plus the stem shared by `x.out` and `x.err`, or the directory alone where the file name only
says rank or node.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

import polars as pl

from defib.engine.rulebook import Template
from defib.engine.words import JobKey, StreamFacts

PACKED = re.compile(r"\.(gz|zst|zstd)$", re.I)
CHANNELS = {"out": "out", "stdout": "out", "o": "out", "err": "err", "stderr": "err", "e": "err"}
ENDING = re.compile(r"\.(out|err|log|txt|stdout|stderr)$", re.I)


@dataclass(frozen=True, slots=True)
class Known:
    """What the caller says about every log of a run."""

    cluster: str | None = None


def facts(paths: list[str], templates: tuple[Template, ...], known: Known) -> list[StreamFacts]:
    """One StreamFacts per path, in order."""
    if not paths:
        return []
    bare = [PACKED.sub("", p) for p in paths]
    text = pl.Series(bare, dtype=pl.String)
    found: list[dict[str, str]] = [{} for _ in paths]
    open_ = pl.Series([True] * len(paths))
    for t in templates:
        hit = text.str.contains(t.pattern) & open_
        for i in hit.arg_true():
            row = text[i : i + 1].str.extract_groups(t.pattern).struct.unnest().row(0, named=True)
            found[i] = {k: v for k, v in row.items() if v is not None}
            found[i][""] = t.id
        open_ = open_ & ~hit
    return [_one(path, got, known) for path, got in zip(bare, found, strict=True)]


def _one(path: str, got: dict[str, str], known: Known) -> StreamFacts:
    folder, name = posixpath.split(path)
    stem = ENDING.sub("", name)
    job_id = got.get("array_job") or got.get("job_id")
    ending = ENDING.search(name)
    channel = got.get("stream") or (ending.group(1).lower() if ending else None)
    if job_id is None:
        place = _place(folder, stem, got)
        job_name = got.get("job_name") or posixpath.basename(place) or None
    else:
        place, job_name = "", got.get("job_name")
    key = JobKey(known.cluster or got.get("cluster"), job_id, got.get("array_task"), None, place)
    return StreamFacts(
        key, job_name, got.get("node"), _number(got.get("rank")), _number(got.get("local_rank")),
        _number(got.get("restart_count")), _number(got.get("attempt")),
        CHANNELS.get(channel or ""),
    )  # fmt: skip


def _place(folder: str, stem: str, got: dict[str, str]) -> str:
    if "attempt" in got and re.search(r"(^|/)attempt_\d+/", folder + "/"):
        return re.sub(r"/?attempt_\d+(/.*)?$", "", folder) or "."
    if {"rank", "local_rank", "node", "task"} & set(got):
        return folder or "."
    return posixpath.join(folder, got.get("job_name") or stem)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
