"""New rules while the watch runs: loaded and proven in a process of its own, tried beside the old ones for a while, then taken over.

In: a wish to reload, the observer's clock. Out: what to tell. Always holds: a set that does not load is refused and the old one goes on; proving
it costs the main loop nothing; until the end of the trial only the old rules speak; a new set that fails in the trial never speaks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from defib.adapters import rulefiles
from defib.engine.drive import Drive
from defib.engine.errors import ProblemsError
from defib.engine.observe import Observer
from defib.engine.shadow import Shadow, take_over

TOLD_MAX = 20
SAID_MAX = 64 * 1024


@dataclass(slots=True)
class Reload:
    """drive: whose observer is changed. tell(event, fields): for the log. took_over: when the new rules speak, with them. guard: what else
    speaks against a set (who may write to it)."""

    drive: Drive
    folders: list[Path]
    shadow_us: int
    tell: Callable[[str, str, dict[str, Any]], None]
    took_over: Callable[[Any], None] = lambda book: None
    guard: Callable[[], list[Any]] = list
    state: str = "steady"  # steady | proving | shadow
    refused: str = ""
    _child: subprocess.Popen[bytes] | None = None
    _until_us: int = 0
    _wanted: bool = False
    _new: Any = field(default=None)

    def ask(self) -> None:
        """Load again. One that is under way begins anew."""
        self._wanted = True

    def turn(self, now_us: int) -> None:
        """Between two polls."""
        if self._wanted and self._child is None:
            self._wanted = False
            self._begin()
        elif self._child is not None and self._child.poll() is not None:
            self._proven(now_us)
        elif self.state == "shadow" and now_us >= self._until_us:
            self._end()

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()

    def status(self) -> dict[str, Any]:
        """For the status."""
        shadow = self.drive.observer
        differ = len(shadow.differences()) if isinstance(shadow, Shadow) else None
        return {
            "hash": self.drive.state.book.hash[:12],
            "reload": self.state,
            "differences": differ,
            "refused": self.refused or None,
        }

    def _begin(self) -> None:
        problems = self.guard()
        if problems:
            self._refuse("; ".join(str(p).splitlines()[0] for p in problems[:5]))
            return
        self._back()
        self.state = "proving"
        words = [sys.executable, "-P", "-m", "defib.adapters.reload", *map(str, self.folders)]
        self._child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0)  # noqa: S603
        self.tell("info", "rules are loaded anew", {"folders": len(self.folders)})

    def _proven(self, now_us: int) -> None:
        assert self._child is not None
        said, _ = self._child.communicate()
        code, self._child = self._child.returncode, None
        self.state = "steady"
        if code != 0:
            self._refuse(said[:SAID_MAX].decode("utf-8", "replace").strip() or f"exit {code}")
            return
        try:
            new = rulefiles.load(self.folders)  # proven a moment ago: read from the cache
        except ProblemsError as e:
            self._refuse(str(e.problems[0]))
            return
        old = self.drive.observer
        assert isinstance(old, Observer)
        if new.book.hash == old.book.hash:
            self.tell("info", "the rules are the same as before", {"hash": new.book.hash[:12]})
            return
        self.refused = ""
        self.drive.observer = Shadow(old, Observer(new.book, new.databases))
        self.state, self._until_us = "shadow", now_us + self.shadow_us
        self.tell(
            "info",
            "new rules run in the shadow of the old",
            {"hash": new.book.hash[:12], "for_s": self.shadow_us // 1_000_000},
        )

    def _end(self) -> None:
        shadow = self.drive.observer
        assert isinstance(shadow, Shadow)
        if shadow.failed is not None:
            self._back()
            self._refuse(shadow.failed)
            return
        found = shadow.differences()
        for d in found[:TOLD_MAX]:
            self.tell(
                "warning" if d.less else "info",
                "a rule hits other lines now",
                {"rule": d.rule, "more": d.more, "less": d.less},
            )
        new = shadow.observer
        take_over(self.drive.state, new.book)
        self.drive.observer = new
        self.state = "steady"
        self.took_over(new.book)
        fields = {"hash": new.book.hash[:12], "lines": shadow.lines, "differences": len(found)}
        self.tell("info", "new rules have taken over", fields)

    def _back(self) -> None:
        """Only the old rules, as before."""
        if isinstance(self.drive.observer, Shadow):
            self.drive.observer = self.drive.observer.old
        self.state = "steady"

    def _refuse(self, why: str) -> None:
        self.refused = why[:500]
        self.tell("error", "new rules are refused, the old ones go on", {"why": why[:2000]})


def main() -> int:
    """Prove rule folders and leave them in the cache; what is wrong on standard output."""
    try:
        rulefiles.load([Path(a) for a in sys.argv[1:]])
    except ProblemsError as e:
        sys.stdout.write("\n".join(str(p) for p in e.problems[:50]) + "\n")
        return 2
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
