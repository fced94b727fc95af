"""The Drainer over sources and a sink in memory, with a real relay log where one matters."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import FrameType

import pytest
from structlog.testing import capture_logs

from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.ports import DrainerOptions, DrainerPorts
from binlogd.drainer.session import Session
from binlogd.drainer.sink import Sink, SinkStatistics
from binlogd.drainer.statistics import DrainerState
from binlogd.drainer.txn import Ddl, Dml, Txn
from binlogd.errors import Behind, Corrupt, DownstreamUnavailable, StatementRejected
from binlogd.host.disk import PosixDisk
from binlogd.relay.frame import suffix_of
from binlogd.relay.log import RelayWriter
from binlogd.relay.reader import read_relay
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY
from binlogd.tidb.model import (
    Column,
    Database,
    FieldType,
    Job,
    Table,
    Tp,
    job_from_json,
    table_to_json,
)
from binlogd.tidb.row import encode_delete, encode_insert, encode_update
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import MAX_TS, NO_TS, Tso, compose
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.joining import join
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.contract.memory_sink import MemorySink, MemoryStore
from tests.support.job_history import MemoryHistory
from tests.support.stored import OfBytes

TABLE = Table(
    10, "t", (Column(1, "id", 0, FieldType(Tp.LONG)), Column(2, "v", 1, FieldType(Tp.LONGLONG)))
)
CREATED = 3
"""commit_ts of the CREATE TABLE; rows come behind it."""


# --- an upstream ---------------------------------------------------------------------------


class Source:
    """Binlogs that are there, and a promise; `add` wakes whoever pulls."""

    def __init__(self, name: str = "shard-0") -> None:
        self.name = name
        self.pulled_after: list[Tso] = []
        self._binlogs: list[CommittedBinlog] = []
        self._resolved_ts = NO_TS
        self._added = asyncio.Event()
        self._gc_ts = NO_TS

    def collect(self, gc_ts: int) -> None:
        """What lies up to there is deleted."""
        self._gc_ts = Tso(gc_ts)

    def add(self, *binlogs: CommittedBinlog, resolved_ts: int = 0) -> None:
        self._binlogs += binlogs
        last = self._binlogs[-1].commit_ts if self._binlogs else NO_TS
        self._resolved_ts = max(self._resolved_ts, last, Tso(resolved_ts))
        added, self._added = self._added, asyncio.Event()
        added.set()

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        self.pulled_after.append(after)
        if after < self._gc_ts:
            raise Behind(after, self._gc_ts)
        at = 0
        promised = after
        while True:  # for as long as someone pulls
            fresh = [each for each in self._binlogs[at:] if each.commit_ts > after]
            at = len(self._binlogs)
            if fresh or self._resolved_ts > promised:
                promised = self._resolved_ts
                for begin in range(0, len(fresh), 7):
                    yield Pulled(fresh[begin : begin + 7], fresh[begin : begin + 7][-1].commit_ts)
                yield Pulled([], promised)
            else:
                await self._added.wait()


def job(job_id: int, commit_ts: int, kind: int, **facts: object) -> Job:
    version = facts.pop("version", job_id)
    binlog: dict[str, object] = {
        "SchemaVersion": version,
        "FinishedTS": commit_ts + 1,
        **{name: facts.pop(name) for name in ("DBInfo", "TableInfo") if name in facts},
    }
    text = {
        "id": job_id,
        "type": kind,
        "state": 6,
        "start_ts": commit_ts - 1,
        "binlog": binlog,
        **facts,
    }
    return job_from_json(json.dumps(text).encode())


DATABASE = job(
    1, 2, 1, schema_id=5, DBInfo={"id": 5, "db_name": {"O": "shop", "L": "shop"}, "state": 5}
)
CREATE = job(2, CREATED, 3, schema_id=5, table_id=10, TableInfo=json.loads(table_to_json(TABLE)))


def ddl(made: Job, commit_ts: int, query: str) -> CommittedBinlog:
    start_ts = Tso(commit_ts - 1)
    prewrite = prewrite_binlog(start_ts, ddl_query=query.encode(), ddl_job_id=made.id)
    commit = commit_binlog(start_ts, Tso(commit_ts))
    return CommittedBinlog(start_ts, Tso(commit_ts), join(prewrite, commit))


def rows(
    commit_ts: int,
    inserted: Sequence[int] = (),
    deleted: Sequence[int] = (),
    table_id: int = 10,
) -> CommittedBinlog:
    mutation = Mutation(
        table_id,
        [encode_insert(TABLE, {1: n, 2: n}, handle=n) for n in inserted],
        [],
        [encode_delete(TABLE, {1: n, 2: n}, handle=n) for n in deleted],
        b"\x04" * len(deleted) + b"\x00" * len(inserted),
    )
    start_ts = Tso(commit_ts - 1)
    value = encode_mutations(2, [mutation])
    prewrite = prewrite_binlog(start_ts, prewrite_value=value)
    commit = commit_binlog(start_ts, Tso(commit_ts))
    return CommittedBinlog(start_ts, Tso(commit_ts), join(prewrite, commit))


def beginning() -> list[CommittedBinlog]:
    return [
        ddl(DATABASE, 2, "CREATE DATABASE `shop`;"),
        ddl(CREATE, CREATED, "CREATE TABLE `t` (`id` INT,`v` BIGINT);"),
    ]


# --- a Drainer -------------------------------------------------------------------------------


@dataclass
class Place:
    """Everything around a Drainer that outlives it."""

    store: MemoryStore = field(default_factory=MemoryStore)
    source: Source = field(default_factory=Source)
    history: MemoryHistory = field(default_factory=lambda: MemoryHistory([DATABASE, CREATE]))
    relay: RelayWriter | None = None
    schema_at: Callable[[Tso], Awaitable[SchemaTracker | None]] | None = None
    ignored: tuple[int, ...] = ()
    initial_commit_ts: int = 0
    newest_ts: Tso = MAX_TS
    saved: list[Checkpoint] = field(default_factory=list)
    drain_timeout_s: float = 60.0
    checkpoint_interval_s: float = 0.002

    def sink(self) -> Sink:
        return MemorySink(self.store)

    def drainer(self) -> Drainer:
        ports = DrainerPorts(
            sources=[self.source],
            history=self.history,
            make_sink=self.sink,
            relay=self.relay,
            table_filter=TableFilter(ignored_commit_ts=[Tso(ts) for ts in self.ignored]),
            on_saved=self.saved.append,
            schema_at=self.schema_at,
            newest_ts=lambda: self.newest_ts,
        )
        options = DrainerOptions(
            dialect=Dialect.MYSQL,
            initial_commit_ts=Tso(self.initial_commit_ts),
            checkpoint_interval_s=self.checkpoint_interval_s,
            drain_timeout_s=self.drain_timeout_s,
            part_txns_max=5,
        )
        return Drainer(ports, Backoff(Random(1), first_s=0.001, max_s=0.004), options)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Drainer]:
        """A Drainer that ends with the body: drained, if it was not."""
        drainer = self.drainer()
        async with asyncio.TaskGroup() as group:
            group.create_task(drainer.run())
            await asyncio.sleep(0)
            yield drainer
            await drainer.drain()

    def held(self) -> Counter[int]:
        """How often each id is in the table."""
        found: Counter[int] = Counter()
        for row, count in self.store.tables.get("shop.t", Counter()).items():
            row_id = dict(row)["id"]
            assert isinstance(row_id, int)
            found[row_id] += count
        return +found


async def until(*conditions: object, timeout_s: float = 120.0) -> None:
    """Waits for a condition (a function) to hold."""
    async with asyncio.timeout(timeout_s):
        for condition in conditions:
            assert callable(condition)
            while not condition():  # noqa: ASYNC110  # it asks from outside, as status does
                await asyncio.sleep(0.001)


@pytest.fixture
def place() -> Place:
    return Place()


async def test_what_is_committed_is_applied_and_drained_to_a_consistent_checkpoint(
    place: Place,
) -> None:
    place.source.add(*beginning(), rows(11, [1, 2]), rows(15, [3], deleted=[1]), resolved_ts=20)
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 20)
        assert drainer.statistics().state is DrainerState.RUNNING
        assert drainer.statistics().lag_s == 0
    assert place.held() == Counter({2: 1, 3: 1})
    assert place.store.statements[1] == (
        "CREATE TABLE `t` (`id` INT,`v` BIGINT)"
        " DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin"
    )
    assert place.store.checkpoint == Checkpoint(Tso(20), consistent=True, schema_version=2)
    assert place.saved == place.store.saves
    assert drainer.statistics().state is DrainerState.STOPPED


RETURNS_MAX = 12
"""Of one binlog with rows, to modules where it has been: a ratchet. Compiled modules are unseen."""


async def test_a_binlog_goes_from_the_merge_to_the_sink_with_few_returns(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits: list[list[str]] = []
    take = Session._take

    def visited(frame: FrameType | None, event: str, _: object) -> None:
        if event == "return":  # back to who called, or to who awaits
            frame = frame.f_back if frame is not None else None
        while frame is not None and "/binlogd/" not in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None and visits[-1][-1:] != [frame.f_code.co_filename]:
            visits[-1].append(frame.f_code.co_filename)

    async def watched(session: Session, pulled: Pulled) -> None:
        visits.append([])
        sys.setprofile(visited)
        try:
            await take(session, pulled)
        finally:
            sys.setprofile(None)

    place.source.add(*beginning(), rows(11, [1]), resolved_ts=12)
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 12)
        monkeypatch.setattr(Session, "_take", watched)
        for begin, count in ((20, 2), (30, 5)):
            last_ts = begin + count
            place.source.add(
                *(rows(begin + n, [begin + n]) for n in range(count)), resolved_ts=last_ts
            )
            await until(lambda last_ts=last_ts: drainer.statistics().applied_ts == last_ts)
    returns = [len(each) - len(set(each)) for each in visits]
    assert returns[1] - returns[0] <= 3 * RETURNS_MAX


async def test_a_quiet_upstream_still_moves_the_checkpoint(place: Place) -> None:
    async with place.running() as drainer:
        for ts in (50, 60, 70):
            place.source.add(resolved_ts=ts)
            await until(lambda ts=ts: drainer.statistics().checkpoint.commit_ts == ts)
    assert place.store.checkpoint == Checkpoint(Tso(70), consistent=True)


async def test_a_ddl_is_saved_at_once(place: Place) -> None:
    place.checkpoint_interval_s = 3600.0
    place.source.add(*beginning(), rows(11, [1]), resolved_ts=20)
    async with place.running():
        await until(lambda: place.saved and place.saved[-1].commit_ts >= CREATED)
        assert place.saved[-1].schema_version == 2


async def test_a_restart_goes_on_from_the_checkpoint_with_the_schema_of_its_moment(
    place: Place,
) -> None:
    place.source.add(*beginning(), rows(11, [1]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 11)
    place.source.add(rows(12, [2]), resolved_ts=30)
    assert place.saved[-1].consistent
    place.saved.clear()
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 30)
        assert place.source.pulled_after == [0, 11]
        # before anything is applied, the stored checkpoint stops saying that it is consistent
        assert place.saved[0] == Checkpoint(Tso(11), consistent=False, schema_version=2)
    assert place.held() == Counter({1: 1, 2: 1})
    assert len(place.store.statements) == 2


async def test_a_drain_before_the_first_binlog_says_nothing_of_what_comes_after_it(
    place: Place,
) -> None:
    """An operator pauses a Drainer that has nothing to do yet, and resumes it."""
    async with place.running():
        pass
    assert place.store.checkpoint == Checkpoint(Tso(0), consistent=True)
    place.saved.clear()
    place.source.add(*beginning(), rows(20, [1]), resolved_ts=20)
    async with place.running():
        await until(lambda: place.held()[1] == 1)
        assert place.saved[0] == Checkpoint(Tso(0), consistent=False, schema_version=0)


async def test_a_session_that_failed_is_not_held_by_its_error(place: Place) -> None:
    """It may hold rows by the megabyte, and the collector comes seldom."""
    place.source.add(*beginning(), *(rows(ts, [ts]) for ts in range(11, 15)), resolved_ts=20)
    for ts in range(11, 15):
        place.store.failures[ts] = DownstreamUnavailable("gone away")
    gc.collect()
    gc.disable()
    try:
        async with place.running() as drainer:
            await until(lambda: drainer.statistics().applied_ts == 20)
            assert drainer.statistics().sessions_begun == 5
            alive = [each for each in gc.get_objects() if isinstance(each, Session)]
            assert len(alive) == 1
    finally:
        gc.enable()


async def test_a_log_that_begins_late_takes_the_rest_from_the_history(place: Place) -> None:
    place.source.add(rows(1011, [1]), rows(1012, [2]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 1012)
    assert place.held() == Counter({1: 1, 2: 1})
    assert place.store.statements == []
    assert place.store.checkpoint is not None
    assert place.store.checkpoint.schema_version == 2


@pytest.mark.parametrize("checkpoint", [None, Checkpoint(Tso(1010), schema_version=2)])
async def test_all_tables_as_of_the_beginning_stand_for_a_history_that_is_cut(
    place: Place, checkpoint: Checkpoint | None
) -> None:
    asked: list[Tso] = []

    async def schema_at(ts: Tso) -> SchemaTracker:
        asked.append(ts)
        return SchemaTracker.of_tables(2, [Database(5, "shop")], [(5, TABLE)])

    place.history, place.schema_at = MemoryHistory([]), schema_at
    place.store.checkpoint = checkpoint
    place.source.add(rows(1011, [1]), rows(1012, [2]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 1012)
    assert asked == [1010]
    assert place.held() == Counter({1: 1, 2: 1})
    assert place.store.checkpoint is not None
    assert place.store.checkpoint.schema_version == 2


async def test_tables_that_cannot_be_told_any_more_are_made_by_the_history(place: Place) -> None:
    async def collected(_: Tso) -> None:
        return None

    place.schema_at = collected
    place.source.add(rows(1011, [1]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 1011)
    assert place.held() == Counter({1: 1})


async def test_an_initial_commit_ts_is_exclusive(place: Place) -> None:
    place.initial_commit_ts = 11
    place.source.add(*beginning(), rows(11, [1]), rows(12, [2]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 12)
    assert place.held() == Counter({2: 1})


@pytest.mark.parametrize("stored", [NO_TS, Tso(MAX_TS)])
async def test_a_beginning_in_the_future_passes_nothing_over_and_saves_nothing(
    place: Place, stored: Tso
) -> None:
    place.initial_commit_ts = 12 if stored else 1 << 63
    place.store.checkpoint = before = Checkpoint(stored)
    place.newest_ts = Tso(1 << 62)
    place.source.add(*beginning(), rows(11, [1]), rows(12, [2]))
    async with place.running() as drainer:
        await until(lambda: "would be passed over" in drainer.statistics().last_error)
        assert drainer.statistics().state is DrainerState.RETRYING
        assert (place.store.checkpoint, place.saved) == (before, [])
        place.newest_ts = MAX_TS  # a clock that is set right
        place.store.checkpoint = Checkpoint(Tso(11))
        await until(lambda: drainer.statistics().applied_ts == 12)


async def test_a_start_without_any_transaction_saves_where_it_stands(place: Place) -> None:
    place.initial_commit_ts = 11
    place.store.checkpoint = Checkpoint(NO_TS)  # the original reads this as none, too
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 11)
    assert place.store.checkpoint == Checkpoint(Tso(11), consistent=True)


# --- failures --------------------------------------------------------------------------------


async def test_a_downstream_that_goes_away_is_tried_again(place: Place) -> None:
    place.source.add(*beginning(), *(rows(ts, [ts]) for ts in range(11, 60)))
    for ts in (20, 21, 40):
        place.store.failures[ts] = DownstreamUnavailable("gone away")
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 59)
        assert drainer.statistics().sessions_begun == 4
        await until(lambda: drainer.statistics().last_error == "")
    assert place.held() == Counter(range(11, 60))


@pytest.mark.parametrize("failed_opens", [0, 1, 3])
async def test_a_downstream_that_comes_back_empty_is_not_begun_anew(
    place: Place, failed_opens: int
) -> None:
    """Also where it was away in between, as one that is replaced is, and where somebody retries."""
    place.source.add(*beginning(), rows(11, [1]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().checkpoint.commit_ts == 11)
        begun = drainer.statistics().sessions_begun
        place.store.failures[12] = DownstreamUnavailable("it is away")
        lost, place.store = place.store, MemoryStore(is_down=failed_opens > 0)
        place.source.add(rows(12, [2]), resolved_ts=20)
        if failed_opens:
            await until(lambda: drainer.statistics().sessions_begun > begun + failed_opens)
            assert drainer.statistics().checkpoint == lost.checkpoint
            assert drainer.statistics().applied_ts == 11
            place.store.is_down = False
        for _ in range(2):
            await until(lambda: drainer.statistics().state is DrainerState.STUCK)
            assert "has no checkpoint any more" in drainer.statistics().last_error
            begun = drainer.statistics().sessions_begun
            drainer.retry()
            await until(lambda begun=begun: drainer.statistics().sessions_begun > begun)
        assert place.store.checkpoint is None
        assert not place.store.tables


async def test_a_downstream_that_is_down_is_said_to_be(place: Place) -> None:
    place.store.is_down = True
    place.source.add(*beginning(), rows(11, [1]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().sessions_begun >= 3)
        statistics = drainer.statistics()
        assert statistics.state is DrainerState.RETRYING or statistics.last_error
        assert statistics.last_error == "the memory is away"
        place.store.is_down = False
        await until(lambda: drainer.statistics().applied_ts == 11)


async def test_a_history_that_is_away_is_waited_for(place: Place) -> None:
    place.history.is_down = True
    place.source.add(*beginning(), rows(11, [1]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().last_error == "no history today")
        place.history.is_down = False
        await until(lambda: drainer.statistics().applied_ts == 11)


@pytest.mark.parametrize(
    ("stuck", "error"),
    [
        (rows(13, [3], table_id=77), "not found table id: 77"),
        (ddl(job(9, 13, 3), 13, "CREATE TABLE `x` (`a` INT)"), "DDL job 9 "),
        (CommittedBinlog(Tso(12), Tso(13), b"\x08"), "unexpected EOF"),
    ],
)
async def test_what_nobody_can_explain_stops_right_behind_the_last_good_transaction(
    place: Place, stuck: CommittedBinlog, error: str
) -> None:
    place.source.add(*beginning(), rows(11, [1]), rows(12, [2]), stuck, rows(14, [4]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().state is DrainerState.STUCK)
        statistics = drainer.statistics()
        assert error in statistics.last_error
        assert "add 13 to syncer.ignore-txn-commit-ts" in statistics.last_error
        assert statistics.blocking == statistics.last_error
        assert statistics.checkpoint.commit_ts == 12
    assert place.held() == Counter({1: 1, 2: 1})
    assert place.store.checkpoint == Checkpoint(Tso(12), consistent=False, schema_version=2)
    place.ignored = (13,)
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 14)
        assert drainer.statistics().transactions_skipped == 1
    assert place.held() == Counter({1: 1, 2: 1, 4: 1})


class DamagedHistory(MemoryHistory):
    """Of a job its bytes are others than were kept."""

    async def job(self, job_id: int) -> Job | None:
        if job_id == 9:
            raise Corrupt("DDL job 9 does not match its checksum")
        return await super().job(job_id)


class DamagedPayload(OfBytes):
    """Cannot be read."""

    def cut(self, begin: int, end: int) -> bytes:
        raise Corrupt("the record does not match its checksum")


@pytest.mark.parametrize(
    "stuck",
    [
        ddl(job(9, 13, 3), 13, "CREATE TABLE `x` (`a` INT)"),
        CommittedBinlog(Tso(12), Tso(13), DamagedPayload(bytes(rows(13, [3]).payload))),
    ],
    ids=["job", "payload"],
)
async def test_what_is_damaged_stops_right_behind_the_last_good_transaction(
    place: Place, stuck: CommittedBinlog
) -> None:
    place.history = DamagedHistory([DATABASE, CREATE])
    place.source.add(*beginning(), rows(11, [1]), rows(12, [2]), stuck, rows(14, [4]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().state is DrainerState.STUCK)
        assert "does not match its checksum" in drainer.statistics().last_error
        assert drainer.statistics().checkpoint.commit_ts == 12
    assert place.held() == Counter({1: 1, 2: 1})


def ahead_of_a_drop(commit_ts: int) -> CommittedBinlog:
    """An update of row 1 by someone who knows already that `v` is dropped."""
    without = replace(TABLE, columns=TABLE.columns[:1])
    half = encode_update(without, {1: 1}, {1: 1}, handle=1)
    value = encode_mutations(9, [Mutation(10, [], [half], [], b"\x01")])
    start_ts = Tso(commit_ts - 1)
    prewrite = prewrite_binlog(start_ts, prewrite_value=value)
    commit = commit_binlog(start_ts, Tso(commit_ts))
    return CommittedBinlog(start_ts, Tso(commit_ts), join(prewrite, commit))


def multi_schema_change(commit_ts: int) -> Job:
    after = json.loads(table_to_json(replace(TABLE, columns=TABLE.columns[:1])))
    facts = {"schema_id": 5, "table_id": 10, "version": 9, "TableInfo": after}
    return job(9, commit_ts, 61, start_ts=commit_ts - 4, **facts)


async def test_rows_ahead_of_a_job_wait_until_the_history_has_it(place: Place) -> None:
    change = multi_schema_change(14)
    place.source.add(*beginning(), rows(11, [1]), ahead_of_a_drop(12))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().sessions_begun > 2)
        assert "contradicts the schema" in drainer.statistics().last_error
        place.history.known[change.id] = change
        await until(lambda: drainer.statistics().applied_ts == 12)
        place.source.add(ddl(change, 14, "ALTER TABLE `t` DROP COLUMN `v`, ADD INDEX (`id`)"))
        await until(lambda: drainer.statistics().applied_ts == 14)


def with_a_coming_column(place: Place, id_of_v: int = 2) -> list[CommittedBinlog]:
    """A table, a row that has a value for the column `w`, and the ALTER of commit_ts 14."""
    key, old = TABLE.columns
    key = replace(key, field_type=FieldType(Tp.LONG, FLAG_PRIMARY_KEY | FLAG_NOT_NULL))
    keyed = replace(TABLE, id=11, name="k", columns=(key, old), pk_is_handle=True)
    columns = (key, replace(old, id=id_of_v), replace(old, id=9, name="w", offset=2))
    wider = replace(keyed, columns=columns)
    create, change = (
        job(n, ts, kind, start_ts=start, schema_id=5, table_id=11, version=n, TableInfo=info)
        for n, ts, kind, start, info in [
            (3, 5, 3, 4, json.loads(table_to_json(keyed))),
            (9, 14, 61, 10, json.loads(table_to_json(wider))),
        ]
    )
    row = encode_insert(wider, {1: 4, id_of_v: 4, 9: 5}, handle=None)
    value = encode_mutations(9, [Mutation(11, [row], [], [], b"\0")])
    prewrite = prewrite_binlog(Tso(11), prewrite_value=value)
    early = join(prewrite, commit_binlog(Tso(11), Tso(12)))
    place.history.known |= {create.id: create, change.id: change}
    return [
        *beginning(),
        ddl(create, 5, "CREATE TABLE `k` (`id` INT PRIMARY KEY,`v` BIGINT);"),
        CommittedBinlog(Tso(11), Tso(12), early),
        ddl(change, 14, "ALTER TABLE `k` ADD COLUMN `w` INT, ADD INDEX (`v`)"),
    ]


@pytest.mark.parametrize(("id_of_v", "in_doubt"), [(2, 0), (8, 1)])
async def test_values_that_came_before_their_column_are_written_behind_it_or_said_to_be_in_doubt(
    place: Place, id_of_v: int, in_doubt: int
) -> None:
    """In doubt, where the ALTER rewrites another column at the same time."""
    place.source.add(*with_a_coming_column(place, id_of_v), rows(18, [1]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 18)
        assert drainer.statistics().values_in_doubt == in_doubt
        assert (15 in place.store.commit_tss) != in_doubt


@pytest.mark.parametrize("is_saved_between", [False, True])
async def test_a_crash_between_an_alter_and_the_values_behind_it_loses_none_without_a_word(
    place: Place, *, is_saved_between: bool
) -> None:
    """In doubt, where a checkpoint was saved between the begin of the ALTER and its end."""
    *before, alter = with_a_coming_column(place)
    drainer = place.drainer()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(drainer.run())
        if is_saved_between:
            place.source.add(*before)
            await until(lambda: place.saved and place.saved[-1].commit_ts == 12)
            place.source.add(alter)
        else:
            place.source.add(*before, alter)
        await until(lambda: place.store.applied_ts == 14)
        for _ in range(20):  # whatever it saves now
            await asyncio.sleep(place.checkpoint_interval_s)
        running.cancel()
    place.source.add(rows(18, [1]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().checkpoint.commit_ts == 18)
        assert drainer.statistics().values_in_doubt == is_saved_between
        assert (15 in place.store.commit_tss) != is_saved_between


class SlowToSave(MemorySink):
    """A downstream that takes its time for a checkpoint."""

    async def save(self, checkpoint: Checkpoint) -> None:
        await asyncio.sleep(0.01)
        await super().save(checkpoint)


async def test_a_checkpoint_that_was_due_before_does_not_follow_the_consistent_one(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "sink", lambda: SlowToSave(place.store))
    disk = PosixDisk(threads=2)
    place.relay = RelayWriter(tmp_path, disk, max_file_bytes=1)
    place.source.add(*beginning())
    for life in range(10):
        async with place.running() as drainer:
            for ts in range(30 + 10 * life, 40 + 10 * life):
                place.source.add(rows(ts, range(300)))  # a relay file of its own
                await until(lambda ts=ts: drainer.statistics().applied_ts == ts)
        assert place.store.checkpoint is not None
        assert place.store.checkpoint.consistent
    disk.close()


class Locked(MemorySink):
    """Somebody has locked the table of the checkpoint, or not."""

    is_locked = True

    async def save(self, checkpoint: Checkpoint) -> None:
        if self.is_locked:
            raise DownstreamUnavailable("Lock wait timeout exceeded")
        await super().save(checkpoint)


async def test_why_a_checkpoint_is_not_saved_is_known_until_it_is(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Locked(place.store)
    monkeypatch.setattr(place, "sink", lambda: sink)
    place.checkpoint_interval_s = 0.001
    place.source.add(*beginning(), rows(11, [1]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().not_saved == "Lock wait timeout exceeded")
        assert drainer.statistics().state is DrainerState.RUNNING
        sink.is_locked = False
        await until(lambda: not drainer.statistics().not_saved)


class SlowToTake(MemorySink):
    """A downstream that hesitates before it takes transactions; remembers how they came."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.submitted: list[list[Tso]] = []

    async def submit(self, txns: Sequence[Txn]) -> None:
        await asyncio.sleep(0.01)
        self.submitted.append([txn.commit_ts for txn in txns])
        await super().submit(txns)


