"""What has to be looked at right before a call: the kill switch, and who holds the cluster's lock.

In: paths. Out: yes or no, a number. Always: what cannot be looked at counts as "stop".
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from defib.adapters.journal import place

STOP = "STOP"  # in the state folder: `touch STOP` and nothing is called any more


def stopped(paths: Iterable[str]) -> bool:
    """Whether a kill switch is there: any file, folder or link of that name, or a path that cannot be looked at."""
    for path in paths:
        try:
            os.lstat(path)
        except FileNotFoundError:
            continue
        except OSError:
            return True
        return True
    return False


def newest_epoch(actions: str) -> int:
    """The epoch of the newest controller, from its lock file. Raises OSError, ValueError where it cannot be read."""
    words = place.load(os.path.join(actions, "lock")).split()
    if len(words) != 2:
        raise ValueError("the lock file tells no epoch")
    return int(words[0])
