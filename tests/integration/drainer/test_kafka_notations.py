"""Recordings as messages: whoever adds them up has the recorded tables."""

from __future__ import annotations

import base64
import datetime
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.kafka.canal_json import CanalJson
from binlogd.drainer.kafka.debezium import Debezium
from binlogd.drainer.kafka.debezium_json import DebeziumJson
from binlogd.drainer.kafka.message import FIRST_PARTITION, KafkaMessage, Notation
from binlogd.drainer.kafka.original import OriginalMessages
from binlogd.drainer.messages.named import RowKind
from binlogd.drainer.messages.secondary import decode
from binlogd.drainer.txn import Dml
from tests.support.recordings_reader import (
    RECORDINGS,
    Canonical,
    Column,
    Row,
    Table,
    canonical_value,
    compare_rows,
    expected,
    skipping,
)
from tests.support.replay import translated

SKIPPED: dict[str, tuple[str, ...]] = {"types": ("types_tidb.bad_utf8",), "keys": ("keys_wrong",)}
Read = Callable[[Column, Any], Canonical]


def row_messages(name: str, notation: Notation) -> Iterator[KafkaMessage]:
    for txn in translated(RECORDINGS / name, SKIPPED[name], Dialect.FILE):
        if isinstance(txn, Dml):
            yield from notation.rows(txn)


def summed(table: Table, rows: Iterator[tuple[int, dict[str, Any]]], read: Read) -> Counter[Row]:
    """What the table holds once rows have come and gone."""
    found: Counter[Row] = Counter()
    for count, values in rows:
        lowered = {name.lower(): value for name, value in values.items()}
        found[tuple(read(each, lowered[each.name.lower()]) for each in table.columns)] += count
    assert min(found.values(), default=0) >= 0
    return +found


def differences(
    name: str,
    changes: dict[str, list[tuple[int, dict[str, Any]]]],
    read: Read,
    beside: frozenset[str] = frozenset(),
) -> list[str]:
    is_skipped = skipping(SKIPPED[name])
    found: list[str] = []
    for table in expected(RECORDINGS / name):
        if table.kind != "table" or is_skipped(table.label) or table.label in beside:
            continue
        rows = changes.get(table.label.lower(), [])
        shown = {each.lower() for _, values in rows[:1] for each in values}
        if rows and shown != {each.name.lower() for each in table.columns}:
            continue  # a virtual column, which no message has
        found += map(str, compare_rows(table, summed(table, iter(rows), read)))
    return found


# --- canal-json ----------------------------------------------------------------------------


def from_canal(column: Column, text: str | None) -> Canonical:
    if text is None:
        return None
    kind = column.data_type
    value: Any = text
    if kind == "bit":
        value = {"hex": f"{int(text):x}"}
    elif kind in ("enum", "set"):
        value = {kind: text}
    elif kind.endswith(("binary", "blob")):
        value = {"hex": text.encode("latin-1").hex()}
    return canonical_value(column)(value)


@pytest.mark.parametrize("name", ["types", "keys"])
def test_canal_json_adds_up_to_the_recorded_tables(name: str) -> None:
    changes: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for message in row_messages(name, CanalJson()):
        assert message.value is not None
        document = json.loads(message.value)
        assert dict(message.headers()) == {
            "commit_ts": str(document["_tidb"]["commitTs"]).encode(),
            "kind": document["type"].lower().encode(),
            "schema": document["database"].encode(),
            "table": document["table"].encode(),
        }
        rows = changes.setdefault(f"{document['database']}.{document['table']}".lower(), [])
        rows += [(-1, old) for old in document["old"] or ()]
        sign = -1 if document["type"] == "DELETE" else 1
        rows += [(sign, row) for row in document["data"]]
    assert differences(name, changes, from_canal) == []


