"""Tables as a TiDB would make them: column types, `CREATE TABLE` in canonical text, TableInfo JSON.

The numbers (flags, lengths, character sets) are those that TiDB 6.6 serves at `/ddl/history`.
Source: pingcap/tidb parser/mysql/{type,util}.go, ddl/ddl_api.go, parser/ast/ddl.go (Restore).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from binlogd.tidb.kinds import PartitionKind, SchemaState, Tp
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Scalar, Table
from binlogd.tidb.partitioning import Partition, Partitioning

Json = dict[str, object]

NOT_NULL, PRIMARY_KEY, UNIQUE_KEY, MULTIPLE_KEY = 0x1, 0x2, 0x4, 0x8
UNSIGNED, ZEROFILL, BINARY, AUTO_INCREMENT, NO_DEFAULT = 0x20, 0x40, 0x80, 0x200, 0x1000

_INTEGERS = {
    "TINYINT": (Tp.TINY, 4, 3),
    "SMALLINT": (Tp.SHORT, 6, 5),
    "MEDIUMINT": (Tp.INT24, 9, 8),
    "INT": (Tp.LONG, 11, 10),
    "BIGINT": (Tp.LONGLONG, 20, 20),
}
_TEXTS = {
    "TINY": (Tp.TINY_BLOB, 255),
    "": (Tp.BLOB, 65535),
    "MEDIUM": (Tp.MEDIUM_BLOB, 16777215),
    "LONG": (Tp.LONG_BLOB, 4294967295),
}
_TEMPORAL_WIDTH = {Tp.DATETIME: 19, Tp.TIMESTAMP: 19, Tp.DURATION: 10}
_UTF8 = ("utf8mb4", "utf8mb4_bin")


def _plain(tp: int, flen: int, decimal: int = 0, flag: int = 0) -> FieldType:
    return FieldType(tp, flag, flen, decimal, "binary", "binary")


def integer(name: str = "INT", *, unsigned: bool = False) -> FieldType:
    """TINYINT to BIGINT."""
    tp, signed_flen, unsigned_flen = _INTEGERS[name]
    return _plain(tp, unsigned_flen if unsigned else signed_flen, 0, UNSIGNED if unsigned else 0)


def real(name: str) -> FieldType:
    """FLOAT or DOUBLE."""
    return _plain(Tp.FLOAT, 12, -1) if name == "FLOAT" else _plain(Tp.DOUBLE, 22, -1)


def decimal(digits: int, scale: int) -> FieldType:
    """DECIMAL(digits, scale)."""
    return _plain(Tp.NEW_DECIMAL, digits, scale)


def bits(width: int) -> FieldType:
    """BIT(width)."""
    return _plain(Tp.BIT, width, 0, UNSIGNED)


def year() -> FieldType:
    """YEAR."""
    return _plain(Tp.YEAR, 4, 0, UNSIGNED | ZEROFILL)


def date() -> FieldType:
    """DATE."""
    return _plain(Tp.DATE, 10, 0, BINARY)


def temporal(tp: Tp, fsp: int = 0) -> FieldType:
    """DATETIME, TIMESTAMP or TIME (`Tp.DURATION`) with `fsp` digits behind the second."""
    return _plain(tp, _TEMPORAL_WIDTH[tp] + (fsp + 1 if fsp else 0), fsp, BINARY)


def json() -> FieldType:
    """JSON."""
    return _plain(Tp.JSON, 4294967295, 0, BINARY)


def char(length: int) -> FieldType:
    """CHAR(length) in utf8mb4_bin."""
    return FieldType(Tp.STRING, 0, length, 0, *_UTF8)


def varchar(length: int) -> FieldType:
    """VARCHAR(length) in utf8mb4_bin."""
    return FieldType(Tp.VARCHAR, 0, length, 0, *_UTF8)


def binary(length: int) -> FieldType:
    """BINARY(length)."""
    return _plain(Tp.STRING, length, 0, BINARY)


def varbinary(length: int) -> FieldType:
    """VARBINARY(length)."""
    return _plain(Tp.VARCHAR, length, 0, BINARY)


def text(size: str = "") -> FieldType:
    """TEXT, or "TINY", "MEDIUM", "LONG" of it."""
    tp, flen = _TEXTS[size]
    return FieldType(tp, 0, flen, 0, *_UTF8)


def blob(size: str = "") -> FieldType:
    """BLOB, or "TINY", "MEDIUM", "LONG" of it."""
    tp, flen = _TEXTS[size]
    return _plain(tp, flen, 0, BINARY)


def enum(*members: str) -> FieldType:
    """ENUM."""
    return FieldType(Tp.ENUM, 0, max(map(len, members)), 0, *_UTF8, elems=members)


def set_of(*members: str) -> FieldType:
    """SET."""
    return FieldType(Tp.SET, 0, len(",".join(members)), 0, *_UTF8, elems=members)


@dataclass(frozen=True, slots=True)
class ColumnDef:
    """A column as a user declares it; `default` is text as TiDB keeps it."""

    name: str
    kind: FieldType
    not_null: bool = False
    default: Scalar = None
    auto_increment: bool = False


@dataclass(frozen=True, slots=True)
class TableDef:
    """A table as a user declares it. `clustered` matters for keys that are no single integer.

    `bounds`: RANGE partitions of a primary key that is one integer, and one above the last bound.
    """

    database: str
    name: str
    columns: tuple[ColumnDef, ...]
    primary: tuple[str, ...] = ()
    clustered: bool = True
    unique: tuple[tuple[str, ...], ...] = ()
    keys: tuple[tuple[str, ...], ...] = ()
    bounds: tuple[int, ...] = ()

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self.bounds) + 1 if self.bounds else 0


_NO_BOUND = "MAXVALUE"


def build_table(definition: TableDef, table_id: int, partition_ids: Sequence[int] = ()) -> Table:
    """The TableInfo that TiDB makes of a declaration; column ids count from 1."""
    columns = tuple(
        build_column(column, column_id=n + 1, offset=n)
        for n, column in enumerate(definition.columns)
    )
    table = Table(
        id=table_id,
        name=definition.name,
        columns=columns,
        pk_is_handle=_has_integer_key(definition),
        is_common_handle=bool(definition.primary)
        and definition.clustered
        and not _has_integer_key(definition),
        version=5,
    )
    if definition.primary:
        table = _with_primary(table, definition.primary)
    for is_unique, groups in ((True, definition.unique), (False, definition.keys)):
        for names in groups:
            table = with_index(table, "_".join(names), names, is_unique=is_unique)
    if definition.bounds:
        bounds = (*map(str, definition.bounds), _NO_BOUND)
        parts = [
            Partition(each, (bound,)) for each, bound in zip(partition_ids, bounds, strict=True)
        ]
        table = with_partitions(table, quoted(*definition.primary), parts)
    return table


def with_partitions(table: Table, expr: str, parts: Iterable[Partition]) -> Table:
    """The table in these ranges of `expr`."""
    partitioning = Partitioning(PartitionKind.RANGE, expr, (), tuple(parts))
    ids = tuple(each.id for each in partitioning.parts)
    return replace(table, partition_ids=ids, partitioning=partitioning)


def partition_name(partition: Partition) -> str:
    """After its bound."""
    return "p_" + partition.less_than[0].replace("-", "minus_")


def is_below(key: int, partition: Partition) -> bool:
    """Whether a key lies below the bound of a partition."""
    (bound,) = partition.less_than
    return bound == _NO_BOUND or key < int(bound)


def build_column(
    column: ColumnDef, *, column_id: int, offset: int, origin_default: Scalar = None
) -> Column:
    """The ColumnInfo that TiDB makes of a declaration."""
    flag = column.kind.flag
    if column.not_null:
        flag |= NOT_NULL
        if column.default is None and not column.auto_increment:
            flag |= NO_DEFAULT
    if column.auto_increment:
        flag |= AUTO_INCREMENT
    return Column(
        id=column_id,
        name=column.name,
        offset=offset,
        field_type=replace(column.kind, flag=flag),
        origin_default=origin_default,
        default=column.default,
    )


def with_index(
    table: Table, name: str, columns: tuple[str, ...], *, is_unique: bool, is_primary: bool = False
) -> Table:
    """The table with one index more; ids go on from the largest there ever was in `indexes`."""
    by_name = {column.name: column for column in table.columns}
    index = Index(
        id=max((each.id for each in table.indexes), default=0) + 1,
        name=name,
        columns=tuple(IndexColumn(each, by_name[each].offset) for each in columns),
        is_unique=is_unique or is_primary,
        is_primary=is_primary,
    )
    if not is_primary:
        lone_unique = is_unique and len(columns) == 1
        table = flagged(table, columns[0], UNIQUE_KEY if lone_unique else MULTIPLE_KEY)
    return replace(table, indexes=(*table.indexes, index))


def flagged(table: Table, column: str, flag: int) -> Table:
    """The table with `flag` set in the type of a column."""
    return replace(
        table,
        columns=tuple(
            replace(each, field_type=replace(each.field_type, flag=each.field_type.flag | flag))
            if each.name == column
            else each
            for each in table.columns
        ),
    )


def _has_integer_key(definition: TableDef) -> bool:
    if len(definition.primary) != 1 or not definition.clustered:
        return False
    (key,) = definition.primary
    integers = {tp for tp, _, _ in _INTEGERS.values()}
    return any(each.name == key and each.kind.tp in integers for each in definition.columns)


def _with_primary(table: Table, names: tuple[str, ...]) -> Table:
    by_name = {column.name: column for column in table.columns}
    for name in names:
        no_default = by_name[name].default is None and not (
            by_name[name].field_type.flag & AUTO_INCREMENT
        )
        table = flagged(table, name, NOT_NULL | PRIMARY_KEY | (NO_DEFAULT if no_default else 0))
    if table.pk_is_handle:
        return table
    return with_index(table, "PRIMARY", names, is_unique=True, is_primary=True)


# --- SQL as TiDB prints it ----------------------------------------------------------------


def quoted(*names: str) -> str:
    """Names in back quotes, joined by dots."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def literal(value: str) -> str:
    """A string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def create_table_sql(definition: TableDef) -> str:
    """`CREATE TABLE` without the closing semicolon, TiDB's own words in comments."""
    parts = [column_sql(column) for column in definition.columns]
    if definition.primary:
        names = ", ".join(quoted(name) for name in definition.primary)
        if _has_integer_key(definition):
            clustering = ""
        else:
            word = "CLUSTERED" if definition.clustered else "NONCLUSTERED"
            clustering = f" /*T![clustered_index] {word} */"
        parts.append(f"PRIMARY KEY({names}){clustering}")
    for word, groups in (("UNIQUE", definition.unique), ("INDEX", definition.keys)):
        for group in groups:
            names = ", ".join(quoted(name) for name in group)
            parts.append(f"{word} {quoted('_'.join(group))}({names})")
    return (
        f"CREATE TABLE {quoted(definition.database, definition.name)} ({','.join(parts)})"
        " DEFAULT CHARACTER SET = UTF8MB4 DEFAULT COLLATE = UTF8MB4_BIN"
        + _partitions_sql(definition)
    )


