"""Kafka Connect's own JsonConverter reads the messages with their schemas, and nothing is lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from struct import pack
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]

from binlogd.drainer.kafka.debezium import Debezium
from binlogd.drainer.kafka.debezium_json import DebeziumJson
from binlogd.drainer.txn import Ddl
from binlogd.errors import ConfigError
from binlogd.settings import config
from binlogd.tidb.model import ActionType, job_from_json
from binlogd.tso import Tso
from tests.integration.drainer.test_kafka_notations import row_messages
from tests.support.kafka import JARS, version_of
from tests.support.tried import tried


class Connect:
    """What a sink of Kafka Connect is given, as JSON again."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._kinds = gateway.jvm.org.apache.kafka.connect.json
        plain = {"schemas.enable": "false", "decimal.format": "NUMERIC"}
        self._readers, self._writers = (
            [self._converter(gateway, options, is_key=each) for each in (False, True)]
            for options in ({"schemas.enable": "true"}, plain)
        )

    def _converter(self, gateway: JavaGateway, options: dict[str, str], *, is_key: bool) -> Any:
        converter, given = self._kinds.JsonConverter(), gateway.jvm.java.util.HashMap()
        for name, value in options.items():
            given.put(name, value)
        converter.configure(given, is_key)
        return converter

    def read(self, text: bytes, *, is_key: bool = False) -> tuple[Any, Any]:
        """The schema as Connect has it, and the payload that came through it."""
        tried("Kafka Connect's JsonConverter", version_of("connect-json"))
        found = self._readers[is_key].toConnectData("t", text)
        written = self._writers[is_key].fromConnectData("t", found.schema(), found.value())
        return found.schema(), json.loads(written, parse_float=Decimal)


@pytest.fixture(scope="module")
def connect() -> Iterator[Connect]:
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    gateway = JavaGateway.launch_gateway(
        jarpath=str(jar), classpath=f"{JARS}/*", die_on_exit=True, enable_auth=True
    )
    yield Connect(gateway)
    gateway.shutdown()


def differences(read: Any, sent: Any, at: str = "") -> Iterator[str]:
    """A column that is NULL may be left out; a DECIMAL is text where there are no schemas."""
    if isinstance(sent, dict) and isinstance(read, dict):
        for name in sent | read:
            yield from differences(read.get(name), sent.get(name), f"{at}.{name}")
        return
    if isinstance(sent, str) and isinstance(read, Decimal | int):
        read = format(Decimal(read), "f")
    if isinstance(sent, float):  # Java prints other digits of the same number of 32 bits
        read = sent if float(read) == sent or pack("f", read) == pack("f", sent) else read
    if read != sent:
        yield f"{at}: {read!r} of {sent!r}"


FEW = 3
"""Rows of each table."""
EXPECTED = {
    "ints": "INT64 INT16 INT16 INT16 INT32 INT32 INT32 INT32 INT64 INT64 Decimal INT16 INT64 Year",
    "defaults": "INT32 INT32 INT32 STRING STRING Decimal Timestamp FLOAT32 Enum EnumSet Bits BYTES"
    " Year MicroTime Json STRING",
    "generated": "INT32 INT32 STRING INT32 STRING",
}
"""Types of columns, or the names of what they mean."""


ADDED = {"zone_default.ts2": "2021-06-01T00:00:00Z", "zone_default.dt2": 1622538000250}
"""Columns that came later, NOT NULL: what the rows from before them hold."""
ADDED_ONE_BY_ONE = {
    **{"b": 0, "c": "", "e": "p", "f": "", "h": "2020-01-01T00:00:00Z", "l": b"zz\0\0", "n": 0},
    **{"i": 0, "o": 0, "p": 0},  # a zero date has no number of its own: Debezium's are 0 as well
}
"""The same of the table `added`, whose columns all came behind its first rows."""


def columns(schema: Any) -> str:
    found = (each.schema() for each in schema.field("after").schema().fields())
    return " ".join((each.name() or str(each.type())).rpartition(".")[2] for each in found)


@pytest.mark.parametrize(
    ("name", "rows_max"),
    [
        ("types", FEW),
        pytest.param("types", 1 << 30, marks=pytest.mark.soak),
        pytest.param("keys", 1 << 30, marks=pytest.mark.soak),
    ],
)
def test_kafka_connect_reads_messages_by_their_schemas(
    name: str, rows_max: int, connect: Connect
) -> None:
    with_schemas = row_messages(name, Debezium("tidb", DebeziumJson(has_schemas=True)))
    plain = row_messages(name, Debezium("tidb", DebeziumJson()))
    wrong, count, found = list[str](), Counter[str](), dict[str, str]()
    defaults = dict[str, Any]()
    for message, sent in zip(with_schemas, plain, strict=True):
        assert message.route == sent.route, "a schema that changes moves no row"
        count[message.table] += 1
        if count[message.table] > rows_max:
            continue
        if message.key is not None and sent.key is not None:
            wrong += differences(connect.read(message.key, is_key=True)[1], json.loads(sent.key))
        assert (message.value is None) == (sent.value is None)
        if message.value is not None and sent.value is not None:
            schema, read = connect.read(message.value)
            wrong += differences(read, json.loads(sent.value))
            found[message.table] = columns(schema)
            for each in schema.field("after").schema().fields():
                if each.schema().defaultValue() is not None:
                    defaults[f"{message.table}.{each.name()}"] = each.schema().defaultValue()
    assert wrong == []
    assert name == "keys" or {each: found[each] for each in EXPECTED} == EXPECTED
    later = {f"added.{column}": value for column, value in ADDED_ONE_BY_ONE.items()}
    assert name == "keys" or defaults == ADDED | (later if rows_max > FEW else {})


def test_a_ddl_has_a_schema_too(connect: Connect) -> None:
    job = replace(job_from_json(b"{}"), type=ActionType.CREATE_TABLE)
    ddl = Ddl(Tso(6), Tso(7), 1, job, "CREATE TABLE t (a INT)", "s", "t", is_skipped=False)
    (made,) = Debezium("tidb", DebeziumJson(has_schemas=True)).ddl(ddl)
    _, read = connect.read(made.value or b"")
    assert (read["ddl"], read["source"]["commit_ts"]) == ("CREATE TABLE t (a INT)", 7)


def test_schemas_go_with_debezium_alone() -> None:
    text = '[syncer]\ndb-type = "kafka"\n[syncer.to]\ndebezium-schemas = true'
    with pytest.raises(ConfigError, match='debezium-schemas: goes with protocol = "debezium" only'):
        config.parse(text, "a test")
