"""Edits of a DDL's text: word by word, so that nothing is lost that nobody thought of.

A statement is never printed anew from a grammar. What an edit does not touch keeps its bytes.
Source: tidb-binlog pkg/util/ddl.go (which prints anew); for what MySQL 8 has and MariaDB has not,
the reference manuals of both: MariaDB steps over comments from `/*!50700` to `/*!99999`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import pairwise

from binlogd.drainer.ddl.comments import with_names_quoted, without_comments
from binlogd.drainer.ddl.marks import Edit, applied, in_marks, marked, with_marked_words
from binlogd.tidb.ddl_text import Word, words, words_and_marks
from binlogd.tidb.known_tables import Named


class Dialect(StrEnum):
    """What reads the statements."""

    FILE = "file"
    TIDB = "tidb"
    MYSQL = "mysql"


def edited(statement: str, dialect: Dialect, left_out: list[str] | None = None) -> str:
    """One statement as a database downstream can take it; "" when nothing is left to do. `left_out`
    takes what it asked for that could not be said safely. Raises TwoReadings."""
    text = _without_marked(without_comments(statement), lambda begin: "[placement]" in begin)
    text = _without_end(_with_ttl_off(text))
    if dialect is Dialect.MYSQL:
        text = _for_mysql(text, [] if left_out is None else left_out)
    return "" if _does_nothing(text, dialect) else text


def quoted(name: Named | str) -> str:
    """A name in back quotes, with its database if it has one."""
    if isinstance(name, str):
        return f"`{name.replace('`', '``')}`"
    table = quoted(name.table)
    return f"{quoted(name.database)}.{table}" if name.database else table


def literal(text: str) -> str:
    """A string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def split(query: str) -> list[str]:
    """The statements of a text, without those that are blank."""
    ends = [word.begin for word in words(query) if word.text == ";"]
    starts = [0, *(end + 1 for end in ends)]
    parts = [query[a:b].strip() for a, b in zip(starts, [*ends, len(query)], strict=True)]
    return [part for part in parts if words(part)]


def alter_parts(statement: str) -> list[str]:
    """An ALTER TABLE as one statement for each of its parts; [] for one that has one part. Each
    column of an ADD COLUMN (...) is a part."""
    if not begins(statement, "ALTER", "TABLE"):
        return []
    found = words(statement)
    first = behind_the_name(found)
    parts = [(begin, end) for begin, end in parts_of(found, first, depth=0) if begin < end]
    if not parts or any(found[begin].says("PARTITION") for begin, _ in parts):
        return []
    head = statement[: _outside(statement, found[first].begin)]
    texts = []
    for begin, end in parts:
        columns = _columns_added(found, begin, end)
        add = "ADD COLUMN " if columns else ""
        for a, b in columns or [(begin, end)]:
            texts.append(f"{head}{add}{_whole(statement, found[a].begin, found[b - 1].end)}")
    return texts if len(texts) > 1 else []


def _columns_added(found: list[Word], begin: int, end: int) -> list[tuple[int, int]]:
    """Where the columns of an ADD COLUMN (...) begin and end; [] for any other part."""
    if not found[begin].says("ADD"):
        return []
    opening = begin + 1
    while opening < end and found[opening].says("COLUMN", "IF", "NOT", "EXISTS"):
        opening += 1
    if opening == end or found[opening].kind != "sign" or found[opening].text != "(":
        return []
    return [(a, b) for a, b in parts_of(found, opening, depth=1) if a < b]


def without_foreign_keys(statement: str) -> str:
    """A CREATE or ALTER TABLE without its foreign keys; "" if nothing else was in it."""
    found = words(statement)
    parts = _of_table(statement, found)
    kept = [(a, b) for a, b in parts if not _is_about(found[a:b], "FOREIGN")]
    if len(kept) == len(parts):
        return statement
    if not kept:
        return ""
    text = ", ".join(_whole(statement, found[a].begin, found[b - 1].end) for a, b in kept if a < b)
    begin, end = found[parts[0][0]].begin, found[parts[-1][1] - 1].end
    rest = statement[end:]
    if _mark_at(statement, end):
        rest = rest.split("*/", 1)[1]
    return statement[: _outside(statement, begin)] + text + rest