def _partitions_sql(definition: TableDef) -> str:
    if not definition.bounds:
        return ""
    parts = ",".join(
        f"PARTITION {quoted(partition_name(Partition(0, (bound,))))} VALUES LESS THAN ({bound})"
        for bound in (*map(str, definition.bounds), _NO_BOUND)
    )
    return f" PARTITION BY RANGE ({quoted(*definition.primary)}) ({parts})"


def column_sql(column: ColumnDef) -> str:
    """One column of CREATE TABLE or ADD COLUMN."""
    words = [quoted(column.name), type_sql(column.kind)]
    if column.not_null:
        words.append("NOT NULL")
    elif column.kind.tp == Tp.TIMESTAMP:
        words.append("NULL")
    if column.auto_increment:
        words.append("AUTO_INCREMENT")
    if column.default is not None:
        words.append(f"DEFAULT {default_sql(column)}")
    return " ".join(words)


def default_sql(column: ColumnDef) -> str:
    """The default as TiDB prints it: numbers plain, text with its introducer."""
    text_of = str(column.default)
    return text_of if column.kind.tp in _PLAIN_DEFAULTS else "_UTF8MB4" + literal(text_of)


_PLAIN_DEFAULTS = {*(tp for tp, _, _ in _INTEGERS.values()), Tp.NEW_DECIMAL}
_NAMES = {tp: name for name, (tp, _, _) in _INTEGERS.items()}
_BLOB_SIZES = {tp: size for size, (tp, _) in _TEXTS.items()}
_BARE = {
    Tp.FLOAT: "FLOAT",
    Tp.DOUBLE: "DOUBLE",
    Tp.YEAR: "YEAR",
    Tp.DATE: "DATE",
    Tp.JSON: "JSON",
}
_TEMPORAL = {Tp.DATETIME: "DATETIME", Tp.TIMESTAMP: "TIMESTAMP", Tp.DURATION: "TIME"}


