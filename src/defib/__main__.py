"""`python -m defib`."""

import sys

from defib.adapters.cli import main

sys.exit(main())
