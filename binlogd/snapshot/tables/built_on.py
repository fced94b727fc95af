"""A snapshot that the next one is built on: what each column of its rows becomes, or why none can.

Rows of a base are values, not TiDB's bytes, so a table changes under them by column id: a column
that came later has its origin default, one that went is left behind, a new name or a wider type is
read as what it is now, and values that a MODIFY COLUMN rewrote are converted as `rewrite` does.
What is not certain to come out as it would from the log is refused, table by table.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from binlogd.errors import ConfigError
from binlogd.snapshot.bases.choice import UnusableBase
from binlogd.snapshot.bases.dump import Dump, DumpFile, is_dump, read_dump
from binlogd.snapshot.bases.dump_rows import says_utc
from binlogd.snapshot.formats.columns import arrow_column, is_widened
from binlogd.snapshot.log.moves import Moves
from binlogd.snapshot.log.rowkey import Handle, HandleKind, handle_of
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.snapshot.spec import FileEntry, TableEntry, TypeOptions
from binlogd.tidb.kinds import Tp
from binlogd.tidb.known_tables import Named
from binlogd.tidb.model import Column, Table
from binlogd.tidb.rewrite import Rewritten, Unconvertible, converter
from binlogd.tso import Tso


@dataclass(frozen=True, slots=True)
class Dumped:
    """Rows that are in files of Dumpling, with the columns of the table as it was then.

    `zone` is the time zone of its TIMESTAMPs, "" where nobody knows.
    """

    columns: tuple[Column, ...]
    files: tuple[DumpFile, ...]
    zone: str


@dataclass(frozen=True, slots=True)
class BaseTable:
    """A table of a base, as a manifest has it."""

    entry: TableEntry
    dumped: Dumped | None = None

    def shown_of(self, info: Table) -> Iterable[Column]:
        """The columns of the table that the base had or named; others were on their way out."""
        ids = {column.id for column in self.entry.columns}
        return [
            column
            for column in info.columns
            if column.id in ids or column.name in self.entry.left_out_columns
        ]


@dataclass(frozen=True, slots=True)
class Base:
    """What nothing below has to be read of: a published snapshot, or a dump.

    `tracker` is the schema at its commit_ts, empty where it keeps none.
    """

    directory: str
    commit_ts: Tso
    types: TypeOptions
    tables: Mapping[int, BaseTable]
    tracker: bytes = b""
    dump: Dump | None = None
    zone: str = ""

    def at(self, tables: Iterable[tuple[Named, Table]]) -> Mapping[int, BaseTable]:
        """Its tables by id; a dump knows names only, those of `tables` as they were then."""
        if self.dump is None:
            return self.tables
        return {
            info.id: _dumped(self.dump, named, info, self.types, self.zone)
            for named, info in tables
            if (named.database.lower(), named.table.lower()) in self.dump.tables
        }


def _dumped(dump: Dump, named: Named, info: Table, types: TypeOptions, zone: str) -> BaseTable:
    shown = info.shown_columns()
    columns = tuple(column for column in shown if not column.is_generated)
    handle = handle_of(info)
    entry = TableEntry(
        database=named.database,
        table=named.table,
        table_id=info.id,
        rows=0,
        columns=tuple(arrow_column(column, types).entry() for column in columns),
        left_out_columns=tuple(column.name for column in shown if column.is_generated),
        losses={},
        files=(),
        handle=handle.kind.name.lower(),
        handle_columns=handle.column_ids,
    )
    files = dump.files.get((named.database.lower(), named.table.lower()), ())
    if any(column.field_type.tp == Tp.TIMESTAMP for column in columns):
        zone = zone or _told_zone(dump, files)
    return BaseTable(entry, Dumped(columns, files, zone))


def _told_zone(dump: Dump, files: Sequence[DumpFile]) -> str:
    """UTC where files say so. Raises ConfigError where they do not."""
    for file in files:
        if not says_utc(dump.directory, file):
            raise ConfigError(
                f"{dump.directory}/{file.name} has TIMESTAMPs, and does not say in which time zone"
                " it was taken; name it by --base-time-zone (and dump with"
                " --params time_zone=+00:00 next time)"
            )
    return "UTC"


def open_base(directory: Path, types: TypeOptions, zone: str) -> Base:
    """A base as the job needs it. Raises ConfigError."""
    if is_dump(directory):
        dump = read_dump(directory)
        return Base(str(directory), dump.commit_ts, types, {}, dump=dump, zone=zone)
    try:
        manifest = read_manifest(directory)
        tracker = (directory / manifest.schema.name).read_bytes() if manifest.schema else b""
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory}: the base cannot be read: {error}") from error
    return Base(
        directory=str(directory),
        commit_ts=Tso(manifest.commit_ts),
        types=manifest.types,
        tables={entry.table_id: BaseTable(entry) for entry in manifest.tables},
        tracker=tracker,
    )


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """A column of the base, and what happened to its values since."""

    name: str
    conversions: tuple[Rewritten, ...] = ()


@dataclass(frozen=True, slots=True)
class BaseReuse:
    """How rows of the base become rows of a table: a source for each of its columns, None where
    the column is newer. `is_same`: files without a changed row can be taken as they are.
    `is_loose`: not every row tells its handle, so that rows which changed are found by their values
    as well. Rows that `moves` behind the schema version `at_version` ended are left behind too."""

    directory: str
    files: tuple[FileEntry, ...]
    sources: tuple[ColumnSource | None, ...]
    is_same: bool
    is_loose: bool
    dumped: Dumped | None = None
    moves: Moves | None = None
    at_version: int = 0


def carry(
    base: Base,
    table: BaseTable,
    columns: Sequence[Column],
    rewritten: Sequence[Rewritten],
    handle: Handle,
) -> BaseReuse:
    """What a table of the base becomes. Raises UnusableBase."""
    entry = table.entry
    if entry.handle_columns != handle.column_ids or entry.handle != handle.kind.name.lower():
        raise UnusableBase("its rows are told apart in another way since")
    held = {column.id: column for column in entry.columns}
    sources: list[ColumnSource | None] = []
    for column in columns:
        column_id, steps = traced(column.id, held, rewritten)
        _check_convertible(steps)
        was = held.get(column_id)
        if was is None and column.name in entry.left_out_columns:
            raise UnusableBase(f"it does not hold the generated column {column.name}")
        if was is None:
            sources.append(None)
            continue
        now = str(arrow_column(steps[0].old if steps else column, base.types).type)
        if was.arrow_type != now and (steps or not is_widened(was.arrow_type, now)):
            raise UnusableBase(f"column {was.name} changed from {was.mysql_type} without a trace")
        if steps and was.spark_type == "VARIANT":
            raise UnusableBase(f"column {column.name} was rewritten, and {was.name} is a VARIANT")
        if steps and entry.losses.get(was.name):
            raise UnusableBase(
                f"column {column.name} was rewritten, and values of {was.name} are lost there"
            )
        sources.append(ColumnSource(was.name, tuple(steps)))
    is_same = [(each.id, each.name, each.arrow_type) for each in entry.columns] == [
        (each.id, each.name, str(arrow_column(each, base.types).type)) for each in columns
    ]
    has_keys = table.dumped is None and all(each.keys for each in entry.files if each.rows)
    return BaseReuse(
        base.directory,
        entry.files,
        tuple(sources),
        is_same=is_same and table.dumped is None,
        is_loose=handle.kind is HandleKind.HIDDEN and not has_keys,
        dumped=table.dumped,
    )


def traced(
    column_id: int, held: Container[int], rewritten: Sequence[Rewritten]
) -> tuple[int, list[Rewritten]]:
    """Which of the columns held a column was, and what MODIFY COLUMN did to its values since; for a
    new one an id that none has."""
    replaced, steps = {each.new.id: each for each in rewritten}, list[Rewritten]()
    while column_id not in held and column_id in replaced:  # ids only grow, so the chain ends
        steps.insert(0, replaced[column_id])
        column_id = replaced[column_id].old.id
    return column_id, steps


def _check_convertible(steps: Sequence[Rewritten]) -> None:
    try:
        for step in steps:
            converter(step.old, step.new)
    except Unconvertible as error:
        raise UnusableBase(str(error)) from error
