"""What was read just before an offset: the proof that a file is still the one that was being read.

In: the bytes of a file in order. Out: `Guard`, which tells on a later look whether these bytes are still there. Always holds: sizes, times
and first lines prove nothing (all ranks and all attempts of a job begin with the same header), so only content near the offset counts; NUL
bytes say nothing either (a hole looks the same in every file), so a guard ends at the last byte that is not NUL.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass, replace

GUARD_BYTES = 4096
HEAD_BYTES = 256
LAST_BYTES = 64  # kept of a guard that is saved or put aside; the rest is in its digest
ENOUGH_BYTES = 64  # fewer may be equal by chance or be a header


@dataclass(frozen=True, slots=True)
class Guard:
    """The `length` bytes that end at offset `end`. last: all of them, or the last 64 with a digest of all. before: CRC-32 of what is not
    NUL in [0, end - length). head: the file's first bytes, for files whose long headers differ in their first lines only."""

    end: int = 0
    length: int = 0
    last: bytes = b""
    digest: bytes = b""
    before: int = 0
    head: bytes = b""

    @property
    def start(self) -> int:
        return self.end - self.length

    @property
    def whole(self) -> bool:
        """Every byte is at hand."""
        return len(self.last) == self.length

    def matches(self, raw: bytes) -> bool:
        """raw: what now stands in [start, end)."""
        if len(raw) != self.length or not raw.endswith(self.last):
            return False
        return self.whole or digest(raw) == self.digest

    def held(self, raw: bytes) -> Guard:
        """The guard with all its bytes, once they have matched."""
        return self if self.whole else replace(self, last=raw, digest=b"")

    def compact(self) -> Guard:
        """The guard as it is saved: at most 64 bytes and a digest."""
        if not self.whole or self.length <= LAST_BYTES:
            return self
        return replace(self, last=self.last[-LAST_BYTES:], digest=digest(self.last))

    def extended(self, at: int, data: bytes) -> Guard:
        """The guard after `data`, which begins at offset `at`; what lies between end and `at` is NUL."""
        assert self.whole, "a guard grows only after it has matched"
        body = data[max(0, self.end - at) :].rstrip(b"\0")
        if not body:
            return self
        at = max(at, self.end)
        head = self.head
        if len(head) < HEAD_BYTES:
            head = (head + bytes(min(at - self.end, HEAD_BYTES)) + body[:HEAD_BYTES])[:HEAD_BYTES]
        joined = self.last + bytes(min(at - self.end, GUARD_BYTES)) + body
        return Guard(
            at + len(body),
            min(GUARD_BYTES, self.length + at - self.end + len(body)),
            joined[-GUARD_BYTES:],
            b"",
            checksum(joined[:-GUARD_BYTES], self.before),
            head,
        )

    def cut(self, length: int) -> Guard:
        """The guard of a file whose first start + length bytes are the same."""
        at = self.start + length
        return Guard(at, length, self.last[:length], b"", self.before, self.head[:at])

    def begins(self, raw: bytes) -> bool:
        """raw: what the file begins with now, maybe less than asked for. NULs may have become data since."""
        return all(new == old or old == 0 for new, old in zip(raw, self.head, strict=False))

    def filled(self, raw: bytes) -> bool:
        """The bytes differ only where NULs were read before: data that arrived late, not another file."""
        if len(raw) != self.length or not self.whole or b"\0" not in self.last:
            return False
        return all(new == old or old == 0 for new, old in zip(raw, self.last, strict=True))

    def common(self, raw: bytes) -> int:
        """How many bytes from the start on are the same."""
        return next(
            (n for n, (a, b) in enumerate(zip(raw, self.last, strict=False)) if a != b), min(len(raw), self.length)
        )


def digest(raw: bytes) -> bytes:
    """16 bytes that stand for raw."""
    return hashlib.blake2b(raw, digest_size=16).digest()


def checksum(raw: bytes, before: int = 0) -> int:
    """CRC-32 of the bytes that are not NUL, so that a hole of any size costs nothing."""
    return zlib.crc32(raw.translate(None, b"\0") if b"\0" in raw else raw, before)
