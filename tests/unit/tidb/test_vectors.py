"""The golden vectors: bytes of TiDB, PD and etcd with the values that they mean.

Every vector is named here by its id, and a test sees to it that none is forgotten. Where TiDB's
bytes have one form, the value must give the bytes as well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from binlogd.errors import CorruptRow
from binlogd.tidb import datum, decimals, jsonb, times, varint
from binlogd.tidb.columns import Value, reader_of
from binlogd.tidb.encode import datum_of, encode_delete, encode_insert, encode_update
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, FLAG_UNSIGNED, Tp
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table, TableAt
from binlogd.tidb.row import RowDecoder
from binlogd.tso import Tso, compose
from binlogd.wire import codec, fields
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog, rollback_binlog
from binlogd.wire.mutation import Mutation, encode_mutations

GOLDEN = Path(__file__).parents[2] / "golden" / "vectors.json"
VECTORS: dict[str, dict[str, Any]] = {each["id"]: each for each in json.loads(GOLDEN.read_text())}


def raw(vector_id: str) -> bytes:
    vector = VECTORS[vector_id]
    data = bytes.fromhex(vector["hex"])
    assert len(data) == vector["len"]
    return data


def column(tp: Tp, *, flag: int = 0, flen: int = -1, decimal: int = -1, **rest: Any) -> Column:
    """Column 1 of a type; text unless told otherwise."""
    charset = rest.pop("charset", "utf8mb4")
    collate = rest.pop("collate", "utf8mb4_bin" if charset == "utf8mb4" else charset)
    elems = rest.pop("elems", ())
    kind = FieldType(tp, flag, flen, decimal, charset, collate, elems)
    return Column(
        id=rest.pop("id", 1), name=rest.pop("name", "c"), offset=0, field_type=kind, **rest
    )


# --- primitives ----------------------------------------------------------------------------

MEMCOMPARABLE = {
    "bytes-empty": b"",
    "bytes-3": b"\x01\x02\x03",
    "bytes-3z": b"\x01\x02\x03\x00",
    "bytes-7": bytes(range(1, 8)),
    "bytes-8": bytes(range(1, 9)),
    "bytes-8z": bytes(8),
    "bytes-9": bytes(range(1, 10)),
}
VARINTS = {
    f"varint{each}": each for each in (0, 1, -1, 63, 64, -64, -65, 300, (1 << 63) - 1, -(1 << 63))
}
UVARINTS = {f"uvarint{each}": each for each in (0, 127, 128, 300, (1 << 64) - 1)}


@pytest.mark.parametrize("vector_id", MEMCOMPARABLE)
def test_memcomparable_bytes(vector_id: str) -> None:
    data, value = raw(vector_id), MEMCOMPARABLE[vector_id]
    assert datum.read_memcomparable(data, 0) == (value, len(data))
    assert datum.memcomparable(value) == data


@pytest.mark.parametrize("vector_id", VARINTS)
def test_varints(vector_id: str) -> None:
    data = raw(vector_id)
    assert varint.read_varint(data, 0) == (VARINTS[vector_id], len(data))
    assert varint.varint(VARINTS[vector_id]) == data


@pytest.mark.parametrize("vector_id", UVARINTS)
def test_uvarints(vector_id: str) -> None:
    data = raw(vector_id)
    assert varint.read_uvarint(data, 0) == (UVARINTS[vector_id], len(data))
    assert varint.uvarint(UVARINTS[vector_id]) == data


# --- datums of columns ----------------------------------------------------------------------

INT, BIGINT = column(Tp.LONG), column(Tp.LONGLONG)
BIGINT_UNSIGNED = column(Tp.LONGLONG, flag=FLAG_UNSIGNED)
VARCHAR = column(Tp.VARCHAR, flen=64)
DOUBLE, FLOAT = column(Tp.DOUBLE), column(Tp.FLOAT)
DATE, TIME = column(Tp.DATE), column(Tp.DURATION, decimal=0)
DATETIME, DATETIME6 = column(Tp.DATETIME, decimal=0), column(Tp.DATETIME, decimal=6)
ENUM = column(Tp.ENUM, elems=("a", "b", "c"))
SET = column(Tp.SET, elems=("a", "b", "c", "d"))


def dec(precision: int, scale: int) -> Column:
    return column(Tp.NEW_DECIMAL, flen=precision, decimal=scale)


DATUMS: dict[str, tuple[Column, Value]] = {
    "d-null": (INT, None),
    "d-int-0": (BIGINT, 0),
    "d-int-1": (INT, 1),
    "d-int--1": (INT, -1),
    "d-int-min": (BIGINT, -(1 << 63)),
    "d-uint-max": (BIGINT_UNSIGNED, (1 << 64) - 1),
    "d-uint-300": (column(Tp.LONG, flag=FLAG_UNSIGNED), 300),
    "d-year-2024": (column(Tp.YEAR, flag=FLAG_UNSIGNED), 2024),
    "d-str-empty": (VARCHAR, b""),
    "d-str-A": (VARCHAR, b"A"),
    "d-str-abc": (VARCHAR, b"abc"),
    "d-str-utf8": (column(Tp.VARCHAR, charset="gbk"), "你好".encode()),
    "d-blob": (column(Tp.BLOB, charset="binary"), b"\x00\xff\x27"),
    "d-float-1.8": (DOUBLE, 1.8),
    "d-float--1.8": (DOUBLE, -1.8),
    "d-float-1.1": (DOUBLE, 1.1),
    "d-float-0": (DOUBLE, 0.0),
    "d-float32": (FLOAT, 3.140000104904175),
    "dec-1": (dec(14, 4), "1234567890.1234"),
    "dec-2": (dec(14, 4), "-1234567890.1234"),
    "dec-3": (dec(4, 2), "-10.55"),
    "dec-4": (dec(10, 0), "0"),
    "dec-5": (dec(10, 2), "123.40"),
    "dec-6": (dec(5, 5), "0.00001"),
    "dec-7": (dec(65, 30), "9" * 35 + "." + "9" * 30),
    "dec-8": (dec(20, 10), "-123.4500000000"),
    "dec-9": (dec(1, 0), "1"),
    "dec-10": (dec(3, 1), "0.0"),
    "d-date": (DATE, "2020-01-01"),
    "d-datetime6": (DATETIME6, "2024-02-29 23:59:59.123456"),
    "d-datetime-max": (DATETIME, "9999-12-31 23:59:59"),
    "d-datetime-zero": (DATETIME, "0000-00-00 00:00:00"),
    "d-ts": (column(Tp.TIMESTAMP, decimal=0), "2020-01-01 00:00:00"),
    "d-time": (TIME, "11:11:11"),
    "d-time-neg": (TIME, "-838:59:59"),
    "d-time-frac": (column(Tp.DURATION, decimal=6), "-00:00:00.000001"),
    "d-enum": (ENUM, 2),
    "d-enum0": (ENUM, 0),
    "d-set": (SET, 13),
    "d-bit": (column(Tp.BIT, flen=10), 0b1000000001),
}
JSON_TEXTS = {
    each["id"]: str(each["decodes_to"]) for each in VECTORS.values() if each["id"].startswith("j-")
}
JSON_ONE_WAY = {
    "j-opaque": "opaque values have no literal in JSON text",
    "j-date": "dates have no literal in JSON text",
    "j-datetime": "datetimes have no literal in JSON text",
    "j-timestamp": "timestamps have no literal in JSON text",
    "j-time": "times have no literal in JSON text",
}
DOUBLES_WITH_POINT = {
    "j-dbl-3": "3.0",
    "j-dbl-100000000000000000000": "100000000000000000000.0",
}
"""Where the text differs from TiDB's on purpose, so that a double stays one when read again."""
COMPARABLE: dict[str, tuple[Column, Value, bytes]] = {
    "c-int-1": (INT, 1, b"\x03" + datum.comparable_int(1)),
    "c-int--1": (INT, -1, b"\x03" + datum.comparable_int(-1)),
    "c-uint": (BIGINT_UNSIGNED, (1 << 64) - 1, b"\x04" + b"\xff" * 8),
    "c-str": (VARCHAR, b"111", b"\x01" + datum.memcomparable(b"111")),
    "d-time-handle": (
        TIME,
        "11:11:11",
        b"\x07" + datum.comparable_int(times.duration_ns("11:11:11")),
    ),
}


