"""What every sink promises: order, barriers, progress that is never ahead, and each change once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.sink import Sink
from binlogd.drainer.txn import Ddl, Dml, Skip, TableChange, Txn
from binlogd.tidb.model import (
    FLAG_NOT_NULL,
    FLAG_PRIMARY_KEY,
    ActionType,
    Column,
    FieldType,
    Table,
    TableAt,
    Tp,
    job_from_json,
)
from binlogd.tidb.row import encode_delete, encode_insert, encode_update
from binlogd.tso import NO_TS, Tso
from binlogd.wire.mutation import Mutation
from tests.contract.places import MySqlPlace, Place, Rows, SimMySqlPlace, SqlitePlace

KEYED = Table(
    1,
    "keyed",
    (
        Column(1, "id", 0, FieldType(Tp.LONG, flag=FLAG_NOT_NULL | FLAG_PRIMARY_KEY)),
        Column(2, "v", 1, FieldType(Tp.VARCHAR, flen=20, charset="utf8mb4")),
    ),
    pk_is_handle=True,
)
PLAIN = Table(
    2,
    "plain",
    (
        Column(1, "id", 0, FieldType(Tp.LONG)),
        Column(2, "v", 1, FieldType(Tp.VARCHAR, flen=20, charset="utf8mb4")),
    ),
)
AT = {
    table.name: TableAt("contract", table, 3, None, {}, may_lack_columns=False)
    for table in (KEYED, PLAIN)
}
BEGINNING = 100


def ddl(commit_ts: int, kind: ActionType, statement: str, table: str = "") -> Ddl:
    info = AT[table].info if table and kind == ActionType.CREATE_TABLE else None
    job = replace(
        job_from_json(b"{}"), id=commit_ts, type=kind, schema_version=commit_ts, table=info
    )
    return Ddl(
        Tso(commit_ts - 1), Tso(commit_ts), commit_ts, job, statement, "contract", table, False
    )


def tables() -> list[Txn]:
    columns = "(id INT{} , v VARCHAR(20))"
    return [
        ddl(BEGINNING + 1, ActionType.CREATE_SCHEMA, "CREATE DATABASE contract"),
        ddl(
            BEGINNING + 2,
            ActionType.CREATE_TABLE,
            "CREATE TABLE keyed " + columns.format(" PRIMARY KEY"),
            "keyed",
        ),
        ddl(
            BEGINNING + 3,
            ActionType.CREATE_TABLE,
            "CREATE TABLE plain " + columns.format(""),
            "plain",
        ),
    ]


def changes(commit_ts: int, table: str, *rows: tuple[int, str | None, str | None]) -> Dml:
    """Rows as (id, old v or None, new v or None)."""
    at = AT[table]
    inserted: list[bytes] = []
    updated: list[bytes] = []
    deleted: list[bytes] = []
    kinds = bytearray()
    for row_id, old, new in rows:
        before = {1: row_id, 2: old.encode() if old is not None else None}
        after = {1: row_id, 2: new.encode() if new is not None else None}
        handle = row_id
        if old is None:
            inserted.append(encode_insert(at.info, after, handle=handle))
            kinds.append(0)
        elif new is None:
            deleted.append(encode_delete(at.info, before, handle=handle))
            kinds.append(4)
        else:
            updated.append(encode_update(at.info, before, after, handle=handle))
            kinds.append(1)
    mutation = Mutation(at.info.id, inserted, updated, deleted, bytes(kinds))
    return Dml(Tso(commit_ts - 1), Tso(commit_ts), 3, (TableChange(at, mutation),))


class History:
    """Transactions over both tables, and what the tables hold after each."""

    def __init__(self, rng: Random, count: int) -> None:
        self.txns: list[Txn] = tables()
        held: dict[str, dict[int, str]] = {"keyed": {}, "plain": {}}
        self.after: dict[int, dict[str, Rows]] = {}
        for commit_ts in range(BEGINNING + 4, BEGINNING + 4 + count):
            if rng.random() < 0.15:
                self.txns.append(Skip(Tso(commit_ts)))
            else:
                self.txns.append(self._change(rng, commit_ts, held))
            self.after[commit_ts] = {
                name: Counter((row_id, v) for row_id, v in rows.items())
                for name, rows in held.items()
            }

    def _change(self, rng: Random, commit_ts: int, held: dict[str, dict[int, str]]) -> Txn:
        name = rng.choice(["keyed", "plain"])
        rows = held[name]
        made: list[tuple[int, str | None, str | None]] = []
        for row_id in rng.sample(range(30), rng.randint(1, 6)):
            old, new = rows.get(row_id), f"{commit_ts}-{row_id}"
            if old is not None and rng.random() < 0.4:
                made.append((row_id, rows.pop(row_id), None))
            else:
                made.append((row_id, old, new))
                rows[row_id] = new
        return changes(commit_ts, name, *made)


@asynccontextmanager
async def running(sink: Sink) -> AsyncIterator[Sink]:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(sink.run())
            yield sink
            await sink.close()
    finally:
        await sink.close()


async def check_holds(place: Place, expected: dict[str, Rows]) -> None:
    for table, rows in expected.items():
        assert await place.rows(table) == rows, table


async def test_a_new_sink_has_no_checkpoint_and_keeps_the_one_it_is_given(place: Place) -> None:
    sink = place.sink()
    assert await sink.open() is None
    assert sink.applied_ts() == NO_TS
    checkpoint = Checkpoint(Tso(BEGINNING + 3), consistent=True, schema_version=BEGINNING + 3)
    async with running(sink):
        await sink.submit(tables())
        await sink.flush()
        await sink.save(replace(checkpoint, consistent=False))
        await sink.save(checkpoint)
    again = place.sink()
    assert await again.open() == checkpoint
    assert again.applied_ts() >= checkpoint.commit_ts
    await again.close()


async def test_what_is_flushed_is_applied_and_counted(place: Place) -> None:
    sink = place.sink()
    await sink.open()
    async with running(sink):
        await sink.submit([*tables(), changes(110, "keyed", (1, None, "a"), (2, None, "b"))])
        await sink.submit([changes(111, "keyed", (1, "a", "c"), (2, "b", None)), Skip(Tso(112))])
        await sink.flush()
        assert sink.applied_ts() == 112
        statistics = sink.statistics()
        assert statistics.txns_queued == 0
        assert statistics.applied_ts == 112
    await check_holds(place, {"keyed": Counter({(1, "c"): 1}), "plain": Counter()})


async def test_progress_alone_moves_progress(place: Place) -> None:
    sink = place.sink()
    await sink.open()
    async with running(sink):
        await sink.submit([Skip(Tso(7))])
        await sink.flush()
        assert sink.applied_ts() == 7


async def test_what_is_applied_already_is_passed_over_when_it_comes_again(place: Place) -> None:
    history = History(Random(3), 30)
    end = max(history.after)
    for _ in range(3):
        sink = place.sink()
        await sink.open()
        async with running(sink):
            await sink.submit(history.txns)
            await sink.flush()
            assert sink.applied_ts() == end
    await check_holds(place, history.after[end])


async def test_transactions_of_one_commit_ts_are_all_there(place: Place) -> None:
    """Each with changes of its own, many more than go into one group of a sink."""
    txns = [changes(110, "plain", (n, None, "x")) for n in range(500)]
    for _ in range(2):
        sink = place.sink()
        await sink.open()
        async with running(sink):
            await sink.submit([*tables(), *txns, Skip(Tso(110)), Skip(Tso(111))])
            await sink.flush()
            assert sink.applied_ts() == 111
    await check_holds(place, {"plain": Counter({(n, "x"): 1 for n in range(500)})})


async def test_a_ddl_is_a_barrier(place: Place) -> None:
    sink = place.sink()
    await sink.open()
    async with running(sink):
        await sink.submit(
            [
                *tables(),
                *(changes(110 + n, "plain", (n, None, "x")) for n in range(20)),
                ddl(140, ActionType.DROP_TABLE, "DROP TABLE plain", "plain"),
                ddl(
                    141,
                    ActionType.CREATE_TABLE,
                    "CREATE TABLE plain (id INT, v VARCHAR(20))",
                    "plain",
                ),
                changes(142, "plain", (1, None, "new")),
            ]
        )
        await sink.flush()
        assert sink.applied_ts() == 142
    # the others are logs, which hold what was dropped as well
    is_dropped = isinstance(place, MySqlPlace | SimMySqlPlace | SqlitePlace)
    before = {} if is_dropped else {(n, "x"): 1 for n in range(20)}
    await check_holds(place, {"plain": Counter({**before, (1, "new"): 1})})


async def test_closing_twice_is_fine_and_drops_what_is_queued(place: Place) -> None:
    sink = place.sink()
    await sink.open()
    await sink.close()
    await sink.close()


class Killed(Exception):
    """The end of a life."""


async def live(
    place: Place, txns: Sequence[Txn], rng: Random, saved: list[Tso], *, is_last: bool
) -> None:
    """From the checkpoint on, to the end or to a sudden one; no save is ever ahead."""
    sink = place.sink()
    checkpoint = await sink.open()
    after = checkpoint.commit_ts if checkpoint else NO_TS
    assert after == (saved[-1] if saved else NO_TS)
    applied_before = sink.applied_ts()
    assert applied_before >= after
    left = [txn for txn in txns if txn.commit_ts > after]
    end = len(left) if is_last else rng.randint(0, len(left))
    async with running(sink):
        done = 0
        while done < end:
            size = rng.randint(1, 8)
            before = sink.applied_ts()
            await sink.submit(left[done : done + size])
            done += size
            handed_ts = left[min(done, len(left)) - 1].commit_ts
            assert before <= sink.applied_ts() <= max(applied_before, handed_ts)
            if rng.random() < 0.3 and sink.applied_ts() > after:
                checkpoint = Checkpoint(sink.applied_ts())
                saved.append(checkpoint.commit_ts)
                await sink.save(checkpoint)
        if not is_last:
            raise Killed
        await sink.flush()


@pytest.mark.parametrize(
    "seed",
    [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 8))],
)
async def test_whatever_is_killed_each_change_is_there_once(place: Place, seed: int) -> None:
    rng = Random(seed)
    history = History(rng, 120)
    saved: list[Tso] = []
    for _ in range(6):
        with pytest.RaisesGroup(Killed):
            await live(place, history.txns, rng, saved, is_last=False)
    await live(place, history.txns, rng, saved, is_last=True)
    await check_holds(place, history.after[max(history.after)])
