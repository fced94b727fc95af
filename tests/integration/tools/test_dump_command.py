"""`binlogd dump` and `binlogd replay` on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from binlogd.cli import command_line
from tests.integration.tools.test_reading import extracted
from tests.support.appliance import run
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import RECORDINGS

HISTORY = RECORDINGS / "ddl" / "ddl_history.json.gz"


def lines(*words: object) -> list[str]:
    result = CliRunner().invoke(
        command_line(), [str(word) for word in words], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def documents(*words: object) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines(*words, "--json")]


def failed(words: Sequence[object]) -> tuple[int, str]:
    """Exit code and what the process says."""
    done = run(Path.cwd(), *map(str, words))
    return done.returncode, done.stdout + done.stderr


def test_rows_and_ddl_are_printed_for_people_and_for_programs(tmp_path: Path) -> None:
    root = extracted("drainer_file_ddl", tmp_path)
    text = lines("dump", root / "last" / "out")
    found = documents("dump", root / "last" / "out")
    heads = [line for line in text if line.startswith("commit_ts")]
    assert len(heads) == len({each["commit_ts"] for each in found})
    ddl = next(each for each in found if each["kind"] == "ddl")
    assert str(ddl["sql"]) in "\n".join(text)
    kinds = {each["kind"] for each in found}
    assert kinds == {"ddl", "insert", "update", "delete"}
    update = next(each for each in found if each["kind"] == "update")
    assert set(update) >= {"commit_ts", "time", "path", "offset", "database", "table", "old", "new"}
    assert not any("\x1b" in line for line in text), "colours are for terminals"


def test_a_window_a_table_and_a_limit_choose_what_is_printed(tmp_path: Path) -> None:
    root = extracted("pump_value_ddl", tmp_path)
    both = (root / "pump0", root / "pump1", "--schema-history", HISTORY)
    found = documents("dump", *both)
    middle = str(found[len(found) // 2]["time"])
    late = documents("dump", *both, "--from", middle)
    assert [each for each in found if str(each["time"]) >= middle] == late
    early = documents("dump", *both, "--to", middle)
    assert [each for each in found if str(each["time"]) <= middle] == early
    of_table = documents("dump", *both, "--table", "ddl_a.st1")
    assert of_table
    assert all(each.get("table") == "st1" for each in of_table if each["kind"] != "ddl")
    assert all("st1" in str(each["sql"]) for each in of_table if each["kind"] == "ddl")
    assert len(lines("dump", *both, "--limit", 7, "--heads")) >= 7
    assert len({each["commit_ts"] for each in documents("dump", *both, "--limit", 7)}) == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--table", "ddl_a.st"), "no rows or DDL of ddl_a.st in"),
        (("--table", "st1"), "near: ddl_a.st1"),
        (("--table", "nowhere.x"), "tables there: "),
        (
            ("--from", "999999999999999999"),
            "no transaction has a commit_ts from 999999999999999999",
        ),
    ],
)
@pytest.mark.parametrize("command", ["dump", "undo"])
def test_what_is_asked_for_and_is_not_there_is_told(
    command: str, words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    root = extracted("pump_value_ddl", tmp_path)
    begin = ("--from", "1") if "--from" not in words else ()
    both = (root / "pump0", root / "pump1", "--schema-history", HISTORY)
    code, error = failed([command, *both, *begin, *words])
    assert code == 1
    assert said in error, error


def test_records_are_listed_as_they_stand_in_the_file(tmp_path: Path) -> None:
    root = extracted("pump_value_ddl", tmp_path)
    found = documents("dump", root / "pump0", "--records")
    assert [each["offset"] for each in found][:2] == [0, 42]
    assert {each["kind"] for each in found} == {"prewrite", "commit", "rollback", "fake"}
    ends = [int(str(each["offset"])) for each in found]
    assert ends == sorted(ends)


def test_damage_and_a_wrong_command_have_their_exit_codes(tmp_path: Path) -> None:
    root = extracted("drainer_file_ddl", tmp_path)
    (file,) = (root / "last" / "out").glob("binlog-*")
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)
    code, said = failed(["dump", file])
    assert code == 1
    assert re.search(rf"{file.name} at offset \d+: ", said)
    code, said = failed(["dump", file, "--from", "yesterday"])
    assert code == 2
    assert "neither a TSO" in said


def test_a_replay_prints_without_a_target_and_applies_with_one(
    tmp_path: Path, mariadb: MariaDb, request: pytest.FixtureRequest
) -> None:
    root = extracted("drainer_file_ddl", tmp_path)
    # behind it the original goes on with the old names of a RENAME TABLES
    window = ("--to", "470611011399319569", "--do", "ddl_a")
    printed = documents("replay", root / "last" / "out", *window)
    url = f"mysql://root@127.0.0.1:{mariadb.port}"
    request.addfinalizer(structlog.reset_defaults)
    for options in ((), ("--safe-mode",)):
        (done,) = documents("replay", root / "last" / "out", *window, "--into", url, *options)
        assert done["rows"] == len([each for each in printed if each["kind"] != "ddl"])
        assert done["ddls"] == len([each for each in printed if each["kind"] == "ddl"])
        assert done["commit_ts"] == printed[-1]["commit_ts"]


def test_a_replay_that_finds_no_row_names_the_table_and_does_not_end_well(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    out = extracted("drainer_file_ddl", tmp_path) / "last" / "out"
    url = f"mysql://root@127.0.0.1:{mariadb.port}"
    printed = documents("replay", out, "--to", "470611011399319569", "--do", "ddl_a")
    gone = next(each for each in printed if each["kind"] == "delete")
    at, table = int(str(gone["commit_ts"])), f"{gone['database']}.{gone['table']}"
    lines("replay", out, "--to", at - 1, "--do", "ddl_a", "--into", url)
    mariadb.execute(f"DELETE FROM {table}")
    code, said = failed(["replay", out, "--from", at, "--to", at, "--do", table, "--into", url])
    assert code == 1
    assert f"found no row, most of them of {table}:" in said


def test_a_replay_that_leaves_a_column_out_names_it_and_does_not_end_well(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    out = extracted("drainer_file_ddl", tmp_path) / "last" / "out"
    url = f"mysql://root@127.0.0.1:{mariadb.port}"
    printed = documents("replay", out, "--to", "470611011399319569", "--do", "ddl_a")
    made = next(each for each in reversed(printed) if each["kind"] == "insert")
    at, table = int(str(made["commit_ts"])), f"{made['database']}.{made['table']}"
    lines("replay", out, "--to", at - 1, "--do", "ddl_a", "--into", url)
    (*_, (last,)) = mariadb.execute(
        "SELECT column_name FROM information_schema.columns WHERE CONCAT(table_schema, '.',"
        f" table_name) = '{table}' AND column_key = '' ORDER BY ordinal_position"
    )
    column = (last or b"").decode()
    mariadb.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    code, said = failed(["replay", out, "--from", at, "--to", at, "--do", table, "--into", url])
    assert code == 1
    assert f"lacks columns, and what they hold was left out: {table}.{column}" in said


CONFIG = """
data-dir = "{directory}"
[syncer]
db-type = "mysql"
[syncer.to]
port = {port}
user = "root"
[syncer.relay]
log-dir = "{directory}/relay"
"""
CHECKPOINT_TS, STOP_TS = 470611451185725448, 470611451199094800


def test_a_dry_run_of_a_restore_prints_what_it_would_apply_and_changes_nothing(
    tmp_path: Path, mariadb: MariaDb, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(structlog.reset_defaults)
    root = extracted("drainer_relay_keys", tmp_path)
    config = tmp_path / "binlogd.toml"
    config.write_text(CONFIG.format(directory=root, port=mariadb.port))
    code, said = failed(["restore", "--config", config, "--dry-run"])
    assert code == 2
    assert "has no checkpoint" in said
    mariadb.execute(
        "CREATE DATABASE tidb_binlog",
        "CREATE TABLE tidb_binlog.checkpoint (clusterID BIGINT UNSIGNED PRIMARY KEY,"
        " checkPoint MEDIUMTEXT)",
        f"INSERT INTO tidb_binlog.checkpoint VALUES (7, '{{\"commitTS\":{CHECKPOINT_TS}}}')",
    )
    before = mariadb.execute("SELECT table_name FROM information_schema.tables")
    plan = ("restore", "--config", config, "--dry-run", "--to-ts", STOP_TS)
    found = documents(*plan)
    assert [each["commit_ts"] for each in found][-1] == STOP_TS
    assert all(CHECKPOINT_TS < int(str(each["commit_ts"])) <= STOP_TS for each in found)
    assert {each["table"] for each in found} == {"dup"}
    assert "keys.dup" in "\n".join(lines(*plan))
    assert mariadb.execute("SELECT table_name FROM information_schema.tables") == before
