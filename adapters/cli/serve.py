"""`defib watch` with a memory: the settings of a file and of the command line -> a running service."""

from __future__ import annotations

import grp
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from defib.adapters import daemon, wire
from defib.adapters.cli.config import load
from defib.adapters.config import trust
from defib.adapters.config.load import Config, read
from defib.adapters.service import Service
from defib.adapters.show import printable
from defib.adapters.sqlserver import Limits as SqlLimits
from defib.adapters.tail.limits import Limits
from defib.engine.errors import ConfigError, Problem

OPTIONS = (
    ("every", "watch", "every"),
    ("cluster", "watch", "cluster"),
    ("state", "state", "directory"),
    ("keep", "state", "retention"),
    ("slurm", "slurm", "enabled"),
    ("ask_every", "slurm", "interval"),
    ("bin_dir", "slurm", "bin_dir"),
    ("conf", "slurm", "conf"),
)


def watch(args: Any, ears: wire.Ears, alarm: Callable[[str], None]) -> wire.Watched:
    """Until a signal. Raises ConfigError, RuleError, StoreError."""
    said = {
        (section, key): (v, f"--{name.replace('_', '-')}")
        for name, section, key in OPTIONS
        if (v := getattr(args, name)) is not None
    }
    lists = {
        ("watch", "paths"): ("command line", args.paths),
        ("watch", "roots"): ("--root", list(map(os.path.abspath, args.root))),
        ("slurm", "prefix"): ("--prefix", shlex.split(args.prefix or "")),
        ("slurm", "templates"): ("--template", args.template),
    }
    said |= {key: (tuple(values), origin) for key, (origin, values) in lists.items() if values}
    if args.shell:
        said["slurm", "shell"] = (True, "--shell")
    config = read(None, said) if args.config is None else load(args.config, said)
    folder = config("state", "directory")
    _complete(config, folder)
    rules = [Path(p) for p in config("policy", "rules")] + args.rules
    options = wire.WatchOptions(
        list(config("watch", "paths")),
        rules,
        config("watch", "cluster"),
        config("watch", "every"),
        args.once_idle,
        config("watch", "roots"),
        config("watch", "silent"),
        _limits(config) if args.config is not None else None,
    )
    group = args.sql_group if args.sql_group is not None else _gid(config)
    keeping = daemon.Keeping(
        most_bytes=config("state", "retention"),
        limits=SqlLimits(group=group),
        job_records=config("limits", "job_records"),
        user_records=config("limits", "user_records"),
    )
    service = Service(config, rules, lambda: trust.faults(rules), group)
    if args.config is None:
        service.log.level = "error"  # a person at a terminal sees the changes of health

    def say(text: str) -> None:
        if args.config is not None:
            service.alarm(text)
        else:
            alarm(text)
            service.note(text)

    before = os.umask(0o077)  # what logs say is nobody else's business
    try:
        return daemon.watch(options, folder, ears, say, keeping, service=service)
    finally:
        os.umask(before)


def _complete(config: Config, folder: str | None) -> None:
    """What a service cannot be without."""
    problems, where = [], config.path or "command line"
    if folder is None:
        mend = 'give --state DIR, or [state] directory = "/var/lib/defib"'
        problems.append(Problem(where, 1, 1, "[state] directory: a service remembers, and is told where", mend))
    if not config("watch", "paths") and not config("slurm", "enabled"):
        mend = "name files, folders or globs, or set [watch] paths or [slurm] enabled"
        problems.append(Problem(where, 1, 1, "nothing to follow", mend))
    if problems:
        raise ConfigError(problems)


def _limits(config: Config) -> Limits:
    return Limits(
        job_files=config("limits", "job_files"),
        user_files=config("limits", "user_files"),
        job_bytes_s=config("limits", "job_bytes_per_s"),
        user_bytes_s=config("limits", "user_bytes_per_s"),
    )


def _gid(config: Config) -> int | None:
    name = config("state", "group")
    if name is None:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        where, _, line = config.origins["state", "group"].rpartition(":")
        raise ConfigError(
            [Problem(where, int(line), 1, f"[state] group: there is no group '{printable(name)}'", "see getent group")]
        ) from None
