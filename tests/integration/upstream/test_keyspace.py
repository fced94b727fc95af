"""A keyspace on disk: what it tells is durable, whoever stops, crashes or writes beside it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from binlogd.errors import ConfigError, EtcdRefused, Overtaken, UpstreamUnavailable
from binlogd.upstream.entry import PUMP
from binlogd.upstream.keyspace.store import KeyspaceLimits, KeyspaceStore
from binlogd.upstream.registry import NodeRegistry
from binlogd.upstream.store import UpstreamStore
from binlogd.wire.generated.etcdserverpb import (
    DeleteRangeRequest,
    KeyValue,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
)

EVERYTHING = RangeRequest(key=b"\0", range_end=b"\0")


@asynccontextmanager
async def opened(
    directory: Path, limits: KeyspaceLimits | None = None
) -> AsyncIterator[KeyspaceStore]:
    store = await KeyspaceStore.open(directory / "upstream.db", Random(1), limits)
    try:
        yield store
    finally:
        await store.close()


async def put(store: KeyspaceStore, key: bytes, value: bytes = b"v", lease: int = 0) -> None:
    await store.put(PutRequest(key=key, value=value, lease=lease))


async def content(store: KeyspaceStore) -> list[KeyValue]:
    return (await store.range(EVERYTHING)).kvs


async def test_all_of_it_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for key in (b"a", b"b", b"a"):
            await put(store, key)
        await store.delete_range(DeleteRangeRequest(key=b"b"))
        lease, _ = await store.grant(0, 60)
        await put(store, b"bound", lease=lease)
        before, revision, identity = await content(store), store.revision, store.identity
    async with opened(tmp_path) as store:
        assert (await content(store), store.revision) == (before, revision)
        assert store.identity == identity
        assert await store.keep_alive(lease) == 60
        async with aclosing(store.watch(b"\0", b"\0", 2)) as seen:
            told = [await anext(seen)]
        assert [event.kv.mod_revision for event in told[0] if event.kv] == [2, 3, 4, 5, 6]


async def test_a_file_that_is_gone_is_not_written_to_in_silence(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await put(store, b"a")
        (tmp_path / "upstream.db").rename(tmp_path / "elsewhere.db")
        with pytest.raises(UpstreamUnavailable, match=r"upstream\.db: the file was removed or rep"):
            await put(store, b"b")
        (tmp_path / "elsewhere.db").rename(tmp_path / "upstream.db")
        await put(store, b"c")
    async with await UpstreamStore.open(tmp_path / "upstream.db") as facts:
        await facts.put_fact("x", 1)
        (tmp_path / "upstream.db").unlink()
        with pytest.raises(UpstreamUnavailable, match=r"upstream\.db: the file was removed or rep"):
            await facts.put_fact("x", 2)
        (tmp_path / "upstream.db").touch()
        with pytest.raises(UpstreamUnavailable, match=r"upstream\.db: the file was removed or rep"):
            await facts.skips()


async def test_what_another_process_writes_is_seen_and_watched(tmp_path: Path) -> None:
    limits = KeyspaceLimits(history_revisions=15)
    async with opened(tmp_path) as one, opened(tmp_path, limits) as other:
        await put(one, b"a", b"1")
        async with asyncio.timeout(120), aclosing(one.watch(b"a", b"z", 3)) as seen:
            await put(other, b"b", b"2")
            (event,) = await anext(seen)
            assert event.kv is not None
            assert event.kv.key == b"b"
        for turn in range(20):
            await put((one, other)[turn % 2], b"c", b"%d" % turn)
        assert await content(one) == await content(other)
        assert one.revision == other.revision == 23
        while other.compacted == 0:
            await put(other, b"c", b"more")
        assert await content(one) == await content(other)
        assert one.compacted == other.compacted > 3
        with pytest.raises(Overtaken):
            await anext(one.watch(b"c", b"", 3))


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13])
async def test_a_write_that_is_given_up_has_happened_or_not(tmp_path: Path, steps: int) -> None:
    async with opened(tmp_path) as store:
        await put(store, b"before")
        ops = [RequestOp(request_put=PutRequest(key=b"%d" % number)) for number in range(50)]
        writing = asyncio.get_running_loop().create_task(store.txn(TxnRequest(success=ops)))
        for _ in range(steps):
            await asyncio.sleep(0)
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        await put(store, b"after")
        told = await content(store)
        assert len(told) in (2, 52)
    async with opened(tmp_path) as store:
        assert await content(store) == told


async def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await put(store, b"a", b"1")
        beside = sqlite3.connect(tmp_path / "upstream.db")
        beside.execute("ALTER TABLE keyspace RENAME TO elsewhere")
        beside.commit()
        with pytest.raises(UpstreamUnavailable, match="no such table"):
            await put(store, b"a", b"2")
        beside.execute("ALTER TABLE elsewhere RENAME TO keyspace")
        beside.commit()
        beside.close()
        assert [(each.value, each.version) for each in await content(store)] == [(b"1", 1)]
        await put(store, b"a", b"3")
        assert [(each.value, each.version) for each in await content(store)] == [(b"3", 2)]
    with pytest.raises(UpstreamUnavailable, match="is closed"):
        await content(store)


async def test_history_has_a_limit_and_a_slow_watch_is_told(tmp_path: Path) -> None:
    limits = KeyspaceLimits(history_revisions=20)
    async with opened(tmp_path, limits) as store:
        async with aclosing(store.watch(b"a", b"", 2)) as seen:
            await put(store, b"a")
            await anext(seen)
            for _ in range(50):
                await put(store, b"a")
            with pytest.raises(Overtaken):
                await anext(seen)
        assert store.revision - store.compacted <= 40
        assert len(await content(store)) == 1
    with sqlite3.connect(tmp_path / "upstream.db") as database:
        assert database.execute("SELECT count(*) FROM keyspace").fetchone()[0] <= 41
    database.close()


async def test_what_is_live_has_a_limit_in_bytes_and_keys(tmp_path: Path) -> None:
    limits = KeyspaceLimits(live_bytes_max=1000, keys_max=10, leases_max=2)
    async with opened(tmp_path, limits) as store:
        await put(store, b"a", b"x" * 900)
        with pytest.raises(EtcdRefused, match="database space exceeded"):
            await put(store, b"b", b"x" * 200)
        await put(store, b"a", b"small")  # room again
        for number in range(9):
            await put(store, b"k%d" % number, b"")
        with pytest.raises(EtcdRefused, match="database space exceeded") as refused:
            await put(store, b"one more", b"")
        assert refused.value.status == "RESOURCE_EXHAUSTED"
        await store.delete_range(DeleteRangeRequest(key=b"k0"))
        for _ in range(2):
            await store.grant(0, 60)
        with pytest.raises(EtcdRefused, match="too many leases"):
            await store.grant(0, 60)


async def test_the_nodes_of_an_older_file_are_taken_over(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "upstream.db") as database:
        database.execute(
            "CREATE TABLE nodes (kind TEXT, node_id TEXT, host TEXT, state TEXT,"
            " max_commit_ts INTEGER, update_ts INTEGER, PRIMARY KEY (kind, node_id)) WITHOUT ROWID"
        )
        database.execute("INSERT INTO nodes VALUES ('pumps', 'b', 'b:1', 'paused', 7, 8)")
        database.execute("INSERT INTO nodes VALUES ('pumps', 'a', 'a:1', 'online', 5, 6)")
    database.close()
    for _ in range(2):
        async with opened(tmp_path) as store:
            nodes = await NodeRegistry(store).nodes(PUMP)
            assert [
                (each.node_id, each.host, each.state, each.max_commit_ts) for each in nodes
            ] == [
                ("a", "a:1", "online", 5),
                ("b", "b:1", "paused", 7),
            ]
            assert store.revision == 3


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "upstream.db").write_bytes(b"no database" * 100)
    with pytest.raises(ConfigError, match=r"upstream\.db: cannot be opened as a database"):
        await KeyspaceStore.open(tmp_path / "upstream.db", Random(1))


async def test_whoever_sees_the_keys_of_a_lease_go_finds_the_lease_gone(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        lease, _ = await store.grant(0, 60)
        await put(store, b"bound", lease=lease)

        async def look() -> int:
            async with aclosing(store.watch(b"bound", b"", store.revision + 1)) as seen:
                await anext(seen)
                return await store.keep_alive(lease)

        async with asyncio.TaskGroup() as group:
            looking = group.create_task(look())
            await asyncio.sleep(0)
            group.create_task(store.revoke(lease))
        assert looking.result() == 0


async def test_a_lease_that_could_not_be_ended_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        lease, _ = await store.grant(0, 60)
        await put(store, b"bound", lease=lease)
        beside = sqlite3.connect(tmp_path / "upstream.db", isolation_level=None)
        beside.execute("ALTER TABLE keyspace RENAME TO elsewhere")
        with pytest.raises(UpstreamUnavailable, match="no such table"):
            await store.revoke(lease)
        beside.execute("ALTER TABLE elsewhere RENAME TO keyspace")
        beside.close()
        assert await store.keep_alive(lease) == 60
        await store.revoke(lease)
        assert await content(store) == []
