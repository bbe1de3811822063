"""numpy when it is first used: a scan that finds little never waits the tenth of a second it takes to load.

Out: `np`, the module by its usual name; `loaded`, whether it is there already. Always holds: the same names give the same objects as
`import numpy` does.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy:
        """Looks every name up once, then holds it."""

        def __getattr__(self, name: str) -> Any:
            import numpy

            value = getattr(numpy, name)
            setattr(self, name, value)
            return value

    np = _Numpy()


def loaded() -> bool:
    """Whether using numpy costs nothing more."""
    return "numpy" in sys.modules


__all__ = ["loaded", "np"]
