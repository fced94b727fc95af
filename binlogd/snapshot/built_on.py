"""A snapshot that the next one is built on: what each column of its rows becomes, or why none can.

Rows of a base are values, not TiDB's bytes, so a table changes under them by column id: a column
that came later has its origin default, one that went is left behind, a new name or a wider type is
read as what it is now, and values that a MODIFY COLUMN rewrote are converted as `rewrite` does.
What is not certain to come out as it would from the log is refused, table by table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from binlogd.errors import ConfigError
from binlogd.snapshot.bases import UnusableBase
from binlogd.snapshot.columns import arrow_column, is_widened
from binlogd.snapshot.publish import read_manifest
from binlogd.snapshot.rewrite import Rewritten, Unconvertible, converter
from binlogd.snapshot.rowkey import Handle
from binlogd.snapshot.spec import FileEntry, TableEntry, TypeOptions
from binlogd.tidb.model import Column, Table
from binlogd.tso import Tso


@dataclass(frozen=True, slots=True)
class BaseTable:
    """A table of a base, as its manifest has it."""

    entry: TableEntry

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
    """A published snapshot below which nothing has to be read. `tracker` is the schema at its
    commit_ts, empty where it keeps none."""

    directory: str
    commit_ts: Tso
    types: TypeOptions
    tables: Mapping[int, BaseTable]
    tracker: bytes = b""


def open_base(directory: Path) -> Base:
    """A base as the job needs it. Raises ConfigError."""
    try:
        manifest = read_manifest(directory)
        tracker = (directory / manifest.schema.name).read_bytes() if manifest.schema else b""
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{directory}: the base cannot be read: {error}") from error
    return Base(
        directory=str(directory),
        commit_ts=Tso(manifest.commit_ts),
        types=manifest.types,
        tables={entry.table_id: BaseTable(entry) for entry in manifest.tables},
        tracker=tracker,
    )


@dataclass(frozen=True, slots=True)
class Source:
    """A column of the base, and what happened to its values since."""

    name: str
    conversions: tuple[Rewritten, ...] = ()


@dataclass(frozen=True, slots=True)
class Carry:
    """How rows of the base become rows of a table: a source for each of its columns, None where
    the column is newer. `is_same`: files without a changed row can be taken as they are."""

    directory: str
    files: tuple[FileEntry, ...]
    sources: tuple[Source | None, ...]
    is_same: bool


def carry(
    base: Base,
    table: BaseTable,
    columns: Sequence[Column],
    rewritten: Sequence[Rewritten],
    handle: Handle,
) -> Carry:
    """What a table of the base becomes. Raises UnusableBase."""
    entry = table.entry
    if entry.handle_columns != handle.column_ids or entry.handle != handle.kind.name.lower():
        raise UnusableBase("its rows are told apart in another way since")
    held = {column.id: column for column in entry.columns}
    replaced = {each.new.id: each for each in rewritten}
    sources: list[Source | None] = []
    for column in columns:
        steps: list[Rewritten] = []
        column_id = column.id
        while column_id not in held and column_id in replaced:  # ids only grow, so the chain ends
            steps.insert(0, replaced[column_id])
            column_id = replaced[column_id].old.id
        _check_convertible(steps)
        was = held.get(column_id)
        if was is None:
            sources.append(None)
            continue
        now = str(arrow_column(steps[0].old if steps else column, base.types).type)
        if was.arrow_type != now and (steps or not is_widened(was.arrow_type, now)):
            raise UnusableBase(f"column {was.name} changed from {was.mysql_type} without a trace")
        if steps and entry.losses.get(was.name):
            raise UnusableBase(
                f"column {column.name} was rewritten, and values of {was.name} are lost there"
            )
        sources.append(Source(was.name, tuple(steps)))
    is_same = [(each.id, each.name, each.arrow_type) for each in entry.columns] == [
        (each.id, each.name, str(arrow_column(each, base.types).type)) for each in columns
    ]
    return Carry(base.directory, entry.files, tuple(sources), is_same)


def _check_convertible(steps: Sequence[Rewritten]) -> None:
    try:
        for step in steps:
            converter(step.old, step.new)
    except Unconvertible as error:
        raise UnusableBase(str(error)) from error
