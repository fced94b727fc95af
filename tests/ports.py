"""Ports that nobody listens on, and that the system gives to nobody meanwhile.

A port out of the range for outgoing connections may be one's own again before a server is back at
it: that of a client elsewhere, or of one that dials just this port and so reaches itself.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import count
from pathlib import Path

_OUTGOING_FROM = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
_EACH = 2000
"""For each of eight workers; where in them one begins differs from run to run."""
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
_FIRST = max(1024, _OUTGOING_FROM - 8 * _EACH) + _WORKER * _EACH
_NUMBERS = count(os.getpid() * 37)


def free_port() -> int:
    """One at which a server of a test may be, go and come back. Raises RuntimeError."""
    for number in (next(_NUMBERS) for _ in range(_EACH)):
        port = _FIRST + number % _EACH
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("every port for tests is taken")
