"""The process that builds snapshots: its start.

    python -m binlogd.snapshot.child    a SessionSpec and then ExportSpecs, one line of stdin each;
                                        events on a pipe

A process of its own, started by `export`: a JVM must not share the memory or the fate of whoever
asks. When the parent dies, it dies. It starts the JVM before anything else; PySpark, and what the
job is made of, are imported while that comes up.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from importlib import import_module

import msgspec

from binlogd.host.child import step_back
from binlogd.snapshot.process import gateway
from binlogd.snapshot.spec import EVENTS_FD, SessionSpec

SERVING = "binlogd.snapshot.serving"
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serves specs until stdin ends; the exit code is that of the last one."""
    _die_with_parent()
    step_back()
    events = int(os.environ[EVENTS_FD])
    os.set_inheritable(events, False)
    asked = iter(sys.stdin.buffer)
    spec = msgspec.json.decode(next(asked), type=SessionSpec)
    jvm = gateway.begun(spec)
    code: int = import_module(SERVING).serve(spec, jvm, asked, events)
    return code


def _die_with_parent() -> None:
    """A job whose parent was killed has nobody to publish it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
