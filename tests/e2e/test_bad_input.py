"""Bad input and a bad world: each a clear error, nothing acknowledged lost, nothing skipped."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

import pytest

from binlogd.client.pump_client import PumpClient
from binlogd.errors import BinlogdError, Refused
from binlogd.tso import LOGICAL_BITS, Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.support.appliance import Appliance, environment, into_mariadb, run
from tests.support.mariadb import MariaDb
from tests.support.ports import free_port
from tests.support.recordings_reader import RECORDINGS, compare, connect, history, info
from tests.workload.recording import feed_recording

RECORDING = RECORDINGS / "few"
LEFT_OUT = ("keys_tidb", "keys_wrong")
AT = "--upstream", "mysql://h", "--downstream"
IGNORED = f'ignore-schemas = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql,{",".join(LEFT_OUT)}"'


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    """Into files, with the schema history of a recording."""
    machine = Appliance(tmp_path, history=history(RECORDING))
    yield machine
    machine.close()


@pytest.fixture
def replica(tmp_path: Path, mariadb: MariaDb) -> Iterator[Appliance]:
    """The same into MariaDB, with a relay log."""
    machine = Appliance(
        tmp_path, history=history(RECORDING), syncer=into_mariadb(mariadb, extra=IGNORED)
    )
    yield machine
    machine.close()


def write(appliance: Appliance, *payloads: bytes, cluster_id: int = 7) -> BinlogdError | None:
    """Writes one after the other; the first refusal."""

    async def all_of_them() -> BinlogdError | None:
        client = PumpClient(*appliance.target, cluster_id=cluster_id)
        try:
            for payload in payloads:
                await client.write(payload)
        except Refused as error:
            return error
        finally:
            client.close()
        return None

    return asyncio.run(all_of_them())


def transaction(start: int, prewrite_value: bytes) -> tuple[bytes, bytes]:
    start_ts, commit_ts = Tso(start), Tso(start + 1)
    return (
        prewrite_binlog(start_ts, prewrite_key=b"k", prewrite_value=prewrite_value),
        commit_binlog(start_ts, commit_ts),
    )


# --- the command ------------------------------------------------------------------------


def test_an_unknown_key_ends_with_code_2_and_the_nearest_key(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[pump]\nshard = 2\n")
    done = run(tmp_path, "serve", "--config", "c.toml")
    assert done.returncode == 2
    assert "did you mean pump.shards?" in done.stderr


def test_a_missing_file_ends_with_code_2(tmp_path: Path) -> None:
    done = run(tmp_path, "serve", "--config", "nowhere.toml")
    assert done.returncode == 2
    assert "nowhere.toml: cannot be read" in done.stderr


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (("skip", "5", "--reason", "\udcff"), {}, "\\udcff: is not UTF-8 text"),
        (("dump", "\udcff"), {}, "\\udcff: is not UTF-8 text"),
        (("check-config",), {"BINLOGD_LOG_LEVEL": "\udcff"}, "BINLOGD_LOG_LEVEL: is not UTF-8"),
        (("verify", *AT, "mysql://[::1"), {}, "--downstream: expected mysql://"),
        (("verify", *AT, "mysql://h:1/shop"), {}, "behind it: shop would be passed over"),
        (("verify", *AT, "mysql://h:1?ssl=1"), {}, "behind it: ?ssl=1 would be passed"),
        (("exports", "s3://me:secret@[x"), {}, "s3://...: Invalid IPv6 URL"),
        (("exports", "--via", "http://[x"), {}, "http://...: Invalid IPv6 URL"),
        (("status", "--addr", "a b:5"), {}, 'addr: "a b" is neither an address nor the name'),
    ],
)
def test_words_that_nobody_can_be_told_end_with_code_2(
    words: Sequence[str], variables: Mapping[str, str], said: str
) -> None:
    command = [sys.executable, "-m", "binlogd", *words]
    environ = {**environment(), **variables}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr


def test_status_of_nobody_ends_with_code_1(tmp_path: Path) -> None:
    done = run(tmp_path, "status", "--addr", "127.0.0.1:1", "--json")
    assert done.returncode == 1
    assert "no binlogd answers at http://127.0.0.1:1/status" in done.stderr


def test_another_server_at_the_address_is_no_healthy_binlogd(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:  # 501, in HTML
        answering = threading.Thread(target=other.handle_request)
        answering.start()
        done = run(tmp_path, "health", "--addr", f"127.0.0.1:{other.server_port}")
        answering.join()
    assert done.returncode == 1
    assert "no binlogd answers at /readyz: an answer 501" in done.stdout
    assert "<" not in done.stdout


def test_status_tells_state_watermark_checkpoint_and_lag(appliance: Appliance) -> None:
    appliance.start()
    done = run(appliance.directory, "status", "--json", "--config", str(appliance.config_file))
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert document["state"] == "online"
    assert document["max_commit_ts"] == 0
    assert document["checkpoint"] == {"commit_ts": 0, "consistent": False, "error": ""}
    assert document["lag_s"] == 0


# --- the data directory and the port ----------------------------------------------------


def test_a_port_in_use_is_named(appliance: Appliance) -> None:
    with socket.socket() as other:
        other.bind(appliance.target)
        other.listen()
        appliance.start(is_ready=False)
        assert appliance.end() == 2
    assert f"127.0.0.1:{appliance.port}" in appliance.log()
    assert not appliance.data_dir.exists(), "nothing is begun before"


def test_a_data_directory_has_one_process(appliance: Appliance, tmp_path: Path) -> None:
    appliance.start()
    done = run(tmp_path, "serve", "--data-dir", str(appliance.data_dir), "--addr", "127.0.0.1:0")
    assert done.returncode == 2
    assert str(appliance.data_dir) in done.stderr


def test_a_node_keeps_the_name_of_its_first_start(appliance: Appliance) -> None:
    appliance.start()
    name = appliance.status()["node_id"]
    assert appliance.stop() == 0
    appliance.config_file.write_text(
        appliance.config_file.read_text().replace(str(appliance.port), str(free_port()))
    )
    appliance.port = int(appliance.config_file.read_text().split("127.0.0.1:")[1].split('"')[0])
    appliance.start()
    assert appliance.status()["node_id"] == name


def test_a_data_directory_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(tmp_path, "serve", "--data-dir", str(tmp_path / "file" / "data"))
    assert done.returncode == 2
    assert "name a directory that user" in done.stderr


def test_a_data_directory_that_is_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone")
    done = run(tmp_path, "serve", "--data-dir", "link/data")
    assert done.returncode == 2
    assert "data-dir link/data: link is a link to gone, where nothing is" in done.stderr


def test_another_shard_count_is_refused(appliance: Appliance) -> None:
    appliance.start()
    assert appliance.stop() == 0
    text = appliance.config_file.read_text()
    appliance.config_file.write_text(text.replace("[pump]", "[pump]\nshards = 8"))
    appliance.start(is_ready=False)
    assert appliance.end() == 2
    assert "set pump.shards back" in appliance.log()


# --- binlogs ----------------------------------------------------------------------------


def test_another_cluster_is_refused_and_the_first_is_kept(appliance: Appliance) -> None:
    appliance.start()
    assert write(appliance, *transaction(10, b""), cluster_id=7) is None
    refused = write(appliance, *transaction(20, b""), cluster_id=8)
    assert "cluster ID are mismatch, 8 vs 7" in str(refused)
    appliance.kill()
    appliance.start()
    assert write(appliance, *transaction(20, b""), cluster_id=8) is not None
    assert appliance.status()["cluster_id"] == 7


def test_a_payload_that_does_not_decode_is_refused(appliance: Appliance) -> None:
    appliance.start()
    assert "unexpected EOF" in str(write(appliance, b"\x08"))
    assert write(appliance, *transaction(10, b"")) is None


def test_an_unknown_table_stops_the_drainer_and_not_the_pump(appliance: Appliance) -> None:
    appliance.start()
    row = Mutation(table_id=2002, inserted=[b"\x08\x02"], updated=[], deleted=[], sequence=b"\0")
    rows = encode_mutations(1, [row])
    assert write(appliance, *transaction(10, rows)) is None
    stuck = appliance.wait(lambda status: status["drainer"]["state"] == "stuck")
    error = stuck["drainer"]["error"]
    assert "2002" in error
    assert "add 11 to syncer.ignore-txn-commit-ts" in error
    assert write(appliance, *transaction(20, b"")) is None
    assert appliance.status()["newest_commit_ts"] == 21


# --- the downstream ---------------------------------------------------------------------


def test_a_downstream_that_is_down_leaves_the_pump_receiving(
    replica: Appliance, mariadb: MariaDb
) -> None:
    mariadb.kill()
    try:
        replica.start()
        asyncio.run(feed_recording(RECORDING, replica.target))
        status = replica.wait(lambda now: now["drainer"]["state"] == "retrying")
        assert str(mariadb.port) in status["drainer"]["error"]
        assert status["lag_s"] is None, "nothing was pulled yet that could be late"
    finally:
        mariadb.start()
    expect_recorded(replica, mariadb)


def test_a_refused_statement_stops_and_is_passed_over_on_request(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    appliance = Appliance(
        tmp_path,
        history=history(RECORDING),
        syncer=into_mariadb(mariadb, extra=IGNORED.replace(",keys_tidb", "")),
    )
    try:
        appliance.start()
        asyncio.run(feed_recording(RECORDING, appliance.target))
        skipped = 0
        while skipped < 20:  # until nothing is refused any more
            now = appliance.wait(
                lambda status: status["drainer"]["state"] == "stuck" or status["lag_s"] == 0
            )
            if now["drainer"]["state"] != "stuck":
                break
            error = now["drainer"]["error"]
            assert "syncer.ignore-txn-commit-ts" in error
            commit_ts = error.split("add ")[-1].split(" ")[0]
            assert appliance.stop() == 0
            text = appliance.config_file.read_text()
            key, listed = "ignore-txn-commit-ts = [", f"{commit_ts},"
            text = (
                text.replace(key, key + listed)
                if key in text
                else text.replace("[syncer]\n", f"[syncer]\n{key}{listed}]\n")
            )
            appliance.config_file.write_text(text)
            appliance.start()
            skipped += 1
        assert skipped > 0
        connection = connect(mariadb.host, mariadb.port, mariadb.user, mariadb.password)
        assert compare(RECORDING, connection, LEFT_OUT) == []
    finally:
        appliance.close()


# --- the upstream -----------------------------------------------------------------------


def test_when_the_upstream_is_gone_the_relay_log_makes_the_replica_consistent(
    replica: Appliance, mariadb: MariaDb
) -> None:
    replica.start()
    asyncio.run(feed_recording(RECORDING, replica.target))
    replica.wait_until_applied(0)
    replica.kill()
    (replica.directory / "ddl_history.json").unlink()
    shutil.rmtree(replica.data_dir / "pump")
    assert not is_consistent(mariadb)
    soon = replica.config_file.read_text().replace("log-dir", "restore-after = 0.2\nlog-dir")
    replica.config_file.write_text(soon)

    replica.start()

    replica.wait(lambda _: is_consistent(mariadb))
    connection = connect(mariadb.host, mariadb.port, mariadb.user, mariadb.password)
    assert compare(RECORDING, connection, LEFT_OUT) == []
    assert replica.status()["state"] == "online"
    start = replica.status()["checkpoint"]["commit_ts"] + (1_000 << LOGICAL_BITS)
    assert (
        write(replica, *transaction(start, b""), cluster_id=info(RECORDING)["cluster_id"]) is None
    )
    assert replica.stop() == 0


def test_an_upstream_that_comes_up_late_is_waited_for_and_nothing_is_restored(
    replica: Appliance, mariadb: MariaDb
) -> None:
    replica.start()
    asyncio.run(feed_recording(RECORDING, replica.target))
    replica.wait_until_applied(0)
    replica.kill()
    assert not is_consistent(mariadb)
    asked: list[str] = []

    class LateTidb(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if len(asked) > 2 else 503)
            self.end_headers()
            if len(asked) > 2:
                self.wfile.write(history(RECORDING))

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), LateTidb) as tidb:
        threading.Thread(target=tidb.serve_forever).start()
        try:
            url = f"http://127.0.0.1:{tidb.server_port}"
            text = replica.config_file.read_text()
            replica.config_file.write_text(text.replace("ddl_history.json", url))
            replica.start()
            replica.wait(lambda status: len(asked) > 2 and status["drainer"]["sessions"] > 0)
            expect_recorded(replica, mariadb)
            assert '"restored"' not in replica.log()
        finally:
            tidb.shutdown()


def test_a_restore_passes_over_what_an_operator_passed_over(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    syncer = into_mariadb(mariadb, extra=IGNORED.replace(",keys_tidb", ""))
    replica = Appliance(tmp_path, history=history(RECORDING), syncer=syncer)
    try:
        replica.start()
        asyncio.run(feed_recording(RECORDING, replica.target))
        stuck = replica.wait(lambda status: status["drainer"]["state"] == "stuck")["drainer"]
        skip_ts = str(stuck["failure"]["skip_ts"])
        replica.kill()
        words = ("--config", "binlogd.toml")
        refused = run(tmp_path, "restore", *words)
        assert refused.returncode == 1
        assert skip_ts in refused.stderr
        assert run(tmp_path, "skip", skip_ts, "--reason", "a test", *words).returncode == 0
        later = run(tmp_path, "restore", *words)
        assert f"commit_ts {skip_ts} " not in later.stderr
    finally:
        replica.close()


def is_consistent(server: MariaDb) -> bool:
    """The flag of the original's checkpoint table."""
    connection = connect(server.host, server.port, server.user, server.password)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clusterID, checkPoint FROM tidb_binlog.checkpoint")
        ((cluster_id, checkpoint),) = cursor.fetchall()
    assert int(cluster_id) == info(RECORDING)["cluster_id"]
    return bool(json.loads(checkpoint)["consistent"])


def expect_recorded(replica: Appliance, server: MariaDb) -> None:
    """Everything is applied, and equal."""
    replica.wait_until_applied(0)
    assert replica.stop() == 0
    connection = connect(server.host, server.port, server.user, server.password)
    assert compare(RECORDING, connection, LEFT_OUT) == []
