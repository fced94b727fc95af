"""Ports that nobody listens on, and that the system gives to nobody meanwhile.

A port out of the range for outgoing connections may be one's own again before a server is back at
it: that of a client elsewhere, or of one that dials just this port and so reaches itself.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.support import machine

_OUTGOING_FROM = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
_EACH = 2000
"""For each of eight workers; where in them one begins differs from run to run."""
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
_FIRST = max(1024, _OUTGOING_FROM - 8 * _EACH) + _WORKER * _EACH
_PORTS = range(_FIRST, _FIRST + _EACH)


def free_port() -> int:
    """One at which a server of a test may be, go and come back. Raises Unavailable."""
    return machine.free_port(_PORTS)
