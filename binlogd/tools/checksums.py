"""Rows in three numbers, made alike by every server and here: their count, and the sum and the XOR
of the CRC-32 of each row's text.

Rows that are there more than once take each other out of a XOR, hence the sum; a row that is too
long for a server's max_allowed_packet has no checksum (CONCAT of a NULL, where CONCAT_WS would step
over it), hence a count of those that have one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from binlogd.drainer import sql
from binlogd.drainer.mysql.connection import SqlSession

INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
NUMBERED = frozenset({"bit", "enum", "set"})
TEMPORAL = frozenset({"date", "datetime", "timestamp", "time", "decimal"})
NULL = "N"
"""The text of NULL; that of any other value is hexadecimal."""


@dataclass(slots=True)
class Checksums:
    """Of some rows; `counted` are those with a checksum."""

    rows: int = 0
    counted: int = 0
    total: int = 0
    xor: int = 0


def hexadecimal(name: bytes, kind: str) -> bytes:
    """A value's text in hexadecimal digits: the same on every server."""
    if kind in INTEGERS or kind in TEMPORAL:
        return b"HEX(CAST(" + name + b" AS CHAR))"
    if kind in NUMBERED:
        return b"HEX(" + name + b" + 0)"
    if "blob" in kind or "binary" in kind:
        return b"HEX(" + name + b")"
    return b"HEX(CONVERT(" + name + b" USING utf8mb4))"


def text_of(column: str, kind: str) -> bytes:
    """What a server is asked for: the text of a column, by its name and its MySQL type."""
    name = sql.ident(column)
    return b"IF(%b IS NULL, '%b', %b)" % (name, NULL.encode(), hexadecimal(name, kind))


async def checksums(
    session: SqlSession, table: bytes, texts: Sequence[bytes], part: bytes = b"1 = 1"
) -> Checksums:
    """Of a part of a table on a server, by the texts of some columns."""
    row = b"CRC32(CONCAT(" + (b", '#', ".join(texts) or b"''") + b"))"
    ((rows, counted, total, xor),) = await session.rows(
        b"SELECT COUNT(*), COUNT(%b), COALESCE(SUM(%b), 0), BIT_XOR(%b) FROM %b WHERE %b"
        % (row, row, row, table, part)
    )
    return Checksums(int(rows), int(counted), int(total), int(xor))


def checksums_of(rows: Iterable[Sequence[str]]) -> Checksums:
    """Of rows that are here, each as the texts of its columns."""
    found = Checksums()
    for row in rows:
        crc = zlib.crc32("#".join(row).encode())
        found.rows += 1
        found.total += crc
        found.xor ^= crc
    found.counted = found.rows
    return found
