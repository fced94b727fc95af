"""Recordings under other names: the tables are the recorded ones, wherever they are called so."""

from __future__ import annotations

import pytest

from binlogd.drainer.filtering.route import RouteRule, TableRouter
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import RECORDINGS, compare
from tests.support.replay import SKIPPED, apply_all, sink_for, translated

ROUTES = TableRouter([RouteRule("ddl_a", "", "first"), RouteRule("ddl_b", "", "second")])
NAMES = {"first": "ddl_a", "second": "ddl_b"}


@pytest.mark.parametrize("lanes", [4])
async def test_every_ddl_and_row_of_a_recording_goes_to_the_routed_schemas(
    lanes: int, mariadb: MariaDb
) -> None:
    skip = SKIPPED["ddl"]
    txns = translated(RECORDINGS / "ddl", skip, routes=ROUTES)
    await apply_all(sink_for(mariadb, lanes), txns)
    connection = mariadb.connect()
    assert compare(RECORDINGS / "ddl", connection, skip, NAMES) == []
    connection.close()
    left = {name for (name,) in mariadb.execute("SHOW DATABASES")}
    assert left.isdisjoint({b"ddl_a", b"ddl_b"})
