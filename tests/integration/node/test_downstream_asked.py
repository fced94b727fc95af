"""`binlogd check-config --ask` says what the others answer, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from binlogd.commands.options import load_setup
from binlogd.drainer.sqlite.sink import SqliteSink
from binlogd.errors import ConfigError, DownstreamUnavailable
from binlogd.host.disk import PosixDisk
from binlogd.node.reach import reach
from tests.support.appliance import Appliance, into_mariadb, run
from tests.support.certificates import Authority
from tests.support.mariadb import MariaDb


@pytest.mark.parametrize("privilege", ["", "PROCESS"])
def test_a_user_without_process_is_named_before_a_start(
    privilege: str, each_server: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = [f"GRANT {privilege} ON *.* TO poor@'%'"] if privilege else []
    each_server.execute("DROP USER IF EXISTS poor@'%'", "CREATE USER poor@'%'", *granted)
    monkeypatch.setattr(each_server, "user", "poor")
    file = tmp_path / "binlogd.toml"
    file.write_text(f'data-dir = "{tmp_path / "data"}"\n' + into_mariadb(each_server))
    asked = run(tmp_path, "check-config", "-c", str(file), "--ask")
    assert asked.returncode == 0, asked.stderr
    said = "the downstream's user poor lacks the PROCESS privilege"
    assert (said in asked.stdout) == (not privilege)


def test_a_downstream_that_does_not_answer_is_said(tmp_path: Path) -> None:
    file = tmp_path / "binlogd.toml"
    file.write_text(
        f'data-dir = "{tmp_path / "data"}"\n'
        '[syncer]\ndb-type = "mysql"\n[syncer.to]\nhost = "127.0.0.1"\nport = 1\nuser = "u"\n'
        "kafka-version = '2'\n"
    )
    asked = run(tmp_path, "check-config", "-c", str(file), "--ask", "--json")
    assert asked.returncode == 1, asked.stderr
    found = json.loads(asked.stdout)
    warning = found["downstream_warning"]
    assert warning.startswith("the downstream cannot be used:")
    in_words = run(tmp_path, "check-config", "-c", str(file), "--ask").stdout
    history, downstream = found["warnings"]
    assert (history[:26], downstream) == ("there is no schema history", warning)
    ((key, reason),) = found["without_effect"].items()
    for line in (f"warning: {history}", f"{key}: without effect: {reason}"):
        assert line in in_words


@pytest.mark.parametrize("db_type", ["file", "sqlite"])
def test_a_place_that_cannot_be_written_is_said_before_anything_comes(
    tmp_path: Path, db_type: str
) -> None:
    (tmp_path / "taken").write_text("a file")
    syncer = f'[syncer]\ndb-type = "{db_type}"\n[syncer.to]\ndir = "{tmp_path / "taken" / "out"}"\n'
    with closing(Appliance(tmp_path, history=b"[]", syncer=syncer)) as appliance:
        asked = run(tmp_path, "check-config", "-c", str(appliance.config_file), "--ask")
        assert asked.returncode == 1, asked.stderr
        said = f"syncer.to.dir {tmp_path / 'taken' / 'out'}: {tmp_path / 'taken'} is a file"
        assert f"warning: the downstream cannot be used: {said}" in asked.stdout
        appliance.start()
        appliance.wait(lambda status: said in status["drainer"]["error"])
        (tmp_path / "taken").unlink()
        appliance.wait(lambda status: not status["drainer"]["error"])


async def test_a_file_that_is_no_replica_is_said_before_anything_comes(tmp_path: Path) -> None:
    file, replica = tmp_path / "binlogd.toml", tmp_path / "replica.db"
    file.write_text(f'[syncer]\ndb-type = "sqlite"\n[syncer.to]\ndir = "{tmp_path}"\n')
    with closing(PosixDisk(threads=1)) as disk:
        sink = SqliteSink(replica, disk)
        await sink.open()
        await sink.close()
    before = replica.read_bytes()
    assert await reach(load_setup(file)) == ""
    assert replica.read_bytes() == before
    assert set(os.listdir(tmp_path)) == {file.name, replica.name}
    replica.write_bytes(b"somebody's notes" * 100)
    with pytest.raises(ConfigError, match=f"{replica}: cannot be opened as a replica"):
        await reach(load_setup(file))


@pytest.mark.parametrize("place", ["sqlite", "file"])
async def test_a_name_that_no_file_system_has_is_said(tmp_path: Path, place: str) -> None:
    file = tmp_path / "binlogd.toml"
    file.write_text(f'[syncer]\ndb-type = "{place}"\n[syncer.to]\ndir = "{"x" * 300}"\n')
    with pytest.raises(ConfigError, match=r"syncer\.to\.dir /.*: a name has 255 bytes at most"):
        await reach(load_setup(file))


def test_what_speaks_no_kafka_is_said_without_a_stack(tmp_path: Path) -> None:
    file = tmp_path / "binlogd.toml"
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"\xff" * 64)
                connection.recv(1 << 10)

        answering = threading.Thread(target=answer)
        answering.start()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        to = f'[syncer]\ndb-type = "kafka"\n[syncer.to]\nkafka-addrs = "{address}"\n'
        file.write_text(f'data-dir = "data"\n{to}')
        asked = run(tmp_path, "check-config", "-c", str(file), "--ask")
        answering.join()
    assert asked.returncode == 1
    assert "the downstream cannot be used: Kafka at" in asked.stdout
    assert "Traceback" not in asked.stderr


def test_a_data_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    file = tmp_path / "binlogd.toml"
    file.write_text('data-dir = "data"\n')
    asked = run(tmp_path, "check-config", "-c", str(file), "--ask")
    assert asked.returncode == 2
    assert f"data is a file; name a directory that user {os.getuid()} may write" in asked.stderr


UNREACHABLE = {
    "mysql, a closed port": ('host = "127.0.0.1"\nport = 1', "check host and port"),
    "mysql, an unknown host": ('host = "no.invalid"', "check host and port"),
    "mysql, a certificate of nobody": (
        'host = "127.0.0.1"\nport = {port}\n[syncer.to.security]\nssl-ca = "{ca}"',
        "syncer.to.security",
    ),
    "mysql, a closed port of the checkpoint": (
        'host = "127.0.0.1"\nport = {port}\nuser = "root"\n'
        '[syncer.to.checkpoint]\nhost = "127.0.0.1"\nport = 1',
        r"syncer\.to\.checkpoint\.host",
    ),
    "kafka, a closed port": ('kafka-addrs = "127.0.0.1:1"', "check syncer.to.kafka-addrs"),
    "kafka, an unknown host": ('kafka-addrs = "no.invalid"', "check syncer.to.kafka-addrs"),
}


@pytest.mark.parametrize("name", UNREACHABLE)
async def test_what_is_to_be_checked_is_named(name: str, mariadb: MariaDb, tmp_path: Path) -> None:
    table, named = UNREACHABLE[name]
    file, ca = tmp_path / "binlogd.toml", Authority(tmp_path).files().ca
    table = table.format(port=mariadb.port, ca=ca)
    file.write_text(f'[syncer]\ndb-type = "{name.partition(",")[0]}"\n[syncer.to]\n{table}\n')
    with pytest.raises((ConfigError, DownstreamUnavailable), match=named):
        await reach(load_setup(file))


def test_a_first_connection_that_fails_is_a_problem_before_anything_is_written(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    syncer = into_mariadb(mariadb).replace(f'user = "{mariadb.user}"', 'user = "late"')
    with closing(Appliance(tmp_path, history=b"[]", syncer=syncer)) as appliance:
        appliance.start()
        seen = appliance.wait(lambda status: status["drainer"]["state"] == "retrying")
        assert seen["cluster_id"] is None, "nothing has come"
        assert "check user and password" in seen["drainer"]["failure"]["todo"]
        mariadb.execute("CREATE USER late@'%'", "GRANT ALL ON *.* TO late@'%'")
        appliance.wait(lambda status: status["drainer"]["failure"] is None)


def test_a_question_makes_no_cluster_id_here_nor_at_the_node_that_stands_in_for_pd(
    tmp_path: Path,
) -> None:
    (tmp_path / "pd").mkdir()
    with closing(Appliance(tmp_path / "pd", history=b"[]")) as stands_in:
        stands_in.configure('[upstream]\nschema-history = "ddl_history.json"\n')
        stands_in.start()
        file = tmp_path / "binlogd.toml"
        file.write_text(
            f'data-dir = "{tmp_path / "data"}"\n[upstream]\nkind = "pd"\n'
            f'pd-urls = "http://127.0.0.1:{stands_in.port}"\n'
        )
        for _ in range(2):
            asked = run(tmp_path, "check-config", "-c", str(file), "--ask")
            assert asked.returncode == 0, asked.stderr
        assert stands_in.status()["cluster_id"] is None
    assert not (tmp_path / "data").exists()
