"""Kinds of columns between which MODIFY COLUMN converts by one rule."""

from __future__ import annotations

from enum import Enum, auto

from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.model import Column


class Family(Enum):
    """What a value is to a conversion, whatever its width."""

    INT = auto()
    BIT = auto()
    YEAR = auto()
    FLOAT = auto()
    DOUBLE = auto()
    DECIMAL = auto()
    TEXT = auto()
    BINARY = auto()
    ENUM = auto()
    SET = auto()
    DATE = auto()
    DATETIME = auto()
    TIMESTAMP = auto()
    TIME = auto()
    JSON = auto()
    OTHER = auto()


COUNTED = (Family.INT, Family.BIT, Family.YEAR)
LABELLED = (Family.ENUM, Family.SET)
STRINGS = (Family.TEXT, Family.BINARY)
TIMES = (Family.DATE, Family.DATETIME, Family.TIME)
"""Those that mean the same in every time zone."""

_FAMILIES = {
    **dict.fromkeys((Tp.TINY, Tp.SHORT, Tp.INT24, Tp.LONG, Tp.LONGLONG), Family.INT),
    Tp.BIT: Family.BIT,
    Tp.YEAR: Family.YEAR,
    Tp.FLOAT: Family.FLOAT,
    Tp.DOUBLE: Family.DOUBLE,
    Tp.NEW_DECIMAL: Family.DECIMAL,
    Tp.ENUM: Family.ENUM,
    Tp.SET: Family.SET,
    Tp.DATE: Family.DATE,
    Tp.DATETIME: Family.DATETIME,
    Tp.TIMESTAMP: Family.TIMESTAMP,
    Tp.DURATION: Family.TIME,
    Tp.JSON: Family.JSON,
}


def family_of(column: Column) -> Family:
    """The family of a column."""
    tp = column.field_type.tp
    if tp in STRING_TYPES:
        return Family.BINARY if column.is_binary else Family.TEXT
    return _FAMILIES.get(Tp(tp), Family.OTHER)
