"""Values of a dump in the forms of the row decoder, as if they came from the log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from binlogd.errors import ConfigError, CorruptRow
from binlogd.snapshot.bases.dump_rows import Raw
from binlogd.tidb.columns import single
from binlogd.tidb.defaults import in_form_of
from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.model import Column
from binlogd.tidb.row import Value

Read = Callable[[Raw], Value]


def time_zone(name: str) -> tzinfo:
    """The zone that a dump was taken in: a name, or an offset like +08:00. Raises ConfigError."""
    try:
        if name[:1] in ("+", "-"):
            found = datetime.fromisoformat(f"2000-01-01T00:00:00{name}").tzinfo
            assert found is not None, "an offset was given"
            return found
        return ZoneInfo(name)
    except (ValueError, ZoneInfoNotFoundError, OSError) as error:
        raise ConfigError(
            f"--base-time-zone {name}: write UTC, +08:00, or a name like Europe/Berlin: {error}"
        ) from None


def reader_of(column: Column, zone: tzinfo | None) -> Read:
    """What reads the values of a column, and raises CorruptRow; a TIMESTAMP needs the zone."""
    plain = _plain_reader(column, zone)

    def read(raw: Raw) -> Value:
        if raw is None:
            return None
        try:
            return plain(raw)
        except ValueError as error:
            raise CorruptRow(f"column {column.name} of the dump: {error}") from error

    return read


def _plain_reader(column: Column, zone: tzinfo | None) -> Callable[[bytes], Value]:
    tp = column.field_type.tp
    if tp == Tp.TIMESTAMP:
        return lambda raw: _instant(column, raw, zone)
    return _READERS.get(tp) or (lambda raw: in_form_of(column, raw.decode()))


_READERS: dict[int, Callable[[bytes], Value]] = {
    **dict.fromkeys(STRING_TYPES, bytes),
    **dict.fromkeys((Tp.TINY, Tp.SHORT, Tp.INT24, Tp.LONG, Tp.LONGLONG, Tp.YEAR), int),
    Tp.BIT: lambda raw: int.from_bytes(raw, "big"),
    Tp.FLOAT: lambda raw: single(float(raw)),
    Tp.DOUBLE: float,
}


def _instant(column: Column, raw: bytes, zone: tzinfo | None) -> Value:
    assert zone is not None, "the base is refused where nobody knows it"
    text = raw.decode()
    if zone is UTC or text.startswith("0000-00-00"):
        return in_form_of(column, text)
    wall = datetime.fromisoformat(text).replace(tzinfo=zone)
    if wall.utcoffset() != wall.replace(fold=1).utcoffset():
        raise ValueError(
            f"{text} is no moment, or two, in {zone}, whose clocks were put forward or back then;"
            " take the dump with --params time_zone=+00:00"
        )
    moment = wall.astimezone(UTC)
    return in_form_of(column, f"{moment:%Y-%m-%d %H:%M:%S.%f}")
