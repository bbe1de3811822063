"""The watch that remembers: a journal, the history made from it, and an answer to every question meanwhile, in one state folder.

`open_station` takes the folder: it locks the journal, folds what is in it, brings the history up to date and begins to answer questions.
`Station.kept` gives a source the marks it left behind; `Station.run` drives any source whose items may hold `Marked`; `close` ends in order.

Always holds: what a poll brought is in the journal before anything is made of it; the history and the screen are told afterwards; on a full
disk nothing is read, it is said, and it goes on by itself. Ending leaves running jobs open: the next start goes on with them.

    DIR/journal/              segments, lock, snapshots, reserve (mode 0700)
    DIR/history.duckdb        the history
    DIR/history.duckdb.sock   where it is asked while a watch holds it
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from defib.adapters import rulefiles, sqlwire
from defib.adapters.act import audit
from defib.adapters.acts import Acts, load
from defib.adapters.attach import hang_up, serve
from defib.adapters.bringup import Hooks, bring_up
from defib.adapters.history import NAME
from defib.adapters.journal import place, snapshot
from defib.adapters.journal.codec import EVENTS, encode
from defib.adapters.journal.resume import Resumed, fold, marks_of
from defib.adapters.journal.segments import DamageError, identity_of, segments
from defib.adapters.journal.writer import Journal
from defib.adapters.journal.writer import salvage as cut_at
from defib.adapters.livestore import FLUSH_BYTES, LiveStore
from defib.adapters.room import FullError
from defib.adapters.service import Service
from defib.adapters.sqlserver import Limits, SqlServer
from defib.adapters.tail.clock import Clock, SystemClock
from defib.adapters.wire import Ears, Fan, Healths, Interrupt, Tail, Watched, WatchOptions
from defib.engine.core import Effect, Event, JobJudged, State
from defib.engine.drive import Drive
from defib.engine.observe import Observer
from defib.engine.ports import Marked, Reached, Sink, Source
from defib.engine.quota import SOURCE as QUOTA
from defib.engine.quota import Quota
from defib.engine.words import DefibError, StoreError

FLUSH_US = 1_000_000
QUIET_US = 30_000_000  # a commit that changed nothing anybody can see waits so long
SPARING = 100  # the loop stands still for a snapshot; between two of them lies so many times what the last one took
FULL_US = 5_000_000  # between two tries on a full disk
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Keeping:
    """How much is kept. most_bytes: of the journal, older segments of closed jobs go beyond it; snapshot_*: when a snapshot is due."""

    most_bytes: int = 20 * 1024**3
    segment_bytes: int = 64 * 1024**2
    ballast_bytes: int = 16 * 1024**2
    snapshot_bytes: int = 32 * 1024**2
    snapshot_us: int = 600_000_000
    limits: Limits = field(default_factory=Limits)
    job_records: int = 5_000_000  # of one job; what is beyond is counted. 0: no limit
    user_records: int = 50_000_000  # of the running jobs of one user, where a scheduler names him


@dataclass(slots=True)
class Keeper:
    """The `Log` and the `Sink` of a drive: journal first, then the history, then whoever listens."""

    journal: Journal
    store: LiveStore
    resumed: Resumed
    clock: Clock
    hooks: Hooks
    keeping: Keeping
    ears: Sink
    snapped_us: int = 0
    waiting_since_us: int | None = None  # for room on the disk
    kept_long: str = ""  # why old segments could not be deleted
    _events: Sequence[Event] = ()
    _flushed_us: int = 0
    _since_snapshot: int = 0
    _snapshot_cost_us: int = 0

    def commit(self, events: Sequence[Any], marks: Sequence[Marked], reached: Sequence[Reached]) -> None:
        payload = encode(events, marks, reached)
        seq = self.journal.append(EVENTS, payload)
        chain = self.journal.chain  # before syncing, which may begin a segment with records of its own
        self.patiently(self.journal.sync)
        self._since_snapshot += len(payload)
        self._events = tuple(events)
        self.resumed.note(seq, chain, events, marks, reached)

    def apply(self, effects: list[object]) -> None:
        self.store.take(self.resumed.seq, self._events, effects, self.resumed.state, self.resumed.chain)
        now = self.clock.now_us()
        waited = now - self._flushed_us
        if (self.store.due and waited >= FLUSH_US) or waited >= QUIET_US or self.store.waiting_bytes >= FLUSH_BYTES:
            self.flush()
        if effects:
            self.ears.apply(effects)
        since = now - self.snapped_us
        due = self._since_snapshot >= self.keeping.snapshot_bytes or since >= self.keeping.snapshot_us
        if self._since_snapshot and due and since >= SPARING * self._snapshot_cost_us:
            self.snapshot()

    def flush(self) -> None:
        """The history has everything up to the last commit. Raises StoreError."""
        self.patiently(self.store.flush)
        self._flushed_us = self.clock.now_us()

    def snapshot(self) -> None:
        """Shorten the next start, and let go of what need not be kept. A snapshot that cannot be written is no fault."""
        self.flush()
        began, self._since_snapshot = self.clock.now_us(), 0
        value = (self.resumed, self.store.board)
        with contextlib.suppress(OSError):
            snapshot.save(self.journal.folder, self.resumed.seq, value, self.resumed.state.book, self.journal.identity)
        self.snapped_us = self.clock.now_us()
        self._snapshot_cost_us = self.snapped_us - began
        self._forget()

    def _forget(self) -> None:
        before = min([*self.resumed.opened.values(), self.resumed.seq])
        try:
            if self.journal.forgettable(before, self.keeping.most_bytes):
                self._forget_before(before)
        except FullError:
            return
        except StoreError as e:  # a journal that grows is better than a watch that ends
            if self.kept_long != str(e):
                self.kept_long = str(e)
                self.hooks.alarm(f"old segments of the journal are kept, they cannot be deleted: {e}")
        else:
            self.kept_long = ""

    def _forget_before(self, before: int) -> None:
        # Marks of closed logs would go with the records that hold them, and those logs would be read as new ones.
        seq = self.journal.append(EVENTS, encode([], marks_of(self.resumed), []))
        self.resumed.seq, self.resumed.chain = seq, self.journal.chain
        self.patiently(self.journal.sync)
        self.store.at(seq, self.resumed.chain)
        self.journal.forget(before, self.keeping.most_bytes)

    def patiently(self, act: Callable[[], T]) -> T:
        """Do it, however long the disk stays full. Asked to end meanwhile: give up the reserve, try once more. Raises StoreError."""
        told = False
        while True:
            try:
                done = act()
            except FullError as e:
                if not told:
                    told, self.waiting_since_us = True, self.clock.now_us()
                    self.hooks.alarm(f"{e}; nothing is read until there is room, nothing acknowledged is lost")
                if self.hooks.asked():
                    self.journal.make_room()
                    return act()
                self.clock.sleep_us(FULL_US)
                continue
            if told:
                self.waiting_since_us = None
                self.journal.keep_room()
                self.hooks.alarm("there is room again; going on")
            return done


@dataclass(slots=True)
class Station:
    """An open state folder. `kept` before sources are made, `run` once, `close` always."""

    keeper: Keeper
    server: SqlServer | None
    observer: Observer
    state: State
    orderly: bool = True  # the engine knows nothing that is not in the journal

    def kept(self, source: str) -> dict[bytes, bytes]:
        """The marks a source left behind, by key."""
        return self.keeper.resumed.kept(source)

    def drive(self) -> Drive:
        """The loop that `run` turns."""
        k = self.keeper
        most = k.keeping.job_records, k.keeping.user_records
        quota = Quota(self.state, *most) if any(most) else None
        if quota is not None:
            quota.restore(k.resumed.kept(QUOTA))
        r = k.resumed
        return Drive(self.observer, self.state, k, log=k, resumed=r.streams, next_stream=r.next_stream, quota=quota)

    def run(self, source: Source, drive: Drive | None = None) -> None:
        """Until the source is done or the hooks ask to end. Raises StoreError."""
        self.orderly = False
        (drive or self.drive()).run(_Lasting(source, self.keeper.hooks.asked))
        self.orderly = True

    def close(self) -> None:
        """End in order: the history is brought up to date, and a snapshot is left where nothing went wrong. Raises StoreError."""
        k = self.keeper
        try:
            if self.server is not None:
                self.server.close()
            if self.orderly:
                k.snapshot()
        except StoreError:
            k.store.abandon()
            raise
        else:
            k.store.close()
        finally:
            k.journal.close()


@dataclass(slots=True)
class _Lasting:
    """A source that simply ends when that is asked for: jobs stay open."""

    source: Source
    asked: Callable[[], bool]

    def poll(self) -> Any:
        return None if self.asked() else self.source.poll()

    def close(self) -> None:
        self.source.close()


def open_station(
    folder: str, loaded: Any, ears: Sink, hooks: Hooks, clock: Clock | None = None, keeping: Keeping | None = None
) -> Station:
    """Take a state folder. loaded: the rules. ears: hears effects after they are safe. Raises StoreError with a mend."""
    keeping = keeping or Keeping()
    place.make_folder(folder)
    place.check_folder(folder, private=False)
    if keeping.limits.group is not None:  # the group may reach the socket, and nothing else
        os.chown(folder, -1, keeping.limits.group)
        os.chmod(folder, 0o710)  # noqa: S103 - entering is all the group may do
    journal = Journal(os.path.join(folder, "journal"), keeping.segment_bytes, keeping.ballast_bytes)
    store: LiveStore | None = None
    try:
        for text in journal.told:
            hooks.alarm(text)
        store, resumed = bring_up(os.path.join(folder, NAME), journal, loaded.book, hooks, clock or SystemClock())
        clock = clock or SystemClock(resumed.state.live.now_us or 0)
        keeper = Keeper(journal, store, resumed, clock, hooks, keeping, ears, snapped_us=clock.now_us())
        store.flush()  # a disk that is full from the start is told to whoever starts us, not waited out
        if not journal.reserved:
            hooks.alarm("there is no room to keep in reserve: the disk is nearly full")
        server = SqlServer(sqlwire.socket_of(os.path.join(folder, NAME)), store.cursor, keeping.limits)
    except BaseException as e:
        if store is not None:
            store.abandon()
        with contextlib.suppress(DefibError):
            journal.close()
        if isinstance(e, FullError):
            raise FullError(f"{e}\n    mend: make room on its disk, then start again") from e
        raise
    return Station(keeper, server, Observer(loaded.book, loaded.databases), resumed.state)


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild came to. seq: the last record; notes: what was salvaged and where the rest is."""

    seq: int = 0
    jobs: int = 0
    running: int = 0
    notes: list[str] = field(default_factory=list)


