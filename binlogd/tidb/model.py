"""Tables, columns, schemas and DDL jobs, as TiDB describes them in JSON.

Only what replication needs is kept; unknown keys are passed over, missing ones take the zero value,
as Go's decoder does. `Job.raw` keeps the job's own text, so nothing of it is lost.
Source: pingcap/tidb parser/model/{model,ddl}.go; docs/tidb_http_api.md (`/ddl/history`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict

from binlogd.errors import Corrupt
from binlogd.tidb.kinds import FLAG_NOT_NULL as FLAG_NOT_NULL
from binlogd.tidb.kinds import FLAG_PRIMARY_KEY as FLAG_PRIMARY_KEY
from binlogd.tidb.kinds import FLAG_UNSIGNED as FLAG_UNSIGNED
from binlogd.tidb.kinds import STRING_TYPES as STRING_TYPES
from binlogd.tidb.kinds import ActionType as ActionType
from binlogd.tidb.kinds import JobState as JobState
from binlogd.tidb.kinds import SchemaState as SchemaState
from binlogd.tidb.kinds import Tp as Tp
from binlogd.tidb.partitioning import NameJson, Partitioning, PartitionJson

Scalar = bool | int | float | str | None
"""A default value as JSON holds it; its form is not that of the column."""


@dataclass(frozen=True, slots=True)
class FieldType:
    """A column's type; `decimal` is the scale of DECIMAL, the fraction digits of times, -1 none."""

    tp: int
    flag: int = 0
    flen: int = -1
    decimal: int = -1
    charset: str = ""
    collate: str = ""
    elems: tuple[str, ...] = ()
    is_array: bool = False

    def label(self, number: int) -> str:
        """What a value of an ENUM or a SET says; "" for a number that no member of an ENUM has."""
        if self.tp == Tp.SET:
            return ",".join(name for bit, name in enumerate(self.elems) if number >> bit & 1)
        return self.elems[number - 1] if 0 < number <= len(self.elems) else ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column, of any state. Rows name it by `id`, which is never used again inside its table."""

    id: int
    name: str
    offset: int
    field_type: FieldType
    state: int = SchemaState.PUBLIC
    origin_default: Scalar = None
    origin_default_bit: bytes | None = None
    default: Scalar = None
    default_bit: bytes | None = None
    generated_expr: str = ""
    generated_stored: bool = False
    hidden: bool = False
    version: int = 2
    default_is_expr: bool = False
    comment: str = ""

    @property
    def is_public(self) -> bool:
        """Users can see it (unless it is hidden)."""
        return self.state == SchemaState.PUBLIC

    @property
    def is_generated(self) -> bool:
        """Computed by the database, stored or not."""
        return bool(self.generated_expr)

    @property
    def is_virtual(self) -> bool:
        """Generated and not stored: insert and update rows never hold it."""
        return bool(self.generated_expr) and not self.generated_stored

    @property
    def is_unsigned(self) -> bool:
        """Declared UNSIGNED."""
        return bool(self.field_type.flag & FLAG_UNSIGNED)

    @property
    def not_null(self) -> bool:
        """Declared NOT NULL."""
        return bool(self.field_type.flag & FLAG_NOT_NULL)

    @property
    def is_primary_key(self) -> bool:
        """Part of the primary key; of a `pk_is_handle` table it is the handle."""
        return bool(self.field_type.flag & FLAG_PRIMARY_KEY)

    @property
    def is_binary(self) -> bool:
        """Its bytes are no text (BINARY, VARBINARY, BLOB)."""
        kind = self.field_type
        return kind.charset == "binary" and kind.tp in STRING_TYPES


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """A column of an index; `offset` points into `Table.columns`, `length` -1 is all of it."""

    name: str
    offset: int
    length: int = -1


@dataclass(frozen=True, slots=True)
class Index:
    """An index. The primary key of a `pk_is_handle` table has none."""

    id: int
    name: str
    columns: tuple[IndexColumn, ...]
    state: int = SchemaState.PUBLIC
    is_unique: bool = False
    is_primary: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table, view or sequence; `columns` in offset order, those not public at the end."""

    id: int
    name: str
    columns: tuple[Column, ...]
    charset: str = "utf8mb4"
    collate: str = "utf8mb4_bin"
    indexes: tuple[Index, ...] = ()
    state: int = SchemaState.PUBLIC
    pk_is_handle: bool = False
    is_common_handle: bool = False
    version: int = 0
    partition_ids: tuple[int, ...] = ()
    partitioning: Partitioning | None = None
    is_view: bool = False
    is_sequence: bool = False
    references: tuple[tuple[str, str], ...] = ()
    """Database (may be "") and table of each foreign key."""
    has_ttl: bool = False
    """TiDB deletes rows by their age, in sessions that write no binlog."""

    def primary_index(self) -> Index | None:
        """The index that is the primary key; None where the key is the handle, or there is none."""
        return next((index for index in self.indexes if index.is_primary), None)

    def handle_column(self) -> Column | None:
        """The integer primary key that is the handle of a `pk_is_handle` table."""
        if not self.pk_is_handle:
            return None
        return next((column for column in self.columns if column.is_primary_key), None)

    def shown_columns(self) -> list[Column]:
        """Those that users see."""
        return [each for each in self.columns if each.is_public and not each.hidden]

    def stored_columns(self) -> list[Column]:
        """Those of them that rows hold: of virtual ones only a delete's binlog has values."""
        return [each for each in self.shown_columns() if not each.is_virtual]

    def primary_key(self) -> tuple[Column, ...]:
        """The columns of the primary key in its order, be it the handle or an index; () for none.
        An index may have beginnings of values only."""
        handle, index = self.handle_column(), self.primary_index()
        if handle is not None or index is None:
            return () if handle is None else (handle,)
        return tuple(self.columns[each.offset] for each in index.columns)

    @property
    def has_hidden_id(self) -> bool:
        """Whether rows are told apart by `_tidb_rowid`, and by no column of theirs."""
        return not (self.pk_is_handle or self.is_common_handle)


