"""Random histories of tables of every shape end in the upstream's tables, whatever happens."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from random import Random

import pytest

from binlogd.drainer.mysql.sink import MySqlSink
from binlogd.drainer.rows.parts import Limits
from binlogd.drainer.txn import Dml
from tests.support.histories import KINDS, Row, Upstream
from tests.support.mariadb import MariaDb
from tests.support.replay import apply_all, running, sink_for

SMALL = Limits(changes_max=12, bytes_max=4096, cut_changes_max=9, cut_bytes_max=4096)


def _held(mariadb: MariaDb, table: str) -> Counter[Row]:
    rows = mariadb.execute(f"SELECT * FROM h.{table}")
    kinds = next(kind for kind in KINDS if kind.name == table).columns

    def value(raw: bytes | None, tp: int) -> object:
        if raw is None:
            return None
        if tp == 4:
            return struct.unpack("<f", struct.pack("<f", float(raw)))[0]
        return int(raw) if tp == 8 else raw

    return Counter(
        tuple(value(raw, kind.tp) for raw, kind in zip(row, kinds, strict=True))  # type: ignore[misc]
        for row in rows
    )


def _check(mariadb: MariaDb, upstream: Upstream) -> None:
    for table, rows in upstream.contents().items():
        assert _held(mariadb, table) == rows, table


@pytest.mark.parametrize(
    ("lanes", "is_transactional"), [(1, False), (3, False), (3, True)], ids=["1", "3", "whole"]
)
@pytest.mark.parametrize(
    "seed",
    [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 4))],
)
async def test_tables_of_every_shape_end_as_upstream(
    seed: int, lanes: int, mariadb: MariaDb, *, is_transactional: bool
) -> None:
    upstream = Upstream(Random(seed))
    mariadb.execute(*upstream.create())
    limits = SMALL if is_transactional else None
    sink = sink_for(mariadb, lanes, limits=limits, is_transactional=is_transactional)
    await apply_all(sink, iter(upstream.transactions(200 if is_transactional else 400)))
    _check(mariadb, upstream)


class Abandoned(Exception):
    """As if the process had been killed."""


async def _abandon_after(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    raise Abandoned


async def _live_for(turns: int, sink: MySqlSink, txns: list[Dml]) -> None:
    async with running(sink), asyncio.TaskGroup() as group:
        group.create_task(_abandon_after(turns))
        for txn in txns:
            await sink.submit([txn])
        await sink.flush()


@pytest.mark.parametrize(
    "seed",
    [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 4))],
)
async def test_tables_of_every_shape_survive_many_lives_of_the_sink(
    seed: int, mariadb: MariaDb
) -> None:
    rng = Random(seed)
    upstream = Upstream(rng)
    mariadb.execute(*upstream.create())
    txns = upstream.transactions(300)
    abandoned = 0
    for _ in range(12):
        is_transactional = rng.random() < 0.4
        lanes = rng.choice([1, 2, 4])
        sink = sink_for(mariadb, lanes, limits=SMALL, is_transactional=is_transactional)
        try:
            await _live_for(rng.randrange(10, 500), sink, txns)
        except* Abandoned:
            abandoned += 1
    await apply_all(sink_for(mariadb), iter(txns))
    assert abandoned > 2
    _check(mariadb, upstream)