@pytest.fixture
def slow_sink(place: Place, monkeypatch: pytest.MonkeyPatch) -> SlowToTake:
    sink = SlowToTake(place.store)
    monkeypatch.setattr(place, "sink", lambda: sink)
    return sink


@pytest.mark.usefixtures("slow_sink")
async def test_a_checkpoint_is_consistent_behind_all_that_was_pulled(place: Place) -> None:
    """Also what is still on its way to the sink."""
    place.source.add(*beginning(), *(rows(ts, [ts]) for ts in range(11, 41)))
    async with place.running() as drainer:
        await until(lambda: (now := drainer.statistics().merge) and now.resolved_ts == 40)
    assert place.store.checkpoint == Checkpoint(Tso(40), consistent=True, schema_version=2)
    assert place.held() == Counter(range(11, 41))


class Apart(MemorySink):
    """A lane of it has more from the life before, the others have not."""

    def statistics(self) -> SinkStatistics:
        return replace(super().statistics(), furthest_ts=Tso(40))


@pytest.mark.parametrize(
    ("pulled_to", "is_consistent"), [(CREATED, False), (39, False), (40, True)]
)
async def test_a_checkpoint_is_not_consistent_before_the_lane_that_is_furthest(
    place: Place, monkeypatch: pytest.MonkeyPatch, pulled_to: int, *, is_consistent: bool
) -> None:
    monkeypatch.setattr(place, "sink", lambda: Apart(place.store))
    place.source.add(*beginning(), *(rows(ts, [ts]) for ts in range(11, pulled_to + 1)))
    async with place.running() as drainer:
        await until(lambda: (now := drainer.statistics().merge) and now.resolved_ts == pulled_to)
    assert place.store.checkpoint == Checkpoint(Tso(pulled_to), is_consistent, schema_version=2)


