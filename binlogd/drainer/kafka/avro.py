"""Debezium's messages in Avro, as Kafka Connect's AvroConverter writes them: the door to fastavro.

    a byte of zero, the id of the schema (4 bytes, big endian), Avro

The schema is that of Connect (debezium_schema.py) in Avro's words, the names of Connect kept as
`connect.name`. A DECIMAL is Avro's `decimal` of bytes. Of what Avro allows in no name each letter
becomes `_`, and a digit at the beginning has one before it, as with Debezium.
Source: docs.confluent.io, Schema Registry, wire format; Avro specification 1.12, names, logical
types; debezium.io documentation, Avro serialization, naming.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import msgspec

from binlogd.drainer.kafka.debezium import Document
from binlogd.drainer.kafka.debezium_columns import DECIMAL, Schema, Writer
from binlogd.drainer.kafka.debezium_json import plain_columns
from binlogd.drainer.kafka.debezium_schema import TRANSACTION, MessageTypes
from binlogd.drainer.kafka.row_events import ColumnWriters, key_columns
from binlogd.errors import CorruptRow
from binlogd.extras import require
from binlogd.tidb.model import TableAt
from binlogd.tidb.row import Value

_TYPES = {"int16": "int", "int32": "int", "int64": "long"}
"""Of Connect; the others have one name in both."""
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_]")


def check_installed() -> None:
    """Raises ConfigError where the extra is not."""
    require("avro", "fastavro", place='syncer.to.protocol "debezium-avro"')


def avro_name(name: str) -> str:
    """Of a column, or one part of the name of a schema."""
    made = _NOT_IN_A_NAME.sub("_", name) or "_"
    return f"_{made}" if made[0].isdigit() else made


def twins(table: TableAt) -> list[str]:
    """Columns that have one name in Avro."""
    found = defaultdict[str, list[str]](list)
    for column in table.info.stored_columns():
        found[avro_name(column.name)].append(column.name)
    return next((each for each in found.values() if len(each) > 1), [])


class AvroMessage:
    """What the keys or the values of a table are like; `schema_id` is the registry's."""

    def __init__(self, subject: str, schema: Schema) -> None:
        from fastavro import parse_schema, schemaless_writer

        self.subject, made = subject, _avro(schema, set())
        self.text = msgspec.json.encode(made).decode()
        self._parsed, self._write = parse_schema(made), schemaless_writer
        self.schema_id: int | None = None

    def encode(self, datum: Document) -> bytes:
        """Raises CorruptRow for what does not fit."""
        assert self.schema_id is not None, "registered before it is used"
        out = BytesIO()
        out.write(b"\0" + self.schema_id.to_bytes(4, "big"))
        try:
            self._write(out, self._parsed, datum)
        except (ValueError, TypeError, OverflowError) as error:
            raise CorruptRow(
                f"it does not fit the Avro schema of {self.subject}: {error}"
            ) from error
        return out.getvalue()


class AvroTable:
    """An `EncodedTable`, for a topic of its own. Raises CorruptRow for a bad default."""

    def __init__(self, table: TableAt, topic: str) -> None:
        types = MessageTypes(table, _unscaled)
        self.table, self.topic = table, topic
        self.name = full_name(types.place)
        self.routes = plain_columns(table)
        self.columns = ColumnWriters(table.info, types.writer, avro_name)
        self._value = AvroMessage(f"{topic}-value", types.value_schema())
        self._key = AvroMessage(f"{topic}-key", types.key_schema())
        self.messages = [self._key, self._value] if key_columns(table.info) else [self._value]
        """In the order in which they are registered."""

    def key(self, route: bytes, values: Mapping[int, Value]) -> bytes:
        """See EncodedTable."""
        del route
        return self._key.encode(self.columns.keys(values))

    def value(self, envelope: Document) -> bytes:
        """See EncodedTable. A record is named, so that none is looked for in a union."""
        row = f"{self.name}.Value"
        for field, name in (("before", row), ("after", row), ("transaction", TRANSACTION)):
            if envelope[field] is not None:
                envelope[field] = name, envelope[field]
        return self._value.encode(envelope)


def full_name(name: str) -> str:
    """Of a schema, with its namespace."""
    return ".".join(map(avro_name, name.split(".")))


def difference(before: str, after: str) -> str:
    """Which columns make two schemas of a subject differ, in words; "" where none do."""
    old, new = (_fields(msgspec.json.decode(text)) for text in (before, after))
    kinds = {
        "added": [name for name in new if name not in old],
        "gone": [name for name in old if name not in new],
        "changed": [name for name in new if name in old and new[name] != old[name]],
    }
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in kinds.items() if names)


def _fields(record: Any) -> dict[str, Any]:
    """Of a key, or of the rows in an envelope."""
    found = {each["name"]: each for each in record["fields"]} if isinstance(record, dict) else {}
    for kind in found.get("before", {}).get("type", ()):
        if isinstance(kind, dict) and "fields" in kind:
            return {each["name"]: each for each in kind["fields"]}
    return found


def _avro(schema: Schema, named: set[str]) -> Any:
    """A record that was told before is told by its name."""
    if schema["type"] != "struct":
        return _plain(schema)
    name = full_name(schema["name"])
    if name in named:
        return name
    named.add(name)
    namespace, _, short = name.rpartition(".")
    fields = [_field(each, named) for each in schema["fields"]]
    made = {"type": "record", "name": short, "namespace": namespace, "fields": fields}
    return made | {"connect.name": name}


def _field(schema: Schema, named: set[str]) -> Schema:
    made: Schema = {"name": avro_name(schema["field"]), "type": _avro(schema, named)}
    if schema["optional"]:
        return made | {"type": ["null", made["type"]], "default": None}
    default = schema.get("default")
    if default is None:
        return made
    return made | {"default": default.decode("latin-1") if isinstance(default, bytes) else default}


def _plain(schema: Schema) -> Any:
    kind, parameters = schema["type"], schema.get("parameters", {})
    made: Schema = {"type": _TYPES.get(kind, kind)}
    if kind == "int16":
        made["connect.type"] = kind
    if "name" in schema:
        made |= {"connect.version": schema["version"], "connect.name": schema["name"]}
        made |= {"connect.parameters": parameters} if parameters else {}
    if schema.get("name") == DECIMAL:
        scale, precision = int(parameters["scale"]), int(parameters["connect.decimal.precision"])
        made |= {"logicalType": "decimal", "scale": scale, "precision": precision}
    return made if len(made) > 1 else made["type"]


def _unscaled(scale: int) -> Writer:
    """The number without its point, as Java's BigInteger writes it."""

    def write(value: Value) -> bytes:
        text = str(value)
        whole, _, fraction = text.partition(".")
        if len(fraction) > scale:
            raise CorruptRow(f"{text} has more than {scale} digits behind the point")
        number = int(whole + fraction.ljust(scale, "0"))
        return number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)

    return write
