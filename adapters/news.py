"""News for people: a command that gets each as JSON on its standard input, a web hook that gets the same.

In: `Notify`. Out: nothing that matters to decisions: what cannot be delivered is told and dropped, the oldest first, and nobody waits for it. Always
holds: text of news never stands in an argument or an address; one delivery at a time, each with a deadline.
"""

from __future__ import annotations

import collections
import subprocess
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from defib.adapters.show import printable, safe
from defib.engine.recover.words import Notify

QUEUE_MAX = 1000
DEADLINE_S = 15.0
FAILURES_TOLD_S = 600.0


@dataclass(slots=True)
class News:
    """Deliver news. command: an argument list; hook: an address. Without either they are dropped (the audit has them)."""

    command: tuple[str, ...] = ()
    hook: str | None = None
    say: Callable[[str], None] = lambda text: None
    deadline_s: float = DEADLINE_S
    failed: int = 0
    _queue: collections.deque[bytes] = field(default_factory=lambda: collections.deque(maxlen=QUEUE_MAX))
    _wake: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _ending: bool = False

    def __call__(self, notify: Notify) -> None:
        if not self.command and self.hook is None:
            return
        self._queue.append(
            orjson.dumps(
                {
                    "schema": "defib/news/1",
                    "kind": notify.kind,
                    "key": notify.key,
                    "case": notify.case,
                    "sentence": safe(printable(notify.sentence)),
                }
            )
        )
        if self._thread is None:
            self._thread = threading.Thread(target=self._deliver, name="news", daemon=True)
            self._thread.start()
        self._wake.set()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def close(self, patience_s: float = 2.0) -> None:
        """What waits gets a moment."""
        self._ending = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(patience_s)

    def _deliver(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                body = self._queue.popleft()
                for act in (self._run, self._post):
                    try:
                        act(body)
                    except (OSError, ValueError, subprocess.SubprocessError) as e:
                        self.failed += 1
                        if self.failed in (1, 10, 100) or self.failed % 1000 == 0:
                            self.say(f"news could not be delivered ({self.failed} so far): {type(e).__name__}")
            if self._ending:
                return

    def _run(self, body: bytes) -> None:
        if self.command:
            subprocess.run(  # noqa: S603 - an argument list of the configuration
                list(self.command), input=body, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=self.deadline_s, check=True,
                env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}, close_fds=True,
            )  # fmt: skip

    def _post(self, body: bytes) -> None:
        if self.hook is not None:
            request = urllib.request.Request(self.hook, body, {"Content-Type": "application/json"}, method="POST")  # noqa: S310 - http(s) only, see `rescue.checked`
            with urllib.request.urlopen(request, timeout=self.deadline_s) as answer:  # noqa: S310
                answer.read(1024)
