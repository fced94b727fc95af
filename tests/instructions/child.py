"""Does the paths under callgrind, each to warm up and then to be counted: see `gate`.

`python -m tests.instructions.child LIBRARY NAME ...`; says a JSON line for each path.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import sys

import structlog

from binlogd import native
from tests.instructions.paths import prepared_path

WARM_UPS, TIMES = 2, 5
"""Each path is counted so often, and the fewest instructions are taken: threads add some to one
time and not to another, and the first times with threads take more than twice as many."""
SWITCH_S = 1000.0
"""A thread keeps the interpreter until it waits: else it is taken away every five milliseconds of a
clock that runs on while valgrind, or another program, has the processor."""


def main(library: str, *names: str) -> None:
    """Counts them in this order."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    valgrind = ctypes.CDLL(library)
    if not valgrind.running():
        raise SystemExit("this counts nothing without valgrind: python -m tests.instructions.gate")
    sys.setswitchinterval(SWITCH_S)
    gc.disable()  # whether it comes in a path is chance
    for name in names:
        with prepared_path(name) as work:
            for _ in range(WARM_UPS):
                work.run()
            for _ in range(TIMES):
                gc.collect()
                valgrind.begin()
                work.run()
                valgrind.end(name.encode())
        told = {"path": name, "items": work.items, "unit": work.unit, "form": native.form()}
        sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
