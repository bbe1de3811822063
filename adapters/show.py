"""Text that came from a log, a path or a job's name, made safe for a terminal, a table or a spreadsheet.

Hostile until shown here: control characters (C0, C1, DEL), bidirectional overrides, line and paragraph separators and zero-width
characters become visible escapes, so no line can move the cursor, recolour, retitle, or hide itself.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime

UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]|[\U000e0000-\U000e007f]"
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def safe(text: str) -> str:
    """The text with every character that could steer a terminal written as an escape."""
    return UNSAFE.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text)


def cut(text: str, width: int) -> str:
    """At most width characters, the cut marked."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def cell(value: object) -> str:
    """A value for a table: unknown is a dash, numbers short, lists joined."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, datetime):
        return value.replace(microsecond=0).isoformat(sep=" ")
    if isinstance(value, list):
        return safe(", ".join(str(v) for v in value)) or "-"
    return safe(str(value))


def csv_cell(value: object) -> str:
    """A value for CSV; text a spreadsheet would run as a formula gets a quote in front."""
    if value is None:
        return ""
    if isinstance(value, str):
        text = safe(value)
        return "'" + text if text.startswith(_FORMULA) else text
    if isinstance(value, list | dict | tuple):
        return csv_cell(cell(list(value) if not isinstance(value, dict) else str(value)))
    return cell(value) if isinstance(value, datetime) else safe(str(value))


def number(value: float) -> str:
    """Four significant digits, no exponent in the usual range."""
    if value != value or value in (float("inf"), float("-inf")):
        return "nan" if value != value else "inf"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10000 else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """`1.40 s`, `83 ms`, `2 m 07 s`, `3 h 05 m`."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    return f"{whole // 60} m {whole % 60:02d} s" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60:02d} m"


def size(n: float) -> str:
    """Bytes in decimal units, as disks are sold."""
    for unit in ("B", "KB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def when(us: int | None) -> str:
    """Microseconds UTC as a UTC stamp (logs without a zone are read as UTC, so no local time is claimed)."""
    if us is None:
        return "-"
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")


def shown(path: str) -> str:
    """An absolute path without links as text; bytes that are not UTF-8 as escapes, backslashes doubled, so no two paths look alike."""
    return printable(os.path.realpath(path))


def printable(path: str) -> str:
    """A path or argument as text: bytes that are not UTF-8 as escapes, backslashes doubled."""
    return os.fsencode(path).replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def decodable(text: str) -> str:
    """An argument as valid text: bytes that are not UTF-8 become replacement characters, nothing else changes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
