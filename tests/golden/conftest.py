"""Shared by the golden tests: the session's rule cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def rule_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Rules are compiled once a session: every test folder names this same place."""
    before = os.environ.get("DEFIB_CACHE")
    cache = tmp_path_factory.getbasetemp() / "rule-cache"
    os.environ["DEFIB_CACHE"] = str(cache)
    yield cache
    os.environ.pop("DEFIB_CACHE")
    if before is not None:
        os.environ["DEFIB_CACHE"] = before