async def test_transactions_of_one_commit_ts_are_given_to_the_sink_together(
    place: Place, slow_sink: SlowToTake
) -> None:
    """Otherwise a checkpoint between them would leave some out."""
    place.source.add(*beginning())
    together = [
        CommittedBinlog(Tso(start_ts), Tso(20), rows(20, [start_ts]).payload)
        for start_ts in range(11, 18)
    ]
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == CREATED)
        place.source.add(*together)
        await until(lambda: drainer.statistics().applied_ts == 20)
    assert [Tso(20)] * len(together) in slow_sink.submitted
    assert place.held() == Counter(range(11, 18))


async def test_a_checkpoint_says_no_more_than_this_life_has_walked(place: Place) -> None:
    """The downstream has more from the life before: neither is the schema there known yet, nor
    does the downstream equal the upstream."""
    place.source.add(*beginning(), *(rows(ts, [ts]) for ts in range(11, 31)))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 30)
    place.store.checkpoint = Checkpoint(Tso(11), schema_version=2)
    place.source = Source()
    place.source.add(*beginning(), *(rows(ts, [ts]) for ts in range(11, 21)))
    async with place.running() as drainer:
        await until(lambda: (now := drainer.statistics().merge) and now.resolved_ts == 20)
    assert place.store.checkpoint == Checkpoint(Tso(20), consistent=False, schema_version=2)
    assert place.held() == Counter(range(11, 31))


