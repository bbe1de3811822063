"""A configuration file -> checked settings, or every fault at once with its line and mend.

In: TOML text, what the command line says. Out: `Config`, which knows of every value where it comes from. Always holds: an unknown key,
a wrong kind, a value out of bounds and settings that contradict each other are all told in one go; what the command line says wins.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from defib.adapters.config.keys import BY_NAME, KEYS, OPAQUE, SECOND, SECTIONS, Key
from defib.adapters.config.lines import places
from defib.adapters.show import printable
from defib.adapters.slurm.paths import template_fault
from defib.engine.errors import ConfigError, Problem

TIME = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|d)", re.ASCII)
SIZE = re.compile(r"(\d{1,12})(K|M|G|T)?(?:i?B)?", re.ASCII)
UNITS = {"ms": 1_000, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": 86_400 * SECOND}
SIZES = {None: 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
DEFAULT, FILE_MAX = "default", 1024 * 1024


@dataclass(frozen=True, slots=True)
class Config:
    """Values and where each comes from: `default`, `FILE:LINE`, or an option. recovery: that table as it stands."""

    values: Mapping[tuple[str, str], Any]
    origins: Mapping[tuple[str, str], str]
    recovery: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None

    def __call__(self, section: str, name: str) -> Any:
        return self.values[section, name]

    def set(self, section: str, name: str) -> bool:
        """Whether somebody has said it."""
        return self.origins[section, name] != DEFAULT


def read(path: Path | None, said: Mapping[tuple[str, str], tuple[Any, str]] | None = None) -> Config:
    """The file (or none) with what the command line said laid over: (section, name) -> (value, option). Raises ConfigError."""
    if path is None:
        return parse("", "", said)
    shown = printable(str(path))
    try:
        text, why = _text_of(path)
    except (OSError, UnicodeDecodeError) as e:
        text, why = "", (e.strerror if isinstance(e, OSError) else None) or str(e)
    if why:
        mend = "a configuration is a TOML file in UTF-8"
        raise ConfigError([Problem(shown, 1, 1, f"cannot be read: {why}", mend, unread=True)])
    return parse(text, shown, said)


def _text_of(path: Path) -> tuple[str, str]:
    """(text, "") or ("", what is wrong). A named pipe would be waited for, so only regular files are opened."""
    if not path.is_file():
        return "", "not a regular file" if path.exists() else "no such file"
    if path.stat().st_size > FILE_MAX:
        return "", "larger than a configuration can be"
    return path.read_text(encoding="utf-8"), ""


def parse(text: str, shown: str, said: Mapping[tuple[str, str], tuple[Any, str]] | None = None) -> Config:
    """TOML text, shown under a name. Raises ConfigError."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(e))
        line, column = (int(at[1]), int(at[2])) if at else (text.count("\n") + 1, 1)
        message = re.sub(r" \(at .*\)", "", str(e)) or "nested too deep"
        raise ConfigError([Problem(shown, line, column, message[:1].lower() + message[1:], "see toml.io")]) from e
    where = places(text.replace("\r\n", "\n"))
    reader = _Reader(shown, where)
    values = {(k.section, k.name): k.default for k in KEYS}
    origins = dict.fromkeys(values, DEFAULT)
    for section, table in data.items():
        reader.section(section, table, values, origins)
    for name, (value, option) in (said or {}).items():
        values[name], origins[name] = value, option
    reader.together(values, origins)
    if reader.problems:
        raise ConfigError(sorted(reader.problems, key=lambda p: (p.line, p.column)))
    recovery = data.get("recovery", {})
    return Config(values, origins, recovery if isinstance(recovery, dict) else {}, shown or None)


class _WrongError(ValueError):
    """What is wrong with a value, and how to mend it."""