def _mark_at(statement: str, offset: int) -> Word | None:
    """The comment that counts in which a place is."""
    mark: Word | None = None
    for word in words_and_marks(statement):
        if word.begin >= offset:
            break
        if word.kind in ("open", "close"):
            mark = word if word.kind == "open" else None
    return mark


def _outside(statement: str, offset: int) -> int:
    """A place, or where the comment begins that it is in."""
    mark = _mark_at(statement, offset)
    return offset if mark is None else mark.begin


def _whole(statement: str, begin: int, end: int) -> str:
    """A stretch with the comments whole that begin before it or end behind it."""
    before, behind = _mark_at(statement, begin), _mark_at(statement, end)
    return (
        (f"{before.text} " if before is not None else "")
        + statement[begin:end]
        + (" */" if behind is not None else "")
    )


def _is_about(part: list[Word], keyword: str) -> bool:
    """Whether it adds such a key or check, with a name or without."""
    said = part[1:] if part and part[0].says("ADD") else part
    return any(
        each.says(keyword) for each in said[: 3 if said and said[0].says("CONSTRAINT") else 1]
    )


def begins(statement: str, *keywords: str) -> bool:
    """Whether a statement begins with these keywords (given in capitals)."""
    said = words(statement)
    return len(said) >= len(keywords) and all(
        word.says(keyword) for word, keyword in zip(said, keywords, strict=False)
    )


# --- edits for every database ------------------------------------------------------------


def _without_end(statement: str) -> str:
    end = max((word.end for word in words_and_marks(statement) if word.text != ";"), default=0)
    rest = [word for word in words_and_marks(statement[end:]) if word.text == ";"]
    return statement[: end + rest[0].begin] if rest else statement


def _without_marked(statement: str, is_such: Callable[[str], bool]) -> str:
    """Without the comments that count and begin so."""
    edits = []
    begin: int | None = None
    for word in words_and_marks(statement):
        if word.kind == "open" and is_such(word.text):
            begin = word.begin
        elif word.kind == "close" and begin is not None:
            edits.append(Edit(begin, word.end, ""))
            begin = None
    return applied(statement, edits)


def _with_ttl_off(statement: str) -> str:
    found = words_and_marks(statement)
    edits = []
    ttl_ends: list[int] = []
    is_in_ttl = False
    for word, following, third in zip(found, found[1:], found[2:], strict=False):
        if word.kind == "open":
            is_in_ttl = "[ttl]" in word.text
        if is_in_ttl and word.says("TTL_ENABLE") and third.kind == "text":
            edits.append(Edit(third.begin, third.end, "'OFF'"))
        elif is_in_ttl and word.says("TTL") and following.text == "=":
            ttl_ends.append(next(w.end for w in found if w.kind == "close" and w.begin > word.end))
    if ttl_ends and not edits:
        edits.append(Edit(ttl_ends[-1], ttl_ends[-1], " /*T![ttl] TTL_ENABLE = 'OFF' */"))
    return applied(statement, edits)


def _does_nothing(statement: str, dialect: Dialect) -> bool:
    """Whether nothing is left that this dialect reads, or an ALTER with nothing but the name."""
    said: list[Word] = []
    is_read = True
    for word in words_and_marks(statement):
        if word.kind in ("open", "close"):
            is_read = word.kind == "close" or dialect is Dialect.TIDB or word.text.startswith("/*!")
        elif is_read:
            said.append(word)
    if len(said) < 3 or not said[0].says("ALTER"):
        return not said
    rest = said[2:]
    is_name = all(word.is_name == (n % 2 == 0) for n, word in enumerate(rest))
    return said[1].says("TABLE", "DATABASE", "SCHEMA") and is_name and len(rest) in (1, 3)


