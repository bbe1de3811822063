"""The one writer of a journal.

In: records (kind, payload). Out: their numbers, gapless; after `sync` they are on disk. Always holds:

* one writer at a time, each with an epoch greater than that of any before it;
* a number that `sync` has acknowledged is never given to another record, whatever dies when;
* a write that was cut off is moved aside at the next opening and told in a record, damage anywhere else refuses to open;
* a full disk loses nothing that was acknowledged: `sync` raises `FullError`, what was appended waits, and the same call goes on later.

Kinds are free words but for those that begin with `journal.`, which are the journal's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os

import orjson

from defib.adapters.journal import place
from defib.adapters.journal.frames import GENESIS, Bad, Record, frame, records
from defib.adapters.journal.segments import ENDING, DamageError, Segment, bytes_of, segments
from defib.adapters.room import FULL, FullError
from defib.engine.words import StoreError

SEGMENT_BYTES = 64 * 1024 * 1024
BALLAST_BYTES = 16 * 1024 * 1024
OWN = "journal."
FORMAT = 1


class Journal:
    """Open for writing; `append`, then `sync`. identity: names this journal for life; epoch: this writer's; seq: the last number given."""

    def __init__(
        self,
        folder: str,
        segment_bytes: int = SEGMENT_BYTES,
        ballast_bytes: int = BALLAST_BYTES,
        file_system: int | None = None,
    ) -> None:
        place.make_folder(folder)
        place.check_folder(folder, kind=file_system)
        self.folder = folder
        self.told: list[str] = []  # what was found and mended at opening
        self._segment_bytes = segment_bytes
        self._lock = place.Lock(folder)
        self._waiting: list[bytes] = []
        self._dead = False
        self._fd = -1
        self.seq, self.durable, self._chain, self._size = 0, 0, GENESIS, 0
        self.identity, self.epoch = os.urandom(16).hex(), self._lock.epoch
        try:
            self._ballast = place.Ballast(folder, ballast_bytes)
            if not self._ballast.roomy():
                self._ballast.drop()  # opening itself must not fail for want of room
            torn = self._recover()
            self.epoch += 1
            self._lock.take(self.epoch)
            if self._fd < 0:
                self._begin()
            for note in torn:
                self._own("torn", note)
            self._own("opened", {"epoch": self.epoch, "process": os.getpid()})
            self.sync()
            self.reserved = self._ballast.take_on()
        except (OSError, FullError) as e:
            self._let_go()
            why = place.failed(e, folder) if isinstance(e, OSError) else e
            if isinstance(why, FullError):
                why = FullError(f"{why}\n    mend: make room on its disk, then start again")
            raise why from e
        except BaseException:
            self._let_go()
            raise

    @property
    def first(self) -> int:
        """The number of the oldest record that is still there. Raises StoreError."""
        return segments(self.folder)[0].first

    @property
    def chain(self) -> bytes:
        """The chain of the record appended last."""
        return self._chain

    @property
    def size(self) -> int:
        """Size of all segments. Raises StoreError."""
        return sum(self._sizes(segments(self.folder)))

    def append(self, kind: str, payload: bytes) -> int:
        """Take a record; it lasts once `sync` returns. Returns its number."""
        assert not kind.startswith(OWN), "these kinds are the journal's own"
        return self._append(kind, payload)

    def sync(self) -> None:
        """Everything appended is on disk when this returns. Raises FullError (call again later; nothing is lost), StoreError (do not)."""
        if self._dead:
            raise StoreError(f"{self.folder}: an earlier write failed; what was acknowledged before it is kept")
        if not self._waiting:
            return
        raw = b"".join(self._waiting)
        try:
            place.write_all(self._fd, raw)
            os.fdatasync(self._fd)
        except OSError as e:
            self._undo(e)
            raise place.failed(e, self.folder) from e
        self._waiting.clear()
        self._size += len(raw)
        self._digest.update(raw)
        self.durable = self.seq
        if self._size >= self._segment_bytes:
            with contextlib.suppress(FullError):  # a segment may grow on until there is room for the next
                self._roll()

    def forgettable(self, before: int, most_bytes: int) -> list[str]:
        """The oldest segments as long as the journal is larger than this and all their records have numbers below `before`. Raises
        StoreError."""
        every = segments(self.folder)
        sizes = self._sizes(every)
        total, gone = sum(sizes), 0
        while gone + 1 < len(every) and total > most_bytes and every[gone + 1].first <= before:
            total -= sizes[gone]
            gone += 1
        return [s.path for s in every[:gone]]

    def forget(self, before: int, most_bytes: int) -> int:
        """Delete what is forgettable, told in a record first. Returns the number of segments deleted. Raises StoreError; what could not be
        deleted is forgettable still."""
        gone = self.forgettable(before, most_bytes)
        if gone:
            self._own("deleted", {"segments": [os.path.basename(path) for path in gone]})
            self.sync()
            path = self.folder
            try:
                for path in gone:
                    os.unlink(path)
                place.sync_folder(self.folder)
            except OSError as e:
                raise place.failed(e, path) from e
        return len(gone)

    def _sizes(self, every: list[Segment]) -> list[int]:
        path = self.folder
        try:
            return [os.path.getsize(path := s.path) for s in every]
        except OSError as e:
            raise place.failed(e, path) from e

    def make_room(self) -> None:
        """Give the reserve up, to end in order on a full disk."""
        self._ballast.drop()

    def keep_room(self) -> bool:
        """Lay the reserve down again; False where there is no room for it."""
        return self._ballast.take_on()

    def close(self) -> None:
        """End in order: what was appended is synced. Raises StoreError."""
        try:
            if not self._dead:
                self.sync()
        finally:
            self._let_go()

    # the way a segment goes

    def _append(self, kind: str, payload: bytes) -> int:
        raw, self._chain = frame(self.seq + 1, kind, payload, self._chain)
        self.seq += 1
        self._waiting.append(raw)
        return self.seq

    def _own(self, kind: str, values: dict[str, object]) -> None:
        self._append(OWN + kind, orjson.dumps(values))

    def _undo(self, e: OSError) -> None:
        """After a failed write: back to the last byte that is known to be on disk. An fsync that failed for any other reason than room may
        have dropped what it was to write, and a second one would not tell: no further write is tried then."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            self._dead = True
        self._dead |= e.errno not in FULL

    def _begin(self) -> None:
        """The next segment, with its first record. Raises OSError; nothing is left of it then."""
        path = os.path.join(self.folder, f"{self.seq + 1:012d}{ENDING}")
        values = {"format": FORMAT, "journal": self.identity, "epoch": self.epoch}
        raw, chain = frame(self.seq + 1, OWN + "segment", orjson.dumps(values), self._chain)
        fd = place.create(path)
        try:
            place.write_all(fd, raw)
            os.fsync(fd)
            place.sync_folder(self.folder)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._chain, self.seq = fd, len(raw), chain, self.seq + 1
        self.durable = self.seq
        self._digest = hashlib.blake2b(raw, digest_size=32)

    def _roll(self) -> None:
        """Close the segment with a digest of its bytes and begin the next; both or neither. Raises StoreError."""
        seq, chain, size = self.seq, self._chain, self._size
        values = {"bytes": size, "blake2b": self._digest.hexdigest()}
        raw, sealed = frame(seq + 1, OWN + "sealed", orjson.dumps(values), chain)
        try:
            place.write_all(self._fd, raw)
            os.fdatasync(self._fd)
            self.seq, self._chain = seq + 1, sealed
            self._begin()
        except OSError as e:
            self.seq, self._chain = seq, chain
            self._undo(e)
            raise place.failed(e, self.folder) from e

    # opening

    def _recover(self) -> list[dict[str, object]]:
        """Take up where the last writer stopped. Returns what was moved aside. Raises DamageError, OSError."""
        torn: list[dict[str, object]] = []
        every = segments(self.folder)
        while every:
            segment = every.pop()
            raw = bytes_of(segment.path)
            last, bad = self._scan(segment, raw)
            if bad is not None and not bad.torn:
                raise DamageError(segment.path, bad.at, bad.why, last.seq if last else segment.first - 1)
            if bad is not None:
                torn.append(self._aside(segment, raw, bad))
            if last is None:  # cut off while it began: the segment before it ends the journal
                os.unlink(segment.path)
                place.sync_folder(self.folder)
                continue
            self.seq = self.durable = last.seq
            self._chain, self._size = last.chain, last.end
            self._digest = hashlib.blake2b(raw[: last.end], digest_size=32)
            self._fd = place.reopen(segment.path)
            if last.kind == OWN + "sealed":
                self._begin()
            return torn
        return torn

    def _scan(self, segment: Segment, raw: bytes) -> tuple[Record | None, Bad | None]:
        """(the last good record, what follows it). Takes over what the journal's own records say."""
        last: Record | None = None
        for found in records(raw, segment.first, None):
            if isinstance(found, Bad):
                return last, found
            last = found
            if found.kind in (OWN + "segment", OWN + "opened"):
                values = orjson.loads(found.payload)
                self.identity = values.get("journal", self.identity)
                self.epoch = max(self.epoch, values["epoch"])
        return last, None

    def _aside(self, segment: Segment, raw: bytes, bad: Bad) -> dict[str, object]:
        """Bytes that are no record go to a file of their own, and the segment ends before them."""
        left = raw[bad.at :]
        name = f"torn-{segment.first:012d}-{bad.at}"
        if left:
            place.save(os.path.join(self.folder, name), left)
        fd = place.reopen(segment.path)
        try:
            os.ftruncate(fd, bad.at)
            os.fsync(fd)
        finally:
            os.close(fd)
        self.told.append(f"{len(left)} bytes of a write that was cut off were moved aside to {name}")
        return {
            "segment": os.path.basename(segment.path),
            "at": bad.at,
            "bytes": len(left),
            "aside": name,
            "why": bad.why,
        }

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._lock.release()


def salvage(folder: str, damage: DamageError) -> list[str]:
    """Cut a journal at its damage: the damaged rest of the segment and every later segment are put aside under other names.

    Returns the names they have now. Nobody may be writing. Raises StoreError, OSError.
    """
    place.check_folder(folder)
    lock = place.Lock(folder)
    try:
        kept: list[str] = []
        every = segments(folder)
        for s in [s for s in reversed(every) if s.path > damage.path]:
            kept.append(s.path + ".damaged")
            os.rename(s.path, kept[-1])
        if damage.at == 0:
            kept.append(damage.path + ".damaged")
            os.rename(damage.path, kept[-1])
        else:
            raw = bytes_of(damage.path)
            kept.append(damage.path + ".damaged")
            place.save(kept[-1], raw[damage.at :])
            fd = place.reopen(damage.path)
            try:
                os.ftruncate(fd, damage.at)
                os.fsync(fd)
            finally:
                os.close(fd)
        place.sync_folder(folder)
        return kept
    finally:
        lock.release()
