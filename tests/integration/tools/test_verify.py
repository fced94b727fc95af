"""Two servers are compared table by table: what differs is found, and shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from binlogd.cli import command_line
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.filtering.route import RouteRule, TableRouter
from binlogd.errors import ConfigError
from binlogd.tools.verify import TableVerdict, VerifyRequest, verify
from binlogd.tso import NO_TS, Tso
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import RECORDINGS
from tests.support.replay import SKIPPED, apply_all, server_of, sink_for, translated

TABLES = (
    "CREATE DATABASE shop CHARACTER SET utf8mb4",
    "USE shop",
    "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, v VARCHAR(20), f FLOAT, j JSON)",
    "CREATE TABLE shop.named (name VARCHAR(20), n INT, PRIMARY KEY (name, n))",
    "CREATE TABLE shop.plain (a INT, b BLOB, d DATETIME(3), e ENUM('x','y'), t BIT(9))",
    "INSERT INTO shop.orders SELECT seq, CONCAT('v', seq), seq / 3, '{\"a\": [1, 2]}'"
    " FROM seq_1_to_500",
    "INSERT INTO shop.named SELECT CONCAT('ä', seq MOD 40), seq FROM seq_1_to_500",
    "INSERT INTO shop.plain SELECT seq, UNHEX('00ff'), '2024-02-29 01:02:03.5', 'y', 257"
    " FROM seq_1_to_200",
    "INSERT INTO shop.plain SELECT NULL, NULL, NULL, NULL, NULL FROM seq_1_to_7",
)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[MariaDb]:
    server = MariaDb(tmp_path / "replica")
    (tmp_path / "replica").mkdir()
    server.start()
    yield server
    server.stop()


async def verdicts(
    upstream: MariaDb,
    replica: MariaDb,
    wanted: TableFilter | None = None,
    at_ts: Tso = NO_TS,
    part_bytes: int = 64 << 20,
) -> dict[str, TableVerdict]:
    request = VerifyRequest(
        server_of(upstream),
        server_of(replica),
        wanted or TableFilter(),
        at_ts,
        ("tidb_binlog",),
        part_rows=60,
        part_bytes=part_bytes,
        look_again_s=0.0,
    )
    return {each.table: each async for each in verify(request)}


async def test_whatever_differs_is_found_whatever_the_key(
    mariadb: MariaDb, replica: MariaDb
) -> None:
    for server in (mariadb, replica):
        server.execute(*TABLES)
    found = await verdicts(mariadb, replica)
    assert {name: (each.rows, each.reason) for name, each in found.items()} == {
        "orders": (500, ""),
        "named": (500, ""),
        "plain": (207, ""),
    }
    replica.execute(
        "UPDATE shop.orders SET f = f + 1 WHERE id = 437",
        "INSERT INTO shop.named VALUES ('surplus', 1)",
        "DELETE FROM shop.plain WHERE a IS NULL LIMIT 1",
        "CREATE TABLE shop.extra (a INT)",
    )
    mariadb.execute("CREATE TABLE shop.late (a INT)")
    found = await verdicts(mariadb, replica)
    assert found["orders"].reason == "rows differ in part 8 of 9"
    assert [each.split(":")[0] for each in found["orders"].examples] == ["missing", "surplus"]
    assert found["named"].examples[0].startswith("surplus: ")
    assert found["plain"].examples[0].startswith("missing: ")
    assert found["late"].reason == "is missing downstream"
    assert found["extra"].reason == "is not upstream"
    replica.execute("ALTER TABLE shop.orders ADD w INT")
    assert (await verdicts(mariadb, replica))["orders"].reason == "has other columns: w"


async def test_rows_that_are_there_twice_do_not_hide_each_other(
    mariadb: MariaDb, replica: MariaDb
) -> None:
    for server, value in ((mariadb, 1), (replica, 2)):
        server.execute(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.plain (a INT)",
            f"INSERT INTO shop.plain VALUES ({value}), ({value})",
        )
    found = await verdicts(mariadb, replica)
    assert found["plain"].examples == ("missing: a=1",) * 2 + ("surplus: a=2",) * 2


async def test_a_row_that_is_too_long_for_a_checksum_is_compared(
    mariadb: MariaDb, replica: MariaDb
) -> None:
    for server, letter in ((mariadb, "x"), (replica, "y")):
        server.execute(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.wide (a LONGBLOB)",
            f"INSERT INTO shop.wide VALUES (REPEAT('{letter}', 1 << 20))",
            "SET GLOBAL max_allowed_packet = 1 << 20",
        )
    assert (await verdicts(mariadb, replica))["wide"].reason == "rows differ in part 1 of 1"
    mariadb.execute("SET GLOBAL max_allowed_packet = 1 << 24")


async def test_parts_of_long_rows_have_fewer_of_them(mariadb: MariaDb, replica: MariaDb) -> None:
    for server in (mariadb, replica):
        server.execute(
            "CREATE DATABASE shop",
            "USE shop",
            "CREATE TABLE shop.long_rows (id INT PRIMARY KEY, a LONGTEXT)",
            "INSERT INTO shop.long_rows SELECT seq, REPEAT('x', 5000) FROM seq_1_to_60",
            "ANALYZE TABLE shop.long_rows",
        )
    replica.execute("UPDATE shop.long_rows SET a = 'y' WHERE id = 60")
    found = await verdicts(mariadb, replica, part_bytes=100_000)
    reason = found["long_rows"].reason
    assert int(reason.removeprefix("rows differ in part ").partition(" of ")[2]) > 2


async def test_tables_are_looked_for_under_the_names_that_routes_give_them(
    mariadb: MariaDb, replica: MariaDb
) -> None:
    mariadb.execute(
        "CREATE DATABASE shop", "CREATE TABLE shop.o (a INT)", "CREATE TABLE shop.left_out (a INT)"
    )
    replica.execute(
        "CREATE DATABASE store",
        "CREATE TABLE store.o (a INT)",
        "CREATE TABLE store.left_out (a INT)",
        "CREATE TABLE store.surplus (a INT)",
    )
    routes = TableRouter([RouteRule("shop", "", "store")])
    wanted = TableFilter(ignored_tables=[TablePattern("shop", "left_out")], routes=routes)
    found = await verdicts(mariadb, replica, wanted)
    assert {name: each.reason for name, each in found.items()} == {
        "o": "",
        "surplus": "is not upstream",
    }
    replica.execute("DROP TABLE store.o")
    found = await verdicts(mariadb, replica, wanted)
    assert found["o"].reason == "is missing downstream (as store.o)"


@pytest.mark.parametrize("name", ["types"])
async def test_a_recording_applied_twice_is_the_same_twice(
    name: str, mariadb: MariaDb, replica: MariaDb
) -> None:
    for server in (mariadb, replica):
        await apply_all(sink_for(server), translated(RECORDINGS / name, SKIPPED[name]))
    found = await verdicts(mariadb, replica)
    assert [each for each in found.values() if each.reason] == []
    assert len(found) > 30


def test_the_command_says_it_in_words_in_json_and_by_its_exit_code(
    mariadb: MariaDb, replica: MariaDb
) -> None:
    for server in (mariadb, replica):
        server.execute(*TABLES)
    words = ["verify", "--upstream", f"mysql://root@127.0.0.1:{mariadb.port}"]
    words += ["--downstream", f"mysql://root@127.0.0.1:{replica.port}"]
    cli = command_line()
    equal = CliRunner().invoke(cli, words)
    assert equal.exit_code == 0
    assert "3 of 3 tables are equal, as it is now" in equal.output
    replica.execute("DELETE FROM shop.orders WHERE id = 3")
    differing = CliRunner().invoke(cli, [*words, "--json", "--table", "shop.orders"])
    assert differing.exit_code == 1
    (line,) = differing.stdout.splitlines()
    assert json.loads(line)["examples"][0].startswith("missing: id=3")
    with pytest.raises(ConfigError, match=r"neither server has a table .* check --table"):
        CliRunner().invoke(cli, [*words, "--table", "shop.none"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="--upstream: expected mysql://"):
        CliRunner().invoke(
            cli, ["verify", *words[3:], "--upstream", "shop"], catch_exceptions=False
        )
    with pytest.raises(ConfigError, match="only a TiDB can"):
        CliRunner().invoke(cli, [*words, "--at", "400000000000000000"], catch_exceptions=False)


def test_the_checkpoint_is_read_where_the_configuration_keeps_it(
    mariadb: MariaDb, replica: MariaDb, tmp_path: Path
) -> None:
    for server in (mariadb, replica):
        server.execute(*TABLES)
    text = Checkpoint(Tso(450000000000000001), consistent=True).to_json().decode()
    mariadb.execute(
        "CREATE DATABASE marks",
        "CREATE TABLE marks.of_shop (clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint TEXT)",
        f"INSERT INTO marks.of_shop VALUES (7, '{text}')",
    )
    file = tmp_path / "binlogd.toml"
    file.write_text(
        '[syncer]\ndb-type = "mysql"\n'
        f'[syncer.to]\nport = {replica.port}\nuser = "root"\n'
        '[syncer.to.checkpoint]\nhost = "127.0.0.1"\nschema = "marks"\ntable = "of_shop"\n'
        f'port = {mariadb.port}\nuser = "root"\n'
    )
    words = ["verify", "--upstream", f"mysql://root@127.0.0.1:{mariadb.port}"]
    with pytest.raises(ConfigError, match="cannot be read as of 450000000000000001"):
        CliRunner().invoke(command_line(), [*words, "--config", str(file)], catch_exceptions=False)
