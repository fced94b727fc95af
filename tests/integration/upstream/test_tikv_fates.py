"""What became of transactions, asked of a TiKV, and a Pump that does so.

Each test leaves behind in TiKV what a TiDB would have left that failed at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binlogd.errors import UpstreamUnavailable
from binlogd.host.disk import PosixDisk
from binlogd.ports import Committed, OpenPrewrite, Pending, RolledBack, TxnStatus
from binlogd.pump.pump import Pump
from binlogd.tso import Tso
from binlogd.upstream.tikv.client import TikvClient
from binlogd.upstream.tikv.txn_status import TikvTxnStatus
from binlogd.wire import codec
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog, rollback_binlog
from binlogd.wire.generated import errorpb
from binlogd.wire.generated.kvrpcpb import MvccGetByKeyRequest
from tests.support.pump_world import ROOMY, StillClock, eventually, pulled, written
from tests.support.tikv import FakeTikv, asking, record_key, tikv
from tests.support.tikv_recordings import asked
from tests.support.wire_recordings import calls

KEY = record_key(86, 5)


def source(
    cluster: FakeTikv, client: TikvClient, *, rolls_back_abandoned: bool = False
) -> TikvTxnStatus:
    return TikvTxnStatus(
        client, cluster, cluster.tso, rolls_back_abandoned=rolls_back_abandoned, answer_s=200
    )


async def fate(cluster: FakeTikv, start_ts: Tso, **options: bool) -> TxnStatus:
    async with asking(cluster) as client:
        (found,) = await source(cluster, client, **options).statuses([OpenPrewrite(start_ts, KEY)])
        return found


async def final_fate(cluster: FakeTikv, start_ts: Tso, **options: bool) -> TxnStatus:
    """As `fate`, asked again when what is absent was absent for long enough."""
    async with asking(cluster) as client:
        asked = source(cluster, client, **options)
        first = await asked.statuses([OpenPrewrite(start_ts, KEY)])
        assert isinstance(first[0], Pending)
        cluster.tso.pass_s(10)
        (found,) = await asked.statuses([OpenPrewrite(start_ts, KEY)])
        return found


# --- TiDB ends between prewrite and commit -------------------------------------------------


async def test_a_transaction_that_committed_is_committed_also_when_others_came_after() -> None:
    async with tikv() as cluster:
        start_ts = await cluster.tso.next()
        cluster.records.put(KEY, b"row", start_ts, Tso(start_ts + 3))
        for _ in range(3):
            later = cluster.tso.pass_s(1)
            cluster.records.put(KEY, None, later, Tso(later + 1))
            cluster.records.roll_back([KEY], cluster.tso.pass_s(1))
        assert await fate(cluster, start_ts) == Committed(Tso(start_ts + 3))


async def test_a_lock_is_waited_for_and_decided_on_when_its_time_is_over() -> None:
    async with tikv() as cluster:
        start_ts = await cluster.tso.next()
        cluster.records.prewrite({KEY: b"row"}, start_ts, ttl_ms=20_000)
        cluster.tso.pass_s(19)
        assert isinstance(await fate(cluster, start_ts), Pending)
        cluster.tso.pass_s(2)
        assert isinstance(await fate(cluster, start_ts), Pending), "its TiDB may only be slow"
        assert cluster.records.locks
        cluster.tso.pass_s(10)
        assert await fate(cluster, start_ts) == RolledBack()
        assert not cluster.records.locks
        asked = cluster.calls["KvCheckTxnStatus"]
        assert await fate(cluster, start_ts) == RolledBack()
        assert cluster.calls["KvCheckTxnStatus"] == asked


async def test_a_commit_that_comes_between_look_and_decision_counts() -> None:
    async with tikv() as cluster:
        start_ts = await cluster.tso.next()
        cluster.records.prewrite({KEY: b"row"}, start_ts, ttl_ms=10)
        now = cluster.tso.pass_s(60)

        def commits_at_last(name: str, _: bytes) -> None:
            if name == "KvCheckTxnStatus":
                cluster.records.commit([KEY], start_ts, now)

        cluster.before_call = commits_at_last
        assert await fate(cluster, start_ts) == Committed(now)


async def test_what_never_came_to_tikv_is_rolled_back_for_good_after_ten_minutes() -> None:
    async with tikv() as cluster:
        start_ts = await cluster.tso.next()
        cluster.tso.pass_s(599)
        young = await fate(cluster, start_ts)
        assert isinstance(young, Pending)
        assert young.is_traceless
        assert not cluster.records.writes.get(KEY)
        cluster.tso.pass_s(2)
        old = await fate(cluster, start_ts)
        assert isinstance(old, Pending)
        assert "may be on its way" in old.reason
        assert not cluster.records.writes.get(KEY)
        assert await final_fate(cluster, start_ts) == RolledBack()
        (tombstone,) = cluster.records.writes[KEY]
        assert tombstone.commit_ts == start_ts  # a prewrite that still comes is refused by it


async def test_a_rollback_in_the_write_of_another_transaction_is_one() -> None:
    async with tikv() as cluster:
        before = await cluster.tso.next()
        start_ts = await cluster.tso.next()
        cluster.records.put(KEY, b"row", before, start_ts)
        cluster.records.roll_back([KEY], start_ts)
        assert await fate(cluster, start_ts) == RolledBack()
        assert await fate(cluster, before) == Committed(start_ts)


async def test_nobody_is_rolled_back_whose_commit_may_have_been_collected() -> None:
    async with tikv() as cluster:
        start_ts = await cluster.tso.next()
        cluster.records.put(KEY, b"row", start_ts, Tso(start_ts + 1))
        deleted = cluster.tso.pass_s(60)
        cluster.records.put(KEY, None, deleted, Tso(deleted + 1))
        cluster.safe_point = cluster.tso.pass_s(1200)
        cluster.records.collect(cluster.safe_point)
        assert not cluster.records.writes[KEY]
        found = await final_fate(cluster, start_ts)
        assert isinstance(found, Pending)
        assert "a commit may have been there" in found.reason
        assert cluster.calls["KvCheckTxnStatus"] == 0, "asking would leave a rollback as proof"
        assert await final_fate(cluster, start_ts, rolls_back_abandoned=True) == RolledBack()


ENDS = ("commits", "rolls back", "dies after prewrite", "dies before prewrite")


@settings(max_examples=8, deadline=None)
@given(
    ends=st.lists(st.tuples(st.sampled_from(ENDS), st.integers(0, 2)), min_size=1, max_size=12),
    looks_s=st.lists(st.sampled_from([1, 30, 300, 700]), max_size=4),
)
async def test_whatever_a_tidb_does_only_what_committed_is_committed(
    ends: list[tuple[str, int]], looks_s: list[int]
) -> None:
    """Several transactions of a few keys, looked at again and again; in the end all is decided."""
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        committed: dict[Tso, Tso] = {}
        prewrites = []
        records = cluster.records
        for end, number in ends:
            key, start_ts = record_key(86, number), await cluster.tso.next()
            prewrites.append(OpenPrewrite(start_ts, key))
            if key in records.locks:  # of one that died: whoever comes next resolves it
                records.roll_back([key], Tso(records.locks[key].start_ts))
            if end == "commits":
                committed[start_ts] = await cluster.tso.next()
                records.put(key, b"row", start_ts, committed[start_ts])
            elif end == "rolls back":
                records.roll_back([key], start_ts)
            elif end == "dies after prewrite":
                records.prewrite({key: b"row"}, start_ts, ttl_ms=20_000)
        statuses = source(cluster, client)
        final: dict[Tso, TxnStatus] = {}
        for passes_s in (*looks_s, 700, 10):
            cluster.tso.pass_s(passes_s)
            for prewrite, status in zip(prewrites, await statuses.statuses(prewrites), strict=True):
                before = final.get(prewrite.start_ts)
                assert before is None or before == status, "what was decided stays so"
                if not isinstance(status, Pending):
                    final[prewrite.start_ts] = status
        for prewrite in prewrites:
            commit_ts = committed.get(prewrite.start_ts)
            expected = RolledBack() if commit_ts is None else Committed(commit_ts)
            assert final[prewrite.start_ts] == expected
        assert not records.locks


# --- many at once ---------------------------------------------------------------------------


async def test_a_thousand_orphans_are_asked_about_side_by_side_within_limits() -> None:
    cuts = tuple(record_key(86, handle) for handle in range(0, 1000, 100))
    async with (
        tikv(stores=3, cuts=cuts) as cluster,
        asking(cluster, question_s=200, call_s=200) as client,
    ):
        running = most = 0
        prewrites = []
        for handle in range(1000):
            start_ts = await cluster.tso.next()
            key = record_key(86, handle)
            prewrites.append(OpenPrewrite(start_ts, key))
            if handle % 3 == 0:
                cluster.records.put(key, b"row", start_ts, Tso(start_ts + 1))
            elif handle % 3 == 1:
                cluster.records.roll_back([key], start_ts)
            else:
                cluster.records.prewrite({key: b"row"}, start_ts, ttl_ms=60_000)
        ask = client.records

        async def counted(key: bytes) -> object:
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                return await ask(key)
            finally:
                running -= 1

        client.records = counted  # type: ignore[assignment, method-assign] # it counts, and asks
        found = await source(cluster, client).statuses(prewrites)
        assert 8 < most <= 64
        for handle, (prewrite, status) in enumerate(zip(prewrites, found, strict=True)):
            match handle % 3:
                case 0:
                    assert status == Committed(Tso(prewrite.start_ts + 1))
                case 1:
                    assert status == RolledBack()
                case _:
                    assert isinstance(status, Pending)


async def test_a_region_that_does_not_answer_leaves_the_others_their_answers() -> None:
    async with (
        tikv(stores=2, cuts=(KEY,)) as cluster,
        asking(cluster, question_s=1.2, call_s=0.5) as client,
    ):
        start_ts = await cluster.tso.next()
        near, far = record_key(86, 6), record_key(86, 4)
        cluster.records.put(near, b"row", start_ts, Tso(start_ts + 1))
        silent = cluster.region_of(far).leader
        assert silent is not None
        assert silent != cluster.region_of(near).leader
        cluster.stores[silent].hangs = True
        statuses = source(cluster, client)
        answer, no_answer = await statuses.statuses(
            [OpenPrewrite(start_ts, near), OpenPrewrite(start_ts, far)]
        )
        assert answer == Committed(Tso(start_ts + 1))
        assert isinstance(no_answer, Pending)
        assert f"store {silent}" in no_answer.reason
        with pytest.raises(UpstreamUnavailable, match=f"store {silent}"):
            await statuses.statuses([OpenPrewrite(start_ts, far)])


async def test_a_region_that_hangs_is_asked_once_and_not_about_each_of_its_orphans() -> None:
    async with (
        tikv(stores=2, cuts=(KEY,)) as cluster,
        asking(cluster, question_s=2.5, call_s=2.3) as client,
    ):
        start_ts = await cluster.tso.next()
        near = [record_key(86, 5 + number) for number in range(50)]
        far = [record_key(86, 4 - number) for number in range(150)]
        for key in near:
            cluster.records.put(key, b"row", start_ts, Tso(start_ts + 1))
        silent = cluster.region_of(far[0]).leader
        assert silent is not None
        cluster.stores[silent].hangs = True
        asked_about = [OpenPrewrite(start_ts, key) for key in (*far, *near)]
        found = await source(cluster, client).statuses(asked_about)
        assert found[150:] == [Committed(Tso(start_ts + 1))] * 50
        assert all(isinstance(each, Pending) for each in found[:150])
        assert cluster.stores[silent].calls["MvccGetByKey"] <= 2


async def test_who_has_an_answer_has_it_when_the_time_for_all_is_over() -> None:
    async with (
        tikv(stores=2, cuts=(KEY,)) as cluster,
        asking(cluster, question_s=60, call_s=60) as client,
    ):
        start_ts = await cluster.tso.next()
        near, far = record_key(86, 6), record_key(86, 4)
        cluster.records.put(near, b"row", start_ts, Tso(start_ts + 1))
        silent = cluster.region_of(far).leader
        assert silent is not None
        cluster.stores[silent].hangs = True
        statuses = TikvTxnStatus(
            client, cluster, cluster.tso, rolls_back_abandoned=False, answer_s=1.5
        )
        answer, late = await statuses.statuses(
            [OpenPrewrite(start_ts, near), OpenPrewrite(start_ts, far)]
        )
        assert answer == Committed(Tso(start_ts + 1))
        assert late == Pending("TiKV: no answer in 1.5 s")


async def test_a_prewrite_without_a_key_is_pending() -> None:
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        start_ts = await cluster.tso.next()
        (found,) = await source(cluster, client).statuses([OpenPrewrite(start_ts, b"")])
        assert isinstance(found, Pending)
        assert await source(cluster, client).statuses([]) == []


# --- a Pump that asks -----------------------------------------------------------------------


@asynccontextmanager
async def pump_of(
    cluster: FakeTikv, directory: Path, *, question_s: float = 10.0
) -> AsyncIterator[Pump]:
    disk = PosixDisk(threads=4)
    async with asking(cluster, question_s=question_s) as client:
        pump = await Pump.open(
            directory,
            shards=2,
            tso=cluster.tso,
            txn_status=source(cluster, client),
            clock=StillClock(),
            disk=disk,
            options=ROOMY,
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pump.run())
                yield pump
                await pump.close()
        finally:
            await pump.close()
            disk.close()


async def test_the_recorded_orphan_is_resolved_as_the_original_did(tmp_path: Path) -> None:
    (write,) = calls("pump", "pump")
    prewrite = codec.decode_write_request(write.requests[0]).payload
    (look_up,) = [each for each in asked("pump") if each.method == "MvccGetByKey"]
    key = MvccGetByKeyRequest().parse(look_up.request).key
    start_ts, commit_ts = Tso(470610290070257676), Tso(470610290070257677)
    async with tikv() as cluster:
        cluster.records.put(key, b"row", start_ts, commit_ts)
        async with pump_of(cluster, tmp_path) as pump:
            await written(pump, prewrite)
            (found,) = await pulled(pump, upto=commit_ts)
            assert (found.start_ts, found.commit_ts) == (start_ts, commit_ts)
            assert cluster.calls["MvccGetByKey"] == 1
            assert cluster.calls["KvCheckTxnStatus"] == 0


async def test_a_rollback_after_a_commit_without_an_answer_loses_nothing(tmp_path: Path) -> None:
    """The store committed, and its answer never came: TiDB tells its Pump of a rollback."""
    async with tikv() as cluster, pump_of(cluster, tmp_path) as pump:
        start_ts = await cluster.tso.next()
        commit_ts = await cluster.tso.next()
        cluster.records.put(KEY, b"row", start_ts, commit_ts)
        await written(
            pump,
            prewrite_binlog(start_ts, prewrite_key=KEY, prewrite_value=b"row"),
            rollback_binlog(start_ts),
        )
        (found,) = await pulled(pump, upto=commit_ts)
        assert (found.start_ts, found.commit_ts) == (start_ts, commit_ts)
        assert sum(each.contradicted for each in pump.statistics().resolvers) == 1


async def test_a_rollback_that_tikv_confirms_holds_nothing_up(tmp_path: Path) -> None:
    async with tikv() as cluster, pump_of(cluster, tmp_path) as pump:
        start_ts = await cluster.tso.next()
        other, commit_ts = await cluster.tso.next(), await cluster.tso.next()
        cluster.records.roll_back([KEY], start_ts)
        await written(
            pump,
            prewrite_binlog(start_ts, prewrite_key=KEY, prewrite_value=b"no"),
            rollback_binlog(start_ts),
            prewrite_binlog(other, prewrite_key=KEY, prewrite_value=b"yes"),
            commit_binlog(other, commit_ts, prewrite_key=KEY),
        )
        assert [each.start_ts for each in await pulled(pump, upto=commit_ts)] == [other]


async def test_a_tidb_that_dies_holds_the_watermark_until_its_locks_are_over(
    tmp_path: Path,
) -> None:
    async with tikv() as cluster, pump_of(cluster, tmp_path) as pump:
        start_ts = await cluster.tso.next()
        other, commit_ts = await cluster.tso.next(), await cluster.tso.next()
        cluster.records.prewrite({KEY: b"no"}, start_ts, ttl_ms=20_000)
        await written(
            pump,
            prewrite_binlog(start_ts, prewrite_key=KEY, prewrite_value=b"no"),
            prewrite_binlog(other, prewrite_key=KEY, prewrite_value=b"yes"),
            commit_binlog(other, commit_ts, prewrite_key=KEY),
        )
        await eventually(lambda: "its lock lives" in pump.statistics().blocked_by)
        assert pump.statistics().max_commit_ts < start_ts
        cluster.tso.pass_s(31)
        assert [each.start_ts for each in await pulled(pump, upto=commit_ts)] == [other]
        assert not cluster.records.locks


async def test_orphans_are_resolved_while_their_region_splits_moves_and_is_not_ready(
    tmp_path: Path,
) -> None:
    async with tikv(stores=3) as cluster, pump_of(cluster, tmp_path) as pump:
        payloads, commits = [], []
        for handle in range(60):
            start_ts, commit_ts = await cluster.tso.next(), await cluster.tso.next()
            key = record_key(86, handle)
            payloads.append(prewrite_binlog(start_ts, prewrite_key=key, prewrite_value=b"row"))
            cluster.records.put(key, b"row", start_ts, commit_ts)
            commits.append(commit_ts)
        turns = iter(range(10))

        def shake(_: str, key: bytes) -> None:
            turn = next(turns, None)
            if turn is None:
                return
            if turn % 3 == 0:
                cluster.split(record_key(86, 1 + 5 * turn))
            elif turn % 3 == 1:
                cluster.move(key, turn % 2 + 2, 1)
            else:
                cluster.errors.append(errorpb.Error(stale_command=errorpb.StaleCommand()))

        cluster.before_call = shake
        await written(pump, *payloads)
        found = await pulled(pump, upto=commits[-1])
        assert [each.commit_ts for each in found] == commits


async def test_tikv_and_pd_may_be_away_for_a_while(tmp_path: Path) -> None:
    async with tikv(stores=1) as cluster, pump_of(cluster, tmp_path, question_s=0.5) as pump:
        start_ts, commit_ts = await cluster.tso.next(), await cluster.tso.next()
        cluster.records.put(KEY, b"row", start_ts, commit_ts)
        cluster.pd_is_down = True
        await cluster.stores[1].stop()
        await written(pump, prewrite_binlog(start_ts, prewrite_key=KEY, prewrite_value=b"row"))
        await eventually(
            lambda: any("PD: connection" in each.reason for each in pump.statistics().resolvers)
        )
        await cluster.stores[1].start()
        cluster.pd_is_down = False
        (found,) = await pulled(pump, upto=commit_ts)
        assert found.commit_ts == commit_ts
