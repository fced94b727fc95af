"""Slow transactions are told to a collector of OpenTelemetry, which is read by its own protocol."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from binlogd.errors import ConfigError
from binlogd.node.tracing import exporter
from tests.support import bank
from tests.support.appliance import Appliance, into_mariadb
from tests.support.mariadb import MariaDb

COUNT = 40


class Collector:
    """Takes what is sent to /v1/traces."""

    def __init__(self) -> None:
        received = self.received = list[ExportTraceServiceRequest]()

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                received.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        self.port = self._server.server_port
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self) -> list[Any]:
        return [
            span
            for request in list(self.received)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with closing(Collector()) as made:
        yield made


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: each.value for each in span.attributes}


def test_a_slow_transaction_is_one_trace_from_write_to_commit(
    tmp_path: Path, collector: Collector, mariadb: MariaDb
) -> None:
    mariadb.execute(*bank.create())
    telemetry = (
        f'[telemetry]\notlp-endpoint = "http://127.0.0.1:{collector.port}/"\nslow-transaction = 1\n'
    )
    syncer = into_mariadb(mariadb) + telemetry
    with closing(Appliance(tmp_path, history=bank.history(), syncer=syncer)) as appliance:
        appliance.start()
        asyncio.run(bank.feed(bank.transfers(COUNT), appliance.target))
        appliance.wait(lambda _: sum(each.name == "commit" for each in collector.spans()) == COUNT)
        assert appliance.stop() == 0
    (resource, *_) = collector.received[0].resource_spans
    assert {each.key: each.value.string_value for each in resource.resource.attributes}[
        "service.name"
    ] == "binlogd"
    last = bank.commit_ts_of(COUNT - 1)
    spans = collector.spans()
    (root,) = [
        each
        for each in spans
        if each.name == "transaction" and attributes(each)["binlogd.commit_ts"].int_value == last
    ]
    told = attributes(root)
    assert told["binlogd.rows"].int_value == 3
    tables = [each.string_value for each in told["binlogd.tables"].array_value.values]
    assert sorted(tables) == ["bank.account", "bank.ledger"]
    parts = [each for each in spans if each.parent_span_id == root.span_id]
    assert [each.name for each in parts] == ["wait", "merge", "relay", "lane", "commit"]
    assert all(each.start_time_unix_nano <= each.end_time_unix_nano for each in parts)
    starts = [each.start_time_unix_nano for each in parts]
    assert starts == sorted(starts)
    assert parts[0].start_time_unix_nano == root.start_time_unix_nano
    assert parts[-1].end_time_unix_nano == root.end_time_unix_nano
    assert len({each.span_id for each in spans}) == len(spans)
    traces: dict[bytes, Counter[str]] = {}
    for each in spans:
        traces.setdefault(each.trace_id, Counter())[each.name] += 1
    transaction = dict.fromkeys(("transaction", "wait", "merge", "relay", "lane", "commit"), 1)
    whole = Counter(transaction) + Counter({"write": 2, "sync": 2})
    assert list(traces.values()) == [whole] * COUNT, "no write needed a second, and each is told"
    syncs = {each.parent_span_id: each for each in spans if each.name == "sync"}
    of_last = [each for each in spans if each.trace_id == root.trace_id and each.name == "write"]
    assert {attributes(each)["binlogd.commit_ts"].int_value for each in of_last} == {0, last}
    for write in of_last:
        sync = syncs[write.span_id]
        assert write.start_time_unix_nano <= sync.start_time_unix_nano
        assert sync.end_time_unix_nano == write.end_time_unix_nano


def test_a_collector_that_is_away_costs_traces_and_nothing_else(
    tmp_path: Path, collector: Collector
) -> None:
    away = '[telemetry]\notlp-endpoint = "http://127.0.0.1:1"\nslow-transaction = 0.000001\n'
    with closing(Appliance(tmp_path, history=bank.history(), syncer=away)) as appliance:
        appliance.start()
        asyncio.run(bank.feed(bank.transfers(COUNT), appliance.target))
        appliance.wait_until_applied(bank.commit_ts_of(COUNT - 1))
        appliance.wait_for_log("traces_refused")
    assert collector.spans() == []


def test_an_endpoint_without_the_extra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'binlogd\[otel\]'"):
        exporter("http://127.0.0.1:4318", "node")
