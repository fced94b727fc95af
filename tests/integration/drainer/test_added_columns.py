"""Rows that are there when a column is added hold what the job says, in real servers."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import ActionType, FieldType, Scalar, Table
from tests.support.ddl_upstream import ID, Upstream, table, with_column
from tests.support.interrupted import interrupted_at_each
from tests.support.mariadb import MariaDb
from tests.workload import schema as tidb
from tests.workload.schema import ColumnDef


class Added(NamedTuple):
    """`text` as TiDB prints it, `origin` as its job has it, `held` as the rows have it then."""

    kind: FieldType
    text: str
    origin: Scalar
    held: bytes | None


CLOCK, DAY, STAMP = Tp.DURATION, Tp.DATETIME, Tp.TIMESTAMP
TEXT = replace(tidb.varchar(20), charset="latin1", collate="latin1_bin")
DOUBLE = replace(tidb.real("DOUBLE"), decimal=2)
ADDED = {
    "clock": Added(
        tidb.temporal(CLOCK), "TIME DEFAULT '-23:06:42.997914'", "-23:06:43", b"-23:06:43"
    ),
    "clock2": Added(
        tidb.temporal(CLOCK, 2), "TIME(2) DEFAULT '00:00:00.999'", "00:00:01.00", b"00:00:01.00"
    ),
    "day": Added(
        tidb.temporal(DAY),
        "DATETIME DEFAULT _UTF8MB4'2020-12-31 23:59:59.9'",
        "2021-01-01 00:00:00",
        b"2021-01-01 00:00:00",
    ),
    "stamp": Added(
        tidb.temporal(STAMP, 3),
        "TIMESTAMP(3) NULL DEFAULT '2001-01-01 08:00:00.9999'",
        "2001-01-01 00:00:01.000",
        b"2001-01-01 00:00:01.000",
    ),
    "zero": Added(
        tidb.temporal(DAY), "DATETIME DEFAULT '0000-00-00'", "0000-00-00", b"0000-00-00 00:00:00"
    ),
    "bytes": Added(
        tidb.varbinary(6),
        "VARBINARY(6) DEFAULT x'00ff80'",
        "\0\ufffd\ufffd",
        b"\0\xef\xbf\xbd\xef\xbf",
    ),
    "padded": Added(tidb.binary(4), "BINARY(4) DEFAULT x'00ff'", "\0\ufffd\0\0", b"\0\xef\xbf\xbd"),
    "text": Added(TEXT, "VARCHAR(20) DEFAULT _UTF8MB4'it''s é\\'", "it's é\\", "it's é\\".encode()),
    "document": Added(tidb.json(), "JSON NOT NULL", "null", b"null"),
    "number": Added(tidb.decimal(6, 2), "DECIMAL(6,2) DEFAULT 1.005", "1.005", b"1.01"),
    "small": Added(tidb.decimal(6, 2), "DECIMAL(6,2) NOT NULL DEFAULT -.005", "-0.005", b"-0.01"),
    "whole": Added(tidb.integer(), "INT DEFAULT '2.5'", "3", b"3"),
    "real": Added(DOUBLE, "DOUBLE DEFAULT 2.0450e+3", "2045", b"2045"),
    "bits": Added(tidb.bits(12), "BIT(12) DEFAULT b'101'", "\x05", b"\0\x05"),
    "one": Added(tidb.enum("a'b", "C"), "ENUM('a''b','C') DEFAULT 'c'", "C", b"C"),
    "several": Added(tidb.set_of("x", "y", "z"), "SET('x','y','z') DEFAULT 'z,x'", "x,z", b"x,z"),
    "year": Added(tidb.year(), "YEAR DEFAULT 70", "70", b"1970"),
    "truth": Added(tidb.integer("TINYINT"), "TINYINT(1) DEFAULT TRUE", "1", b"1"),
    "nothing": Added(tidb.temporal(CLOCK), "TIME DEFAULT NULL", None, None),
    "empty": Added(tidb.integer(), "INT NOT NULL", "0", b"0"),
}


def _definition(name: str, added: Added) -> ColumnDef:
    return ColumnDef(name, added.kind, not_null="NOT NULL" in added.text, default=added.origin)


def _made(upstream: Upstream, *, has_key: bool) -> None:
    upstream.database("shop", "CREATE DATABASE `shop`;")
    key = "id" if has_key else ""
    create = f"CREATE TABLE `t` (`id` BIGINT NOT NULL{' PRIMARY KEY' if has_key else ''})"
    upstream.ddl(ActionType.CREATE_TABLE, create, table(10, "t", ID, primary=key))
    upstream.insert(10, [1])


def _change(upstream: Upstream, printed: str, info: Table) -> None:
    """As TiDB prints it, without escapes, what was typed with them."""
    kind = ActionType.MULTI_SCHEMA_CHANGE if ", ADD" in printed else ActionType.ADD_COLUMN
    upstream.ddl(kind, printed, info, typed=printed.replace("\\", "\\\\"))


def _expected(mariadb: MariaDb) -> None:
    names = ", ".join(f"`{name}`" for name in ADDED)
    ((*held,),) = mariadb.execute("SET time_zone = '+00:00'", f"SELECT {names} FROM shop.t")
    assert dict(zip(ADDED, held, strict=True)) == {
        name: added.held for name, added in ADDED.items()
    }


@pytest.mark.parametrize("is_one_statement", [True, False])
async def test_rows_that_are_there_hold_what_the_job_says(
    each_server: MariaDb, *, is_one_statement: bool
) -> None:
    upstream = Upstream()
    _made(upstream, has_key=is_one_statement)
    info, parts = table(10, "t", ID, primary="id" if is_one_statement else ""), []
    for name, added in ADDED.items():
        info = with_column(info, _definition(name, added), added.origin)
        parts.append(f"ADD COLUMN `{name}` {added.text}")
        if not is_one_statement:
            _change(upstream, f"ALTER TABLE `t` {parts[-1]} FIRST;", info)
    if is_one_statement:
        _change(upstream, f"ALTER TABLE `t` {', '.join(parts)};", info)
    await upstream.replicate(each_server)
    _expected(each_server)
    default = "SELECT column_default FROM information_schema.columns WHERE column_name = 'document'"
    assert each_server.execute(default) == [(None,)]


async def test_columns_in_parentheses_are_added_as_the_job_says(mariadb: MariaDb) -> None:
    upstream = Upstream()
    _made(upstream, has_key=True)
    info = table(10, "t", ID)
    for name, added in ADDED.items():
        info = with_column(info, _definition(name, added), added.origin)
    inner = ", ".join(f"`{name}` {added.text}" for name, added in ADDED.items())
    text = f"alter table shop.t add column if not exists ({inner}), add index (id)"
    _change(upstream, text, info)
    await upstream.replicate(mariadb)
    _expected(mariadb)


async def test_a_column_that_is_added_is_filled_once_when_it_is_interrupted(
    mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = Upstream()
    _made(upstream, has_key=False)
    info = table(10, "t", ID, primary="")
    parts = []
    for name in ("document", "clock"):
        info = with_column(info, _definition(name, ADDED[name]), ADDED[name].origin)
        parts.append(f"ADD COLUMN `{name}` {ADDED[name].text}")
    upstream.ddl(ActionType.MULTI_SCHEMA_CHANGE, f"ALTER TABLE `t` {', '.join(parts)}", info)
    upstream.insert(10, [2, '{"a": 1}', "01:02:03"])
    begun = await interrupted_at_each(
        lambda: upstream.replicate(mariadb), b"ALTER TABLE", monkeypatch
    )
    assert begun >= 4
    assert mariadb.execute("SELECT * FROM shop.t ORDER BY id") == [
        (b"1", b"null", b"-23:06:43"),
        (b"2", b'{"a": 1}', b"01:02:03"),
    ]


async def test_moments_are_added_beside_a_change_that_reads_a_zone(mariadb: MariaDb) -> None:
    """A MODIFY is done in the zone of the upstream's session; literals are read in it, too."""
    upstream = Upstream()
    upstream.database("shop", "CREATE DATABASE `shop`;")
    moment = ColumnDef("m", tidb.temporal(STAMP))
    first = table(10, "t", ID, moment)
    create = "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY, `m` TIMESTAMP NULL)"
    upstream.ddl(ActionType.CREATE_TABLE, create, first)
    upstream.insert(10, [1, "2021-06-01 00:00:00"])
    text = replace(first.columns[1], id=3, field_type=tidb.temporal(DAY))
    info = replace(first, columns=(first.columns[0], text))
    info = with_column(info, _definition("stamp", ADDED["stamp"]), ADDED["stamp"].origin)
    upstream.ddl(
        ActionType.MULTI_SCHEMA_CHANGE,
        "ALTER TABLE `t` MODIFY COLUMN `m` DATETIME,"
        " ADD COLUMN `stamp` TIMESTAMP(3) NULL DEFAULT '2001-01-01 09:00:00.9999'",
        info,
        location="Asia/Tokyo",
    )
    await upstream.replicate(mariadb)
    assert mariadb.execute("SET time_zone = '+00:00'", "SELECT m, stamp FROM shop.t") == [
        (b"2021-06-01 09:00:00", b"2001-01-01 00:00:01.000")
    ]
