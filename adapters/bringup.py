"""A history brought up to its journal at a start: taken as it is, or moved aside and made anew where it is not the journal's.

In: the history's path, an open journal, the rules. Out: the store, and what the engine knew. Always holds: a history that knows of records
the journal has lost is never gone on with, and what is moved aside is told and kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from defib.adapters.acts import Acts
from defib.adapters.board import Board
from defib.adapters.duck import BusyError, UnreadableError
from defib.adapters.journal.resume import Resumed, resume
from defib.adapters.journal.segments import chain_of
from defib.adapters.journal.writer import Journal
from defib.adapters.livestore import FLUSH_BYTES, LiveStore
from defib.adapters.tail.clock import Clock
from defib.engine.core import Effect, Event, State

SECOND_US = 1_000_000
BUSY_US = 30 * SECOND_US  # a process that reads the history is waited for so long


class Hooks(Protocol):
    """What a station asks of whoever runs it."""

    def asked(self) -> bool:
        """Whether it is to end now, leaving jobs open."""

    def alarm(self, text: str) -> None:
        """Something a person must know: a full disk, a journal that was mended."""


def bring_up(db: str, journal: Journal, book: Any, hooks: Hooks, clock: Clock) -> tuple[LiveStore, Resumed]:
    """The history as the journal has it, and what the engine knew. A history made from records the journal has lost, one that cannot be read,
    or that stays open in another process is moved aside and made anew. Raises StoreError."""
    store, why = _opened(db, journal, book, hooks, clock)
    if store is None:
        aside = f"{db}.aside-{journal.epoch}"
        older = f"; what was judged before record {journal.first} is only there" if journal.first > 1 else ""
        hooks.alarm(f"{why}; the history is moved aside to {aside} and made anew from the journal{older}")
        for path, to in (
            (db, aside),
            (db + ".wal", aside + ".wal"),
        ):  # a log beside its file under one name: it can still be opened
            if os.path.lexists(path):
                os.replace(path, to)
        store = LiveStore(db, book, journal.identity)
    store.beside = Acts(store.meta)

    def seed(r: Resumed, board: Board) -> None:
        store.seed(r.state, board, r.seq, r.chain)

    def take(seq: int, events: Sequence[Event], effects: Sequence[Effect], state: State, chain: bytes) -> None:
        store.take(seq, events, effects, state, chain)
        if store.waiting_bytes >= FLUSH_BYTES:
            store.flush()

    try:
        return store, resume(journal.folder, book, journal.identity, store.applied, seed, take)
    except BaseException:
        store.abandon()
        raise


def _opened(db: str, journal: Journal, book: Any, hooks: Hooks, clock: Clock) -> tuple[LiveStore | None, str]:
    """The history as it is, or why it cannot be used. Who only reads it for a moment is waited for. Raises StoreError."""
    waited = 0
    while True:
        try:
            store = LiveStore(db, book, journal.identity)
        except BusyError as e:
            if waited == 0:
                hooks.alarm(f"{e}; waiting for it to be closed")
            if hooks.asked() or (waited >= BUSY_US and journal.first > 1):
                raise  # older records are in the history only
            if waited >= BUSY_US:
                return None, str(e).splitlines()[0]
            clock.sleep_us(SECOND_US)
            waited += SECOND_US
        except UnreadableError as e:
            return None, str(e).splitlines()[0]
        else:
            why = _astray(store, journal, hooks)
            if why:
                store.abandon()
                return None, why
            return store, ""


def _astray(store: LiveStore, journal: Journal, hooks: Hooks) -> str:
    """Why a history is not of the records the journal holds now; nothing where it is. Numbers alone do not tell: those of a lost end are
    given again. Raises StoreError."""
    if store.applied > journal.seq:
        return f"the history knows of records the journal has lost ({store.applied} of {journal.seq})"
    if store.applied and store.applied + 1 < journal.first:
        hooks.alarm(
            f"the history ends at record {store.applied} and the journal begins at {journal.first}: what lay between is in neither"
        )
    elif store.applied_chain and chain_of(journal.folder, store.applied) not in (store.applied_chain, None):
        return f"the history knows of records the journal has lost (record {store.applied} is another one now)"
    return ""
