"""The composition root: options -> assembled parts. Nothing else knows which adapter is used for what."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from defib.adapters import rulefiles
from defib.engine.identity import Known

if TYPE_CHECKING:
    from defib.adapters.archive import Archive
    from defib.adapters.logfiles import Unread
    from defib.adapters.mounts.source import Mounts
    from defib.adapters.parts import Done
    from defib.adapters.rulefiles import LoadedRules
    from defib.adapters.shards import Task
    from defib.adapters.tail.clock import Clock
    from defib.adapters.tail.files import SystemFiles
    from defib.adapters.tail.limits import Limits
    from defib.adapters.tail.source import TailSource
    from defib.engine.core import HealthChanged, LogTold, State
    from defib.engine.rulebook import Rulebook
    from defib.engine.words import AttemptVerdict, JobKey

SAME_WISH_S = 0.3


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
    scheduler: str | None = None  # where shares of it are read (`backfill.where`); None: in this process


@dataclass(slots=True)
class Outcome:
    """What a replay found. interrupted: Ctrl-C came; whole jobs up to then are kept. empty: files without a byte."""

    attempts: int = 0
    files: int = 0
    bytes_read: int = 0
    unread: list[Unread] = field(default_factory=list)
    interrupted: bool = False
    verdicts: dict[str, int] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)


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

    The first one is noted and acted on between two blocks; a second one strikes at once, unless it comes so soon that it is the same wish:
    `timeout` and its like signal a process and then its whole group. Other signals are only noted.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self.asked: int | None = None  # the signal that came last
        self._at_s = 0.0
        self._numbers = numbers or (signal.SIGINT,)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {n: signal.signal(n, self._note) for n in self._numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def strike(self) -> None:
        """Here it is safe: end now if it was asked for."""
        if self.asked:
            raise KeyboardInterrupt

    def _note(self, number: int, _frame: object) -> None:
        now_s = time.monotonic()
        if self.asked == signal.SIGINT == number and now_s - self._at_s > SAME_WISH_S:
            raise KeyboardInterrupt
        self.asked, self._at_s = number, now_s


def replay(
    options: ReplayOptions,
    tell: Callable[[AttemptVerdict, dict[int, str]], None],
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Read finished logs into a history. tell: each judged attempt; progress: (bytes read, bytes in all).

    Raises RuleError, ConfigError, StoreError. Unreadable inputs end up in the outcome.
    """
    from defib.adapters import backfill
    from defib.adapters.archive import Archive
    from defib.engine.core import State
    from defib.engine.drive import Drive
    from defib.engine.observe import Observer

    on = backfill.where(options.scheduler) if options.scheduler else None
    loaded = rulefiles.load(options.rules)
    source = Archive(options.paths, loaded.book.paths, Known(options.cluster), options.block_bytes)
    source.open()
    outcome = Outcome(
        files=len(source.files), unread=source.unread, empty=[f.shown for f in source.files if not f.size]
    )
    interrupt = Interrupt()

    def read(_stream: int, n: int) -> None:
        interrupt.strike()
        outcome.bytes_read += n
        if progress is not None:
            progress(outcome.bytes_read, source.total_bytes)

    def fill(fan: Fan) -> None:
        if on is None:
            observer = Observer(loaded.book, loaded.databases, rulefiles.kernel())
            Drive(observer, State(loaded.book), fan, options.batch_bytes, read, options.verify).run(source)
            return

        def done(part: Done) -> None:
            read(0, part.size)
            source.unread.extend(part.unread)

        backfill.folded(_tasks(options, loaded, source, on.processes), on, fan, interrupt.strike, done)

    _kept(options.db, loaded, outcome, tell, interrupt, fill)
    if outcome.interrupted:
        source.close()
    return outcome


def _tasks(options: ReplayOptions, loaded: LoadedRules, source: Archive, processes: int) -> list[Task]:
    from defib.adapters import shards
    from defib.adapters.parts import Share

    share, rules = Share(loaded.book.hash, shards.digest(source)), tuple(options.rules)
    return [
        shards.Task(n, jobs, share, "", rules, options.block_bytes, options.batch_bytes)
        for n, jobs in enumerate(shards.tasks(source.jobs(), processes))
    ]


