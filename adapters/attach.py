"""A service put around a watch that remembers: the scheduler as it is configured, numbers of the journal, SIGHUP.

In: settings, the parts of an open watch. Out: a service that has begun. Always holds: what is not configured is not there.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from defib.adapters.cluster import Cluster, places
from defib.adapters.config.load import Config
from defib.adapters.mounts.source import Mounts
from defib.adapters.rescue import Rescue, checked, rescue_of
from defib.adapters.service import Parts, Service
from defib.adapters.show import when
from defib.adapters.slurm.calls import Commands
from defib.adapters.slurm.reader import Scheduler
from defib.adapters.tail.source import TailSource
from defib.engine.drive import Drive
from defib.engine.roster import Roster
from defib.engine.rulebook import Rulebook


def _journal(k: Any) -> dict[str, Any]:
    """Its part of the status; what is wrong with it is there only while it is."""
    out: dict[str, Any] = {"sequence": k.journal.seq, "durable": k.journal.durable, "bytes": k.journal.size}
    if k.waiting_since_us is not None:
        out["waiting_for_room_since"] = when(k.waiting_since_us)
    if k.kept_long:
        out["not_deleted"] = k.kept_long
    return out


@contextlib.contextmanager
def hang_up(service: Service | None) -> Iterator[None]:
    """SIGHUP to a service with a file: load the rules anew. Without one a terminal has gone, which ends us as ever."""
    if service is None or service.config.path is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, lambda *_: service.ask_reload())
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def serve(service: Service, source: Mounts | TailSource, drive: Drive, k: Any, folder: str, sinks: list[Any]) -> None:
    """Put a service around a watch that remembers. sinks: get what follows from its events."""
    assert isinstance(source, Mounts), "a service has the machine's clock"
    config = service.config

    def took_over(book: Rulebook) -> None:
        k.store.renew(book)
        if isinstance(parts.rescue, Rescue):
            parts.rescue.renew(book)
        k.snapshot()

    parts = Parts(source, drive, drive.state, k.clock.now_us, folder, took_over)
    parts.status["journal"] = lambda: _journal(k)
    quota = drive.quota
    if quota is not None:
        parts.status["limits"] = lambda: (
            {"jobs_over": quota.jobs_over(), "records_not_kept": quota.over} if quota.over else None
        )
        service.registry.gauge(
            "defib_records_not_kept",
            "Records of running jobs over their limit, counted only.",
            lambda: float(quota.over),
        )
    service.registry.gauge("defib_journal_sequence", "Records in the journal.", lambda: float(k.journal.seq))
    service.registry.gauge("defib_journal_bytes", "Size of the journal.", lambda: float(k.journal.size))
    service.registry.gauge(
        "defib_journal_waiting", "1 while the state's disk is full.", lambda: float(k.waiting_since_us is not None)
    )
    if config("slurm", "enabled"):
        parts.scheduler = cluster_of(config, source, service)
        parts.scheduler.before = drive.state.live.told_of()
        parts.rescue = rescue_of(
            checked(config.recovery, config.path or "command line"), folder, drive.state.book, drive.state, parts.scheduler.scheduler.commands,
            k.clock.now_us, lambda: source.behind, service.alarm, service.group, k.store.beside,
        )  # fmt: skip
        parts.scheduler.heard = parts.rescue.heard
        parts.status["recovery"] = parts.rescue.status
        sinks.append(parts.rescue)
    service.begin(parts)


def cluster_of(config: Config, source: Mounts, service: Service) -> Cluster:
    """The scheduler as it is configured."""
    commands = Commands(
        config("slurm", "prefix"), config("slurm", "shell"), config("slurm", "bin_dir"), config("slurm", "conf")
    )
    scheduler = Scheduler(commands, config("watch", "cluster"), config("slurm", "interval"))
    roster = Roster(places(config("slurm", "templates"), config("watch", "roots")), settle_us=config("slurm", "settle"))
    made = Cluster(
        scheduler,
        roster,
        source,
        frozenset(config("slurm", "users")),
        frozenset(config("slurm", "partitions")),
        lambda event, fields: service.log.warning(event, **fields),
        alarm=service.alarm,
    )
    service.registry.counter("defib_scheduler_reads_total", "Questions to the scheduler.", lambda: float(made.reads))
    service.registry.counter(
        "defib_scheduler_failures_total", "Of them, those that failed.", lambda: float(made.failures)
    )
    service.registry.gauge("defib_scheduler_jobs", "Jobs the scheduler knows.", lambda: float(made.jobs))
    return made