class Database(msgspec.Struct, frozen=True):
    """A schema; its tables are not inside."""

    id: int
    name: str
    charset: str = "utf8mb4"
    collate: str = "utf8mb4_bin"
    state: int = SchemaState.PUBLIC


class SessionZone(msgspec.Struct, frozen=True):
    """A time zone by its name or, where that is not 0, by its offset from UTC in seconds."""

    name: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A finished DDL job. What `schema_id`, `table_id` and `raw_args` mean depends on `type`.
    `finished_ts` lies behind the commit_ts of the job's binlog: never position a DDL by it."""

    id: int
    type: int
    schema_id: int
    table_id: int
    schema_name: str
    table_name: str
    state: int
    schema_state: int
    query: str
    start_ts: int
    schema_version: int
    finished_ts: int
    database: Database | None
    table: Table | None
    tables: tuple[Table, ...]
    raw_args: object
    raw: bytes
    real_start_ts: int = 0
    """When its first step was taken; `start_ts` is when it was queued."""
    snapshot_ts: int = 0
    """As of when rows were copied, if any were."""
    warnings: tuple[tuple[int, int], ...] = ()
    """Error codes of values that did not fit as they were copied, and how often each came."""
    was_strict: bool = True
    """A value that did not fit was an error upstream; told of a job that writes rows or indexes."""
    zone: SessionZone = field(default_factory=SessionZone)
    """That of the session; told of a job that writes rows or indexes."""
    view_select: str = ""
    """Of a job that makes a view: its SELECT as TiDB prints it, every name with its database."""

    @property
    def began_ts(self) -> int:
        """Nothing was done for it at or before this."""
        return self.real_start_ts or self.start_ts

    @property
    def is_done(self) -> bool:
        """The DDL took effect; a job rolled back or cancelled did not."""
        return self.state in (JobState.SYNCED, JobState.DONE)


@dataclass(frozen=True, slots=True)
class TableAt:
    """A table as the rows of one moment see it.

    `defaults_from` is the table at the rows' own schema version: what a missing column means. With
    None a missing column has its origin default, which is all that TiDB from 4.0.8 on asks for.
    `aliases` gives the id in `info` for a column id that only a coming schema knows.
    `may_lack_columns`: a column is being dropped, or the rows are older than the last DDL.
    """

    database: str
    info: Table
    version: int
    defaults_from: Table | None
    aliases: Mapping[int, int]
    may_lack_columns: bool

    @property
    def label(self) -> str:
        """Its name for people."""
        return f"{self.database}.{self.info.name}"


def jobs_from_json(data: bytes) -> list[Job]:
    """The jobs of a `/ddl/history` answer, in its order (which is any). Raises Corrupt."""
    return [job_from_json(bytes(raw)) for raw in _decoded(data, _HISTORY) or []]


def job_from_json(data: bytes) -> Job:
    """One job; `raw` is `data`. Raises Corrupt."""
    job = _decoded(data, _JOB)
    info, reorg = job.binlog or _HistoryJson(), job.reorg_meta or _ReorgJson()
    return Job(
        **_same(job, _JOB_FIELDS),
        schema_version=info.schema_version,
        finished_ts=info.finished_ts,
        database=info.database.database() if info.database else None,
        table=info.table.table() if info.table else None,
        tables=tuple(each.table() for each in info.tables or () if each),
        raw=data,
        warnings=_warnings(reorg.warnings_count or {}),
        was_strict=reorg.sql_mode is None or bool(reorg.sql_mode & _STRICT_MODES),
        zone=reorg.location or SessionZone(),
        view_select=info.table.view.view_select if info.table and info.table.view else "",
    )


