"""Addresses, sizes, durations and moments, as people write them.

A moment is a TSO in digits, or a wall clock in ISO 8601; without a zone it is UTC. A wall clock
stands for a whole millisecond, so the first and the last timestamp of it are two things.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address
from math import inf
from typing import Annotated, Any, get_type_hints
from urllib.parse import urlsplit

import msgspec

from binlogd.errors import ConfigError
from binlogd.tso import MAX_TS, Tso, compose, physical_ms

_SIZE_MAX = (1 << 63) - 1
_DURATION_MAX_S = 1e10
"""Some 300 years: what adds it to a time stays a time."""
Size = Annotated[int, msgspec.Meta(ge=0, le=_SIZE_MAX, description="bytes")]
"""Of a key: a number of bytes, or text such as "64 MiB", which `in_units` turns into that."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=_DURATION_MAX_S, description="seconds")]
"""Of a key: a number of seconds, or text such as "90s" or "1h30m"."""
CommitTs = Annotated[int, msgspec.Meta(gt=0, le=MAX_TS, description="a commit_ts")]
ClusterId = Annotated[int, msgspec.Meta(ge=0, description="0: not known")]

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*((?:[kmgtpe]i?)?b?)\s*", re.IGNORECASE)
_PART = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|ms|s|m|h)"
_DURATION = re.compile(f"(?:{_PART})+")  # first: to look for a part at each digit is quadratic
_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_DAY_S = 86_400.0
_DIGITS_MAX = 9
"""Of a number of days or a port; Python refuses to read one of thousands."""
_PORT_MAX = 65535
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def in_units(tree: Mapping[str, Any], table: type[msgspec.Struct]) -> dict[str, Any]:
    """What was read of a configuration, with numbers for the text of its sizes and durations; text
    that is neither stays, for the check of all keys."""
    kinds = kinds_of(table)
    return {name: _in_unit(value, kinds.get(name)) for name, value in tree.items()}


@lru_cache(maxsize=256)  # more than there are tables
def kinds_of(table: type[msgspec.Struct]) -> dict[str, Any]:
    """What the values of its keys are to be."""
    hints = get_type_hints(table, include_extras=True)
    return {field.encode_name: hints[field.name] for field in msgspec.structs.fields(table)}


def _in_unit(value: Any, kind: Any) -> Any:
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return in_units(value, kind)
    if kind not in (Size, Seconds) or not isinstance(value, str):
        return value
    try:
        return size_bytes(value) if kind == Size else wait_s("", value)
    except ConfigError:
        return value


def listen_address(addr: str) -> tuple[str, int]:
    """`host:port`, also `[::1]:port`, as a pair; in a registry a URL would be no address. Raises
    ConfigError."""
    return address_of("addr", addr, port_min=0)


def address_of(key: str, text: str, *, port_min: int = 1) -> tuple[str, int]:
    """As `listen_address`; an error names the key."""
    try:
        return host_and_port(text, port_min=port_min)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


def check_url(key: str, url: str) -> None:
    """Raises ConfigError for what names no web server."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ValueError('expected a URL, as in "https://host:8081/path"')
        host_and_port(f"{parts.hostname or ''}:{parts.port or 1}")
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


def host_and_port(text: str, *, port_min: int = 1) -> tuple[str, int]:
    """Of `host:port`, also `[::1]:port`, whose host can be looked up. Raises ValueError."""
    host, _, port = text.strip().rpartition(":")
    if not (host and port.isascii() and port.isdigit()):
        raise ValueError(f'expected "host:port", got "{text}"')
    if len(port) > _DIGITS_MAX or not port_min <= int(port) <= _PORT_MAX:
        raise ValueError(f'a port is {port_min} to {_PORT_MAX}, got "{text}"')
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        _ = ip_address(name) if ":" in name else name.encode("idna")  # as a look-up does
    except ValueError:
        name = ""
    if not name or not name.isprintable() or set(" /[]") & set(name):
        raise ValueError(f'"{host}" is neither an address nor the name of a host')
    return name, int(port)


def shown_address(address: tuple[str, int]) -> str:
    """As `host_and_port` reads it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def pump_addresses(pumps: Sequence[str]) -> list[tuple[str, int]]:
    """Host and port of each other Pump. Raises ConfigError, also for one that is named twice."""
    found: list[tuple[str, int]] = []
    for pump in pumps:
        address = address_of("upstream.pumps", pump)
        if address in found:
            raise ConfigError(f'upstream.pumps: "{pump}" stands there twice')
        found.append(address)
    return found


