"""The standalone upstream over real files and a real HTTP server, restarts included."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from binlogd.errors import ConfigError, UpstreamUnavailable
from binlogd.ports import OpenPrewrite, Pending, RolledBack
from binlogd.tidb.job_index import JobEntry
from binlogd.tidb.model import Job
from binlogd.tso import NO_TS, Tso, compose, physical_ms
from binlogd.upstream.cluster import StoredClusterIdentity
from binlogd.upstream.history import HistoryLimits, SchemaHistory, job_source
from binlogd.upstream.oracle import TAKE_MAX, ClockTso, ObservedTso, Overheard
from binlogd.upstream.store import UpstreamStore
from binlogd.upstream.txn_status import LocalTxnStatus

HISTORY = Path(__file__).parents[1] / "recordings" / "ddl" / "ddl_history.json.gz"


class Hand:
    """A clock that the test moves."""

    def __init__(self, wall_ms: int) -> None:
        self.now_ms = wall_ms

    def wall_ms(self) -> int:
        return self.now_ms


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[UpstreamStore]:
    store = await UpstreamStore.open(path)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[UpstreamStore]:
    async with opened(tmp_path / "upstream.db") as store:
        yield store


# --- cluster id --------------------------------------------------------------------------


async def test_the_first_writers_cluster_is_kept_over_a_restart(tmp_path: Path) -> None:
    big = (1 << 64) - 5
    async with opened(tmp_path / "u.db") as store:
        cluster = await StoredClusterIdentity.open(store, 0)
        assert cluster.cluster_id is None
        assert set(await asyncio.gather(cluster.adopt(big), cluster.adopt(2))) == {big}
    async with opened(tmp_path / "u.db") as store:
        cluster = await StoredClusterIdentity.open(store, 0)
        assert cluster.cluster_id == big
        assert await cluster.adopt(2) == big
        with pytest.raises(ConfigError, match=f"holds binlogs of cluster {big}"):
            await StoredClusterIdentity.open(store, 7)


async def test_a_configured_cluster_is_not_the_writers_to_choose(store: UpstreamStore) -> None:
    cluster = await StoredClusterIdentity.open(store, 9)
    assert await cluster.adopt(2) == 9


async def test_a_file_that_is_no_database_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "u.db").write_bytes(b"I am text, not a database. " * 100)
    with pytest.raises(ConfigError, match=r"u\.db: cannot be opened"):
        await UpstreamStore.open(tmp_path / "u.db")


# --- timestamps --------------------------------------------------------------------------


async def test_observed_time_is_the_largest_timestamp_seen() -> None:
    tso = ObservedTso()
    assert await tso.next() == NO_TS
    tso.observe(Tso(5))
    tso.observe(Tso(3))
    assert await tso.next() == await tso.next() == Tso(5)


async def test_clock_time_rises_over_restarts_and_clock_steps(tmp_path: Path) -> None:
    clock = Hand(1_000_000)
    last = NO_TS
    for step_ms in (0, 5, -400_000, 10_000, 0):
        clock.now_ms += step_ms
        async with opened(tmp_path / "u.db") as store:
            tso = await ClockTso.open(store, clock)
            for _ in range(50):
                ts = await tso.next()
                assert ts > last
                last = ts


async def test_clock_time_follows_the_clock_and_what_binlogs_carried(store: UpstreamStore) -> None:
    clock = Hand(1_000_000)
    tso = await ClockTso.open(store, clock)
    assert physical_ms(await tso.next()) == 1_000_000
    clock.now_ms += 60_000
    assert physical_ms(await tso.next()) == 1_060_000
    tso.observe(compose(2_000_000, 7))
    assert await tso.next() == compose(2_000_000, 8)


async def test_no_two_callers_get_the_same_timestamp(store: UpstreamStore) -> None:
    tso = await ClockTso.open(store, Hand(1_000_000))
    taken = await asyncio.gather(*(tso.next() for _ in range(2000)))
    assert len(set(taken)) == 2000


async def test_timestamps_in_a_row_are_all_of_one_millisecond(store: UpstreamStore) -> None:
    clock = Hand(1_000_000)
    tso = await ClockTso.open(store, clock)
    before = NO_TS
    for count in (1, 7, TAKE_MAX - 100, 300, TAKE_MAX, 1):
        last = await tso.take(count)
        first = last - count + 1
        assert first > before
        assert physical_ms(Tso(first)) == physical_ms(last), "as a client of PD counts back"
        before = last


async def test_what_a_source_observes_is_overheard(store: UpstreamStore) -> None:
    clock = await ClockTso.open(store, Hand(1_000_000))
    source = Overheard(ObservedTso(), clock)
    source.observe(compose(9_000_000))
    assert await source.next() == compose(9_000_000)
    assert await clock.next() == compose(9_000_000, 1)


# --- transaction status --------------------------------------------------------------------


def prewrites(*start_ms: int) -> list[OpenPrewrite]:
    return [OpenPrewrite(compose(ms), b"key") for ms in start_ms]


async def test_without_a_word_from_the_operator_nothing_is_rolled_back() -> None:
    tso = ObservedTso()
    tso.observe(compose(10_000_000))
    status = LocalTxnStatus(tso, rolls_back_abandoned=False)
    (answer,) = await status.statuses(prewrites(1))
    assert isinstance(answer, Pending)
    assert 'set upstream.abandoned-prewrite = "rollback"' in answer.reason
    assert await status.statuses([]) == []


async def test_an_abandoned_prewrite_is_given_up_when_it_is_older_than_the_limit() -> None:
    tso = ObservedTso()
    tso.observe(compose(700_000))
    status = LocalTxnStatus(tso, rolls_back_abandoned=True, txn_timeout_s=600)
    old, young = await status.statuses(prewrites(99_999, 100_000))
    assert old == RolledBack()
    assert isinstance(young, Pending)
    assert "given up at an age of 600 s" in young.reason


# --- schema history ----------------------------------------------------------------------

QUICK = HistoryLimits(missing_in_file_s=0.3, missing_at_url_s=0.3, retry_interval_s=0.02)


def job(job_id: int) -> dict[str, Any]:
    return {"id": job_id, "type": 3, "query": f"create table t{job_id} (a int)", "state": 6}


async def all_of(history: SchemaHistory) -> list[Job]:
    index = await history.index()
    return await history.read(sorted(entry.id for entry in index.in_version_order()))


def write_history(path: Path, *ids: int) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps([job(job_id) for job_id in ids]))
    os.replace(beside, path)


async def test_a_recorded_history_is_read_whole_and_kept(
    tmp_path: Path, store: UpstreamStore
) -> None:
    raw = {j["id"]: j for j in json.loads(gzip.decompress(HISTORY.read_bytes()))}
    jobs = await all_of(SchemaHistory(job_source(str(HISTORY)), store))
    assert [j.id for j in jobs] == sorted(raw)
    assert all(json.loads(j.raw) == raw[j.id] for j in jobs)
    kept = await all_of(SchemaHistory(job_source(""), store))
    assert kept == jobs


async def test_a_long_answer_is_taken_in_parts_that_let_others_have_their_turn(
    tmp_path: Path, store: UpstreamStore
) -> None:
    base = {"schema_id": 2, "query": '"},{"id":1,"type":2,"schema_id":3', "filler": "x" * 1000}
    jobs = [{"id": number, "type": 3, **base} for number in range(1, 10_001)]
    path = tmp_path / "history.json"
    path.write_text(json.dumps(jobs))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:  # until cancelled
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.get_running_loop().create_task(take_turns())
    history = SchemaHistory(job_source(str(path)), store)
    assert len(await history.index()) == 10_000
    other.cancel()
    assert turns > 10_000 / 500
    assert [json.loads(j.raw) for j in await history.read([10_000, 1])] == [jobs[-1], jobs[0]]


async def test_jobs_of_an_older_store_are_taken_over(tmp_path: Path) -> None:
    raw = b'{"id":7,"start_ts":5,"binlog":{"FinishedTS":449730000000000009,"SchemaVersion":3}}'
    with sqlite3.connect(tmp_path / "upstream.db") as before:
        before.execute("CREATE TABLE ddl_jobs (id INTEGER PRIMARY KEY, raw BLOB NOT NULL)")
        before.execute("INSERT INTO ddl_jobs VALUES (7, ?)", (raw,))
    before.close()
    for _ in range(2):
        store = await UpstreamStore.open(tmp_path / "upstream.db")
        assert await store.job_entries() == [JobEntry(449730000000000009, 5, 3, 7)]
        assert await store.job(7) == raw
        await store.close()


async def test_a_missing_job_is_waited_for_and_then_given_up(
    tmp_path: Path, store: UpstreamStore
) -> None:
    path = tmp_path / "history.json"
    write_history(path, 1, 2)
    history = SchemaHistory(job_source(str(path), QUICK), store, QUICK)
    assert (await history.job(2)) is not None
    assert await history.job(3) is None
    patient = replace(QUICK, missing_in_file_s=60)
    history = SchemaHistory(job_source(str(path), patient), store, patient)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(history.job(3))
        await asyncio.sleep(0)
        write_history(path, 3, 1, 2)
    found = waiting.result()
    assert found is not None
    assert found.query == "create table t3 (a int)"


async def test_no_history_at_all_finds_no_job(store: UpstreamStore) -> None:
    history = SchemaHistory(job_source(""), store, QUICK)
    assert await history.job(1) is None
    assert await all_of(history) == []


@pytest.mark.parametrize("content", [None, b"[{", b"{}", b'[{"id": "x"}]', b"\x1f\x8bnot gzip"])
async def test_a_history_that_cannot_be_read_is_unavailable_and_named(
    tmp_path: Path, store: UpstreamStore, content: bytes | None
) -> None:
    path = tmp_path / "history.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UpstreamUnavailable, match=r"history\.json"):
        await SchemaHistory(job_source(str(path), QUICK), store, QUICK).index()


@asynccontextmanager
async def serving(handler: Any) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_get("/ddl/history", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}/ddl/history"
    finally:
        await runner.cleanup()


async def test_a_history_behind_a_url_is_read_in_pages_where_the_answer_is_capped(
    store: UpstreamStore,
) -> None:
    queries: list[dict[str, str]] = []

    async def capped(request: web.Request) -> web.Response:
        queries.append(dict(request.query))
        newest = int(request.query.get("start_job_id", 5000))
        ids = range(newest, max(0, newest - 2048), -1)
        return web.json_response([job(job_id) for job_id in ids])

    async with serving(capped) as url:
        history = SchemaHistory(job_source(url, QUICK), store, QUICK)
        assert [j.id for j in await all_of(history)] == list(range(1, 5001))
        assert queries[1] == {"start_job_id": "2952", "limit": "2048"}
        assert len(queries) == 3
        assert len(await all_of(history)) == 5000
        assert len(queries) == 4


async def test_a_url_that_answers_an_error_is_unavailable(store: UpstreamStore) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=400, text="[domain]no ddl owner")

    async with serving(refuse) as url:
        with pytest.raises(UpstreamUnavailable, match=r"HTTP 400: \[domain\]no ddl owner"):
            await SchemaHistory(job_source(url, QUICK), store, QUICK).index()
    with pytest.raises(UpstreamUnavailable, match=r"127\.0\.0\.1"):
        await SchemaHistory(job_source(url, QUICK), store, QUICK).index()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=6))
def test_clock_time_is_unique_for_any_walk_of_the_clock(steps_ms: list[int]) -> None:
    class Facts:
        value: int | None = None

        async def fact(self, name: str) -> int | None:
            return self.value

        async def put_fact(self, name: str, value: int) -> None:
            self.value = value

    async def walk() -> None:
        facts: Any = Facts()
        clock = Hand(1_000)
        seen = [NO_TS]
        for step_ms in steps_ms:
            clock.now_ms += (step_ms - 20) * 100
            tso = await ClockTso.open(facts, clock)
            seen += [await tso.next() for _ in range(5)]
        assert seen == sorted(set(seen))

    asyncio.run(walk())
