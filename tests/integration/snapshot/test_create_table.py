"""The CREATE TABLE of a snapshot makes what the upstream had: executed by a real MariaDB."""

from __future__ import annotations

import re
from pathlib import Path

import pymysql
import pytest

from binlogd.snapshot.formats.create_table import create_table
from binlogd.snapshot.formats.file_kinds import quoted
from binlogd.snapshot.tables.catalog import Catalog, DdlBinlog, TablePlan, catalog
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column, FieldType, Table, jobs_from_json
from binlogd.tso import Tso
from tests.support import recordings_reader
from tests.support.mariadb import MariaDb

RECORDINGS = Path(__file__).parents[2] / "recordings"
MARIADB_LACKS = re.compile(r"KEY `[^`]+` \(\(|(STORED|VIRTUAL) NOT NULL")
"""Keys on expressions, generated columns that are NOT NULL."""
PRINTS = {"json": "longtext"}


def last_catalog(name: str) -> Catalog:
    """What the whole history of a recording ends with."""
    jobs = jobs_from_json(recordings_reader.history(RECORDINGS / name))
    ddl = [
        DdlBinlog(Tso(job.finished_ts), job.id, job.schema_state, job.query)
        for job in sorted(jobs, key=lambda job: job.finished_ts)
        if job.is_done
    ]
    return catalog(jobs, ddl, log_begins=Tso(0), ignore_schemas=("mysql",))


def shown(plan: TablePlan) -> str:
    ids = {column.id for column in plan.columns}
    names = plan.left_out_columns
    columns = [each for each in plan.info.columns if each.id in ids or each.name in names]
    return create_table(plan.info, columns)


@pytest.mark.parametrize("name", ["types", "keys", "ddl"])
def test_a_rendered_table_has_the_columns_that_tidb_had(name: str, mariadb: MariaDb) -> None:
    expected = {
        table.label: table
        for table in recordings_reader.expected(RECORDINGS / name)
        if table.kind == "table"
    }
    connection = mariadb.connect()
    compared = 0
    with connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', foreign_key_checks = 0")
        for plan in last_catalog(name).tables.values():
            table = expected.get(f"{plan.database}.{plan.info.name}")
            if table is None:
                continue
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(plan.database)}")
            cursor.execute(f"USE {quoted(plan.database)}")
            text = shown(plan)
            if MARIADB_LACKS.search(text):
                with pytest.raises(pymysql.err.ProgrammingError):
                    cursor.execute(text)
                continue
            cursor.execute(text)
            cursor.execute(
                "SELECT column_name, data_type, is_nullable FROM information_schema.columns"
                f" WHERE table_schema = '{plan.database}' AND table_name = %s"
                " ORDER BY ordinal_position",
                (plan.info.name,),
            )
            found = [tuple(bytes(cell).decode() for cell in row) for row in cursor.fetchall()]
            kinds = [
                (each.name, PRINTS.get(each.data_type, each.data_type)) for each in table.columns
            ]
            assert [(row[0], row[1].lower()) for row in found] == kinds, table.label
            nulls = {column.name: not column.not_null for column in plan.info.columns}
            assert all(nulls[row[0]] == (row[2] == "YES") for row in found), table.label
            compared += 1
    connection.close()
    assert compared > 20


def test_a_backslash_of_an_expression_stands_for_itself(mariadb: MariaDb) -> None:
    """TiDB prints it so: read as an escape it would let the rest of the string out as code."""
    plain = Column(1, "a", 0, FieldType(Tp.LONGLONG))
    odd = "concat('\\', ' AS `b`, evil INT -- ')"
    made = Column(2, "b", 1, FieldType(Tp.VARCHAR, flen=40), generated_expr=odd)
    mariadb.execute(
        "CREATE DATABASE s", "USE s", create_table(Table(9, "t", (plain, made)), (plain, made))
    )
    assert mariadb.execute("INSERT INTO s.t (a) VALUES (1)", "SELECT b FROM s.t") == [
        (b"\\ AS `b`, evil INT -- ",)
    ]