def type_sql(kind: FieldType) -> str:
    """A type as TiDB prints it."""
    if kind.tp in _NAMES:
        return _NAMES[Tp(kind.tp)] + (" UNSIGNED" if kind.flag & UNSIGNED else "")
    if kind.tp in _BARE:
        return _BARE[Tp(kind.tp)]
    if kind.tp in _TEMPORAL:
        return _TEMPORAL[Tp(kind.tp)] + (f"({kind.decimal})" if kind.decimal > 0 else "")
    if kind.tp == Tp.NEW_DECIMAL:
        return f"DECIMAL({kind.flen},{kind.decimal})"
    if kind.tp == Tp.BIT:
        return f"BIT({kind.flen})"
    return _string_sql(kind)


def _string_sql(kind: FieldType) -> str:
    is_binary = kind.charset == "binary"
    if kind.tp in (Tp.ENUM, Tp.SET):
        word = "ENUM" if kind.tp == Tp.ENUM else "SET"
        return f"{word}({','.join(map(literal, kind.elems))})"
    if kind.tp in _BLOB_SIZES:
        return _BLOB_SIZES[Tp(kind.tp)] + ("BLOB" if is_binary else "TEXT")
    word = "CHAR" if kind.tp == Tp.STRING else "VARCHAR"
    if is_binary:
        word = "BINARY" if kind.tp == Tp.STRING else "VARBINARY"
    return f"{word}({kind.flen})"