@pytest.mark.parametrize("vector_id", DATUMS)
def test_a_datum_in_a_row(vector_id: str) -> None:
    data, (kind, value) = raw(vector_id), DATUMS[vector_id]
    assert reader_of(kind)(data, 0) == (value, len(data))
    assert datum.skip_datum(data, 0) == len(data)
    assert datum_of(kind, value) == data
    if "decodes_to" in VECTORS[vector_id]:
        assert value == VECTORS[vector_id]["decodes_to"]


@pytest.mark.parametrize("vector_id", COMPARABLE)
def test_a_datum_in_a_key_is_read_by_any_column_of_its_type(vector_id: str) -> None:
    data, (kind, value, encoded) = raw(vector_id), COMPARABLE[vector_id]
    assert encoded == data
    assert reader_of(kind)(data, 0) == (value, len(data))


def test_a_long_string_has_a_length_of_two_bytes() -> None:
    assert datum_of(VARCHAR, b"x" * 64)[:3] == raw("d-str-64-head")


@pytest.mark.parametrize("vector_id", JSON_TEXTS)
def test_a_json_datum(vector_id: str) -> None:
    data = raw(vector_id)
    text = DOUBLES_WITH_POINT.get(vector_id, JSON_TEXTS[vector_id])
    assert reader_of(column(Tp.JSON))(data, 0) == (text, len(data))
    if vector_id not in JSON_ONE_WAY:
        assert b"\x0a" + jsonb.json_bytes(text) == data


