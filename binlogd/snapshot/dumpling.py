"""The layout of Dumpling, which TiDB Lightning and MyLoader import.

`metadata` with the moment as `Pos`, a file for each CREATE, and data files that are numbered.
Source: dumpling export/{metadata,config,writer}.go for names and contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace as replaced
from pathlib import Path

from msgspec import structs

from binlogd.host.disk import sync_directory, write_synced
from binlogd.settings.quantities import wall_clock
from binlogd.snapshot.bases.dump import METADATA
from binlogd.snapshot.formats.file_kinds import SQL_HEAD
from binlogd.snapshot.spec import FileEntry, TableEntry
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.tso import Tso

_ODD = re.compile(r'[\x00-\x1f%"*./:<>?\\|]|-(?=schema)', re.IGNORECASE)


def dumped(plan: TablePlan) -> TablePlan:
    """The table without generated columns: a database computes them, and refuses them given."""
    generated = tuple(each.name for each in plan.columns if each.is_generated)
    return replaced(
        plan,
        columns=tuple(each for each in plan.columns if not each.is_generated),
        left_out_columns=(*plan.left_out_columns, *generated),
    )


def file_part(name: str) -> str:
    """A name as Dumpling has it in a file name."""
    return _ODD.sub(lambda odd: f"%{ord(odd[0]):02X}", name)


def lay_out(
    staging: Path,
    suffix: str,
    commit_ts: Tso,
    tables: Iterable[TableEntry],
    databases: Mapping[str, str],
) -> tuple[tuple[TableEntry, ...], tuple[str, ...]]:
    """Moves staged files to the names that they have in a dump, and adds what a dump has; all of it
    is on the disk on return. The tables with their files' new names, and what lies beside them."""
    extra = {METADATA: _metadata(commit_ts)}
    for name, statement in databases.items():
        extra[f"{file_part(name)}-schema-create.sql"] = f"{SQL_HEAD}{statement};\n"
    moved = []
    for table in tables:
        stem = f"{file_part(table.database)}.{file_part(table.table)}"
        extra[f"{stem}-schema.sql"] = f"{SQL_HEAD}{table.create_table};\n"
        moved.append(structs.replace(table, files=_moved(staging, stem, suffix, table.files)))
    for name, text in extra.items():
        write_synced(staging / name, text.encode())
    sync_directory(staging)
    return tuple(moved), tuple(sorted(extra))


def _moved(
    staging: Path, stem: str, suffix: str, files: Iterable[FileEntry]
) -> tuple[FileEntry, ...]:
    found: list[FileEntry] = []
    for file in files:
        path = staging / file.name
        if file.rows:
            name = f"{stem}.{len(found):09d}.{suffix}"
            path.rename(staging / name)
            found.append(structs.replace(file, name=name))
        else:  # a dump has no file of a table without rows
            path.unlink()
        if not any(path.parent.iterdir()):
            path.parent.rmdir()
    return tuple(found)


def _metadata(commit_ts: Tso) -> str:
    at = wall_clock(commit_ts).replace("T", " ")[:19]
    return (
        f"Started dump at: {at}\nSHOW MASTER STATUS:\n\tLog: tidb-binlog\n\tPos: {commit_ts}\n"
        f"\tGTID:\n\nFinished dump at: {at}\n"
    )
