"""What some tests need of the machine. Where it is lacking they are skipped with the reason; where `DEFIB_REQUIRE` names it, they fail.

`DEFIB_REQUIRE=slurm,native,root,systemd` is what CI sets: there nothing of these may be passed over in silence.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def lacking(what: str, why: str) -> NoReturn:
    """what: slurm, native (a C compiler and a shared Hyperscan), root or systemd."""
    if what in os.environ.get("DEFIB_REQUIRE", "").split(","):
        pytest.fail(f"DEFIB_REQUIRE names {what}, but {why}")
    pytest.skip(why)


@pytest.fixture
def root() -> None:
    """For tests with files or processes of other users, which only root can make."""
    if os.geteuid() != 0:
        lacking("root", "only root can make files and processes of others")
