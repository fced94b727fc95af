"""What a DDL's text leaves to the server that reads it, said explicitly.

A server fills in what a statement does not say, and TiDB's answers are not MariaDB's: the collation
of a character set (`utf8mb4_bin` there, `utf8mb4_general_ci` here, under which keys are equal that
TiDB tells apart), the collation of a database that has been there before, the zone that a TIMESTAMP
literal is meant in, the database of a table that a view names. The job's TableInfo has the answers.

TiDB from 6.0 on prints the statement anew, strings without escapes: a backslash stands for itself.
Source: pingcap/tidb parser/format/format.go (WriteString), parser/charset/charset.go (default
collations), sessionctx/binloginfo, ddl/ddl_api.go (defaults of TIMESTAMP are kept in UTC).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from binlogd.drainer.ddl.comments import printed_anew
from binlogd.drainer.ddl.edits import begins, behind_the_name, literal
from binlogd.drainer.ddl.marks import Edit, applied, depths_of, values_of
from binlogd.tidb.ddl_text import Word, escaped, words
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column, Database, Job, Table

_DEFAULT_COLLATIONS = {
    "utf8mb4": "utf8mb4_bin",
    "utf8": "utf8_bin",
    "utf8mb3": "utf8mb3_bin",
    "latin1": "latin1_bin",
    "ascii": "ascii_bin",
    "gbk": "gbk_chinese_ci",
}
_BEFORE_THE_NAME = ("ADD", "ALTER", "CHANGE", "COLUMN", "EXISTS", "IF", "MODIFY", "NOT")


def with_escapes(statement: str, typed: str) -> str:
    """The statement with backslashes doubled in its strings, if TiDB printed it anew."""
    return escaped(statement) if printed_anew(statement, typed) else statement


def explicit_database(statement: str, database: Database) -> str:
    """CREATE or ALTER DATABASE with its character set and collation."""
    if not database.collate:
        return statement
    found = words(statement)
    if any(word.says("COLLATE") for word in found):
        return statement
    at = next((value for _, value in _charsets(found)), None)
    if at is not None:
        return applied(statement, [_collation(found[at], _matching(found[at], database))])
    name = next((word for word in found[2:] if not word.says("IF", "NOT", "EXISTS")), None)
    if not begins(statement, "CREATE") or name is None:
        return statement
    text = f" CHARACTER SET = {database.charset} COLLATE = {database.collate}"
    return applied(statement, [Edit(name.end, name.end, text)])


def explicit_view(statement: str, job: Job) -> str:
    """CREATE VIEW with the SELECT that TiDB keeps: every table in it is named with its database."""
    found = words(statement)
    at = next((n for n, word in enumerate(found) if word.says("VIEW")), len(found))
    behind = next((word for word in found[at:] if word.says("AS")), None)
    if not job.view_select or behind is None:
        return statement
    return f"{statement[: behind.end]} {escaped(job.view_select)}"


def explicit_table(statement: str, info: Table) -> str:
    """CREATE or ALTER TABLE with collations, where it names none."""
    found = words(statement)
    if not begins(statement, "CREATE", "TABLE") and not begins(statement, "ALTER", "TABLE"):
        return statement
    depths = depths_of(found)
    edits = []
    for at, value in _charsets(found):
        scope = _scope(found, depths, at)
        if depths[at] > 1 or any(found[each].says("COLLATE") for each in scope):
            continue
        column = _column(found, scope, info) if depths[at] or not _is_create(found) else None
        edits.append(_collation(found[value], _matching(found[value], column or info)))
    edits += _table_default(found, depths, info)
    return applied(statement, edits)


def with_timestamps_in_utc(statement: str, info: Table) -> str:
    """CREATE or ALTER TABLE with defaults of TIMESTAMP columns as TiDB keeps them: in UTC."""
    if not begins(statement, "CREATE", "TABLE") and not begins(statement, "ALTER", "TABLE"):
        return statement
    found = words(statement)
    depths = depths_of(found)
    edits = []
    for at, word in enumerate(found[:-1]):
        if not word.says("DEFAULT") or depths[at] > 1:
            continue
        last = at + 2 if found[at + 1].text.startswith("_") and at + 2 < len(found) else at + 1
        column = _column(found, _scope(found, depths, at), info)
        if column is None or found[last].kind != "text" or not _is_timestamp(column):
            continue
        edits.append(Edit(found[at + 1].begin, found[last].end, literal(str(column.default))))
    return applied(statement, edits)


def _is_timestamp(column: Column) -> bool:
    return (
        column.field_type.tp == Tp.TIMESTAMP
        and column.version >= 1
        and str(column.default)[:1].isdigit()
    )


def _table_default(found: Sequence[Word], depths: Sequence[int], info: Table) -> list[Edit]:
    """The collation of a table that is created with columns of its own."""
    if not _is_create(found) or not info.collate:
        return []
    closing = next((n for n, word in enumerate(found) if word.text == ")" and not depths[n]), None)
    opening = next((n for n, word in enumerate(found) if word.text == "("), None)
    if closing is None or opening is None or found[opening + 1].says("LIKE"):
        return []
    options = [word for n, word in enumerate(found) if n > closing and not depths[n]]
    if any(word.says("COLLATE", "CHARSET", "CHARACTER") for word in options):
        return []
    end = found[closing].end
    return [Edit(end, end, f" DEFAULT CHARACTER SET = {info.charset} COLLATE = {info.collate}")]


def _is_create(found: Sequence[Word]) -> bool:
    return bool(found) and found[0].says("CREATE")


def _charsets(found: Sequence[Word]) -> Iterator[tuple[int, int]]:
    """Where a character set is named: its keyword, and the name."""
    for at, value in values_of(found, "CHARSET", "SET"):
        is_charset = found[at].says("CHARSET") or (at > 0 and found[at - 1].says("CHARACTER"))
        if is_charset and found[value].kind in ("bare", "quoted", "text"):
            yield at, value


def _matching(charset: Word, of: Database | Table | Column) -> str:
    """The collation of a thing if it has this character set, else TiDB's default for the set."""
    name = charset.text.strip("'\"").lower()
    known = of.field_type if isinstance(of, Column) else of
    if known.charset.lower() == name and known.collate:
        return known.collate
    return _DEFAULT_COLLATIONS.get(name, "")


def _collation(after: Word, collation: str) -> Edit:
    return Edit(after.end, after.end, f" COLLATE {collation}" if collation else "")


def _scope(found: Sequence[Word], depths: Sequence[int], at: int) -> list[int]:
    """The words of the same part: between commas, or all options of a CREATE TABLE."""
    depth, is_create = depths[at], _is_create(found)
    first = 0 if is_create or depth else behind_the_name(found)

    def is_border(n: int) -> bool:
        is_comma = found[n].kind == "sign" and found[n].text == "," and depths[n] == depth
        return depths[n] < depth or (is_comma and (depth > 0 or not is_create))

    begin = next((n + 1 for n in range(at - 1, first - 1, -1) if is_border(n)), min(first, at))
    end = next((n for n in range(at + 1, len(found)) if is_border(n)), len(found))
    return [each for each in range(begin, end) if depths[each] == depth]


def _column(found: Sequence[Word], scope: Sequence[int], info: Table) -> Column | None:
    """The column that a part of a statement defines."""
    said = [found[each] for each in scope]
    names = [each for each in said if each.is_name and not each.says(*_BEFORE_THE_NAME)]
    wanted = 1 if any(each.says("CHANGE") for each in said[:1]) else 0
    if len(names) <= wanted:
        return None
    name = names[wanted].text.lower()
    return next((each for each in info.columns if each.name.lower() == name), None)
