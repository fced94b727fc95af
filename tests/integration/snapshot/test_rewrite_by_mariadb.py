"""What a MODIFY COLUMN makes of values, held to a database that has rules of its own for it.

MariaDB and TiDB agree on most pairs of types; where they do not, it is told here by name. A value
whose conversion is refused needs no agreement: its table is left out by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from binlogd.tidb.kinds import Tp
from binlogd.tidb.rewrite import Unconvertible, converter
from binlogd.tidb.row import Value
from tests.support.column_kinds import KINDS, Kind
from tests.support.mariadb import MariaDb


def literal(of: Kind, value: Value) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'" if of.column.is_binary else f"_utf8mb4 X'{value.hex()}'"
    return f"'{value}'" if isinstance(value, str) else repr(value)


def read(of: Kind, raw: bytes | None) -> Value:
    assert raw is not None
    tp = of.column.field_type.tp
    if tp in (Tp.FLOAT, Tp.DOUBLE):
        return float(raw)
    if tp in (Tp.VARCHAR, Tp.STRING):
        return raw
    is_text = tp in (Tp.NEW_DECIMAL, Tp.DATE, Tp.DATETIME, Tp.DURATION)
    return raw.decode() if is_text else int(raw)


def modified(mariadb: MariaDb, old: Kind, news: Sequence[Kind]) -> list[list[Value]]:
    """The values of columns of one type, each made another type. A text is inserted into the new
    column: an ALTER of MariaDB reads no number behind the first sign that is no digit."""
    columns = ", ".join(f"c{at} {old.sql}" for at in range(len(news)))
    rows = ",".join(
        f"({at}{f',{literal(old, each)}' * len(news)})" for at, each in enumerate(old.values)
    )
    filled = f"INSERT INTO rewritten.t VALUES {rows}"
    modify = ", ".join(f"MODIFY c{at} {new.sql}" for at, new in enumerate(news))
    is_text = old.column.field_type.tp in (Tp.VARCHAR, Tp.STRING)
    found = mariadb.execute(
        "SET NAMES utf8mb4, sql_mode = 'TIME_ROUND_FRACTIONAL'",
        f"CREATE TEMPORARY TABLE rewritten.t (id INT PRIMARY KEY, {columns})"
        " ENGINE = MyISAM CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        *(() if is_text else (filled,)),
        f"ALTER TABLE rewritten.t {modify}",
        *((filled,) if is_text else ()),
        f"SELECT {', '.join(shown(f'c{at}', new) for at, new in enumerate(news))}"
        " FROM rewritten.t ORDER BY id",
    )
    return [
        [None if raw is None else read(new, raw) for raw in values]
        for new, values in zip(news, zip(*found, strict=True), strict=True)
    ]


def shown(name: str, new: Kind) -> str:
    tp = new.column.field_type.tp
    if tp in (Tp.FLOAT, Tp.DOUBLE):
        return f"{name} + 0e0"
    return f"{name} + 0" if tp in (Tp.ENUM, Tp.SET, Tp.BIT) else name


def is_known_to_differ(old: Kind, new: Kind, value: Value) -> bool:
    """MariaDB cuts the fraction of a time that becomes an integer, and does not print what it has
    rounded to (M, D) as the nearest double; TiDB rounds, and divides."""
    is_cut = "." in str(value) and old.column.field_type.tp in (Tp.DATETIME, Tp.DURATION)
    if is_cut and new.column.field_type.tp in (Tp.LONGLONG, Tp.LONG):
        return True
    return new.sql == "DOUBLE(9,2)" and old.sql == "DOUBLE"


def test_what_is_converted_is_what_another_database_makes_of_it(mariadb: MariaDb) -> None:
    mariadb.execute("CREATE DATABASE rewritten")
    pairs = converted = 0
    wrong = []
    for old in KINDS:
        casts = {}
        for new in KINDS:
            with suppress(Unconvertible):
                casts[new.sql] = new, converter(old.column, new.column)
        theirs_of = modified(mariadb, old, [new for new, _ in casts.values()])
        for (new, cast), theirs in zip(casts.values(), theirs_of, strict=True):
            done = 0
            for value, their in zip(old.values, theirs, strict=True):
                with suppress(Unconvertible):
                    ours = cast(value)
                    done += 1
                    if ours != their and not is_known_to_differ(old, new, value):
                        wrong.append((old.sql, new.sql, value, ours, their))
            converted += done
            pairs += done > 0
    assert wrong == []
    assert (pairs, converted) > (200, 2000)