def table_from_json(data: bytes) -> Table:
    """A table from TiDB's TableInfo JSON. Raises Corrupt."""
    return _decoded(data, _TABLE).table()


def table_to_json(table: Table) -> bytes:
    """A table as TiDB's TableInfo JSON, with the keys that `table_from_json` reads."""
    return msgspec.json.encode(_TableJson.of(table))


def database_from_json(data: bytes) -> Database:
    """A schema from TiDB's DBInfo JSON. Raises Corrupt."""
    return _decoded(data, _DATABASE).database()


def database_to_json(database: Database) -> bytes:
    """A schema as TiDB's DBInfo JSON."""
    return msgspec.json.encode(_DatabaseJson.of(database))


# --- the JSON itself -----------------------------------------------------------------------


def _same(of: object, names: Sequence[str]) -> dict[str, Any]:
    return {each: getattr(of, each) for each in names}


def _shared(stored: type[msgspec.Struct], made: type[Table | Job]) -> Sequence[str]:
    """What has one name, and one form, in the JSON and in what is made of it."""
    names = {each.name for each in fields(made)} - {"name"}
    return [each for each in stored.__struct_fields__ if each in names]


def _name(text: str) -> NameJson:
    return NameJson(text, text.lower())


class _FieldTypeJson(msgspec.Struct, frozen=True, rename="pascal"):
    tp: int = 0
    flag: int = 0
    flen: int = 0
    decimal: int = 0
    charset: str = ""
    collate: str = ""
    elems: tuple[str, ...] | None = None
    is_array: bool = msgspec.field(name="Array", default=False)

    def kind(self) -> FieldType:
        return FieldType(**asdict(self) | {"elems": self.elems or ()})

    @classmethod
    def of(cls, kind: FieldType) -> _FieldTypeJson:
        return cls(**_same(kind, cls.__struct_fields__) | {"elems": kind.elems or None})


class _ColumnJson(msgspec.Struct, frozen=True):
    id: int = 0
    name: NameJson = NameJson()
    offset: int = 0
    origin_default: Scalar = None
    origin_default_bit: bytes | None = None
    default: Scalar = None
    default_bit: bytes | None = None
    generated_expr: str = msgspec.field(name="generated_expr_string", default="")
    generated_stored: bool = False
    field_type: _FieldTypeJson = msgspec.field(name="type", default=_FieldTypeJson())
    state: int = 0
    hidden: bool = False
    version: int = 0
    default_is_expr: bool = False
    comment: str = ""

    def column(self) -> Column:
        own = {"name": self.name.original, "field_type": self.field_type.kind()}
        return Column(**asdict(self) | own)

    @classmethod
    def of(cls, column: Column) -> _ColumnJson:
        own = {"name": _name(column.name), "field_type": _FieldTypeJson.of(column.field_type)}
        return cls(**_same(column, cls.__struct_fields__) | own)


class _IndexColumnJson(msgspec.Struct, frozen=True):
    name: NameJson = NameJson()
    offset: int = 0
    length: int = 0


class _IndexJson(msgspec.Struct, frozen=True):
    id: int = 0
    name: NameJson = msgspec.field(name="idx_name", default=NameJson())
    columns: tuple[_IndexColumnJson, ...] | None = msgspec.field(name="idx_cols", default=None)
    state: int = 0
    is_unique: bool = False
    is_primary: bool = False

    def index(self) -> Index:
        columns = (
            IndexColumn(each.name.original, each.offset, each.length) for each in self.columns or ()
        )
        return Index(**asdict(self) | {"name": self.name.original, "columns": tuple(columns)})

    @classmethod
    def of(cls, index: Index) -> _IndexJson:
        columns = tuple(
            _IndexColumnJson(_name(each.name), each.offset, each.length) for each in index.columns
        )
        own = {"name": _name(index.name), "columns": columns}
        return cls(**_same(index, cls.__struct_fields__) | own)


class _PresentJson(msgspec.Struct, frozen=True):
    """An object whose being there is all that matters."""


class _ViewJson(msgspec.Struct, frozen=True, omit_defaults=True):
    view_select: str = ""


class _ForeignKeyJson(msgspec.Struct, frozen=True):
    ref_schema: NameJson = NameJson()
    ref_table: NameJson = NameJson()


class _TtlJson(msgspec.Struct, frozen=True):
    enable: bool = False


