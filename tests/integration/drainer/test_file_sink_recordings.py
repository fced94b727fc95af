"""Recordings through the file sink: against the files of the original, and into MariaDB."""

from __future__ import annotations

import asyncio
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from binlogd.drainer.ddl_edits import Dialect
from binlogd.drainer.file_log import encode_record, file_records, read_file_log
from binlogd.drainer.file_sink import FileSink
from binlogd.drainer.filter import TableFilter
from binlogd.drainer.pb import PbColumn, PbEvent, PbTransaction, decode, head_of
from binlogd.drainer.translate import Translator, ddl_job_id
from binlogd.drainer.txn import Txn
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.tidb.model import Tp, jobs_from_json
from binlogd.tidb.row import Value
from binlogd.tidb.schema import SchemaTracker
from tests.mariadb import MariaDb
from tests.recordings_reader import RECORDINGS, committed, compare, history

GOLDEN = Path(__file__).parents[2] / "golden" / "artefacts" / "drainer_file_ddl.tar.gz"


def recorded_txns(name: str) -> Iterator[Txn]:
    jobs = {job.id: job for job in jobs_from_json(history(RECORDINGS / name))}
    tracker = SchemaTracker()
    tracker.load(jobs.values())
    translator = Translator(tracker, TableFilter(), Dialect.FILE)
    for binlog in committed(RECORDINGS / name):
        yield translator.translate(binlog, jobs.get(ddl_job_id(binlog)))


async def written(name: str, directory: Path) -> Path:
    """The output directory of a file sink that was given a whole recording."""
    disk = PosixDisk(threads=2)
    sink = FileSink(
        directory / "out",
        directory / "savepoint",
        disk=disk,
        clock=WallClock(),
        max_file_bytes=1 << 20,
    )
    await sink.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(sink.run())
        await sink.submit(list(recorded_txns(name)))
        await sink.flush()
        await sink.close()
    disk.close()
    return directory / "out"


# --- the original's files ----------------------------------------------------------------


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(directory, filter="data")
    return directory


@pytest.mark.parametrize("run", ["stopped", "last"])
def test_files_of_the_original_are_read_byte_for_byte(golden: Path, run: str) -> None:
    directory = golden / run / "out"
    (path,) = directory.glob("binlog-*")
    records = [record.payload for _, record in file_records(directory)]
    assert b"".join(map(encode_record, records)) == path.read_bytes()
    transactions = list(read_file_log(directory))
    assert len(transactions) == len(records)
    saved = int(re.findall(r"commitTS = (\d+)", (golden / run / "savepoint").read_text())[0])
    assert transactions[-1].commit_ts == saved


ATTEMPTS = json.loads(GOLDEN.with_name("drainer_file_ddl.json").read_text())
IGNORED = {
    run: set(attempt["ignore_txn_commit_ts"])
    for run, attempt in zip(("stopped", "last"), ATTEMPTS, strict=True)
}
LOST = {470611042200977429, 470611042214084609}
"""Rows of a table that was truncated and then recovered: the original drops them as outdated."""


