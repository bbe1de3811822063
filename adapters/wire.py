"""The composition root: options -> assembled parts. Nothing else knows which adapter is used for what."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from defib.adapters import rulefiles
from defib.engine.identity import Known

if TYPE_CHECKING:
    from defib.adapters.archive import Unread
    from defib.engine.words import AttemptVerdict


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

    The first one is noted and acted on between two blocks; a second one strikes at once.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


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
