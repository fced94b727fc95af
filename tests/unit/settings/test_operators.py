"""Which addresses and certificates may act without the admin token; pure."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.errors import ConfigError
from binlogd.host.peers import address
from binlogd.settings import config
from binlogd.settings.operators import is_peer, operators, peers


def test_nobody_is_an_operator_unless_named() -> None:
    nobody = operators((), ())
    assert not nobody.may_change_states(address("127.0.0.1"))
    assert not nobody.may_act(["binlogctl"])
    assert not nobody.may_act([])


@pytest.mark.parametrize(
    ("networks", "peer", "may"),
    [
        (["10.1.2.7"], "10.1.2.7", True),
        (["10.1.2.7"], "10.1.2.8", False),
        (["10.1.2.0/24", "fd00::/64"], "fd00::9", True),
        (["fd00::/64"], "fd00:0:0:1::9", False),
        (["10.1.2.0/24"], "::ffff:10.1.2.9", True),
        (["10.1.2.0/24"], "fd00::9", False),
        ([" 10.1.2.0/24 "], "10.1.2.255", True),
        (["fe80::/10"], "fe80::1%eth0", True),
    ],
)
def test_an_address_is_one_of_a_named_network(networks: list[str], peer: str, *, may: bool) -> None:
    assert operators(networks, ()).may_change_states(address(peer)) is may


@pytest.mark.parametrize(
    ("networks", "peer", "may"),
    [
        ([], "127.0.0.1", True),
        ([], "::1", True),
        ([], "10.1.2.7", False),
        (["10.1.2.0/24"], "::ffff:10.1.2.7", True),
        (["0.0.0.0/0"], "203.0.113.9", True),
        (["0.0.0.0/0"], "2001:db8::9", False),
    ],
)
def test_peers_are_here_or_named(networks: list[str], peer: str, *, may: bool) -> None:
    assert is_peer(address(peer), peers(networks)) is may


@given(st.ip_addresses(v=4), st.integers(1, 32))
def test_a_network_is_its_prefix(peer: ipaddress.IPv4Address, bits: int) -> None:
    network = ipaddress.ip_network((peer, bits), strict=False)
    named = operators([str(network)], ())
    assert named.may_change_states(address(str(peer)))
    flipped = ipaddress.IPv4Address(int(peer) ^ (1 << (32 - bits)))
    assert not named.may_change_states(flipped)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('operators-from = ["10.1.2.7/24"]', "has host bits set"),
        ('operators-from = ["ops.example"]', 'write an address, or a network as in "10.1.2.0/24"'),
        ('operators-from = ["0.0.0.0/0"]', "is everybody"),
        ('peers-from = ["drainer.example"]', 'write an address, or a network as in "10.1.2.0/24"'),
        ('operators-from = ["::/0"]', "is everybody"),
        ('operators-cn = ["ops"]', "goes with security.ssl-ca only"),
        ('operators-cn = ["*"]', "name each operator"),
        (
            'ssl-ca = "a"\nssl-cert = "b"\nssl-key = "c"\ncert-allowed-cn = ["tidb"]\n'
            'operators-cn = ["ops"]',
            "ops: may not even connect; name it in security.cert-allowed-cn",
        ),
    ],
)
def test_operators_that_cannot_be_meant_are_refused(table: str, said: str) -> None:
    tree = config.read_toml(f"[security]\n{table}\n", "a.toml")
    with pytest.raises(ConfigError, match=r"^a\.toml: security\.(operators|peers)-") as refused:
        config.from_tree(tree, "a.toml")
    assert said in str(refused.value)
