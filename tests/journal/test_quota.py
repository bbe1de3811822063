"""The limit of records of one job: a log that matches in every line fills nothing, and what is left out is counted exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_watch import BANNER, step

from defib.adapters import daemon
from defib.adapters.rows import stream_key
from defib.adapters.wire import Fan
from defib.engine.ports import Closed, Data, JobClosed, Opened, Ticked
from defib.engine.quota import FIRST
from defib.engine.words import JobKey, StreamFacts, StreamId
from killcase import Quiet, World

MOST = 200
SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND
OOM = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.62 GiB. GPU 0 has a total capacity of 79.10 GiB\n"
XID = "2026-12-01T02:28:09.113754+00:00 gpu024 kernel: NVRM: Xid (PCI:0000:61:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
FACTS = StreamFacts(JobKey(job_id="7"))
OPENED = Opened(0, StreamId("/logs/slurm-7.out"), FACTS, 0)


class Polls:
    """Polls as they are given, then the end."""

    def __init__(self, *polls: list[Any]) -> None:
        self.polls: list[Any] = [*polls, None]

    def poll(self) -> Any:
        return self.polls.pop(0)

    def close(self) -> None: ...


def said(text: str, stream: int = 0) -> Data:
    return Data(stream, text.encode(), len(text))


def opened(folder: Path, loaded: Any, keeping: daemon.Keeping | None = None) -> daemon.Station:
    fan, keeping = Fan([], lambda a, paths: None), keeping or daemon.Keeping(job_records=MOST)
    station = daemon.open_station(str(folder / "state"), loaded, fan, Quiet(), World(folder), keeping)
    fan.paths.update({n: s.id.path for n, s in station.state.streams.items()})
    return station


def count(station: daemon.Station, query: str) -> Any:
    station.keeper.flush()
    return station.keeper.store.cursor().execute(query).fetchall()


@pytest.mark.parametrize("restart", [False, True])
def test_a_flood_is_counted_and_a_cause_behind_it_is_found(restart: bool, loaded: Any, tmp_path: Path) -> None:
    flood, polls = 1000, 5
    station = opened(tmp_path, loaded)
    drive = station.drive()
    station.run(Polls([OPENED, said(BANNER), Ticked(NOW)]), drive)
    for n in range(polls):
        if restart and n == 3:
            station.close()
            station = opened(tmp_path, loaded)
            drive = station.drive()
            place = station.keeper.resumed.reached[0]
            again = Opened(0, OPENED.id, FACTS, 0, place.offset, place.line)
            station.run(Polls([again, Ticked(NOW + (n + 1) * SECOND)]), drive)
        station.run(Polls([said(OOM * flood), Ticked(NOW + (n + 2) * SECOND)]), drive)
    assert drive.quota is not None
    kept = count(station, "SELECT count(*) FROM signals WHERE rule = 'cuda.out-of-memory'")[0][0]
    # A start knows how much was kept in steps of a sixteenth.
    assert MOST <= kept + 1 <= MOST + FIRST + MOST // 16
    assert drive.quota.over == flood * polls - kept, "every line was counted"
    assert drive.quota.jobs_over() == 1
    size = station.keeper.journal.size
    station.run(
        Polls([said(OOM * flood), said(XID), Ticked(NOW + 20 * SECOND)], [Closed(0), JobClosed(FACTS.job)]), drive
    )
    assert station.keeper.journal.size - size < 20_000
    rules = dict(count(station, "SELECT rule, count(*) FROM signals GROUP BY ALL"))
    assert rules["gpu.xid"] == 1, "the first lines of every rule pass"
    (row,) = count(station, "SELECT verdict, notes FROM attempts")
    left = flood * (polls + 1) - rules["cuda.out-of-memory"]
    assert (
        f"{left} records over the limit of {MOST} of one job were counted and not kept: cuda.out-of-memory x{left}"
        in row[1]
    )
    assert (drive.quota.over, drive.quota.jobs_over()) == (0, 0), "a job that is over costs nothing more"
    assert station.kept("quota") == {}
    station.close()


def test_a_run_that_prints_more_steps_than_are_kept_is_still_seen_to_move(loaded: Any, tmp_path: Path) -> None:
    station = opened(tmp_path, loaded)
    drive = station.drive()
    station.run(Polls([OPENED, said(BANNER), Ticked(NOW)]), drive)
    for n in range(20):
        lines = "".join(step(n * 50 + k) for k in range(1, 51))
        station.run(Polls([said(lines), Ticked(NOW + (n + 1) * SECOND)]), drive)
    ((kept, last),) = count(station, "SELECT count(*), max(step) FROM progress")
    assert last == 1000
    assert MOST <= kept <= MOST + 20
    assert count(station, "SELECT health, step FROM live_jobs") == [("healthy", 1000)]
    assert drive.quota is not None
    assert drive.quota.over == 1000 - kept
    station.close()


def test_below_the_limit_nothing_changes(loaded: Any, tmp_path: Path) -> None:
    station = opened(tmp_path, loaded)
    drive = station.drive()
    station.run(Polls([OPENED, said(BANNER + OOM * 150), Ticked(NOW)], [Closed(0), JobClosed(FACTS.job)]), drive)
    assert count(station, "SELECT count(*) FROM signals WHERE rule = 'cuda.out-of-memory'") == [(150,)]
    ((notes,),) = count(station, "SELECT notes FROM attempts")
    assert not [n for n in notes if "over the limit" in n]
    station.close()


@pytest.mark.parametrize("restart", [False, True])
def test_the_jobs_of_one_user_share_a_limit_and_those_of_others_do_not_feel_it(
    restart: bool, loaded: Any, tmp_path: Path
) -> None:
    keeping = daemon.Keeping(job_records=0, user_records=MOST)
    facts = [StreamFacts(JobKey(job_id=str(n)), user=user) for n, user in enumerate((1000, 1000, 1001, None))]
    logs = [Opened(n, StreamId(f"/logs/slurm-{n}.out"), f, 0) for n, f in enumerate(facts)]
    station = opened(tmp_path, loaded, keeping)
    drive = station.drive()
    flood = OOM * 150
    station.run(Polls([*logs, *(said(BANNER, n) for n in range(4)), said(flood), Ticked(NOW)]), drive)
    if restart:
        station.close()
        station = opened(tmp_path, loaded, keeping)
        drive = station.drive()
        places = station.keeper.resumed.reached
        taken_up = [Opened(n, o.id, o.facts, 0, places[n].offset, places[n].line) for n, o in enumerate(logs)]
        station.run(Polls([*taken_up, Ticked(NOW + SECOND)]), drive)
    station.run(Polls([*(said(flood, n) for n in (1, 2, 3)), said(flood, 3), Ticked(NOW + 2 * SECOND)]), drive)

    def kept() -> dict[str, int]:
        query = "SELECT stream_id, count(*) FROM signals WHERE rule = 'cuda.out-of-memory' GROUP BY ALL"
        named = {stream_key(o.id): str(n) for n, o in enumerate(logs)}
        return {named[key]: n for key, n in count(station, query)}

    assert drive.quota is not None
    found = kept()
    assert (found["0"], found["2"], found["3"]) == (150, 150, 300), (
        "others, and jobs of nobody we know, are not touched"
    )
    assert 150 + found["1"] + drive.quota.over == 300
    assert MOST <= 150 + found["1"] + 4 <= MOST + FIRST + MOST // 16 + 4
    assert drive.quota.jobs_over() == 1
    # what an ended job took is free again
    station.run(Polls([Closed(0), JobClosed(facts[0].job), Ticked(NOW + 3 * SECOND)]), drive)
    before = kept()["1"]
    station.run(Polls([said(OOM * 100, 1), Ticked(NOW + 4 * SECOND)]), drive)
    assert kept()["1"] == before + 100
    over = drive.quota.over
    station.run(Polls([Closed(1), JobClosed(facts[1].job)]), drive)
    ((notes,),) = count(station, "SELECT notes FROM attempts WHERE job_id = '1'")
    assert any(f"{over} records over the limit of {MOST} of one user were counted and not kept" in n for n in notes)
    station.close()
