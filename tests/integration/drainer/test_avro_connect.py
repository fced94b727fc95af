"""An Avro converter of Kafka Connect reads the messages by a real registry, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]

from binlogd.drainer.kafka.avro import avro_name
from binlogd.drainer.kafka.debezium import Debezium
from binlogd.drainer.kafka.debezium_json import DebeziumJson
from tests.integration.drainer.test_debezium_avro import changes, schemas_at
from tests.integration.drainer.test_debezium_schemas import EXPECTED, columns, differences
from tests.support.kafka import version_of
from tests.support.schema_registry import APICURIO, apicurio
from tests.support.tried import tried

pytestmark = pytest.mark.soak
READING = {
    "apicurio.registry.as-confluent": "true",
    "apicurio.registry.id-handler": "io.apicurio.registry.serde.Legacy4ByteIdHandler",
    "apicurio.registry.use-id": "contentId",
    "apicurio.registry.headers.enabled": "false",
}
"""As its documentation has it for messages of Confluent's serializers."""


@pytest.fixture
def registry_url(tmp_path: Path) -> Iterator[str]:
    with apicurio(tmp_path) as url:
        yield url


@pytest.fixture
def gateway() -> Iterator[JavaGateway]:
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    made = JavaGateway.launch_gateway(
        jarpath=str(jar), classpath=f"{APICURIO}/converter/*", die_on_exit=True, enable_auth=True
    )
    yield made
    made.shutdown()


def converter(gateway: JavaGateway, kind: Any, options: dict[str, str], *, is_key: bool) -> Any:
    jar = version_of("apicurio-registry-utils-converter", APICURIO / "converter")
    tried("Kafka Connect's AvroConverter of Apicurio", jar)
    given = gateway.jvm.java.util.HashMap()
    for name, value in options.items():
        given.put(name, value)
    kind.configure(given, is_key)
    return kind


def with_avro_names(sent: Any) -> Any:
    if isinstance(sent, dict):
        return {avro_name(name): with_avro_names(value) for name, value in sent.items()}
    return sent


@pytest.mark.parametrize("name", ["types", "keys"])
async def test_connect_reads_avro_by_a_real_registry(
    name: str, registry_url: str, gateway: JavaGateway
) -> None:
    of = gateway.jvm.io.apicurio.registry.utils.converter
    where = {"apicurio.registry.url": registry_url.replace("ccompat/v7", "registry/v2")}
    plain = {"schemas.enable": "false", "decimal.format": "NUMERIC"}
    readers = [
        converter(gateway, of.AvroConverter(), READING | where, is_key=is_key)
        for is_key in (False, True)
    ]
    as_json = gateway.jvm.org.apache.kafka.connect.json.JsonConverter()
    writer = converter(gateway, as_json, plain, is_key=False)
    schemas = schemas_at(registry_url)
    in_avro, in_json = Debezium("tidb", schemas), Debezium("tidb", DebeziumJson())
    wrong, found, count = list[str](), dict[str, str](), 0
    for txn in changes(name, "types.odd `name"):
        await schemas.register([txn])
        for message, sent in zip(in_avro.rows(txn), in_json.rows(txn), strict=True):
            for is_key, one, other in (
                (True, message.key, sent.key),
                (False, message.value, sent.value),
            ):
                if one is None or other is None:
                    continue
                read = readers[is_key].toConnectData("t", one)
                text = writer.fromConnectData("t", read.schema(), read.value())
                told = with_avro_names(json.loads(other))
                wrong += differences(json.loads(text, parse_float=Decimal), told)
                count += 1
                if not is_key:
                    found[message.table] = columns(read.schema())
    assert wrong == []
    assert count > 3000
    assert name == "keys" or {each: found[each] for each in EXPECTED} == EXPECTED
