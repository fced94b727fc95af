"""A shop as binlogs: orders that are made, paid and cancelled, and the DDLs that made their table.

Its names and values hold what a page must not take for markup.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from random import Random

from binlogd.client.pump_client import PumpClient
from binlogd.tidb.model import Column, FieldType, Table, Tp, table_to_json
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tso import Tso, compose
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations

CLUSTER_ID = 42
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
"""A customer's name."""

_TEXT = FieldType(Tp.VARCHAR, 0, 200, charset="utf8mb4", collate="utf8mb4_bin")
ORDERS = Table(
    31,
    "orders",
    (
        Column(1, "id", 0, FieldType(Tp.LONGLONG, 3)),
        Column(2, "customer", 1, _TEXT),
        Column(3, "status", 2, _TEXT),
        Column(4, "total", 3, FieldType(Tp.LONGLONG)),
        Column(5, "note", 4, _TEXT),
    ),
    pk_is_handle=True,
)
_DDLS = (
    "CREATE DATABASE `shop`",
    "CREATE TABLE `shop`.`orders` (`id` BIGINT PRIMARY KEY, `customer` VARCHAR(200), `status`"
    " VARCHAR(200), `total` BIGINT, `note` VARCHAR(200) COMMENT '<script>alert(1)</script>')",
)
Row = tuple[int, str, str, int, str]


def _values(row: Row) -> dict[int, Value]:
    order_id, customer, status, total, note = row
    return {1: order_id, 2: customer.encode(), 3: status.encode(), 4: total, 5: note.encode()}


class Shop:
    """A timeline of its own, from a wall time on; what it writes is in commit order."""

    def __init__(self, begin_ms: int) -> None:
        self._at_ms, self._rng = begin_ms, Random(7)
        self.ddl_ts = [self._tick() for _ in _DDLS]
        self.orders: dict[int, Row] = {}
        self.changes: list[Tso] = []

    def history(self) -> bytes:
        """The answer of `/ddl/history`."""
        name = {"O": "shop", "L": "shop"}
        infos: Sequence[dict[str, object]] = (
            {"DBInfo": {"id": 5, "db_name": name, "state": 5}},
            {"TableInfo": json.loads(table_to_json(ORDERS))},
        )
        return json.dumps(
            [
                {
                    "id": number,
                    "type": (1, 3)[number - 1],
                    "state": 6,
                    "schema_id": 5,
                    "table_id": (0, ORDERS.id)[number - 1],
                    "query": query,
                    "start_ts": ts - 2,
                    "binlog": {"SchemaVersion": number, "FinishedTS": ts, **info},
                }
                for number, (query, ts, info) in enumerate(
                    zip(_DDLS, self.ddl_ts, infos, strict=True), 1
                )
            ]
        ).encode()

    def ddls(self) -> Iterator[tuple[bytes, bytes]]:
        """The DDLs, each as Prewrite and Commit."""
        for number, (query, ts) in enumerate(zip(_DDLS, self.ddl_ts, strict=True), 1):
            start = Tso(ts - 1)
            yield (
                prewrite_binlog(
                    start, ddl_query=query.encode(), ddl_job_id=number, ddl_schema_state=5
                ),
                commit_binlog(
                    start, ts, ddl_query=query.encode(), ddl_job_id=number, ddl_schema_state=5
                ),
            )

    def make(self, order_id: int, customer: str) -> tuple[bytes, bytes]:
        """A new order."""
        row = self.orders[order_id] = (order_id, customer, "new", self._rng.randrange(5, 900), "")
        return self._write(Mutation(ORDERS.id, [_insert(row)], [], [], b"\x00"))

    def pay(self, order_id: int) -> tuple[bytes, bytes]:
        """Changes one column of an order."""
        old = self.orders[order_id]
        row = self.orders[order_id] = (*old[:2], "paid", *old[3:])
        encoded = encode_update(ORDERS, _values(old), _values(row), handle=order_id)
        return self._write(Mutation(ORDERS.id, [], [encoded], [], b"\x01"))

    def cancel(self, order_id: int) -> tuple[bytes, bytes]:
        """Deletes an order."""
        old = _values(self.orders.pop(order_id))
        encoded = encode_delete(ORDERS, old, handle=order_id)
        return self._write(Mutation(ORDERS.id, [], [], [encoded], b"\x04"))

    def of_no_table(self) -> tuple[bytes, bytes]:
        """A row of a table that nobody has made: the replication stops at it."""
        return self._write(Mutation(77, [b"\x08\x02"], [], [], b"\x00"))

    def _write(self, mutation: Mutation) -> tuple[bytes, bytes]:
        ts = self._tick()
        self.changes.append(ts)
        start = Tso(ts - 1)
        value = encode_mutations(2, [mutation])
        prewrite = prewrite_binlog(start, prewrite_key=b"k", prewrite_value=value)
        return prewrite, commit_binlog(start, ts)

    def _tick(self) -> Tso:
        self._at_ms += 7
        return compose(self._at_ms, 2)


def _insert(row: Row) -> bytes:
    return encode_insert(ORDERS, _values(row), handle=row[0])


def send(target: tuple[str, int], *written: tuple[bytes, bytes]) -> None:
    """To a Pump, one transaction after the other."""

    async def all_of_them() -> None:
        async with PumpClient(*target, cluster_id=CLUSTER_ID) as client:
            for prewrite, commit in written:
                await client.write(prewrite)
                await client.write(commit)

    asyncio.run(all_of_them())
