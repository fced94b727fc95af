"""Transactions of any size into a table of texts, made and sent piece by piece by own processes.

A row is made of its number alone, so that what the replica must hold is known without keeping it:
how many rows, and the sum of their CRC-32.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple
from zlib import crc32

import pymysql
from grpclib.exceptions import GRPCError, StreamTerminatedError

from binlogd.client.pump_client import PumpClient
from binlogd.tidb.datum import compact_bytes
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.varint import uvarint, varint
from binlogd.tso import Tso, plus_ms
from binlogd.wire import peek
from binlogd.wire.binlogs import commit_binlog
from tests.bench.load import DATABASE, Load
from tests.bench.whole_path import halves
from tests.support.large_binlogs import CLUSTER, raw_channel, send_payload

_FIRST_ID = 1 << 21
"""The varints of it and of a hundred million ids behind it are equally long."""
_TEXT_BYTES = 120
_PIECE_ROWS = 200
_ATTEMPTS = 600
_AGAIN_S = 0.5
_LOST = (OSError, GRPCError, StreamTerminatedError)


class Found(NamedTuple):
    """Of rows: how many, and the sum of their checksums."""

    rows: int
    checksum: int


@dataclass(frozen=True)
class Transaction:
    """One that inserts `rows` rows from `first_id` on, of so many columns beside the id."""

    start_ts: Tso
    commit_ts: Tso
    table_id: int
    schema_version: int
    first_id: int
    rows: int
    columns: int

    def payload(self) -> tuple[int, Iterator[bytes]]:
        """How long the Prewrite is, and its pieces."""
        row_bytes = len(self._row(0)[0])
        row_head = b"\x12" + uvarint(row_bytes)
        table = b"\x08" + uvarint(self.table_id)
        table_bytes = len(table) + self.rows * (len(row_head) + row_bytes + 2)
        value = b"\x08" + uvarint(self.schema_version) + b"\x12" + uvarint(table_bytes)
        key = b"key"
        head = b"\x08\x00\x10" + uvarint(self.start_ts) + b"\x18\x00"
        head += b"\x22" + uvarint(len(key)) + key
        head += b"\x2a" + uvarint(len(value) + table_bytes) + value + table

        def pieces() -> Iterator[bytes]:
            yield head
            for begin in range(0, self.rows, _PIECE_ROWS):
                numbers = range(begin, min(self.rows, begin + _PIECE_ROWS))
                yield b"".join([row_head + self._row(number)[0] for number in numbers])
            for begin in range(0, self.rows, 1 << 16):
                yield b"\x38\x00" * min(1 << 16, self.rows - begin)
            yield peek.NO_DDL

        return len(head) - len(table) + table_bytes + len(peek.NO_DDL), pieces()

    def expected(self) -> Found:
        """What of it must be downstream."""
        return Found(self.rows, sum(crc32(self._row(number)[1]) for number in range(self.rows)))

    def commit(self) -> bytes:
        """The Commit."""
        return commit_binlog(self.start_ts, self.commit_ts, prewrite_key=b"key")

    def _row(self, number: int) -> tuple[bytes, bytes]:
        """A row as TiDB writes it, and the values as they are checksummed."""
        row_id = self.first_id + number
        text = b"%09d" % row_id * 13
        texts = [b"%03d" % column + text for column in range(self.columns)]
        datums = [
            b"\x08" + varint(column + 2) + b"\x02" + compact_bytes(each)
            for column, each in enumerate(texts)
        ]
        row = b"\x08" + varint(row_id) + b"".join(datums)
        return row, b"|".join((b"%d" % row_id, *texts))


def transactions(load: Load, count: int, size_bytes: int, columns: int) -> list[Transaction]:
    """So many of about that size, one committed behind the other, and long after all have begun: a
    Commit has its timestamp when its Prewrite is acknowledged."""
    (table,) = [job.table for job in jobs_from_json(load.history) if job.table is not None]
    version = max(job.schema_version for job in jobs_from_json(load.history))
    begin = plus_ms(load.setup[-1].commit_ts, 1000)
    committed = plus_ms(begin, 60_000)
    rows = size_bytes // (columns * (_TEXT_BYTES + 5) + 10)
    return [
        Transaction(
            Tso(begin + number),
            Tso(committed + number),
            table.id,
            version,
            _FIRST_ID + number * rows,
            rows,
            columns,
        )
        for number in range(count)
    ]


async def set_up(target: tuple[str, int], load: Load) -> None:
    """Writes the DDL of the table."""
    async with PumpClient(*target, cluster_id=CLUSTER) as client:
        for binlog in load.setup:
            for half in halves(binlog):
                await client.write(half)


async def commit_all(target: tuple[str, int], sent: Sequence[Transaction]) -> None:
    """Writes their Commits, in order."""
    async with PumpClient(*target, cluster_id=CLUSTER) as client:
        for each in sent:
            await client.write(each.commit())


class Writers:
    """A process for each transaction. Each sends half of its Prewrite and waits for `go_on`; then
    it sends all of it, again and again, until it is acknowledged."""

    def __init__(self, target: tuple[str, int], all_of_them: Sequence[Transaction]) -> None:
        context = multiprocessing.get_context("forkserver")
        self._go_on = context.Event()
        self._halfway = [context.Event() for _ in all_of_them]
        self._processes = [
            context.Process(target=_write, args=(target, each, halfway, self._go_on), daemon=True)
            for each, halfway in zip(all_of_them, self._halfway, strict=True)
        ]
        for process in self._processes:
            process.start()

    def halfway(self, timeout_s: float) -> None:
        """Returns when half of each was sent."""
        for event in self._halfway:
            assert event.wait(timeout_s), "a writer does not come along"

    def go_on(self) -> None:
        """They may send the rest."""
        self._go_on.set()

    def done(self, timeout_s: float) -> None:
        """Returns when all are acknowledged."""
        for process in self._processes:
            process.join(timeout_s)
            assert process.exitcode == 0, f"a writer ended with {process.exitcode}"

    def close(self) -> None:
        """Whatever they do, they are gone afterwards."""
        for process in self._processes:
            process.kill()
            process.join()


def _write(target: tuple[str, int], transaction: Transaction, halfway: Event, go_on: Event) -> None:
    asyncio.run(_until_acknowledged(target, transaction, halfway, go_on))


async def _until_acknowledged(
    target: tuple[str, int], transaction: Transaction, halfway: Event, go_on: Event
) -> None:
    for attempt in range(_ATTEMPTS):
        size, pieces = transaction.payload()
        channel = raw_channel(*target)
        try:
            await send_payload(channel, size, _watched(pieces, size, halfway, go_on))
            return
        except _LOST:
            if attempt == _ATTEMPTS - 1:
                raise
            await asyncio.sleep(_AGAIN_S)
        finally:
            channel.close()


async def _watched(pieces: Iterator[bytes], size: int, halfway: Event, go_on: Event) -> Any:
    sent = 0
    for piece in pieces:
        yield piece
        sent += len(piece)
        if sent > size // 2 and not halfway.is_set():
            halfway.set()
            await asyncio.to_thread(go_on.wait)


def replicated(server: Any, columns: int) -> Found:
    """What a MySQL or MariaDB holds of them."""
    values = ", ".join(["id", *(f"c{number}" for number in range(columns))])
    with (
        pymysql.connect(
            host=server.host, port=server.port, user=server.user, password=server.password
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"SHOW TABLES FROM `{DATABASE}`")
        ((table,),) = cursor.fetchall()
        cursor.execute(
            f"SELECT COUNT(*), SUM(CRC32(CONCAT_WS('|', {values}))) FROM `{DATABASE}`.`{table}`"
        )
        rows, checksum = cursor.fetchone() or (0, 0)
    return Found(int(rows), int(checksum or 0))
