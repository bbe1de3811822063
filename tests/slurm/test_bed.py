"""Where no Slurm can run its tests say so; where it must, they fail."""

from __future__ import annotations

import pytest
from tests.slurm import bed, conftest


def test_it_is_skipped_with_the_reason_or_fails_where_it_must_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "missing", lambda: "not installed: slurmctld")
    monkeypatch.setenv("DEFIB_REQUIRE", "root,native")
    with pytest.raises(pytest.skip.Exception, match=r"^no Slurm can run here: not installed: slurmctld"):
        next(conftest.made())
    monkeypatch.setenv("DEFIB_REQUIRE", "slurm,native")
    with pytest.raises(
        pytest.fail.Exception, match=r"^DEFIB_REQUIRE names slurm, but no Slurm can run here: not installed: slurmctld"
    ):
        next(conftest.made())


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bed, "DAEMONS", "/nowhere")
    monkeypatch.setattr(bed.os, "geteuid", lambda: 0)
    assert "slurmctld, slurmd" in str(bed.missing())
    monkeypatch.setattr(bed.os, "geteuid", lambda: 1000)
    assert "root" in str(bed.missing())
