"""A back-fill over processes, parts and a cluster gives what one process gives, whoever dies on the way."""

from __future__ import annotations

import operator
import os
import pickle
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import distributed
import duckdb
import pytest

from defib.adapters import backfill, pool, shards, wire
from defib.adapters.archive import Archive
from defib.adapters.parts import Done, Part, PartWriter, Share
from defib.adapters.pool import Pool, WorkerLostError
from defib.adapters.rulefiles import LoadedRules
from defib.engine.errors import ConfigError
from defib.engine.words import SourceError
from loggen.presets import cases
from loggen.render import write

Told = list[tuple[Any, dict[int, str]]]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    write(folder, cases("demo", count=4), 7)
    (folder / "empty.log").write_bytes(b"")
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task for nearly every job."""
    monkeypatch.setattr(shards, "TASK_MIN", 1000)
    monkeypatch.setattr(shards, "TASK_MAX", 20_000)


def keep(told: Told) -> Any:
    return lambda a, paths: told.append((a, {n: paths[n] for n in a.streams}))


def replayed(logs: Path, db: Path, scheduler: str | None = None) -> Told:
    told: Told = []
    outcome = wire.replay(wire.ReplayOptions([str(logs)], str(db), scheduler=scheduler), keep(told))
    assert outcome.attempts == len(told) > 0
    assert outcome.bytes_read > 10_000
    return told


def content(db: Path) -> dict[str, list[tuple[Any, ...]]]:
    with duckdb.connect(str(db), read_only=True) as con:
        tables = [r[0] for r in con.execute("SELECT table_name FROM duckdb_tables() ORDER BY 1").fetchall()]
        return {t: sorted(con.execute(f"SELECT * FROM {t}").fetchall(), key=repr) for t in tables}


@pytest.fixture(scope="module")
def alone(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, dict[str, list[tuple[Any, ...]]]]:
    db = tmp_path_factory.mktemp("db") / "alone.duckdb"
    return replayed(logs, db), content(db)


def test_processes_give_the_same(logs: Path, alone: Any, tmp_path: Path) -> None:
    db = tmp_path / "h.duckdb"
    assert (replayed(logs, db, "local:2"), content(db)) == alone


def test_a_killed_worker_changes_nothing(
    logs: Path, alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[Pool] = []
    real, hire = backfill.Pool, Pool._hire

    def noted(*a: Any) -> Pool:
        pools.append(real(*a))
        return pools[0]

    def kill_first(self: Pool) -> Any:
        worker = hire(self)
        if not self.lost and len(self._workers) == 1:
            os.kill(worker.process.pid or 0, signal.SIGKILL)
        return worker

    monkeypatch.setattr(backfill, "Pool", noted)
    monkeypatch.setattr(Pool, "_hire", kill_first)
    db = tmp_path / "h.duckdb"
    assert (replayed(logs, db, "local:2"), content(db)) == alone
    assert pools[0].lost == 1
    assert pools[0].pids == [], "no process outlives the pool"


def test_parts_are_merged_to_the_same(logs: Path, alone: Any, tmp_path: Path) -> None:
    for i in range(3):
        wire.write_part(wire.ReplayOptions([str(logs)], ":memory:"), i, 3, tmp_path / f"{i}.part")
    parts = sorted(tmp_path.glob("*.part"), reverse=True)
    told: Told = []
    wire.merge(parts, str(tmp_path / "h.duckdb"), [], keep(told))
    assert (told, content(tmp_path / "h.duckdb")) == alone
    with pytest.raises(SourceError, match="each of the 3 parts once"):
        wire.merge(parts[:2], ":memory:", [], lambda *_: None)


def test_parts_of_other_logs_do_not_mix(logs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_bytes(b"x\n")
    wire.write_part(wire.ReplayOptions([str(logs)], ":memory:"), 0, 2, tmp_path / "0.part")
    wire.write_part(wire.ReplayOptions([str(logs), str(other)], ":memory:"), 1, 2, tmp_path / "1.part")
    with pytest.raises(SourceError, match="not of one replay"):
        wire.merge([tmp_path / "0.part", tmp_path / "1.part"], ":memory:", [], lambda *_: None)


@pytest.fixture
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, protocol="tcp"
    ) as made:
        yield made


def test_a_cluster_gives_the_same_though_a_worker_is_killed(
    cluster: Any, logs: Path, alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    real = backfill._ended

    def kill_one(*a: Any) -> list[Any]:
        if not killed:
            killed.append(cluster.workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)
        return real(*a)

    monkeypatch.setattr(backfill, "_ended", kill_one)
    db = tmp_path / "h.duckdb"
    assert (replayed(logs, db, cluster.scheduler_address.replace("tcp", "dask")), content(db)) == alone
    assert killed


def refused(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "x.part"
    path.write_bytes(data)
    with pytest.raises(SourceError) as e:
        list(Part(path).effects())
    return str(e.value)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def test_a_part_is_whole_and_harmless_or_refused(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wire.write_part(wire.ReplayOptions([str(logs)], ":memory:"), 0, 1, tmp_path / "0.part")
    whole = (tmp_path / "0.part").read_bytes()
    for cut in (len(whole) - 1, len(whole) // 2, len(whole) - 200):
        assert "not written to its end" in refused(tmp_path, whole[:cut])
    for at in range(0, len(whole), max(1, len(whole) // 60)):  # one bit is another one
        said = refused(tmp_path, whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert ".part" in said, at
    assert "no part" in refused(tmp_path, b"hello")
    with (tmp_path / "evil.part").open("wb") as f:
        writer = PartWriter(f, Share("r", "l"))
        writer._frame(b"e", pickle.dumps(Evil()))
        writer.end(Done(0, 0, ()))
    assert "damaged" in refused(tmp_path, (tmp_path / "evil.part").read_bytes())
    assert not (tmp_path / "pwned").exists()


def test_shares_are_whole_and_in_order(logs: Path, loaded: LoadedRules) -> None:
    archive = Archive([str(logs)], loaded.book.paths)
    archive.open()
    jobs = archive.jobs()
    for n in (1, 2, 3, 50):
        shares = shards.split(jobs, n)
        assert len(shares) == n
        assert [j for share in shares for j in share] == jobs
    assert [j for share in shards.tasks(jobs, 2) for j in share] == jobs


def test_a_pool_retries_tells_and_ends() -> None:
    def run(function: Any, tasks: Sequence[Any]) -> list[tuple[int, Any]]:
        p = Pool(function, 2, lambda: None)
        try:
            return sorted(p.results(tasks, lambda: len(tasks)))
        finally:
            p.close()
            assert p.pids == []

    assert run(operator.neg, range(5)) == [(i, -i) for i in range(5)]
    with pytest.raises(ConfigError, match="'nowhere' names no scheduler"):
        run(backfill.where, ["nowhere"])
    with pytest.raises(WorkerLostError, match=f"died {pool.RETRIES + 1} times"):
        run(signal.raise_signal, [signal.SIGKILL])


def test_places_to_run(tmp_path: Path) -> None:
    assert backfill.where("local:3") == backfill.Where(3)
    assert backfill.where("dask://h:1").address == "tcp://h:1"
    for bad in ("", "local:", "local:0", "local:x", "dask://h", "slurm:1", f"local:{sys.maxsize}"):
        with pytest.raises(ConfigError):
            backfill.where(bad)
