"""`binlogd check` as an operator types it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import tarfile
from pathlib import Path

from tests.support.appliance import run
from tests.support.artefacts import ARTEFACTS
from tests.support.pump_world import ROOMY, commit, posix_world, prewrite, written


def binlogd(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run(Path.cwd(), *map(str, words))


async def test_a_directory_is_checked_and_repaired(tmp_path: Path) -> None:
    async with posix_world(tmp_path) as world, world.pump(ROOMY, shards=2) as pump:
        for number in range(10, 60, 2):
            await written(pump, prewrite(number), commit(number, number + 1))
    checks: tuple[str | Path, ...] = ("check", "--data-dir", tmp_path)
    done = binlogd(*checks)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "everything verifies")

    with sqlite3.connect(tmp_path / "pump" / "shard-1" / "index.db") as connection:
        connection.execute("DELETE FROM commits")
    connection.close()
    done = binlogd(*checks)
    assert done.returncode == 1
    assert "no row in index.db: commits" in done.stdout
    assert "`binlogd check --repair` makes an index again" in done.stdout

    done = binlogd(*checks, "--json", "--repair")
    document = json.loads(done.stdout)
    assert (done.returncode, document["is_clean"]) == (0, True)
    assert document["found_before"][0]["kind"] == "index"
    assert document["repaired"]["indexes"] == [str(tmp_path / "pump" / "shard-1" / "index.db")]
    assert sum(shard["records"] for shard in document["shards"]) == 50

    log = tmp_path / "pump" / "shard-0" / "value" / "000000.vlog"
    log.write_bytes(log.read_bytes()[:30] + b"x" + log.read_bytes()[31:])
    done = binlogd(*checks, "--repair")
    assert done.returncode == 1
    assert "record " in done.stdout
    assert "000000.vlog at offset 0" in done.stdout
    assert "name a place for a copy by --copy-to" in done.stdout
    done = binlogd(*checks, "--repair", "--copy-to", tmp_path / "copies")
    assert done.returncode == 0
    assert (tmp_path / "copies" / "shard-0" / "000000.vlog").exists()


def test_wrong_words_are_the_configurations_fault(tmp_path: Path) -> None:
    done = binlogd("check", "--data-dir", tmp_path)
    assert (done.returncode, "no data of a Pump" in done.stderr) == (2, True)
    done = binlogd("check", "--data-dir", tmp_path, "--copy-to", tmp_path)
    assert (done.returncode, "--copy-to: not without --repair" in done.stderr) == (2, True)


def test_the_pumps_of_a_cluster_are_adopted(tmp_path: Path) -> None:
    golden = ARTEFACTS / "pump_value_ddl.tar.gz"
    with tarfile.open(golden) as archive:
        archive.extractall(tmp_path, filter="data")
    words = ("adopt", tmp_path / "pump0", tmp_path / "pump1", "--data-dir", tmp_path / "new")
    done = binlogd(*words)
    assert done.returncode == 0
    assert "2056 binlogs of 2 Pumps, written into 4 shards" in done.stdout
    assert binlogd("check", "--data-dir", tmp_path / "new").returncode == 0
    done = binlogd(*words)
    assert done.returncode == 2
    assert "adopt into a data directory that has no Pump's data yet" in done.stderr
