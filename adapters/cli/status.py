"""`defib status`: how the running watch is."""

from __future__ import annotations

import os
from typing import Any

from defib.adapters.cli.tables import as_json, write_json
from defib.adapters.status import ask, rendered

USUAL = "/var/lib/defib"


def status(args: Any) -> int:
    """`defib status`: ask the watch that holds a state folder."""
    said = ask(args.state or os.environ.get("DEFIB_STATE") or USUAL)
    if args.json:
        write_json(as_json(said))
    else:
        print("\n".join(rendered(said)))
    return 0