async def test_a_checkpoint_has_the_schema_version_of_its_moment_while_the_walk_is_ahead(
    place: Place,
) -> None:
    other = job(3, 150, 3, schema_id=5, table_id=11, TableInfo={"id": 11, "name": {"O": "u"}})
    place.history.known[other.id] = other
    before, behind = range(11, 150), range(151, 200)
    place.checkpoint_interval_s = 0.0
    place.source.add(*beginning(), *(rows(ts, [ts]) for ts in before))
    place.source.add(ddl(other, 150, "CREATE TABLE `u` (`id` INT)"))
    place.source.add(*(rows(ts, [ts]) for ts in behind))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 199)
    assert any(120 < each.commit_ts < 150 for each in place.saved)
    for checkpoint in place.saved:
        if checkpoint.commit_ts > CREATED:
            assert checkpoint.schema_version == (2 if checkpoint.commit_ts < 150 else 3)


async def test_rows_that_stay_unexplained_stop(place: Place) -> None:
    place.source.add(*beginning(), rows(11, [1]), ahead_of_a_drop(12))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().state is DrainerState.STUCK)
        assert drainer.statistics().sessions_begun > 2
        assert "add 12 to syncer.ignore-txn-commit-ts" in drainer.statistics().last_error


async def test_rows_and_the_job_they_run_ahead_of_may_come_together(place: Place) -> None:
    change = multi_schema_change(14)
    place.source.add(*beginning(), rows(11, [1]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 11)
        place.history.known[change.id] = change
        query = "ALTER TABLE `t` DROP COLUMN `v`, ADD INDEX (`id`)"
        place.source.add(ahead_of_a_drop(12), ddl(change, 14, query))
        await until(lambda: drainer.statistics().applied_ts == 14)
        assert drainer.statistics().sessions_begun == 1


async def test_a_statement_that_the_downstream_refuses_stops(place: Place) -> None:
    place.source.add(*beginning(), *(rows(ts, [ts]) for ts in range(11, 20)))
    place.store.failures[15] = StatementRejected(15, "INSERT", 1062, "duplicate")
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().state is DrainerState.STUCK)
        assert "1062" in drainer.statistics().last_error
    assert place.held() == Counter(range(11, 15))


