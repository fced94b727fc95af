"""What the data source reads out of a log, held to the workload's model; no Spark is needed."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from binlogd.errors import ConfigError, NotRunning, Refused, SchemaChanged
from binlogd.spark import inputs
from binlogd.spark.inputs import jobs_with, open_input
from binlogd.spark.request import request
from binlogd.spark.source import BinlogdSource
from binlogd.tso import Tso, compose
from tests.support.logged import Logged, expected, held, read, renamed
from tests.support.streams import folded, key_columns
from tests.workload.generator import Options


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    options = Options(seed=20, transactions=400, ddl_every=30)
    return Logged.write(tmp_path_factory.mktemp("log"), options)


def test_the_net_changes_of_a_whole_log_are_what_the_tables_hold(logged: Logged) -> None:
    names = sorted(logged.workload.model.tables().keys() - renamed(logged))
    assert len(names) > 8
    for name in names:
        net = read(logged.options(table=".".join(name), net="true"))
        assert held(logged.workload, name, net) == expected(logged.workload, name), name


@pytest.mark.parametrize("version", ["3.5.6", "4.0.1"])
def test_an_older_spark_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    with pytest.raises(ConfigError, match=rf"this is Spark {version}; binlogd needs 4\.1 or newer"):
        BinlogdSource({"path": "/log", "table": "shop.orders"})


@pytest.mark.parametrize("version", ["4.1.0", "4.10.0", "4.2.0.dev3", "5.0.0"])
def test_a_newer_spark_is_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    assert BinlogdSource({"table": "shop.orders"}).options["table"] == "shop.orders"


def test_parts_put_together_are_the_whole(logged: Logged) -> None:
    name = "bank.accounts"
    whole = read(logged.options(table=name))
    assert whole.num_rows > 60
    assert read(logged.options(table=name, partitionTransactions="50")).equals(whole)
    moments = logged.workload.model.moments()
    middle = str(moments[len(moments) // 2])
    first = read(logged.options(table=name, to=middle))
    second = read(logged.options(table=name, **{"from": middle}))
    marks = ["_commit_ts", "_seq", "_op"]
    joined = pa.concat_tables([first.select(marks), second.select(marks)])
    assert joined.combine_chunks().equals(whole.select(marks).combine_chunks())


def test_a_net_read_is_the_last_of_each_key_however_many_parts(logged: Logged) -> None:
    options = logged.options(table="shop.customers", net="true")
    one, three = read(options), read({**options, "partitions": "3"})
    assert sorted(map(repr, one.to_pylist())) == sorted(map(repr, three.to_pylist()))
    every = Counter(read(logged.options(table="shop.customers"))["_op"].to_pylist())
    assert one.num_rows < every.total()


def test_an_update_of_the_primary_key_is_told_as_a_delete_and_an_insert(logged: Logged) -> None:
    """Of a table whose row handle is another one: TiDB tells a single update."""
    table = logged.workload.model.tables()["bank", "limits"]
    assert not table.is_common_handle
    options = logged.options(table="bank.limits")
    every = read(options)
    places = list(zip(every["_commit_ts"].to_pylist(), every["_seq"].to_pylist(), strict=True))
    assert places == sorted(set(places))
    moved = sum(
        old["_op"] == "delete" and new["_op"] == "insert" and old["_seq"] + 1 == new["_seq"]
        for old, new in pairwise(every.to_pylist())
    )
    assert moved > 3
    assert folded(table, [every]) == expected(logged.workload, ("bank", "limits"))
    keys = key_columns(table)
    for parts in ("1", "3"):
        net = read({**options, "net": "true", "partitions": parts})
        told = Counter(tuple(row[name] for name in keys) for row in net.to_pylist())
        assert set(told.values()) == {1}, "each key once"


def test_raw_rows_are_json_with_names_and_places(logged: Logged) -> None:
    rows = read(logged.options()).to_pylist()
    places = [(row["commit_ts"], row["seq"]) for row in rows]
    assert places == sorted(places)
    assert {row["op"] for row in rows} == {"insert", "update", "delete", "ddl"}
    one = next(row for row in rows if row["op"] == "update")
    assert one["row"].startswith("{")
    assert one["before"].startswith("{")
    assert one["query"] is None
    some = read(logged.options(tables="shop.*, bank.cards"))
    assert {row["database"] for row in some.to_pylist() if row["op"] != "ddl"} == {"shop", "bank"}


def test_whole_binlogs_are_as_many_as_transactions(logged: Logged) -> None:
    found = read(logged.options(form="binlog"))
    assert found.num_rows == len(set(found["start_ts"].to_pylist()))
    assert found["commit_ts"].to_pylist() == sorted(found["commit_ts"].to_pylist())


def test_a_moment_that_is_not_decided_is_refused(logged: Logged) -> None:
    with pytest.raises(Refused, match="up to where every transaction is decided"):
        read(logged.options(to=str(1 << 62)))


def test_a_rename_ends_a_read_unless_it_is_to_follow(logged: Logged) -> None:
    database, table = sorted(renamed(logged))[0]
    with pytest.raises(SchemaChanged, match='renames to "follow"'):
        read(logged.options(table=f"{database}.{table}"))
    assert read(logged.options(table=f"{database}.{table}", renames="follow")).num_rows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"tabel": "a.b"}, "did you mean table"),
        ({"table": "orders"}, "name one table as database.table"),
        ({"table": "shop.nothing"}, "tells no such table"),
        ({"table": "bank.accounts", "columns": "id,nope"}, "no stored column nope"),
        ({"net": "true"}, "option net: goes with `table` only"),
        ({"schemaChange": "ignore"}, "option schemaChange: goes with `table` only"),
        ({"renames": "follow", "form": "changes"}, "option renames: goes with `table` only"),
        ({"table": "bank.accounts", "tables": "shop.*"}, "option tables: `table` names the one"),
        ({"form": "binlog", "except": "shop.*"}, "option except: a binlog has the rows of all"),
        ({"path": "binlogd://h:1", "sslCert": "c.pem"}, "option sslCa: is missing"),
        ({"from": "latest"}, "option from 'latest' is neither a TSO"),
        ({"from": "yesterday"}, "neither a TSO"),
        ({"partitions": "0"}, "no number above 0"),
        ({"partitions": "²"}, "no number above 0"),
        ({"partitionTransactions": "9" * 30}, "no number above 0"),
        ({"path": "/nowhere"}, "no such directory"),
        ({"path": "binlogd://nohost"}, "expected binlogd://host:port"),
    ],
)
def test_a_wrong_option_is_told_by_its_name(
    words: dict[str, Any], said: str, logged: Logged
) -> None:
    with pytest.raises(ConfigError, match=said):
        read({**logged.options(), **words})


def test_pins_are_links_that_end_with_their_application(logged: Logged) -> None:
    read(logged.options())
    (mine,) = pins(logged)
    host = mine.removeprefix(".reader-pins-").rpartition("-")[0].rpartition("-")[0]
    dead = logged.data_dir / f".reader-pins-{host}-1-0"
    dead.mkdir()
    read(logged.options())
    assert pins(logged) == {mine}
    linked = next((logged.data_dir / mine).rglob("*.vlog"))
    assert linked.stat().st_nlink == 2


def test_the_job_of_a_young_ddl_binlog_is_waited_for(logged: Logged, tmp_path: Path) -> None:
    """DROP COLUMN is in the log before its job is over, and only then in the history."""
    jobs = json.loads(logged.history.read_bytes())
    history, whole = tmp_path / "history.json", tmp_path / "whole.json"
    history.write_text(json.dumps(jobs[:-1]))
    whole.write_text(json.dumps(jobs))
    asked = request({**logged.options(), "schemaHistory": str(history), "form": "binlog"})
    source, last = open_input(asked), max(job["id"] for job in jobs)
    assert last == jobs[-1]["id"]
    old, young = Tso(jobs[0]["start_ts"]), compose(time.time_ns() // 1_000_000)
    assert len(jobs_with(source, last, old)) == len(jobs) - 1
    assert len(jobs_with(source, 0, young)) == len(jobs) - 1
    in_time = threading.Timer(0.05, whole.replace, [history])
    in_time.start()
    assert len(jobs_with(source, last, young)) == len(jobs)
    in_time.join()


def pins(logged: Logged) -> set[str]:
    return {path.name for path in logged.data_dir.glob(".reader-pins-*")}


def test_a_part_of_spark_s_own_reads_nothing(logged: Logged) -> None:
    source = BinlogdSource(logged.options())
    assert list(source.reader(source.schema()).read(InputPartition(None))) == []


def test_a_parent_that_nobody_knows_is_not_asked_for(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`docker exec`: what is above the process is in another namespace, with the id 0."""
    stat = inputs._stat
    monkeypatch.setattr(
        inputs, "_stat", lambda pid: [each if at != 1 else "0" for at, each in enumerate(stat(pid))]
    )
    other = logged.data_dir / f".reader-pins-{socket.gethostname()}-2-1-77"
    other.mkdir()
    read(logged.options())
    (mine,) = pins(logged) - {other.name}
    assert mine.rpartition("-")[0].endswith(f"-{os.getpid()}")
    assert other.exists(), "it is of a host whose name is longer"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"max_commit_ts": 1, "gc": null}'])
def test_who_is_no_pump_is_told_as_such(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs.RemotePump, "_get", lambda *_: body)
    source = open_input(request({"path": "binlogd://here:1"}))
    with pytest.raises(NotRunning, match="its status is not that of a Pump"):
        source.resolved_ts()
