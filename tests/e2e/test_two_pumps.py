"""Two processes that receive, one of which replicates: what both have arrives in one order."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from binlogd.client.pump_client import PumpClient
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from tests.e2e.test_recordings_end_to_end import RECORDINGS
from tests.support.appliance import Appliance, into_mariadb
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import compare, connect, history, info
from tests.workload.recording import cluster_id, feed_recording

NAME = "ddl"


def receiving_only(directory: Path) -> Appliance:
    directory.mkdir()
    pump = Appliance(directory)
    pump.configure('[upstream]\ntso = "observed"\n[drainer]\nenabled = false\n')
    return pump


def replicating(directory: Path, other: Appliance, server: MariaDb) -> Appliance:
    """One that leaves nothing of the recording out: what is dropped is kept for RECOVER."""
    directory.mkdir()
    (directory / "ddl_history.json").write_bytes(history(RECORDINGS / NAME))
    drainer = Appliance(directory)
    drainer.configure(
        '[upstream]\ntso = "observed"\nschema-history = "ddl_history.json"\n'
        f'pumps = ["127.0.0.1:{other.port}"]\n[drainer]\ntrash-schema = "binlogd_trash"\n'
        + into_mariadb(server)
    )
    return drainer


async def end_of_time(*targets: tuple[str, int]) -> int:
    """A last transaction at every Pump, so that each knows how late it is; the commit_ts of all."""
    own, last = cluster_id(RECORDINGS / NAME), info(RECORDINGS / NAME)["last_tso"]
    for number, target in enumerate(targets):
        async with PumpClient(*target, cluster_id=own) as client:
            start = Tso(last + (1 << 18) + 2 * number)
            await client.write(prewrite_binlog(start, prewrite_key=b"k"))
            await client.write(commit_binlog(start, Tso(start + 1)))
    return int(last + (1 << 18))


def is_waiting_for(name: str) -> Any:
    def condition(status: dict[str, Any]) -> bool:
        drainer = status["drainer"]
        sources = {each["name"]: each for each in drainer.get("sources", ())}
        if name not in sources or not sources[name]["trouble"]:
            return False
        # what is fed waits for it as well: perhaps nobody had anything more
        is_all_there = len({each["resolved_ts"] for each in sources.values()}) == 1
        return bool(drainer["blocking"] == name or is_all_there)

    return condition


def test_a_pump_that_dies_holds_everything_visibly_and_goes_on_when_it_is_back(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    other = receiving_only(tmp_path / "other")
    drainer = replicating(tmp_path / "drainer", other, mariadb)
    name = f"127.0.0.1:{other.port}"
    try:
        drainer.start()
        other.start()
        feeding = threading.Thread(
            target=lambda: asyncio.run(
                feed_recording(RECORDINGS / NAME, drainer.target, other.target)
            )
        )
        feeding.start()
        drainer.wait(lambda status: status["drainer"].get("transactions", 0) > 20)
        other.kill()
        status = drainer.wait(is_waiting_for(name))
        assert status["drainer"]["state"] == "running"
        other.start(is_ready=False)
        feeding.join()
        last = asyncio.run(end_of_time(drainer.target, other.target))
        status = drainer.wait_until_applied(last)
        assert status["drainer"]["trash"]["error"] == ""
        assert drainer.stop() == 0
        assert other.stop() == 0
    finally:
        drainer.close()
        other.close()
    connection = connect(mariadb.host, mariadb.port, mariadb.user, mariadb.password)
    assert compare(RECORDINGS / NAME, connection) == []
