"""Every key of the configuration: its section, kind, default, bounds and what it is for. The example file, the checks and `config show` are
made from this table, so they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SECOND = 1_000_000
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Key:
    """kind: text | texts | path | paths | yes-no | number | time (microseconds) | size (bytes) | address. low, high: bounds of numbers; words:
    the only texts allowed. A default of None: not set."""

    section: str
    name: str
    kind: str
    default: Any
    about: str
    example: str = ""
    low: int = 0
    high: int = 2**62
    words: tuple[str, ...] = ()


SECTIONS = {
    "watch": "What is followed.",
    "slurm": "Asking the scheduler.",
    "state": "What is remembered.",
    "limits": "What one job or one user may cost. 0: no limit. What is over a limit is told: bytes and logs are read later, records counted.",
    "metrics": "Numbers for Prometheus.",
    "log": "What the daemon says of itself, on standard error.",
    "policy": "Rules and policies of this site.",
    "recovery": "Acting on jobs. Read by the part that acts.",
}
OPAQUE = ("recovery",)

KEYS = (
    Key("watch", "paths", "texts", (), "files, folders and globs to follow besides what the scheduler names", '["/shared/logs"]'),
    Key("watch", "every", "time", 10 * SECOND, "how often logs that grow are looked at", '"10s"', SECOND // 10, 86_400 * SECOND),
    Key("watch", "roots", "paths", (), "folders beneath which the scheduler may name logs", '["/home", "/scratch"]'),
    Key("watch", "cluster", "text", None, "name of the cluster", '"alpha"'),
    Key("watch", "silent", "time", 20 * SECOND, "a mount that has not answered for so long has hung", '"20s"', SECOND, 3600 * SECOND),
    Key("slurm", "enabled", "yes-no", False, "ask Slurm which jobs run and where they write", "true"),
    Key("slurm", "interval", "time", 10 * SECOND, "between two questions", '"10s"', SECOND, 3600 * SECOND),
    Key("slurm", "settle", "time", 30 * SECOND, "so long an end has to stand before it is believed", '"30s"', SECOND, 3600 * SECOND),
    Key("slurm", "prefix", "texts", (), "words before every command", '["ssh", "head1"]'),
    Key("slurm", "shell", "yes-no", False, "the words after the prefix pass through a shell (ssh)", "true"),
    Key("slurm", "bin_dir", "path", None, "where squeue and scontrol are", '"/usr/bin"'),
    Key("slurm", "conf", "path", None, "a slurm.conf that is not in the usual place", '"/etc/slurm/slurm.conf"'),
    Key("slurm", "templates", "texts", (), "globs of per-step logs", '["{work_dir}/logs/{job_id}/rank_*.log"]'),
    Key("slurm", "users", "texts", (), "only jobs of these users; none: all", '["ann"]'),
    Key("slurm", "partitions", "texts", (), "only jobs of these partitions; none: all", '["gpu"]'),
    Key("state", "directory", "path", None, "journal, history and sockets; a local disk", '"/var/lib/defib"'),
    Key("state", "retention", "size", 20 * GIB, "of the journal, beyond which closed jobs are deleted", '"20G"', GIB // 16),
    Key("state", "group", "text", None, "a group whose members may ask the history and the status", '"ops"'),
    Key("limits", "job_files", "number", 20_000, "logs of one job followed at once", "20000"),
    Key("limits", "user_files", "number", 100_000, "logs of one user followed at once", "100000"),
    Key("limits", "job_bytes_per_s", "size", 64 * 1024**2, "read of one job", '"64M"'),
    Key("limits", "user_bytes_per_s", "size", 128 * 1024**2, "read of one user", '"128M"'),
    Key("limits", "job_records", "number", 5_000_000, "records kept of one job; those beyond are counted by rule and told", "5000000"),
    Key("limits", "user_records", "number", 50_000_000, "records kept of all running jobs of one user", "50000000"),
    Key("metrics", "listen", "address", None, "where to answer", '"127.0.0.1:9788"'),
    Key("metrics", "anywhere", "yes-no", False, "allow an address that is not of this machine only", "false"),
    Key("log", "level", "text", "info", "the least that is said", '"info"', words=("debug", "info", "warning", "error")),
    Key("log", "form", "text", "logfmt", "how it is written", '"json"', words=("logfmt", "json")),
    Key("policy", "rules", "paths", (), "folders of rules and policies beside those shipped", '["/etc/defib/rules"]'),
    Key("policy", "shadow", "time", 600 * SECOND, "how long new rules run beside the old before they speak", '"10m"', 0, 86_400 * SECOND),
)  # fmt: skip
BY_NAME = {(k.section, k.name): k for k in KEYS}


def example() -> str:
    """A whole file with every key: those without a default commented out, the others as they are without a file."""
    out = ["# Configuration of defib. Every key may be left out; what stands here is what holds without it.\n"]
    for section, about in SECTIONS.items():
        out.append(f"\n# {about}\n[{section}]\n")
        for k in (k for k in KEYS if k.section == section):
            unset = k.default in (None, ())
            text = f"{k.name} = {k.example if unset else written(k, k.default)}"
            out.append(f"# {k.about}\n{'# ' if unset else ''}{text}\n")
    return "".join(out)


def written(k: Key, value: Any) -> str:
    """A value as TOML."""
    if value is None:
        return ""
    if k.kind == "yes-no":
        return "true" if value else "false"
    if k.kind == "time":
        return f'"{_time(value)}"'
    if k.kind == "size":
        return f'"{_size(value)}"' if value else "0"
    if k.kind in ("texts", "paths"):
        return "[" + ", ".join(_quoted(v) for v in value) + "]"
    return str(value) if k.kind == "number" else _quoted(str(value))


def _quoted(text: str) -> str:
    escaped = "".join(
        f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else f"\\{c}" if c in '"\\' else c for c in text
    )
    return f'"{escaped}"'


def _time(us: int) -> str:
    for unit, size in (("h", 3600 * SECOND), ("m", 60 * SECOND), ("s", SECOND)):
        if us and us % size == 0:
            return f"{us // size}{unit}"
    return f"{us // 1000}ms" if us else "0s"


def _size(n: int) -> str:
    for unit, size in (("G", GIB), ("M", 1024**2), ("K", 1024)):
        if n % size == 0:
            return f"{n // size}{unit}"
    return str(n)
