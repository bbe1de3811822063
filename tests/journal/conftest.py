"""A life of a watch, of the kill check's script, and its journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from killcase import Counter, play, rules


@pytest.fixture(scope="session")
def loaded() -> Any:
    """The shipped rules with limits of seconds."""
    return rules()


@pytest.fixture(scope="session")
def life(tmp_path_factory: pytest.TempPathFactory, loaded: Any) -> Path:
    """A folder in which a whole life was lived; not to be changed."""
    folder = tmp_path_factory.mktemp("life")
    assert play(folder, loaded, Counter()) == []
    return folder
