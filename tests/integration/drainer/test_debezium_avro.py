"""Debezium's messages in Avro hold what those in JSON do, by schemas that a registry has."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from decimal import Decimal
from functools import partial
from io import BytesIO
from struct import pack
from typing import Any

import pytest
from avro.io import BinaryDecoder, DatumReader
from avro.schema import parse

from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.kafka import schema_registry
from binlogd.drainer.kafka.avro import avro_name, check_installed
from binlogd.drainer.kafka.broker import topic_name
from binlogd.drainer.kafka.debezium import Debezium
from binlogd.drainer.kafka.debezium_json import DebeziumJson
from binlogd.drainer.kafka.schema_registry import (
    AvroSchemas,
    NewSchema,
    RegistryOptions,
    SchemaRefused,
    SchemaRegistry,
)
from binlogd.drainer.kafka.sink import KafkaSink
from binlogd.drainer.txn import Dml
from binlogd.errors import ConfigError, CorruptRow, DownstreamUnavailable
from binlogd.tso import NO_TS
from tests.integration.drainer.test_kafka_edges import options
from tests.integration.drainer.test_kafka_notations import SKIPPED
from tests.support.kafka import Kafka, read_committed
from tests.support.recordings_reader import RECORDINGS
from tests.support.replay import translated
from tests.support.schema_registry import SmallRegistry

TOPIC = "{schema}.{table}"


@pytest.fixture
async def small() -> AsyncIterator[SmallRegistry]:
    registry = SmallRegistry()
    async with registry.serving():
        yield registry


def schemas_at(url: str, topic: str = TOPIC) -> AvroSchemas:
    return AvroSchemas(SchemaRegistry(RegistryOptions(url)), partial(topic_name, topic))


def changes(name: str, *left_out: str) -> list[Dml]:
    skipped = (*SKIPPED[name], *left_out)
    found = translated(RECORDINGS / name, skipped, Dialect.FILE)
    return [txn for txn in found if isinstance(txn, Dml)]


class Reader:
    """Apache's own reader, by the schema whose number stands before each message."""

    def __init__(self, small: SmallRegistry) -> None:
        self._small = small
        self._readers: dict[int, DatumReader] = {}

    def read(self, message: bytes) -> Any:
        assert message[0] == 0
        number = int.from_bytes(message[1:5], "big")
        if number not in self._readers:
            self._readers[number] = DatumReader(parse(self._small.text_of(number)))
        return self._readers[number].read(BinaryDecoder(BytesIO(message[5:])))


def differences(read: Any, sent: Any, at: str = "") -> Iterator[str]:
    """Of what came through Avro to what JSON says."""
    if isinstance(sent, dict) and isinstance(read, dict):
        named = {avro_name(name): value for name, value in sent.items()}
        for name in named | read:
            yield from differences(read.get(name), named.get(name), f"{at}.{name}")
        return
    if isinstance(read, bytes):
        read = base64.b64encode(read).decode()
    if isinstance(read, Decimal):
        read = format(read, "f") if isinstance(sent, str) else int(read)
    if isinstance(read, float) and pack("f", read) == pack("f", sent):
        return
    if read != sent:
        yield f"{at}: {read!r} of {sent!r}"


@pytest.mark.parametrize(
    ("name", "rows_max"),
    [
        ("types", 3),
        pytest.param("types", 1 << 30, marks=pytest.mark.soak),
        pytest.param("keys", 1 << 30, marks=pytest.mark.soak),
    ],
)
async def test_avro_holds_what_json_does(name: str, rows_max: int, small: SmallRegistry) -> None:
    schemas, reader = schemas_at(small.url), Reader(small)
    in_avro, in_json = Debezium("tidb", schemas), Debezium("tidb", DebeziumJson())
    wrong, count = list[str](), Counter[str]()
    for txn in changes(name, "types.odd `name"):
        if all(count[each.table.info.name] > rows_max for each in txn.changes):
            continue
        await schemas.register([txn])
        for message, sent in zip(in_avro.rows(txn), in_json.rows(txn), strict=True):
            assert message.route == sent.route, "an encoding moves no row"
            assert (message.value is None, message.key is None) == (
                sent.value is None,
                sent.key is None,
            )
            count[message.table] += 1
            for one, other in ((message.key, sent.key), (message.value, sent.value)):
                if one is not None and other is not None and count[message.table] <= rows_max:
                    wrong += differences(reader.read(one), json.loads(other), message.table)
    assert wrong == []
    assert len(count) > 10


ALIKE = {
    "ints": "long int16 int16 int16 int int int int long long decimal int16 long Year",
    "defaults": "int int int string string decimal Timestamp float Enum EnumSet Bits bytes Year"
    " MicroTime Json string",
}
KEY = {
    "type": "record",
    "name": "Key",
    "namespace": "tidb.types.ints",
    "fields": [{"name": "id", "type": "long"}],
    "connect.name": "tidb.types.ints.Key",
}
U64 = {
    "type": "bytes",
    "connect.version": 1,
    "connect.name": "org.apache.kafka.connect.data.Decimal",
    "connect.parameters": {"scale": "0", "connect.decimal.precision": "20"},
    "logicalType": "decimal",
    "scale": 0,
    "precision": 20,
}


def row_fields(text: str) -> list[Any]:
    envelope = json.loads(text)
    before, after = (each["type"] for each in envelope["fields"][:2])
    assert after == ["null", f"{envelope['namespace']}.Value"]
    found: list[Any] = before[1]["fields"]
    return found


