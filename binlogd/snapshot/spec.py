"""What the exporting process and the Spark job tell each other: a spec in, events out, both JSON.

The spec is the only interface between the two. The same file serves the child process on this
machine and a job that runs elsewhere, so it names nothing but files, numbers and words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, get_args

import msgspec

from binlogd.errors import ConfigError, Refused
from binlogd.settings.quantities import duration_s, last_ts, wall_clock
from binlogd.tidb.turns import COMPARE
from binlogd.tso import NO_TS, Tso

Lake = Literal["delta", "iceberg"]
LAKES: tuple[Lake, ...] = ("delta", "iceberg")
PARQUET_KINDS = ("parquet", *LAKES)
"""Formats whose data files are Parquet."""
FORMATS = (*PARQUET_KINDS, "orc", "csv", "json", "sql")
Layout = Literal["plain", "dumpling"]

SPEC_VERSION = 3
MANIFEST_FORMAT = 1
MANIFEST_NAME = "manifest.json"

EVENTS_FD = "BINLOGD_EVENTS_FD"
"""Environment variable: the descriptor that a job writes its events to, a JSON object a line."""

EXIT_DONE, EXIT_FAILED = 0, 1
"""Exit codes of the job; what failed is an event."""


class PinnedSegment(msgspec.Struct, frozen=True):
    """A value log file as pinned: bytes beyond `size_bytes` do not belong to the input.

    What lies below `seen_bytes` was there before the size of any file was pinned: only timestamps
    from there may bound the export.
    """

    shard: int
    fid: int
    path: str
    size_bytes: int
    seen_bytes: int


class TypeOptions(msgspec.Struct, frozen=True, rename="kebab"):
    """How types come out of which there are several readings; the first of each is the default.

    `columns` says what each costs. Bases and what is built on them have the same.
    """

    invalid_text: Literal["error", "replace", "binary"] = "error"
    tinyint1: Literal["tinyint", "boolean"] = "tinyint"
    bigint_unsigned: Literal["decimal", "bigint"] = "decimal"
    decimal38: Literal["string", "cast"] = "string"
    zero_dates: Literal["null", "error", "string"] = "null"
    set: Literal["string", "array"] = "string"
    time: Literal["micros", "string", "interval", "time"] = "micros"
    json: Literal["string", "variant"] = "string"


def type_options(words: Iterable[str]) -> TypeOptions:
    """The options that words like `tinyint1=boolean` name. Raises ConfigError."""
    pairs = dict(word.partition("=")[::2] for word in words)
    known = {field.encode_name: field.type for field in msgspec.structs.fields(TypeOptions)}
    for name in pairs:
        if name not in known:
            raise ConfigError(f"--type {name}: there is {', '.join(known)}")
    try:
        return msgspec.convert(pairs, TypeOptions)
    except msgspec.ValidationError as error:
        choices = "; ".join(f"{name}={'|'.join(get_args(known[name]))}" for name in pairs)
        raise ConfigError(f"--type: {error}; there is {choices}") from None


class SessionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What all exports of one job process share; the first line that it is told.

    All that Spark writes of its own lies below `scratch`. `class_archive` is a file of classes that
    the JVM may begin with, `archive_to` one that it is to write at its end; "" is none. `launch` is
    the java to start with its first options; without it Spark's own scripts are asked.
    """

    scratch: str
    cores: int = 2
    memory_mb: int = 1024
    class_archive: str = ""
    archive_to: str = ""
    launch: tuple[str, ...] = ()


class ChangesOptions(msgspec.Struct, frozen=True):
    """What to export of what happened behind `from_ts`: the change that each row came to, or with
    `all_versions` every one; `has_before` adds the row as it was."""

    from_ts: int
    all_versions: bool = False
    has_before: bool = False


class ExportSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One export, as the job gets it.

    `as_of` 0 means the latest that is resolved, or so many milliseconds before it. `base` is the
    directory of the snapshot to build on, with its commit_ts; `is_headless` says that the segments
    hold everything behind `base_ts` only, and `gone_ts` up to where some that are gone reached.
    `base_time_zone` is that of the TIMESTAMPs in a dump.
    `data_dir` and `base_asked` are whose log it is and which base was asked for; the job needs
    neither, but whoever goes on with an export that was killed does.

    The job writes below `staging`, `scratch` and `state`, where marks of what is finished are; it
    looks into `out` only to see whether the moment has its snapshot already, unless `is_again`.
    """

    version: int = SPEC_VERSION
    segments: tuple[PinnedSegment, ...]
    schema_history: str
    as_of: int
    before_latest_ms: int = 0
    base: str = ""
    base_ts: int = 0
    base_time_zone: str = ""
    is_headless: bool = False
    gone_ts: int = 0
    data_dir: str = ""
    base_asked: str = ""
    changes: ChangesOptions | None = None
    known_resolved_ts: int
    out: str
    staging: str
    scratch: str
    ignore_schemas: tuple[str, ...]
    types: TypeOptions = TypeOptions()
    format: str = "parquet"
    layout: Layout = "plain"
    state: str = ""
    is_again: bool = False
    partitions: int = 8
    slice_bytes: int = 16 << 20
    rows_per_file_max: int = 5_000_000


class ColumnEntry(msgspec.Struct, frozen=True):
    """A column of the manifest; `id` is TiDB's and stays through renames.

    The Arrow and Spark types are what a reader of the files asks for. `encoding` is `base64` or
    `time` (`[-]HH:MM:SS.ffffff`) where their text stands for that.
    """

    id: int
    name: str
    mysql_type: str
    arrow_type: str
    spark_type: str
    encoding: str = ""


class KeysEntry(msgspec.Struct, frozen=True):
    """The file that holds the row handles of a data file, row by row."""

    name: str
    size_bytes: int
    sha256: str


class FileEntry(msgspec.Struct, frozen=True):
    """A data file of the manifest, its path relative to the snapshot.

    `keys` is there where the columns do not tell which row of the table each one is. `checksum` is
    what `texts.checksum` says of the rows.
    """

    name: str
    rows: int
    size_bytes: int
    sha256: str
    keys: KeysEntry | None = None
    checksum: str = ""


class TableEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the manifest.

    `losses` counts, per column, values that their new type cannot hold, at most so many;
    `left_out_columns` names those that the log does not tell (virtual generated ones). `handle` is
    what tells its rows apart: `integer` and `common` (the ids of `handle_columns`), or `hidden`.
    `checksum` is that of all rows, the same in every format.
    """

    database: str
    table: str
    table_id: int
    rows: int
    columns: tuple[ColumnEntry, ...]
    left_out_columns: tuple[str, ...]
    losses: dict[str, dict[str, int]]
    files: tuple[FileEntry, ...]
    handle: str = ""
    handle_columns: tuple[int, ...] = ()
    primary_key: tuple[str, ...] = ()
    create_table: str = ""
    checksum: str = ""


class LeftOut(msgspec.Struct, frozen=True):
    """A table that the log cannot tell, and why."""

    database: str
    table: str
    reason: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}: {self.reason}"


class DoubtfulRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a table that a DDL of partitions may have taken along or not: nobody can know.

    `partitions` are the ids of those that went, `keys` some of the rows, `first_ts` and `last_ts`
    when they were committed.
    """

    database: str
    table: str
    partitions: tuple[int, ...]
    rows: int
    first_ts: int
    last_ts: int
    keys: tuple[str, ...]
    cause: str

    def __str__(self) -> str:
        some = f" (keys: {'; '.join(self.keys)})" if self.keys else ""
        return (
            f"{self.database}.{self.table}: {self.rows} rows of commit_ts {self.first_ts} to"
            f" {self.last_ts}, beside a DDL of partitions: {self.cause}; {COMPARE}{some}"
        )


class DdlEntry(msgspec.Struct, frozen=True):
    """A DDL that committed in between."""

    commit_ts: int
    query: str


class ChangesEntry(msgspec.Struct, frozen=True):
    """Whose changes a directory holds: those with a commit_ts above `from_ts`."""

    from_ts: int
    all_versions: bool
    has_before: bool
    ddl: tuple[DdlEntry, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the job has staged. `schema` is the file that holds the schema at the moment."""

    commit_ts: int
    resolved_ts: int
    spark_version: str
    tables: tuple[TableEntry, ...]
    left_out: tuple[LeftOut, ...]
    schema: FileEntry | None = None
    changes: ChangesEntry | None = None
    create_databases: dict[str, str] = {}
    extra_files: tuple[str, ...] = ()
    in_doubt: tuple[DoubtfulRows, ...] = ()


