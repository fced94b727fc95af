"""The client of an etcd whose members come, go, hang and are spoken to by TLS."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing
from pathlib import Path

import pytest

from binlogd.errors import UpstreamUnavailable
from binlogd.host.tls import ClientTls, ServerTls
from binlogd.upstream.etcd.client import EtcdClient
from binlogd.wire.generated.etcdserverpb import PutRequest, RangeRequest
from tests.support.certificates import Authority
from tests.support.etcd import own_etcd
from tests.support.ports import free_port
from tests.support.pump_world import eventually

KEY = RangeRequest(key=b"k")
HOST = "127.0.0.1"


async def test_a_watch_goes_on_where_it_was_when_its_etcd_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "upstream.db"
    async with EtcdClient([(HOST, port := free_port())]) as client:
        async with own_etcd(path, port=port):
            await client.put(PutRequest(key=b"k", value=b"1"))
            watch = client.watch(b"k", b"", 1)
            assert [event.kv.value for event in await anext(watch) if event.kv] == [b"1"]
        async with own_etcd(path, port=port) as (_, keyspace):
            await keyspace.put(PutRequest(key=b"k", value=b"2"))
            async with aclosing(watch), asyncio.timeout(120):
                assert [event.kv.value for event in await anext(watch) if event.kv] == [b"2"]


async def test_a_member_that_hangs_costs_a_read_its_share_of_the_time(tmp_path: Path) -> None:
    hanging = socket.create_server((HOST, 0))  # connects, and says nothing
    silent = hanging.getsockname()
    async with own_etcd(tmp_path / "upstream.db") as (port, _):
        async with EtcdClient([silent, (HOST, port)], deadline_s=2.0) as client:
            assert (await client.range(KEY)).count == 0
            await client.put(PutRequest(key=b"k"))  # the other one is asked first now
        async with EtcdClient([silent], deadline_s=0.3) as client:
            with pytest.raises(UpstreamUnavailable, match=r"no answer within 0\.3 s"):
                await client.put(PutRequest(key=b"k"))
    hanging.close()


async def test_members_are_followed_to_where_they_say_they_are(tmp_path: Path) -> None:
    path, told = tmp_path / "upstream.db", free_port()
    async with (
        own_etcd(path, url=f"http://{HOST}:{told}") as (configured, _),
        own_etcd(path, port=told),
        EtcdClient([(HOST, configured)], sync_s=0.01) as client,
        asyncio.TaskGroup() as group,
    ):
        following = group.create_task(client.run())
        await eventually(lambda: list(client.endpoints) == [(HOST, told), (HOST, configured)])
        assert (await client.range(KEY)).count == 0
        following.cancel()


async def test_an_etcd_is_spoken_to_by_tls_and_only_by_who_trusts_it(tmp_path: Path) -> None:
    ours, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    tls = ServerTls(ours.files(ours.issue("pd")))
    async with own_etcd(tmp_path / "upstream.db", tls=tls) as (port, _):
        trusting = ClientTls(ours.files(ours.issue("binlogd")), is_grpc=True)
        async with EtcdClient([(HOST, port)], tls=trusting) as client:
            await client.put(PutRequest(key=b"k"))
            assert (await client.range(KEY)).count == 1
        foreign = ClientTls(stranger.files(stranger.issue("binlogd")), is_grpc=True)
        for refused in (foreign, None):
            async with EtcdClient([(HOST, port)], tls=refused, deadline_s=1.0) as client:
                with pytest.raises(UpstreamUnavailable):
                    await client.range(KEY)
