"""Records as bytes: framing, checksum and chain. No I/O.

In: kind and payload, or bytes of a segment. Out: frames, or records with the place where the bytes stop making sense. Always holds: a
record is accepted only if its checksum, its number (one more than the one before) and its chain (a hash over the record and the chain
before it) agree; nothing is read past the first byte that does not.

A frame is magic (4), length of the body (4), CRC-32 of all that follows it (4), number (8), chain (16), body; a body is the length of
the kind (1), the kind, the payload. Little-endian. A record of more than 256 MiB is not one of ours.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"dfj1"
HEAD = struct.Struct("<4sII")
NUMBER = struct.Struct("<Q")
CHAIN_BYTES = 16
OVERHEAD = HEAD.size + NUMBER.size + CHAIN_BYTES
BODY_MAX = 256 * 1024 * 1024
GENESIS = bytes(CHAIN_BYTES)


@dataclass(frozen=True, slots=True)
class Record:
    """One record. at, end: where its frame stands in its segment; chain: the hash that the next one rests on."""

    seq: int
    kind: str
    payload: bytes
    chain: bytes
    at: int
    end: int


@dataclass(frozen=True, slots=True)
class Bad:
    """Bytes that are no record. torn: nothing behind them is one either, as after a write that was cut off."""

    at: int
    why: str
    torn: bool


def frame(seq: int, kind: str, payload: bytes, before: bytes) -> tuple[bytes, bytes]:
    """(the frame, its chain). kind: ASCII, at most 255 characters."""
    name = kind.encode("ascii")
    body = bytes((len(name),)) + name + payload
    assert len(name) < 256, "a kind is a word"
    assert len(body) <= BODY_MAX, "a record has a bound"
    number = NUMBER.pack(seq)
    chain = chained(before, number, body)
    return HEAD.pack(MAGIC, len(body), _crc(number, chain, body)) + number + chain + body, chain


def chained(before: bytes, number: bytes, body: bytes) -> bytes:
    """The hash of a record and everything before it."""
    return hashlib.blake2b(before + number + body, digest_size=CHAIN_BYTES).digest()


def records(raw: bytes | memoryview, seq: int, chain: bytes | None) -> Iterator[Record | Bad]:
    """The records of a segment in order, and at most one `Bad` as the last thing.

    seq: the number of the first one. chain: that of the record before, None where that is not known (older segments are gone): the first
    record's own chain is then taken as it is.
    """
    view = memoryview(raw)
    at = 0
    while at < len(view):
        found = _one(view, at, seq, chain)
        if isinstance(found, str):
            yield Bad(at, found, not _goes_on(view, at + 1, seq))
            return
        yield found
        at, seq, chain = found.end, seq + 1, found.chain


def _one(view: memoryview, at: int, seq: int, chain: bytes | None) -> Record | str:
    """The record at a place, or what is wrong there."""
    if len(view) - at < OVERHEAD:
        return "the bytes end within a record"
    magic, length, crc = HEAD.unpack_from(view, at)
    if magic != MAGIC:
        return "no record begins here"
    if not 1 <= length <= BODY_MAX:
        return "a record of impossible length"
    end = at + OVERHEAD + length
    if end > len(view):
        return "the bytes end within a record"
    number = bytes(view[at + HEAD.size : at + HEAD.size + NUMBER.size])
    own = bytes(view[at + HEAD.size + NUMBER.size : at + OVERHEAD])
    body = bytes(view[at + OVERHEAD : end])
    if _crc(number, own, body) != crc:
        return "the checksum of a record does not agree"
    (told,) = NUMBER.unpack(number)
    if told != seq:
        return f"record {told} stands where {seq} should"
    if chain is not None and chained(chain, number, body) != own:
        return "a record does not follow from the one before it"
    size = body[0]
    if size >= len(body) + (size == 0):
        return "a record without a kind"
    return Record(seq, body[1 : 1 + size].decode("ascii", "replace"), body[1 + size :], own, at, end)


def _crc(number: bytes, chain: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(chain, zlib.crc32(number)))


def _goes_on(view: memoryview, at: int, seq: int) -> bool:
    """Whether any later record stands whole behind bad bytes: then they are damage, not the end of a write that was cut off."""
    raw = bytes(view)
    while (at := raw.find(MAGIC, at)) >= 0:
        if len(raw) - at >= OVERHEAD:
            _, length, crc = HEAD.unpack_from(raw, at)
            end = at + OVERHEAD + length
            if 1 <= length <= BODY_MAX and end <= len(raw):
                number = raw[at + HEAD.size : at + HEAD.size + NUMBER.size]
                chain = raw[at + HEAD.size + NUMBER.size : at + OVERHEAD]
                later = NUMBER.unpack(number)[0] > seq
                if later and _crc(number, chain, raw[at + OVERHEAD : end]) == crc:
                    return True
        at += 1
    return False
