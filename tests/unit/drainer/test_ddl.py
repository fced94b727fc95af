"""Which DDL is replicated, and how it reads downstream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from binlogd.drainer.ddl.edits import Dialect, edited, without_foreign_keys
from binlogd.drainer.ddl.replicated import DdlEvent, DdlReplay, Omit
from binlogd.drainer.ddl.trash_names import Replay
from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.filtering.route import RouteRule, TableRouter
from binlogd.errors import UnsupportedDdl
from binlogd.tidb.kinds import PartitionKind, Tp
from binlogd.tidb.model import (
    ActionType,
    Column,
    Database,
    FieldType,
    Job,
    JobState,
    Table,
    job_from_json,
)
from binlogd.tidb.partitioning import Partition, Partitioning
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso

DATABASES = {2: "shop", 3: "Attic", 4: "scratch"}
TABLES = {10: (2, "orders"), 11: (2, "Items"), 12: (3, "old")}


def job(kind: int, schema_id: int = 2, table_id: int = 0, **facts: object) -> Job:
    given = {
        "id": 99,
        "type": kind,
        "schema_id": schema_id,
        "table_id": table_id,
        "state": JobState.SYNCED,
        "schema_version": 100,
        **facts,
    }
    return replace(job_from_json(b"{}"), **given)  # type: ignore[arg-type]  # any of its fields


def tracker() -> SchemaTracker:
    known = SchemaTracker()
    for number, name in DATABASES.items():
        made = job(ActionType.CREATE_SCHEMA, number, database=Database(number, name))
        known.apply(replace(made, schema_version=number), 0)
    for number, (schema_id, name) in TABLES.items():
        made = job(ActionType.CREATE_TABLE, schema_id, number, table=Table(number, name, ()))
        known.apply(replace(made, schema_version=number), 0)
    return known


def said(
    made: Job,
    query: str,
    dialect: Dialect = Dialect.MYSQL,
    table_filter: TableFilter | None = None,
    schema: SchemaTracker | None = None,
) -> Replay | Omit:
    schema = schema or tracker()
    effect = schema.apply(made, 0)
    replay = DdlReplay(dialect, schema, table_filter or TableFilter())
    return replay.of(DdlEvent(Tso(7), made, query, effect))


def statement(answer: Replay | Omit) -> str:
    assert isinstance(answer, Replay)
    (text,) = answer.statements
    return text


def altered(query: str, dialect: Dialect = Dialect.MYSQL) -> str:
    info = Table(10, "orders", ())
    return statement(said(job(ActionType.MODIFY_COLUMN, 2, 10, table=info), query, dialect))


# --- the original's examples -------------------------------------------------------------


@pytest.mark.parametrize("dialect", [Dialect.MYSQL, Dialect.TIDB])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "CREATE TABLE `t1` (`a` INT) /*T![placement] PLACEMENT POLICY=`p1` */",
            "CREATE TABLE `t1` (`a` INT) ",
        ),
        (
            "CREATE TABLE `t1` (`a` INT) /*T![placement] PLACEMENT POLICY=`p1` */ PARTITION BY"
            " RANGE (`a`) (PARTITION `p0` VALUES LESS THAN (100) /*T![placement] PLACEMENT"
            " POLICY=`p2` */)",
            "CREATE TABLE `t1` (`a` INT)  PARTITION BY"
            " RANGE (`a`) (PARTITION `p0` VALUES LESS THAN (100) )",
        ),
        (
            "CREATE TABLE `t1` (`created_at` DATETIME) /*T![ttl] TTL = `created_at` + INTERVAL 1"
            " DAY */",
            "CREATE TABLE `t1` (`created_at` DATETIME) /*T![ttl] TTL = `created_at` + INTERVAL 1"
            " DAY */ /*T![ttl] TTL_ENABLE = 'OFF' */",
        ),
        (
            "CREATE TABLE `t1` (`c` DATETIME) /*T![ttl] TTL = `c` + INTERVAL 1 DAY */ /*T![ttl]"
            " TTL_ENABLE = 'ON' */",
            "CREATE TABLE `t1` (`c` DATETIME) /*T![ttl] TTL = `c` + INTERVAL 1 DAY */ /*T![ttl]"
            " TTL_ENABLE = 'OFF' */",
        ),
        ("create table t1(id int)", "create table t1(id int)"),
        ("create table t1(id int);", "create table t1(id int)"),
        ("ALTER TABLE `t` /*T![placement] PLACEMENT POLICY = `p` */;", ""),
        ("/*T![placement] ALTER DATABASE `d` PLACEMENT POLICY = `p` */;", ""),
        (
            "CREATE TABLE t (a INT COMMENT '/*T![placement] x */; /*T![ttl] TTL = y */')",
            "CREATE TABLE t (a INT COMMENT '/*T![placement] x */; /*T![ttl] TTL = y */')",
        ),
        ("insert \N{SNOWMAN} this ((", "insert \N{SNOWMAN} this (("),
    ],
)
def test_placement_goes_and_ttl_is_off(before: str, after: str, dialect: Dialect) -> None:
    assert edited(before, dialect) == after


# --- what MySQL and MariaDB cannot read ----------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "CREATE GLOBAL TEMPORARY TABLE `g` (`id` INT) ON COMMIT DELETE ROWS;",
            "CREATE TABLE `g` (`id` INT) ",
        ),
        (
            "CREATE TABLE `s` (`id` BIGINT DEFAULT NEXTVAL(`q`) PRIMARY KEY,"
            "`w` INT DEFAULT NEXT VALUE FOR `d`.`q`)",
            "CREATE TABLE `s` (`id` BIGINT  PRIMARY KEY,`w` INT )",
        ),
        (
            "ALTER TABLE `t` ADD INDEX `e`((`u`+1))",
            "ALTER TABLE `t` /*!80013 ADD INDEX `e`((`u`+1)) */",
        ),
        (
            "ALTER TABLE `d`.`t` ADD UNIQUE `e`(`a`, (`u`+1)), ADD COLUMN `x` INT",
            "ALTER TABLE `d`.`t` /*!80013 ADD UNIQUE `e`(`a`, (`u`+1)), */ ADD COLUMN `x` INT",
        ),
        (
            "ALTER TABLE `t` ADD COLUMN `x` INT, ALTER INDEX `i` INVISIBLE",
            "ALTER TABLE `t` ADD COLUMN `x` INT/*!80000 , ALTER INDEX `i` INVISIBLE */",
        ),
        (
            "CREATE TABLE `t` (`a` INT,`b` INT AS ((`a`+1)),INDEX((`a`*2)),"
            "INDEX `i`(`b`) INVISIBLE)",
            "CREATE TABLE `t` (`a` INT,`b` INT AS ((`a`+1))/*!80013 ,INDEX((`a`*2)) */,"
            "INDEX `i`(`b`) /*!80000 INVISIBLE */)",
        ),
        (
            "CREATE TABLE `t` (`a` INT, CONSTRAINT `k` CHECK ((`a`>0)), UNIQUE KEY (`a`))",
            "CREATE TABLE `t` (`a` INT/*!80016 , CONSTRAINT `k` CHECK ((`a`>0)) */,"
            " UNIQUE KEY (`a`))",
        ),
        (
            "CREATE TABLE t (a int) /*!90000 SHARD_ROW_ID_BITS=4 */ comment 'x'",
            "CREATE TABLE t (a int)  comment 'x'",
        ),
        ("ALTER TABLE `t` /*T![auto_id_cache] AUTO_ID_CACHE = 5 */", ""),
        ("ALTER TABLE `d`.`t` /*T! SHARD_ROW_ID_BITS = 5 */", ""),
    ],
)
def test_what_only_tidb_or_mysql_8_reads_is_left_out_or_marked(before: str, after: str) -> None:
    assert edited(before, Dialect.MYSQL) == after


def test_tidb_gets_what_only_tidb_reads() -> None:
    text = "ALTER TABLE `t` /*T![auto_id_cache] AUTO_ID_CACHE = 5 */"
    assert edited(text, Dialect.TIDB) == text


# --- what is left out ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "file", "tidb", "mysql"),
    [
        (ActionType.ADD_COLUMN, True, True, True),
        (ActionType.SHARD_ROW_ID, True, True, False),
        (ActionType.ALTER_SEQUENCE, True, True, False),
        (ActionType.MODIFY_AUTO_ID_CACHE, True, True, False),
        (ActionType.ALTER_INDEX_VISIBILITY, True, True, False),
        (ActionType.ALTER_TTL_INFO, True, True, False),
        (ActionType.SET_TIFLASH_REPLICA, True, False, False),
        (ActionType.UPDATE_TIFLASH_REPLICA_STATUS, False, False, False),
        (ActionType.ALTER_TABLE_ATTRIBUTES, False, False, False),
        (ActionType.ALTER_CACHE_TABLE, False, False, False),
        (ActionType.ALTER_TABLE_PLACEMENT, False, False, False),
        (ActionType.CREATE_RESOURCE_GROUP, False, False, False),
    ],
)
def test_each_downstream_gets_what_means_something_to_it(
    kind: ActionType, *, file: bool, tidb: bool, mysql: bool
) -> None:
    made = job(kind, 2, 10, table=Table(10, "orders", ()))
    query = "ALTER TABLE `orders` SOMETHING"
    for dialect, is_sent in zip(Dialect, (file, tidb, mysql), strict=True):
        assert isinstance(said(made, query, dialect), Replay) is is_sent


def test_a_job_that_was_rolled_back_is_not_replayed() -> None:
    made = job(ActionType.ADD_INDEX, 2, 10, state=JobState.ROLLBACK_DONE)
    assert isinstance(said(made, "ALTER TABLE `orders` ADD INDEX (`a`)"), Omit)


@pytest.mark.parametrize(
    ("kind", "facts", "query"),
    [
        (ActionType.RECOVER_TABLE, {"table": Table(20, "r", ())}, "RECOVER TABLE `r`"),
        (ActionType.RECOVER_SCHEMA, {"database": Database(2, "shop")}, "FLASHBACK DATABASE shop"),
    ],
)
def test_what_brings_rows_back_stops_with_the_way_past(
    kind: ActionType, facts: dict[str, object], query: str
) -> None:
    with pytest.raises(UnsupportedDdl, match=r"(?s)commit_ts 7.*add 7 to .*ignore-txn-commit-ts"):
        said(job(kind, 2, 20, **facts), query)


def test_tidb_can_recover_by_name_but_not_by_job() -> None:
    made = job(ActionType.RECOVER_TABLE, 2, 20, table=Table(20, "r", ()))
    assert statement(said(made, "RECOVER TABLE `r`;", Dialect.TIDB)) == "RECOVER TABLE `r`"
    with pytest.raises(UnsupportedDdl, match="job number"):
        said(made, "RECOVER TABLE BY JOB 53", Dialect.TIDB)


# --- names -----------------------------------------------------------------------------------


def test_a_drop_of_several_tables_is_written_once_for_each() -> None:
    query = "DROP TABLE `orders`, `Items`;"
    assert statement(said(job(ActionType.DROP_TABLE, 2, 11), query)) == "DROP TABLE `shop`.`Items`"
    assert statement(said(job(ActionType.DROP_TABLE, 2, 11), query, Dialect.FILE)) == query


def test_a_rename_is_written_with_both_databases() -> None:
    made = job(ActionType.RENAME_TABLE, 3, 10, table_name="orders", table=Table(10, "o`2", ()))
    answer = said(made, "RENAME TABLE orders TO attic.`o``2`;")
    assert statement(answer) == "RENAME TABLE `shop`.`orders` TO `Attic`.`o``2`"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("ALTER TABLE `orders` ADD `x` INT", "ALTER TABLE `orders` ADD `x` INT"),
        ("alter table ORDERS add x int", "alter table `orders` add x int"),
        ("ALTER TABLE `SHOP`.`Orders` ADD `x` INT", "ALTER TABLE `shop`.`orders` ADD `x` INT"),
        (
            "ALTER TABLE `orders` ADD FOREIGN KEY (`ITEMS`) REFERENCES `ITEMS`(`id`)",
            "ALTER TABLE `orders` ADD FOREIGN KEY (`ITEMS`) REFERENCES `Items`(`id`)",
        ),
        ("CREATE INDEX `Orders` ON `ORDERS` (`a`)", "CREATE INDEX `Orders` ON `orders` (`a`)"),
        ("TRUNCATE ITEMS", "TRUNCATE `Items`"),
        (
            "CREATE TABLE IF NOT EXISTS `ORDERS` LIKE attic.OLD",
            "CREATE TABLE IF NOT EXISTS `orders` LIKE `Attic`.`old`",
        ),
        (
            "CREATE VIEW `v` AS SELECT `ORDERS` FROM `ORDERS` JOIN `nowhere`.`ORDERS`",
            "CREATE VIEW `v` AS SELECT `ORDERS` FROM `orders` JOIN `nowhere`.`ORDERS`",
        ),
    ],
)
def test_tables_are_called_as_they_were_created(query: str, expected: str) -> None:
    assert altered(query) == expected
    assert altered(query, Dialect.FILE) == query


# --- batches -----------------------------------------------------------------------------------


def batch(*names: str) -> Job:
    infos = tuple(Table(30 + n, name, (), collate="") for n, name in enumerate(names))
    return job(ActionType.CREATE_TABLES, 2, tables=infos)


def test_a_batch_of_create_table_is_executed_one_by_one() -> None:
    query = "CREATE TABLE `a` (`x` INT COMMENT ';');\nCREATE TABLE `b` (`x` INT); ;"
    answer = said(batch("a", "b"), query)
    assert answer == Replay(
        ("CREATE TABLE `a` (`x` INT COMMENT ';')", "CREATE TABLE `b` (`x` INT)")
    )


def test_of_a_batch_only_what_is_replicated_is_created() -> None:
    table_filter = TableFilter(ignored_tables=[TablePattern("shop", "a")])
    query = "CREATE TABLE `a` (`x` INT);CREATE TABLE `b` (`x` INT);"
    assert said(batch("a", "b"), query, table_filter=table_filter) == Replay(
        ("CREATE TABLE `b` (`x` INT)",)
    )


def test_a_batch_whose_text_does_not_match_stops() -> None:
    with pytest.raises(UnsupportedDdl, match="made 2 tables, its text makes 1"):
        said(batch("a", "b"), "CREATE TABLE `a` (`x` INT)")


# --- filters -----------------------------------------------------------------------------------

SCRATCH = TableFilter(ignored_databases=["scratch"])


def test_a_ddl_of_an_ignored_database_is_left_out() -> None:
    made = job(ActionType.CREATE_TABLE, 4, 40, table=Table(40, "t", ()))
    assert said(made, "CREATE TABLE `t` (`a` INT)", table_filter=SCRATCH) == Omit("filtered")
    dropped = job(ActionType.DROP_SCHEMA, 4)
    assert said(dropped, "DROP DATABASE scratch", table_filter=SCRATCH) == Omit("filtered")


def test_a_table_that_is_renamed_out_of_sight_stays_as_it_is() -> None:
    made = job(ActionType.RENAME_TABLE, 4, 10, table=Table(10, "t", ()))
    assert said(made, "RENAME TABLE x", table_filter=SCRATCH) == Omit("filtered")


def test_a_table_that_is_renamed_into_sight_stops() -> None:
    schema = tracker()
    schema.apply(job(ActionType.CREATE_TABLE, 4, 40, table=Table(40, "t", ())), 0)
    renamed = job(ActionType.RENAME_TABLE, 2, 40, table=Table(40, "t", ()), schema_version=101)
    event = DdlEvent(Tso(7), renamed, "RENAME TABLE x", schema.apply(renamed, 0))
    with pytest.raises(UnsupportedDdl, match="`t` was not replicated under its name before"):
        DdlReplay(Dialect.MYSQL, schema, SCRATCH).of(event)


def test_rows_exchanged_with_a_table_that_is_not_replicated_stop() -> None:
    schema = tracker()
    parts = job(ActionType.CREATE_TABLE, 2, 50, table=Table(50, "p", (), partition_ids=(51,)))
    schema.apply(parts, 0)
    exchange = job(
        ActionType.EXCHANGE_TABLE_PARTITION,
        2,
        10,
        table=Table(50, "p", (), partition_ids=(10,)),
        schema_version=101,
    )
    effect = schema.apply(exchange, 0)
    query = "ALTER TABLE `p` EXCHANGE PARTITION `a` WITH TABLE `orders`"
    event = DdlEvent(Tso(7), exchange, query, effect)
    assert DdlReplay(Dialect.MYSQL, schema, TableFilter()).of(event) == Replay((query,))
    one = TableFilter(ignored_tables=[TablePattern("shop", "p")])
    with pytest.raises(UnsupportedDdl, match="not replicated"):
        DdlReplay(Dialect.MYSQL, schema, one).of(event)
    none = TableFilter(ignored_databases=["shop"])
    assert DdlReplay(Dialect.MYSQL, schema, none).of(event) == Omit("filtered")


@pytest.mark.parametrize(
    ("kind", "action", "dialect", "stops"),
    [
        (PartitionKind.KEY, ActionType.TRUNCATE_TABLE_PARTITION, Dialect.MYSQL, True),
        (PartitionKind.KEY, ActionType.TRUNCATE_TABLE_PARTITION, Dialect.TIDB, False),
        (PartitionKind.HASH, ActionType.TRUNCATE_TABLE_PARTITION, Dialect.MYSQL, False),
        (PartitionKind.KEY, ActionType.REORGANIZE_PARTITION, Dialect.MYSQL, False),
    ],
)
def test_a_partition_that_holds_other_rows_downstream_is_not_truncated(
    kind: PartitionKind, action: ActionType, dialect: Dialect, *, stops: bool
) -> None:
    schema = tracker()

    def parts(part_id: int) -> Table:
        told = Partitioning(kind, "`a`", (), (Partition(part_id),))
        return Table(50, "p", (), partition_ids=(part_id,), partitioning=told)

    schema.apply(job(ActionType.CREATE_TABLE, 2, 50, table=parts(51)), 0)
    change = job(action, 2, 50, table=parts(52), schema_version=101)
    query = "ALTER TABLE `p` TRUNCATE PARTITION `a`"
    event = DdlEvent(Tso(7), change, query, schema.apply(change, 0))
    replay = DdlReplay(dialect, schema, TableFilter())
    if stops:
        with pytest.raises(UnsupportedDdl, match="BY KEY in another way"):
            replay.of(event)
    else:
        assert replay.of(event) == Replay((query,))


def test_a_table_in_the_database_of_a_session_is_the_one_that_the_job_names() -> None:
    schema = tracker()
    elsewhere = Database(9, "elsewhere")
    schema.apply(job(ActionType.CREATE_SCHEMA, 9, database=elsewhere), 0)
    schema.apply(job(ActionType.CREATE_TABLE, 9, 90, table=Table(90, "orders", ())), 0)
    parts = job(ActionType.CREATE_TABLE, 2, 50, table=Table(50, "p", (), partition_ids=(51,)))
    schema.apply(parts, 0)
    after = Table(50, "p", (), partition_ids=(90,))
    exchange = job(ActionType.EXCHANGE_TABLE_PARTITION, 9, 90, table=after, schema_version=101)
    query = "ALTER TABLE `shop`.`p` EXCHANGE PARTITION `a` WITH TABLE `orders`"
    answer = said(exchange, query, schema=schema)
    assert statement(answer).endswith("WITH TABLE `elsewhere`.`orders`")

    child = Table(60, "c", (), references=(("elsewhere", "orders"), ("", "p")))
    create = job(ActionType.CREATE_TABLE, 2, 60, table=child, schema_version=102)
    keys = "FOREIGN KEY (`a`) REFERENCES `Orders`(`id`), FOREIGN KEY (`b`) REFERENCES `p`(`id`)"
    answer = said(create, f"CREATE TABLE `c` (`a` INT, `b` INT, {keys})", schema=schema)
    assert "REFERENCES `elsewhere`.`orders`(`id`)" in statement(answer)
    assert "REFERENCES `p`(`id`)" in statement(answer)


# --- columns that are added ----------------------------------------------------------------------

ADDED = "ALTER TABLE `orders` ADD COLUMN `at` TIME NULL DEFAULT '01:02:03.6' FIRST"


def _adding(origin: str) -> Job:
    clock = FieldType(Tp.DURATION, flen=10)
    column = Column(1, "At", 0, clock, origin_default=origin, default=origin)
    return job(ActionType.ADD_COLUMN, 2, 10, table=Table(10, "orders", (column,)))


def test_a_default_of_an_added_column_is_what_the_job_says_wherever_the_table_is() -> None:
    exact = "ADD COLUMN `at` TIME NULL DEFAULT '01:02:04' FIRST"
    plain = said(_adding("01:02:04"), ADDED)
    assert statement(plain) == f"ALTER TABLE `orders` {exact}"
    routes = TableRouter([RouteRule("shop", "orders", "attic", "o")])
    routed = said(_adding("01:02:04"), ADDED, table_filter=TableFilter(routes=routes))
    assert statement(routed) == f"ALTER TABLE `attic`.`o` {exact}"


def test_a_tidb_downstream_is_told_what_the_upstream_was_told() -> None:
    assert statement(said(_adding("01:02:04"), ADDED, Dialect.TIDB)) == ADDED


def test_a_default_that_is_no_value_of_its_column_stops() -> None:
    with pytest.raises(UnsupportedDdl, match="has the default 'never'"):
        said(_adding("never"), ADDED)


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("CREATE TABLE `a` LIKE `b`", "CREATE TABLE `a` LIKE `b`"),
        (
            "CREATE TABLE `a` (`id` INT, FOREIGN KEY (`id`) REFERENCES `b`(`id`))",
            "CREATE TABLE `a` (`id` INT)",
        ),
        ("ALTER TABLE `a` ADD FOREIGN KEY (`id`) REFERENCES `b`(`id`)", ""),
        ("ALTER TABLE `a` ADD COLUMN `c` INT", "ALTER TABLE `a` ADD COLUMN `c` INT"),
    ],
)
def test_only_a_statement_of_foreign_keys_alone_is_nothing_without_them(
    statement: str, left: str
) -> None:
    """What is nothing is passed over: a table that is made like another one was, too."""
    assert without_foreign_keys(statement) == left
