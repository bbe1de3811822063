"""Which logs on local disks have just been written to: a hint that saves waiting for the next poll, never a proof of silence.

Network file systems tell nothing of what other machines write, often without an error, and the kernel's limits are easily reached; so whatever
goes wrong here only means that there are no hints.
"""

from __future__ import annotations

import os
from typing import Any

from defib.adapters.tail.mountinfo import mount_of, mounts, table


class LocalHints:
    """Call it for the paths written to in these folders (not in those below) since the last call. Folders on other than local file systems
    are left out."""

    def __init__(self, folders: list[bytes], text: bytes | None = None) -> None:
        self._notify: Any = None
        known = mounts(table() if text is None else text)
        self.folders = [f for f in folders if mount_of(f, known).local]
        if not self.folders:
            return
        try:
            from watchfiles._rust_notify import RustNotify

            self._notify = RustNotify([os.fsdecode(f) for f in self.folders], False, False, 0, False, True)
        except Exception:  # whatever the kernel or the library has against it: polling goes on
            self.folders = []

    def __call__(self) -> set[bytes]:
        if self._notify is None:
            return set()
        try:
            seen = self._notify.watch(1, 1, 1, None)
        except Exception:
            self.close()
            return set()
        return {os.fsencode(path) for _, path in seen} if isinstance(seen, set) else set()

    def close(self) -> None:
        if self._notify is not None:
            self._notify.close()
            self._notify = None
