"""The patterns of filters: regular expressions, and those of `table-migrate-rule`: `?` is one
character, `[a-z]` and `[!a-z]` a set, and `*`, as the last character, any rest. Source: tidb-tools
pkg/table-rule-selector.
"""

from __future__ import annotations

import re
import warnings

from binlogd.errors import ConfigError


def regular(pattern: str, place: str = "") -> re.Pattern[str]:
    """A regular expression, which knows no case. Raises ConfigError, also for what is another one
    where the original reads it, as `[[:alpha:]]`: Python warns of that, and finds other names."""
    try:
        with warnings.catch_warnings(action="error", category=FutureWarning):
            return re.compile(pattern, re.IGNORECASE)
    except (re.error, FutureWarning) as error:
        raise ConfigError(f"{place}{pattern!r} is no regular expression: {error}") from error


def glob(pattern: str, flags: int) -> re.Pattern[str]:
    """As a regular expression of the whole name. Raises ConfigError for a `*` that is not the last
    character, or an open bracket."""
    text, at = "", 0
    while at < len(pattern):
        letter = pattern[at]
        end = at + 1
        if letter == "*" and end == len(pattern):
            text += ".*"
        elif letter == "?":
            text += "."
        elif letter == "[" and "]" in pattern[at + 2 :]:
            end = pattern.index("]", at + 2) + 1
            negated = "^" if pattern[at + 1] == "!" else ""
            text += f"[{negated}{pattern[at + 1 + len(negated) : end - 1]}]".replace("\\", r"\\")
        elif letter in "*[":
            raise ConfigError(
                f'syncer.table-migrate-rule: pattern "{pattern}": `*` may only be the last'
                " character, and `[` needs its `]`"
            )
        else:
            text += re.escape(letter)
        at = end
    try:
        return re.compile(text, flags)
    except re.error as error:
        raise ConfigError(f'syncer.table-migrate-rule: pattern "{pattern}": {error}') from error