async def test_an_ignored_ddl_still_moves_the_schema(place: Place) -> None:
    place.ignored = (CREATED,)
    place.source.add(*beginning(), rows(11, [1]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 11)
    assert place.held() == Counter({1: 1})
    assert place.store.statements == ["CREATE DATABASE `shop`"]


class Hanging(MemorySink):
    """Takes what it is given and never applies it."""

    async def run(self) -> None:
        await asyncio.Event().wait()


async def test_draining_ends_at_its_deadline_even_if_the_downstream_hangs(place: Place) -> None:
    place.sink = lambda: Hanging(place.store)  # type: ignore[method-assign]  # another sink
    place.drain_timeout_s = 0.05
    place.source.add(*beginning(), rows(11, [1]))
    async with place.running() as drainer:
        await until(lambda: (sink := drainer.statistics().sink) and sink.txns_queued)
    assert drainer.statistics().state is DrainerState.STOPPED
    assert "not consistent" in drainer.statistics().last_error
    assert place.store.checkpoint is None


class Cutting(MemorySink):
    """Has cut values with a DDL in each life."""

    def statistics(self) -> SinkStatistics:
        return replace(super().statistics(), values_in_doubt=1)


async def test_values_that_sinks_cut_stay_counted_when_they_are_made_anew(place: Place) -> None:
    place.sink = lambda: Cutting(place.store)  # type: ignore[method-assign]  # another sink
    place.store.failures[12] = DownstreamUnavailable("gone away")
    place.source.add(*beginning(), rows(11, [1]), rows(12, [2]))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 12)
        assert drainer.statistics().values_in_doubt == drainer.statistics().sessions_begun == 2


