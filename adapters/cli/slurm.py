"""`defib slurm look`: what the scheduler says now, for whoever sets defib up. It only reads."""

from __future__ import annotations

import os
import shlex
import sys
import time
from typing import Any

from defib.adapters.cli.tables import as_json, table, write_json
from defib.adapters.show import cut, printable, safe, when
from defib.adapters.slurm import paths
from defib.adapters.slurm.calls import Commands
from defib.adapters.slurm.reader import Scheduler
from defib.engine.jobs import ClusterFacts, ClusterRead, JobFacts, LogPath

SCHEMA = "defib/slurm-look/1"
NAME_MAX = 24


def look(args: Any) -> int:
    """`defib slurm look`: one read of everything. 3 when the scheduler could not be read."""
    commands = Commands(
        tuple(shlex.split(args.prefix or "")), args.shell, args.bin_dir, args.conf and os.path.abspath(args.conf)
    )
    scheduler = Scheduler(commands, args.cluster, deadline_s=args.deadline / 1e6)
    roots = tuple(os.fsencode(os.path.realpath(r)) for r in args.root) or (b"/",)
    cluster, troubles = scheduler.cluster(args.deadline / 1e6)
    read = _once(scheduler)
    shown = [(j, paths.logs(j, tuple(args.template), roots)) for j in sorted(read.jobs, key=_order)]
    found = [*troubles, *read.troubles, *(t for _, logs in shown for t in logs.troubles)]
    if args.json:
        write_json(_document(cluster, read, [(j, logs.paths) for j, logs in shown], found))
    else:
        _print(cluster, [(j, logs.paths) for j, logs in shown], found, ok=read.ok)
    return 0 if read.ok else 3


def template(text: str) -> str:
    """A `--template`. Raises ValueError saying what is wrong with it."""
    if (fault := paths.template_fault(text)) is not None:
        raise ValueError(fault)
    return text


def _once(scheduler: Scheduler) -> ClusterRead:
    try:
        while (read := scheduler.poll(time.time_ns() // 1000)) is None:
            time.sleep(0.02)
    finally:
        scheduler.close()
    return read


def _order(j: JobFacts) -> tuple[int, int, int]:
    return j.het_job_id or j.array_job_id or j.job_id, -1 if j.array_task is None else j.array_task, j.job_id


def _version(cluster: ClusterFacts) -> str:
    """As Slurm writes it: 22.05.8."""
    return ".".join(f"{n:02d}" if i < 2 else str(n) for i, n in enumerate(cluster.version)) or "unknown"


def _logs(found: tuple[LogPath, ...]) -> list[str]:
    return [safe(printable(os.fsdecode(p.path))) for p in found]


def _document(
    cluster: ClusterFacts | None,
    read: ClusterRead,
    jobs: list[tuple[JobFacts, tuple[LogPath, ...]]],
    troubles: list[str],
) -> Any:
    return as_json(
        {
            "schema": SCHEMA,
            "ok": read.ok,
            "took_s": read.took_s,
            "cluster": None if cluster is None else {
                "name": cluster.name, "version": _version(cluster), "up": cluster.up,
                "requeue_delay_s": cluster.requeue_delay_s, "min_job_age_s": cluster.min_job_age_s,
                "append": cluster.append, "sluids": cluster.sluids,
            },
            "jobs": [
                {
                    "job": j.label, "state": j.told.state, "held": j.held, "reason": j.reason, "restarts": j.restarts, "user": j.user,
                    "uid": j.uid, "name": j.name, "partition": j.partition, "nodes": list(j.nodes), "submitted": when(j.submit_us),
                    "tasks_not_split": j.array_pending, "het_job": j.het_job_id, "logs": _logs(logs),
                }
                for j, logs in jobs
            ],
            "troubles": troubles,
        }
    )  # fmt: skip


def _print(
    cluster: ClusterFacts | None, jobs: list[tuple[JobFacts, tuple[LogPath, ...]]], troubles: list[str], *, ok: bool
) -> None:
    if cluster is not None:
        delay = "unknown" if cluster.requeue_delay_s is None else f"{cluster.requeue_delay_s:g} s"
        up = "up" if cluster.up else "NOT UP"
        print(f"cluster {safe(cluster.name)}, Slurm {_version(cluster)}, controller {up}, requeue delay {delay}")
    rows = [
        (
            f"{j.label} (tasks waiting)" if j.array_pending else j.label, j.told.state + (" held" if j.held else ""), j.restarts, j.user,
            cut(safe(j.name), NAME_MAX), len(j.nodes), "; ".join(_logs(logs)) or None,
        )
        for j, logs in jobs
    ]  # fmt: skip
    if rows:
        table(("job", "state", "restarts", "user", "name", "nodes", "log"), rows)
    elif ok:
        print("no jobs")
    for trouble in troubles:
        print(f"note: {safe(trouble)}", file=sys.stderr)
