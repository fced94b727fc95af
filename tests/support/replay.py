"""Recordings as transactions for a sink, and a sink driven by hand: no Pump, no Drainer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence, Sized
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.ddl.trash_names import Trash
from binlogd.drainer.early_columns import EarlyColumns
from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.filtering.route import TableRouter
from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.mysql.trash import TrashOptions
from binlogd.drainer.rows.parts import Limits
from binlogd.drainer.rows.shape import Shapes
from binlogd.drainer.sink import RowNotFoundRule, Sink
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Txn
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS
from tests.support.decoding import decoded
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import committed, history

CLUSTER_ID = 7
BATCH = 64
SKIPPED: dict[str, tuple[str, ...]] = {
    "types": ("types_tidb",),
    "keys": ("keys_wrong", "keys_tidb"),
    "few": ("keys_wrong", "keys_tidb"),
    "ddl": (
        "fl",
        "fl_back",
        *(f"ddl_{a}.{name}" for a in "ab" for name in ("rec*", "seqt", "ai*", "ar")),
    ),
    "mixed": (),
    "large": (),
    "race": (),
    "windows": (),
    "fuzz": (),
}
"""What MariaDB cannot hold, or no binlog tells."""


def filter_for(skip: Sequence[str], routes: TableRouter | None = None) -> TableFilter:
    """A filter that leaves out what a comparison skips (`db`, or `db.table` with `*`)."""
    tables = [name.split(".", 1) for name in skip if "." in name]
    return TableFilter(
        ignored_databases=("mysql", *(name for name in skip if "." not in name)),
        ignored_tables=[
            TablePattern(database, "~^" + table.replace("*", ".*") + "$")
            for database, table in tables
        ],
        routes=routes,
    )


def translated(
    directory: Path,
    skip: Sequence[str] = (),
    dialect: Dialect = Dialect.MYSQL,
    trash: Trash | None = None,
    routes: TableRouter | None = None,
) -> Iterator[Txn]:
    """What a sink is given of a recording, in commit order."""
    jobs = {job.id: job for job in jobs_from_json(history(directory))}
    schema = SchemaTracker()
    schema.load(jobs.values())
    translator = Translator(schema, filter_for(skip, routes), dialect, trash)
    early = EarlyColumns(schema, translator.router, NO_TS)
    for binlog in committed(directory):
        due = early.due(binlog.commit_ts)
        if due is not None:
            yield due
        txn = translator.translate(decoded(binlog, jobs))
        txn = early.joined(txn)
        early.saw(txn)
        yield txn


def server_of(mariadb: MariaDb) -> MySqlServer:
    return MySqlServer(mariadb.host, mariadb.port, mariadb.user, mariadb.password)


def sink_for(
    downstream: MariaDb | MySqlServer,
    lanes: int = 4,
    seed: int = 1,
    limits: Limits | None = None,
    *,
    is_transactional: bool = False,
    shapes: Shapes | None = None,
    trash: TrashOptions | None = None,
    row_not_found: RowNotFoundRule = RowNotFoundRule.STOP,
    passed_over: Sized = (),
    tells_missing: bool = True,
) -> MySqlSink:
    options = MySqlSinkOptions(
        lanes=lanes,
        is_transactional=is_transactional,
        limits=limits or Limits(),
        shapes=shapes or Shapes(),
        trash=trash,
        row_not_found=row_not_found,
        passed_over=passed_over,
        tells_missing=tells_missing,
    )
    server = downstream if isinstance(downstream, MySqlServer) else server_of(downstream)
    return MySqlSink(server, CLUSTER_ID, options, Random(seed))


@asynccontextmanager
async def running(sink: Sink) -> AsyncIterator[Sink]:
    """Opens a sink and runs it beside the body; closes it at the end of either, also when it is
    opened in part."""
    try:
        await sink.open()
        async with asyncio.TaskGroup() as group:
            group.create_task(sink.run())
            yield sink
            await sink.close()
    finally:
        await sink.close()


async def apply_all(sink: Sink, txns: Iterator[Txn]) -> None:
    """Submits in batches, waits until all is applied."""
    async with running(sink):
        batch: list[Txn] = []
        for txn in txns:
            batch.append(txn)
            if len(batch) == BATCH:
                await sink.submit(batch)
                batch = []
        await sink.submit(batch)
        await sink.flush()
