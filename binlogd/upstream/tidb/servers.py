"""Several TiDBs that know the same: one answers, and when it does not, the next one is asked.

Whoever answered last is asked first, so that a dead server costs its timeout once and not with
every question. Each server is asked once for a question; the caller repeats questions in its own
time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import structlog

from binlogd.errors import UpstreamUnavailable

S = TypeVar("S")
T = TypeVar("T")

log = structlog.get_logger(__name__)


class Several(Generic[S]):
    """Servers, or connections to them, in the order of the configuration."""

    def __init__(self, servers: Sequence[S]) -> None:
        """At least one."""
        self._servers = servers
        self._first = 0

    async def ask(self, question: Callable[[S], Awaitable[T]]) -> T:
        """The answer of the first that gives one. Raises UpstreamUnavailable with the reasons of
        all, when none does."""
        reasons: list[str] = []
        count = len(self._servers)
        for step in range(count):
            at = (self._first + step) % count
            try:
                answer = await question(self._servers[at])
            except UpstreamUnavailable as error:
                reasons.append(str(error))
                continue
            if step:
                log.warning("server_changed", asked_now=str(self._servers[at]), reasons=reasons)
                self._first = at
            return answer
        raise UpstreamUnavailable("; ".join(reasons))
