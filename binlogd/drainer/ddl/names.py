"""Which database and table a DDL text is about, as far as a filter wants to know.

The text is read word by word, without a grammar. Of several tables the first one decides; a RENAME
is judged by the old name. Source: tidb-binlog reparo/ddl.go.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlogd.drainer.messages.named import NamedDdl
from binlogd.tidb.ddl_text import Word, next_name, words

_DATABASES = ("DATABASE", "SCHEMA")
_TABLES = ("TABLE", "VIEW", "SEQUENCE")
_NOT_NAMES = ("IF", "NOT", "EXISTS", "TEMPORARY", "GLOBAL")


def name_of(ddl: NamedDdl) -> tuple[str, str]:
    """The database and table that a DDL is about; no table is "": it is of the database itself, or
    names none."""
    found = words(ddl.text)
    for at, word in enumerate(found):
        following = found[at + 1 :]
        if word.says(*_DATABASES):
            database, table = _first_name(following)
            return database or table or ddl.database, ""
        if word.says(*_TABLES) or (
            word.says("TRUNCATE") and not (following and following[0].says("TABLE"))
        ):
            return _first_table(following, ddl.database)
        if word.says("INDEX") and at < 3:  # CREATE UNIQUE INDEX name ON table
            on = next((n for n, each in enumerate(found) if n > at and each.says("ON")), None)
            if on is not None:
                return _first_table(found[on + 1 :], ddl.database)
    return ddl.database, ""


def _first_table(found: Sequence[Word], database: str) -> tuple[str, str]:
    named, table = _first_name(found)
    return named or database, table


def _first_name(found: Sequence[Word]) -> tuple[str, str]:
    """The next name, with what stands before its dot; empty where none is next."""
    rest = [word for word in found if not word.says(*_NOT_NAMES)][:3]
    return next_name(rest[::-1]) or ("", "")
