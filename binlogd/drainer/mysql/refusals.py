"""What a server's errors and warnings mean: what is refused, and what is held otherwise.

A DDL is executed in a strict session, and without strictness only where that changes no value, or
where the upstream's session had none either (docs/decisions/0088).

Rows are written without strict mode, because an upstream may hold values that strict mode refuses
(the invalid member 0 of an ENUM). What strict mode would catch besides, a column that is too short,
too small or of another character set, must not pass: it would be a silent difference. So it is with
a DDL that is executed without.

Source: tidb-binlog pkg/loader/load.go and executor.go for the errors that are forgiven; MariaDB's
and MySQL's lists of server errors; which of them strictness makes was tried on both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from binlogd.drainer.ddl.edits import begins

_TRUNCATED = 1265
CHANGES = frozenset({1048, 1263, 1264, _TRUNCATED, 1292, 1300, 1364, 1366, 1406, 1411, 1425, 1426})
"""Strict mode makes errors of them."""
_COLUMN = re.compile(r"for column (?:`[^`]*`\.)*['`](.*?)['`] at row")
STATEMENT_SHOWN_MAX = 500
FORGIVEN = frozenset({1007, 1008, 1049, 1050, 1051, 1054, 1060, 1061, 1091, 1146, 1176, 1831})
"""What the original forgives: the DDL's outcome is there already, or its object is gone."""
FORGIVEN_AGAIN = FORGIVEN | {1068, 1493, 1507, 1517, 1826, 4091, 4092}
"""When a DDL is run that may have been run before."""
ROW_TOO_LARGE = 1118
NO_FOREIGN_KEY = frozenset({1005, 1215, 1239, 1821, 1822, 1824, 1825, 1826, 1830})
"""A foreign key is not made: its name is taken in the database, or TiDB asks less of it."""
OF_VALUES = CHANGES | {1138}
"""A row holds what the column does not take; 1138 is MySQL's word for NULL."""
OF_DEFINITIONS = frozenset({1071, 1074, 1101, 1291, 1628, 1629, 1688, 1911, 1912, 3751})
"""A key, a type or a comment is too long, a TEXT has a default, a member comes twice, an option is
TiDB's alone, an index is over what no number is: what rows hold is the same without."""


class Warned(NamedTuple):
    """A line of SHOW WARNINGS; notes have another level."""

    level: str
    code: int
    message: str


def cut_by_ddl(found: Iterable[Warned], upstream: Mapping[int, int]) -> list[Warned]:
    """The first warning of each kind that came more often than `upstream`, where it has the code:
    of values that the DDL changed here and not there."""
    changes = [each for each in found if each.level == "Warning" and each.code in CHANGES]
    counts = Counter(each.code for each in changes)
    firsts = {each.code: each for each in reversed(changes)}
    return [firsts[code] for code in counts if counts[code] > upstream.get(code, 0)]


def changed_value(found: Iterable[Warned], members: Set[str]) -> Warned | None:
    """The first warning that tells of a value that the downstream did not take as it was.
    `members` are the names of the ENUM and SET columns, in lower case."""
    for each in found:
        is_note = each.level == "Note" and each.code == _TRUNCATED  # spaces, digits, hours
        if not (each.level == "Warning" or is_note) or each.code not in CHANGES:
            continue
        column = _COLUMN.search(each.message)
        if each.code == _TRUNCATED and column is not None and column[1].lower() in members:
            continue  # the member 0, which the upstream has as well
        return each
    return None


def is_lax_enough(code: int, statement: str, *, was_strict: bool) -> bool:
    """Whether a statement that strictness refuses may be executed without.

    What is made has no rows, nor has an index values. An ALTER may change values, which only an
    upstream that `was_strict` rules out.
    """
    keeps_values = begins(statement, "CREATE") or not was_strict
    return code in OF_DEFINITIONS or (code in OF_VALUES and keeps_values)


def shortened(statement: str) -> str:
    """As much of a statement as a message shows."""
    return (
        statement
        if len(statement) <= STATEMENT_SHOWN_MAX
        else statement[:STATEMENT_SHOWN_MAX] + "..."
    )
