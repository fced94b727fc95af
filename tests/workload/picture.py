"""Takes the picture of the page that the README shows: `python -m tests.workload.picture FILE`.

A node with a replica in a MariaDB of its own gets a minute of load, and a browser looks at it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from binlogd.client.directory import FixedPumps
from binlogd.client.pumps_client import PumpsClient
from tests.support.appliance import into_mariadb
from tests.support.browser import Browser
from tests.support.machine import Appliance
from tests.support.mariadb import MariaDb
from tests.workload.feed import Feeder
from tests.workload.generator import Options, Workload
from tests.workload.status_port import write_history
from tests.workload.timeline import Record

_LOAD_S = 75.0
_LOOK_AFTER_S = 45.0
_WAVE_S = 4.0
_PORT = 3306
"""As it is known; it has to be free."""


async def _records(workload: Workload, history: Path) -> AsyncIterator[Record]:
    """As fast as it is taken for a while, then a pause, so that the plots have something to say."""
    jobs, until_s = 0, time.monotonic() + _LOAD_S
    for number, record in enumerate(workload.records()):
        if time.monotonic() > until_s:
            return
        if workload.job_count != jobs:
            jobs = workload.job_count
            write_history(history, workload.history())
        if number % 200 == 0:
            await asyncio.sleep(0.2 if time.monotonic() % _WAVE_S < _WAVE_S / 2 else 0.6)
        yield record


async def _picture(file: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = Path(folder) / "ddl_history.json"
        write_history(history, b"[]")
        server = MariaDb(Path(folder))
        server.port = _PORT
        node = Appliance(Path(folder) / "node", history=history, syncer=into_mariadb(server))
        try:
            await asyncio.to_thread(server.start)
            await node.start()
            workload = Workload(
                Options(transactions=100_000, begin_ms=time.time_ns() // 1_000_000, ddl_every=400)
            )
            async with (
                PumpsClient(FixedPumps((node.host, node.port)), cluster_id=4711) as client,
                asyncio.TaskGroup() as group,
            ):
                group.create_task(Feeder([client]).feed(_records(workload, history)))
                await asyncio.sleep(_LOOK_AFTER_S)
                await asyncio.to_thread(_shoot, f"http://{node.host}:{node.port}/", file)
        finally:
            await node.close()
            server.stop()


def _shoot(url: str, file: Path) -> None:
    browser = Browser()
    try:
        browser.look(width=1280, height=1040)
        browser.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        browser.driver.get(url)
        browser.wait(lambda: "Connected" in browser.text("body") or browser.all("svg path"))
        time.sleep(3.0)  # some samples
        browser.shot(file)
    finally:
        browser.close()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_picture(Path(sys.argv[1])))
