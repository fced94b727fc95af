"""What was done is taken back, on a server and as a script; one transaction is looked up."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from binlogd.cli import command_line
from binlogd.drainer.ddl.names import name_of
from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.messages.named import NamedColumn, NamedRow, NamedTransaction, RowKind
from binlogd.drainer.mysql.named_apply import NamedApplier, NamedOptions
from binlogd.errors import Cancelled, ConfigError, GaveUp
from binlogd.tools.reading import find_sources, transactions
from binlogd.tools.replay import replay
from binlogd.tools.transaction import CommitWindow, Meter
from binlogd.tools.undo import UndoneLog, inverse, preamble, script, taken_back, undo
from binlogd.tso import Tso
from tests.integration.tools.test_reading import extracted
from tests.support.file_logs import written
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import RECORDINGS
from tests.support.replay import SKIPPED, filter_for, server_of


def only(database: str, table: str) -> TableFilter:
    return TableFilter(do_tables=[TablePattern(database, table)])


def lives(directory: Path, wanted: TableFilter) -> dict[tuple[str, str], Tso]:
    """The tables that had one DDL only, and the commit_ts behind it."""
    ddls: dict[tuple[str, str], list[Tso]] = {}
    for transaction in transactions(find_sources([directory]), CommitWindow(), meter=Meter()):
        if transaction.ddl is not None:
            ddls.setdefault(name_of(transaction.ddl), []).append(transaction.commit_ts)
    return {
        name: Tso(made[0] + 1)
        for name, made in ddls.items()
        if len(made) == 1 and name[1] and wanted.replicates(*name)
    }


@pytest.mark.parametrize("is_script", [False, True])
async def test_a_table_is_what_it_was_before(
    tmp_path: Path, mariadb: MariaDb, *, is_script: bool
) -> None:
    directory, wanted = await written("few", tmp_path), filter_for(SKIPPED["few"])
    found = transactions(find_sources([directory]), CommitWindow(), meter=Meter())
    await replay(found, wanted, server_of(mariadb), is_safe=False)
    for name, start in sorted(lives(directory, wanted).items())[::3]:
        rows = f"SELECT COUNT(*) FROM `{name[0]}`.`{name[1]}`"
        log = UndoneLog(find_sources([directory]), CommitWindow(start=start), (), only(*name))
        back = taken_back(log, Meter())
        if is_script:
            lines = [*preamble(), *(line for each in back for line in script(each))]
            mariadb.execute(*(line for line in lines if not line.startswith("--")))
        else:
            assert (await undo(back, server_of(mariadb))).rows_missing == 0
        assert mariadb.execute(rows) == [(b"0",)], name


async def test_what_is_cancelled_tells_how_far_it_came(tmp_path: Path, mariadb: MariaDb) -> None:
    directory, wanted = await written("few", tmp_path), filter_for(SKIPPED["few"])
    found = transactions(find_sources([directory]), CommitWindow(), meter=Meter())
    await replay(found, wanted, server_of(mariadb), is_safe=False)
    start = lives(directory, wanted)["keys", "int_pk"]
    log = UndoneLog(find_sources([directory]), CommitWindow(start), (), only("keys", "int_pk"))

    def until_ctrl_c() -> Iterator[NamedTransaction]:
        task = asyncio.current_task()
        assert task is not None
        for count, each in enumerate(taken_back(log, Meter())):
            if count == 3:
                task.cancel()
            yield each

    with pytest.raises(Cancelled) as cancelled:
        await undo(until_ctrl_c(), server_of(mariadb))
    way_on = re.search(r"is taken back; go on with --to (\d+);", str(cancelled.value))
    assert way_on, cancelled.value
    rest = replace(log, window=CommitWindow(start, Tso(int(way_on[1]))))
    assert (await undo(taken_back(rest, Meter()), server_of(mariadb))).rows_missing == 0
    assert mariadb.execute("SELECT COUNT(*) FROM `keys`.int_pk") == [(b"0",)]


async def test_newest_first_and_nothing_where_a_ddl_stands(tmp_path: Path) -> None:
    directory = await written("ddl", tmp_path)
    everything = UndoneLog(find_sources([directory]), CommitWindow(), (), TableFilter())
    with pytest.raises(GaveUp, match=r"is a DDL, which cannot be taken back: .*--from"):
        next(taken_back(everything, Meter()))
    found = list(transactions(find_sources([directory]), CommitWindow(), meter=Meter()))
    last_ddl = max(each.commit_ts for each in found if each.ddl)
    late = UndoneLog(
        find_sources([directory]), CommitWindow(start=Tso(last_ddl + 1)), (), TableFilter()
    )
    order = [each.commit_ts for each in taken_back(late, Meter())]
    assert order == sorted(order, reverse=True)
    assert order == [each.commit_ts for each in reversed(found) if each.commit_ts > last_ddl]


def test_the_inverse_of_the_inverse_is_the_row() -> None:
    for kind in RowKind:
        row = NamedRow("s", "t", kind, (NamedColumn("a", "int", 1, 2),))
        assert inverse(inverse(row)) == row
        assert inverse(row) != row


def test_a_script_writes_no_generated_column_and_no_byte_that_is_no_text(mariadb: MariaDb) -> None:
    mariadb.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.t (a INT PRIMARY KEY, v VARBINARY(9), g INT AS (a * 2) STORED)",
    )
    columns = (
        NamedColumn("a", "int", 1, None),
        NamedColumn("v", "varchar", b"caf\xe9", None),
        NamedColumn("g", "int", 2, None, is_generated=True),
    )
    gone = NamedRow("s", "t", RowKind.DELETE, columns, (("a",),))
    moved = replace(
        gone,
        kind=RowKind.UPDATE,
        columns=(
            columns[0]._replace(new=5),
            columns[1]._replace(old=b"x", new=b"x"),
            columns[2]._replace(new=10),
        ),
    )
    for row, expected in ((gone, (b"1", b"caf\xe9", b"2")), (moved, (b"1", b"x", b"2"))):
        mariadb.execute("DELETE FROM s.t", "INSERT INTO s.t (a, v) VALUES (5, 'x')")
        if row is gone:
            mariadb.execute("DELETE FROM s.t")
        back = NamedTransaction(Tso(1), None, partial(iter, (inverse(row),)))
        lines = [*preamble(), *script(back)]
        mariadb.execute(*(line for line in lines if not line.startswith("--")))
        assert mariadb.execute("SELECT * FROM s.t") == [expected]


MEMBERS = ",".join(f"'m{number}'" for number in range(64))


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (s)", ", PRIMARY KEY (a, s)"])
async def test_a_row_with_the_last_of_64_members_is_found(mariadb: MariaDb, key: str) -> None:
    """MariaDB takes such a SET for a negative number, which no literal equals."""
    made = f"CREATE TABLE s.t (a INT, s SET({MEMBERS}){key})"
    mariadb.execute("CREATE DATABASE s", made)
    keys = (tuple(key[15:-1].split(", ")),) if key else ()
    columns = (NamedColumn("a", "int", None, 1), NamedColumn("s", "set", None, 1 << 63 | 1))
    made_row = NamedRow("s", "t", RowKind.INSERT, columns, keys)
    moved = (NamedColumn("a", "int", 1, 2), columns[1]._replace(old=1 << 63 | 1))
    moved_row = replace(made_row, kind=RowKind.UPDATE, columns=moved)
    steps = [made_row, moved_row, inverse(moved_row), inverse(made_row)]
    applier = NamedApplier(server_of(mariadb), NamedOptions(is_safe=False), Random(1))
    await applier.open()
    for number, row in enumerate(steps, 1):
        await applier.apply(NamedTransaction(Tso(number), None, partial(iter, (row,))), 10)
    await applier.flush()
    applier.close()
    assert applier.counters.rows_missing == 0
    assert mariadb.execute("SELECT * FROM s.t") == []
    mariadb.execute(f"INSERT INTO s.t VALUES (1, {1 << 63 | 1})")
    back = NamedTransaction(Tso(1), None, partial(iter, (inverse(made_row),)))
    mariadb.execute(*(line for line in script(back) if not line.startswith("--")))
    assert mariadb.execute("SELECT * FROM s.t") == []


def run(*words: object) -> list[str]:
    result = CliRunner().invoke(
        command_line(), [str(word) for word in words], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


async def test_the_command_prints_sql_and_wants_a_beginning(tmp_path: Path) -> None:
    directory = await written("keys", tmp_path)
    start = lives(directory, TableFilter())["keys", "int_pk"]
    lines = run("undo", directory, "--from", start, "--table", "keys.int_pk")
    assert lines[3] == "START TRANSACTION;"
    assert lines[-1] == "COMMIT;"
    with pytest.raises(ConfigError, match="--from is missing"):
        run("undo", directory)


def test_a_transaction_is_found_by_either_of_its_timestamps(tmp_path: Path) -> None:
    root = extracted("pump_value_ddl", tmp_path)
    paths = (root / "pump0", root / "pump1")
    history = ("--schema-history", RECORDINGS / "ddl" / "ddl_history.json.gz")
    some = [json.loads(line) for line in run("dump", *paths, *history, "--json")]
    wanted = next(each for each in some if each["kind"] == "insert")
    for name in ("commit_ts", "start_ts"):
        shown = [json.loads(line) for line in run("txn", wanted[name], *paths, *history, "--json")]
        assert wanted in shown
        assert {each["commit_ts"] for each in shown} == {wanted["commit_ts"]}
    assert "commit_ts" in run("txn", wanted["commit_ts"], *paths, *history)[0]


def test_a_timestamp_that_nothing_carries_and_one_without_a_commit(tmp_path: Path) -> None:
    root = extracted("pump_value_ddl", tmp_path)
    paths = (root / "pump0", root / "pump1")
    records = [json.loads(x) for x in run("dump", *paths, "--records", "--json")]
    rolled_back = next(each for each in records if each["kind"] == "rollback")
    (prewrite, rollback) = run("txn", rolled_back["start_ts"], *paths)
    assert prewrite.startswith("prewrite without a commit")
    assert rollback.startswith("rollback without a commit")
    missing = CliRunner().invoke(command_line(), ["txn", "7", str(paths[0])])
    assert missing.exit_code == 1
