"""Moments as people write them, to timestamps and back.

A moment is a TSO in digits, or a wall clock in ISO 8601; without a zone it is UTC. A wall clock
stands for a whole millisecond, so the first and the last timestamp of it are two things.
"""

from __future__ import annotations

from datetime import UTC, datetime

from binlogd.errors import ConfigError
from binlogd.tso import Tso, compose, physical_ms


def first_ts(text: str, option: str) -> Tso:
    """The first timestamp of a moment; `option` names it in errors. Raises ConfigError."""
    return _tso(text) or compose(_wall_ms(text, option))


def last_ts(text: str, option: str) -> Tso:
    """The last timestamp of a moment. Raises ConfigError."""
    return _tso(text) or Tso(compose(_wall_ms(text, option) + 1) - 1)


def wall_clock(ts: Tso) -> str:
    """The time of a timestamp, ISO 8601 in UTC, to the millisecond."""
    return wall_clock_ms(physical_ms(ts))


def wall_clock_ms(epoch_ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC."""
    seconds, millis = divmod(epoch_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{millis:03d}Z"


def _tso(text: str) -> Tso | None:
    is_number = text.isascii() and text.isdigit() and 0 < int(text) < 1 << 63
    return Tso(int(text)) if is_number else None


def _wall_ms(text: str, option: str) -> int:
    try:
        wall = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} is neither a TSO like 412518831548007863 nor a time like"
            " 2024-05-01T12:30:00Z"
        ) from None
    if wall.tzinfo is None:
        wall = wall.replace(tzinfo=UTC)
    if wall.year < 1970:
        raise ConfigError(f"{option} {text!r} lies before 1970, where timestamps begin")
    return int(wall.timestamp() * 1000)
