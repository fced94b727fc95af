"""Which Pumps there are: a list that is known, one socket, or what running nodes say.

Source: tidb pkg/tidb-binlog/pump_client, which reads and watches PD's etcd.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import structlog

from binlogd.errors import PumpUnavailable

log = structlog.get_logger(__name__)

ONLINE = "online"
_ANSWER_S = 5.0


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
        ...


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


class AskedPumps:
    """What the nodes at some addresses know of each other, by `/status` of binlogd or a Go Pump."""

    def __init__(self, *addresses: tuple[str, int]) -> None:
        self._addresses = addresses

    async def pumps(self) -> Sequence[PumpNode]:
        """The freshest entry of each Pump that any of the nodes names."""
        found: dict[str, Mapping[str, Any]] = {}
        reasons: list[str] = []
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for host, port in self._addresses:
                try:
                    said = await _status(session, f"http://{host}:{port}/status")
                except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                    reasons.append(f"{host}:{port}: {error or type(error).__name__}")
                    continue
                for name, node in said.items():
                    if name not in found or found[name]["updateTS"] < node["updateTS"]:
                        found[name] = node
        if not found:
            raise PumpUnavailable(f"no pump found: {', '.join(reasons) or 'nobody was named'}")
        if reasons:
            log.warning("pumps_not_asked", reasons=reasons)
        return [_node(found[name]) for name in sorted(found)]


async def _status(session: aiohttp.ClientSession, url: str) -> Mapping[str, Mapping[str, Any]]:
    async with session.get(url) as answer:
        document = json.loads(await answer.read())
    nodes: Mapping[str, Mapping[str, Any]] | None = document["status"]
    if nodes is None:
        raise ValueError(document["ErrMsg"])
    return nodes


def _node(said: Mapping[str, Any]) -> PumpNode:
    host, _, port = said["host"].rpartition(":")
    return PumpNode(said["nodeId"], (host.strip("[]"), int(port)), said["state"], said["score"])
