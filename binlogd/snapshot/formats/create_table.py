"""CREATE TABLE and CREATE DATABASE of what TiDB's TableInfo says, for MySQL and for TiDB.

Columns, defaults, generated columns, keys, character sets and comments. Left out: partitions,
foreign keys and the options that only a cluster has (AUTO_RANDOM, placement, TTL), none of which
decide what a row holds. A default from a sequence becomes a comment, as the sequence is elsewhere.
Source: TiDB executor/show.go for the order of clauses.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlogd.snapshot.formats.columns import mysql_type
from binlogd.snapshot.formats.file_kinds import quoted
from binlogd.tidb.ddl_text import escaped
from binlogd.tidb.kinds import (
    FLAG_AUTO_INCREMENT,
    FLAG_ON_UPDATE_NOW,
    STRING_TYPES,
    SchemaState,
    Tp,
)
from binlogd.tidb.model import Column, Database, Index, Table

_LABELLED = (Tp.ENUM, Tp.SET)
_NOW = "CURRENT_TIMESTAMP"
_NO_DEFAULT = (Tp.JSON, Tp.TINY_BLOB, Tp.BLOB, Tp.MEDIUM_BLOB, Tp.LONG_BLOB)


def create_database(database: Database) -> str:
    """CREATE DATABASE, with its character set."""
    charset = f" /*!40100 DEFAULT CHARACTER SET {database.charset} */" if database.charset else ""
    return f"CREATE DATABASE {quoted(database.name)}{charset}"


def create_table(info: Table, shown: Sequence[Column]) -> str:
    """CREATE TABLE with these columns of the table, and its keys."""
    parts = [_column(info, column) for column in shown]
    parts += _keys(info)
    text = f"CREATE TABLE {quoted(info.name)} (\n  " + ",\n  ".join(parts) + "\n)"
    if info.charset:
        text += f" DEFAULT CHARSET={info.charset}"
    if info.collate:
        text += f" COLLATE={info.collate}"
    return text


def _column(info: Table, column: Column) -> str:
    words = [quoted(column.name), _type(info, column)]
    if column.is_generated:
        stored = "STORED" if column.generated_stored else "VIRTUAL"
        words.append(f"GENERATED ALWAYS AS ({escaped(column.generated_expr)}) {stored}")
    if column.not_null:
        words.append("NOT NULL")
    elif column.field_type.tp == Tp.TIMESTAMP:  # which MySQL takes for NOT NULL
        words.append("NULL")
    if column.field_type.flag & FLAG_AUTO_INCREMENT:
        words.append("AUTO_INCREMENT")
    elif not column.is_generated:
        words += _default(column)
    if column.field_type.flag & FLAG_ON_UPDATE_NOW:
        words.append("ON UPDATE " + _now(column))
    if column.comment:
        words.append("COMMENT " + _text(column.comment))
    return " ".join(words)


def _type(info: Table, column: Column) -> str:
    kind = column.field_type
    text = mysql_type(column)
    if kind.tp in _LABELLED:
        text = text.replace("\\", "\\\\")
    is_text = (kind.tp in STRING_TYPES or kind.tp in _LABELLED) and not column.is_binary
    if is_text and kind.charset and (kind.charset, kind.collate) != (info.charset, info.collate):
        text += f" CHARACTER SET {kind.charset}"
        text += f" COLLATE {kind.collate}" if kind.collate else ""
    return text


def _default(column: Column) -> list[str]:
    if column.default is None:
        can_be_null = not column.not_null and column.field_type.tp not in _NO_DEFAULT
        return ["DEFAULT NULL"] if can_be_null else []
    text = str(column.default)
    if column.default_is_expr:
        if text.lower().startswith("nextval("):
            return [f"/* DEFAULT {text.replace('*/', '* /')} */"]
        return [f"DEFAULT ({escaped(text)})"]
    return ["DEFAULT " + _literal(column, text)]


def _literal(column: Column, text: str) -> str:
    tp = column.field_type.tp
    if tp in (Tp.TIMESTAMP, Tp.DATETIME) and text.upper().startswith(_NOW):
        return _now(column)
    if tp == Tp.BIT:
        return f"b'{int.from_bytes(column.default_bit or b''):b}'"
    if column.is_binary:
        return f"x'{text.encode().hex()}'"
    return _text(text)


def _now(column: Column) -> str:
    fraction = column.field_type.decimal
    return f"{_NOW}({fraction})" if fraction > 0 else _NOW


def _text(text: str) -> str:
    for old, new in (("\\", "\\\\"), ("'", "''"), ("\0", "\\0"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(old, new)
    return f"'{text}'"


def _keys(info: Table) -> list[str]:
    found = []
    handle = info.handle_column()
    if handle is not None:
        found.append(f"PRIMARY KEY ({quoted(handle.name)}) {_CLUSTERED}")
    for index in info.indexes:
        if index.state != SchemaState.PUBLIC:
            continue
        columns = ",".join(_key_part(info, index, at) for at in range(len(index.columns)))
        if index.is_primary:
            kind = _CLUSTERED if info.is_common_handle else _NONCLUSTERED
            found.append(f"PRIMARY KEY ({columns}) {kind}")
        else:
            unique = "UNIQUE " if index.is_unique else ""
            found.append(f"{unique}KEY {quoted(index.name)} ({columns})")
    return found


_CLUSTERED = "/*T![clustered_index] CLUSTERED */"
_NONCLUSTERED = "/*T![clustered_index] NONCLUSTERED */"


def _key_part(info: Table, index: Index, at: int) -> str:
    part = index.columns[at]
    column = info.columns[part.offset]
    if column.hidden:  # an index on an expression
        return f"({escaped(column.generated_expr)})"
    length = f"({part.length})" if part.length > 0 else ""
    return quoted(column.name) + length