def rebuild(folder: str, db: str, loaded: Any, salvage: bool = False) -> Rebuilt:
    """Make a new history from the journal in a state folder, reading only. salvage: up to a damage, and put what stands behind it aside.

    Raises StoreError, DamageError; a history that was only begun is removed.
    """
    journal = os.path.join(folder, "journal")
    if os.path.lexists(db):
        raise StoreError(f"{db}: is there already\n    mend: name a new file")
    done, identity = Rebuilt(), identity_of(journal)
    store = LiveStore(db, loaded.book, identity)

    def take(seq: int, events: Sequence[Event], effects: Sequence[Effect], state: State, chain: bytes) -> None:
        store.take(seq, events, effects, state, chain)
        done.seq, done.jobs = seq, done.jobs + sum(isinstance(e, JobJudged) for e in effects)
        if store.waiting_bytes >= FLUSH_BYTES:
            store.flush()

    resumed = Resumed(State(loaded.book))
    try:
        try:
            fold(journal, resumed, take)
        except DamageError as e:
            if not salvage:
                raise
            kept = cut_at(journal, e)
            done.notes = [str(e).splitlines()[0], *(f"put aside: {os.path.basename(path)}" for path in kept)]
        done.notes += _acts(store, os.path.join(folder, "actions"), salvage)
        store.close()
    except BaseException:
        store.abandon()
        for path in (db, db + ".wal"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        raise
    done.running = len(resumed.state.jobs)
    return done


def _acts(store: LiveStore, folder: str, salvage: bool) -> list[str]:
    """What recovery decided and did, into a new history, where it was ever on. The audit itself is left as it is. Raises StoreError, DamageError."""
    if not segments(folder):
        return []
    acts = store.beside = Acts(store.meta)
    try:
        load(acts, identity_of(folder), audit.written(folder), store.flush)
    except DamageError as e:
        if not salvage:
            raise
        return [str(e).splitlines()[0]]
    return []


@dataclass(slots=True)
class _Hooks:
    """Of the command line: signals end it, alarms go where `say` puts them. beat: called while the loop waits for room on the disk."""

    interrupt: Interrupt
    say: Callable[[str], None]
    beat: Callable[[], None]

    def asked(self) -> bool:
        self.beat()
        return self.interrupt.asked is not None

    def alarm(self, text: str) -> None:
        self.say(text)


def _nothing() -> None:
    """Nobody is to be told that we are alive."""


def watch(
    options: WatchOptions,
    folder: str,
    ears: Ears,
    say: Callable[[str], None],
    keeping: Keeping | None = None,
    clock: Clock | None = None,
    service: Service | None = None,
) -> Watched:
    """Follow logs with a memory until Ctrl-C or SIGTERM (running jobs stay open) or idleness (they are judged). Raises RuleError, StoreError."""
    from defib.adapters.tail.position import SOURCE
    from defib.adapters.tail.session import Session

    with Interrupt(signal.SIGINT, signal.SIGTERM) as interrupt, hang_up(service):
        outcome, fan, tail = Watched(), Fan([], ears.judged), Tail(options, clock)
        try:
            loaded = rulefiles.load(options.rules)
            station = open_station(
                folder, loaded, fan, _Hooks(interrupt, say, service.alive if service else _nothing), clock, keeping
            )
        except BaseException:
            tail.close()
            raise
        try:
            k, state = station.keeper, station.state
            fan.paths.update({n: s.id.path for n, s in state.streams.items()})
            healths = Healths(state, outcome.healths, lambda e: ears.changed(e, fan.paths), ears.logged)
            outcome.healths.update({job: w.health for job, w in state.live.watches.items()})
            ears.resumed(outcome.healths)
            fan.sinks.append(healths)
            source = tail.begin(loaded.book, station.kept(SOURCE), k.clock)
            outcome.unread = source.unread

            def between() -> None:
                healths.greet()
                ears.polled(outcome.unread)

            session = Session(source, lambda: False, between, options.idle_us)
            try:
                if service is None:
                    station.run(session)
                else:
                    drive = station.drive()
                    serve(service, source, drive, k, folder, fan.sinks)
                    station.run(service.around(session), drive)
            finally:
                session.close()
        finally:
            tail.close()
            if service is not None:
                service.close()
            station.close()
        outcome.signal = interrupt.asked
    return outcome
