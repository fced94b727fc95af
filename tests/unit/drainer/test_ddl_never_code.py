"""What is inside a string, a name or a comment upstream is never code downstream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.drainer.ddl.comments import TwoReadings, check_escapes
from binlogd.drainer.ddl.edits import Dialect, alter_parts, edited, without_foreign_keys
from binlogd.drainer.ddl.explicit import with_escapes
from binlogd.drainer.ddl.marks import with_long_text
from binlogd.drainer.ddl.trash_names import Replay, Trash
from binlogd.errors import UnsupportedDdl
from binlogd.tidb.ddl_text import words
from binlogd.tidb.known_tables import Effect, Named
from binlogd.tidb.model import ActionType, Table
from tests.support.sql_lexers import SERVERS, Server, code
from tests.unit.drainer.test_ddl import job, said

CANARY = "evil"
POISON = (
    *("*/", "/*", "'", '"', "`", "\\", ";", "--", "-- ", "#", "\n", "/*!", "/*M!", "/*T![ttl]"),
    *("/*!80013 ", "$$", "$a$", ")", "(", ",", " COMMENT ", "*", "/", "é", "\udce9"),
)

contents = st.lists(st.sampled_from(POISON), max_size=4).map(lambda p: CANARY.join(["", *p, ""]))
numbers = st.sampled_from(["1", "-1", "2*/* */3", "(4)"])


def _single(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


strings = contents.map(_single) | contents.map(
    lambda value: '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
)
strings |= contents.map(lambda value: "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'")
names = contents.map(lambda name: "`" + name.replace("`", "``") + "`") | st.sampled_from(
    ["a", "$b$", "``", "c$"]
)
comments = contents.filter(lambda text: "*/" not in text).map(lambda text: f"/*x{text} */")
comments |= contents.filter(lambda text: "*/" not in text).map(lambda text: f"/*M!{text} */")
comments |= contents.filter(lambda text: "\n" not in text).map(lambda text: f"-- {text}\n")
comments |= contents.filter(lambda text: "\n" not in text).map(lambda text: f"#{text}\n")
gaps = st.just(" ") | comments.map(lambda text: f" {text} ")
own = st.sampled_from(
    [
        "/*T![clustered_index] CLUSTERED */",
        "/*T! SHARD_ROW_ID_BITS = 4 */",
        "/*!90000 SHARD_ROW_ID_BITS=4 */",
        "/*!40101 COLLATE utf8mb4_0900_ai_ci */",
        "",
    ]
)
own |= names.map(lambda name: f"/*T![placement] PLACEMENT POLICY = {name} */")
own |= names.map(lambda name: f"/*T![ttl] TTL = {name} + INTERVAL 1 DAY */")


@st.composite
def parts(draw: st.DrawFn) -> str:
    """What stands between the commas of a CREATE or ALTER TABLE."""
    name, gap = draw(names), draw(gaps)
    rest = draw(gaps).join(["", f"COMMENT {draw(strings)}", draw(own)])
    return draw(
        st.sampled_from(
            [
                f"INDEX {name}((LOWER({draw(names)}){gap})){rest}",
                f"UNIQUE KEY {name}{gap}(({draw(names)} + {draw(numbers)})) INVISIBLE",
                f"CONSTRAINT {name} CHECK{gap}({draw(names)} <> {draw(strings)}) NOT ENFORCED",
                f"COLUMN_{gap}{name} VARCHAR(20) DEFAULT {draw(strings)}{rest}",
                f"COLUMN_ {name} INT CHECK ({name} > {draw(numbers)}{gap}) {rest}",
                f"COLUMN_ {name} INT AS ({name}+1){gap}NOT{gap}NULL {rest}",
                f"FOREIGN KEY {name} (a) REFERENCES {draw(names)}(id){gap}",
                f"ALTER INDEX {name}{gap}INVISIBLE",
            ]
        )
    )


@st.composite
def statements(draw: st.DrawFn) -> str:
    """DDL of which all strings, names and comments hold the canary, and no code does."""
    found = draw(st.lists(parts(), min_size=1, max_size=3))
    table, gap, options = draw(names), draw(gaps), draw(own)
    made = [part.replace("COLUMN_", "") for part in found if not part.startswith("ALTER")]
    added = [
        part if part.startswith("ALTER") else "ADD " + part.replace("COLUMN_", "COLUMN")
        for part in found
    ]
    return draw(
        st.sampled_from(
            [
                f"CREATE{gap}TABLE {table} (a INT{gap}{''.join(f', {p}' for p in made)})"
                f" ENGINE = {draw(strings)} COMMENT {draw(strings)} {options};",
                f"ALTER TABLE {table}{gap}{', '.join(added)}{gap}{options};",
                f"CREATE INDEX {draw(names)}{gap}ON {table} ((LOWER(a))) COMMENT {draw(strings)}",
                f"ALTER DATABASE {table} ENCRYPTION = {draw(strings)}{gap}{options}",
                f"CREATE VIEW {table} AS SELECT {draw(strings)}{gap} FROM {draw(names)}",
            ]
        )
    )


def is_clean(text: str, server: Server) -> bool:
    return CANARY not in code(text, server)


@given(statements())
def test_no_byte_of_a_string_a_name_or_a_comment_becomes_code(statement: str) -> None:
    try:
        text = edited(statement, Dialect.MYSQL)
    except TwoReadings:
        assert "/*T![" in statement
        return
    sent = [text, without_foreign_keys(text), with_long_text(text, ()), *alter_parts(text)]
    sent += alter_parts(without_foreign_keys(text))
    for each in sent:
        for server in SERVERS:
            assert is_clean(each, server), server.name


@given(statements())
def test_what_is_code_for_tidb_stays(statement: str) -> None:
    try:
        text = edited(statement, Dialect.TIDB)
    except TwoReadings:
        return
    before = [word.text for word in words(statement) if word.kind == "bare"]
    after = [word.text for word in words(text) if word.kind == "bare"]
    assert set(before) - set(after) <= {"PLACEMENT", "POLICY", "a", "c$", "$b$"}
    assert CANARY not in " ".join(after)


# --- one by one ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "CREATE INDEX i ON app.t ((LOWER(a))) COMMENT '*/ ; DROP DATABASE other; -- '",
            r"ALTER TABLE app.t /*!80013 ADD INDEX `i`((LOWER(a))) COMMENT '*\/ ; DROP DATABASE"
            " other; -- ' */",
        ),
        (
            "CREATE TABLE t (id int) /*M! AS SELECT user FROM mysql.user */ ;",
            "CREATE TABLE t (id int)   ",
        ),
        (
            "CREATE TABLE t (id int /*!40101 , b int*/) /*!50000 COMMENT 'x' */",
            "CREATE TABLE t (id int   , b int )   COMMENT 'x'  ",
        ),
        ("CREATE TABLE `a*/` (`$` INT, $b$ INT)", "CREATE TABLE `a*/` (`$` INT, `$b$` INT)"),
        ('CREATE TABLE t (a INT COMMENT "it\'s \\"")', "CREATE TABLE t (a INT COMMENT 'it''s \"')"),
        ("SELECT 2*/* ' */3", "SELECT 2* 3"),
    ],
)
def test_comments_of_users_go_and_what_tidb_reads_stays(before: str, after: str) -> None:
    assert edited(before, Dialect.MYSQL) == after


def test_what_no_comment_can_hold_is_left_out_and_said() -> None:
    left_out: list[str] = []
    text = "ALTER TABLE t ADD INDEX `*/ evil`((LOWER(a))), ADD COLUMN b INT CHECK (b <> `/*`)"
    assert edited(text, Dialect.MYSQL, left_out) == "ALTER TABLE t  ADD COLUMN b INT "
    assert left_out == ["ADD INDEX `*/ evil`((LOWER(a))),", "CHECK (b <> `/*`)"]


def test_a_comment_that_can_be_read_in_two_ways_stops_with_the_way_past() -> None:
    query = "CREATE TABLE t (a DATETIME) /*T![ttl] TTL = `*/ evil` + INTERVAL 1 DAY */"
    made = job(ActionType.CREATE_TABLE, 2, 40, table=Table(40, "t", ()))
    with pytest.raises(UnsupportedDdl, match=r"(?s)commit_ts 7.*has `\*/`.*ignore-txn-commit-ts"):
        said(made, query)


def test_an_engine_that_is_no_name_stops() -> None:
    """TiDB prints it without quotes."""
    typed = "CREATE TABLE t (a INT) ENGINE 'InnoDB AS SELECT user FROM mysql.user'"
    query = "CREATE TABLE `t` (`a` INT) ENGINE = InnoDB AS SELECT user FROM mysql.user"
    made = job(ActionType.CREATE_TABLE, 2, 40, table=Table(40, "t", ()), query=typed)
    with pytest.raises(UnsupportedDdl, match="no name of an engine"):
        said(made, query)


@pytest.mark.parametrize(
    ("typed", "printed", "sent"),
    [
        (r"a COMMENT 'x\\'", r"`a` COMMENT 'x\'", r"`a` COMMENT 'x\\'"),
        (r"a COMMENT 'x\%'", r"`a` COMMENT 'x\%'", r"`a` COMMENT 'x\%'"),
        (r"a COMMENT 'it\'s'", r"a COMMENT 'it\'s' /*T! x */", r"a COMMENT 'it\'s' /*T! x */"),
        # the string as it was typed stands in a name, so that it looks as if nothing was printed
        (
            r"`'x\\'` COMMENT 'x\\', `b` COMMENT ', evil INT -- '",
            r"`'x\\'` COMMENT 'x\', `b` COMMENT ', evil INT -- '",
            r"`'x\\'` COMMENT 'x\\', `b` COMMENT ', evil INT -- '",
        ),
    ],
)
def test_a_backslash_that_tidb_printed_stands_for_itself(
    typed: str, printed: str, sent: str
) -> None:
    assert with_escapes(printed, typed) == sent


def test_a_file_whose_strings_may_end_elsewhere_is_refused() -> None:
    check_escapes(r"CREATE TABLE `a` (`b` INT COMMENT 'x\\y')")
    check_escapes("CREATE TABLE `a` (`b` INT COMMENT 'it''s')")
    with pytest.raises(TwoReadings, match="two ways"):
        check_escapes(r"CREATE TABLE `a` (`b` INT COMMENT 'x\', `c` INT COMMENT ', evil INT -- ')")


def test_a_view_that_comes_out_of_the_trash_keeps_its_strings() -> None:
    view = {
        "id": 41,
        "name": {"O": "v", "L": "v"},
        "cols": [{"id": 1, "name": {"O": "a", "L": "a"}, "type": {"Tp": 15}}],
        "view": {"view_select": "SELECT /*+ x */ 'x\\' AS `a`,' evil -- ' AS `b` FROM `d`.`t`"},
    }
    made = job(
        ActionType.RECOVER_SCHEMA,
        raw_args=[{"RecoverTabsInfo": [{"TableInfo": view, "SnapshotTS": 5}]}],
    )
    moves = Trash("bin").taken_back(made, Effect(True, Named("d")), [Named("d", "v")], lambda n: n)
    assert isinstance(moves, Replay)
    assert moves.statements[-1] == (
        "CREATE OR REPLACE VIEW `d`.`v` (`a`) AS SELECT   'x\\\\' AS `a`,"
        "' evil -- ' AS `b` FROM `d`.`t`"
    )
