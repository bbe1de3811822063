"""The command line in this process, as its own tests use it."""

from __future__ import annotations

from tests.cli.conftest import say

__all__ = ["say"]
