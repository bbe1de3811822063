"""Numbers of the daemon in Prometheus' text format, and a small server for them.

In: counters, gauges and histograms that parts register, by conventional names. Out: text (exposition format 0.0.4) over HTTP. Always holds: values
are read by the thread of the main loop only, the server hands out what was published last; labels are escaped and their number is
bounded, what is beyond goes to `other`.
"""

from __future__ import annotations

import bisect
import http.server
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from defib.adapters.show import safe

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABELS_MAX, LABEL_TEXT_MAX = 200, 200
OTHER = "other"
Labels = tuple[tuple[str, str], ...]
M = TypeVar("M", "Metric", "Histogram")


def labels(**named: str) -> Labels:
    """Labels in their order, as keys of a metric's values."""
    return tuple(named.items())


@dataclass(slots=True)
class Metric:
    """read: asked at every publication, in place of values that are set. kind: counter | gauge."""

    name: str
    kind: str
    about: str
    read: Callable[[], float | Mapping[Labels, float]] | None = None
    values: dict[Labels, float] = field(default_factory=dict)

    def set(self, value: float, **named: str) -> None:
        self.values[self._room(labels(**named))] = value

    def add(self, by: float = 1, **named: str) -> None:
        key = self._room(labels(**named))
        self.values[key] = self.values.get(key, 0.0) + by

    def lines(self) -> list[str]:
        found: Mapping[Labels, float] = self.values
        if self.read is not None:
            got = self.read()
            found = got if isinstance(got, Mapping) else {(): float(got)}
        out = [f"# HELP {self.name} {_help(self.about)}", f"# TYPE {self.name} {self.kind}"]
        rest = 0.0
        for n, (key, value) in enumerate(found.items()):
            if n < LABELS_MAX:
                out.append(f"{self.name}{_braces(key)} {_number(value)}")
            else:
                rest += value
        if len(found) > LABELS_MAX:
            first = next(iter(found))
            out.append(f"{self.name}{_braces(tuple((k, OTHER) for k, _ in first))} {_number(rest)}")
        return out

    def _room(self, key: Labels) -> Labels:
        if key in self.values or len(self.values) < LABELS_MAX:
            return key
        return tuple((name, OTHER) for name, _ in key)


@dataclass(slots=True)
class Histogram:
    """Cumulative buckets, a sum and a count. bounds: upper ones, rising."""

    name: str
    about: str
    bounds: Sequence[float]
    kind: str = "histogram"
    sum: float = 0.0
    _counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.sum += value
        self._counts[bisect.bisect_left(self.bounds, value)] += 1

    def lines(self) -> list[str]:
        out = [f"# HELP {self.name} {_help(self.about)}", f"# TYPE {self.name} histogram"]
        total = 0
        for bound, count in zip([*self.bounds, float("inf")], self._counts, strict=True):
            total += count
            out.append(f'{self.name}_bucket{{le="{_number(bound)}"}} {total}')
        return [*out, f"{self.name}_sum {_number(self.sum)}", f"{self.name}_count {total}"]


class Registry:
    """Every number there is. Parts register theirs; a name is registered once."""

    def __init__(self) -> None:
        self._all: dict[str, Metric | Histogram] = {}
        self.page = b""

    def counter(
        self, name: str, about: str, read: Callable[[], float | Mapping[Labels, float]] | None = None
    ) -> Metric:
        """Only grows; its name ends in _total."""
        assert name.endswith("_total"), name
        return self._add(Metric(name, "counter", about, read))

    def gauge(self, name: str, about: str, read: Callable[[], float | Mapping[Labels, float]] | None = None) -> Metric:
        """Goes up and down. Sizes are in bytes, times in seconds, by their names."""
        return self._add(Metric(name, "gauge", about, read))

    def histogram(self, name: str, about: str, bounds: Sequence[float]) -> Histogram:
        """How values are spread."""
        made = Histogram(name, about, bounds)
        self._add(made)
        return made

    def text(self) -> str:
        """All of it, now."""
        return "\n".join(line for m in self._all.values() for line in m.lines()) + "\n"

    def publish(self) -> None:
        """What is handed out from now on."""
        self.page = self.text().encode()

    def _add(self, made: M) -> M:
        assert NAME.fullmatch(made.name), made.name
        assert made.name not in self._all, f"{made.name} is there already"
        self._all[made.name] = made
        return made


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16


class MetricsServer:
    """Answers `GET /metrics` until `close`. Raises OSError where the address cannot be had."""

    def __init__(self, address: tuple[str, int], registry: Registry) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10
            server_version, sys_version = "defib", ""

            def do_GET(self) -> None:
                found = self.path.partition("?")[0] in ("/metrics", "/")
                body = registry.page if found else b"metrics are at /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8" if found else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's own name
                """Who asks is no news."""

        if ":" in address[0]:
            import socket

            class Six(_Server):
                address_family = socket.AF_INET6

            self._server: _Server = Six(address, Handler)
        else:
            self._server = _Server(address, Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2)


def resident_bytes(pid: int | str = "self") -> int:
    """Memory a process holds, by /proc; 0 where that cannot be read."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
            return next((int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS:")), 0)
    except (OSError, ValueError):
        return 0


def _braces(key: Labels) -> str:
    return "{" + ",".join(f'{name}="{_label(value)}"' for name, value in key) + "}" if key else ""


def _label(value: str) -> str:
    return safe(value)[:LABEL_TEXT_MAX].replace("\\", "\\\\").replace('"', '\\"')


def _help(text: str) -> str:
    return safe(text).replace("\\", "\\\\")


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
