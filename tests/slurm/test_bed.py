"""Where no Slurm can run its tests say so; where it must, they fail."""

from __future__ import annotations

import pytest
from tests.slurm import bed, conftest


def test_it_is_skipped_with_the_reason_or_fails_where_it_must_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "missing", lambda: "not installed: slurmctld")
    monkeypatch.delenv("DEFIB_REQUIRE_SLURM", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no real Slurm here: not installed: slurmctld"):
        next(conftest.made())
    monkeypatch.setenv("DEFIB_REQUIRE_SLURM", "1")
    with pytest.raises(pytest.fail.Exception, match="no Slurm can run here: not installed: slurmctld"):
        next(conftest.made())


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bed, "DAEMONS", "/nowhere")
    monkeypatch.setattr(bed.os, "geteuid", lambda: 0)
    assert "slurmctld, slurmd" in str(bed.missing())
    monkeypatch.setattr(bed.os, "geteuid", lambda: 1000)
    assert "root" in str(bed.missing())
