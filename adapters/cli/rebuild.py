"""`defib rebuild`: a history made anew from a watch's journal."""

from __future__ import annotations

import sys
from typing import Any

from defib.adapters.show import printable, safe


def rebuild(args: Any) -> int:
    """Fold the whole journal into a new history; with `--salvage` what stands before a damage, and mend the journal."""
    from defib.adapters import daemon, rulefiles

    done = daemon.rebuild(args.state, args.db, rulefiles.load(args.rules), salvage=args.salvage)
    for text in done.notes:
        print("defib: " + "\n".join(safe(part) for part in text.splitlines()), file=sys.stderr)
    print(f"{done.seq} records, {done.jobs} jobs judged, {done.running} running: {safe(printable(args.db))}")
    return 0
