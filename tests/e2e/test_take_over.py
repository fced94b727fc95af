"""Where a Go Drainer was killed and its cluster is gone, `binlogd serve` completes the replica."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from tests.integration.drainer.test_restore_crash_points import TABLES, Scene, scene
from tests.integration.drainer.test_restore_original import LAST_TS, load, relay, tables
from tests.support.appliance import environment
from tests.support.dying_proxy import DyingProxy
from tests.support.mariadb import MariaDb
from tests.support.ports import free_port
from tests.support.program import Program
from tests.support.replay import CLUSTER_ID as SCENE_CLUSTER_ID
from tests.support.replay import server_of

CLUSTER_ID = 7710497923671030381
__all__ = ["relay", "scene"]
"""Fixtures: the relay directory that a Go Drainer left, and one of binlogd."""


def config(
    directory: Path,
    relay_dir: Path,
    mariadb: MariaDb,
    *,
    cluster_id: int = CLUSTER_ID,
    tables: Sequence[str] = (),
) -> Path:
    """The upstream's HTTP port does not answer any more."""
    wanted = "".join(
        f'[[syncer.replicate-do-table]]\ndb-name = "keys"\ntbl-name = "{name}"\n' for name in tables
    )
    path = directory / "binlogd.toml"
    path.write_text(
        f'data-dir = "{directory / "data"}"\naddr = "127.0.0.1:{free_port()}"\n'
        f"[upstream]\ncluster-id = {cluster_id}\n"
        f'schema-history = "http://127.0.0.1:{free_port()}/ddl/history"\n'
        f'[syncer]\ndb-type = "mysql"\n{wanted}'
        f'[syncer.relay]\nrestore-after = 0.2\nlog-dir = "{relay_dir}"\n'
        f'[syncer.to]\nhost = "127.0.0.1"\nport = {mariadb.port}\nuser = "{mariadb.user}"\n'
    )
    return path


def serve_until_consistent(directory: Path, config_file: Path) -> None:
    """Serves until the restore is over, and on; then it is told to end."""
    log = directory / "log"
    log.touch()
    words = ("serve", "--config", str(config_file))
    program = Program(words, directory, environment(), out=log, err=log)
    try:
        deadline = time.monotonic() + 120
        while b'"restored"' not in log.read_bytes() or b"service_started" not in log.read_bytes():
            assert program.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=60) == 0, log.read_text()
    finally:
        program.send_signal(signal.SIGKILL)


def test_a_start_without_upstream_restores_marks_consistent_and_goes_on(
    tmp_path: Path, relay: Path, mariadb: MariaDb
) -> None:
    load(mariadb, "drainer_relay_keys.downstream")
    before = tables(mariadb)
    serve_until_consistent(tmp_path, config(tmp_path, relay, mariadb))
    assert tables(mariadb) != before
    ((stored,),) = mariadb.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
    checkpoint = json.loads(stored or b"")
    assert checkpoint["consistent"] is True
    assert checkpoint["commitTS"] == LAST_TS


async def test_what_binlogd_itself_left_is_completed_at_a_start_without_upstream(
    scene: Scene, tmp_path: Path, mariadb: MariaDb
) -> None:
    commands = await scene.prepare()
    scene.clean()
    await scene.first_checkpoint()
    async with DyingProxy(server_of(mariadb), dies_at=commands // 2).running() as proxy:
        assert await proxy.kills(scene.replicate(proxy.server))
    path = config(tmp_path, scene.relay, mariadb, cluster_id=SCENE_CLUSTER_ID, tables=TABLES)
    await asyncio.to_thread(serve_until_consistent, tmp_path, path)
    assert scene.found() == scene.tables