# --- the relay log -----------------------------------------------------------------------------


@pytest.fixture
def disk() -> Iterator[PosixDisk]:
    disk = PosixDisk(threads=2)
    yield disk
    disk.close()


class Suspicious(MemorySink):
    """Refuses to be given what the relay log does not hold."""

    def __init__(self, store: MemoryStore, relay: RelayWriter) -> None:
        super().__init__(store)
        self._relay = relay

    async def submit(self, txns: Sequence[Txn]) -> None:
        assert all(
            txn.commit_ts <= self._relay.statistics().last_ts
            for txn in txns
            if isinstance(txn, Ddl | Dml)
        )
        await super().submit(txns)


async def test_the_sink_sees_nothing_that_the_relay_log_does_not_hold(
    place: Place, disk: PosixDisk, tmp_path: Path
) -> None:
    relay = place.relay = RelayWriter(tmp_path / "relay", disk, max_file_bytes=2000)
    place.sink = lambda: Suspicious(place.store, relay)  # type: ignore[method-assign]  # another
    place.source.add(*beginning(), *(rows(ts, [ts]) for ts in range(11, 200)))
    for ts in (50, 120):
        place.store.failures[ts] = DownstreamUnavailable("gone away")
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 199)
        statistics = drainer.statistics().relay
        assert statistics is not None
        assert statistics.last_ts == 199
        await until(lambda: first_file(tmp_path / "relay") > 0)
    assert place.held() == Counter(range(11, 200))


