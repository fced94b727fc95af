"""Dates and times between TiDB's numbers and MySQL's text.

Text and not `datetime`: MySQL has 0000-00-00, month 0, 30 February and 838 hours. A TIMESTAMP is
in UTC, in the bytes and here. Fractions are cut, never rounded: TiDB has rounded before it stored.
Source: pingcap/tidb types/time.go (ToPackedUint, FromPackedUint, Duration).
"""

from __future__ import annotations

import re
from functools import lru_cache

from binlogd.errors import CorruptRow

YEAR_MAX = 9999
DURATION_SECONDS_MAX = (838 * 60 + 59) * 60 + 59
"""TIME ends at 838:59:59."""
ZERO_DATE = "0000-00-00"
ZERO_CLOCK = "00:00:00"
_TWO_DIGITS = tuple(f"{number:02d}" for number in range(839))
"""Faster than a format, and smaller than a cache. Of a TIME the hours go on to 838."""
_ZERO_FRACTIONS = ("", ".0", ".00", ".000", ".0000", ".00000", ".000000")


@lru_cache(maxsize=4096)
def day_text(ymd: int) -> str:
    """`YYYY-MM-DD` of the upper part of a packed time (packed >> 41), kept for the next row. Raises
    CorruptRow for a year above 9999; months are 0 to 12 and days 0 to 31 by construction."""
    year, month = divmod(ymd >> 5, 13)
    if year > YEAR_MAX:
        raise CorruptRow(f"a date in the year {year}")
    return f"{year:04d}-{month:02d}-{ymd & 31:02d}"


def clock_text(hms: int) -> str:
    """`HH:MM:SS` of the middle part of a packed time (packed >> 24 & 0x1FFFF)."""
    hour, minute, second = hms >> 12, hms >> 6 & 63, hms & 63
    if hour > 23 or minute > 59 or second > 59:
        raise CorruptRow(f"a time of day of {hour}:{minute}:{second}")
    return f"{_TWO_DIGITS[hour]}:{_TWO_DIGITS[minute]}:{_TWO_DIGITS[second]}"


def fraction_text(microsecond: int, fsp: int) -> str:
    """The point and `fsp` digits of a fraction, cut; nothing for a fsp of 0 or less."""
    if fsp <= 0:
        return ""
    if microsecond == 0:
        return _ZERO_FRACTIONS[fsp]
    if microsecond > 999_999:
        raise CorruptRow(f"{microsecond} microseconds")
    return f".{microsecond:06d}"[: fsp + 1]


def date_text(packed: int) -> str:
    """A packed time as DATE."""
    return day_text(packed >> 41)


def datetime_text(packed: int, fsp: int) -> str:
    """A packed time as DATETIME or TIMESTAMP of `fsp` fraction digits."""
    text = f"{day_text(packed >> 41)} {clock_text(packed >> 24 & 0x1FFFF)}"
    return text + fraction_text(packed & 0xFFFFFF, fsp) if fsp > 0 else text


_TIME = re.compile(
    r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6})\d*)?)?"
)
_DURATION = re.compile(r"(-?)(?:(\d+):(\d{1,2}):)?(\d{1,2})(?:\.(\d{1,9})\d*)?")


def packed_time(text: str) -> int:
    """The packed number of `YYYY-MM-DD[ HH:MM:SS[.ffffff]]`. Raises ValueError."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no date or time")
    year, month, day, hour, minute, second = (int(each or 0) for each in match.groups()[:6])
    if month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{text!r} is no date or time")
    microsecond = int((match[7] or "").ljust(6, "0"))
    ymd = (year * 13 + month) << 5 | day
    hms = hour << 12 | minute << 6 | second
    return (ymd << 17 | hms) << 24 | microsecond


def duration_text(nanoseconds: int, fsp: int) -> str:
    """A TIME of `fsp` fraction digits. Raises CorruptRow beyond 838:59:59."""
    seconds, rest = divmod(abs(nanoseconds), 1_000_000_000)
    if seconds > DURATION_SECONDS_MAX:
        raise CorruptRow(f"a TIME of {seconds} s")
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    clock = f"{_TWO_DIGITS[hour]}:{_TWO_DIGITS[minute]}:{_TWO_DIGITS[second]}"
    return f"{'-' if nanoseconds < 0 else ''}{clock}{fraction_text(rest // 1000, fsp)}"


def duration_ns(text: str) -> int:
    """The nanoseconds of `[-]HH:MM:SS[.f]`. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no TIME")
    sign, hour, minute, second, fraction = match.groups()
    seconds = (int(hour or 0) * 60 + int(minute or 0)) * 60 + int(second)
    nanoseconds = seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0"))
    return -nanoseconds if sign else nanoseconds


def duration_us(text: str) -> int:
    """The same in microseconds, which is all that a TIME has."""
    return duration_ns(text) // 1000
