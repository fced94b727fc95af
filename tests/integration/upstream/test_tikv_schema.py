"""The history of DDL jobs and the schema at a timestamp, read where TiDB itself keeps them."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from binlogd.errors import UpstreamUnavailable
from binlogd.tidb import meta_keys
from binlogd.tidb.model import (
    Job,
    job_from_json,
)
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from binlogd.upstream.history import HistoryLimits, SchemaHistory, job_source
from binlogd.upstream.store import UpstreamStore
from binlogd.upstream.tikv.client import TikvClient
from binlogd.upstream.tikv.schema import TikvJobs, TikvSchema
from tests.support.recordings_reader import RECORDINGS
from tests.support.tikv import FakeTikv, asking, tikv
from tests.support.tikv_schema import keep_schema

HISTORY = RECORDINGS / "ddl" / "ddl_history.json.gz"
RAW: list[dict[str, Any]] = sorted(
    json.loads(gzip.decompress(HISTORY.read_bytes())), key=lambda job: int(job["id"])
)
QUICK = HistoryLimits(missing_at_url_s=0.05, retry_interval_s=0.01)
CUTS = tuple(meta_keys.job_key(job["id"]) for job in RAW[:: len(RAW) // 5])


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[UpstreamStore]:
    opened = await UpstreamStore.open(tmp_path / "upstream.db")
    yield opened
    await opened.close()


def file_job(cluster: FakeTikv, job: dict[str, Any]) -> Tso:
    """TiDB files a job; the timestamp from which on it is seen."""
    start_ts, commit_ts = cluster.tso.pass_s(0.01), cluster.tso.pass_s(0.01)
    raw = json.dumps(job).encode()
    cluster.records.put(meta_keys.job_key(job["id"]), raw, start_ts, commit_ts)
    return commit_ts


def history_of(
    cluster: FakeTikv, client: TikvClient, store: UpstreamStore, limits: HistoryLimits | None = None
) -> SchemaHistory:
    return SchemaHistory(TikvJobs(client, cluster.tso, limits), store, limits)


async def test_the_history_is_that_of_tidbs_status_port(
    tmp_path: Path, store: UpstreamStore
) -> None:
    other = await UpstreamStore.open(tmp_path / "other.db")
    served = SchemaHistory(job_source(str(HISTORY)), other)
    async with tikv(cuts=(*CUTS, b"t")) as cluster, asking(cluster) as client:
        for job in RAW:
            file_job(cluster, job)
        history = history_of(cluster, client, store)
        assert (await history.index()).in_version_order() == (
            await served.index()
        ).in_version_order()
        mine = [json.loads(raw) for raw in await history.known_jobs()]
        assert mine == [json.loads(raw) for raw in await served.known_jobs()]
    await other.close()


async def test_only_what_is_new_is_read_again_also_when_it_ended_late(store: UpstreamStore) -> None:
    late, newest = RAW[30], RAW[-1]
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        for job in RAW:
            if job not in (late, newest):
                file_job(cluster, job)
        history = history_of(cluster, client, store)
        assert len(await history.index()) == len(RAW) - 2
        file_job(cluster, newest)
        file_job(cluster, late)
        before = cluster.calls["KvScan"]
        index = await history.index()
        assert len(index) == len(RAW)
        assert late["id"] in index
        assert cluster.calls["KvScan"] - before <= 3  # the keys, and one for each
        before = cluster.calls["KvScan"]
        await history.index()
        assert cluster.calls["KvScan"] - before == 1


async def test_a_cluster_without_any_ddl_job_is_named_once(store: UpstreamStore) -> None:
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        history = history_of(cluster, client, store)
        with structlog.testing.capture_logs() as events:
            assert not len(await history.index())
            assert not len(await history.index())
            file_job(cluster, RAW[0])
            assert len(await history.index()) == 1
    (told,) = [each for each in events if each["event"] == "ddl_history_empty"]
    assert "keyspace-name" in told["cause"]


async def test_one_job_is_one_question(store: UpstreamStore) -> None:
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        for job in RAW[:5]:
            file_job(cluster, job)
        history = history_of(cluster, client, store, QUICK)
        found = await history.job(RAW[3]["id"])
        assert found is not None
        assert found.query == RAW[3]["query"]
        assert (cluster.calls["KvGet"], cluster.calls["KvScan"]) == (1, 0)
        assert await history.job(RAW[3]["id"]) == found
        assert cluster.calls["KvGet"] == 1
        assert await history.job(RAW[9]["id"]) is None
        file_job(cluster, RAW[9])
        assert await history.job(RAW[9]["id"]) is not None


async def test_a_history_is_of_one_moment_while_regions_split_and_jobs_are_filed(
    store: UpstreamStore,
) -> None:
    async with tikv(stores=3, cuts=CUTS) as cluster, asking(cluster, question_s=20) as client:
        for job in RAW[:-3]:
            file_job(cluster, job)
        more = iter(RAW[-3:])
        cuts = iter(job["id"] for job in RAW[5::20])

        def go_on(name: str, key: bytes) -> None:
            if name != "KvScan" or cluster.calls["KvScan"] % 3:
                return
            cut = next(cuts, None)
            if cut is not None and cluster.region_of(meta_keys.job_key(cut)).start < (
                meta_keys.job_key(cut)
            ):
                cluster.split(meta_keys.job_key(cut))
            region = cluster.region_of(key)
            region.leader = (region.leader or 1) % 3 + 1
            job = next(more, None)
            if job is not None:
                file_job(cluster, job)

        cluster.before_call = go_on
        history = history_of(cluster, client, store)
        assert len(await history.index()) == len(RAW) - 3
        assert len(cluster.regions) > len(CUTS) + 3
        assert len(await history.index()) == len(RAW)


async def test_a_history_waits_for_a_ddl_that_is_being_committed(store: UpstreamStore) -> None:
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        for job in RAW[:5]:
            file_job(cluster, job)
        start_ts = cluster.tso.pass_s(1)
        key = meta_keys.job_key(RAW[5]["id"])
        cluster.records.prewrite({key: json.dumps(RAW[5]).encode()}, start_ts, ttl_ms=60_000)
        commit_ts = await cluster.tso.next()

        def commits(_: str, __: bytes) -> None:
            if client.statistics().locks_met and key in cluster.records.locks:
                cluster.records.commit([key], start_ts, commit_ts)

        cluster.before_call = commits
        assert len(await history_of(cluster, client, store).index()) == 6


async def test_what_is_no_job_is_named(store: UpstreamStore) -> None:
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        ts = cluster.tso.pass_s(1)
        cluster.records.put(meta_keys.job_key(7), b"{", ts, Tso(ts + 1))
        with pytest.raises(UpstreamUnavailable, match="a job of the DDL history is no JSON"):
            await history_of(cluster, client, store).index()


# --- all tables at once ----------------------------------------------------------------------


def applied(jobs: list[Job]) -> SchemaTracker:
    tracker = SchemaTracker()
    for job in jobs:
        tracker.apply(job, 0)
    return tracker


def in_version_order() -> list[Job]:
    jobs = [job_from_json(json.dumps(each).encode()) for each in RAW]
    return sorted(jobs, key=lambda job: (job.schema_version, job.id))


async def test_the_schema_at_a_timestamp_is_that_of_the_jobs_until_then() -> None:
    jobs = in_version_order()
    middle, end = applied(jobs[: len(jobs) // 2]), applied(jobs)
    async with tikv(stores=2, cuts=(b"mDB:", b"t")) as cluster, asking(cluster) as client:
        then = keep_schema(cluster, middle, middle.snapshot())
        now = keep_schema(cluster, end, end.snapshot())
        schema = TikvSchema(client, cluster, "binlogd-test")
        for ts, expected in ((then, middle), (now, end), (Tso(now - 1), middle)):
            tracker = await schema.tracker(ts)
            assert tracker is not None
            assert tracker.version == expected.version
            assert tracker.tables() == expected.tables()
            assert {each.name for each in tracker.databases()} >= {"mysql", "test"}
        assert cluster.held == {}, "nothing is held longer than it is read"


async def test_later_jobs_go_on_from_there() -> None:
    jobs = in_version_order()
    middle, end = applied(jobs[: len(jobs) // 2]), applied(jobs)
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        tracker = await TikvSchema(client, cluster, "binlogd-test").tracker(
            keep_schema(cluster, middle, middle.snapshot())
        )
        assert tracker is not None
        for job in jobs[len(jobs) // 2 - 5 :]:  # some are in force already: their binlogs were late
            tracker.apply(job, 0)
        assert tracker.tables() == end.tables()


async def test_garbage_collection_is_held_off_and_a_schema_that_it_passed_is_not_told() -> None:
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        tracker = applied(in_version_order()[:5])
        ts = keep_schema(cluster, tracker, tracker.snapshot())
        held: list[Tso] = []
        cluster.before_call = lambda _, __: held.extend(cluster.held.values())
        schema = TikvSchema(client, cluster, "binlogd-test")
        cluster.safe_point = Tso(ts - 5)
        assert await schema.tracker(ts) is not None
        assert set(held) == {ts}
        cluster.before_call = lambda _, __: setattr(cluster, "pd_refuses_to_let_go", True)
        assert await schema.tracker(ts) is not None, "what was read is whole"
        cluster.pd_refuses_to_let_go = False
        later = cluster.tso.pass_s(600)

        def outlasts_the_hold(_: str, __: bytes) -> None:
            cluster.safe_point = later

        cluster.before_call = outlasts_the_hold
        gone = await schema.tracker(ts)
        assert gone is None, "half of it may have been collected while it was read"
        cluster.before_call = lambda _, __: None
        assert await schema.tracker(ts) is None
        assert cluster.held == {}