def first_file(relay: Path) -> int:
    """The number of the oldest file of a relay log."""
    return min(suffix for each in relay.iterdir() if (suffix := suffix_of(each.name)) is not None)


class Watchful(MemorySink):
    """Knows what a process that dies now would need: all behind the checkpoint that is stored."""

    def __init__(self, store: MemoryStore, relay: Path, disk: PosixDisk) -> None:
        super().__init__(store)
        self._relay, self._disk = relay, disk

    async def save(self, checkpoint: Checkpoint) -> None:
        stored, is_read = self._store.checkpoint, False
        while stored is not None and not is_read:  # again where a file went that nobody needs
            with suppress(FileNotFoundError):
                await read_relay(self._disk, self._relay, stored.commit_ts)
                is_read = True
        await super().save(checkpoint)


async def test_the_relay_log_reaches_back_to_the_checkpoint_that_is_stored(
    place: Place, disk: PosixDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = tmp_path / "relay"
    place.relay = RelayWriter(relay, disk, max_file_bytes=1)
    place.checkpoint_interval_s = 0.0
    monkeypatch.setattr(place, "sink", lambda: Watchful(place.store, relay, disk))
    place.source.add(*beginning(), *(rows(ts, range(300)) for ts in range(11, 150)))
    async with place.running() as drainer:
        await until(
            lambda: drainer.statistics().applied_ts == 149 or drainer.statistics().last_error
        )
        assert drainer.statistics().last_error == ""
        assert first_file(relay) > 10


# --- whatever happens ----------------------------------------------------------------------------


class Killed(Exception):
    """A sudden end."""


async def kill_soon(rng: Random) -> None:
    await asyncio.sleep(rng.random() * 0.03)
    raise Killed


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_killed_no_checkpoint_is_ahead_and_no_change_is_lost(
    place: Place, seed: int
) -> None:
    rng = Random(seed)
    binlogs, model, changing = beginning(), set[int](), list[int]()
    for ts in range(10, 400):
        deleted = [n for n in sorted(model) if rng.random() < 0.1]
        model -= set(deleted)
        inserted = sorted({rng.randrange(1000) for _ in range(rng.randrange(1, 4))} - model)
        model |= set(inserted)
        binlogs.append(rows(ts, inserted, deleted))
        if inserted or deleted:
            changing.append(ts)
    place.source.add(*binlogs)
    for ts in rng.sample(range(10, 400), 3):
        place.store.failures[ts] = DownstreamUnavailable("gone away")
    last_saved = NO_TS
    for _ in range(8):
        drainer = place.drainer()
        with pytest.RaisesGroup(Killed):
            async with asyncio.TaskGroup() as group:
                group.create_task(drainer.run())
                group.create_task(kill_soon(rng))
        for checkpoint in place.store.saves:
            assert last_saved <= checkpoint.commit_ts <= place.store.applied_ts
            last_saved = checkpoint.commit_ts
        place.store.saves.clear()
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 399)
    assert place.held() == Counter(model)
    assert place.store.commit_tss == changing