def test_the_relay_log_of_the_original_has_the_same_framing(tmp_path: Path) -> None:
    with tarfile.open(GOLDEN.with_name("drainer_relay_keys.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    # its payloads are other messages, which begin with the same two fields
    order = [head_of(record.payload).commit_ts for _, record in file_records(tmp_path / "relay")]
    assert order == sorted(order)
    facts = json.loads(GOLDEN.with_name("drainer_relay_keys.json").read_text())
    for holder in (facts["checkpoint"], facts["after_recovery"]):
        assert order[0] <= json.loads(holder["checkPoint"])["commitTS"] <= order[-1]


async def test_the_records_are_those_of_the_original(golden: Path, tmp_path: Path) -> None:
    directory = await written("ddl", tmp_path)
    ours = {decode(r.payload).commit_ts: r.payload for _, r in file_records(directory)}
    equal, unexplained = 0, []
    for run in ("stopped", "last"):
        theirs = [record.payload for _, record in file_records(golden / run / "out")]
        for payload in theirs:
            original = decode(payload)
            mine = ours.get(original.commit_ts)
            if mine == payload:
                equal += 1
            elif mine is None or not is_explained(original, decode(mine)):
                unexplained.append((run, original, mine and decode(mine)))
        last_ts = decode(theirs[-1]).commit_ts
        seen = {decode(payload).commit_ts for payload in theirs}
        left_out = IGNORED[run] | LOST
        assert {ts for ts in ours if ts <= last_ts and ts not in seen} <= left_out
    assert unexplained == []
    assert equal == 1111


def is_explained(original: PbTransaction, ours: PbTransaction) -> bool:
    return original.ddl == ours.ddl and all(
        is_explained_event(theirs, mine)
        for theirs, mine in zip(original.events, ours.events, strict=True)
    )


RENAMED = {"right_t": "left_t", "right_t2": "right_t2"}
"""Tables of one RENAME TABLES statement; the original goes on with their old names."""


def is_explained_event(theirs: PbEvent, ours: PbEvent) -> bool:
    if theirs.kind != ours.kind:
        return False
    if (theirs.database, theirs.table) != (ours.database, ours.table):
        return theirs.table in RENAMED and theirs.columns == ours.columns
    if theirs.table not in ("st1", "st2", "st3"):  # the tables changed while DDL runs
        return theirs == ours
    return all(
        is_explained_column(name, theirs.columns.get(name), ours.columns.get(name))
        for name in theirs.columns.keys() | ours.columns.keys()
    )


def is_explained_column(name: str, theirs: PbColumn | None, ours: PbColumn | None) -> bool:
    if theirs == ours:
        return True
    if theirs is None:
        # the history, by which the original goes, has dropped or renamed it; downstream it is there
        return True
    if ours is None:
        return name in ("bb", "x1", "x2")  # renamed to `b`, or added, in the history only
    if isinstance(ours.value, int) and theirs.value == b"%d" % ours.value:
        return True  # an integer default as text
    # a multi-schema change gives `a` a new id: going by the history the type comes too early, and
    # the value is lost
    return name == "a" and (theirs.value is None or theirs[2:] == ours[2:])


# --- into MariaDB ------------------------------------------------------------------------


class Replayer:
    """Applies a file log to MariaDB as simply as can be: a row goes by its key, then comes back."""

    def __init__(self, connection: Any, *, skipped: Sequence[str]) -> None:
        self._connection, self._skipped = connection, skipped
        self._keys: dict[tuple[str, str], tuple[frozenset[str], tuple[str, ...]]] = {}
        self._execute(
            "SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES', foreign_key_checks = 0,"
            " time_zone = '+00:00'"
        )

    def apply(self, transaction: PbTransaction) -> None:
        if transaction.ddl:
            self._ddl(transaction.ddl)
        self._execute("BEGIN")
        for event in transaction.events:
            if event.database not in self._skipped:
                self._event(event)
        self._execute("COMMIT")

    def _ddl(self, text: str) -> None:
        match = re.fullmatch(r"use `((?:[^`]|``)+)`; (.*);", text, re.DOTALL)
        database, statement = (match[1], match[2]) if match else ("", text[:-1])
        if database in self._skipped or any(f"`{name}`" in statement for name in self._skipped):
            return
        self._keys.clear()
        if database:
            self._execute(f"USE `{database}`")
        self._execute(statement.rstrip(";"))

    def _event(self, event: PbEvent) -> None:
        generated, key = self._table(event.database, event.table)
        name = f"{quoted(event.database)}.{quoted(event.table)}"
        if event.kind.name != "INSERT":
            chosen = key or [
                each
                for each, column in event.columns.items()
                if column.tp not in (Tp.FLOAT, Tp.DOUBLE, Tp.JSON) and each not in generated
            ]
            where = " AND ".join(
                f"{quoted(each)} <=> {literal(event.columns[each].value, event.columns[each])}"
                for each in chosen
            )
            self._execute(f"DELETE FROM {name} WHERE {where} LIMIT 1")
        if event.kind.name != "DELETE":
            index = 3 if event.kind.name == "UPDATE" else 2
            shown = {
                each: literal(column[index], column)
                for each, column in event.columns.items()
                if each not in generated
            }
            columns = ", ".join(quoted(each) for each in shown)
            self._execute(f"REPLACE INTO {name} ({columns}) VALUES ({', '.join(shown.values())})")

    def _table(self, database: str, table: str) -> tuple[frozenset[str], tuple[str, ...]]:
        """Generated columns, and those of the primary key."""
        if (database, table) not in self._keys:
            rows = self._execute(
                "SELECT column_name, is_generated, column_key FROM information_schema.columns"
                f" WHERE table_schema = '{database}' AND table_name = '{table}'"
            )
            generated = frozenset(name.decode() for name, kind, _ in rows if kind == b"ALWAYS")
            keys = tuple(name.decode() for name, _, key in rows if key == b"PRI")
            self._keys[database, table] = generated, keys
        return self._keys[database, table]

    def _execute(self, statement: str) -> list[tuple[bytes, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


TEXT_TYPES = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "var_string")


def literal(value: Value, column: PbColumn) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            prefix = "_utf8mb4 " if column.mysql_type in TEXT_TYPES else "_binary "
            return f"{prefix}X'{value.hex()}'"
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
        case _:
            return repr(value)


@pytest.mark.parametrize(
    ("name", "skipped"),
    [("types", ["types_tidb"]), ("keys", ["keys_tidb", "keys_wrong"])],
)
async def test_a_recording_comes_out_of_the_files_as_it_was(
    name: str, skipped: list[str], tmp_path: Path, mariadb: MariaDb
) -> None:
    directory = await written(name, tmp_path)
    connection = mariadb.connect()
    replayer = Replayer(connection, skipped=skipped)
    for transaction in read_file_log(directory):
        replayer.apply(transaction)
    assert [str(each) for each in compare(RECORDINGS / name, connection, skipped)] == []
    connection.close()
