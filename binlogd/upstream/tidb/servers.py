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
from binlogd.status import UpstreamPart

S = TypeVar("S")
T = TypeVar("T")

log = structlog.get_logger(__name__)


class Several(Generic[S]):
    """Servers, or connections to them, in the order of the configuration."""

    def __init__(self, servers: Sequence[S], name: str = "tidb") -> None:
        """At least one. `name` stands for them in status and metrics."""
        self._servers, self._name = servers, name
        self._first = 0
        self._requests = self._errors = self._changes = 0
        self._trouble = ""

    async def ask(self, question: Callable[[S], Awaitable[T]]) -> T:
        """The answer of the first that gives one. Raises UpstreamUnavailable with the reasons of
        all, when none does."""
        reasons: list[str] = []
        self._requests += 1
        count = len(self._servers)
        for step in range(count):
            at = (self._first + step) % count
            try:
                answer = await question(self._servers[at])
            except UpstreamUnavailable as error:
                self._errors += 1
                reasons.append(str(error))
                continue
            self._trouble = ""
            if step:
                self._changes += 1
                log.warning("server_changed", asked_now=str(self._servers[at]), reasons=reasons)
                self._first = at
            return answer
        self._trouble = "; ".join(reasons)
        raise UpstreamUnavailable(self._trouble)

    def statistics(self) -> UpstreamPart:
        """Who answers, and how often not. A change of the server counts as one of the leader."""
        return UpstreamPart(
            name=self._name,
            address="" if self._trouble else str(self._servers[self._first]),
            trouble=self._trouble,
            requests=self._requests,
            errors=self._errors,
            leader_changes=self._changes,
        )
