"""Answers to the pings of a connection, kept back for the next answer to a call.

A client of grpc-go sends a ping with nearly each call, or for each answer: a write for each would
cost both ends as much as the call's own answer.
"""

from __future__ import annotations

import asyncio

from binlogd.grpc.frames import ACK, PING, frame

_BYTES_MAX = 1 << 10
_PONG_S = 0.05  # so long may an answer to a ping wait for one to a call


class Pongs:
    """Those of one connection; whoever writes next takes `waiting` along."""

    def __init__(self) -> None:
        self.waiting = b""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, ping: bytes, transport: asyncio.Transport) -> None:
        """Answers a ping, at the latest in `_PONG_S` seconds; at once where many wait."""
        self.waiting += frame(PING, ACK, 0, ping)
        if len(self.waiting) > _BYTES_MAX:
            self.write(transport)
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_PONG_S, self._write_late, transport)

    def write(self, transport: asyncio.Transport) -> None:
        """By themselves."""
        waiting, self.waiting = self.waiting, b""
        if not transport.is_closing():
            transport.write(waiting)

    def _write_late(self, transport: asyncio.Transport) -> None:
        self._timer = None
        self.write(transport)
