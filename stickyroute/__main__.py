"""`python -m stickyroute` is the `stickyroute` command."""

from __future__ import annotations

import sys

from stickyroute.cli import main

if __name__ == "__main__":
    sys.exit(main())
