"""The members of a PD, as one of them tells it.

Source: PD client/client.go, client/base_client.go; pingcap/kvproto proto/pdpb.proto.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from binlogd.settings.quantities import host_and_port, shown_address
from binlogd.wire.generated import metapb, pdpb

Address = tuple[str, int]
NO_CLUSTER_YET = "binlogd, which no TiDB has told its cluster id yet"
"""The version of a member whose cluster id is a number that binds nobody: it stands in for PD."""
STANDS_IN = metapb.StoreLabel(key="kept-by", value="binlogd")
"""Of the one store that a binlogd which stands in for PD names: a Drainer finds the history of DDL
there, and nobody a transaction."""


class Members(msgspec.Struct, frozen=True):
    """`leader` is empty while one is elected."""

    cluster_id: int
    """None that anybody may keep where `has_no_cluster`."""
    leader: str
    leader_addresses: tuple[Address, ...]
    addresses: tuple[Address, ...]
    """Of all members, the leader's included."""
    trouble: str
    """Why it does not tell, if it says that."""
    has_no_cluster: bool = False


def members_of(response: pdpb.GetMembersResponse) -> Members:
    """What an answer says; addresses that are none are left out."""
    return Members(
        cluster_id=response.header.cluster_id,
        leader=response.leader.name or next(iter(response.leader.client_urls), ""),
        leader_addresses=tuple(addresses_of(response.leader.client_urls)),
        addresses=tuple(addresses_of(url for each in response.members for url in each.client_urls)),
        trouble=response.header.error.message,
        has_no_cluster=response.leader.binary_version == NO_CLUSTER_YET,
    )


def url_of(address: Address, *, is_tls: bool) -> str:
    """As a PD names itself."""
    return f"{'https' if is_tls else 'http'}://{shown_address(address)}"


def addresses_of(urls: Iterable[str]) -> list[Address]:
    """Host and port of each URL; what is none is left out, the unix sockets of an etcd too."""
    found: list[Address] = []
    for url in urls:
        plain = url.removeprefix("http://").removeprefix("https://").rstrip("/")
        with suppress(ValueError):
            found.append(host_and_port(plain))
    return found
