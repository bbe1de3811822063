"""What the daemon says of itself, on standard error: one record a line, machine-readable, steered by nobody.

In: a level, what happened (a constant text), fields. Out: logfmt or JSON lines. Always holds: whatever stands in a field is escaped, so a
record is one line and no line can be forged; the same event is told at most five times a minute, and then how many more there were.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from defib.adapters.show import safe

LEVELS = ("debug", "info", "warning", "error")
BURST, WINDOW_S, EVENTS_MAX, TEXT_MAX = 5, 60.0, 1000, 2000


def to_stderr(text: str) -> None:
    """One line, at once. Nobody there to read it is no reason to die."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


@dataclass(slots=True)
class Window:
    """How often an event was told since when, and how often it was not."""

    since_s: float
    told: int = 0
    more: int = 0


@dataclass(slots=True)
class SelfLog:
    """level: the least that is said. form: logfmt | json. now_s: Unix time; monotonic_s: for the windows."""

    level: str = "info"
    form: str = "logfmt"
    write: Callable[[str], None] = to_stderr
    now_s: Callable[[], float] = time.time
    monotonic_s: Callable[[], float] = time.monotonic
    _windows: dict[tuple[str, str], Window] = field(default_factory=dict)

    def debug(self, event: str, **fields: Any) -> None:
        self.say("debug", event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        self.say("info", event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        self.say("warning", event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        self.say("error", event, **fields)

    def say(self, level: str, event: str, **fields: Any) -> None:
        """One record, unless the level is too low or it was told often enough."""
        if LEVELS.index(level) < LEVELS.index(self.level):
            return
        self.flush()
        window = self._windows.setdefault((level, event), Window(self.monotonic_s()))
        if window.told >= BURST:
            window.more += 1
            return
        window.told += 1
        self._out(level, event, fields)

    def flush(self) -> None:
        """Tell how many there were more, of windows that are over."""
        now = self.monotonic_s()
        for (level, event), w in list(self._windows.items()):
            if now - w.since_s < WINDOW_S and len(self._windows) <= EVENTS_MAX:
                continue
            del self._windows[level, event]
            if w.more:
                self._out(level, event, {"more_like_this": w.more, "in_s": round(now - w.since_s)})

    def _out(self, level: str, event: str, fields: dict[str, Any]) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now_s()))
        record = {
            "time": at,
            "level": level,
            "event": event,
            **{k: _plain(v) for k, v in fields.items() if v is not None},
        }
        if self.form == "json":
            self.write(safe(orjson.dumps(record).decode()))
        else:
            self.write(" ".join(f"{k}={_word(v)}" for k, v in record.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value if not isinstance(value, int) or -(2**63) <= value < 2**64 else str(value)
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return safe(text.encode("utf-8", "backslashreplace").decode()[:TEXT_MAX])


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if text and not any(c in ' "=\\' for c in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