DECIMAL_ROUND_TRIPS = [each for each in VECTORS if each.startswith("decrt-")]


@pytest.mark.parametrize("vector_id", DECIMAL_ROUND_TRIPS)
def test_a_decimal_of_the_round_trip_test(vector_id: str) -> None:
    data = raw(vector_id)
    value, _, kind = VECTORS[vector_id]["value"].partition(" as DECIMAL")
    precision, scale = (int(each) for each in kind.strip("()").split(","))
    assert decimals.read_decimal(data, 0) == (VECTORS[vector_id]["decodes_to"], len(data))
    assert decimals.decimal_bytes(value, precision, scale) == data


PACKED = {"time-packed-a": "2018-01-19 03:14:07", "time-packed-b": "2020-01-01 00:00:00"}


@pytest.mark.parametrize("vector_id", PACKED)
def test_a_packed_time(vector_id: str) -> None:
    packed = int.from_bytes(raw(vector_id), "big")
    assert times.datetime_text(packed, 0) == PACKED[vector_id]
    assert times.packed_time(PACKED[vector_id]) == packed


# --- rows -----------------------------------------------------------------------------------


def table(*columns: Column, key: tuple[int, ...] = (), pk_is_handle: bool = False) -> Table:
    """A table; `key` names the places of the columns of a clustered key."""
    placed = tuple(
        Column(
            id=place + 1,
            name=f"c{place + 1}",
            offset=place,
            field_type=each.field_type,
            origin_default=each.origin_default,
            default=each.default,
        )
        for place, each in enumerate(columns)
    )
    primary = Index(1, "PRIMARY", tuple(IndexColumn("", each) for each in key), is_primary=True)
    return Table(
        id=56,
        name="t",
        columns=placed,
        indexes=(primary,) if key else (),
        pk_is_handle=pk_is_handle,
        is_common_handle=bool(key),
    )


def decoder(info: Table) -> RowDecoder:
    return RowDecoder(TableAt("test", info, 1, None, {}, may_lack_columns=False))


PK = column(Tp.LONG, flag=FLAG_PRIMARY_KEY | FLAG_NOT_NULL)
UNSIGNED_PK = column(Tp.LONGLONG, flag=FLAG_PRIMARY_KEY | FLAG_NOT_NULL | FLAG_UNSIGNED)
UINT = column(Tp.LONG, flag=FLAG_UNSIGNED)
VARBINARY = column(Tp.VARCHAR, flen=8, charset="binary")
T1 = table(PK, VARCHAR, UINT, pk_is_handle=True)
T1_DEFAULT = table(PK, VARCHAR, column(Tp.LONG, flag=FLAG_UNSIGNED, default="5"), pk_is_handle=True)
T2 = table(INT, VARCHAR)
COMMON = table(VARBINARY, INT, VARCHAR, key=(0, 1))
COMMON2 = table(VARBINARY, TIME, dec(5, 2), INT, key=(0, 1, 2))
INSERTS: dict[str, tuple[Table, dict[int, Value], int | None]] = {
    "row-ins-pk": (T1, {1: 7, 2: b"bob", 3: 42}, None),
    "row-ins-null": (T1, {1: 7, 2: b"bob", 3: None}, None),
    "row-ins-null-explicit": (T1_DEFAULT, {1: 7, 2: b"bob", 3: None}, None),
    "row-ins-empty": (table(PK, pk_is_handle=True), {1: 7}, None),
    "row-ins-nopk": (T2, {1: -5, 2: b"x"}, 1),
    "row-ins-upk": (table(UNSIGNED_PK, INT, pk_is_handle=True), {1: (1 << 64) - 1, 2: 3}, None),
    "row-ins-common": (COMMON, {1: b"k1", 2: 9, 3: b"v"}, None),
    "row-ins-common2": (COMMON2, {1: b"k1", 2: "00:00:01", 3: "1.50", 4: 1}, None),
}


