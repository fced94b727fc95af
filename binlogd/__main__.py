"""`python -m binlogd`."""

from __future__ import annotations

import sys

from binlogd.cli import main

if not __debug__:
    sys.exit("binlogd keeps its assertions on: start python without -O")

if __name__ == "__main__":
    main()
