"""What a pipeline begins with when the beginning of the log is gone: a snapshot, or a dump.

It is looked at before anything is written: whether the log has everything behind it, whether its
types and its cluster are those that are asked for, and whether each of its tables that are wanted
tells its rows apart, as changes will name them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from binlogd.archive.bases import fetched
from binlogd.errors import Refused
from binlogd.snapshot.bases.choice import Needs, choose
from binlogd.snapshot.log.datums import number_keys
from binlogd.snapshot.log.rowkey import HandleKind
from binlogd.snapshot.publishing.file_systems import without_secrets
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.built_on import Base, BaseReuse, open_base
from binlogd.snapshot.tables.catalog import DdlBinlog, Origin, TablePlan, catalog
from binlogd.snapshot.writing.adapt import dump_chunks, parquet_chunks
from binlogd.snapshot.writing.writer import arrow_columns
from binlogd.spark.inputs import Input, open_input
from binlogd.spark.request import HIDDEN_DATABASES, ReadRequest
from binlogd.tso import Tso
from binlogd.wire import peek

WINDOW = 600_000 << 18
"""A DDL job ends a little after its binlog; a dump knows jobs by their time. So much before it is
looked through for DDL (10 min of TSO)."""


Wants = Callable[[str, str], bool]
"""Of database and table."""


@dataclass(frozen=True, slots=True)
class LoadedBase:
    """The tables of a base, by id, each with where its rows are; and the schema of then."""

    directory: str
    commit_ts: Tso
    tables: dict[int, TablePlan]
    tracker: bytes
    types: TypeOptions
    losses: dict[str, dict[str, dict[str, int]]]
    """By table, how many values its files lack, as its manifest counts them."""


def load_base(
    base: str, zone: str, asked: ReadRequest, scratch: Path, wants: Wants, *, needs_keys: bool
) -> LoadedBase:
    """A base as a pipeline needs it; one in an object store is fetched into `scratch`.

    `wants` says which tables; `needs_keys`, that changes will name rows by their keys, as those
    into a lake do.

    Raises ConfigError, Refused for a base behind which the log has a gap, or that does not tell a
    table that is wanted.
    """
    source = open_input(asked)
    directory = fetched(base, scratch) if "://" in base else Path(base)
    needs = Needs(source.resolved_ts(), source.gone_ts(), source.cluster_id(), asked.types, zone)
    chosen = choose(str(directory), directory, needs)
    opened = open_base(chosen.directory or directory, asked.types, zone)
    known = catalog(
        source.jobs(),
        _ddl_before(source, opened),
        log_begins=opened.commit_ts,
        ignore_schemas=HIDDEN_DATABASES,
        origin=Origin(opened, is_headless=True),
    )
    lacking = [str(each) for each in known.left_out if wants(each.database, each.table)]
    tables = wanted_of(known.tables, wants)
    for plan in tables.values():
        is_loose = plan.carry is not None and plan.carry.is_loose and _has_files(plan.carry)
        if needs_keys and is_loose:
            lacking.append(
                f"{plan.label}: no column tells its rows apart, and the base"
                " does not keep their row ids (a snapshot of `binlogd export` does)"
            )
    losses = {
        plan.label: opened.tables[table_id].entry.losses
        for table_id, plan in tables.items()
        if table_id in opened.tables
    }
    if lacking:
        raise Refused(
            f"--base {without_secrets(base)} does not tell {'; '.join(lacking)}. Leave these out"
            " (--except, or [syncer]), or name another base"
        )
    return LoadedBase(str(directory), opened.commit_ts, tables, known.tracker, asked.types, losses)


def wanted_of(tables: Mapping[int, TablePlan], wants: Wants) -> dict[int, TablePlan]:
    """Those that are wanted."""
    return {
        table_id: plan for table_id, plan in tables.items() if wants(plan.database, plan.info.name)
    }


def _has_files(carry: BaseReuse) -> bool:
    return any(each.rows for each in carry.files) or bool(carry.dumped and carry.dumped.files)


def _ddl_before(source: Input, base: Base) -> list[DdlBinlog]:
    """DDL that a base without a schema may or may not have seen; what is gone, it has."""
    if base.tracker:
        return []
    after = max(source.gone_ts(), Tso(max(0, base.commit_ts - WINDOW)))
    found = []
    for binlog in source.binlogs(after, base.commit_ts):
        if (ddl := peek.ddl(binlog.payload)) is not None:
            fields = (ddl.ddl_job_id, ddl.ddl_schema_state, ddl.query)
            found.append(DdlBinlog(binlog.commit_ts, *fields))
    return found


# --- rows ----------------------------------------------------------------------------------------


def rows_of(
    plan: TablePlan, types: TypeOptions
) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
    """The rows of a table of a base and their keys, as `rowkey` has them; None where it has none.

    Raises CorruptRow, Corrupt, ConfigError, OSError.
    """
    carry, columns = plan.carry, arrow_columns(plan, types)
    if carry is None:
        return
    is_told = plan.handle.kind is HandleKind.INTEGER
    dumped = carry.dumped.files if carry.dumped is not None else ()
    for chunk in itertools.chain(
        *(
            parquet_chunks(plan, columns, file, {}, has_keys=is_told or file.keys is not None)
            for file in carry.files
            if file.rows
        ),
        *(dump_chunks(plan, columns, file, {}) for file in dumped),
    ):
        keys = chunk.keys
        if keys is not None and keys.type == pa.int64():
            keys = number_keys(keys.to_numpy())
        yield chunk.rows, keys
