"""Peers that vanish without a word: a machine that lost its power, a route that is gone; and
those that are there and take nothing.

Whoever waits for an answer of any length (a DDL, a pull) sends nothing meanwhile, so that only the
kernel can find out. Source: tcp(7).
"""

from __future__ import annotations

import socket
from asyncio import WriteTransport

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


def cut(transport: WriteTransport) -> None:
    """Ends a connection at once; what was written and is not taken is lost.

    By TLS a word is said, and not waited for an answer, as RFC 8446 6.1 has it: the connection
    would outlive whoever closed it, half a minute if the other side is silent, and for ever one to
    a peer that takes nothing.
    """
    if not transport.is_closing():  # after a second time asyncio's TLS cannot be aborted
        transport.close()
    transport.abort()
