"""What surrounds a watch that runs as a service: its own log, the service manager, numbers, the status, the scheduler, new rules on request.

In: the settings, the parts of a running watch. Out: `Around`, a source around the watch's own: everything here happens between two of its polls, on
the main loop's thread, and never waits. Always holds: without settings nothing of this is there and a watch is as simple as before; a part
that fails is told and does not stop the watch.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from defib import __version__
from defib.adapters.config.load import Config
from defib.adapters.metrics import Labels, MetricsServer, Registry, labels, resident_bytes
from defib.adapters.mounts.source import Mounts
from defib.adapters.reload import Reload
from defib.adapters.selflog import SelfLog
from defib.adapters.show import printable, when
from defib.adapters.status import StatusServer
from defib.adapters.systemd import Notifier
from defib.engine.core import State
from defib.engine.drive import Drive
from defib.engine.ports import Data, SourceItem, Ticked
from defib.engine.words import HEALTH, JobKey, StoreError

PUBLISH_US = 2_000_000
RATE_POINTS = 30  # of a minute
TOLD_MAX = 50
ALARM_S = 600.0
LOOP_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Polled(Protocol):
    """The watch's own source."""

    def poll(self) -> list[SourceItem] | None: ...

    def close(self) -> None: ...


class Scheduler(Protocol):
    """What asks the scheduler."""

    def turn(self, now_us: int) -> list[SourceItem]: ...

    def status(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class Recovering(Protocol):
    """What decides about restarts."""

    def turn(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Parts:
    """What a watch is made of. status: parts of the status that others add (journal, breakers, alarms): name -> what tells it."""

    mounts: Mounts
    drive: Drive
    state: State
    now_us: Callable[[], int]
    folder: str | None = None
    took_over: Callable[[Any], None] = lambda book: None
    scheduler: Scheduler | None = None
    rescue: Recovering | None = None
    status: dict[str, Callable[[], Any]] = field(default_factory=dict)


class Service:
    """Before the watch: the log, the service manager. `begin` with its parts; `around` its source; `close` in the end."""

    def __init__(
        self, config: Config, rules: list[Path], guard: Callable[[], list[Any]] = list, group: int | None = None
    ) -> None:
        self.config, self.log = config, SelfLog(config("log", "level"), config("log", "form"))
        self.registry, self.notifier = Registry(), Notifier()
        self.reload_asked = False
        self._rules, self._guard, self.group = rules, guard, group
        self._parts: Parts | None = None
        self._reload: Reload | None = None
        self._metrics: MetricsServer | None = None
        self._status: StatusServer | None = None
        self._lines, self._published_us, self._began_us = 0, 0, 0
        self._rates: deque[tuple[int, int, int]] = deque(maxlen=RATE_POINTS)
        self._slowest: deque[float] = deque(maxlen=1000)
        self._mounts_told: dict[str, str] = {}
        self._alarms: deque[tuple[float, str]] = deque(maxlen=10)
        self._loop = self.registry.histogram(
            "defib_loop_seconds", "One turn of the main loop, waiting left out.", LOOP_S
        )

    def begin(self, parts: Parts) -> None:
        """The watch stands. Raises StoreError where an address or a socket cannot be had."""
        self._parts, self._began_us = parts, parts.now_us()
        self._reload = Reload(
            parts.drive, self._rules, self.config("policy", "shadow"), self._say, parts.took_over, self._guard
        )
        _register(self.registry, parts, self)
        listen = self.config("metrics", "listen")
        if listen is not None:
            try:
                self._metrics = MetricsServer(listen, self.registry)
            except OSError as e:
                raise StoreError(f"{listen[0]}:{listen[1]}: metrics cannot be answered there: {e.strerror or e}") from e
        if parts.folder is not None:
            self._status = StatusServer(os.path.join(parts.folder, "status.sock"), self.group)
        self.log.info(
            "watching",
            version=__version__,
            config=self.config.path,
            state=parts.folder,
            rules=parts.state.book.hash[:12],
        )
        self._publish(self._began_us)
        self.notifier.tell("READY=1")

    def around(self, source: Polled) -> Around:
        """The source the engine gets."""
        return Around(source, self)

    def turn(self, began_s: float, items: list[SourceItem]) -> list[SourceItem]:
        """After a poll of the watch's source: what the scheduler said goes before its tick."""
        parts = self._parts
        assert parts is not None
        now = parts.now_us()
        if parts.scheduler is not None and items and isinstance(items[-1], Ticked):
            items = [*items[:-1], *parts.scheduler.turn(now), items[-1]]
        if parts.rescue is not None:
            parts.rescue.turn()
        self._lines += sum(i.data.count(b"\n") for i in items if isinstance(i, Data))
        if self._reload is not None:
            if self.reload_asked:
                self.reload_asked = False
                self._reload.ask()
            self._reload.turn(now)
        self.notifier.beat(now)
        if now - self._published_us >= PUBLISH_US:
            self._publish(now)
        return items

    def ask_reload(self) -> None:
        """Load the rules anew, at the next turn: this may come from a signal."""
        self.reload_asked = True

    def turned(self, took_s: float) -> None:
        """One turn of the loop is over."""
        self._loop.observe(took_s)
        self._slowest.append(took_s)

    def alarm(self, text: str) -> None:
        """Something a person must know now. It stands in the status for ten minutes."""
        self.log.error("attention", what=text)
        self.note(text)

    def note(self, text: str) -> None:
        """An alarm that was told elsewhere, for the status."""
        self._alarms.append((time.monotonic(), text))
        if self._status is not None:
            self._status.publish(self.document())

    def alive(self) -> None:
        """The loop stands, but on purpose."""
        if self._parts is not None:
            self.notifier.beat(self._parts.now_us())

    def close(self) -> None:
        """The end."""
        self.notifier.tell("STOPPING=1")
        scheduler = self._parts.scheduler if self._parts is not None else None
        rescue = self._parts.rescue if self._parts is not None else None
        for part in (self._reload, self._metrics, self._status, scheduler, rescue):
            if part is not None:
                part.close()
        self.log.info("ended")

    def document(self) -> dict[str, Any]:
        """The status."""
        parts = self._parts
        assert parts is not None
        now, m = parts.now_us(), parts.mounts
        watches = parts.state.live.watches
        blind = [(j, w) for j, w in watches.items() if w.health == "blind"]
        unread = list(m.unread.items())[:TOLD_MAX]
        memory = {
            "daemon": resident_bytes(),
            "readers": sum(resident_bytes(r.process.pid) for r in m.readers() if r.process.pid),
        }
        out: dict[str, Any] = {
            "version": __version__,
            "pid": os.getpid(),
            "at": when(now),
            "running_s": round((now - self._began_us) / 1e6),
            "jobs": {h: n for h in HEALTH if (n := sum(w.health == h for w in watches.values()))},
            "streams": {
                "open": len(parts.state.streams),
                "troubled": m.troubled,
                "lag_bytes": sum(r.lag for r in m.readers()),
            },
            "rates": self._per_second(),
            "memory": memory,
            "loop": {"slowest_s": round(max(self._slowest, default=0.0), 3)},
            "mounts": [
                {
                    "point": r.name,
                    "kind": r.mount.kind,
                    "state": "reading" if r.polls else "starting",
                    "trouble": r.told or None,
                    "pid": r.process.pid,
                    "followed": r.followed,
                    "lag_bytes": r.lag,
                    "restarts": r.process.deaths,
                    "stuck": r.process.stuck,
                }
                for r in m.readers()
            ],
            "blind": [
                {"job": _name(j), "since": when(now if w.moved_us is None else w.moved_us), "because": w.because}
                for j, w in blind[:TOLD_MAX]
            ],
            "unread": [{"path": printable(os.fsdecode(p)), "why": why} for p, why in unread],
            "unread_count": len(m.unread),
            "alarms": [text for at, text in self._alarms if time.monotonic() - at < ALARM_S],
            "rules": self._reload.status() if self._reload is not None else None,
        }
        if parts.scheduler is not None:
            out["scheduler"] = parts.scheduler.status()
        return out | {name: tell() for name, tell in parts.status.items()}

    def _say(self, level: str, event: str, fields: dict[str, Any]) -> None:
        self.log.say(level, event, **fields)

    def _per_second(self) -> dict[str, float]:
        if len(self._rates) < 2:
            return {"bytes_per_s": 0.0, "lines_per_s": 0.0}
        (at, read, lines), (to, more, later) = self._rates[0], self._rates[-1]
        took = max(1, to - at) / 1e6
        return {"bytes_per_s": round((more - read) / took, 1), "lines_per_s": round((later - lines) / took, 1)}

    def _publish(self, now: int) -> None:
        parts = self._parts
        assert parts is not None
        self._published_us = now
        self._rates.append((now, parts.mounts.bytes_read, self._lines))
        for r in parts.mounts.readers():
            if self._mounts_told.get(r.name, "") != r.told:
                self._mounts_told[r.name] = r.told
                self.log.warning("a mount is not vouched for", mount=r.name, why=r.told) if r.told else self.log.info(
                    "a mount answers again", mount=r.name
                )
        if self._metrics is not None:
            self.registry.publish()
        if self._status is not None:
            self._status.publish(self.document())
        self.log.flush()


@dataclass(slots=True)
class Around:
    """The watch's source with the service's turn after each poll. What lies between two polls is the engine's work."""

    source: Polled
    service: Service
    _left_s: float | None = None

    def poll(self) -> list[SourceItem] | None:
        began = time.monotonic()
        if self._left_s is not None:
            self.service.turned(began - self._left_s)
        items = self.source.poll()
        back = time.monotonic()
        if items is not None:
            items = self.service.turn(back, items)
        self._left_s = back
        return items

    def close(self) -> None:
        self.source.close()


def _register(registry: Registry, parts: Parts, service: Service) -> None:
    """The numbers every watch has. Other parts register theirs with `Service.registry`."""
    m, state = parts.mounts, parts.state

    def healths() -> dict[Labels, float]:
        seen = Counter(w.health for w in state.live.watches.values())
        return {labels(health=h): float(seen[h]) for h in HEALTH}

    def streams() -> dict[Labels, float]:
        troubled = m.troubled
        return {
            labels(state="followed"): float(len(state.streams) - troubled),
            labels(state="troubled"): float(troubled),
        }

    def hung() -> dict[Labels, float]:
        return {labels(mount=r.name): float(bool(r.told)) for r in m.readers()}

    registry.gauge("defib_build_info", "The version, as a label.").set(1, version=__version__)
    registry.gauge("defib_jobs", "Jobs that are watched, by health.", healths)
    registry.gauge("defib_streams", "Logs that are followed.", streams)
    registry.gauge(
        "defib_stream_lag_bytes",
        "Bytes known to stand in logs and not read.",
        lambda: float(sum(r.lag for r in m.readers())),
    )
    registry.gauge("defib_paths_unread", "Paths that are not followed.", lambda: float(len(m.unread)))
    registry.gauge("defib_reader_hung", "1 where the mount's reader does not answer.", hung)
    registry.counter("defib_read_bytes_total", "Bytes of logs read.", lambda: float(m.bytes_read))
    registry.counter("defib_lines_total", "Lines of logs read.", lambda: float(service._lines))
    registry.counter(
        "defib_reader_starts_total",
        "Readers that were started.",
        lambda: float(sum(1 + r.process.deaths for r in m.readers())),
    )
    registry.gauge("process_resident_memory_bytes", "Memory of the main process.", lambda: float(resident_bytes()))
    registry.counter("process_cpu_seconds_total", "CPU time of the main process.", time.process_time)
    started = time.time() - time.monotonic() + time.clock_gettime(time.CLOCK_MONOTONIC)
    registry.gauge("process_start_time_seconds", "When the main process started, Unix time.").set(round(started, 3))
    registry.gauge(
        "defib_readers_resident_memory_bytes",
        "Memory of the readers.",
        lambda: float(sum(resident_bytes(r.process.pid) for r in m.readers() if r.process.pid)),
    )


def _name(job: JobKey) -> str:
    text = job.job_id or job.place
    return f"{text}_{job.array_task}" if job.array_task else text
