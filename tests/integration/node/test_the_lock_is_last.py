"""Who gets the lock of a data directory may copy or remove it: nothing there is open any more."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from binlogd import app
from binlogd.errors import ConfigError
from binlogd.host.disk import PosixDisk
from binlogd.log.directory import LOCK_FILE
from binlogd.node.reloading import Reloading
from binlogd.upstream.store import UpstreamStore
from tests.integration.node.test_every_key import setup_of
from tests.support.ports import free_port

PUMP = 'roles = ["pump"]\n'
DRAINER = """roles = ["drainer"]
[upstream]
pumps = ["127.0.0.1:1"]
cluster-id = 7
[syncer]
db-type = "file"
[syncer.to]
dir = "{directory}/out"
"""


@pytest.mark.parametrize("role", [PUMP, DRAINER], ids=["pump", "drainer"])
async def test_a_node_has_the_lock_until_its_database_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    port = free_port()
    held: list[bool] = []
    head = f'addr = "127.0.0.1:{port}"\ndata-dir = "{tmp_path}/data"\n'
    setup = setup_of(tmp_path, head + role.format(directory=tmp_path))

    async def is_held() -> bool:
        try:
            lock = await PosixDisk().lock(setup.data_dir / LOCK_FILE)
        except ConfigError:
            return True
        await lock.release()
        return False

    async def close(store: UpstreamStore) -> None:
        await its_own(store)
        held.append(await is_held())

    its_own = UpstreamStore.close
    monkeypatch.setattr(UpstreamStore, "close", close)
    serving = asyncio.create_task(app._serve(Reloading(setup, lambda: setup)))
    async with asyncio.timeout(60):
        while not await _answers(port):  # ends with the time
            assert not serving.done(), await serving
            await asyncio.sleep(0.05)
        assert await is_held()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await serving == 0
    assert held == [True]
    assert not await is_held()


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
