"""What the controller and the executor say to each other: one JSON object in one packet, of bounded size.

In: orders, answers. Out: bytes, and back. Always: a packet is whole or refused (SOCK_SEQPACKET keeps their bounds); what does not fit raises
ValueError and nothing of it is used.

    controller: {"order": {…}, "observer_us": 1, "boot_us": 1}   its clock, and the machine's at the same moment
                {"ping": 1, "observer_us": 1, "boot_us": 1}
    executor:   {"answer": {…}}    a `Returned`
                {"pong": 1, "epoch": 7}
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import orjson

from defib.engine.recover import codec
from defib.engine.recover.events import Returned
from defib.engine.recover.words import Order

PACKET_MAX = 64 * 1024  # 256 names of 63 characters and all the rest are a quarter of it
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_us() -> int:
    """A clock both processes read: time since the machine was started, also while it slept."""
    return time.clock_gettime_ns(CLOCK) // 1000


@dataclass(frozen=True, slots=True)
class Asked:
    """From the controller: an order or a ping, and by how much its clock is ahead of the machine's."""

    order: Order | None
    ping: int
    ahead_us: int


@dataclass(frozen=True, slots=True)
class Pong:
    """From the executor: it lives, and this is the newest epoch it knows. at_us: filled in by who hears it."""

    ping: int
    epoch: int


def ask(order: Order | None, ping: int, observer_us: int) -> bytes:
    """A packet for the executor. Raises ValueError for one that is too large."""
    head = {"observer_us": observer_us, "boot_us": boot_us()}
    said: dict[str, Any] = {"ping": ping} if order is None else {"order": codec.plain(order)}
    return _packet(said | head)


def asked(raw: bytes) -> Asked:
    """A packet from the controller; the order is checked again by its own rules. Raises ValueError."""
    found = _object(raw)
    observer, boot = found.pop("observer_us", None), found.pop("boot_us", None)
    if type(observer) is not int or type(boot) is not int:
        raise ValueError("a packet without its times")
    if set(found) == {"ping"} and type(found["ping"]) is int:
        return Asked(None, found["ping"], observer - boot)
    if set(found) != {"order"}:
        raise ValueError("neither an order nor a ping")
    return Asked(codec.load(Order, orjson.dumps(found["order"])), 0, observer - boot)


def answer(said: Returned | Pong) -> bytes:
    """A packet for the controller."""
    if isinstance(said, Pong):
        return _packet({"pong": said.ping, "epoch": said.epoch})
    return _packet({"answer": codec.plain(said)})


def answered(raw: bytes) -> Returned | Pong:
    """A packet from the executor. Raises ValueError."""
    found = _object(raw)
    if set(found) == {"pong", "epoch"} and type(found["pong"]) is int and type(found["epoch"]) is int:
        return Pong(found["pong"], found["epoch"])
    if set(found) != {"answer"}:
        raise ValueError("neither an answer nor a pong")
    return codec.load(Returned, orjson.dumps(found["answer"]))


def _packet(said: dict[str, Any]) -> bytes:
    raw = orjson.dumps(said)
    if len(raw) > PACKET_MAX:
        raise ValueError(f"a packet of more than {PACKET_MAX} bytes")
    return raw


def _object(raw: bytes) -> dict[str, Any]:
    if len(raw) > PACKET_MAX:
        raise ValueError(f"a packet of more than {PACKET_MAX} bytes")
    found = orjson.loads(raw)
    if not isinstance(found, dict):
        raise ValueError("a packet is an object")  # noqa: TRY004 - one kind of error for whatever is wrong with a packet
    return found
