"""Tables of every type of column and of each form, with a row of each, for searches."""

from __future__ import annotations

import json
from pathlib import Path

from binlogd.tidb.columns import Value
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, FLAG_UNSIGNED, Tp
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table, TableAt

_VECTORS = Path(__file__).parents[1] / "golden" / "vectors.json"
_COLUMNS: list[tuple[FieldType, Value]] = [
    (FieldType(Tp.LONGLONG), -5),
    (FieldType(Tp.LONG, FLAG_UNSIGNED), 1 << 31),
    (FieldType(Tp.TINY), 1),
    (FieldType(Tp.VARCHAR, 0, 200, charset="utf8mb4", collate="utf8mb4_bin"), b"text"),
    (FieldType(Tp.BLOB, 0, 200, charset="binary", collate="binary"), b"\x00\xff"),
    (FieldType(Tp.STRING, 0, 20, charset="utf8mb4", collate="utf8mb4_general_ci"), b"a"),
    (FieldType(Tp.NEW_DECIMAL, 0, 20, 4), "12.5000"),
    (FieldType(Tp.DOUBLE), 1.5),
    (FieldType(Tp.FLOAT), 0.25),
    (FieldType(Tp.DATE), "2026-01-02"),
    (FieldType(Tp.DATETIME, decimal=3), "2026-01-02 03:04:05.678"),
    (FieldType(Tp.TIMESTAMP), "2026-01-02 03:04:05"),
    (FieldType(Tp.DURATION, decimal=2), "-01:02:03.45"),
    (FieldType(Tp.YEAR, FLAG_UNSIGNED, 4), 2026),
    (FieldType(Tp.BIT, FLAG_UNSIGNED, 12), 0xABC),
    (FieldType(Tp.ENUM, elems=("x", "y")), 2),
    (FieldType(Tp.SET, elems=("x", "y", "z")), 5),
    (FieldType(Tp.JSON), '{"a": [1, "b"]}'),
]


def _table(chosen: list[int], *, key: str) -> tuple[TableAt, dict[int, Value]]:
    columns, values = [], {}
    for place, number in enumerate(chosen):
        kind, value = _COLUMNS[number]
        is_key = (key == "clustered" and place < 2) or (key == "handle" and place == 0)
        flag = kind.flag | (FLAG_PRIMARY_KEY | FLAG_NOT_NULL if is_key else 0)
        typed = FieldType(
            kind.tp, flag, kind.flen, kind.decimal, kind.charset, kind.collate, kind.elems
        )
        columns.append(Column(place + 1, f"c{place + 1}", place, typed))
        values[place + 1] = value
    places = (IndexColumn("", 0), IndexColumn("", 1))
    primary = Index(1, "PRIMARY", places, is_unique=True, is_primary=True)
    table = Table(
        7,
        "t",
        tuple(columns),
        indexes=(primary,) if key == "clustered" else (),
        pk_is_handle=key == "handle",
        is_common_handle=key == "clustered",
    )
    return TableAt("d", table, 1, None, {}, may_lack_columns=False), values


_MADE = [
    _table(list(range(len(_COLUMNS))), key=""),
    _table([0, 3, 6, 17], key="handle"),
    _table([3, 10, 0, 7], key="clustered"),
    _table([4, 6, 5, 12], key="clustered"),
]
TABLES = [table for table, _ in _MADE]
VALUES = [values for _, values in _MADE]


def vectors(*groups: str) -> list[bytes]:
    """Bytes that TiDB's own encoders made."""
    found = json.loads(_VECTORS.read_text())
    return [bytes.fromhex(each["hex"]) for each in found if each["group"] in groups]
