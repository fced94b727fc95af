"""The places of those who pull, shared out among their addresses.

Invariant. While one address has two places more than another would have, the other gets the next.
Why it holds. When all are taken, the address that has most gives one up for a newcomer that would
not have more than it has left then: the pull to which nothing was sent for the longest time.
Source: no counterpart; the original's Pump has no limit.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import structlog
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from binlogd.host.peers import BY_SOCKET, heaviest, peer_of

log = structlog.get_logger(__name__)


class Pull:
    """One of them; `until` ends it."""

    def __init__(self, client: str, until: asyncio.Timeout) -> None:
        self.client = client
        self._until = until
        self.is_let_go = False
        self.note_sent()

    def note_sent(self) -> None:
        """Something was sent to it now."""
        self.sent_s = asyncio.get_running_loop().time()

    def let_go(self) -> None:
        """Ends it for another."""
        self.is_let_go = True
        if not self._until.expired():  # it ends anyway
            self._until.reschedule(asyncio.get_running_loop().time())


class Pullers:
    """Everybody who pulls; the unix socket has as many places of its own."""

    def __init__(self, pullers_max: int) -> None:
        self._max = pullers_max
        self._pulls: dict[Pull, None] = {}  # in the order in which they came

    def __len__(self) -> int:
        return len(self._pulls)

    def begin(self, peername: object, until: asyncio.Timeout) -> Pull:
        """A place; `end` gives it back. Raises GRPCError if there is none."""
        client = peer_of(peername)
        by_socket = client == BY_SOCKET
        rivals = [each for each in self._pulls if (each.client == BY_SOCKET) == by_socket]
        if len(rivals) >= self._max:
            self._make_place(client, rivals)
        pull = Pull(client, until)
        self._pulls[pull] = None
        return pull

    def end(self, pull: Pull) -> None:
        """Gives back its place, if it still has it."""
        self._pulls.pop(pull, None)

    def _make_place(self, client: str, rivals: list[Pull]) -> None:
        counts = Counter(each.client for each in rivals)
        most = heaviest(counts)
        if counts[most] < counts[client] + 2:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"{len(rivals)} streams are served already")
        goes = min((each for each in rivals if each.client == most), key=lambda each: each.sent_s)
        log.warning("pull_let_go", client=most, its_pulls=counts[most], new_client=client)
        self._pulls.pop(goes, None)
        goes.let_go()


def let_go_of(pull: Pull) -> GRPCError:
    """What it is told."""
    return GRPCError(
        Status.RESOURCE_EXHAUSTED,
        f"all streams are taken, and {pull.client} has more of them than others; one was needed",
    )
