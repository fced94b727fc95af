"""Where each kind of sink writes: the way in for a contract test, and the way to look at it.

To hold another sink to the contract, write a place for it and add it to the fixture `place` of
conftest.py.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Protocol

from binlogd.drainer.files.sink import FileSink, FileSinkOptions
from binlogd.drainer.kafka.broker import BrokerOptions
from binlogd.drainer.kafka.canal_json import CanalJson
from binlogd.drainer.kafka.sink import KafkaSink
from binlogd.drainer.messages.named import RowKind
from binlogd.drainer.pending import PendingLimits
from binlogd.drainer.sink import Sink
from binlogd.drainer.sqlite.sink import SqliteSink
from binlogd.ports import Disk
from binlogd.tidb.row import Value
from tests.contract.memory_sink import MemorySink, MemoryStore
from tests.sim.mysql import SimMySql
from tests.support.kafka import Kafka, read_committed
from tests.support.mariadb import MariaDb
from tests.support.pb_reader import read_file_log
from tests.support.replay import sink_for
from tests.support.tried import tried

Rows = Counter[tuple[int, str]]


class Place(Protocol):
    """A downstream that outlives its sinks."""

    def sink(self) -> Sink:
        """A new life in front of what is there."""
        ...

    async def rows(self, table: str) -> Rows:
        """The (id, v) of a table in database `contract`, each with how often it is there."""
        ...


class MemoryPlace:
    def __init__(self) -> None:
        self.store = MemoryStore()

    def sink(self) -> Sink:
        return MemorySink(self.store)

    async def rows(self, table: str) -> Rows:
        found: Rows = Counter()
        for row, count in self.store.tables.get(f"contract.{table}", Counter()).items():
            values = dict(row)
            if count:
                found[_pair(values["id"], values["v"])] += count
        return found


class StoppedClock:
    def wall_ms(self) -> int:
        return 1_700_000_000_000


class FilePlace:
    def __init__(self, root: Path, disk: Disk) -> None:
        self._root, self._disk = root, disk

    def sink(self) -> Sink:
        return FileSink(
            self._root / "out",
            self._root / "savepoint",
            disk=self._disk,
            clock=StoppedClock(),
            options=FileSinkOptions(
                max_file_bytes=4096, limits=PendingLimits(500, 200, queued_bytes=2000)
            ),
        )

    async def rows(self, table: str) -> Rows:
        found: Rows = Counter()
        for transaction in read_file_log(self._root / "out"):
            for event in transaction.events:
                if event.table != table:
                    continue
                columns = event.columns
                old = _pair(columns["id"].value, columns["v"].value)
                if event.kind is RowKind.INSERT:
                    found[old] += 1
                    continue
                found[old] -= 1
                if event.kind is RowKind.UPDATE:
                    found[_pair(columns["id"].changed_value, columns["v"].changed_value)] += 1
        return +found


class SqlitePlace:
    def __init__(self, path: Path, disk: Disk) -> None:
        self._path, self._disk = path, disk

    def sink(self) -> Sink:
        tried("SQLite", sqlite3.sqlite_version)
        return SqliteSink(self._path, self._disk)

    async def rows(self, table: str) -> Rows:
        with closing(sqlite3.connect(self._path)) as replica:
            return Counter(replica.execute(f'SELECT id, v FROM "contract.{table}"').fetchall())


class KafkaPlace:
    """Rows as a reader adds them up that sees what is committed."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self._kafka, self._name = kafka, name

    def sink(self) -> Sink:
        options = BrokerOptions(
            addresses=(self._kafka.address,),
            topic=self._name,
            progress_topic=f"{self._name}_progress",
            client_id="contract",
            partitions=2,
            message_bytes_max=1 << 20,
        )
        return KafkaSink(options, CanalJson())

    async def rows(self, table: str) -> Rows:
        found: Rows = Counter()
        for record in await read_committed(self._kafka.address, self._name):
            message = json.loads(record.value)
            if message["isDdl"] or message["table"] != table:
                continue
            (row,) = message["data"]
            found[int(row["id"]), row["v"]] += -1 if message["type"] == "DELETE" else 1
            for old in message["old"] or ():
                found[int(old["id"]), old["v"]] -= 1
        return +found


class MySqlPlace:
    def __init__(self, mariadb: MariaDb, lanes: int) -> None:
        self._mariadb, self._lanes = mariadb, lanes

    def sink(self) -> Sink:
        return sink_for(self._mariadb, lanes=self._lanes)

    async def rows(self, table: str) -> Rows:
        found: Rows = Counter()
        for row_id, v in self._mariadb.execute(f"SELECT id, v FROM contract.{table}"):
            assert row_id is not None
            assert v is not None
            found[int(row_id), v.decode()] += 1
        return found


class SimMySqlPlace:
    """The same sink before the server of the simulation."""

    def __init__(self, lanes: int, *, is_transactional: bool = False) -> None:
        self._lanes, self._is_transactional = lanes, is_transactional
        self._downstream = SimMySql(Random(1))

    def sink(self) -> Sink:
        return sink_for(
            self._downstream.server(), self._lanes, is_transactional=self._is_transactional
        )

    async def rows(self, table: str) -> Rows:
        found = self._downstream.rows("contract", table)
        return Counter((row["id"], row["v"]) for row in found)


def _pair(row_id: Value, v: Value) -> tuple[int, str]:
    assert isinstance(row_id, int)
    assert isinstance(v, bytes)
    return row_id, v.decode()
