"""Where a Go Drainer was killed and its cluster is gone, `binlogd serve` completes the replica."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.appliance import free_port
from tests.integration.drainer.test_restore_original import LAST_TS, load, relay, tables
from tests.mariadb import MariaDb

CLUSTER_ID = 7710497923671030381
__all__ = ["relay"]
"""A fixture: the relay directory that a Go Drainer left."""


def config(directory: Path, relay_dir: Path, mariadb: MariaDb) -> Path:
    """The upstream's HTTP port does not answer any more."""
    path = directory / "binlogd.toml"
    path.write_text(
        f'data-dir = "{directory / "data"}"\naddr = "127.0.0.1:{free_port()}"\n'
        f"[upstream]\ncluster-id = {CLUSTER_ID}\n"
        f'schema-history = "http://127.0.0.1:{free_port()}/ddl/history"\n'
        f'[syncer]\ndb-type = "mysql"\n[syncer.relay]\nlog-dir = "{relay_dir}"\n'
        f'[syncer.to]\nhost = "127.0.0.1"\nport = {mariadb.port}\nuser = "{mariadb.user}"\n'
    )
    return path


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "binlogd", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_start_without_upstream_restores_marks_consistent_and_exits_with_zero(
    tmp_path: Path, relay: Path, mariadb: MariaDb
) -> None:
    load(mariadb, "drainer_relay_keys.downstream")
    before = tables(mariadb)
    path = str(config(tmp_path, relay, mariadb))
    done = run("serve", "--config", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tables(mariadb) != before
    ((stored,),) = mariadb.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
    checkpoint = json.loads(stored or b"")
    assert checkpoint["consistent"] is True
    assert checkpoint["commitTS"] == LAST_TS
    again = run("restore", "--config", path, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["was_consistent"] is True
