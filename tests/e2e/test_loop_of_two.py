"""A pair that replicates both ways, seen from one side: its own transactions come back marked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from tests.support import bank
from tests.support.appliance import Appliance, into_mariadb
from tests.support.mariadb import MariaDb
from tests.workload.timeline import Record

OWN, OTHER = 7, 8
COUNT = 90


def both_kinds() -> Iterator[Record]:
    """Every third transaction was written by us there, every other third by somebody else."""
    for number in range(COUNT):
        line = bank.inserted(bank.LEDGER, (number, 1))
        kind = number % 3
        if kind == 0:
            yield from bank.transaction(number, line)
        else:
            mark = bank.inserted(bank.MARK, (number, OWN if kind == 1 else OTHER, 1))
            yield from bank.transaction(number, line, mark)


def test_only_what_was_written_elsewhere_arrives(tmp_path: Path, mariadb: MariaDb) -> None:
    mariadb.execute(*bank.create())
    syncer = into_mariadb(mariadb, extra=f"loopback-control = true\nchannel-id = {OWN}")
    appliance = Appliance(tmp_path, history=bank.history(), syncer=syncer)
    try:
        appliance.start()
        asyncio.run(bank.feed(both_kinds(), appliance.target))
        appliance.wait_until_applied(bank.commit_ts_of(COUNT - 1))
        assert appliance.stop() == 0
    finally:
        appliance.close()
    arrived = {int(n or 0) for (n,) in mariadb.execute("SELECT n FROM bank.ledger")}
    assert arrived == {number for number in range(COUNT) if number % 3 != 1}
    channels = mariadb.execute("SELECT DISTINCT channel_id FROM retl._drainer_repl_mark ORDER BY 1")
    assert channels == [(b"%d" % OWN,), (b"%d" % OTHER,)]
