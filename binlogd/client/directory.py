"""Which Pumps there are: a list that is known, one socket, or what running nodes say.

Source: tidb pkg/tidb-binlog/pump_client, which reads and watches PD's etcd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from binlogd.errors import PumpUnavailable
from binlogd.host.http import HttpSession, NoAnswer, http_session
from binlogd.settings.quantities import host_and_port, shown_address
from binlogd.status import NodeEntry

log = structlog.get_logger(__name__)

ONLINE = "online"
_ANSWER_S = 5.0
_ANSWER_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class PumpNode:
    """A Pump that is known. `address` is (host, port), or the path of a unix socket."""

    node_id: str
    address: tuple[str, int] | Path
    state: str = ONLINE
    score: int = 100


class Directory(Protocol):
    """Who knows the Pumps."""

    async def pumps(self) -> Sequence[PumpNode]:
        """All of them, in every state. Raises PumpUnavailable when it cannot be told."""


class FixedPumps:
    """Pumps at addresses that do not change; a unix socket is one Pump."""

    def __init__(self, *addresses: tuple[str, int] | Path) -> None:
        self._nodes = [
            PumpNode(str(each) if isinstance(each, Path) else f"{each[0]}:{each[1]}", each)
            for each in addresses
        ]

    async def pumps(self) -> Sequence[PumpNode]:
        """Always the same."""
        return self._nodes


class _Status(msgspec.Struct, rename={"error": "ErrMsg"}):
    status: dict[str, NodeEntry] | None
    error: str


class AskedPumps:
    """What the nodes at some addresses know of each other, by `/status` of binlogd or a Go Pump."""

    def __init__(self, *addresses: tuple[str, int]) -> None:
        self._addresses = addresses

    async def pumps(self) -> Sequence[PumpNode]:
        """The freshest entry of each Pump that any of the nodes names."""
        found: dict[str, tuple[int, PumpNode]] = {}
        reasons: list[str] = []
        async with http_session(_ANSWER_S, None) as asking:
            for where in map(shown_address, self._addresses):
                try:
                    said = await _listed(asking, f"http://{where}/status")
                except (NoAnswer, PumpUnavailable) as error:
                    reasons.append(f"{where}: {error}")
                    continue
                for update_ts, node in said:
                    if node.node_id not in found or found[node.node_id][0] < update_ts:
                        found[node.node_id] = update_ts, node
        if not found:
            raise PumpUnavailable(f"no pump found: {', '.join(reasons) or 'nobody was named'}")
        if reasons:
            log.warning("pumps_not_asked", reasons=reasons)
        return [node for _, (_, node) in sorted(found.items())]


async def _listed(asking: HttpSession, url: str) -> list[tuple[int, PumpNode]]:
    answer = await asking.ask("GET", url, bytes_max=_ANSWER_BYTES_MAX)
    try:
        said = msgspec.json.decode(answer.body, type=_Status)
        if said.status is None:
            raise PumpUnavailable(said.error)
        return [
            (
                each.update_ts,
                PumpNode(each.node_id, host_and_port(each.host), each.state, each.score),
            )
            for each in said.status.values()
        ]
    except (msgspec.MsgspecError, ValueError) as error:
        raise PumpUnavailable(f"{url} is no status of a pump: {error}") from error
