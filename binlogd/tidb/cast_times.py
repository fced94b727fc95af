"""Dates and times as other types have them, where neither a time zone nor the present day counts.

As in `casts`: ValueError or ArithmeticError for a value whose conversion is not certain.
Source: pingcap/tidb types/time.go (RoundFrac, ToNumber, ParseTimeFromNum, ParseDuration).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta

from binlogd.tidb.families import STRINGS, Family, family_of
from binlogd.tidb.model import Column
from binlogd.tidb.row import Value
from binlogd.tidb.times import DURATION_SECONDS_MAX, ZERO_CLOCK, ZERO_DATE, duration_text

Cast = Callable[[Value], Value]

_SECOND = 1_000_000_000
_DATETIME = re.compile(r"(\d{4}-\d\d-\d\d)(?: (\d\d:\d\d:\d\d(?:\.\d{1,6})?))?", re.ASCII)
_CLOCK = re.compile(r"(-?)(\d{2,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?", re.ASCII)


def number_text(text: str) -> str:
    """A date or time as the number that TiDB makes of it, with its fraction."""
    sign = "-" if text.startswith("-") else ""
    return sign + re.sub(r"[-: ]", "", text)


def rounded_number(source: Family, text: str) -> int:
    """The same without a fraction."""
    if source is Family.TIME:
        text = duration_text(_rounded(_nanoseconds(text), 0), 0)
    elif source is Family.DATETIME:
        text = with_fraction(text, 0)
    return int(number_text(text))


def to_date(old: Column, _new: Column) -> Cast | None:
    """The day, whatever the hour."""
    source = family_of(old)
    if source in (Family.DATE, Family.DATETIME):
        return lambda value: str(value)[:10]
    if source in STRINGS:
        return lambda value: _day(*_day_and_clock(value))
    return (lambda value: _counted(value)[:10]) if source is Family.INT else None


def to_datetime(old: Column, new: Column) -> Cast | None:
    """Fractions are rounded half up."""
    source, fsp = family_of(old), max(0, new.field_type.decimal)
    if source is Family.DATE:
        return lambda value: with_fraction(f"{value!s} {ZERO_CLOCK}", fsp)
    if source is Family.DATETIME:
        return lambda value: with_fraction(str(value), fsp)
    if source in STRINGS:
        return lambda value: with_fraction(" ".join(_day_and_clock(value)), fsp)
    return (lambda value: with_fraction(_counted(value), fsp)) if source is Family.INT else None


def to_timestamp(old: Column, new: Column) -> Cast | None:
    """Only another number of fraction digits: of anything else it is the session's zone that says
    what it means."""
    fsp = max(0, new.field_type.decimal)
    if family_of(old) is not Family.TIMESTAMP:
        return None
    return lambda value: with_fraction(str(value), fsp)


def with_fraction(text: str, fsp: int) -> str:
    """A date and time with another number of fraction digits, rounded half up."""
    whole, _, fraction = text.partition(".")
    if len(fraction) <= fsp or not fraction.strip("0"):
        return whole + ("." + fraction[:fsp].ljust(fsp, "0") if fsp else "")
    half = timedelta(microseconds=10 ** (6 - fsp) // 2)
    rounded = (datetime.fromisoformat(text) + half).isoformat(" ", "microseconds")
    return rounded[: 19 + (fsp + 1 if fsp else 0)]


def _day_and_clock(value: Value) -> tuple[str, str]:
    """The day and the clock of a text that is written in full; others are read by many rules."""
    assert isinstance(value, bytes)
    match = _DATETIME.fullmatch(value.decode().strip(" "))
    if match is None:
        raise ValueError("no date in full")
    day, clock = match[1], match[2] or ZERO_CLOCK
    if day != ZERO_DATE or clock != ZERO_CLOCK:
        datetime.fromisoformat(f"{day} {clock}")
    return day, clock


def _day(day: str, clock: str) -> str:
    if "." in clock:
        raise ValueError("a fraction may be rounded to the next day")
    return day


def _counted(value: Value) -> str:
    """A date and time out of its number: with 6, 8, 12 or 14 digits."""
    assert isinstance(value, int)
    if value == 0:
        return f"{ZERO_DATE} {ZERO_CLOCK}"
    digits = str(value)
    if len(digits) in (6, 12):
        digits = ("20" if digits[:2] < "70" else "19") + digits
    if len(digits) not in (8, 14):
        raise ValueError("no number of a date")
    digits = digits.ljust(14, "0")
    day = f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}"
    clock = f"{digits[8:10]}:{digits[10:12]}:{digits[12:]}"
    return datetime.fromisoformat(f"{day} {clock}").isoformat(" ")


def to_time(old: Column, new: Column) -> Cast | None:
    """The time of day of a date; a number by its digits."""
    fsp, source = max(0, new.field_type.decimal), family_of(old)

    def cast(value: Value) -> Value:
        return duration_text(_limited(_rounded(_nanoseconds(_clock(source, value)), fsp)), fsp)

    sources = (Family.TIME, Family.DATE, Family.DATETIME, Family.INT, Family.DECIMAL, *STRINGS)
    return cast if source in sources else None


def _clock(source: Family, value: Value) -> str:
    if source is Family.DATE:
        return ZERO_CLOCK
    if source is Family.DATETIME:
        return str(value)[11:]
    if source in STRINGS:
        assert isinstance(value, bytes)
        return value.decode().strip(" ")
    if source in (Family.INT, Family.DECIMAL):
        whole, _, fraction = str(value).removeprefix("-").partition(".")
        digits = whole.zfill(6)
        sign = "-" if str(value).startswith("-") else ""
        clock = f"{sign}{digits[:-4]}:{digits[-4:-2]}:{digits[-2:]}"
        return f"{clock}.{fraction[:6]}" if fraction.strip("0") else clock
    return str(value)


def _nanoseconds(text: str) -> int:
    match = _CLOCK.fullmatch(text)
    if match is None or match[3] > "59" or match[4] > "59":
        raise ValueError("no time in full")
    seconds = (int(match[2]) * 60 + int(match[3])) * 60 + int(match[4])
    found = _limited(seconds * _SECOND + int((match[5] or "").ljust(9, "0")))
    return -found if match[1] else found


def _rounded(nanoseconds: int, fsp: int) -> int:
    """To so many digits; of the middle between two below zero it is not certain which."""
    unit: int = 10 ** (9 - fsp)
    if nanoseconds < 0 and nanoseconds % unit * 2 == unit:
        raise ValueError("in the middle")
    return (nanoseconds + unit // 2) // unit * unit


def _limited(nanoseconds: int) -> int:
    if abs(nanoseconds) > DURATION_SECONDS_MAX * _SECOND:
        raise ValueError("beyond 838:59:59")
    return nanoseconds