# --- edits for MySQL and MariaDB ---------------------------------------------------------


def _for_mysql(statement: str, left_out: list[str]) -> str:
    # TiDB before 4.0 hid it from every MySQL of its time: MySQL 9 would read it
    statement = _without_marked(statement, "/*!90000".__eq__)
    for edit in (_without_sequences, _without_temporary, _as_alter, _with_marked_conditions):
        statement = edit(statement)
    statement = _with_marked_visibility(_with_marked_parts(statement, left_out))
    return with_names_quoted(with_marked_words(statement, left_out))


def _as_alter(statement: str) -> str:
    """CREATE INDEX over an expression as an ALTER TABLE, of which a part can be marked."""
    found = words(statement)
    is_unique = len(found) > 1 and found[1].says("UNIQUE")
    rest = found[2 if is_unique else 1 :]
    opening = next((at for at, word in enumerate(rest) if word.text == "("), 0)
    on = next((at for at, word in enumerate(rest[:opening]) if word.says("ON")), 0)
    if not (on and found[0].says("CREATE") and rest[0].says("INDEX")):
        return statement
    if not _has_expression(rest[opening:]):
        return statement
    name = rest[on - 1] if on > 1 else rest[on]
    table = statement[rest[on + 1].begin : rest[opening - 1].end]
    end = next((w.begin for w in rest[opening:] if w.says("ALGORITHM", "LOCK")), rest[-1].end)
    columns = statement[rest[opening].begin : end].rstrip()
    verb = "ADD UNIQUE INDEX" if is_unique else "ADD INDEX"
    return f"ALTER TABLE {table} {verb} {quoted(name.text)}{columns}"


def _with_marked_conditions(statement: str) -> str:
    """IF [NOT] EXISTS of columns, indexes and partitions in a comment that MariaDB alone reads.
    MySQL has none: what is there, or gone, it refuses in words that are forgiven, part by part."""
    found = words_and_marks(statement)
    said = [word for word in found[:3] if not word.says("UNIQUE")]
    is_index = len(said) > 1 and said[0].says("CREATE", "DROP") and said[1].says("INDEX")
    if not is_index and not begins(statement, "ALTER", "TABLE"):
        return statement
    edits, marked_at = [], in_marks(found)
    for at, word in enumerate(found[:-2]):
        is_not = found[at + 1].says("NOT")
        last = found[at + 2 if is_not else at + 1]
        if word.says("IF") and last.says("EXISTS") and at not in marked_at:
            text = f"/*M! IF {'NOT ' if is_not else ''}EXISTS */"
            edits.append(Edit(word.begin, last.end, text))
    return applied(statement, edits)


def _without_sequences(statement: str) -> str:
    """Without DEFAULT NEXTVAL(s) and DEFAULT NEXT VALUE FOR s: rows bring their values."""
    found = words(statement)
    edits = []
    for at, word in enumerate(found[:-2]):
        if not word.says("DEFAULT"):
            continue
        if found[at + 1].says("NEXTVAL") and found[at + 2].text == "(":
            closing = next((w for w in found[at + 2 :] if w.text == ")"), found[-1])
            edits.append(Edit(word.begin, closing.end, ""))
        elif found[at + 1].says("NEXT") and found[at + 2].says("VALUE"):
            last = at + 4 + (2 if len(found) > at + 6 and found[at + 5].text == "." else 0)
            edits.append(Edit(word.begin, found[min(last, len(found) - 1)].end, ""))
    return applied(statement, edits)


def _without_temporary(statement: str) -> str:
    found = words(statement)
    if not (len(found) > 3 and found[1].says("GLOBAL") and found[2].says("TEMPORARY")):
        return statement
    edits = [Edit(found[1].begin, found[3].begin, "")]
    for at, word in enumerate(found[:-3]):
        if word.says("ON") and found[at + 1].says("COMMIT") and found[at + 3].says("ROWS"):
            edits.append(Edit(word.begin, found[at + 3].end, ""))
    return applied(statement, edits)


