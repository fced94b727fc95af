"""A bank as binlogs: money moves between accounts, each time with a line in a ledger without a key.

The sum of all balances never changes, and the ledger's lines are numbered: half of a transaction, a
lost one and one that was done twice are all seen.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from random import Random

from binlogd.binlog import BinlogType
from binlogd.client.pump_client import ClientLimits, PumpClient
from binlogd.tidb.model import Column, FieldType, Table, Tp, table_to_json
from binlogd.tidb.row import Value, encode_insert, encode_update
from binlogd.tso import Tso, compose
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.workload.feed import Feeder
from tests.workload.timeline import Fate, Record

CLUSTER_ID = 77
ACCOUNTS = 40
BALANCE = 100
TOTAL = ACCOUNTS * BALANCE
_BIG = FieldType(Tp.LONGLONG)
_FIRST = compose(1_700_000_000_000)
_STEP = 1 << 20

ACCOUNT = Table(
    11,
    "account",
    (Column(1, "id", 0, FieldType(Tp.LONGLONG, 3)), Column(2, "money", 1, _BIG)),
    pk_is_handle=True,
)
LEDGER = Table(12, "ledger", (Column(1, "n", 0, _BIG), Column(2, "amount", 1, _BIG)))
MARK = Table(
    13,
    "_drainer_repl_mark",
    (
        Column(1, "id", 0, FieldType(Tp.LONGLONG, 1)),
        Column(2, "channel_id", 1, FieldType(Tp.LONGLONG, 1)),
        Column(3, "val", 2, _BIG),
    ),
)
"""The mark table of a Drainer that writes to this upstream; without its last column."""


def history() -> bytes:
    """The answer of `/ddl/history`: two schemas and three tables, made long ago."""
    jobs = [_schema_job(1, 5, "bank"), _schema_job(2, 6, "retl")]
    jobs += [_table_job(3, 5, ACCOUNT), _table_job(4, 5, LEDGER), _table_job(5, 6, MARK)]
    return json.dumps(jobs).encode()


def create() -> Sequence[str]:
    """The tables downstream, in SQL."""
    return (
        "CREATE DATABASE bank",
        "CREATE TABLE bank.account (id BIGINT PRIMARY KEY, money BIGINT)",
        "CREATE TABLE bank.ledger (n BIGINT, amount BIGINT)",
    )


def _schema_job(job_id: int, schema_id: int, name: str) -> dict[str, object]:
    info = {"id": schema_id, "db_name": {"O": name, "L": name}, "state": 5}
    return _job(job_id, 1, schema_id, 0, {"DBInfo": info})


def _table_job(job_id: int, schema_id: int, table: Table) -> dict[str, object]:
    return _job(job_id, 3, schema_id, table.id, {"TableInfo": json.loads(table_to_json(table))})


def _job(
    job_id: int, kind: int, schema_id: int, table_id: int, infos: dict[str, object]
) -> dict[str, object]:
    return {
        "id": job_id,
        "type": kind,
        "state": 6,
        "schema_id": schema_id,
        "table_id": table_id,
        "start_ts": job_id * 2,
        "binlog": {"SchemaVersion": job_id, "FinishedTS": job_id * 2 + 1, **infos},
    }


def inserted(table: Table, *rows: Sequence[Value]) -> Mutation:
    """Rows of a table, in the order of its columns."""
    encoded = [
        encode_insert(table, dict(enumerate(row, 1)), handle=row[0] if table.pk_is_handle else n)  # type: ignore[arg-type]  # the first column is a number
        for n, row in enumerate(rows, 1)
    ]
    return Mutation(table.id, encoded, [], [], bytes(len(rows)))


def updated(table: Table, *pairs: tuple[Sequence[Value], Sequence[Value]]) -> Mutation:
    """Rows before and after."""
    encoded = [
        encode_update(
            table,
            dict(enumerate(old, 1)),
            dict(enumerate(new, 1)),
            handle=None if table.pk_is_handle else 1,
        )
        for old, new in pairs
    ]
    return Mutation(table.id, [], encoded, [], b"\x01" * len(pairs))


def transaction(number: int, *mutations: Mutation) -> tuple[Record, Record]:
    """The two binlogs of the transaction of this number."""
    start_ts, commit_ts = Tso(_FIRST + number * _STEP), commit_ts_of(number)
    fate = Fate(start_ts, commit_ts)
    value = encode_mutations(5, list(mutations))
    prewrite = prewrite_binlog(start_ts, prewrite_value=value)
    commit = commit_binlog(start_ts, commit_ts)
    return (
        Record(BinlogType.PREWRITE, start_ts, prewrite, fate),
        Record(BinlogType.COMMIT, commit_ts, commit, fate),
    )


def commit_ts_of(number: int) -> Tso:
    """When the transaction of this number commits."""
    return Tso(_FIRST + number * _STEP + 9)


def transfers(count: int, seed: int = 1) -> Iterator[Record]:
    """Opens the accounts with transaction 0, then moves money with 1, 2, ..."""
    rng, money = Random(seed), dict.fromkeys(range(ACCOUNTS), BALANCE)
    yield from transaction(0, inserted(ACCOUNT, *money.items()))
    for number in range(1, count):
        amount = rng.randrange(1, 9)
        giver, taker = rng.sample(range(ACCOUNTS), 2)
        before = {each: money[each] for each in (giver, taker)}
        money[giver] -= amount
        money[taker] += amount
        pairs = (((each, old), (each, money[each])) for each, old in before.items())
        yield from transaction(number, updated(ACCOUNT, *pairs), inserted(LEDGER, (number, amount)))


async def feed(records: Iterator[Record], target: tuple[str, int], *, pace_s: float = 0.0) -> None:
    """Feeds them in their order; a server that dies and comes back is waited for."""
    limits = ClientLimits(prewrite_retry_s=200, outcome_retry_s=200, outcome_retry_interval_s=0.1)
    host, port = target
    async with PumpClient(host, port, cluster_id=CLUSTER_ID, limits=limits) as client:
        await Feeder([client], in_flight=64, patience_s=0).feed(_paced(records, pace_s))


async def _paced(records: Iterator[Record], pace_s: float) -> AsyncIterator[Record]:
    for record in records:
        yield record
        if pace_s and record.kind == BinlogType.COMMIT:
            await asyncio.sleep(pace_s)