@pytest.mark.parametrize("vector_id", INSERTS)
def test_an_inserted_row(vector_id: str) -> None:
    info, values, handle = INSERTS[vector_id]
    assert decoder(info).insert(raw(vector_id)) == values
    assert encode_insert(info, values, handle=handle) == raw(vector_id)


def test_a_row_of_one_column() -> None:
    assert decoder(table(VARCHAR)).delete(raw("row-http")) == {1: b"A"}


def test_a_sort_key_in_the_handle_gives_way_to_the_row() -> None:
    key = column(Tp.VARCHAR, collate="utf8mb4_general_ci")
    info = table(key, INT, key=(0,))
    assert decoder(info).insert(raw("row-ins-common-restored")) == {1: b"ab", 2: 1}


@pytest.mark.parametrize(
    ("vector_id", "info", "old", "new", "handle"),
    [
        ("row-upd-pk", T1, {1: 7, 2: b"bob", 3: 42}, {1: 7, 2: b"rob", 3: None}, None),
        ("row-upd-nopk", T2, {1: -5, 2: b"x"}, {1: 6, 2: b"x"}, 1),
    ],
)
def test_an_updated_row(
    vector_id: str, info: Table, old: dict[int, Value], new: dict[int, Value], handle: int | None
) -> None:
    assert decoder(info).update(raw(vector_id)) == (old, new)
    assert encode_update(info, old, new, handle=handle) == raw(vector_id)


@pytest.mark.parametrize(
    ("vector_id", "info", "values", "handle"),
    [
        ("row-del-pk", T1, {1: 7, 2: b"bob", 3: 42}, None),
        ("row-del-nopk", T2, {1: -5, 2: None}, 1),
    ],
)
def test_a_deleted_row(
    vector_id: str, info: Table, values: dict[int, Value], handle: int | None
) -> None:
    assert decoder(info).delete(raw(vector_id)) == values
    assert encode_delete(info, values, handle=handle) == raw(vector_id)


@pytest.mark.parametrize("vector_id", ["v2-a", "v2-b", "v2-c"])
def test_a_row_of_the_storage_format_is_refused(vector_id: str) -> None:
    """TiDB writes none into a binlog; one that is there is not taken for anything else."""
    rows = decoder(T1)
    for decode, row in (
        (rows.insert, b"\x08\x02" + raw(vector_id)),
        (rows.update, raw(vector_id) * 2),
        (rows.delete, raw(vector_id)),
    ):
        with pytest.raises(CorruptRow, match="unknown flag 128"):
            decode(row)


# --- keys -------------------------------------------------------------------------------------


def record_key(table_id: int, handle: bytes) -> bytes:
    return b"t" + datum.comparable_int(table_id) + b"_r" + handle


def meta(key: bytes, kind: bytes) -> bytes:
    return b"m" + datum.memcomparable(key) + bytes(7) + kind


def field(key: bytes, name: bytes) -> bytes:
    return meta(key, b"h") + datum.memcomparable(name)


KEYS = {
    "k-record": record_key(43, datum.comparable_int(42451)),
    "k-index": b"t"
    + datum.comparable_int(59)
    + b"_i"
    + datum.comparable_int(2)
    + b"\x03"
    + datum.comparable_int(1)
    + b"\x05"
    + datum.comparable_float(1.1)
    + b"\x01"
    + datum.memcomparable(b"111"),
    "k-common": record_key(
        54,
        b"\x01"
        + datum.memcomparable(b"aaa")
        + b"\x04"
        + times.packed_time("2020-01-01").to_bytes(8, "big"),
    ),
    "k-ddlhist": field(b"DDLJobHistory", (888).to_bytes(8, "big")),
    "k-ddlhist-prefix": meta(b"DDLJobHistory", b"h"),
    "k-tid": field(b"DB:1", b"TID:3"),
    "k-tid2": field(b"DB:56", b"TID:108"),
    "k-schemaver": meta(b"SchemaVersionKey", b"s"),
    "k-diff": meta(b"Diff:26", b"s"),
    "k-dbs": field(b"DBs", b"DB:2"),
    "k-table": field(b"DB:2", b"Table:56"),
    "k-joblist-meta": meta(b"DDLJobList", b"L"),
    "k-joblist-item": meta(b"DDLJobList", b"l") + datum.comparable_int(0),
    "k-region": datum.memcomparable(record_key(43, datum.comparable_int(42451))),
}


@pytest.mark.parametrize("vector_id", KEYS)
def test_a_key_is_made_of_the_same_primitives(vector_id: str) -> None:
    assert KEYS[vector_id] == raw(vector_id)


