"""What a batch is to a changelog, a lake whose tables get every change as a row and lose none.

A table of the lake is one history. It goes on where its table upstream does: under another name
(RENAME), under another id (TRUNCATE, partitions that are exchanged), and when a table of its name
is made again behind a DROP. Each row has the columns that its table had at that moment, wherever
batches are cut. What a DDL did to a table is a row as well.

Columns only come. One that was dropped stays, NULL from then on; a name that comes back goes on in
it. Where values have a type that the column cannot hold, they go into another one, whose name ends
with the type (`qty__bigint`). So no file is ever written anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import pyarrow as pa

from binlogd.errors import MissingDdlJob
from binlogd.snapshot.formats.columns import ArrowColumn, arrow_column, is_widened, spark_type
from binlogd.snapshot.log.rowkey import handle_of
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.catalog import DdlBinlog, TablePlan
from binlogd.spark.lake.layout import LakeLayout, Layouts
from binlogd.spark.lake.manifest import DIRECTORY, LakeTable, LakeTables, PipelineStopped
from binlogd.spark.lake.rows import KEY_COLUMN, is_readable_as
from binlogd.spark.request import ReadRequest
from binlogd.spark.rows import DDL, DROP, MARKS, TRUNCATE
from binlogd.tidb.kinds import ActionType
from binlogd.tidb.known_tables import Effect, Named
from binlogd.tidb.model import Job, Table
from binlogd.tidb.schema import SchemaTracker

QUERY_COLUMN = "_query"
_MARKS = pa.schema([*MARKS, (KEY_COLUMN, pa.binary()), (QUERY_COLUMN, pa.string())])
"""Before the columns of a table; `_query` is the text of a DDL."""
MARK_NAMES: Sequence[str] = _MARKS.names
_ID = b"PARQUET:field_id"

Columns = Mapping[str, pa.Schema]
"""Of tables of the lake, by directory."""
_Tables = dict[int, tuple[Named, Table]]


@dataclass(frozen=True, slots=True)
class DdlMark:
    """What a DDL was to some tables of the lake, by directory: `truncate`, `drop` or `ddl`; and
    where changes of some table ids go from then on."""

    ops: Mapping[str, str]
    query: str
    directories: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class ChangelogBatch:
    """A range of commit_ts.

    `begins` is the schema before it, `ddl` and `jobs` take it on, `marks` say of each DDL, by its
    commit_ts and job, what it was. `directories` are those of table ids at the begin; `columns` are
    all that a table has at the end, and `held` before it; `ids` and `names` are those at the end,
    by directory. `layouts` are those of their files. `tracker` is the schema of the end.
    """

    end: int
    types: TypeOptions
    begins: bytes
    ddl: Sequence[DdlBinlog]
    jobs: Mapping[int, Job]
    marks: Mapping[tuple[int, int], DdlMark]
    directories: Mapping[int, str]
    columns: Columns
    held: Columns
    ids: Mapping[str, int]
    names: Mapping[str, str]
    layouts: Layouts
    tracker: bytes

    def table(self, directory: str) -> LakeTable:
        """One that is not there yet."""
        return LakeTable(self.ids[directory], directory, 0, layout=self.layouts[directory])


class HeldChangelog(NamedTuple):
    """What is there when a batch begins; `tracker` is the schema of then, `layouts` are those that
    were asked for."""

    tracker: bytes
    tables: LakeTables
    columns: Columns
    layouts: Layouts = MappingProxyType({})


def batch_of(
    jobs: Sequence[Job], ddl: Sequence[DdlBinlog], held: HeldChangelog, asked: ReadRequest, end: int
) -> ChangelogBatch:
    """Raises MissingDdlJob, PipelineStopped."""
    by_id = {job.id: job for job in jobs}
    tracker = SchemaTracker.from_snapshot(held.tracker)
    tracker.load(jobs)
    begins = tracker.snapshot()
    walk = _Walk(tracker, asked, held.tables, dict(held.columns))
    directories = walk.directories.copy()
    for each in ddl:
        job = by_id.get(each.job_id)
        if job is None:
            raise MissingDdlJob(each.job_id, each.commit_ts, each.query)
        walk.step(job, each)
    own, names = {each.job_id for each in ddl}, walk.names()
    return ChangelogBatch(
        end=end,
        types=asked.types,
        begins=begins,
        ddl=ddl,
        jobs={each: by_id[each] for each in own} | _coming(jobs, own, by_id),
        marks=walk.marks,
        directories=directories,
        columns=walk.columns,
        held=held.columns,
        ids=walk.ids,
        names=names,
        layouts=_layouts(walk, names, held.layouts),
        tracker=tracker.snapshot(),
    )


def _layouts(walk: _Walk, names: Mapping[str, str], asked: Layouts) -> dict[str, LakeLayout]:
    """By directory. Raises PipelineStopped."""
    found = {each.directory: each.layout for each in walk.now.tables.values()}
    for directory, name in names.items():
        try:
            wanted = asked.get(name, LakeLayout()).of(walk.columns[directory], walk.now.format)
        except ValueError as error:
            raise PipelineStopped(f"{name}: {error}") from error
        if name in asked and found.setdefault(directory, wanted) != wanted:
            raise PipelineStopped(
                f"{name} is to be {wanted}, and is {str(found[directory]) or 'not laid out'}: a"
                " changelog writes no file anew, so say nothing of it, or begin another one"
            )
        found.setdefault(directory, LakeLayout())
    return found


def _coming(jobs: Sequence[Job], own: set[int], by_id: Mapping[int, Job]) -> dict[int, Job]:
    """Of each table that these jobs change the one behind them: rows may run ahead of it."""
    newest = dict[int, int]()
    for job in (by_id[each] for each in own):
        if job.table is not None:
            newest[job.table.id] = max(newest.get(job.table.id, 0), job.schema_version)
    found = dict[int, Job]()
    for job in sorted(jobs, key=lambda job: job.schema_version):
        if job.table is not None and job.schema_version > newest.get(job.table.id, 1 << 62):
            found.setdefault(job.table.id, job)
    return {job.id: job for job in found.values()}


@dataclass(slots=True)
class _Walk:
    """Takes the DDL of a batch in its order."""

    tracker: SchemaTracker
    asked: ReadRequest
    now: LakeTables
    columns: dict[str, pa.Schema]
    directories: dict[int, str] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    marks: dict[tuple[int, int], DdlMark] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _tables: _Tables = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, each in self.now.tables.items():
            self._goes_on(each.table_id, each.directory, name)
        self._tables = self._wanted()
        for table_id, (named, info) in self._tables.items():
            self._begin(table_id, named, self.directories.get(table_id))
            if self.directories[table_id] not in self.columns:
                self._grow(table_id, info)

    def step(self, job: Job, binlog: DdlBinlog) -> None:
        """Raises PipelineStopped."""
        if job.type == ActionType.FLASHBACK_CLUSTER and job.is_done:
            raise PipelineStopped(
                f"DDL job {job.id} at commit_ts {binlog.commit_ts} is a FLASHBACK CLUSTER: what it"
                " did to the rows is in no binlog. Begin another lake behind it (--from)"
            )
        before, effect = self._tables, self.tracker.apply(job, binlog.schema_state)
        if not effect.is_in_force:
            return
        after = self._tables = self._wanted()
        changed = sorted(each for each in before | after if before.get(each) != after.get(each))
        left = {before[each][0]: self.directories[each] for each in before.keys() - after.keys()}
        for table_id in (each for each in changed if each in after):
            named, info = after[table_id]
            known = self.directories.get(table_id)
            self._begin(table_id, named, known if table_id in before else left.get(named, known))
            self._grow(table_id, info)
        ops = self._ops(job, effect, changed)
        begun = {each: self.directories[each] for each in changed}
        self.marks[binlog.commit_ts, job.id] = DdlMark(ops, job.query or binlog.query, begun)

    def names(self) -> dict[str, str]:
        """What each table of the lake is called at the end. One whose name another has by then, or
        had later, is told apart by the first id that it had upstream."""
        live = [self.directories[each] for each in self._tables]
        found = dict[str, str]()
        for directory in dict.fromkeys((*live, *reversed(self._names))):
            name = self._names[directory]
            is_taken = name in found
            found[f"{name}@{directory.removeprefix(DIRECTORY)}" if is_taken else name] = directory
        return {directory: name for name, directory in found.items()}

    def _wanted(self) -> _Tables:
        return {
            info.id: (named, info)
            for named, info in self.tracker.tables()
            if self.asked.wants(named.database, named.table)
            and not (info.is_view or info.is_sequence)
        }

    def _begin(self, table_id: int, named: Named, directory: str | None) -> None:
        """The changes of a table go on in a directory; None for a table that is new."""
        name = f"{named.database}.{named.table}"
        if directory is None:
            live = {self.directories.get(each) for each in self._tables}
            ended = (each for each in reversed(self._names) if each not in live)
            mine = (each for each in ended if self._names[each] == name)
            directory = next(mine, f"{DIRECTORY}{table_id}")
        self._goes_on(table_id, directory, name)

    def _goes_on(self, table_id: int, directory: str, name: str) -> None:
        self.directories[table_id] = directory
        self._names.pop(directory, None)  # the last one stands last
        self.ids[directory], self._names[directory] = table_id, name

    def _grow(self, table_id: int, info: Table) -> None:
        directory = self.directories[table_id]
        columns = [arrow_column(each, self.asked.types) for each in plan_of("", info).columns]
        schema = self.columns.get(directory, _numbered(_MARKS))
        self.columns[directory] = grown(schema, columns, widens=self.now.format == "iceberg")

    def _ops(self, job: Job, effect: Effect, changed: Iterable[int]) -> dict[str, str]:
        dropped = {self.directories.get(info.id) for _, info in effect.dropped}
        end = TRUNCATE if job.type == ActionType.TRUNCATE_TABLE else DROP
        found = {self.directories[each] for each in changed}
        return {each: end if each in dropped else DDL for each in sorted(found)}


# --- columns -----------------------------------------------------------------------------------


def plan_of(database: str, info: Table) -> TablePlan:
    """A table as it is at a moment."""
    left = tuple(each.name for each in info.shown_columns() if each.is_virtual)
    return TablePlan(database, info, handle_of(info), tuple(info.stored_columns()), left, ())


def places(schema: pa.Schema, columns: Sequence[ArrowColumn]) -> list[str]:
    """The columns of a changelog in which those of a table are, one after the other; also such that
    it does not have yet."""
    known = {each.name.lower(): each for each in schema}  # as Spark and MySQL tell names apart
    found, taken = dict[int, str](), set(MARK_NAMES)
    for names in (_own_name, _other_names):
        for each in (each for each in columns if each.column.id not in found):
            for name in names(each):
                at = known.get(name.lower(), pa.field(name, each.type))
                if at.name.lower() not in taken and _holds(at.type, each.type):
                    found[each.column.id] = at.name
                    taken.add(at.name.lower())
                    break
    return [found[each.column.id] for each in columns]


def grown(schema: pa.Schema, columns: Sequence[ArrowColumn], *, widens: bool) -> pa.Schema:
    """With a place for each of these; `widens`: a column may get a wider type as it is."""
    fields = {each.name.lower(): each for each in schema}
    for each in columns if widens else ():
        low = each.column.name.lower()
        if low in fields.keys() - _MARKS.names and is_readable_as(fields[low].type, each.type):
            fields[low] = fields[low].with_type(each.type)
    for each, name in zip(columns, places(pa.schema(fields.values()), columns), strict=True):
        fields.setdefault(name.lower(), pa.field(name, each.type))
    return _numbered(fields.values())


def _own_name(column: ArrowColumn) -> Iterator[str]:
    yield column.column.name


def _other_names(column: ArrowColumn) -> Iterator[str]:
    words = re.findall(r"\w+", spark_type(column.type).lower())
    name = f"{column.column.name}__{'_'.join(words)}"
    yield name
    yield from (f"{name}_{number}" for number in count(2))


def _holds(type_: pa.DataType, values: pa.DataType) -> bool:
    return type_ == values or is_widened(str(values), str(type_))


def _numbered(fields: Iterable[pa.Field]) -> pa.Schema:
    """Each with the field id that Iceberg tells it by."""
    return pa.schema(
        each.with_metadata({_ID: str(number)}) for number, each in enumerate(fields, start=1)
    )


def columns_to_bytes(columns: Columns) -> bytes:
    """For a file of the lake."""
    return msgspec.json.encode({each: of.serialize().to_pybytes() for each, of in columns.items()})
