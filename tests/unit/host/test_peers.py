"""Whom a connection is counted for."""

from __future__ import annotations

from collections import Counter

import pytest

from binlogd.host.peers import BY_SOCKET, counted_as, heaviest, peer_of


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no address", "no address"),
    ],
)
def test_an_address_of_ipv6_is_its_64(address: str, counted: str) -> None:
    assert counted_as(address) == counted
    assert peer_of((address, 4000)) == peer_of((address, 4000, 0, 0)) == counted


@pytest.mark.parametrize("peername", ["", None, b"", ()])
def test_without_an_address_it_came_by_the_unix_socket(peername: object) -> None:
    assert peer_of(peername) == BY_SOCKET


def test_whoever_has_most() -> None:
    assert heaviest(Counter({"a": 1, "b": 3, "c": 2})) == "b"
