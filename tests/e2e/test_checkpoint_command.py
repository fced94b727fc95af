"""`binlogd checkpoint`: shown, set back with the data, and everything is there again, once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.support import bank
from tests.support.appliance import Appliance, into_mariadb, run
from tests.support.mariadb import MariaDb

COUNT = 60


def test_a_copy_of_an_earlier_moment_is_brought_up_to_date(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    mariadb.execute(*bank.create())
    appliance = Appliance(tmp_path, history=bank.history(), syncer=into_mariadb(mariadb))
    config = str(appliance.config_file)
    try:
        appliance.start()
        asyncio.run(bank.feed(bank.transfers(COUNT), appliance.target))
        appliance.wait_until_applied(bank.commit_ts_of(COUNT - 1))
        refused = run(tmp_path, "checkpoint", "--config", config, "--set", "5")
        assert refused.returncode != 0, "it is running"
        assert appliance.stop() == 0
        mariadb.execute("DELETE FROM bank.account", "DELETE FROM bank.ledger")
        before = run(tmp_path, "checkpoint", "--config", config, "--json")
        assert json.loads(before.stdout)["consistent"] is True
        start = str(bank.commit_ts_of(0) - 1)
        future = run(tmp_path, "checkpoint", "--config", config, "--set", str(1 << 62))
        assert (future.returncode, "would be passed over" in future.stderr) == (1, True)
        after = run(tmp_path, "checkpoint", "--config", config, "--set", start)
        assert after.returncode == 0, after.stderr
        assert f"to {start}" in after.stdout
        assert after.stderr == "", "a command for people logs nothing"
        appliance.start()
        appliance.wait_until_applied(bank.commit_ts_of(COUNT - 1))
        assert appliance.stop() == 0
    finally:
        appliance.close()
    held = mariadb.execute("SELECT COUNT(*), COUNT(DISTINCT n) FROM bank.ledger")
    assert held == [(b"%d" % (COUNT - 1), b"%d" % (COUNT - 1))]
    assert mariadb.execute("SELECT SUM(money) FROM bank.account") == [(b"%d" % bank.TOTAL,)]


def test_where_nobody_has_written_there_is_no_checkpoint(tmp_path: Path, mariadb: MariaDb) -> None:
    appliance = Appliance(tmp_path, history=b"[]", syncer=into_mariadb(mariadb))
    asked = run(tmp_path, "checkpoint", "--config", str(appliance.config_file))
    assert asked.returncode == 2
    assert "no Drainer has written there yet, or syncer.to.checkpoint.schema names" in asked.stderr
    assert "ignore-table" not in asked.stderr, "it is no table of the replica"