class _Reader:
    """Faults as they are found."""

    def __init__(self, shown: str, where: Mapping[tuple[str, str], int]) -> None:
        self.problems: list[Problem] = []
        self._shown, self._where = shown, where

    def section(self, section: str, table: Any, values: dict[Any, Any], origins: dict[Any, str]) -> None:
        if section not in SECTIONS:
            self._tell(section, "", f"there is no section [{printable(section)}]", near(section, SECTIONS))
            return
        if not isinstance(table, dict):
            self._tell(section, "", f"[{section}] is a section, not a value", f"write [{section}] on a line of its own")
            return
        for name, value in () if section in OPAQUE else table.items():
            key = BY_NAME.get((section, name))
            if key is None:
                known = [k.name for k in KEYS if k.section == section]
                homes = [k.section for k in KEYS if k.name == name]
                mend = f"it belongs in {' or '.join(f'[{h}]' for h in homes)}" if homes else near(name, known)
                self._tell(section, name, f"[{section}] has no key '{printable(name)}'", mend)
                continue
            try:
                values[section, name] = value_of(key, value)
                origins[section, name] = f"{self._shown}:{self._where.get((section, name), 1)}"
            except _WrongError as e:
                self._tell(section, name, f"[{section}] {name}: {e.args[0]}", e.args[1])

    def together(self, values: Mapping[tuple[str, str], Any], origins: Mapping[tuple[str, str], str]) -> None:
        """What must fit."""
        if values["slurm", "enabled"] and not values["watch", "roots"]:
            mend = 'name the folders users may write logs to: [watch] roots = ["/home"]'
            self._tell("slurm", "enabled", "[slurm] enabled: the scheduler names paths, and none is allowed", mend)
        listen = values["metrics", "listen"]
        if listen and not values["metrics", "anywhere"] and not _own(listen[0]):
            mend = 'listen on "127.0.0.1:9788", or set anywhere = true'
            self._tell("metrics", "listen", f"[metrics] listen: {listen[0]} is reached from other machines", mend)
        for text in values["slurm", "templates"]:
            if (fault := template_fault(text)) is not None:
                self._tell(
                    "slurm", "templates", f"[slurm] templates: {fault}", 'e.g. "{work_dir}/logs/{job_id}/rank_*.log"'
                )

    def _tell(self, section: str, name: str, message: str, mend: str) -> None:
        line = self._where.get((section, name)) or self._where.get((section, "")) or 1
        self.problems.append(Problem(self._shown or "command line", line, 1, message, mend))


def near(name: str, known: Any) -> str:
    """A mend for a word that is none of those known."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean '{close[0]}'?" if close else f"one of {', '.join(known)}"


def value_of(k: Key, value: Any) -> Any:
    """A value of the file as its key wants it. Raises _WrongError."""
    wrong = f"{_kind(value)} is not what is wanted"
    match k.kind:
        case "yes-no":
            if not isinstance(value, bool):
                raise _WrongError(wrong, "true or false, without quotes")
            return value
        case "number":
            if not isinstance(value, int) or isinstance(value, bool):
                raise _WrongError(wrong, f"a whole number, such as {k.example}")
            return _bounded(k, value)
        case "time":
            found = TIME.fullmatch(value) if isinstance(value, str) else None
            if found is None and value != "0s":
                raise _WrongError(wrong, f"a time in quotes, such as {k.example}")
            return _bounded(k, round(float(found[1]) * UNITS[found[2]]) if found else 0)
        case "size":
            if isinstance(value, int) and not isinstance(value, bool):
                return _bounded(k, value)
            found = SIZE.fullmatch(value) if isinstance(value, str) else None
            if found is None:
                raise _WrongError(wrong, f"a size in quotes, such as {k.example}")
            return _bounded(k, int(found[1]) * SIZES[found[2]])
        case "address":
            return _address(value) if value != "" else None
        case "texts" | "paths":
            return _texts(k, value)
        case _:
            return _one_text(k, value)


def _one_text(k: Key, value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _WrongError(f"{_kind(value)} is not what is wanted", f"a text in quotes, such as {k.example}")
    if k.words and value not in k.words:
        raise _WrongError(f"'{printable(value)}' is none of its words", near(value, k.words))
    if k.kind in ("path", "paths") and not os.path.isabs(value):
        raise _WrongError(
            f"'{printable(value)}' is no absolute path", "begin with a slash: a daemon has no folder of its own"
        )
    return value


def _texts(k: Key, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _WrongError(f"{_kind(value)} is not what is wanted", f"a list, such as {k.example}")
    return tuple(_one_text(k, v) for v in value)


def _address(value: Any) -> tuple[str, int]:
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not port.isascii() or not port.isdigit() or not 0 <= int(port) < 65536:
        raise _WrongError(f"{_kind(value)} is no address", 'host and port, such as "127.0.0.1:9788"')
    host = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise _WrongError(
            f"'{printable(host)}' is no address", "an IP address or localhost, so that nothing is looked up"
        ) from None
    return ("127.0.0.1" if host == "localhost" else host), int(port)


def _own(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def _bounded(k: Key, value: int) -> int:
    if not k.low <= value <= k.high or not math.isfinite(value):
        most = "" if k.high >= 2**62 else f" and at most {k.high}"
        unit = {"time": " microseconds", "size": " bytes"}.get(k.kind, "")
        raise _WrongError(f"{value}{unit} is out of bounds", f"at least {k.low}{most}{unit}, such as {k.example}")
    return value


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f"'{printable(value[:60])}'"
    kinds = {bool: "yes or no", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return kinds.get(type(value), "a date")