def word(kind: Any) -> str:
    if isinstance(kind, list):
        assert kind[0] == "null"
        return word(kind[1])
    if isinstance(kind, str):
        return kind
    name = kind.get("connect.name", "").rpartition(".")[2]
    return str(kind.get("logicalType") or name or kind.get("connect.type") or kind["type"])


async def test_schemas_are_those_of_connects_converter(small: SmallRegistry) -> None:
    schemas = schemas_at(small.url)
    await schemas.register([txn for txn in changes("types") if tables(txn) <= {*ALIKE, "added"}])
    found = {each: row_fields(small.latest(f"types.{each}-value")) for each in ALIKE}
    assert {
        name: " ".join(word(each["type"]) for each in of) for name, of in found.items()
    } == ALIKE
    assert json.loads(small.latest("types.ints-key")) == KEY
    assert next(each for each in found["ints"] if word(each["type"]) == "decimal")["type"][1] == U64
    added = {each["name"]: each for each in row_fields(small.latest("types.added-value"))}
    assert {name: added[name]["default"] for name in "acel"} == ADDED


ADDED = {"a": None, "c": "", "e": "p", "l": "zz\0\0"}
"""Columns that came later: what a reader of older messages takes them for."""


def tables(txn: Dml) -> set[str]:
    return {each.table.info.name for each in txn.changes}


async def test_each_schema_is_asked_for_once_and_again_only_when_it_has_changed(
    small: SmallRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    schemas = schemas_at(small.url)
    txns = [txn for txn in changes("types") if tables(txn) == {"added"}]
    for txn in txns:
        await schemas.register([txn])
    versions = small.posted.count("types.added-value")
    assert small.posted.count("types.added-key") == 1
    assert 5 < versions < len(txns), "one for each DDL that changed a column"
    for txn in txns[-3:]:
        await schemas.register([txn])
    assert small.posted.count("types.added-value") == versions
    monkeypatch.setattr(schema_registry, "KEPT_MAX", 0)
    await schemas.register(txns[-1:])
    assert small.posted.count("types.added-value") == versions + 1


async def test_names_that_come_to_the_same_are_refused(small: SmallRegistry) -> None:
    (odd, *_) = [txn for txn in changes("types") if tables(txn) == {"odd `name"}]
    with pytest.raises(SchemaRefused, match=r"columns - and # and .* have one name in Avro") as of:
        await schemas_at(small.url).register([odd])
    assert of.value.skip_ts == odd.commit_ts
    two = [txn for txn in changes("types") if tables(txn) in ({"ints"}, {"bits"})]
    told = (
        r"types\.(ints|bits) cannot .*the topic one is that of types\.(bits|ints) already; rename"
    )
    with pytest.raises(SchemaRefused, match=told):
        await schemas_at(small.url, "one").register(two)
    assert small.posted == []
    assert [avro_name(each) for each in ("a b", "1st", "ü", "_x")] == ["a_b", "_1st", "_", "_x"]


async def test_a_value_that_does_not_fit_names_the_subject(small: SmallRegistry) -> None:
    schemas = schemas_at(small.url)
    (txn, *_) = [txn for txn in changes("types") if tables(txn) == {"ints"}]
    await schemas.register([txn])
    encoded = schemas.of_table(txn.changes[0].table)
    with pytest.raises(CorruptRow, match=r"does not fit the Avro schema of types\.ints-value"):
        encoded.value({"before": {"id": "x"}, "after": None, "transaction": None})


def test_without_its_library_the_line_that_installs_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"debezium-avro.*pip install 'binlogd\[avro\]'"):
        check_installed()


# --- into Kafka ----------------------------------------------------------------------------


async def sent(sink: KafkaSink, txns: list[Dml]) -> None:
    """All of them, or what the sink failed with."""
    await sink.open()
    running = asyncio.create_task(sink.run())
    try:
        await sink.submit(txns)
        await sink.flush()
    finally:
        await sink.close()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_the_registry_refuses_or_misses_comes_once_when_it_does_not(
    kafka: Kafka, small: SmallRegistry
) -> None:
    to = replace(options(kafka, "avro"), topic="avro.{schema}.{table}")
    txns = [txn for txn in changes("types") if tables(txn) == {"added"}]
    subject = "avro.types.added-value"

    def sink() -> KafkaSink:
        schemas = schemas_at(small.url, to.topic)
        return KafkaSink(to, Debezium("tidb", schemas), schemas)

    await sent(sink(), txns[:2])
    other = small.latest(subject).replace('"id","type":"int"', '"id","type":"string"')
    small.levels[subject] = "NONE"
    registry = SchemaRegistry(RegistryOptions(small.url))
    await registry.ids_of([NewSchema(subject, other, "a stranger", NO_TS)])
    del small.levels[subject]
    with pytest.raises(
        SchemaRefused, match=rf"subject {subject}, .*changed id.*\(PUT .*skip"
    ) as of:
        await sent(sink(), txns)
    assert of.value.skip_ts in {each.commit_ts for each in txns[2:]}
    small.levels[subject] = "NONE"
    small.fails_with = 503
    with pytest.raises(DownstreamUnavailable, match=r"schema registry at .* HTTP 503"):
        await sent(sink(), txns)
    small.fails_with = 0
    await sent(sink(), txns)
    await sent(sink(), txns)
    found = await read_committed(kafka.address, "avro.types.added")
    reader = Reader(small)
    rows = [reader.read(each.value) for each in found if each.value is not None]
    told = Counter(each["source"]["commit_ts"] for each in rows)
    assert told == Counter({each.commit_ts: each.row_count for each in txns})
