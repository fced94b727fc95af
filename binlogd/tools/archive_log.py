"""A value log out of the files of a file sink, so that whatever reads a log can read an archive.

Files name tables and columns and know no ids, no row handles and no schema: those come from the DDL
history. Each DDL text in the files is one job of it; rows belong to the table that had their name
then. A table with a clustered key has its handle in its columns. Rows of any other get row ids of
our own: one that goes is told by its values, and a row that goes without having come ends the
conversion. What the files cannot tell (stored generated columns) does so too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from binlogd.drainer.files.log import log_files, records_of
from binlogd.drainer.messages.named import NamedDdl, NamedRow, RowKind
from binlogd.drainer.messages.pb import PbReader
from binlogd.errors import ConfigError, Corrupt, CorruptRelay, Refused
from binlogd.log.directory import segment_file
from binlogd.log.pointer import FIRST, FileId
from binlogd.log.record import encode
from binlogd.tidb.columns import Value
from binlogd.tidb.defaults import missing_value
from binlogd.tidb.encode import encode_delete, encode_insert, encode_update
from binlogd.tidb.kinds import SchemaState
from binlogd.tidb.model import Job, Table
from binlogd.tidb.schema import SchemaTracker
from binlogd.tools.named_files import decoded
from binlogd.tso import NO_TS, Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.in_order import DELETE, INSERT, UPDATE, mutation_of
from binlogd.wire.mutation import encode_mutations

SEGMENT_BYTES = 256 << 20
KEYLESS_ROWS_MAX = 2_000_000
"""Rows of tables without a clustered key that are held in memory."""

Values = dict[int, Value]
"""By column id."""


def write_archive_log(files: Path, jobs: Sequence[Job], data_dir: Path) -> int:
    """Writes the log of all transactions in the files below `data_dir`; how many there are.

    Raises ConfigError where there are no files, CorruptRelay, and Refused for what the files or the
    history cannot tell.
    """
    names = [path.name for path in files.iterdir()] if files.is_dir() else []
    paths = [files / each.name for each in log_files(names)]
    if not paths:
        raise ConfigError(f"{files}: no binlog-* files of a file sink are there")
    count = 0
    with closing(_Log(data_dir)) as log:
        for payloads in _binlogs(paths, jobs):
            log.append(payloads)
            count += 1
    return count


def _binlogs(paths: Sequence[Path], jobs: Sequence[Job]) -> Iterator[list[bytes]]:
    """The binlogs of each record."""
    reader, tables = PbReader(), _Tables(jobs)
    for path in paths:
        for record in records_of(path, is_last=path == paths[-1]):
            try:
                found = decoded(record.payload, reader)
                if found.ddl is not None:
                    yield tables.ddl(found.commit_ts, found.ddl)
                else:
                    yield tables.rows(found.commit_ts, found.rows())
            except Corrupt as error:
                raise CorruptRelay(path, record.offset, str(error)) from error


class _Log:
    """Segments of a value log; readers need no footer."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir, self._fid, self._size = data_dir, FIRST.fid, 0
        first = segment_file(data_dir, 0, FIRST.fid)
        first.parent.mkdir(parents=True)
        self._file = first.open("wb")

    def append(self, payloads: Iterable[bytes]) -> None:
        if self._size >= SEGMENT_BYTES:
            self._file.close()
            self._fid, self._size = FileId(self._fid + 1), 0
            self._file = segment_file(self._data_dir, 0, self._fid).open("wb")
        for payload in payloads:
            self._size += self._file.write(encode(payload))

    def close(self) -> None:
        self._file.close()


@dataclass(slots=True)
class _Keyless:
    """The rows of a table that has no clustered key, by row ids of our own."""

    table: Table
    rows: dict[int, Values] = field(default_factory=dict)
    ids: dict[tuple[Value, ...], list[int]] = field(default_factory=lambda: defaultdict(list))

    def changed(self, table: Table) -> None:
        """The table has other columns from now on."""
        self.table = table
        self.ids.clear()
        for row_id, values in self.rows.items():
            self.ids[self._stored(values)].append(row_id)

    def come(self, row_id: int, values: Values) -> None:
        self.rows[row_id] = values
        self.ids[self._stored(values)].append(row_id)

    def gone(self, values: Values) -> int | None:
        """The id of a row with these values, which is there no longer."""
        stored = self._stored(values)
        ids = self.ids.get(stored)
        if not ids:
            return None
        row_id = ids.pop()
        if not ids:
            del self.ids[stored]
        del self.rows[row_id]
        return row_id

    def _stored(self, values: Values) -> tuple[Value, ...]:
        return tuple(
            values[column.id] if column.id in values else missing_value(column)
            for column in self.table.columns
            if column.is_public and not column.is_generated
        )