def _kept(
    db: str,
    loaded: LoadedRules,
    outcome: Outcome,
    tell: Callable[[AttemptVerdict, dict[int, str]], None],
    interrupt: Interrupt,
    fill: Callable[[Fan], None],
) -> None:
    """Effects that `fill` gives, into the history and the outcome; whole jobs are kept when it is interrupted or fails."""
    from defib.adapters.duck import DuckStore
    from defib.engine.words import StoreError

    # ':memory:' keeps nothing, so nothing is stored: attempts are told and forgotten, and memory stays flat.
    store = DuckStore(db, loaded.book) if db != ":memory:" else None

    def told(a: AttemptVerdict, paths: dict[int, str]) -> None:
        outcome.attempts += 1
        outcome.verdicts[a.verdict] = outcome.verdicts.get(a.verdict, 0) + 1
        tell(a, paths)

    try:
        with interrupt:
            fill(Fan([store] if store else [], told))
            if store is not None:
                store.flush()
    except KeyboardInterrupt:
        outcome.interrupted = True
    except BaseException:
        if store is not None:
            with contextlib.suppress(StoreError):  # the first error is the one to tell
                store.close()
        raise
    if store is not None:
        store.close()


def write_part(options: ReplayOptions, index: int, of: int, out: Path) -> Done:
    """Read only one of so many shares of the logs (index from 0) and write what it came to, for `merge`. Raises RuleError, SourceError."""
    from defib.adapters import shards
    from defib.adapters.archive import Archive
    from defib.adapters.parts import Share
    from defib.engine.words import SourceError

    if not out.parent.is_dir():  # told before the logs are read, which may take hours
        raise SourceError(f"{out}: there is no folder {out.parent}\n    mend: make it, or name another one with -o")
    if out.exists() and not out.is_file():
        raise SourceError(f"{out}: not a regular file\n    mend: name a file to write the part to")
    loaded = rulefiles.load(options.rules)
    source = Archive(options.paths, loaded.book.paths, Known(options.cluster), options.block_bytes)
    source.open()
    jobs = shards.split(source.jobs(), of)[index]
    share = Share(loaded.book.hash, shards.digest(source), index, of)
    whole = out.with_name(out.name + ".unfinished")
    try:
        done = shards.run(
            shards.Task(index, jobs, share, str(whole), tuple(options.rules), options.block_bytes, options.batch_bytes)
        )
        whole.replace(out)
    except OSError as e:
        raise SourceError(f"{out}: {e.strerror}") from e
    return replace(done, unread=(*source.unread, *done.unread))


def merge(
    paths: list[Path], db: str, rules: list[Path], tell: Callable[[AttemptVerdict, dict[int, str]], None]
) -> Outcome:
    """Parts of one replay -> a history, as one process would have written it. Raises RuleError, SourceError, StoreError."""
    from defib.adapters import backfill
    from defib.adapters.parts import Part
    from defib.engine.words import SourceError

    loaded = rulefiles.load(rules)
    parts = sorted((Part(p) for p in paths), key=lambda p: p.share.index)
    shares = [p.share for p in parts]
    if len({(s.rules, s.logs, s.of) for s in shares}) > 1:
        raise SourceError("these parts are not of one replay: their rules, their logs or their number differ")
    if [s.index for s in shares] != list(range(shares[0].of)):
        raise SourceError(f"give each of the {shares[0].of} parts once")
    if shares[0].rules != loaded.book.hash:
        raise SourceError(
            "these parts were made with other rules; give the same --rules, and the same version of defib"
        )
    outcome, interrupt = Outcome(), Interrupt()

    def done(d: Done) -> None:
        outcome.files += d.files
        outcome.bytes_read += d.size
        outcome.unread += d.unread

    def fill(fan: Fan) -> None:
        for part in parts:
            backfill.applied(part, fan, interrupt.strike, done)

    _kept(db, loaded, outcome, tell, interrupt, fill)
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
    """A sink that tells every job once when it is first seen (`was` is empty then) and at every change of its health; and what befalls logs."""

    state: State
    seen: dict[JobKey, str]
    tell: Callable[[HealthChanged], None]
    tell_log: Callable[[LogTold], None]

    def apply(self, effects: list[object]) -> None:
        from defib.engine.core import HealthChanged, LogTold

        for e in effects:
            if isinstance(e, LogTold):
                self.tell_log(e)
            elif isinstance(e, HealthChanged):
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
    ends the watch. logged: what befell a log. resumed: healths of the jobs an earlier watch left running, before the first poll."""

    changed: Callable[[HealthChanged, dict[int, str]], None]
    judged: Callable[[AttemptVerdict, dict[int, str]], None]
    polled: Callable[[dict[bytes, str]], None]
    logged: Callable[[LogTold], None] = lambda e: None
    resumed: Callable[[Mapping[JobKey, str]], None] = lambda healths: None


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
        healths = Healths(state, outcome.healths, lambda e: ears.changed(e, fan.paths), ears.logged)
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
