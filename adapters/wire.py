"""The composition root: options -> assembled parts. Nothing else knows which adapter is used for what."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from defib.adapters import rulefiles
from defib.engine.identity import Known

if TYPE_CHECKING:
    from defib.adapters.logfiles import Unread
    from defib.adapters.mounts.source import Mounts
    from defib.adapters.tail.clock import Clock
    from defib.adapters.tail.files import SystemFiles
    from defib.adapters.tail.limits import Limits
    from defib.adapters.tail.source import TailSource
    from defib.engine.core import HealthChanged, State
    from defib.engine.rulebook import Rulebook
    from defib.engine.words import AttemptVerdict, JobKey


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What a replay is asked to do. db ":memory:" keeps nothing."""

    paths: list[str]
    db: str
    rules: list[Path] = field(default_factory=list)
    cluster: str | None = None
    block_bytes: int = 1024 * 1024
    batch_bytes: int = 4 * 1024 * 1024
    verify: bool = False


@dataclass(slots=True)
class Outcome:
    """What a replay found. interrupted: Ctrl-C came; whole jobs up to then are kept."""

    attempts: int = 0
    files: int = 0
    bytes_read: int = 0
    unread: list[Unread] = field(default_factory=list)
    interrupted: bool = False
    verdicts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Fan:
    """Effects go to every sink; judged attempts also to a callback with their streams' paths."""

    sinks: list[Any]
    tell: Callable[[AttemptVerdict, dict[int, str]], None]
    paths: dict[int, str] = field(default_factory=dict)

    def apply(self, effects: list[object]) -> None:
        from defib.engine.core import JobJudged, StreamSeen

        for sink in self.sinks:
            sink.apply(effects)
        for e in effects:
            if isinstance(e, StreamSeen):
                self.paths[e.stream] = e.id.path
            elif isinstance(e, JobJudged):
                for a in e.attempts:
                    self.tell(a, self.paths)
                for n in {n for a in e.attempts for n in a.streams}:
                    del self.paths[n]


