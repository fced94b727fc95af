"""What rows from before an ADD COLUMN hold: said by a literal that every server reads alike.

Servers make different things of the DEFAULT in one text (docs/decisions/0075). The job says what
these rows hold (`origin_default`), so the DEFAULT becomes the literal of that value, in the form of
the column: no second statement goes over the rows that a crash could come before. That of a JSON
column which is NOT NULL is read by MariaDB alone (`marks`). One that is no constant is left to
`session_clock`.
Source: pingcap/tidb ddl/ddl_api.go (generateOriginDefaultValue), table/column.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from binlogd.drainer import sql
from binlogd.drainer.ddl.edits import begins, behind_the_name, literal, parts_of, quoted
from binlogd.drainer.ddl.marks import Edit, applied
from binlogd.drainer.ddl.session_clock import in_session
from binlogd.tidb.columns import Value
from binlogd.tidb.ddl_text import Word, words
from binlogd.tidb.defaults import missing_value
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column, Job

_NO_COLUMNS = frozenset(
    {"CHECK", "CONSTRAINT", "FOREIGN", "FULLTEXT", "INDEX", "KEY", "PARTITION", "PRIMARY"}
    | {"SPATIAL", "UNIQUE"}
)
_NAMED = (Tp.ENUM, Tp.SET)


def with_old_values(statement: str, job: Job) -> list[str]:
    """An ALTER TABLE, and what must follow it, so that rows that are there hold what the job says.
    Any other statement as it is. Raises CorruptRow for a default that is no value of its column."""
    info = job.table
    if info is None or not begins(statement, "ALTER", "TABLE"):
        return [statement]
    found = words(statement)
    columns = {each.name.lower(): each for each in info.columns if each.is_public}
    edits: list[Edit] = []
    further: list[str] = []
    for definition in _added(found):
        column = columns.get(definition[0].text.lower())
        if column is None or column.is_generated:
            continue
        if any(word.says("DEFAULT") for word in definition[1:]):
            edits += _exact(definition, column, job)
        elif column.field_type.tp == Tp.JSON and column.not_null:
            end = definition[1].end  # of the word JSON
            edits.append(Edit(end, end, " DEFAULT 'null'"))
            head = statement[: found[behind_the_name(found)].begin]
            further.append(f"{head}ALTER COLUMN {quoted(column.name)} DROP DEFAULT")
    return [applied(statement, edits), *further]


def _added(found: list[Word]) -> Iterator[list[Word]]:
    """The definition of each column that is added, from its name on."""
    for begin, end in parts_of(found, behind_the_name(found), depth=0):
        part = found[begin:end]
        if not part or not part[0].says("ADD"):
            continue
        part = part[2:] if len(part) > 1 and part[1].says("COLUMN") else part[1:]
        if [each.text.upper() for each in part[:3]] == ["IF", "NOT", "EXISTS"]:
            part = part[3:]
        if not part or part[0].says(*_NO_COLUMNS):
            continue
        if part[0].text == "(" and part[0].kind == "sign":
            inner = [part[a:b] for a, b in parts_of(part, 0, depth=1)]
            yield from (each for each in inner if each and not each[0].says(*_NO_COLUMNS))
        elif part[0].is_name:
            yield part


def _exact(definition: Sequence[Word], column: Column, job: Job) -> Iterator[Edit]:
    """The constant behind DEFAULT made exact; nothing where it is NULL, or no constant."""
    at = next(n for n, word in enumerate(definition) if n and word.says("DEFAULT"))
    rest = definition[at + 1 :]
    end = _constant_end(rest)
    value = missing_value(column)
    if end is not None and value is not None:
        yield Edit(rest[0].begin, end, _literal(column, value, job))


def _constant_end(rest: Sequence[Word]) -> int | None:
    """Where a constant ends that begins with the first of these words; None: it is none."""
    if not rest:
        return None
    first = rest[0]
    if first.kind == "text" or first.says("TRUE", "FALSE"):
        return first.end
    if first.kind == "bare" and len(rest) > 1 and rest[1].kind == "text":
        return rest[1].end  # behind an introducer, or as x'..' and b'..'
    if not (first.text[:1].isdigit() or (first.kind == "sign" and first.text in "+-.")):
        return None
    end = first.end
    for word in rest[1:]:
        if word.begin != end or not (word.kind == "bare" or word.text in ("+", "-", ".")):
            break
        end = word.end
    return end


def _literal(column: Column, value: Value, job: Job) -> str:
    """How a DEFAULT says it."""
    tp = column.field_type.tp
    if isinstance(value, bytes):
        return f"x'{value.hex()}'" if value and column.is_binary else literal(value.decode())
    if isinstance(value, float):
        return sql.float_literal(value).decode()
    if isinstance(value, int) and tp in _NAMED:  # a DEFAULT takes members by their names only
        return literal(column.field_type.label(value))
    if tp == Tp.BIT:
        return f"b'{int(value or 0):b}'"
    text = str(value)
    if isinstance(value, int) or tp == Tp.NEW_DECIMAL:
        return text
    return literal(in_session(job, text) if tp == Tp.TIMESTAMP else text)
