"""Whom a connection is counted for, where every peer may have so much of something.

One machine has as many IPv6 addresses as it likes: its /64 is what tells it from others.
Source: RFC 4291, 2.5.1 and 2.5.5.2.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

BY_SOCKET = ""
"""Whoever comes by the unix socket: its file says who may."""


def address(text: str) -> IPv4Address | IPv6Address:
    """Of a peer; an IPv4 address that came by an IPv6 socket is what it is in IPv4. Raises
    ValueError."""
    found = ip_address(text)
    return getattr(found, "ipv4_mapped", None) or found


def counted_as(text: str) -> str:
    """An IPv4 address as it is, also one that is mapped into IPv6; the /64 of any other of IPv6."""
    try:
        found = address(text)
    except ValueError:
        return text
    of_ipv6 = isinstance(found, IPv6Address)
    return str(IPv6Network((int(found), 64), strict=False) if of_ipv6 else found)


def peer_of(peername: object) -> str:
    """The same of what a socket calls its peer; BY_SOCKET of one without address."""
    if isinstance(peername, tuple | list) and len(peername) >= 2:
        return counted_as(str(peername[0]))
    return BY_SOCKET


def heaviest(counts: Counter[str]) -> str:
    """Who has the most; some must have any."""
    return max(counts, key=counts.__getitem__)