async def test_lag_is_counted_in_upstream_time(place: Place) -> None:
    hanging = Hanging(place.store)
    place.sink = lambda: hanging  # type: ignore[method-assign]  # another sink
    place.drain_timeout_s = 0.01
    place.initial_commit_ts = compose(1_000)
    place.source.add(resolved_ts=compose(3_500))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().lag_s == 2.5)
        assert drainer.statistics().blocking == "downstream"


async def test_before_anything_is_applied_lag_is_that_of_the_first_transaction_that_waits(
    place: Place,
) -> None:
    hanging = Hanging(place.store)
    place.sink = lambda: hanging  # type: ignore[method-assign]  # another sink
    place.drain_timeout_s = 0.01
    place.source.add(resolved_ts=compose(1_000))
    async with place.running() as drainer:
        await until(lambda: (merge := drainer.statistics().merge) and merge.resolved_ts > NO_TS)
        assert drainer.statistics().lag_s is None, "nothing waits, and 1970 is no beginning"
        place.source.add(rows(compose(2_000), [1]), resolved_ts=compose(4_500))
        await until(lambda: drainer.statistics().lag_s == 2.501)
        assert drainer.statistics().applied_ts == NO_TS


# --- what no binlog tells ----------------------------------------------------------------------


async def test_tables_whose_rows_expire_upstream_are_named_from_the_first_transaction_on(
    place: Place,
) -> None:
    def altered(job_id: int, commit_ts: int, ttl: object) -> Job:
        info = json.loads(table_to_json(TABLE)) | {"ttl_info": ttl}
        return job(job_id, commit_ts, 65, schema_id=5, table_id=10, TableInfo=info)

    on, off = altered(3, 12, {"column": {"O": "v"}, "enable": True}), altered(4, 16, None)
    place.history = MemoryHistory([DATABASE, CREATE, on, off])
    place.source.add(*beginning(), rows(11, [1]), ddl(on, 12, "ALTER TABLE `t` TTL ..."))
    async with place.running() as drainer:
        await until(lambda: drainer.statistics().applied_ts == 12)
        assert drainer.statistics().expiring == ("shop.t",)
    place.source.add(rows(14, [2]))
    async with place.running() as drainer:
        with capture_logs() as logs:
            await until(lambda: drainer.statistics().applied_ts == 14)
            assert drainer.statistics().expiring == ("shop.t",), "by another life, too"
        (told,) = (each for each in logs if each["event"] == "tables_with_ttl")
        assert told["tables"] == ("shop.t",)
        place.source.add(ddl(off, 16, "ALTER TABLE `t` REMOVE TTL"))
        await until(lambda: drainer.statistics().applied_ts == 16)
        assert drainer.statistics().expiring == ()
