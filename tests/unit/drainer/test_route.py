"""What tables are called downstream, in rows and in every kind of DDL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.ddl.replicated import DdlEvent, DdlReplay
from binlogd.drainer.ddl.trash_names import Replay
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.filtering.route import RouteRule, TableRouter
from binlogd.errors import ConfigError
from binlogd.tidb.known_tables import Named
from binlogd.tidb.model import (
    ActionType,
    Column,
    Database,
    FieldType,
    Job,
    JobState,
    Table,
    TableAt,
    Tp,
    job_from_json,
)
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso

RULES = (
    RouteRule("shop", "", "store"),
    RouteRule("shop", "log_*", "archive", "log"),
    RouteRule("s?", "x", "", "y"),
)


@pytest.mark.parametrize(
    ("name", "downstream"),
    [
        (Named("shop"), Named("store")),
        (Named("SHOP", "orders"), Named("store", "orders")),
        (Named("shop", "Log_2024"), Named("archive", "log")),
        (Named("s1", "x"), Named("s1", "y")),
        (Named("s1", "z"), Named("s1", "z")),
        (Named("bank", "orders"), Named("bank", "orders")),
        (Named(""), Named("")),
    ],
)
def test_a_rule_for_a_table_goes_before_one_for_its_schema(name: Named, downstream: Named) -> None:
    assert TableRouter(RULES).name(name) == downstream


def test_several_rules_for_one_table_are_refused() -> None:
    router = TableRouter([RouteRule("a*", "t", "x"), RouteRule("ab", "t*", "y")])
    assert router.name(Named("ac", "t")) == Named("x", "t")
    with pytest.raises(ConfigError, match="several rules of a kind match ab"):
        router.name(Named("ab", "t"))


def test_rows_go_to_a_table_of_the_other_name() -> None:
    table = TableAt("shop", Table(7, "log_1", ()), 1, None, {}, may_lack_columns=False)
    router = TableRouter(RULES)
    routed = router.table(table)
    assert (routed.database, routed.info.name) == ("archive", "log")
    assert router.table(table) is routed


def test_two_tables_are_never_one_unless_the_first_is_gone() -> None:
    router, there = TableRouter(RULES), {Named("shop", "log_1"), Named("shop", "log_2")}
    router.reserve(Named("shop", "log_1"), there.__contains__)
    router.reserve(Named("shop", "log_1"), there.__contains__)
    with pytest.raises(ConfigError, match="would both be archive"):
        router.reserve(Named("shop", "log_2"), there.__contains__)
    there.remove(Named("shop", "log_1"))
    router.reserve(Named("shop", "log_2"), there.__contains__)


# --- DDL -------------------------------------------------------------------------------------

COLUMNS = (Column(1, "a", 0, FieldType(Tp.LONG)),)


def job(kind: ActionType, version: int, table_id: int = 0, **facts: object) -> Job:
    given = {
        "id": version,
        "type": kind,
        "schema_id": 2,
        "table_id": table_id,
        "state": JobState.SYNCED,
        "schema_version": version,
        **facts,
    }
    return replace(job_from_json(b"{}"), **given)  # type: ignore[arg-type]  # any of its fields


def texts(made: Job, query: str, dialect: Dialect = Dialect.TIDB) -> tuple[str, ...]:
    """What a DDL becomes where `shop` has orders (10) and log_1 (11)."""
    schema = SchemaTracker()
    schema.apply(job(ActionType.CREATE_SCHEMA, 1, database=Database(2, "shop")), 0)
    schema.apply(job(ActionType.CREATE_TABLE, 2, 10, table=Table(10, "orders", COLUMNS)), 0)
    schema.apply(job(ActionType.CREATE_TABLE, 3, 11, table=Table(11, "log_1", COLUMNS)), 0)
    table_filter = TableFilter(routes=TableRouter(RULES))
    effect = schema.apply(made, 5)
    replay = DdlReplay(dialect, schema, table_filter).of(DdlEvent(Tso(9), made, query, effect))
    assert isinstance(replay, Replay)
    return replay.statements


def altered(table_id: int, name: str) -> Job:
    return job(ActionType.ADD_COLUMN, 5, table_id, table=Table(table_id, name, COLUMNS))


@pytest.mark.parametrize("dialect", [Dialect.TIDB, Dialect.FILE])
@pytest.mark.parametrize(
    ("made", "query", "expected"),
    [
        (
            altered(10, "orders"),
            "ALTER TABLE `Orders` ADD `b` INT",
            ("ALTER TABLE `store`.`orders` ADD `b` INT",),
        ),
        (
            altered(11, "log_1"),
            "ALTER TABLE `shop`.`log_1` ADD `b` INT",
            ("ALTER TABLE `archive`.`log` ADD `b` INT",),
        ),
        (
            job(ActionType.CREATE_TABLE, 5, 12, table=Table(12, "log_2", COLUMNS)),
            "CREATE TABLE `log_2` (`a` INT)",
            ("CREATE DATABASE IF NOT EXISTS `archive`", "CREATE TABLE `archive`.`log` (`a` INT)"),
        ),
        (
            job(ActionType.CREATE_SCHEMA, 5, schema_id=3, database=Database(3, "shop2")),
            "CREATE DATABASE `shop2`",
            ("CREATE DATABASE `shop2`",),
        ),
        (
            job(ActionType.DROP_TABLE, 5, 11),
            "DROP TABLE `orders`, `log_1`",
            ("DROP TABLE `archive`.`log`",),
        ),
        (
            job(ActionType.DROP_SCHEMA, 5),
            "DROP DATABASE `shop`",
            ("DROP TABLE IF EXISTS `archive`.`log`", "DROP DATABASE `store`"),
        ),
        (
            job(ActionType.TRUNCATE_TABLE, 5, 10, table=Table(13, "orders", COLUMNS)),
            "TRUNCATE TABLE orders",
            ("TRUNCATE TABLE `store`.`orders`",),
        ),
        (
            job(
                ActionType.RENAME_TABLE,
                5,
                10,
                table=Table(10, "goods", COLUMNS),
                raw_args=[2, {"O": "goods", "L": "goods"}, "shop"],
            ),
            "RENAME TABLE `orders` TO `goods`",
            ("RENAME TABLE `store`.`orders` TO `store`.`goods`",),
        ),
    ],
)
def test_a_ddl_says_the_names_downstream(
    made: Job, query: str, expected: tuple[str, ...], dialect: Dialect
) -> None:
    assert texts(made, query, dialect) == expected
