"""`binlogd export` beside a running binlogd: the log of real shards, the command people type."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from binlogd.settings.quantities import wall_clock
from binlogd.tso import Tso
from tests.support import snapshot_reader
from tests.support.appliance import Appliance, run
from tests.support.recordings_reader import expected, history
from tests.support.s3 import s3_server
from tests.workload.recording import feed_recording

KEYS = Path(__file__).parents[1] / "recordings" / "keys"

PATIENCE_S = 300.0
"""A JVM that others leave little of the machine takes its time to end, too."""


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    machine = Appliance(tmp_path, history=history(KEYS))
    yield machine
    machine.close()


def test_a_running_binlogd_makes_a_whole_snapshot_when_it_is_asked(
    appliance: Appliance, tmp_path: Path
) -> None:
    with appliance.config_file.open("a") as config:
        config.write('\n[export]\ndir = "snapshots"\n')
    appliance.start()
    asyncio.run(feed_recording(KEYS, appliance.target))
    newest = appliance.wait_until_applied(0)["newest_commit_ts"]
    out = tmp_path / "snapshots"
    words = ("export", "--config", str(appliance.config_file), "--out", str(out), "--json")

    planned = run(tmp_path, *words, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert (plan["as_of"], out.exists()) == (newest, False)
    assert plan["changes"] > 500

    own = ("--config", str(appliance.config_file))  # whose node's token it may read
    asked = ("export", "--via", f"http://127.0.0.1:{appliance.port}", *own, "--json")
    done = run(tmp_path, *asked, timeout_s=500)

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["state"], result["commit_ts"]) == ("done", newest)
    assert result["path"] == str(out / f"snapshot-{newest}")
    snapshot = out / f"snapshot-{newest}"
    assert (out / "LATEST").resolve() == snapshot
    manifest = snapshot_reader.whole_manifest(snapshot)
    assert manifest.commit_ts == manifest.resolved_ts == newest
    assert manifest.time == wall_clock(Tso(newest))
    assert sum(table.rows for table in manifest.tables) == result["rows"] > 0
    found = snapshot_reader.tables(snapshot)
    compared = 0
    for table in expected(KEYS):
        if table.kind == "table" and table.rows is not None and table.db != "keys_wrong":
            entry = found[table.label]
            wanted = snapshot_reader.expected_rows(table, entry)
            assert snapshot_reader.rows(snapshot, entry) == wanted, table.label
            compared += 1
    assert compared > 50

    checked = run(tmp_path, "export", "--check", str(snapshot))
    assert checked.returncode == 0, checked.stderr
    assert f"{len(found)} of {len(found)} tables are whole" in checked.stdout
    listed = json.loads(run(tmp_path, "exports", str(out), "--json").stdout)
    assert [each["commit_ts"] for each in listed["exports"]] == [newest]
    assert len(plan["tables"]) == len(found)

    appliance.signal(signal.SIGTERM)
    assert appliance.end(PATIENCE_S) == 0  # and with it the Spark that it kept warm
    far = str(newest + (3600_000 << 18))
    alone = run(tmp_path, *words, "--as-of", far, "--wait", "1s")
    assert alone.returncode == 1
    assert "no binlogd runs that could come to" in alone.stderr


@pytest.mark.soak
def test_what_changed_is_exported_beside_a_running_binlogd(
    appliance: Appliance, tmp_path: Path
) -> None:
    appliance.start()
    asyncio.run(feed_recording(KEYS, appliance.target))
    newest = appliance.wait_until_applied(0)["newest_commit_ts"]
    out = tmp_path / "snapshots"
    changes = ("export-changes", "--config", str(appliance.config_file), "--out", str(out))
    begin = newest - (60_000 << 18)
    done = run(tmp_path, *changes, "--from", str(begin), "--wait", "1s", timeout_s=500)
    assert done.returncode == 0, done.stderr
    assert f"changes-{begin}-{newest}: " in done.stdout
    wrong = run(tmp_path, *changes, "--from", "latest")
    assert wrong.returncode == 2
    assert "a TSO, a time or the directory of a snapshot is wanted" in wrong.stderr

    words = ("export", "--config", str(appliance.config_file), "--out", str(out), "--json")
    for is_new in (True, False):
        done = run(tmp_path, *words, timeout_s=500)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["is_new"] is is_new


@pytest.mark.soak
def test_an_export_goes_to_an_object_store_by_the_command_alone(
    appliance: Appliance, tmp_path: Path
) -> None:
    appliance.start()
    asyncio.run(feed_recording(KEYS, appliance.target))
    newest = appliance.wait_until_applied(0)["newest_commit_ts"]
    with s3_server() as s3:
        url = s3.url("exports")
        words = ("export", "--config", str(appliance.config_file), "--out", url, "--json")
        for is_new in (True, False):
            done = run(tmp_path, *words, timeout_s=500)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["is_new"] is is_new
        stored = json.loads(done.stdout)["stored"]
        assert "testing" not in stored
        objects = s3.objects(url)
        name = objects["LATEST"].decode().strip()
        assert stored.endswith(f"/exports/{name}")
        manifest = json.loads(objects[f"{name}/manifest.json"])
        assert manifest["commit_ts"] == newest
        for table in manifest["tables"]:
            for file in table["files"]:
                held = objects[f"{name}/{file['name']}"]
                assert hashlib.sha256(held).hexdigest() == file["sha256"]
        listed = json.loads(run(tmp_path, "exports", url, "--json").stdout)
        assert [each["commit_ts"] for each in listed["exports"]] == [newest]
        gone = url.replace("bucket-", "nowhere-")
        refused = run(tmp_path, *words[:4], gone, timeout_s=500)
        assert refused.returncode == 2
        assert "there is no bucket nowhere-" in " ".join(refused.stderr.split())
