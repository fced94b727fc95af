"""SQL text: names, literals, and the statements of the shapes that rows are written in.

Invariant. A literal denotes exactly the value: what is read back from a column of the same type is
what TiDB held. Why it holds. The session speaks utf8mb4 with backslash escapes on, so that a quote
and a backslash are the only bytes with a meaning inside a string, and the time zone is UTC. DECIMAL
stands bare (as a string it would be compared as a double), FLOAT and DOUBLE with an exponent (bare
they would be DECIMAL first), ENUM, SET and BIT as numbers, bytes with an introducer.

Source: tidb-binlog pkg/loader/model.go and drainer/translator/mysql.go for upstream's statements.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from zlib import crc32

from binlogd.tidb.columns import Value
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column

NULL = b"NULL"
_NEW_ROW = b"`binlogd's new row`"
_IN_TUPLE = re.compile(rb"[^',]*'(?:[^'\\]|''|\\.)*'|[^,]+", re.DOTALL)
"""Each literal of a tuple."""
SET_MEMBERS_MAX = 64


def ident(name: str) -> bytes:
    """A name in back-ticks."""
    return b"`" + name.encode().replace(b"`", b"``") + b"`"


def qualified(database: str, table: str) -> bytes:
    """`database`.`table`."""
    return ident(database) + b"." + ident(table)


def text(value: str) -> bytes:
    """A string literal of text."""
    return quoted(value.encode("utf-8", "surrogatepass"))


def quoted(raw: bytes) -> bytes:
    """A string literal of UTF-8 bytes, valid or not."""
    return b"'" + escaped(raw) + b"'"


def escaped(raw: bytes) -> bytes:
    """What stands between the quotes."""
    return raw.replace(b"\\", b"\\\\").replace(b"'", b"''")


def float_literal(value: float) -> bytes:
    """A double with an exponent, exact: the shortest digits that read back as it."""
    digits = repr(value)
    return (digits if "e" in digits else digits + "e0").encode()


def renderer(column: Column) -> Callable[[Value], bytes]:
    """A function from a value of the column to its literal."""
    is_decimal = column.field_type.tp == Tp.NEW_DECIMAL
    return renderer_of(is_binary=column.is_binary, is_decimal=is_decimal)


def renderer_of(*, is_binary: bool, is_decimal: bool) -> Callable[[Value], bytes]:
    """The same where bytes are no text, or text is that of a DECIMAL."""
    introducer = b"_binary'" if is_binary else b"'"

    def literal(value: Value) -> bytes:
        if value is None:
            return NULL
        if isinstance(value, int):
            return b"%d" % value
        if isinstance(value, bytes):
            return introducer + escaped(value) + b"'"
        if isinstance(value, float):
            return float_literal(value)
        return value.encode() if is_decimal else text(value)

    return literal


def tuple_of(literals: Sequence[bytes]) -> bytes:
    """`(a,b)`; one literal stands alone, without parentheses."""
    return literals[0] if len(literals) == 1 else b"(" + b",".join(literals) + b")"


def write_head(verb: bytes, table: bytes, names: Iterable[str]) -> bytes:
    """`REPLACE INTO t(a,b) VALUES `: rows follow, joined by commas."""
    return verb + b" INTO " + table + b"(" + b",".join(map(ident, names)) + b") VALUES "


def update_on_duplicate(names: Sequence[str], *, calls_row: bool = False) -> bytes:
    """The tail that turns an INSERT into an upsert which leaves other columns alone. `calls_row`
    gives the new row a name, in place of VALUES(), which MySQL warns of since 8.0.20."""
    if calls_row:
        parts = (ident(name) + b"=" + _NEW_ROW + b"." + ident(name) for name in names)
        return b" AS " + _NEW_ROW + b" ON DUPLICATE KEY UPDATE " + b",".join(parts)
    parts = (ident(name) + b"=VALUES(" + ident(name) + b")" for name in names)
    return b" ON DUPLICATE KEY UPDATE " + b",".join(parts)


def delete_head(table: bytes, key: Sequence[str]) -> bytes:
    """`DELETE FROM t WHERE (a,b) IN (`: keys follow, joined by commas, and a parenthesis."""
    return b"DELETE FROM " + table + b" WHERE " + tuple_of([ident(name) for name in key]) + b" IN ("


def delete_tail(keys: Sequence[bytes]) -> bytes:
    """What follows the keys of a `delete_head`.

    MariaDB 10.11 reads the whole table for a list of one pair, and waits for whoever has a lock in
    it; two pairs it looks up. So a single one is named twice.
    """
    return b"," + keys[0] + b")" if len(keys) == 1 and keys[0].startswith(b"(") else b")"


def where_key(key: Sequence[str], literal: bytes) -> bytes:
    """` WHERE a = 1 AND b = 2`, of a key as `tuple_of` makes it."""
    values = [literal] if len(key) == 1 else _IN_TUPLE.findall(literal[1:-1])
    pairs = (ident(name) + b" = " + value for name, value in zip(key, values, strict=True))
    return b" WHERE " + b" AND ".join(pairs)


def assignments(pairs: Sequence[tuple[str, bytes]]) -> bytes:
    """`a` = 1,`b` = 2."""
    return b",".join(ident(name) + b" = " + literal for name, literal in pairs)


def equals(name: str, literal: bytes, *, plain: bytes, is_text: bool, is_json: bool) -> bytes:
    """A condition that holds for rows with exactly this value in a column, NULL included; `plain`
    is what holds for any other value as it is compared.

    Text is compared by its bytes as well: under a collation another row could be equal. `is_json`
    says that the downstream has a type of its own for JSON, which no string equals.
    """
    called = ident(name)
    if literal == NULL:
        return called + b" IS NULL"
    if is_json:
        return called + b" = CAST(" + literal + b" AS JSON)"
    if is_text and literal.startswith(b"'"):
        plain += b" AND CAST(CONVERT(" + called + b" USING utf8mb4) AS BINARY) = _binary" + literal
    return plain


def compared(column: Column) -> bytes:
    """A column as it stands beside a literal: MariaDB takes a SET with its 64th member for a
    negative number, which no literal equals; what operators of bits give is never negative."""
    name = ident(column.name)
    return b"(" + name + b" | 0)" if has_last_member(column) else name


def is_value(name: str, data_type: str, literal: bytes) -> bytes:
    """A condition by the name of a column, which stands there as `compared` has it."""
    is_last = data_type == "set" and literal.isdigit() and int(literal) >> (SET_MEMBERS_MAX - 1)
    return (b"(" + ident(name) + b" | 0)" if is_last else ident(name)) + b" = " + literal


def has_last_member(column: Column) -> bool:
    """Whether it is a SET of as many members as there can be."""
    return column.field_type.tp == Tp.SET and len(column.field_type.elems) == SET_MEMBERS_MAX


def batches(items: Sequence[bytes], bytes_max: int) -> Iterator[Sequence[bytes]]:
    """Runs of items that fit together when joined; one item alone may exceed the limit."""
    if sum(map(len, items)) + len(items) <= bytes_max:
        yield items
        return
    begin, size = 0, 0
    for end, item in enumerate(items):
        if end > begin and size + len(item) + 1 > bytes_max:
            yield items[begin:end]
            begin, size = end, 0
        size += len(item) + 1
    yield items[begin:]


def checksum(raw: bytes) -> str:
    """A short fingerprint of some text."""
    return f"{crc32(raw):08x}{len(raw):x}"
