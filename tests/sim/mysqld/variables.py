"""The session variables that the server knows; others are refused, as a real one does (1193)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.sim.mysqld.errors import ServerError
from tests.sim.mysqld.lexing import NotSimulated

_MODES = frozenset(
    {
        "ALLOW_INVALID_DATES",
        "ERROR_FOR_DIVISION_BY_ZERO",
        "IGNORE_BAD_TABLE_OPTIONS",
        "NO_AUTO_VALUE_ON_ZERO",
        "NO_ENGINE_SUBSTITUTION",
        "NO_ZERO_DATE",
        "NO_ZERO_IN_DATE",
        "ONLY_FULL_GROUP_BY",
        "STRICT_ALL_TABLES",
        "STRICT_TRANS_TABLES",
        "TIME_ROUND_FRACTIONAL",
    }
)
_MODES_NOT_SIMULATED = frozenset(
    {"ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "ANSI", "PAD_CHAR_TO_FULL_LENGTH"}
)
STRICT = frozenset({"STRICT_ALL_TABLES", "STRICT_TRANS_TABLES", "TRADITIONAL"})
DEFAULTS: Mapping[str, Any] = {
    "autocommit": 1,
    "explicit_defaults_for_timestamp": 1,
    "foreign_key_checks": 1,
    "in_predicate_conversion_threshold": 1000,
    "innodb_lock_wait_timeout": 50,
    "innodb_strict_mode": 1,
    "lock_wait_timeout": 86400,
    "max_error_count": 64,
    "max_statement_time": 0,
    "sql_mode": "ALLOW_INVALID_DATES",
    "time_zone": "SYSTEM",
    "timestamp": 0,
    "tx_isolation": "READ-COMMITTED",
}
"""As the MariaDB of the tests is started. What these change is simulated for the lock waits and
sql_mode alone; the others are kept, so that a test can look at them."""


def checked(name: str, value: Any) -> Any:
    """A value as it is kept. Raises ServerError, NotSimulated."""
    if name not in DEFAULTS:
        raise ServerError(1193, f"Unknown system variable '{name}'")
    if name == "sql_mode":
        return _mode(str(value))
    if isinstance(DEFAULTS[name], int):
        if value in ("ON", "OFF"):
            return int(value == "ON")
        try:
            return int(value)
        except (TypeError, ValueError):
            raise ServerError(1232, f"Incorrect argument type to variable '{name}'") from None
    return value


def _mode(said: str) -> str:
    modes = [each.strip().upper() for each in said.split(",") if each.strip()]
    for mode in modes:
        if mode in _MODES_NOT_SIMULATED:
            raise NotSimulated(f"the sql_mode {mode}")
        if mode not in _MODES:
            raise ServerError(1231, f"Variable 'sql_mode' can't be set to the value of '{mode}'")
    return ",".join(dict.fromkeys(modes))
