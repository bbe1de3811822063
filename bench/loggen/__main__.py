"""`python bench/loggen OUT --preset demo --seed 7`: the command line, by path or with -m."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# By path, Python puts the package itself on sys.path; its modules must be reached through the package only.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from loggen.cli import main  # noqa: E402  (the path is set first)

if __name__ == "__main__":
    raise SystemExit(main())
