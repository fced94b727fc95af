"""Which warnings of a downstream mean that it holds another value than it was given.

Rows are written without strict mode, because an upstream may hold values that strict mode refuses
(the invalid member 0 of an ENUM). What strict mode would catch besides, a column that is too short,
too small or of another character set, must not pass: it would be a silent difference. So it is with
a DDL that is executed without (`refusals`).

Source: MariaDB's and MySQL's lists of server errors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Table

_TRUNCATED = 1265
CHANGES = frozenset({1048, 1263, 1264, _TRUNCATED, 1292, 1300, 1364, 1366, 1406, 1411, 1425, 1426})
"""Strict mode makes errors of them."""
_COLUMN = re.compile(r"for column (?:`[^`]*`\.)*['`](.*?)['`] at row")


class Warned(NamedTuple):
    """A line of SHOW WARNINGS; notes have another level."""

    level: str
    code: int
    message: str


def changed_value(found: Iterable[Warned], table: Table) -> Warned | None:
    """The first warning that tells of a value that the downstream did not take as it was."""
    return changed_by_server(
        found,
        frozenset(
            column.name.lower()
            for column in table.columns
            if column.field_type.tp in (Tp.ENUM, Tp.SET)
        ),
    )


def cut_by_ddl(found: Iterable[Warned], upstream: Mapping[int, int]) -> list[Warned]:
    """The first warning of each kind that came more often than `upstream`, where it has the code:
    of values that the DDL changed here and not there."""
    changes = [each for each in found if each.level == "Warning" and each.code in CHANGES]
    counts = Counter(each.code for each in changes)
    firsts = {each.code: each for each in reversed(changes)}
    return [firsts[code] for code in counts if counts[code] > upstream.get(code, 0)]


def changed_by_server(found: Iterable[Warned], members: Set[str]) -> Warned | None:
    """The same; `members` are the names of the ENUM and SET columns, in lower case."""
    for each in found:
        if each.level != "Warning" or each.code not in CHANGES:
            continue
        column = _COLUMN.search(each.message)
        if each.code == _TRUNCATED and column is not None and column[1].lower() in members:
            continue  # the member 0, which the upstream has as well
        return each
    return None
