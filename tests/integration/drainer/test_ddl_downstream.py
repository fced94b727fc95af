"""DDL as TiDB writes it, beside rows, into a real MariaDB: what the text leaves to the server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import ActionType, FieldType, Table
from binlogd.tso import compose
from tests.support.ddl_upstream import ID, Upstream, table, with_column
from tests.support.mariadb import MariaDb
from tests.workload import schema as tidb
from tests.workload.schema import ColumnDef


def of_charset(kind: FieldType, charset: str, collate: str) -> FieldType:
    return replace(kind, charset=charset, collate=collate)


WORD = ColumnDef("id", tidb.varchar(20), not_null=True)


@pytest.fixture
def upstream() -> Upstream:
    made = Upstream()
    made.database("shop", "CREATE DATABASE `shop`;")
    return made


# --- collations ------------------------------------------------------------------------------


@pytest.fixture
def plain(mariadb: MariaDb) -> Iterator[MariaDb]:
    """A server as it comes: its databases compare text without regard to case."""
    mariadb.execute(
        "SET GLOBAL character_set_server = utf8mb4",
        "SET GLOBAL collation_server = 'utf8mb4_general_ci'",
    )
    yield mariadb
    mariadb.execute("SET GLOBAL collation_server = 'utf8mb4_bin'")


async def test_text_keys_are_compared_as_upstream_compares_them(
    plain: MariaDb, upstream: Upstream
) -> None:
    plain.execute("CREATE DATABASE test")
    upstream.database("test", "CREATE DATABASE test;", number=3)
    latin = of_charset(tidb.varchar(20), "latin1", "latin1_bin")
    made = [
        (10, 2, table(10, "a", WORD), "CREATE TABLE `a` (`id` VARCHAR(20) PRIMARY KEY);"),
        (11, 3, table(11, "b", WORD), "CREATE TABLE `b` (`id` VARCHAR(20) PRIMARY KEY)"),
        (
            12,
            2,
            table(12, "c", WORD),
            "create table c (id varchar(20) primary key) engine=InnoDB charset=utf8mb4 comment='x'",
        ),
        (
            13,
            2,
            table(13, "d", replace(WORD, kind=latin)),
            "CREATE TABLE `d` (`id` VARCHAR(20) CHARACTER SET LATIN1 NOT NULL,PRIMARY KEY(`id`))",
        ),
        (
            14,
            2,
            table(14, "e", WORD),
            "CREATE TABLE `e` (`id` VARCHAR(20),PRIMARY KEY(`id`)"
            " /*T![clustered_index] CLUSTERED */) PARTITION BY KEY (`id`) PARTITIONS 2",
        ),
    ]
    for number, schema_id, info, query in made:
        upstream.ddl(ActionType.CREATE_TABLE, query, info, schema_id=schema_id)
        upstream.insert(number, [b"a"], [b"A"], [b"b"])
    await upstream.replicate(plain)
    for name in ("shop.a", "test.b", "shop.c", "shop.d", "shop.e"):
        assert plain.execute(f"SELECT COUNT(*) FROM {name}") == [(b"3",)], name


async def test_a_column_that_is_added_or_changed_has_the_collation_that_upstream_gives_it(
    plain: MariaDb, upstream: Upstream
) -> None:
    before = table(10, "t", ID)
    latin = ColumnDef("l", of_charset(tidb.varchar(9), "latin1", "latin1_bin"))
    ascii_ = ColumnDef("m", of_charset(tidb.varchar(9), "ascii", "ascii_bin"))
    upstream.ddl(ActionType.CREATE_TABLE, "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY);", before)
    after = with_column(with_column(before, latin), ascii_)
    upstream.ddl(
        ActionType.MULTI_SCHEMA_CHANGE,
        "ALTER TABLE `t` ADD COLUMN `l` VARCHAR(9) CHARACTER SET LATIN1 NULL AFTER `id`,"
        " ADD COLUMN `m` VARCHAR(9) CHARACTER SET ASCII COMMENT 'a, CHARSET utf8'",
        after,
    )
    await upstream.replicate(plain)
    assert plain.execute(
        "SELECT column_name, collation_name FROM information_schema.columns"
        " WHERE table_name = 't' AND collation_name IS NOT NULL ORDER BY 1"
    ) == [(b"l", b"latin1_bin"), (b"m", b"ascii_bin")]


# --- values that a DDL itself writes ---------------------------------------------------------


async def test_a_column_added_with_the_present_time_holds_the_time_of_the_upstream(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    first = table(10, "t", ID)
    moment = ColumnDef("a", tidb.temporal(Tp.TIMESTAMP), not_null=True, default="CURRENT_TIMESTAMP")
    day = ColumnDef("b", tidb.temporal(Tp.DATETIME), default="CURRENT_TIMESTAMP")
    upstream.ddl(ActionType.CREATE_TABLE, "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY);", first)
    upstream.insert(10, [1])
    second = with_column(first, moment, "2023-03-04 05:06:07")
    upstream.ddl(
        ActionType.ADD_COLUMN,
        "ALTER TABLE `t` ADD COLUMN `a` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP();",
        second,
    )
    upstream.insert(10, [2, "2023-03-05 00:00:00"])
    upstream.ddl(
        ActionType.ADD_COLUMN,
        "ALTER TABLE `t` ADD COLUMN `b` DATETIME DEFAULT CURRENT_TIMESTAMP();",
        with_column(second, day, "2023-03-06 11:12:13"),
    )
    await upstream.replicate(mariadb)
    assert mariadb.execute("SET time_zone = '+00:00'", "SELECT * FROM shop.t ORDER BY id") == [
        (b"1", b"2023-03-04 05:06:07", b"2023-03-06 11:12:13"),
        (b"2", b"2023-03-05 00:00:00", b"2023-03-06 11:12:13"),
    ]


async def test_a_timestamp_literal_is_meant_in_the_zone_of_the_upstreams_session(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    first = table(10, "t", ID)
    moment = ColumnDef("a", tidb.temporal(Tp.TIMESTAMP), default="2021-05-31 15:00:00")
    upstream.ddl(ActionType.CREATE_TABLE, "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY);", first)
    upstream.insert(10, [1])
    second = with_column(first, moment, "2021-05-31 15:00:00")
    upstream.ddl(
        ActionType.ADD_COLUMN,
        "ALTER TABLE `t` ADD COLUMN `a` TIMESTAMP DEFAULT _UTF8MB4'2021-06-01 00:00:00';",
        second,
    )
    text = replace(second.columns[1], id=3, field_type=tidb.temporal(Tp.DATETIME))
    upstream.ddl(
        ActionType.MODIFY_COLUMN,
        "ALTER TABLE `t` MODIFY COLUMN `a` DATETIME",
        replace(second, columns=(second.columns[0], text)),
        location="Asia/Tokyo",
    )
    await upstream.replicate(mariadb)
    assert mariadb.execute("SELECT * FROM shop.t") == [(b"1", b"2021-06-01 00:00:00")]


async def test_a_backslash_that_upstream_printed_stays_one(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    first = table(10, "t", ID)
    word = ColumnDef("a", tidb.varchar(20), default="C:\\new\\")
    upstream.ddl(
        ActionType.CREATE_TABLE,
        "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY COMMENT 'x\\') COMMENT = 'it''s \\n';",
        first,
        typed=r"create table t (id bigint primary key comment 'x\\') comment 'it\'s \\n'",
    )
    upstream.insert(10, [1])
    upstream.ddl(
        ActionType.ADD_COLUMN,
        "ALTER TABLE `t` ADD COLUMN `a` VARCHAR(20) DEFAULT _UTF8MB4'C:\\new\\';",
        with_column(first, word, "C:\\new\\"),
        typed=r"alter table t add column a varchar(20) default 'C:\\new\\'",
    )
    # an older TiDB hands on what was typed
    text = r"create table u (id bigint primary key) comment 'it\'s \\'"
    upstream.ddl(ActionType.CREATE_TABLE, text, table(11, "u", ID), typed=text)
    await upstream.replicate(mariadb)
    assert mariadb.execute("SELECT a FROM shop.t") == [(b"C:\\new\\",)]
    comments = "SELECT table_comment FROM information_schema.tables WHERE table_schema = 'shop'"
    assert mariadb.execute(comments + " ORDER BY 1") == [(b"it's \\",), (b"it's \\n",)]


async def test_a_default_that_is_no_text_stands_in_the_way_of_nothing(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    """SHOW CREATE TABLE has its bytes as they are."""
    raw = ColumnDef("a", tidb.varbinary(4), default="x")
    first = table(10, "t", ID, raw)
    create = "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY, `a` VARBINARY(4) DEFAULT x'ff00')"
    upstream.ddl(ActionType.CREATE_TABLE, create, first)
    upstream.insert(10, [1, b"\xfe"])
    wider = with_column(first, ColumnDef("b", tidb.integer()))
    upstream.ddl(ActionType.ADD_COLUMN, "ALTER TABLE `t` ADD COLUMN `b` INT", wider)
    await upstream.replicate(mariadb)
    assert mariadb.execute("SELECT * FROM shop.t") == [(b"1", b"\xfe", None)]


# --- what MariaDB does not read --------------------------------------------------------------

ACCEPTED = [
    "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY,`g` INT GENERATED ALWAYS AS(`id` + 1) STORED NOT"
    " NULL,`h` INT GENERATED ALWAYS AS(IF(`id` IS NOT NULL, 1, NULL)) VIRTUAL NULL COMMENT 'x')",
    "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY CHECK(`id`<100) ENFORCED,CONSTRAINT `c` CHECK"
    "(`id`<9) NOT ENFORCED,INDEX `i`(`id`),CHECK(`id`>1) ENFORCED)",
    "CREATE TABLE `t` (`id` BIGINT CONSTRAINT `c` CHECK(`id`<100) ENFORCED NOT NULL PRIMARY KEY)",
    "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY) ENGINE = MyISAM COMMENT = 'x'",
    "create table t (id bigint primary key, `engine` int) engine=MEMORY partition by hash(id)",
    "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY) STATS_BUCKETS = 10 COMPRESSION = 'zlib'",
    "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY,`v` VARCHAR(9) COLLATE UTF8MB4_0900_AI_CI)"
    " DEFAULT CHARACTER SET = UTF8MB4 DEFAULT COLLATE = UTF8MB4_0900_BIN",
    "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY,INDEX `a`((`id` + 1)),INDEX `b`((`id` + 2)))",
]


@pytest.mark.parametrize("query", ACCEPTED)
async def test_what_mariadb_does_not_read_is_no_reason_to_stop(
    query: str, mariadb: MariaDb, upstream: Upstream
) -> None:
    upstream.ddl(ActionType.CREATE_TABLE, query, table(10, "t", ID))
    upstream.insert(10, [1], [50])
    await upstream.replicate(mariadb)
    assert mariadb.execute("SELECT id FROM shop.t ORDER BY id") == [(b"1",), (b"50",)]
    engine = "SELECT engine FROM information_schema.tables WHERE table_schema = 'shop'"
    assert mariadb.execute(engine) == [(b"InnoDB",)]


CHANGES = [
    "CREATE INDEX `i` ON `t` ((`id` + 1))",
    "CREATE UNIQUE INDEX IF NOT EXISTS `i` ON `shop`.`t` (`id`, (`id` + 1)) LOCK = NONE",
    "ALTER TABLE `t` ADD INDEX `a`((`id` + 1)), ADD UNIQUE INDEX `b`((`id` + 2))",
    "ALTER TABLE `t` ADD CONSTRAINT `c` CHECK(`id`<9) ENFORCED",
    "ALTER TABLE `t` ALTER CHECK `c` NOT ENFORCED",
    "ALTER TABLE `t` DROP CHECK `c`",
    "ALTER TABLE `t` ENGINE = MyISAM",
    "ALTER TABLE `t` CONVERT TO CHARACTER SET UTF8MB4 COLLATE UTF8MB4_0900_AI_CI",
]


@pytest.mark.parametrize("query", CHANGES)
async def test_what_mariadb_cannot_do_to_a_table_is_left(
    query: str, mariadb: MariaDb, upstream: Upstream
) -> None:
    made = table(10, "t", ID)
    upstream.ddl(ActionType.CREATE_TABLE, "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY)", made)
    upstream.ddl(ActionType.MODIFY_COLUMN, query, made)
    upstream.insert(10, [1], [50])
    await upstream.replicate(mariadb)
    assert mariadb.execute("SELECT id FROM shop.t ORDER BY id") == [(b"1",), (b"50",)]
    engine = "SELECT engine FROM information_schema.tables WHERE table_schema = 'shop'"
    assert mariadb.execute(engine) == [(b"InnoDB",)]


async def test_a_database_may_name_what_mariadb_lacks(mariadb: MariaDb, upstream: Upstream) -> None:
    upstream.database(
        "d",
        "CREATE DATABASE `d` CHARACTER SET = utf8mb4 COLLATE utf8mb4_0900_ai_ci ENCRYPTION 'N';",
        number=3,
    )
    await upstream.replicate(mariadb)
    assert mariadb.execute("SHOW DATABASES LIKE 'd'") == [(b"d",)]


async def test_partitions_are_exchanged_without_validation(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    parts = replace(table(10, "p", ID), partition_ids=(11,))
    upstream.ddl(
        ActionType.CREATE_TABLE,
        "CREATE TABLE `p` (`id` BIGINT PRIMARY KEY) PARTITION BY RANGE (`id`)"
        " (PARTITION `x` VALUES LESS THAN (100))",
        parts,
    )
    upstream.ddl(
        ActionType.CREATE_TABLE, "CREATE TABLE `n` (`id` BIGINT PRIMARY KEY)", table(12, "n", ID)
    )
    upstream.insert(12, [1])
    upstream.ddl(
        ActionType.EXCHANGE_TABLE_PARTITION,
        "ALTER TABLE `p` EXCHANGE PARTITION `x` WITH TABLE `n` WITHOUT VALIDATION",
        replace(parts, partition_ids=(12,)),
        table_id=12,
    )
    upstream.insert(10, [2])
    upstream.insert(11, [3])
    await upstream.replicate(mariadb)
    assert mariadb.execute("SELECT id FROM shop.p ORDER BY 1") == [(b"1",), (b"2",)]
    assert mariadb.execute("SELECT id FROM shop.n ORDER BY 1") == [(b"3",)]


async def test_what_is_left_of_an_alter_is_done_where_a_part_of_it_is_done_already(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    first = table(10, "t", ID)
    word = ColumnDef("a", tidb.varchar(20))
    upstream.ddl(
        ActionType.CREATE_TABLE,
        "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY,INDEX `e`((`id` + 1)));",
        first,
    )
    upstream.ddl(
        ActionType.MULTI_SCHEMA_CHANGE,
        "ALTER TABLE `t` DROP INDEX `e`, ADD COLUMN `a` VARCHAR(20);",
        with_column(first, word),
    )
    upstream.insert(10, [1, b"x"])
    await upstream.replicate(mariadb)
    assert mariadb.execute("SELECT * FROM shop.t") == [(b"1", b"x")]


# --- names that the text leaves to the session -----------------------------------------------


async def test_a_table_like_one_of_another_database_is_made(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    """`USE shop; CREATE TABLE attic.copy LIKE t`, where the attic has a `t` as well."""
    upstream.database("attic", "CREATE DATABASE `attic`", number=3)
    word = ColumnDef("a", tidb.varchar(20))
    made = table(10, "t", ID, word)
    upstream.ddl(
        ActionType.CREATE_TABLE, "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY,`a` VARCHAR(20))", made
    )
    other = table(11, "t", WORD)
    upstream.ddl(ActionType.CREATE_TABLE, "CREATE TABLE `t` (`id` VARCHAR(20))", other, schema_id=3)
    for number, text in enumerate(("`attic`.`c` LIKE `t`", "`attic`.`d` LIKE T")):
        copy = replace(made, id=20 + number, name="cd"[number])
        upstream.ddl(ActionType.CREATE_TABLE, f"CREATE TABLE {text};", copy, schema_id=3)
        upstream.insert(20 + number, [1, b"x"])
    await upstream.replicate(mariadb)
    for name in "cd":
        assert mariadb.execute(f"SELECT * FROM attic.{name}") == [(b"1", b"x")]


async def test_a_view_reads_the_tables_that_it_read_upstream(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    upstream.database("attic", "CREATE DATABASE `attic`", number=3)
    upstream.ddl(
        ActionType.CREATE_TABLE, "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY)", table(10, "t", ID)
    )
    view = Table(11, "v", (tidb.build_column(ID, column_id=1, offset=0),))
    upstream.ddl(
        ActionType.CREATE_VIEW,
        "CREATE ALGORITHM = UNDEFINED DEFINER = `as`@`%` SQL SECURITY INVOKER VIEW `attic`.`v`"
        " (`x`) AS SELECT `id` FROM `t`;",
        view,
        schema_id=3,
        view={"view_select": "SELECT `id` AS `id` FROM `shop`.`t`"},
    )
    upstream.insert(10, [7])
    await upstream.replicate(mariadb)
    assert mariadb.execute("SELECT x FROM attic.v") == [(b"7",)]


async def test_a_database_is_dropped_by_the_name_that_it_has(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    made = table(10, "t", ID)
    upstream.ddl(ActionType.CREATE_TABLE, "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY)", made)
    upstream.insert(10, [1])
    upstream.ddl(ActionType.DROP_SCHEMA, "drop database SHOP", DBInfo=tidb.database_json(2, "shop"))
    upstream.database("Shop", "CREATE DATABASE `Shop`", number=5)
    await upstream.replicate(mariadb)
    assert mariadb.execute("SHOW DATABASES LIKE 'shop'") == []
    assert mariadb.execute("SHOW TABLES FROM `Shop`") == []


# --- rows that are wider than MariaDB takes --------------------------------------------------


async def test_a_table_wider_than_mariadb_takes_has_its_long_text_beside_the_row(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    columns = [ColumnDef(f"c{n}", tidb.varchar(16383)) for n in range(3)]
    first = tidb.with_index(table(10, "t", ID, *columns), "k", ("c0",), is_unique=False)
    bytes_ = ColumnDef("b", tidb.varbinary(60000), not_null=True, default="x")
    upstream.ddl(
        ActionType.CREATE_TABLE,
        "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY,`c0` VARCHAR(700),`c1` VARCHAR(16383) CHARACTER"
        " SET UTF8MB4,`c2` VARCHAR(16383) DEFAULT _UTF8MB4'VARCHAR(9)',INDEX `k`(`c0`))",
        first,
    )
    upstream.insert(10, [1, b"x", "ä".encode() * 16383, b"z" * 16383])
    upstream.ddl(
        ActionType.ADD_COLUMN,
        "ALTER TABLE `t` ADD COLUMN `b` VARBINARY(65500) NOT NULL DEFAULT 'x'",
        with_column(first, bytes_, "x"),
    )
    upstream.insert(10, [2, b"x", b"y", b"z", b"\0" * 60000])
    await upstream.replicate(mariadb)
    assert mariadb.execute(
        "SELECT id, CHAR_LENGTH(c1), CHAR_LENGTH(c2), LENGTH(b) FROM shop.t ORDER BY id"
    ) == [(b"1", b"16383", b"16383", b"1"), (b"2", b"1", b"1", b"60000")]


# --- conversions that look at the clock ------------------------------------------------------


async def test_a_time_becomes_a_moment_of_the_day_on_which_the_upstream_converted_it(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    first = table(10, "t", ID, ColumnDef("a", tidb.temporal(Tp.DURATION)))
    upstream.ddl(
        ActionType.CREATE_TABLE, "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY,`a` TIME)", first
    )
    upstream.insert(10, [1, "10:11:12"])
    moment = replace(first.columns[1], id=3, field_type=tidb.temporal(Tp.DATETIME))
    upstream.ddl(
        ActionType.MODIFY_COLUMN,
        "ALTER TABLE `t` MODIFY COLUMN `a` DATETIME",
        replace(first, columns=(first.columns[0], moment)),
        location="UTC",
        start_ts=compose(1_600_000_000_000, 0),
    )
    await upstream.replicate(mariadb)
    assert mariadb.execute("SELECT a FROM shop.t") == [(b"2020-09-13 10:11:12",)]


async def test_the_zone_of_a_ddl_that_is_there_already_does_not_stay_for_the_next(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    moment = ColumnDef("a", tidb.temporal(Tp.TIMESTAMP))
    first = table(10, "t", ID, moment)
    create = "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY, `a` TIMESTAMP NULL)"
    upstream.ddl(ActionType.CREATE_TABLE, create, first)
    upstream.insert(10, [1, "2021-06-01 00:00:00"])
    upstream.ddl(ActionType.CREATE_TABLE, create, first, location="Asia/Tokyo")
    text = replace(first.columns[1], id=3, field_type=tidb.temporal(Tp.DATETIME))
    upstream.ddl(
        ActionType.MODIFY_COLUMN,
        "ALTER TABLE `t` MODIFY COLUMN `a` DATETIME",
        replace(first, columns=(first.columns[0], text)),
        start_ts=1,
    )
    await upstream.replicate(mariadb)
    assert mariadb.execute("SELECT * FROM shop.t") == [(b"1", b"2021-06-01 00:00:00")]


# --- foreign keys that MariaDB refuses -------------------------------------------------------


async def test_a_foreign_key_that_mariadb_refuses_is_left_out(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    """TiDB's names of foreign keys are those of a table, MariaDB's those of a database."""
    word = ColumnDef("p", tidb.integer("BIGINT"))
    tables = [table(10, "p", ID), table(11, "a", ID, word), table(12, "b", ID, word)]
    upstream.ddl(ActionType.CREATE_TABLE, "CREATE TABLE `p` (`id` BIGINT PRIMARY KEY)", tables[0])
    key = "CONSTRAINT `f` FOREIGN KEY (`p`) REFERENCES `p`(`id`) ON DELETE CASCADE"
    for made in tables[1:]:
        upstream.ddl(
            ActionType.CREATE_TABLE,
            f"CREATE TABLE `{made.name}` (`id` BIGINT PRIMARY KEY,{key},`p` BIGINT,KEY `k`(`p`))",
            made,
        )
        upstream.insert(made.id, [1, 1])
    odd = "ALTER TABLE `b` ADD CONSTRAINT `g` FOREIGN KEY (`p`) REFERENCES `p`(`nothing`)"
    upstream.ddl(ActionType.ADD_FOREIGN_KEY, odd, tables[2])
    wider = with_column(tables[2], ColumnDef("c", tidb.integer()))
    upstream.ddl(ActionType.MULTI_SCHEMA_CHANGE, f"{odd}, ADD COLUMN `c` INT", wider)
    upstream.insert(12, [2, 1, 3])
    upstream.ddl(ActionType.DROP_FOREIGN_KEY, "ALTER TABLE `b` DROP FOREIGN KEY `f`", wider)
    await upstream.replicate(mariadb)
    assert mariadb.execute("SELECT * FROM shop.b") == [(b"1", b"1", None), (b"2", b"1", b"3")]
    there = "SELECT constraint_name, table_name FROM information_schema.referential_constraints"
    assert mariadb.execute(there) == [(b"f", b"a")]


async def test_a_database_with_a_policy_has_its_collation(
    plain: MariaDb, upstream: Upstream
) -> None:
    upstream.database(
        "d", "CREATE DATABASE `d` /*T![placement] PLACEMENT POLICY = `p` */;", number=3
    )
    await upstream.replicate(plain)
    where = "information_schema.schemata WHERE schema_name = 'd'"
    assert plain.execute(f"SELECT default_collation_name FROM {where}") == [(b"utf8mb4_bin",)]