# --- the original's ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["types", "keys"])
def test_the_originals_messages_tell_the_same_changes(name: str) -> None:
    changes: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for message in row_messages(name, OriginalMessages()):
        assert (message.key, message.route) == (None, FIRST_PARTITION)
        assert message.value is not None
        for row in decode(message.value).rows():
            rows = changes.setdefault(f"{row.database}.{row.table}".lower(), [])
            if row.kind is not RowKind.INSERT:
                rows.append((-1, {each.name: each.old for each in row.columns}))
            if row.kind is not RowKind.DELETE:
                rows.append((1, {each.name: each.new for each in row.columns}))
    assert differences(name, changes, from_original, WITH_VIRTUAL_COLUMNS) == []


WITH_VIRTUAL_COLUMNS = frozenset({"types.generated", "types_tidb.generated_keys"})
"""They are in every message of the original, with values that no row has."""


def from_original(column: Column, value: Any) -> Canonical:
    if value is None:
        return None
    kind = column.data_type
    if kind in ("enum", "set"):
        value = {kind: value}
    elif kind == "bit":
        value = {"hex": f"{value:x}"}
    elif isinstance(value, bytes):
        is_binary = kind.endswith(("binary", "blob"))
        value = {"hex": value.hex()} if is_binary else value.decode()
    return canonical_value(column)(value)


# --- Debezium ------------------------------------------------------------------------------

EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - a DATETIME has no zone


def from_debezium(column: Column, value: Any) -> Canonical:
    if value is None:
        return None
    kind = column.data_type
    read = _DEBEZIUM.get(kind)
    if read is not None:
        return read(column, value)
    if kind.endswith(("binary", "blob")):
        return canonical_value(column)({"hex": base64.b64decode(value).hex()})
    return canonical_value(column)(value)


def _bits(column: Column, value: Any) -> Canonical:
    if isinstance(value, bool):
        return int(value)
    return int.from_bytes(base64.b64decode(value), "little")


def _date(_column: Column, value: Any) -> Canonical:
    return (EPOCH + datetime.timedelta(days=value)).date().isoformat()


def _fraction(column: Column) -> int:
    return int(column.type.partition("(")[2].rstrip(")") or 0)


def _datetime(column: Column, value: Any) -> Canonical:
    fraction = _fraction(column)
    unit_us = 1 if fraction > 3 else 1000
    moment = EPOCH + datetime.timedelta(microseconds=value * unit_us)
    digits = f".{moment.microsecond:06d}"[: fraction + 1] if fraction else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}".rjust(19, "0") + digits


def _timestamp(_column: Column, value: Any) -> Canonical:
    assert isinstance(value, str)
    return value.removesuffix("Z").replace("T", " ")


def _time(column: Column, value: Any) -> Canonical:
    seconds, us = divmod(abs(value), 1_000_000)
    fraction = _fraction(column)
    digits = f".{us:06d}"[: fraction + 1] if fraction else ""
    sign = "-" if value < 0 else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{digits}"


def _labels(column: Column) -> list[str]:
    found = re.findall(r"'((?:[^']|'')*)'", column.type)
    return [each.replace("''", "'") for each in found]


_DEBEZIUM: dict[str, Read] = {
    "bit": _bits,
    "date": _date,
    "datetime": _datetime,
    "timestamp": _timestamp,
    "time": _time,
    "enum": lambda column, value: _labels(column).index(value) + 1 if value else 0,
    "set": lambda column, value: sum(
        1 << _labels(column).index(each) for each in value.split(",") if each
    ),
}


NOT_IN_DEBEZIUM = frozenset({"types.zero_dates", "types.enums"})
"""Dates that no calendar has, and the label `` beside the number 0."""


@pytest.mark.parametrize("name", ["types", "keys"])
def test_debezium_adds_up_to_the_recorded_tables(name: str) -> None:
    changes: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for message in row_messages(name, Debezium("tidb", DebeziumJson())):
        if message.value is None:
            continue
        document = json.loads(message.value)
        source = document["source"]
        rows = changes.setdefault(f"{source['db']}.{source['table']}".lower(), [])
        if document["before"] is not None:
            rows.append((-1, document["before"]))
        if document["after"] is not None:
            rows.append((1, document["after"]))
    assert differences(name, changes, from_debezium, NOT_IN_DEBEZIUM) == []
