"""Who may act over HTTP without the admin token, and who may pull and use the registry by gRPC,
because the configuration says so.

The original's binlogctl sends no credentials: only its address or its certificate tells who it is.
An address stands for whatever runs there, so it may do what binlogctl does, change the state of a
node, and nothing else. A certificate that the CA has signed stands for its owner, as the token
does.

A browser has the address of an operator and the mind of whoever wrote the page that is open in it;
a proxy has an address and speaks for anybody. Neither is let through by where it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

import msgspec

from binlogd.errors import ConfigError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

TOKEN_CHARS_MIN = 16
FROM = "security.operators-from"
NAMES = "security.operators-cn"
PEERS = "security.peers-from"


class Operators(msgspec.Struct, frozen=True):
    """Networks whose peers may change states, and common names whose owners may act."""

    networks: tuple[Network, ...] = ()
    names: frozenset[str] = frozenset()

    def may_change_states(self, peer: Address) -> bool:
        """Whether a peer may do what binlogctl does, by its address."""
        return any(peer in network for network in self.networks)

    def may_act(self, common_names: Sequence[str]) -> bool:
        """Whether the owner of a verified certificate may act."""
        return not self.names.isdisjoint(common_names)


def operators(networks: Sequence[str], names: Sequence[str]) -> Operators:
    """As the configuration names them. Raises ConfigError that names the key and what is wrong."""
    found = tuple(_network(text.strip(), FROM) for text in networks)
    everybody = [str(each) for each in found if not each.prefixlen]
    if everybody:
        raise ConfigError(
            f'{FROM}: "{everybody[0]}" is everybody; name the networks of the operators, or set'
            " security.admin-token"
        )
    wanted = frozenset(name.strip() for name in names)
    if not wanted.isdisjoint(("", "*")):
        raise ConfigError(
            f"{NAMES}: name each operator; every TiDB has a certificate of this CA as well"
        )
    return Operators(found, wanted)


def peers(networks: Sequence[str]) -> tuple[Network, ...]:
    """The networks of Drainers, Pumps and TiDBs beside this machine, as the configuration names
    them; they may be everybody. Raises ConfigError."""
    return tuple(_network(text.strip(), PEERS) for text in networks)


def is_peer(peer: Address, networks: Sequence[Network]) -> bool:
    """Whether somebody may pull and use the registry by where they are."""
    return peer.is_loopback or any(peer in network for network in networks)


def check_operators(
    found: Operators, cert_allowed_cn: Sequence[str], *, has_certificates: bool
) -> None:
    """Raises ConfigError for operators that could never act."""
    if found.names and not has_certificates:
        raise ConfigError(f"{NAMES}: goes with security.ssl-ca only; there are no certificates")
    allowed = {name.strip() for name in cert_allowed_cn}
    left_out = sorted(found.names - allowed)
    if allowed and "*" not in allowed and left_out:
        raise ConfigError(
            f"{NAMES}: {', '.join(left_out)}: may not even connect; name it in"
            " security.cert-allowed-cn as well"
        )


def _network(text: str, key: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ConfigError(
            f'{key}: "{text}": {error}; write an address, or a network as in "10.1.2.0/24"'
        ) from error


def check_token(token: str, name: str) -> None:
    """Raises ConfigError for one that is too short, or that no header can carry."""
    if token and (len(token) < TOKEN_CHARS_MIN or not re.fullmatch(r"[!-~]+", token)):
        raise ConfigError(
            f"{name}: expected at least {TOKEN_CHARS_MIN} letters, digits and signs of ASCII"
            " without spaces; `openssl rand -hex 32` makes one"
        )