def test_a_timestamp_is_milliseconds_and_a_counter() -> None:
    assert compose(1600000000000, 5) == int.from_bytes(raw("tso"), "big")


# --- messages ---------------------------------------------------------------------------------

START, COMMIT = Tso(419430400000000001), Tso(419430400026214402)
ROW_KEY = record_key(56, datum.comparable_int(7))
JOB_KEY = meta(b"DDLJobList", b"l") + datum.comparable_int(0)
CREATE = b"create table test.t1(id int primary key)"
MUTATION = Mutation(
    table_id=56,
    inserted=[raw("row-ins-pk")],
    updated=[raw("row-upd-pk")],
    deleted=[raw("row-upd-pk")[15:]],
    sequence=b"\x00\x01\x04",
)
CLUSTER = 6811111111111111111


def message(*parts: tuple[int, int | bytes]) -> bytes:
    """A message of varints and bytes; what an adapter for PD or etcd has to write."""
    return b"".join(
        fields.uvarint(number << 3) + fields.uvarint(value)
        if isinstance(value, int)
        else fields.uvarint(number << 3 | 2) + fields.uvarint(len(value)) + value
        for number, value in parts
    )


HEADER = message((1, 7))
MEMBER = message((1, b"pd1"), (2, 1), (3, b"http://127.0.0.1:2380"), (4, b"http://127.0.0.1:2379"))
PUMPS = b"/tidb-binlog/v1/pumps/"


def messages() -> dict[str, bytes]:
    value = encode_mutations(30, [MUTATION])
    rollback = rollback_binlog(START, prewrite_key=ROW_KEY)
    return {
        "pb-mutation": message(
            (1, 56),
            (2, MUTATION.inserted[0]),
            (3, MUTATION.updated[0]),
            (6, MUTATION.deleted[0]),
            (7, 0),
            (7, 1),
            (7, 4),
        ),
        "pb-prewritevalue": value,
        "pb-prewrite": prewrite_binlog(START, prewrite_key=ROW_KEY, prewrite_value=value),
        "pb-commit": commit_binlog(START, COMMIT, prewrite_key=ROW_KEY),
        "pb-rollback": rollback,
        "pb-ddl-pre": prewrite_binlog(
            START, prewrite_key=JOB_KEY, ddl_query=CREATE, ddl_job_id=57, ddl_schema_state=5
        ),
        "pb-ddl-commit": commit_binlog(
            START, COMMIT, prewrite_key=JOB_KEY, ddl_query=CREATE, ddl_job_id=57, ddl_schema_state=5
        ),
        "pb-ddl-dropcol": commit_binlog(
            START,
            COMMIT,
            prewrite_key=JOB_KEY,
            ddl_query=b"alter table t drop column c",
            ddl_job_id=58,
            ddl_schema_state=1,
        ),
        "pb-writereq": codec.encode_write_request(CLUSTER, rollback),
        "pb-probe": codec.encode_write_request(CLUSTER, b""),
        "pb-pullreq": codec.encode_pull_request(1, COMMIT),
        "pd-tso-req": message((1, HEADER), (2, 1)),
        "pd-tso-resp": message((1, HEADER), (2, 1), (3, message((1, 1600000000000), (2, 5)))),
        "pd-members": message((1, HEADER), (2, MEMBER), (3, MEMBER), (4, MEMBER)),
        "etcd-range-req": message((1, PUMPS), (2, PUMPS[:-1] + b"0")),
        "etcd-txn-create": message(
            (1, message((2, 2), (3, PUMPS + b"n1"), (6, 0))),
            (2, message((2, message((1, PUMPS + b"n1"), (2, b"{}"))))),
        ),
    }


MESSAGES = [each for each in VECTORS if VECTORS[each]["group"] in ("protobuf", "pd", "etcd")]


@pytest.mark.parametrize("vector_id", MESSAGES)
def test_a_message(vector_id: str) -> None:
    assert messages()[vector_id] == raw(vector_id)


def test_no_vector_is_forgotten() -> None:
    tried = {
        *MEMCOMPARABLE,
        *VARINTS,
        *UVARINTS,
        *DATUMS,
        *COMPARABLE,
        *JSON_TEXTS,
        *DECIMAL_ROUND_TRIPS,
        *PACKED,
        *INSERTS,
        *KEYS,
        *MESSAGES,
        *("d-str-64-head", "row-http", "row-ins-common-restored", "tso"),
        *("row-upd-pk", "row-upd-nopk", "row-del-pk", "row-del-nopk", "v2-a", "v2-b", "v2-c"),
    }
    assert tried == set(VECTORS)
    assert len(VECTORS) == 160
