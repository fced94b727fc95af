"""What an etcd promises, held against binlogd's own and a real one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from grpclib.client import Stream
from grpclib.const import Cardinality
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from binlogd.errors import EtcdRefused, Overtaken, UpstreamUnavailable
from binlogd.grpc.channel import PlainChannel
from binlogd.upstream.etcd.client import EtcdClient
from binlogd.upstream.keyspace.store import KeyspaceLimits, KeyspaceStore
from binlogd.wire.generated.etcdserverpb import (
    Compare,
    CompareCompareTarget,
    DeleteRangeRequest,
    KeyValue,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
    WatchCancelRequest,
    WatchCreateRequest,
    WatchProgressRequest,
    WatchRequest,
    WatchResponse,
)
from tests.contract import etcd_pair
from tests.contract.etcd_pair import Place, Request, observed, said
from tests.support.etcd import forgotten, own_etcd, say_version
from tests.support.pump_world import eventually

_NUMBERS = itertools.count()
LEASE_S = 86_400
"""Longer than a run: a lease that ended would be one more revision of the real one."""


async def placed(client: EtcdClient, keyspace: KeyspaceStore | None = None) -> Place:
    prefix = b"/contract/%d/" % next(_NUMBERS)
    header = (await client.range(RangeRequest(key=b"x"))).header
    assert header is not None
    return Place(client, prefix, header.revision, {}, keyspace)


@pytest.fixture(params=["own", "real"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if request.param == "real":
        port = request.getfixturevalue("real_etcd_port")
        say_version(port)
        async with EtcdClient([("127.0.0.1", port)]) as client:
            yield await placed(client)
    else:
        limits = KeyspaceLimits(history_revisions=20)
        async with own_etcd(tmp_path / "upstream.db", limits=limits) as (port, keyspace):
            running = asyncio.get_running_loop().create_task(keyspace.run())
            async with EtcdClient([("127.0.0.1", port)]) as client:
                yield await placed(client, keyspace)
            running.cancel()


@settings(max_examples=20)
@given(steps=st.lists(etcd_pair.requests, min_size=5, max_size=30))
def test_both_answer_and_tell_the_same(
    real_etcd_port: int, tmp_path_factory: pytest.TempPathFactory, steps: list[Request]
) -> None:
    hold_against_each_other(real_etcd_port, tmp_path_factory.mktemp("own"), steps)


@pytest.mark.soak
@settings(max_examples=3000)
@given(steps=st.lists(etcd_pair.requests, min_size=1, max_size=20))
def test_both_answer_and_tell_the_same_for_long(
    real_etcd_port: int, tmp_path_factory: pytest.TempPathFactory, steps: list[Request]
) -> None:
    hold_against_each_other(real_etcd_port, tmp_path_factory.mktemp("own"), steps)


def hold_against_each_other(real_etcd_port: int, directory: Path, steps: list[Request]) -> None:
    say_version(real_etcd_port)

    async def run() -> None:
        path = directory / "upstream.db"
        async with (
            own_etcd(path) as (port, _),
            EtcdClient([("127.0.0.1", port)]) as own_client,
            EtcdClient([("127.0.0.1", real_etcd_port)]) as real_client,
        ):
            own, real = await placed(own_client), await placed(real_client)
            for each in (own, real):
                for name in (1, 2):
                    each.leases[name], _ = await each.client.grant(0, LEASE_S)
            for step in steps:
                assert await said(own, step) == await said(real, step), step
            last = PutRequest(key=b"z")
            assert await said(own, last) == await said(real, last)
            told = [await _all_told(each) for each in (own, real)]
            assert told[0] == told[1]
            for each in (own, real):
                await each.client.revoke(each.leases.pop(1))
            everything = RangeRequest(key=b"a", range_end=b"~")
            left = [await said(each, everything) for each in (own, real)]
            assert left[0] == left[1]

    asyncio.run(run())


async def _all_told(place: Place) -> list[tuple[str, Any]]:
    now = (await place.client.range(RangeRequest(key=b"x"))).header
    assert now is not None
    return await observed(place, b"a", b"~", place.base + 1, now.revision)


async def test_a_key_is_created_once_and_changed_only_where_it_is(place: Place) -> None:
    client, key = place.client, place.key(b"once")
    creates = TxnRequest(
        compare=[Compare(target=CompareCompareTarget(CompareCompareTarget.MOD), key=key)],
        success=[RequestOp(request_put=PutRequest(key=key, value=b"v"))],
    )
    assert (await client.txn(creates)).succeeded
    assert not (await client.txn(creates)).succeeded
    found = (await client.range(RangeRequest(key=key))).kvs
    assert [(each.value, each.version) for each in found] == [(b"v", 1)]


async def test_a_watch_goes_on_from_the_revision_that_was_read(place: Place) -> None:
    client = place.client
    await client.put(PutRequest(key=place.key(b"a"), value=b"before"))
    read = (await client.range(RangeRequest(key=place.key(b"a")))).header
    assert read is not None
    await client.put(PutRequest(key=place.key(b"a"), value=b"1"))
    await client.put(PutRequest(key=place.key(b"other"), value=b"1"))
    await client.delete_range(DeleteRangeRequest(key=place.key(b"a")))
    last = (await client.put(PutRequest(key=place.key(b"b"), value=b"2"))).header
    assert last is not None
    told = await observed(place, b"a", b"c", read.revision + 1, last.revision)
    assert [(kind, kv[0], kv[1]) for kind, kv in told] == [
        ("PUT", b"a", b"1"),
        ("DELETE", b"a", b""),
        ("PUT", b"b", b"2"),
    ]


async def test_what_is_written_while_somebody_watches_is_told(place: Place) -> None:
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        watching = group.create_task(observed(place, b"k", b"l", place.base + 1, place.base + 3))
        for value in (b"1", b"2", b"3"):
            await place.client.put(PutRequest(key=place.key(b"k"), value=value))
    assert [kv[1] for _, kv in watching.result()] == [b"1", b"2", b"3"]


async def test_a_watch_of_keys_that_never_change_stays_while_it_says_that_it_is_there(
    place: Place,
) -> None:
    """Its connection is shared: a watch that were made anew would end the calls of others."""
    key = place.key(b"quiet")
    endpoint = place.client.endpoints[0]
    async with EtcdClient([endpoint], progress_s=0.02, silence_s=1.0) as client:
        with capture_logs() as logged:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(client.run())
                async with aclosing(client.watch(key, b"", place.base + 1)) as watch:
                    waiting = group.create_task(anext(watch))
                    await asyncio.sleep(1.3)  # more than it may be silent
                    await place.client.put(PutRequest(key=key, value=b"1"))
                    assert [event.kv.value for event in await waiting if event.kv] == [b"1"]
                running.cancel()
        assert "etcd_endpoint_failed" not in {each["event"] for each in logged}
    async with EtcdClient([endpoint], silence_s=0.2) as client:
        with capture_logs() as logged:  # without `run` nobody asks
            async with aclosing(client.watch(key, b"", place.base + 1)) as watch:
                await anext(watch)
                async with asyncio.TaskGroup() as group:
                    waiting = group.create_task(anext(watch))
                    await eventually(lambda: "etcd_endpoint_failed" in str(logged))
                    await place.client.put(PutRequest(key=key, value=b"2"))
                    assert [event.kv.value for event in await waiting if event.kv] == [b"2"]


async def test_a_quiet_watch_in_a_busy_keyspace_is_told_how_far_it_is(tmp_path: Path) -> None:
    """Or it would be overtaken by the compaction when its connection is lost."""
    async with (
        own_etcd(tmp_path / "upstream.db", progress_s=0.05) as (port, _),
        EtcdClient([("127.0.0.1", port)]) as client,
        PlainChannel("127.0.0.1", port) as raw,
        raw.request("/etcdserverpb.Watch/Watch", Cardinality.STREAM_STREAM, bytes, bytes) as stream,
        asyncio.timeout(120),
        asyncio.TaskGroup() as group,
    ):
        create = WatchCreateRequest(key=b"quiet", progress_notify=True)
        await stream.send_message(bytes(WatchRequest(create_request=create)))

        async def write() -> None:
            while True:  # until cancelled
                await client.put(PutRequest(key=b"busy"))
                await asyncio.sleep(0.01)

        writing = group.create_task(write())
        revisions: list[int] = []
        while len(set(revisions)) < 4:  # the same again where nothing was written meanwhile
            told = WatchResponse().parse(await stream.recv_message() or b"")
            assert told.header is not None
            assert (told.watch_id, told.events) == (0, [])
            revisions.append(told.header.revision)
        assert sorted(revisions) == revisions
        writing.cancel()
        await stream.cancel()


async def test_a_progress_is_never_ahead_of_what_was_sent(tmp_path: Path) -> None:
    """A client whose connection is lost goes on behind it."""
    async with (
        own_etcd(tmp_path / "upstream.db") as (port, _),
        EtcdClient([("127.0.0.1", port)]) as client,
        PlainChannel("127.0.0.1", port) as raw,
        asyncio.timeout(120),
    ):
        for value in (b"1", b"2", b"3"):
            last = (await client.put(PutRequest(key=b"k", value=value))).header
        assert last is not None
        for _ in range(20):
            async with raw.request(
                "/etcdserverpb.Watch/Watch", Cardinality.STREAM_STREAM, bytes, bytes
            ) as stream:
                create = WatchCreateRequest(key=b"k", start_revision=2)
                await stream.send_message(bytes(WatchRequest(create_request=create)))
                progress = WatchRequest(progress_request=WatchProgressRequest())
                await stream.send_message(bytes(progress))
                seen = 1
                while True:  # until the answer to the request
                    told = WatchResponse().parse(await stream.recv_message() or b"")
                    assert told.header is not None
                    seen = max([seen, *(each.kv.mod_revision for each in told.events if each.kv)])
                    if told.watch_id == -1:
                        break
                assert told.header.revision == seen == last.revision
                await stream.cancel()


async def test_a_watch_that_the_compaction_has_overtaken_is_told_so(place: Place) -> None:
    for value in (b"1", b"2", b"3"):
        await place.client.put(PutRequest(key=place.key(b"k"), value=value))
    compacted = await forgotten(place.client, place.keyspace)
    with pytest.raises(Overtaken) as overtaken:
        await observed(place, b"k", b"l", place.base + 1, place.base + 3)
    assert overtaken.value.compacted == compacted
    last = (await place.client.put(PutRequest(key=place.key(b"k"), value=b"4"))).header
    assert last is not None
    told = await observed(place, b"k", b"l", compacted, last.revision)
    assert [kv[1] for _, kv in told] == [b"4"]


async def test_a_watch_of_nothing_is_refused(place: Place) -> None:
    with pytest.raises(EtcdRefused, match="range is empty"):
        await observed(place, b"b", b"a", 0, 0)


async def test_what_is_bound_to_a_lease_goes_with_it(place: Place) -> None:
    client = place.client
    number, ttl_s = await client.grant(0, 60)
    assert ttl_s == 60
    for name in (b"a", b"b"):
        await client.put(PutRequest(key=place.key(name), value=b"v", lease=number))
    await client.put(PutRequest(key=place.key(b"b"), value=b"free"))
    assert await client.keep_alive(number) == 60
    await client.revoke(number)
    left = await client.range(RangeRequest(key=place.key(b"a"), range_end=place.key(b"c")))
    assert [each.value for each in left.kvs] == [b"free"]
    assert await client.keep_alive(number) == 0
    with pytest.raises(EtcdRefused, match="requested lease not found") as refused:
        await client.revoke(number)
    assert refused.value.status == "NOT_FOUND"


async def test_a_lease_has_the_number_that_was_asked_for_once(place: Place) -> None:
    number = 0x5EED0000 + next(_NUMBERS)
    assert await place.client.grant(number, 600) == (number, 600)
    with pytest.raises(EtcdRefused, match="lease already exists"):
        await place.client.grant(number, 600)


async def test_a_lease_that_nobody_keeps_alive_ends(place: Place) -> None:
    number, ttl_s = await place.client.grant(0, 1)
    await place.client.put(PutRequest(key=place.key(b"k"), value=b"v", lease=number))
    async with asyncio.timeout(120):
        told = await observed(place, b"k", b"l", place.base + 1, place.base + 2)
    assert [kind for kind, _ in told] == ["PUT", "DELETE"]
    assert ttl_s >= 1


async def test_a_request_that_is_too_large_is_refused_in_those_words(place: Place) -> None:
    value = bytes(1_600_000)
    with pytest.raises(EtcdRefused, match="etcdserver: request is too large"):
        await place.client.put(PutRequest(key=place.prefix + b"large", value=value))
    with pytest.raises(EtcdRefused, match="received message larger than max"):
        await place.client.put(PutRequest(key=place.prefix + b"large", value=2 * value))


async def test_the_members_say_where_they_are_reached(place: Place) -> None:
    (member,) = (await place.client.members()).members
    assert member.client_urls[0].startswith("http://127.0.0.1")
    assert member.id


async def test_an_endpoint_that_is_gone_is_passed_over(place: Place) -> None:
    (endpoint,) = place.client.endpoints
    async with EtcdClient([("127.0.0.1", 1), endpoint]) as client:
        await client.put(PutRequest(key=place.key(b"k"), value=b"v"))
        assert (await client.range(RangeRequest(key=place.key(b"k")))).count == 1
        async with aclosing(client.watch(place.key(b"k"), b"", place.base + 1)) as watch:
            assert [each.kv.value for each in await anext(watch) if each.kv] == [b"v"]


async def test_an_etcd_that_is_nowhere_is_said() -> None:
    async with EtcdClient([("127.0.0.1", 1), ("127.0.0.1", 2)], deadline_s=2) as client:
        with pytest.raises(UpstreamUnavailable, match=r"127\.0\.0\.1:1: .*127\.0\.0\.1:2: "):
            await client.range(RangeRequest(key=b"k"))
        with pytest.raises(UpstreamUnavailable, match=r"127\.0\.0\.1:2: "):
            await anext(client.watch(b"k", b"", 0))


async def watched_through(port: int) -> list[object]:
    """What one stream says of several watches, while things happen."""
    told: list[object] = []
    async with EtcdClient([("127.0.0.1", port)]) as client, PlainChannel("127.0.0.1", port) as raw:
        place = await placed(client)

        async def answer(stream: Stream[bytes, bytes], count: int) -> None:
            for _ in range(count):
                said = WatchResponse().parse(await stream.recv_message() or b"")
                assert said.header is not None
                events = [
                    (each.type, _plain(place, each.kv), _plain(place, each.prev_kv))
                    for each in said.events
                ]
                told.append(
                    (
                        said.watch_id,
                        said.created,
                        said.canceled,
                        said.compact_revision and said.compact_revision - place.base,
                        said.cancel_reason,
                        said.header.revision and said.header.revision - place.base,
                        events,
                    )
                )

        async with raw.request(
            "/etcdserverpb.Watch/Watch", Cardinality.STREAM_STREAM, bytes, bytes
        ) as stream:

            async def ask(**create: Any) -> None:
                create["key"] = place.key(create["key"])
                create["range_end"] = place.end(create.get("range_end", b""))
                request = WatchRequest(create_request=WatchCreateRequest(**create))
                await stream.send_message(bytes(request))
                await answer(stream, 1)

            async def put(value: bytes) -> None:
                await client.put(PutRequest(key=place.key(b"k"), value=value))

            await put(b"1")
            await put(b"2")
            await ask(key=b"k")
            await ask(key=b"a", range_end=b"z")
            await ask(key=b"z", range_end=b"a")
            for value in (b"3", b"4"):
                await put(value)
                await answer(stream, 2)
            cancel = WatchRequest(cancel_request=WatchCancelRequest(watch_id=0))
            await stream.send_message(bytes(cancel))
            await answer(stream, 1)
            await client.delete_range(DeleteRangeRequest(key=place.key(b"k")))
            await answer(stream, 1)
            await ask(key=b"k", start_revision=place.base + 4)
            await answer(stream, 1)
            await stream.cancel()
    head, tail = told[:3], told[3:]
    return [*head, *sorted(map(str, tail))]  # which watch is told first is left open


def _plain(place: Place, kv: KeyValue | None) -> object:
    if kv is None:
        return None
    revisions = [each and each - place.base for each in (kv.create_revision, kv.mod_revision)]
    return kv.key.removeprefix(place.prefix), kv.value, kv.version, revisions


async def test_a_stream_of_watches_says_the_same(real_etcd_port: int, tmp_path: Path) -> None:
    say_version(real_etcd_port)
    async with asyncio.timeout(120):
        real = await watched_through(real_etcd_port)
        async with own_etcd(tmp_path / "upstream.db") as (port, _):
            own = await watched_through(port)
    assert own == real
