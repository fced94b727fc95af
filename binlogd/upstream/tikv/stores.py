"""Connections to stores: an address for each id, a channel for each address."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from binlogd.errors import UpstreamUnavailable
from binlogd.grpc.channel import PlainChannel
from binlogd.host.tls import ClientTls
from binlogd.settings.quantities import host_and_port
from binlogd.upstream.tikv.regions import RegionDirectory
from binlogd.wire.generated.metapb import StoreState


@dataclass(slots=True)
class Connection:
    """A channel, and when something came of it last, by the loop's clock."""

    channel: PlainChannel
    heard_s: float = 0.0


class Stores:
    """Of one process; a connection is made at its first call."""

    def __init__(self, places: RegionDirectory, tls: ClientTls | None = None) -> None:
        self._places, self._tls = places, tls
        self._addresses: dict[int, str] = {}
        self.version = ""
        """Of the store that PD told of last."""
        self._asking: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._connections: dict[str, Connection] = {}

    def __len__(self) -> int:
        """How many addresses are known."""
        return len(self._addresses)

    async def connection(self, store_id: int) -> Connection | None:
        """Towards a store; None: it is gone for good. Raises UpstreamUnavailable."""
        async with self._asking[store_id]:  # one question for all who wait
            address = self._addresses.get(store_id)
            if address is None:
                store = await self._places.store(store_id)
                if store is None or store.state == StoreState.Tombstone:
                    return None
                address = self._addresses[store_id] = store.address
                self.version = store.version
        found = self._connections.get(address)
        if found is None:
            plain = address.removeprefix("http://").removeprefix("https://")
            try:
                place = host_and_port(plain)
            except ValueError as error:
                raise UpstreamUnavailable(f"PD tells of a store of TiKV: {error}") from error
            found = self._connections[address] = Connection(PlainChannel(*place, self._tls))
        return found

    def forget(self, store_id: int, connection: Connection | None = None) -> None:
        """It may be elsewhere, or hang: the next call asks for its address and connects anew.

        Calls that are open on its connection end with an error. With `connection` only while that
        is the one: of many calls that failed together, one is enough.
        """
        address = self._addresses.get(store_id)
        if address is None:
            return
        known = self._connections.get(address)
        if connection is not None and known is not connection:
            return
        del self._addresses[store_id]
        if known is not None:
            del self._connections[address]
            known.channel.close()

    def close(self) -> None:
        """Lets go of all connections. Safe to call twice."""
        for each in self._connections.values():
            each.channel.close()
        self._connections.clear()
        self._addresses.clear()
