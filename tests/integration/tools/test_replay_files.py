"""Files of a file sink, ours and the original's, into MariaDB."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from binlogd.commands.replay import server_of as destination
from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.messages.named import NamedColumn, NamedRow, RowKind
from binlogd.errors import Cancelled, ConfigError
from binlogd.tools.reading import find_sources, transactions
from binlogd.tools.replay import Replayed, ReplayStopped, only_named, replay
from binlogd.tools.transaction import CommitWindow, FilePosition, Meter, Transaction
from binlogd.tso import NO_TS, Tso
from tests.support.file_logs import written
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import RECORDINGS, compare
from tests.support.replay import SKIPPED, filter_for, server_of


def read(*paths: Path, window: CommitWindow | None = None) -> Iterator[Transaction]:
    return transactions(find_sources(paths), window or CommitWindow(), meter=Meter())


async def into(
    mariadb: MariaDb,
    found: Iterator[Transaction],
    wanted: TableFilter | None = None,
    *,
    is_safe: bool = False,
) -> Replayed:
    return await replay(found, wanted or TableFilter(), server_of(mariadb), is_safe=is_safe)


def differences(name: str, mariadb: MariaDb, skipped: Sequence[str]) -> list[str]:
    connection = mariadb.connect()
    found = [str(each) for each in compare(RECORDINGS / name, connection, skipped)]
    connection.close()
    return found


@pytest.mark.parametrize("name", ["types", "keys"])
async def test_a_recording_comes_out_of_the_files_as_it_was(
    name: str, tmp_path: Path, mariadb: MariaDb
) -> None:
    directory = await written(name, tmp_path)
    done = await into(mariadb, read(directory), filter_for(SKIPPED[name]))
    assert differences(name, mariadb, SKIPPED[name]) == []
    assert done.counters.rows > 500
    assert done.counters.rows_missing == 0


async def test_a_replay_that_was_cut_short_goes_on_safely_from_before_its_end(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    directory = await written("keys", tmp_path)
    wanted = filter_for((*SKIPPED["keys"], "keys.no_key"))
    everything = [each.commit_ts for each in read(directory)]
    middle, before = everything[len(everything) // 2], everything[len(everything) // 2 - 60]
    await into(mariadb, read(directory, window=CommitWindow(stop=middle)), wanted)
    await into(mariadb, read(directory, window=CommitWindow(start=before)), wanted, is_safe=True)
    assert differences("keys", mariadb, (*SKIPPED["keys"], "keys.no_key")) == []


async def test_what_the_target_refuses_is_named_with_the_way_on_and_the_way_past(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    directory = await written("few", tmp_path)
    at = first_change(directory, "no_key")
    made = max(each.commit_ts for each in read(directory) if each.ddl and each.commit_ts < at)
    lacking = TableFilter(ignored_databases=SKIPPED["few"], ignored_commit_ts=[made])
    refused = r"keys\.no_key.*--ignore-commit-ts"
    with pytest.raises(ReplayStopped, match=refused) as stopped:
        await into(mariadb, read(directory), lacking)
    way_on = f"applied up to commit_ts {stopped.value.applied_ts} .*--from .*--safe-mode"
    assert re.search(way_on, str(stopped.value))
    assert 0 < stopped.value.applied_ts < at
    with pytest.raises(ReplayStopped, match="nothing was applied"):
        await into(mariadb, read(directory, window=CommitWindow(start=at)), lacking)


async def test_a_replay_that_is_cancelled_tells_how_to_go_on(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    directory = await written("few", tmp_path)
    wanted = filter_for((*SKIPPED["few"], "keys.no_key"))
    found = list(read(directory))

    def until_ctrl_c() -> Iterator[Transaction]:
        task = asyncio.current_task()
        assert task is not None
        yield from found[:-40]
        task.cancel()
        yield from found[-40:]

    with pytest.raises(Cancelled) as cancelled:
        await into(mariadb, until_ctrl_c(), wanted)
    way_on = re.search(
        r"applied up to commit_ts \d+ .*--from (\d+) --safe-mode", str(cancelled.value)
    )
    assert way_on
    rest = read(directory, window=CommitWindow(start=Tso(int(way_on[1]))))
    await into(mariadb, rest, wanted, is_safe=True)
    assert differences("few", mariadb, (*SKIPPED["few"], "keys.no_key")) == []


def first_change(directory: Path, table: str) -> Tso:
    return next(
        each.commit_ts for each in read(directory) if any(row.table == table for row in each.rows())
    )


@pytest.mark.parametrize("zone", ["+00:00", "+08:00"])
async def test_times_are_read_in_the_zone_that_is_named(mariadb: MariaDb, zone: str) -> None:
    mariadb.execute("CREATE DATABASE d", "CREATE TABLE d.t (at TIMESTAMP)")
    column = NamedColumn("at", "timestamp", None, b"2020-01-02 08:00:00")
    row = NamedRow("d", "t", RowKind.INSERT, (column,))
    place = FilePosition(Path("binlog-0"), 0)
    made = Transaction(Tso(5), NO_TS, place, 10, None, partial(iter, (row,)))
    server = destination(f"mysql://{mariadb.user}@127.0.0.1:{mariadb.port}", zone)
    await replay(iter([made]), TableFilter(), server, is_safe=False)
    (found,) = mariadb.execute("SELECT UNIX_TIMESTAMP(at) DIV 3600 FROM d.t")
    hours = datetime(2020, 1, 2, 8, tzinfo=UTC).timestamp() // 3600
    assert int(found[0] or 0) == hours - int(zone[1:3])


async def test_a_zone_that_the_server_does_not_know_is_said_before_anything_is_done(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    directory = await written("few", tmp_path)
    server = destination(f"mysql://{mariadb.user}@127.0.0.1:{mariadb.port}", "Mars/Olympus")
    with pytest.raises(ConfigError, match=r"Mars/Olympus.*--time-zone"):
        await replay(read(directory), TableFilter(), server, is_safe=False)
    assert (b"keys",) not in mariadb.execute("SHOW DATABASES")


async def test_a_log_without_names_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "value").mkdir()
    (tmp_path / "value" / "000000.vlog").write_bytes(b"")
    with pytest.raises(ConfigError, match="is a pump log: a replay reads binlog-"):
        only_named(find_sources([tmp_path]))


async def test_only_chosen_tables_and_transactions_are_replayed(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    directory = await written("few", tmp_path)
    at = first_change(directory, "dup")
    wanted = TableFilter(
        do_databases=["~^keys$"],
        ignored_tables=[TablePattern("keys", "~^cl_")],
        ignored_commit_ts=[at],
    )
    await into(mariadb, read(directory), wanted)
    tables = {name for (name,) in mariadb.execute("SHOW TABLES IN `keys`")}
    assert b"cs_00" in tables
    assert b"cl_00" not in tables
    everything = inserts_into(directory, "dup")
    assert len(mariadb.execute("SELECT * FROM `keys`.dup")) < everything


def inserts_into(directory: Path, table: str) -> int:
    """Inserts into a table."""
    return sum(
        row.kind is RowKind.INSERT
        for each in read(directory)
        for row in each.rows()
        if row.table == table
    )
