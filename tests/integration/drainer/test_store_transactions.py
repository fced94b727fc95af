"""What the store does in one transaction: all of it or nothing, whatever ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pymysql
import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.mysql.store import MySqlStore
from binlogd.drainer.rows.progress import LanePosition
from binlogd.errors import DownstreamWentBack, Refused
from binlogd.tso import Tso
from tests.support.mariadb import MariaDb
from tests.support.replay import CLUSTER_ID, server_of

HERE = "tidb_binlog"


@pytest.fixture
async def store(mariadb: MariaDb) -> AsyncIterator[MySqlStore]:
    made = MySqlStore(server_of(mariadb), "tidb_binlog", CLUSTER_ID)
    yield made
    made.close()


def note(_: str) -> str:
    return "noted"


async def noted(mariadb: MariaDb) -> str:
    """As another process finds it, which has to wait for who is at it."""
    other, found = MySqlStore(server_of(mariadb), "tidb_binlog", CLUSTER_ID), list[str]()
    try:
        await other.owner(found.append)
    finally:
        other.close()
    return found[-1]


async def test_who_refuses_what_is_noted_keeps_nobody_waiting(
    store: MySqlStore, mariadb: MariaDb
) -> None:
    def refuse(found: str) -> str:
        raise Refused(found)

    await store.owner(note)
    with pytest.raises(Refused, match="noted"):
        await store.owner(refuse)
    assert await noted(mariadb) == "noted"
    await store.owner(lambda found: found + " again")
    assert await noted(mariadb) == "noted again"


async def test_a_connection_that_ends_in_between_is_made_anew_and_all_is_done_again(
    store: MySqlStore, mariadb: MariaDb
) -> None:
    found: list[str] = []

    def end_once(before: str) -> str:
        if not found:
            users = "SELECT id FROM information_schema.processlist WHERE user = 'root'"
            for (number,) in mariadb.execute(f"{users} AND id <> CONNECTION_ID()"):
                with suppress(pymysql.err.OperationalError):  # one of before that is gone by now
                    mariadb.execute(f"KILL {int(number or 0)}")
        found.append(before)
        return f"after {len(found)}"

    await store.owner(end_once)
    assert found == ["", ""]
    assert await noted(mariadb) == "after 2"


async def test_a_copy_that_takes_over_while_it_is_opened_is_not_raised_to_what_was_read_before(
    store: MySqlStore, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is ahead of the note beside it was set by hand, and is obeyed: so both have
    to be of one moment."""
    tables = ("checkpoint", "progress")
    lanes = (await store.open(2))[1].lanes
    for commit_ts in (10, 30):
        wanted = [LanePosition(Tso(commit_ts))] * 2
        await store.lay_out(lanes, wanted)
        await store.save(Checkpoint(Tso(commit_ts)), wanted)
        lanes = tuple(wanted)
        if commit_ts == 10:
            copies = [f"CREATE TABLE old.{each} AS SELECT * FROM {HERE}.{each}" for each in tables]
            mariadb.execute("CREATE DATABASE old", *copies)
    kept = MySqlStore._kept

    async def and_then_it_is_the_copy(
        self: MySqlStore,
    ) -> tuple[Checkpoint | None, Tso | None]:
        found = await kept(self)
        mariadb.execute(
            *(f"REPLACE INTO {HERE}.{each} SELECT * FROM old.{each}" for each in tables)
        )
        return found

    monkeypatch.setattr(MySqlStore, "_kept", and_then_it_is_the_copy)
    checkpoint, restart, _ = await store.open(2)
    assert checkpoint == Checkpoint(Tso(10))
    assert (restart.low_ts, restart.high_ts, restart.is_set_back) == (10, 10, False)


async def test_a_server_that_went_back_is_told_from_one_that_somebody_else_moved(
    store: MySqlStore, mariadb: MariaDb
) -> None:
    """Lanes go on while a checkpoint is saved: so one that is further tells nothing, and one that
    is behind tells of a copy that took over."""
    left = [LanePosition(Tso(20))] * 2
    await store.lay_out((await store.open(2))[1].lanes, left)
    move = f"UPDATE {HERE}.progress SET commit_ts = %d WHERE lane = %d"
    mariadb.execute(move % (30, 1))
    await store.save(Checkpoint(Tso(20)), left)
    mariadb.execute(move % (10, 0))
    with pytest.raises(DownstreamWentBack, match="commit_ts 10, 30"):
        await store.save(Checkpoint(Tso(20)), left)
