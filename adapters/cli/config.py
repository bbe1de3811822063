"""`defib config`: check a configuration, show what holds, print an example and the unit for systemd."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from defib.adapters.cli.tables import as_json, table, write_json
from defib.adapters.config import trust
from defib.adapters.config.keys import BY_NAME, KEYS, example, written
from defib.adapters.config.load import Config, read
from defib.adapters.show import safe
from defib.engine.errors import ConfigError

SCHEMA = "defib/config/1"
USUAL = Path("/etc/defib/defib.toml")


def found(named: Path | None) -> Path | None:
    """The file that holds: the one named, or the usual one if it is there."""
    return named or (USUAL if USUAL.is_file() else None)


def load(named: Path | None, said: dict[tuple[str, str], tuple[Any, str]] | None = None) -> Config:
    """The configuration with the command line over it. Raises ConfigError, also for files that others may write to when we are root."""
    path = found(named)
    config = read(path, said)
    rules = [Path(p) for p in config("policy", "rules")]
    problems = trust.faults([*([path] if path else []), *(p for p in rules if p.exists())])
    if problems:
        raise ConfigError(problems)
    return config


def check(args: Any) -> int:
    """`defib config check [FILE]`: every fault; nothing to say is good."""
    path = found(args.file)
    if path is None:
        print(f"{USUAL} is not there: everything is as without a file", file=sys.stderr)
        return 0
    config = load(path)
    said = sum(config.set(*name) for name in BY_NAME)
    print(f"{safe(str(path))}: {said} keys, all good")
    if not config("watch", "paths") and not config("slurm", "enabled"):
        print("It names nothing to follow: give paths to 'defib watch', or set [watch] paths or [slurm] enabled.")
    return 0


def show(args: Any) -> int:
    """`defib config show`: every key with its value and who said it."""
    config = load(args.file)
    if args.json:
        keys = [
            {
                "section": k.section,
                "key": k.name,
                "value": config(k.section, k.name),
                "origin": config.origins[k.section, k.name],
            }
            for k in KEYS
        ]
        write_json(as_json({"schema": SCHEMA, "keys": keys, "recovery": config.recovery}))
        return 0
    rows = [
        [f"[{k.section}] {k.name}", _value(k, config(k.section, k.name)), config.origins[k.section, k.name]]
        for k in KEYS
    ]
    table(["KEY", "VALUE", "ORIGIN"], rows)
    return 0


def _value(k: Any, value: Any) -> str:
    if k.kind == "address" and value:
        return f"{value[0]}:{value[1]}"
    return written(k, value) or "-"


def show_example(_args: Any) -> int:
    """`defib config example`: a file to begin with."""
    print(example(), end="")
    return 0


def unit(_args: Any) -> int:
    """`defib config unit`: the service for systemd."""
    from defib.adapters.systemd import unit as text

    print(text(os.path.realpath(sys.argv[0])), end="")
    return 0