class Interrupt:
    """Ctrl-C that waits for a safe place: raised inside a library call it could come out as that library's own error.

    The first one is noted and acted on between two blocks; a second one strikes at once. Other signals are only noted.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self.asked: int | None = None  # the signal that came last
        self._numbers = numbers or (signal.SIGINT,)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {n: signal.signal(n, self._note) for n in self._numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, _frame: object) -> None:
        if self.asked == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.asked = number


def replay(
    options: ReplayOptions,
    tell: Callable[[AttemptVerdict, dict[int, str]], None],
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Read finished logs into a history. tell: each judged attempt; progress: (bytes read, bytes in all).

    Raises RuleError, StoreError. Unreadable inputs end up in the outcome.
    """
    from defib.adapters.archive import Archive
    from defib.adapters.duck import DuckStore
    from defib.engine.core import State
    from defib.engine.drive import Drive
    from defib.engine.observe import Observer
    from defib.engine.words import StoreError

    interrupt = Interrupt()
    loaded = rulefiles.load(options.rules)
    source = Archive(options.paths, loaded.book.paths, Known(options.cluster), options.block_bytes)
    source.open()
    outcome = Outcome(files=len(source.files), unread=source.unread)
    # ':memory:' keeps nothing, so nothing is stored: attempts are told and forgotten, and memory stays flat.
    store = DuckStore(options.db, loaded.book) if options.db != ":memory:" else None

    def told(a: AttemptVerdict, paths: dict[int, str]) -> None:
        outcome.attempts += 1
        outcome.verdicts[a.verdict] = outcome.verdicts.get(a.verdict, 0) + 1
        tell(a, paths)

    def read(_stream: int, n: int) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        outcome.bytes_read += n
        if progress is not None:
            progress(outcome.bytes_read, source.total_bytes)

    drive = Drive(
        Observer(loaded.book, loaded.databases),
        State(loaded.book),
        Fan([store] if store else [], told),
        options.batch_bytes,
        read,
        options.verify,
    )
    try:
        with interrupt:
            drive.run(source)
            if store is not None:
                store.flush()
    except KeyboardInterrupt:
        outcome.interrupted = True
        source.close()
    except BaseException:
        if store is not None:
            with contextlib.suppress(StoreError):  # the first error is the one to tell
                store.close()
        raise
    if store is not None:
        store.close()
    return outcome


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a watch is asked to do. every_us: between two looks at a log that grows; idle_us: end when nothing was written for so long."""

    paths: list[str]
    rules: list[Path] = field(default_factory=list)
    cluster: str | None = None
    every_us: int = 10_000_000
    idle_us: int | None = None
    roots: tuple[str, ...] = ()  # beneath which a scheduler may name logs
    silent_us: int = 20_000_000  # a mount that has not answered for so long has hung
    limits: Limits | None = None


@dataclass(slots=True)
class Watched:
    """What a watch came to. healths: job -> health when it ended; unread: paths that are not followed, and why; signal: what ended it."""

    healths: dict[JobKey, str] = field(default_factory=dict)
    unread: dict[bytes, str] = field(default_factory=dict)
    signal: int | None = None


@dataclass(slots=True)
class Healths:
    """A sink that tells every job once when it is first seen (`was` is empty then) and at every change of its health."""

    state: State
    seen: dict[JobKey, str]
    tell: Callable[[HealthChanged], None]

    def apply(self, effects: list[object]) -> None:
        from defib.engine.core import HealthChanged

        for e in effects:
            if isinstance(e, HealthChanged):
                known = e.job in self.seen
                self.seen[e.job] = e.health
                self.tell(e if known else replace(e, was=""))

    def greet(self) -> None:
        """Tell of the jobs whose health has not changed since they appeared."""
        from defib.engine.core import HealthChanged

        now = self.state.live.now_us
        for job, w in self.state.live.watches.items() if now is not None else ():
            if job not in self.seen:
                self.apply([HealthChanged(job, w.attempt, "", w.health, now or 0, w.because, w.unwell)])


@dataclass(frozen=True, slots=True)
class Ears:
    """Who hears of a watch. changed: with the paths of streams. polled: before every poll, with what is not followed so far; what it raises
    ends the watch."""

    changed: Callable[[HealthChanged, dict[int, str]], None]
    judged: Callable[[AttemptVerdict, dict[int, str]], None]
    polled: Callable[[dict[bytes, str]], None]


class Tail:
    """The logs of a watch as a live source: read by processes of their own, one per mount, which start while the rules are being read; or,
    with a clock of the caller's own (which no other process could share), by this one."""

    def __init__(self, options: WatchOptions, clock: Clock | None) -> None:
        from defib.adapters.mounts.source import Mounts
        from defib.adapters.tail.clock import SystemClock

        self._options, self._clock = options, clock
        self._mounts: Mounts | None = None
        if clock is None:
            self._mounts = Mounts(map(absolute, options.paths), SystemClock(), map(os.fsencode, options.roots))
        self._files: SystemFiles | None = None

    def begin(
        self, book: Rulebook, kept: Mapping[bytes, bytes] | None = None, clock: Clock | None = None
    ) -> Mounts | TailSource:
        """The source. kept: marks of an earlier run, by path (None: nobody keeps any); clock: one that goes on where that run's stood."""
        from defib.adapters.tail.pace import looking

        pace = looking(self._options.every_us)
        if self._mounts is not None:
            from defib.adapters.mounts.router import Setup
            from defib.adapters.tail.limits import Limits

            limits = self._options.limits or Limits()
            setup = Setup(book.paths, self._options.cluster, pace, limits, self._options.silent_us)
            self._mounts.begin(setup, kept, clock)
            return self._mounts
        from defib.adapters.tail.files import SystemFiles
        from defib.adapters.tail.roots import rooted
        from defib.adapters.tail.source import TailSource

        assert self._clock is not None
        watches, roots = rooted(self._options.paths)
        self._files = SystemFiles(roots)
        known = Known(self._options.cluster)
        return TailSource(watches, book.paths, self._files, clock or self._clock, known, pace, kept=kept)

    def close(self) -> None:
        if self._mounts is not None:
            self._mounts.close()
        if self._files is not None:
            self._files.shut()


def absolute(path: str) -> bytes:
    """A path as it is named, from the root on. Nothing is looked up."""
    return os.path.join(os.fsencode(os.getcwd()), os.fsencode(path))


def watch(options: WatchOptions, ears: Ears, clock: Clock | None = None) -> Watched:
    """Follow logs until Ctrl-C, SIGTERM or idleness. It only reads files: no command is run, nothing is written. Raises RuleError."""
    from defib.adapters.tail.session import Session
    from defib.engine.core import State
    from defib.engine.drive import Drive
    from defib.engine.observe import Observer

    with Interrupt(signal.SIGINT, signal.SIGTERM) as interrupt:
        tail = Tail(options, clock)
        try:
            loaded = rulefiles.load(options.rules)
            source = tail.begin(loaded.book)
        except BaseException:
            tail.close()
            raise
        state, outcome = State(loaded.book), Watched()
        outcome.unread = source.unread
        fan = Fan([], ears.judged)
        healths = Healths(state, outcome.healths, lambda e: ears.changed(e, fan.paths))
        fan.sinks.append(healths)

        def between() -> None:
            healths.greet()
            ears.polled(outcome.unread)

        session = Session(source, lambda: interrupt.asked is not None, between, options.idle_us)
        try:
            Drive(Observer(loaded.book, loaded.databases), state, fan).run(session)
        finally:
            session.close()
            tail.close()
        outcome.signal = interrupt.asked
    return outcome