def pd_addresses(urls: str | Sequence[str]) -> list[tuple[str, int]]:
    """Host and port of each PD, out of a list or of text with commas; `http://` or `https://`
    before it says nothing, TLS is what `[security]` says. Raises ConfigError."""
    given = urls.split(",") if isinstance(urls, str) else urls
    plain = [re.sub(r"^https?://", "", url.strip()).rstrip("/") for url in given]
    return [address_of("upstream.pd-urls", url) for url in plain if url]


def retention_s(key: str, text: int | str) -> float:
    """Seconds that something is kept for: a plain number is days, as in the original's `gc`, or
    "7d", text otherwise a duration. Raises ConfigError."""
    days = str(text).removesuffix("d")
    if isinstance(text, str) and not days.isdecimal():
        return duration_s(key, text, 'use 7 or "7d" for 7 days, "7h" for 7 hours')
    duration = int(days) * _DAY_S if len(days) <= _DIGITS_MAX else inf
    return _bounded(key, text, duration, "")


def _bounded(key: str, text: int | str, duration: float, hint: str) -> float:
    if not 0 < duration <= _DURATION_MAX_S:
        raise ConfigError(f"{key}: {text}: must be above 0 and below 300 years{hint}")
    return duration


def kept_s(key: str, retention: int | str) -> float:
    """Seconds that finished files are kept; 0 for ever. Raises ConfigError."""
    return retention_s(key, retention) if retention not in (0, "0") else 0.0


def duration_s(key: str, text: str, hint: str) -> float:
    """Seconds of a Go duration such as "8h" or "1h30m"; a number without a unit is none.

    Raises ConfigError, which ends with `hint`.
    """
    if not _DURATION.fullmatch(text):
        raise ConfigError(f'{key}: "{text}": {hint}')
    duration = sum(float(number) * _SECONDS[unit] for number, unit in re.findall(_PART, text))
    return _bounded(key, text, duration, f"; {hint}")


def wait_s(option: str, text: str) -> float:
    """Seconds that a command waits: a plain number is seconds, as everywhere on the command line,
    text otherwise a duration. Raises ConfigError."""
    duration = f"{text}s" if _PLAIN.fullmatch(text) else text
    return duration_s(option, duration, "say seconds, or use a unit: 500ms, 30s, 10m or 1h30m")


def size_bytes(size: str) -> int:
    """A size in bytes, of text such as "10 GiB", "500MB", "1k"; "" is 0. Raises ConfigError."""
    if not size:
        return 0
    match = _SIZE.fullmatch(size)
    if match is None:
        raise ConfigError(f'size "{size}": use a number of bytes, or text such as "10 GiB"')
    number, unit = match[1], match[2].lower()
    base = 1024 if "i" in unit else 1000
    power = "bkmgtpe".index(unit[0]) if unit else 0
    size_b = float(number) * base**power
    if size_b > _SIZE_MAX:
        raise ConfigError(f'size "{size}": it is beyond 8 EiB, more than any file or memory has')
    return int(size_b)


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
    is_number = text.isascii() and text.isdigit() and len(text) < 20
    return Tso(int(text)) if is_number and 0 < int(text) <= MAX_TS else None


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
    if wall.timestamp() < 0:
        raise ConfigError(f"{option} {text!r} lies before 1970, where timestamps begin")
    return min(int(wall.timestamp() * 1000), physical_ms(MAX_TS))  # 9999 is "for ever"
