"""What a pipeline counts: asked over HTTP while it runs, and held against what it wrote."""

from __future__ import annotations

import http.client
import re
import shutil
import socket
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from binlogd.errors import ConfigError
from binlogd.snapshot.spec import TypeOptions
from binlogd.spark.counts import RowCounts, total
from binlogd.spark.lake.manifest import LakeBatch, LakeTable, PipelineStopped
from binlogd.spark.lake.merging import Merged, Took, accounted, check_rows
from binlogd.spark.metrics import PipelineFigures, served
from binlogd.spark.request import ReadRequest, request
from binlogd.tso import NO_TS, Tso
from tests.support.logged import Logged, read
from tests.workload.generator import Options


@pytest.fixture
def logged(tmp_path: Path) -> Logged:
    return Logged.write(tmp_path, Options(seed=4, transactions=20))


@pytest.fixture
def asked(logged: Logged) -> ReadRequest:
    return request(logged.options(form="changes"))


def value(text: bytes, name: str) -> float | None:
    found = re.search(rf"^binlogd_pipeline_{re.escape(name)} (\S+)$", text.decode(), re.MULTILINE)
    return float(found[1]) if found else None


def test_the_numbers_are_asked_over_http_while_a_pipeline_runs(asked: ReadRequest) -> None:
    with served("127.0.0.1:0", PipelineFigures(asked)) as address:
        for path, status in (("/metrics", 200), ("/", 404)):
            connection = http.client.HTTPConnection(*address, timeout=30)
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == status
            content = answer.read()
            connection.close()
            if status == 200:
                assert value(content, "batches") == 0
                assert b"process_cpu_seconds_total" in content
        with pytest.raises(ConfigError, match=r"--metrics-addr 127\.0\.0\.1:\d+: Address already"):
            served(f"127.0.0.1:{address[1]}", PipelineFigures(asked)).__enter__()
    with socket.socket() as probe:
        assert probe.connect_ex(address) != 0, "it ends with the pipeline"
    with pytest.raises(ConfigError, match=r'--metrics-addr: expected "host:port"'):
        served("9250", PipelineFigures(asked)).__enter__()


def test_who_hangs_up_is_no_stack(asked: ReadRequest, capfd: pytest.CaptureFixture[str]) -> None:
    """As a check does that only looks whether something listens."""
    reset = struct.pack("ii", 1, 0)
    with served("127.0.0.1:0", PipelineFigures(asked)) as address:
        with socket.create_connection(address) as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        connection = http.client.HTTPConnection(*address, timeout=30)
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 200
        connection.close()
    assert "Traceback" not in capfd.readouterr().err


def test_how_far_it_is_behind_is_what_the_source_has_more(
    logged: Logged, asked: ReadRequest
) -> None:
    every = read(logged.options(form="binlog"))["commit_ts"].to_pylist()
    middle, end = Tso(every[len(every) // 2]), Tso(every[-1])
    before = PipelineFigures(asked)
    assert value(before.text(), "behind_transactions") == len(every)
    assert value(before.text(), "behind_seconds") is None, "before everything is no time"
    half = PipelineFigures(asked)
    half.done(middle, RowCounts(), 0)
    text = half.text()
    assert value(text, "behind_transactions") == len(every) - len(every) // 2 - 1
    assert value(text, "behind_seconds") == ((end >> 18) - (middle >> 18)) / 1000
    half.done(end, RowCounts(), 0)
    assert value(half.text(), "behind_transactions") != 0, "the source is not asked each time"
    at_end = PipelineFigures(asked)
    at_end.done(end, RowCounts(), 0)
    assert value(at_end.text(), "behind_seconds") == 0
    assert value(at_end.text(), "commit_ts") == end >> 18


def test_a_source_that_does_not_answer_is_told_by_no_number(
    logged: Logged, asked: ReadRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(logged.data_dir)
    text = PipelineFigures(asked).text()
    assert value(text, "behind_seconds") is value(text, "behind_transactions") is None
    assert value(text, "batches") == 0
    assert "backlog_not_known" in capsys.readouterr().out


def test_a_batch_that_fails_is_counted_as_that(asked: ReadRequest) -> None:
    figures = PipelineFigures(replace(asked, path="binlogd://127.0.0.1:1"))

    def fail() -> None:
        with figures.batch(NO_TS), figures.phase("read"):
            raise PipelineStopped("no")

    with pytest.raises(PipelineStopped):
        fail()
    assert value(figures.text(), "failures") == 1
    assert value(figures.text(), 'batch_seconds_count{phase="read"}') is None


# --- counts -------------------------------------------------------------------------------------


def merged(table_id: int, put: int, gone: int) -> Merged:
    return Merged(LakeTable(table_id, f"table-{table_id}", 1), Took(4, 3, put, gone))


def test_a_key_that_was_not_written_or_once_too_often_ends_the_batch() -> None:
    plan: Any = SimpleNamespace(label="shop.orders")
    batch = LakeBatch(9, {}, {1: plan}, b"", TypeOptions())
    read = {1: RowCounts(2, 1, 1, 50)}
    assert accounted(batch, read, [merged(1, 2, 1)]) == {1: RowCounts(2, 1, 1, 50, 2, 1)}
    for wrong in ([merged(1, 2, 0)], [merged(1, 3, 1)]):
        with pytest.raises(PipelineStopped, match=r"3 keys changed up to commit_ts 9, and \d were"):
            accounted(batch, read, wrong)
    with pytest.raises(PipelineStopped, match=r"shop.orders: 4 changes were read .*, and 0 were"):
        accounted(batch, read, [])
    with pytest.raises(PipelineStopped, match=r"shop.orders: 0 changes were read .*, and 4 were"):
        accounted(batch, {}, [merged(1, 2, 1)])


def test_a_table_neither_loses_nor_gains_more_rows_than_a_batch_says() -> None:
    for after in (8, 10, 13):
        check_rows("shop.orders", 10, after, put=3, gone=2)
    check_rows("shop.orders", None, 1000, put=3, gone=2)  # of a binlogd that did not count
    for after in (7, 14):
        with pytest.raises(PipelineStopped, match=f"shop.orders: had 10 rows and has {after}"):
            check_rows("shop.orders", 10, after, put=3, gone=2)


def test_counts_add_up() -> None:
    assert total([]) == RowCounts()
    assert total([RowCounts(1, 2, 3, 4, 5, 6)] * 2) == RowCounts(2, 4, 6, 8, 10, 12)