def _with_marked_visibility(statement: str) -> str:
    """INVISIBLE of an index in a comment that MySQL 8 reads."""
    found = words_and_marks(statement)
    edits, marked_at = [], in_marks(found)
    for at, (before, word) in enumerate(pairwise(found), 1):
        is_option = before.text == ")" or before.kind == "text" or before.says("BTREE", "HASH")
        if word.says("INVISIBLE", "VISIBLE") and is_option and at not in marked_at:
            edits.append(Edit(word.begin, word.end, f"/*!80000 {word.text} */"))
    return applied(statement, edits)


def _with_marked_parts(statement: str, left_out: list[str]) -> str:
    """Indexes over expressions, and ALTER INDEX, in comments that only a MySQL 8 reads."""
    found = words(statement)
    parts = _of_table(statement, found)
    versions = [_version_needed(found[begin:end]) for begin, end in parts]
    leading = next((at for at, version in enumerate(versions) if not version), len(parts))
    edits = []
    for number, (version, (begin, end)) in enumerate(zip(versions, parts, strict=True)):
        if version:  # a comma goes with it: the one before, or of the first parts the one behind
            left = found[begin].begin if number <= leading else found[begin - 1].begin
            is_last = number + 1 == len(parts)
            right = found[end].end if number < leading and not is_last else found[end - 1].end
            edits.append(Edit(left, right, marked(statement[left:right], version, left_out)))
    return applied(statement, edits)


def behind_the_name(found: Sequence[Word]) -> int:
    """Where an ALTER TABLE says what is to be done."""
    return 5 if len(found) > 3 and found[3].text == "." else 3


def _of_table(statement: str, found: list[Word]) -> list[tuple[int, int]]:
    """The parts of a CREATE or ALTER TABLE; [] of any other statement."""
    if begins(statement, "ALTER", "TABLE"):
        return parts_of(found, behind_the_name(found), depth=0)
    return parts_of(found, 2, depth=1) if begins(statement, "CREATE", "TABLE") else []


def parts_of(found: list[Word], first: int, *, depth: int) -> list[tuple[int, int]]:
    """Where the parts between commas begin and end, inside the first parentheses or outside."""
    parts: list[tuple[int, int]] = []
    at_depth, begin = 0, first
    for at in range(first, len(found)):
        sign = found[at].text if found[at].kind == "sign" else ""
        if sign == "(":
            at_depth += 1
            begin = at + 1 if at_depth == depth else begin
        elif sign == ")":
            at_depth -= 1
            if at_depth < depth:
                return [*parts, (begin, at)]
        elif sign == "," and at_depth == depth:
            parts.append((begin, at))
            begin = at + 1
    return [*parts, (begin, len(found))] if depth == 0 else parts


def _version_needed(part: list[Word]) -> int:
    """The first MySQL that has what MariaDB has not; 0 for what both have."""
    said = part[1:] if part and part[0].says("ADD") else part
    if len(said) > 2 and said[0].says("ALTER") and said[1].says("INDEX"):
        return 80000
    if len(said) > 1 and said[0].says("ALTER", "DROP") and said[1].says("CHECK", "CONSTRAINT"):
        return 80016
    if _is_about(part, "CHECK"):
        return 80016
    if not (said and said[0].says("INDEX", "KEY", "UNIQUE", "CONSTRAINT")):
        return 0
    opening = next((at for at, word in enumerate(said) if word.text == "("), len(said))
    is_index = any(word.says("INDEX", "KEY", "UNIQUE") for word in said[:opening])
    return 80013 if is_index and _has_expression(said[opening:]) else 0


def _has_expression(columns: list[Word]) -> bool:
    """Whether an item of the list in parentheses is in parentheses itself."""
    depth = 0
    for before, word in pairwise([Word("sign", ",", 0, 0), *columns]):
        if word.text == "(" and depth == 1 and before.text in ("(", ","):
            return True
        depth += (word.text == "(") - (word.text == ")")
        if depth == 0:
            return False
    return False