class BaseEntry(msgspec.Struct, frozen=True):
    """What a snapshot was built on: a directory as it was named then, and its moment."""

    directory: str
    commit_ts: int


class SegmentEntry(msgspec.Struct, frozen=True):
    """A piece of the log that the snapshot was built from."""

    shard: int
    fid: int
    size_bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot's own description; a directory without one is no snapshot.

    `seconds` is how long the export took. `extra_files` are what a layout has beside the data.
    """

    format: int = MANIFEST_FORMAT
    binlogd_version: str
    spark_version: str
    cluster_id: int | None
    commit_ts: int
    time: str
    resolved_ts: int
    log: tuple[SegmentEntry, ...]
    tables: tuple[TableEntry, ...]
    left_out: tuple[LeftOut, ...]
    types: TypeOptions = TypeOptions()
    base: BaseEntry | None = None
    schema: FileEntry | None = None
    changes: ChangesEntry | None = None
    data_format: str = "parquet"
    layout: Layout = "plain"
    create_databases: dict[str, str] = {}
    extra_files: tuple[str, ...] = ()
    in_doubt: tuple[DoubtfulRows, ...] = ()
    seconds: float = 0.0

    def names(self) -> Iterator[str]:
        """Its files that a base is read from, relative to the snapshot."""
        if self.schema is not None:
            yield self.schema.name
        for file in (file for table in self.tables for file in table.files):
            yield file.name
            if file.keys is not None:
                yield file.keys.name


class Started(msgspec.Struct, frozen=True, tag="started"):
    """There is a Spark session."""

    spark_version: str


class Planned(msgspec.Struct, frozen=True, tag="planned"):
    """The moment is known, and what will be built."""

    commit_ts: int
    resolved_ts: int
    tables: int
    slices: int


Stage = Literal["waiting", "starting", "transactions", "rows", "publishing", "uploading"]


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far an export is: tasks of a stage, or with `table` the rows of one that are in files;
    `total` 0 while it is not known. A job tells of the stages that are its own."""

    stage: Stage
    done: int
    total: int
    table: str = ""


class Staged(msgspec.Struct, frozen=True, tag="staged"):
    """Everything is written and synced; nothing is published yet."""

    report: Report


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why there is no snapshot; `kind` names the error's class."""

    kind: str
    text: str


Event = Started | Planned | Progress | Staged | Failed
"""One line on the progress pipe."""


class Moment(NamedTuple):
    """A commit_ts, or with NO_TS so many milliseconds before the latest one that is resolved."""

    ts: Tso
    before_latest_ms: int = 0


LATEST = "latest"


def moment(text: str, option: str = "--as-of") -> Moment:
    """What `--as-of` names: `latest`, `latest-5m`, a TSO or a wall clock in ISO 8601.

    A wall clock without zone is UTC. It stands for everything committed up to and including its
    last millisecond. Raises ConfigError.
    """
    if text == LATEST:
        return Moment(NO_TS)
    if text.startswith(f"{LATEST}-"):
        distance = text.removeprefix(f"{LATEST}-")
        hint = "say how long before the latest, with a unit: latest-5m"
        before_s = duration_s(option, distance, hint)
        return Moment(NO_TS, round(before_s * 1000))
    return Moment(last_ts(text, option))


def before_the_log(ts: Tso, begins: Tso) -> Refused:
    """Of a moment before the first transaction of a log."""
    return Refused(
        f"{ts} ({wall_clock(ts)}) lies before {begins} ({wall_clock(begins)}), where the"
        " log begins: there is nothing to export; name a later moment, or a base"
    )
