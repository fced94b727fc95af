"""Values that a MODIFY COLUMN rewrote, where only the old ones are known.

A MODIFY or CHANGE COLUMN that cannot keep the stored bytes gives the column a new id and rewrites
every row, without a binlog. A row that nobody touched since is in the log, and in a replica, under
the old id, so its value is converted here, as TiDB did. What is not certain to come out as TiDB's
is refused (`Unconvertible`): a snapshot then leaves the table out, a replica in SQLite stops.
Source: pingcap/tidb types/datum.go (ConvertTo), types/convert.go, table/column.go (CastValue).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from binlogd.errors import CorruptRow, Unfit
from binlogd.tidb import cast_times, casts
from binlogd.tidb.families import Family, family_of
from binlogd.tidb.model import Column
from binlogd.tidb.row import Value

Convert = Callable[[Value], Value]


class Unconvertible(Unfit):
    """A value whose conversion is not known for certain."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A column that replaced another: rows of before `version` mean what `old` holds, converted."""

    old: Column
    new: Column
    version: int


def converter(old: Column, new: Column) -> Convert:
    """The conversion from one column's values to another's, in the row decoder's forms. Raises
    Unconvertible, here or for a single value."""
    target = _TARGETS.get(family_of(new))
    convert = target(old, new) if target else None
    if convert is None:
        raise Unconvertible(
            f"column {new.name} was rewritten from another type by MODIFY COLUMN (column ids"
            f" {old.id} and {new.id}), and only its old values are known: {_why(old, new)}"
        )
    known = convert

    def guarded(value: Value) -> Value:
        """NULL stays. Raises Unconvertible for a value of which nobody can know what became."""
        if value is None:
            return None
        try:
            return known(value)
        except (ValueError, ArithmeticError, CorruptRow) as error:
            raise Unconvertible(
                f"a value of column {new.name} from before its MODIFY COLUMN cannot be converted"
                f" for certain ({error}): a session that was not strict may have cut it"
            ) from None

    return guarded


def _why(old: Column, new: Column) -> str:
    """Why nobody can tell what became of them."""
    families = {family_of(old), family_of(new)}
    if Family.TIMESTAMP in families:
        return "the time zone of the session counted"
    if Family.TIME in families and families & {Family.DATE, Family.DATETIME, Family.YEAR}:
        return "the day on which it was said counted"
    return "there is no certain rule for these types"


_TARGETS: dict[Family, Callable[[Column, Column], Convert | None]] = {
    Family.INT: casts.to_int,
    Family.YEAR: casts.to_year,
    Family.BIT: casts.to_bit,
    Family.FLOAT: casts.to_float,
    Family.DOUBLE: casts.to_double,
    Family.DECIMAL: casts.to_decimal,
    Family.TEXT: casts.to_text,
    Family.BINARY: casts.to_binary,
    Family.ENUM: casts.to_enum,
    Family.SET: casts.to_set,
    Family.JSON: casts.to_json,
    Family.DATE: cast_times.to_date,
    Family.DATETIME: cast_times.to_datetime,
    Family.TIMESTAMP: cast_times.to_timestamp,
    Family.TIME: cast_times.to_time,
}
