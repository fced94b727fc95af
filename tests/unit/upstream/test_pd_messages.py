"""What PD says of its members, and bytes that are no message at all."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.grpc.methods import understood
from binlogd.settings.quantities import shown_address
from binlogd.upstream.pd.members import addresses_of, members_of, url_of
from binlogd.wire.generated import etcdserverpb, pdpb

KINDS: list[Any] = [
    pdpb.GetMembersResponse,
    pdpb.TsoResponse,
    pdpb.GetRegionResponse,
    pdpb.GetStoreResponse,
    pdpb.GetGcSafePointResponse,
    pdpb.UpdateServiceGcSafePointResponse,
    etcdserverpb.RangeResponse,
    etcdserverpb.WatchResponse,
]


@given(kind=st.sampled_from(KINDS), raw=st.binary(max_size=60))
def test_any_bytes_are_a_message_or_an_error_of_the_connection(kind: Any, raw: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        understood(kind(), raw)


def test_what_is_no_message_is_said_with_the_one_that_it_should_be() -> None:
    with pytest.raises(ConnectionError, match="is no TsoResponse"):
        understood(pdpb.TsoResponse(), b"\x15")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.1:2379", ("10.0.0.1", 2379)),
        ("https://pd-0.pd:2379/", ("pd-0.pd", 2379)),
        ("http://[fd00::1]:2379", ("fd00::1", 2379)),
    ],
)
def test_a_member_is_reached_at_its_client_url(url: str, address: tuple[str, int]) -> None:
    member = pdpb.Member(name="pd0", client_urls=[url, "unix:/run/pd.sock", "http://nothing"])
    answer = pdpb.GetMembersResponse(
        header=pdpb.ResponseHeader(cluster_id=7), members=[member], leader=member
    )
    found = members_of(answer)
    assert (found.cluster_id, found.leader) == (7, "pd0")
    assert found.leader_addresses == found.addresses == (address,)
    assert url_of(address, is_tls=url.startswith("https")) == url.rstrip("/")
    assert shown_address(address) in url


def test_while_one_is_elected_nobody_leads() -> None:
    assert members_of(pdpb.GetMembersResponse()).leader_addresses == ()


def test_an_address_is_what_a_url_of_either_scheme_names() -> None:
    told = ["http://pd-1:2379", "https://[::1]:2379/", "pd-2:2379", "unix://localhost:m0", "x"]
    assert addresses_of([*told, "unix://localhost:2379"]) == [
        ("pd-1", 2379),
        ("::1", 2379),
        ("pd-2", 2379),
    ]
