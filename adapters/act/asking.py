"""Blocking questions to the scheduler, asked by a thread of its own, so that a controller that hangs stops nobody who reads logs.

In: how to run Slurm's tools, the observer's clock. Out: `Fresh` for each look, `Survey`s. Always: one question at a time; it only reads; a question
that failed is answered with "not ok", never with silence.
"""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from defib.adapters.slurm.calls import Commands
from defib.adapters.slurm.reader import Scheduler
from defib.engine.jobs import AttemptKey, ClusterFacts, NodeFacts
from defib.engine.recover.events import Fresh

DEADLINE_S = 25.0
WAITING_MAX = 256
PING_S = 1.0
COUNTS = (re.compile(rb"^Server thread count:\s*(\d+)", re.M), re.compile(rb"^Agent queue size:\s*(\d+)", re.M))
RESERVATION = re.compile(rb"StartTime=(\d{1,12}) EndTime=(\d{1,12})")
MAINTENANCE = re.compile(rb"[= ,]Flags=(?:[A-Z_]+,)*MAINT(?:[, ]|$)")


@dataclass(frozen=True, slots=True)
class Survey:
    """The cluster and its controller now. swift: it answered a ping below a second. backlog: requests it works on or has to send; None unknown.

    maintenance: (from, to) of reservations for maintenance, None where they could not be read.
    """

    cluster: ClusterFacts | None
    nodes: tuple[NodeFacts, ...] | None
    swift: bool
    backlog: int | None
    maintenance: tuple[tuple[int, int], ...] | None


@dataclass(slots=True)
class Asker:
    """Begin a question with `look` or `survey`; `poll` gives what is answered. `close` when done."""

    commands: Commands
    now_us: Callable[[], int]
    name: str | None = None
    _todo: queue.Queue[tuple[AttemptKey, str] | str] = field(default_factory=lambda: queue.Queue(WAITING_MAX))
    _done: queue.SimpleQueue[Fresh | Survey] = field(default_factory=queue.SimpleQueue)
    _surveying: bool = False
    _thread: threading.Thread | None = None

    def look(self, attempt: AttemptKey, label: str) -> None:
        """Read one job afresh."""
        self._ask((attempt, label))

    def survey(self) -> None:
        """Ask for the cluster, its nodes, its load; nothing where that is being asked already."""
        if not self._surveying:
            self._surveying = True
            self._ask("survey")

    def poll(self) -> list[Fresh | Survey]:
        """What was answered since."""
        found: list[Fresh | Survey] = []
        while True:
            try:
                answer = self._done.get_nowait()
            except queue.Empty:
                return found
            self._surveying = self._surveying and not isinstance(answer, Survey)
            found.append(answer)

    def close(self) -> None:
        if self._thread is not None:
            self._ask("end")
            self._thread.join(2 * DEADLINE_S)
            self._thread = None

    def _ask(self, what: tuple[AttemptKey, str] | str) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="defib-asker", daemon=True)
            self._thread.start()
        try:
            self._todo.put_nowait(what)
        except queue.Full:  # the scheduler answers nobody; the machine asks again
            if what == "survey":
                self._surveying = False

    def _work(self) -> None:
        scheduler = Scheduler(self.commands, self.name, deadline_s=DEADLINE_S)
        while (what := self._todo.get()) != "end":
            if isinstance(what, tuple):
                self._done.put(self._look(scheduler, *what))
            else:
                self._done.put(self._survey(scheduler))

    def _look(self, scheduler: Scheduler, attempt: AttemptKey, label: str) -> Fresh:
        begun = self.now_us()
        try:
            read = scheduler.read([label], begun, DEADLINE_S)
        except Exception:  # an answer of an unforeseen kind is no answer; the thread goes on
            return Fresh(begun, begun, attempt, False)
        return Fresh(self.now_us(), begun, attempt, read.ok, read.jobs)

    def _survey(self, scheduler: Scheduler) -> Survey:
        try:
            cluster, _ = scheduler.cluster(DEADLINE_S)
            nodes, _ = scheduler.nodes(DEADLINE_S)
            swift = cluster is not None and cluster.up is True and (cluster.ping_s or 0.0) < PING_S
            return Survey(cluster, nodes, swift, self._backlog(), self._maintenance())
        except Exception:  # as above
            return Survey(None, None, False, None, None)

    def _backlog(self) -> int | None:
        done = self.commands.run("sdiag", deadline_s=DEADLINE_S)
        found = [c.search(done.stdout) for c in COUNTS]
        return sum(int(m[1]) for m in found if m) if done.good and all(found) else None

    def _maintenance(self) -> tuple[tuple[int, int], ...] | None:
        done = self.commands.run("scontrol", "-o", "show", "reservation", deadline_s=DEADLINE_S)
        if not done.good:
            return None
        return windows(done.stdout)


def windows(printed: bytes) -> tuple[tuple[int, int], ...] | None:
    """Times of the maintenance reservations in `scontrol -o show reservation`, in microseconds; None where one cannot be read."""
    found = []
    for line in filter(None, printed.splitlines()):
        if not line.startswith((b"ReservationName=", b"No reservations")):
            return None  # not what scontrol prints: nothing is known of maintenance
        if MAINTENANCE.search(line):
            times = RESERVATION.search(line)
            if times is None:
                return None
            found.append((int(times[1]) * 1_000_000, int(times[2]) * 1_000_000))
    return tuple(found)
