"""Peers that vanish without a word: a machine that lost its power, a route that is gone.

Whoever waits for an answer of any length (a DDL, a pull) sends nothing meanwhile, so that only the
kernel can find out. Source: tcp(7).
"""

from __future__ import annotations

import socket

_UNANSWERED_MS = 30_000
_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS),
)
"""Ask after so many seconds of silence, again after so many, so often in vain; and how long what
was sent may lie there without the peer's kernel having it."""


def notice_silence(connected: socket.socket) -> None:
    """Has the kernel end a TCP connection within half a minute of the peer's last sign of life."""
    for level, option, value in _OPTIONS:
        connected.setsockopt(level, option, value)
