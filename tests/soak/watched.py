"""`binlogd serve` that tells what it holds: at SIGUSR2 it counts, and writes the counts to the file
that WATCHED_OBJECTS names. The program itself is as it is.

    WATCHED_OBJECTS=counts.json python -m tests.soak.watched serve --config ...
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from binlogd.host.threads import Threads
from tests.support.held import long_containers, objects_of_process

VARIABLE = "WATCHED_OBJECTS"
TYPES_MAX = 60
DESCRIPTORS_MAX = 4_096


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _memory() -> dict[str, int]:
    """What is in use, and what the allocator of C holds for later: Python's small objects by
    number, everything larger in bytes."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    of_c = mallinfo()
    return {
        "blocks": sys.getallocatedblocks(),
        "bytes_in_use": of_c.uordblks + of_c.hblkhd,
        "bytes_for_later": of_c.fordblks,
    }


def _tell(*_: Any) -> None:
    """Counts in a copy of the process: a list of all objects, and what is kept from the collector
    while it is made, would be memory of the process that is measured."""
    memory, threads = _memory(), len(os.listdir("/proc/self/task"))
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:
            os.closerange(3, DESCRIPTORS_MAX)  # a lock or a port would outlive the process
            _count(memory, threads)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(0)


def _count(memory: dict[str, int], threads: int) -> None:
    target = Path(os.environ[VARIABLE])
    gc.unfreeze()
    containers = long_containers()  # first: what has looked at attributes leaves dicts
    objects = objects_of_process()
    every = gc.get_objects()
    begun = sum(len(each._begun) for each in every if isinstance(each, Threads))
    begun += sum(len(each._threads) for each in every if isinstance(each, ThreadPoolExecutor))
    found = {
        "containers": dict(containers),
        "objects": sum(objects.values()),
        "lasting_threads": threads - begun,
        "memory": memory,
        "types": dict(objects.most_common(TYPES_MAX)),
    }
    beside = target.with_suffix(".new")
    beside.write_text(json.dumps(found))
    beside.replace(target)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _tell)
    runpy.run_module("binlogd", run_name="__main__", alter_sys=True)