# --- JSON as TiDB serves it ---------------------------------------------------------------


def name_json(name: str) -> Json:
    """A name as TiDB writes it: original and lower case."""
    return {"O": name, "L": name.lower()}


def database_json(database_id: int, name: str) -> Json:
    """A DBInfo."""
    return {
        "id": database_id,
        "db_name": name_json(name),
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "state": int(SchemaState.PUBLIC),
        "policy_ref_info": None,
    }


def table_json(
    table: Table, *, max_column_id: int, max_index_id: int, updated_ts: int, state: int
) -> Json:
    """A TableInfo with every key that TiDB 6.6 writes."""
    return {
        "id": table.id,
        "name": name_json(table.name),
        "charset": table.charset,
        "collate": table.collate,
        "cols": [_column_json(column) for column in table.columns],
        "index_info": [_index_json(index) for index in table.indexes] or None,
        "constraint_info": None,
        "fk_info": None,
        "state": state,
        "pk_is_handle": table.pk_is_handle,
        "is_common_handle": table.is_common_handle,
        "common_handle_version": 1 if table.is_common_handle else 0,
        "comment": "",
        "auto_inc_id": 0,
        "auto_id_cache": 0,
        "auto_rand_id": 0,
        "max_col_id": max_column_id,
        "max_idx_id": max_index_id,
        "max_fk_id": 0,
        "max_cst_id": 0,
        "update_timestamp": updated_ts,
        "ShardRowIDBits": 0,
        "max_shard_row_id_bits": 0,
        "auto_random_bits": 0,
        "auto_random_range_bits": 0,
        "pre_split_regions": 0,
        "partition": _partition_json(table),
        "compression": "",
        "view": None,
        "sequence": None,
        "Lock": None,
        "version": table.version,
        "tiflash_replica": None,
        "is_columnar": False,
        "temp_table_type": 0,
        "cache_table_status": 0,
        "policy_ref_info": None,
        "stats_options": None,
        "exchange_partition_info": None,
        "ttl_info": None,
    }


def _partition_json(table: Table) -> Json | None:
    if table.partitioning is None:
        return None
    return {
        "type": int(table.partitioning.kind),
        "expr": table.partitioning.expr,
        "columns": None,
        "enable": True,
        "definitions": [
            {
                "id": each.id,
                "name": name_json(partition_name(each)),
                "less_than": list(each.less_than),
                "in_values": None,
                "policy_ref_info": None,
            }
            for each in table.partitioning.parts
        ],
        "adding_definitions": None,
        "dropping_definitions": None,
        "states": None,
        "num": len(table.partition_ids),
        "ddl_state": 0,
    }


def _column_json(column: Column) -> Json:
    kind = column.field_type
    bit = column.default_bit
    origin_bit = column.origin_default_bit
    return {
        "id": column.id,
        "name": name_json(column.name),
        "offset": column.offset,
        "origin_default": column.origin_default,
        "origin_default_bit": None if origin_bit is None else base64.b64encode(origin_bit).decode(),
        "default": column.default,
        "default_bit": None if bit is None else base64.b64encode(bit).decode(),
        "default_is_expr": False,
        "generated_expr_string": column.generated_expr,
        "generated_stored": column.generated_stored,
        "dependences": None,
        "type": {
            "Tp": int(kind.tp),
            "Flag": kind.flag,
            "Flen": kind.flen,
            "Decimal": kind.decimal,
            "Charset": kind.charset,
            "Collate": kind.collate,
            "Elems": list(kind.elems) or None,
            "ElemsIsBinaryLit": None,
            "Array": False,
        },
        "state": int(column.state),
        "comment": "",
        "hidden": column.hidden,
        "change_state_info": None,
        "version": column.version,
    }


def _index_json(index: Index) -> Json:
    return {
        "id": index.id,
        "idx_name": {"O": index.name, "L": index.name.lower()},
        "tbl_name": name_json(""),
        "idx_cols": [
            {"name": name_json(each.name), "offset": each.offset, "length": each.length}
            for each in index.columns
        ],
        "state": int(index.state),
        "backfill_state": 0,
        "comment": "",
        "index_type": 1,
        "is_unique": index.is_unique,
        "is_primary": index.is_primary,
        "is_invisible": False,
        "is_global": False,
        "mv_index": False,
    }
