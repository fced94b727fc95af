"""Which database and table a DDL text is about, as far as a filter wants to know.

The text is read word by word, without a grammar. Of several tables the first one decides; a RENAME
is judged by the old name. Source: tidb-binlog reparo/ddl.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from binlogd.drainer.messages.named import NamedDdl
from binlogd.tidb.ddl_text import Word, words

_DATABASES = ("DATABASE", "SCHEMA")
_TABLES = ("TABLE", "VIEW", "SEQUENCE")
_NOT_NAMES = ("IF", "NOT", "EXISTS", "TEMPORARY", "GLOBAL")


class DdlName(NamedTuple):
    """`table` is "" for a DDL of the database itself, or one that names no table."""

    database: str
    table: str


def name_of(ddl: NamedDdl) -> DdlName:
    """The database and table that a DDL is about."""
    found = words(ddl.text)
    for at, word in enumerate(found):
        if word.says(*_DATABASES):
            names = _names(found[at + 1 :])
            return DdlName(names[0] if names else ddl.database, "")
        following = found[at + 1 :]
        if word.says(*_TABLES) or (
            word.says("TRUNCATE") and not (following and following[0].says("TABLE"))
        ):
            return _qualified(_names(following), ddl.database)
        if word.says("INDEX") and at < 3:  # CREATE UNIQUE INDEX name ON table
            on = next((n for n, each in enumerate(found) if n > at and each.says("ON")), None)
            if on is not None:
                return _qualified(_names(found[on + 1 :]), ddl.database)
    return DdlName(ddl.database, "")


def _qualified(names: Sequence[str], database: str) -> DdlName:
    if not names:
        return DdlName(database, "")
    return DdlName(names[0], names[1]) if len(names) > 1 else DdlName(database, names[0])


def _names(found: Sequence[Word]) -> list[str]:
    """The next name, with what stands before its dot."""
    rest = [word for word in found if not word.says(*_NOT_NAMES)][:3]
    if not rest or not rest[0].is_name:
        return []
    if len(rest) == 3 and rest[1].text == "." and rest[2].is_name:
        return [rest[0].text, rest[2].text]
    return [rest[0].text]
