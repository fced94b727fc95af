"""The clock and the time zone that a DDL was executed under.

Rows that are there get the value of a column that is added by the DDL itself, here and there: with
DEFAULT CURRENT_TIMESTAMP that is the time of the statement, which TiDB keeps as the column's
origin default. A MODIFY COLUMN that makes a TIME a DATETIME adds the day; one that makes a
TIMESTAMP a DATETIME writes it in the zone of the session, which TiDB keeps in `reorg_meta`.

Source: pingcap/tidb ddl/ddl_api.go (generateOriginDefaultValue), parser/model/reorg.go.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from binlogd.tidb.ddl_text import words
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import ActionType, Column, Job
from binlogd.tso import Tso, physical_ms

_IN_UTC = frozenset({"", "UTC", "Etc/UTC", "Z"})
_CONVERTS = frozenset({ActionType.MODIFY_COLUMN, ActionType.MULTI_SCHEMA_CHANGE})
ADDS_COLUMNS = frozenset(
    {ActionType.ADD_COLUMN, ActionType.ADD_COLUMNS, ActionType.MULTI_SCHEMA_CHANGE}
)


class Setting(NamedTuple):
    """A statement for the session, and the one to take where that is refused."""

    statement: str
    otherwise: str = ""


RESET = b"SET SESSION timestamp = DEFAULT, time_zone = '+00:00'"
"""What makes a session again what it was before `settings`."""


def has_zone(job: Job) -> bool:
    """Whether the job tells a time zone other than UTC, and it matters to what rows hold. It does
    not where columns are only added: their old rows hold what the job says."""
    location = job.zone
    if not location.offset and location.name in _IN_UTC:
        return False
    if job.type != ActionType.MULTI_SCHEMA_CHANGE or _filled_with_its_time(job) is not None:
        return True
    return any(word.says("MODIFY", "CHANGE") for word in words(job.query))


def in_session(job: Job, in_utc: str) -> str:
    """A time in UTC (a datetime's text) as it is written in the session that `settings` prepare."""
    if not has_zone(job):
        return in_utc
    location = job.zone
    try:
        at = datetime.fromisoformat(in_utc[:19]).replace(tzinfo=UTC)
        by_name = ZoneInfo(location.name) if not location.offset else UTC
    except (ZoneInfoNotFoundError, ValueError):  # the zero date, which is the same everywhere
        return in_utc
    local = at.astimezone(by_name) + timedelta(seconds=location.offset)
    return f"{local:%Y-%m-%d %H:%M:%S}{in_utc[19:]}"


def settings(job: Job) -> list[Setting]:
    """What is to be set, in this order, in a session that is in UTC; mostly nothing."""
    zone = [_zone(job)] if has_zone(job) else []
    column = _filled_with_its_time(job)
    started_ms = physical_ms(Tso(job.start_ts))
    if column is None and job.type in _CONVERTS and started_ms > 0:
        return [Setting(f"SET SESSION timestamp = {started_ms // 1000}"), *zone]
    if column is None:
        return zone
    clock = [Setting(f"SET SESSION timestamp = UNIX_TIMESTAMP('{column.origin_default}')")]
    return clock + zone if column.field_type.tp == Tp.TIMESTAMP else zone + clock


def _filled_with_its_time(job: Job) -> Column | None:
    """The last column added, if the time of the DDL stands in rows that were there."""
    if job.table is None or job.type not in ADDS_COLUMNS:
        return None
    found = [
        column
        for column in job.table.columns
        if str(column.default).upper().startswith("CURRENT_") and _is_time(column.origin_default)
    ]
    return max(found, key=lambda column: column.id, default=None)


def _is_time(value: object) -> bool:
    try:
        return datetime.fromisoformat(str(value)).year > 1970
    except ValueError:
        return False


def _zone(job: Job) -> Setting:
    location = job.zone
    offset = timedelta(seconds=location.offset)
    if location.name in _IN_UTC or location.offset:
        return Setting(_zone_statement(_shown(offset)))
    try:
        at = datetime.fromtimestamp(physical_ms(Tso(job.start_ts)) / 1000, UTC)
        offset = at.astimezone(ZoneInfo(location.name)).utcoffset() or timedelta()
    except (ZoneInfoNotFoundError, ValueError):
        return Setting(_zone_statement(location.name))
    return Setting(_zone_statement(location.name), _zone_statement(_shown(offset)))


def _zone_statement(zone: str) -> str:
    return "SET SESSION time_zone = '" + zone.replace("\\", "").replace("'", "") + "'"


def _shown(offset: timedelta) -> str:
    minutes = round(offset.total_seconds() / 60)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