class _Tables:
    """The schema, moved on by the DDL of the files, and the rows that have no key."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._waiting = sorted(
            (job for job in jobs if job.is_done), key=lambda job: (job.finished_ts, job.id)
        )
        self._tracker = SchemaTracker()
        self._tracker.load(jobs)
        self._by_name: dict[tuple[str, str], Table] = {}
        self._older: set[int] = set()
        self._keyless: dict[int, _Keyless] = {}
        self._keyless_rows = 0
        self._next_row_id = 1
        self._last_ddl: tuple[Tso, int] = (NO_TS, 0)
        self._has_begun = False

    def ddl(self, commit_ts: Tso, ddl: NamedDdl) -> list[bytes]:
        """The binlogs of a DDL; none for one more statement of the same job."""
        self._begin(commit_ts)
        job = self._job(commit_ts, ddl)
        if job is None:
            return []
        self._last_ddl = commit_ts, job.id
        self._waiting.remove(job)
        self._tracker.apply(job, SchemaState.NONE)
        self._know_names()
        start_ts, query = Tso(commit_ts - 1), job.query.encode()
        return [
            prewrite_binlog(
                start_ts, ddl_query=query, ddl_job_id=job.id, ddl_schema_state=SchemaState.PUBLIC
            ),
            commit_binlog(
                start_ts,
                commit_ts,
                ddl_query=query,
                ddl_job_id=job.id,
                ddl_schema_state=SchemaState.PUBLIC,
            ),
        ]

    def rows(self, commit_ts: Tso, rows: Iterable[NamedRow]) -> list[bytes]:
        """The binlogs of a transaction."""
        self._begin(commit_ts)
        changes: dict[int, list[tuple[int, bytes]]] = {}
        for row in rows:
            table = self._by_name.get((row.database.lower(), row.table.lower()))
            if table is None:
                raise Refused(
                    f"commit_ts {commit_ts}: the history has no table {row.database}.{row.table}"
                    " then; the archive was routed, or the history is of another cluster"
                )
            kind, encoded = self._encoded(table, row, commit_ts)
            changes.setdefault(table.id, []).append((kind, encoded))
        start_ts = Tso(commit_ts - 1)
        mutations = [mutation_of(table_id, found) for table_id, found in changes.items()]
        value = encode_mutations(self._tracker.version, mutations)
        return [
            prewrite_binlog(start_ts, prewrite_value=value),
            commit_binlog(start_ts, commit_ts),
        ]

    # --- schema ------------------------------------------------------------------------------

    def _begin(self, commit_ts: Tso) -> None:
        """The archive may begin later than the cluster: what was there then is known."""
        if self._has_begun:
            return
        self._has_begun = True
        older = [job for job in self._waiting if 0 < job.finished_ts < commit_ts]
        if older:
            self._tracker.apply_finished_by(Tso(commit_ts - 1))
            self._waiting = self._waiting[len(older) :]
        self._know_names()
        self._older = {table.id for table in self._by_name.values()}

    def _job(self, commit_ts: Tso, ddl: NamedDdl) -> Job | None:
        wanted = _plain(ddl.text)
        for job in self._waiting:
            if _plain(job.query) == wanted and job.start_ts < commit_ts:
                return job
        if self._last_ddl[0] == commit_ts:
            return None
        near = [job for job in self._waiting if job.start_ts < commit_ts <= job.finished_ts]
        if not near:
            raise Refused(
                f"commit_ts {commit_ts}: the history has no job for {ddl.text!r}; give the history"
                " of the cluster that the archive is of (--schema-history)"
            )
        return near[0]

    def _know_names(self) -> None:
        self._by_name = {
            (named.database.lower(), named.table.lower()): info
            for named, info in self._tracker.tables()
        }
        for table in self._by_name.values():
            keyless = self._keyless.get(table.id)
            if keyless is not None and keyless.table is not table:
                keyless.changed(table)

    # --- rows --------------------------------------------------------------------------------

    def _encoded(self, table: Table, row: NamedRow, commit_ts: Tso) -> tuple[int, bytes]:
        label = f"{row.database}.{row.table} at commit_ts {commit_ts}"
        old, new = _values(table, row, label)
        row_id = self._row_id(table, row.kind, old, new, label) if table.has_hidden_id else None
        try:
            if row.kind is RowKind.INSERT:
                return INSERT, encode_insert(table, new, handle=row_id)
            if row.kind is RowKind.UPDATE:
                return UPDATE, encode_update(table, old, new, handle=row_id)
            return DELETE, encode_delete(table, old, handle=row_id)
        except ValueError as error:
            raise Refused(f"{label}: the history has other columns: {error}") from error

    def _row_id(self, table: Table, kind: RowKind, old: Values, new: Values, label: str) -> int:
        keyless = self._keyless.setdefault(table.id, _Keyless(table))
        row_id = None
        if kind is not RowKind.INSERT:
            row_id = keyless.gone(old)
            if row_id is None and table.id not in self._older:
                raise Refused(f"{label}: a row goes that never came: the archive is not whole")
        if row_id is None:
            row_id, self._next_row_id = self._next_row_id, self._next_row_id + 1
        if kind is not RowKind.DELETE:
            keyless.come(row_id, new)
        self._keyless_rows += (kind is RowKind.INSERT) - (kind is RowKind.DELETE)
        if self._keyless_rows > KEYLESS_ROWS_MAX:
            raise Refused(
                f"{label}: tables without a clustered key hold more than {KEYLESS_ROWS_MAX} rows,"
                " and their rows in an archive are told by all their values"
            )
        return row_id


def _values(table: Table, row: NamedRow, label: str) -> tuple[Values, Values]:
    """Both sides of a row by column id."""
    ids = {column.name.lower(): column.id for column in table.columns if column.is_public}
    old: Values = {}
    new: Values = {}
    for column in row.columns:
        column_id = ids.get(column.name.lower())
        if column_id is None:
            raise Refused(f"{label}: the history has no column {column.name} then")
        old[column_id], new[column_id] = column.old, column.new
    for each in table.columns:
        if each.is_public and not each.is_virtual and each.id not in new:
            raise Refused(f"{label}: the files do not hold its column {each.name}")
    return old, new


def _plain(text: str) -> str:
    return " ".join(text.replace(";", " ").split()).lower()