class _TableJson(msgspec.Struct, frozen=True):
    id: int = 0
    name: NameJson = NameJson()
    charset: str = ""
    collate: str = ""
    cols: tuple[_ColumnJson, ...] | None = None
    index_info: tuple[_IndexJson, ...] | None = None
    state: int = 0
    pk_is_handle: bool = False
    is_common_handle: bool = False
    version: int = 0
    partition: PartitionJson | None = None
    view: _ViewJson | None = None
    sequence: _PresentJson | None = None
    fk_info: tuple[_ForeignKeyJson, ...] | None = None
    ttl_info: _TtlJson | None = None

    def table(self) -> Table:
        """The table that it describes."""
        partitioning = self.partition.partitioning() if self.partition else None
        return Table(
            **_same(self, _TABLE_FIELDS),
            name=self.name.original,
            columns=tuple(each.column() for each in self.cols or ()),
            indexes=tuple(each.index() for each in self.index_info or ()),
            partition_ids=tuple(each.id for each in partitioning.parts) if partitioning else (),
            partitioning=partitioning,
            is_view=self.view is not None,
            is_sequence=self.sequence is not None,
            references=tuple(
                (each.ref_schema.original, each.ref_table.original) for each in self.fk_info or ()
            ),
            has_ttl=self.ttl_info is not None and self.ttl_info.enable,
        )

    @classmethod
    def of(cls, table: Table) -> _TableJson:
        return cls(
            **_same(table, _TABLE_FIELDS),
            name=_name(table.name),
            cols=tuple(_ColumnJson.of(each) for each in table.columns),
            index_info=tuple(_IndexJson.of(each) for each in table.indexes) or None,
            partition=PartitionJson.of(table.partition_ids, table.partitioning),
            view=_ViewJson() if table.is_view else None,
            sequence=_PresentJson() if table.is_sequence else None,
            fk_info=tuple(
                _ForeignKeyJson(_name(database), _name(name)) for database, name in table.references
            )
            or None,
            ttl_info=_TtlJson(enable=True) if table.has_ttl else None,
        )


class _DatabaseJson(msgspec.Struct, frozen=True):
    id: int = 0
    name: NameJson = msgspec.field(name="db_name", default=NameJson())
    charset: str = ""
    collate: str = ""
    state: int = 0

    def database(self) -> Database:
        return Database(**asdict(self) | {"name": self.name.original})

    @classmethod
    def of(cls, database: Database) -> _DatabaseJson:
        return cls(**_same(database, cls.__struct_fields__) | {"name": _name(database.name)})


class _HistoryJson(msgspec.Struct, frozen=True):
    schema_version: int = msgspec.field(name="SchemaVersion", default=0)
    database: _DatabaseJson | None = msgspec.field(name="DBInfo", default=None)
    table: _TableJson | None = msgspec.field(name="TableInfo", default=None)
    finished_ts: int = msgspec.field(name="FinishedTS", default=0)
    tables: tuple[_TableJson | None, ...] | None = msgspec.field(
        name="MultipleTableInfos", default=None
    )


class _ReorgJson(msgspec.Struct, frozen=True):
    warnings_count: dict[str, int] | None = None
    sql_mode: int | None = None
    location: SessionZone | None = None


class _JobJson(msgspec.Struct, frozen=True):
    id: int = 0
    type: int = 0
    schema_id: int = 0
    table_id: int = 0
    schema_name: str = ""
    table_name: str = ""
    state: int = 0
    schema_state: int = 0
    query: str = ""
    start_ts: int = 0
    real_start_ts: int = 0
    snapshot_ts: int = msgspec.field(name="snapshot_ver", default=0)
    raw_args: object = None
    binlog: _HistoryJson | None = None
    reorg_meta: _ReorgJson | None = None


_HISTORY = msgspec.json.Decoder(list[msgspec.Raw] | None)
_JOB = msgspec.json.Decoder(_JobJson)
_TABLE = msgspec.json.Decoder(_TableJson)
_DATABASE = msgspec.json.Decoder(_DatabaseJson)
_TABLE_FIELDS = _shared(_TableJson, Table)
_JOB_FIELDS = _shared(_JobJson, Job)

_STRICT_MODES = 1 << 21 | 1 << 22
"""STRICT_TRANS_TABLES and STRICT_ALL_TABLES. Source: pingcap/tidb parser/mysql/const.go."""
T = TypeVar("T")


def _decoded(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"schema JSON of the upstream does not decode: {error}") from error


def _warnings(found: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """A key is `types:1292`, of an error's class and its code."""
    counts = ((key.rpartition(":")[2], count) for key, count in found.items())
    return tuple((int(code), count) for code, count in counts if code.isdecimal())
